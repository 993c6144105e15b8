"""`export` to every target: refusals with the nearest plan that can run, versions, dry runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import api
from planner.cli import main
from planner.data.load import load_plan, problem_file
from planner.data.model_constants import RotaryScaling
from planner.data.save import to_yaml
from planner.errors import InstanceError, PlanRefusedError
from planner.launchers.directory import files_of
from planner.launchers.megatron.arguments import words
from planner.launchers.megatron.plan_arguments import number_format
from planner.launchers.nearest import near_plans, nearest_plan
from planner.rules.versions import VERSIONS, version_violations
from tests.planner.launchers import plans
from tests.planner.launchers.test_flagscale import degrees_by_stage
from tests.planner.stubs import two_class_problem, two_stage_plan


def test_a_plan_that_bridge_cannot_run_is_refused_with_the_nearest_that_it_can(tmp_path: Path) -> None:
    problem = two_class_problem()
    plan = two_stage_plan(problem)  # the A100 stage recomputes 3 layers, the H100 stage none
    with pytest.raises(PlanRefusedError) as refused:
        api.export(plan, "megatron-bridge", tmp_path / "out", problem=problem)
    said = str(refused.value)
    assert "target megatron-bridge has one setting for all" in said
    assert "nearest plan that megatron-bridge can run: recompute 2 x none" in said  # it fits without
    changed, evaluation = nearest_plan(problem, plan, "megatron-bridge") or pytest.fail("no plan")
    assert len({(stage.recompute, stage.recompute_layers) for stage in changed.stages}) == 1
    assert evaluation.violations == ()
    out = api.export(changed, "megatron-bridge", tmp_path / "out", problem=problem)
    assert load_plan(out / "plan.yaml").stages == changed.stages


def test_flagscale_gets_chunks_stacked_and_context_turned_into_replicas() -> None:
    problem, plan = plans.virtual_stages()
    stacked = near_plans(problem, plan, "flagscale")
    assert [stage.layers for stage in stacked[0].stages] == [(0, 16), (17, 31)]
    assert [stage.recompute_layers for stage in stacked[0].stages] == [0, 6]
    problem, plan = plans.context_parallel()
    degrees = {(p.tensor_parallel, p.data_parallel) for p in near_plans(problem, plan, "flagscale")}
    assert degrees == {(4, 2)}  # 2 sequences do not fill 4 replicas


def test_megatron_gets_the_degrees_of_one_of_the_stages() -> None:
    problem, plan = degrees_by_stage()
    found = near_plans(problem, plan, "megatron-lm")
    assert {(p.tensor_parallel, p.data_parallel, p.microbatch_size) for p in found} == {(8, 4, 2), (4, 8, 2)}
    assert all(p.num_microbatches * p.microbatch_size * p.data_parallel == 32 for p in found)


def test_narrow_formats_are_those_that_are_trained_with() -> None:
    """MXFP8 had two bits of mantissa for gradients, and delayed scales followed the last step alone."""
    assert words(number_format("mxfp8"))[1:] == ("--fp8-format", "e4m3", "--fp8-recipe", "mxfp8")
    assert words(number_format("fp8_block"))[1:] == ("--fp8-format", "hybrid", "--fp8-recipe", "blockwise")
    delayed = words(number_format("fp8"))
    assert delayed[-4:] == ("--fp8-amax-history-len", "1024", "--fp8-amax-compute-algo", "max")
    assert "--fp8-amax-history-len" not in words(number_format("fp8", current_scaling=True))


def test_core_0_15_does_not_copy_key_value_heads(tmp_path: Path) -> None:
    sketch = plans.Sketch(
        [[16], [16]], [0, 0], tensor_parallel=16, data_parallel=1, sequence_parallel=True, num_microbatches=8
    )
    problem, plan = plans.case("llama3-8b", "2x16 h100-sxm-80gb", 8, 8192, sketch)
    for version in VERSIONS[1:]:
        assert version_violations(problem, plan, version) == ()
        assert f"(core {version})" in files_of(problem, plan, "megatron-lm", version=version)["launch.sh"]
    with pytest.raises(PlanRefusedError, match=r"0\.15 does not copy the 8 key-value heads.*tp 8 \(not 16\)"):
        api.export(plan, "megatron-lm", tmp_path / "out", problem=problem, version="0.15")


@pytest.mark.parametrize(
    ("target", "version", "complaint"),
    [("megatron-lm", "0.14", "0.15, 0.16"), ("flagscale", "0.17", "goes with target megatron-lm only")],
)
def test_a_version_that_means_nothing_is_refused(target: str, version: str, complaint: str) -> None:
    problem, plan = plans.uniform()
    with pytest.raises(InstanceError, match=complaint):
        api.export_texts(plan, target, problem=problem, version=version)


def test_unrestricted_plan_leaves_as_json_and_says_who_could_run_it() -> None:
    problem, plan = degrees_by_stage()
    files = files_of(problem, plan, "unrestricted")
    assert set(files) == {"plan.json", "plan.schema.json", "plan.yaml", "README.md"}
    values = json.loads(files["plan.json"])
    schema = json.loads(files["plan.schema.json"])
    assert values["schema"] == schema["properties"]["schema"]["const"]
    assert set(schema["required"]) <= set(values) <= set(schema["properties"])
    said = files["README.md"]
    assert "**flagscale** can run it" in said
    assert "**megatron-lm** cannot:\n  - stage 2: tensor_parallel 4 differs from the plan's 8" in said


def test_json_of_an_unrestricted_plan_reads_back_as_the_plan(tmp_path: Path) -> None:
    problem, plan = degrees_by_stage()
    (tmp_path / "plan.json").write_text(files_of(problem, plan, "unrestricted")["plan.json"])
    again = load_plan(tmp_path / "plan.json")
    assert again.stages == plan.stages
    assert again.target == "unrestricted"


def test_a_plan_for_another_target_is_exported_where_it_can_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    problem, plan = plans.uniform()
    plan_file = tmp_path / "plan.yaml"
    plan_file.write_text(to_yaml(plan.model_copy(update={"problem": problem_file(problem)})))
    for target in ("flagscale", "megatron-bridge", "unrestricted"):
        out = tmp_path / target
        assert main(["export", str(plan_file), "--target", target, "--out", str(out)]) == 0
        assert load_plan(out / "plan.yaml").target == target
        assert len(list(out.glob("*.sh"))) == (target != "unrestricted")
    before = sorted(tmp_path.iterdir())
    capsys.readouterr()
    assert main(["export", str(plan_file), "--version", "0.17", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "==> launch.sh <==" in printed and "(core 0.17)" in printed
    assert sorted(tmp_path.iterdir()) == before
    assert main(["export", str(plan_file)]) == 2
    assert "--out" in capsys.readouterr().err


def test_what_the_launch_files_lack_of_a_model_is_said_when_they_are_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A model whose positions are stretched otherwise was trained without; the page alone said so."""
    problem, plan = plans.uniform()
    dynamic = problem.model.constants.model_copy(
        update={"rotary_scaling": RotaryScaling(kind="dynamic", factor=2.0)}
    )
    model = problem.model.model_copy(update={"constants": dynamic})
    stretched = problem.model_copy(update={"model": model})
    for name, of, told in (("plain", problem, False), ("stretched", stretched, True)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(to_yaml(plan.model_copy(update={"problem": problem_file(of)})))
        for target in ("megatron-lm", "megatron-bridge", "flagscale", "unrestricted"):
            out = tmp_path / f"{name}-{target}"
            assert main(["export", str(file), "--target", target, "--out", str(out), "--quiet"]) == 0
            said = capsys.readouterr().err
            assert ("rotary positions are not stretched" in said) == (told and target != "unrestricted")
