"""Linear attention there and back: arguments, Megatron-LM's own reading of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.cli import main
from planner.commands.screen import ExitCode
from planner.cost.parameters import total_parameters
from planner.data.load import load_model, load_plan
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.errors import InstanceError, PlanRefusedError
from planner.launchers.directory import export_plan
from planner.launchers.megatron.arguments import words
from planner.launchers.megatron.layer_lists import layer_list, list_expression
from planner.launchers.megatron.linear_attention import linear_arguments, read_linear_attention
from planner.launchers.megatron.model import inexpressible, model_arguments, moe_arguments
from planner.launchers.megatron.plan_arguments import refusals
from planner.launchers.read.constants import other_constants
from planner.launchers.read.flags import Flags
from planner.launchers.read.launch import read_launch
from planner.launchers.read.megatron import read_script
from planner.launchers.read.model import read_model
from planner.rules.versions import version_violations
from tests.planner.launchers import plans
from tests.planner.launchers.test_megatron_accepts import run_check, write

NEXT = load_model("qwen3-next-80b-a3b")


def with_pattern(pattern: str) -> ModelSpec:
    """The shipped model with other layers."""
    assert NEXT.linear_attention is not None
    linear = NEXT.linear_attention.model_copy(update={"pattern": pattern})
    return NEXT.model_copy(update={"linear_attention": linear, "num_layers": len(pattern)})


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("version", ["0.17", "0.19"])
def test_an_exported_plan_reads_back(version: str, virtual: bool, tmp_path: Path) -> None:
    problem, plan = plans.linear_layers(virtual)
    out = export_plan(problem, plan, "megatron-lm", tmp_path / "launch", version=version)
    back = read_script(out / "launch.sh", problem.cluster)
    assert (back.plan, back.problem.model) == (plan, problem.model)
    assert (back.unknown_flags, back.notes) == ((), ())
    assert "flash-linear-attention" in (out / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("virtual", "context_parallel"), [(False, 2), (True, 1)])
@pytest.mark.parametrize(("version", "wheel"), [("0.17", "0.17.1"), ("0.18", "0.18.2"), ("0.19", None)])
def test_megatron_places_the_layers_and_counts_as_many_parameters(
    version: str,
    wheel: str | None,
    virtual: bool,
    context_parallel: int,
    megatron_python: str,
    tmp_path: Path,
) -> None:
    """The real parser, layers and models; before core 0.19 there is no context parallelism for them."""
    problem, plan = plans.linear_layers(virtual, context_parallel if version == "0.19" else 1, few=True)
    out = write(tmp_path, problem, plan, version)
    options = ("--script", str(out / "launch.sh"), "--nodes", "2")
    expected = ("--expect", str(tmp_path / "expected.json"))
    done = run_check(megatron_python, *options, *expected, older=wheel)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("pattern", "frequency"),
    [
        ("LLL*LLL*", "4"),
        ("L*L*L", "2"),
        ("LL*LL*L", "3"),
        ("LLLL", "([1]*4)"),
        ("*LLL", "([0]*1+[1]*3)"),
        ("LL**", "([1]*2+[0]*2)"),
    ],
)
def test_layers_are_told_by_their_distance_or_a_list(pattern: str, frequency: str) -> None:
    model = with_pattern(pattern)
    told = Flags((*words(linear_arguments(model)), "--num-layers", str(len(pattern))))
    assert told.values["--linear-attention-freq"] == (frequency,)
    assert read_linear_attention(told) == model.linear_attention


def test_a_model_of_the_users_own_is_built_from_its_flags() -> None:
    model = with_pattern("LL*L" * 3)
    shape = words((*model_arguments(model, 4096), *moe_arguments(model, grouped_gemm=False)))
    found = read_model(Flags((*shape, "--vocab-size", "77777", "--norm-epsilon", "1e-6")), [])
    wanted = model.model_copy(update={"vocab_size": 77_777})
    assert (found.linear_attention, found.output_gate) == (model.linear_attention, True)
    assert total_parameters(found) == total_parameters(wanted)
    without = [word for word in shape if word != "--apply-layernorm-1p"]
    other = read_model(Flags((*without, "--vocab-size", "77777", "--norm-epsilon", "1e-6")), [])
    assert "zero_centered_norms False, not True" in list(other_constants(other, wanted))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("([1]*3+[0]*1)*2", [1, 1, 1, 0, 1, 1, 1, 0]),
        ("[0, 1]*2+[1]", [0, 1, 0, 1, 1]),
        ("([0]+[1]*2)", [0, 1, 1]),
        ("[]*10000000000", []),
    ],
)
def test_lists_of_layers_are_read_as_python_does(text: str, numbers: list[int]) -> None:
    assert layer_list(text) == numbers
    assert layer_list(list_expression(numbers or [1])) == (numbers or [1])


@pytest.mark.parametrize(
    "text", ["[1]*99999999999", "[1", "3", "[x]*2", "[[1]]", "[2]", "[True]", "__import__('os')", "[1]-[1]"]
)
def test_what_is_no_list_of_layers_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        layer_list(text)


BASE = "--num-layers 8 --experimental-attention-variant gated_delta_net"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--num-layers 8 --experimental-attention-variant dsa", "sparse attention"),
        (BASE, "without --linear-attention-freq"),
        (f"{BASE} --linear-attention-freq [1]*7", "names 7 layers of 8"),
        (f"{BASE} --linear-attention-freq never", "is not understood"),
        (f"{BASE} --linear-attention-freq 4 --linear-num-key-heads 24", "multiple of key_heads 24"),
    ],
)
def test_what_megatron_would_not_build_is_refused(flags: str, said: str) -> None:
    shape = "--hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024"
    with pytest.raises(InstanceError, match=said):
        read_model(Flags([*flags.split(), *shape.split()]), [])


def test_flags_of_linear_attention_alone_make_none() -> None:
    flags = Flags(["--num-layers", "8", "--linear-attention-freq", "4", "--linear-num-key-heads", "8"])
    assert read_linear_attention(flags) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"activation": "gelu", "gated_mlp": False}, "needs a gated silu"),
        ({"linear_bias": "attention"}, "beside linear attention"),
    ],
)
def test_a_network_that_megatron_builds_otherwise_is_refused(changes: dict[str, Any], said: str) -> None:
    assert inexpressible(NEXT, builds_hybrids=True) == ()
    changed = NEXT.model_copy(update=changes)
    assert any(said in sentence for sentence in inexpressible(changed, builds_hybrids=True))


def refused(plan: Plan, version: str, **changes: Any) -> str:
    """What a version of core refuses of a plan for the shipped model with some changes."""
    problem, _ = plans.linear_layers()
    model = ModelSpec.model_validate(problem.model.model_dump() | changes)
    return " ".join(version_violations(problem.model_copy(update={"model": model}), plan, version))


def test_versions_of_core_build_what_they_have() -> None:
    _, plan = plans.linear_layers()
    _, halved = plans.linear_layers(context_parallel=2)
    stages = tuple(stage.model_copy(update={"recompute": "selective"}) for stage in plan.stages)
    norms = plan.model_copy(update={"stages": stages, "recompute_modules": ("gdn_norm_out",)})
    assert "0.17 and newer, not 0.16" in refused(plan, "0.16")
    assert "gates of attention" in refused(plan, "0.15", linear_attention=None)
    assert "needs Megatron core 0.19 or newer" in refused(halved, "0.18")
    assert "gdn_norm_out: of Megatron core 0.19" in refused(norms, "0.18")
    assert "builds no predictions (mtp_num_layers 1)" in refused(plan, "0.19", mtp_num_layers=1)
    for legal, version in ((plan, "0.17"), (halved, "0.19"), (norms, "0.19")):
        assert refused(legal, version) == ""
    assert refused(plan, "0.18", mtp_num_layers=1) == ""


def test_flagscale_refuses_in_one_sentence(tmp_path: Path) -> None:
    problem, plan = plans.linear_layers()
    plan = plan.model_copy(update={"target": "flagscale"})
    with pytest.raises(PlanRefusedError, match="has linear attention, which FlagScale's"):
        export_plan(problem, plan, "flagscale", tmp_path / "launch")


@pytest.mark.parametrize("pattern", ["LLL*" * 12, "*LL*LL*L" * 6])
def test_a_recipe_of_megatron_bridge_reads_back(pattern: str, tmp_path: Path) -> None:
    problem, plan = plans.linear_layers()
    problem = problem.model_copy(update={"model": with_pattern(pattern)})
    plan = plans.without_recomputation(plan).model_copy(update={"target": "megatron-bridge"})
    out = export_plan(problem, plan, "megatron-bridge", tmp_path / "launch")
    recipe = (out / "lib" / "recipe.py").read_text()
    compile(recipe, "recipe.py", "exec")
    for line in (
        "transformer_layer_spec=get_transformer_block_with_experimental_attention_variant_spec,",
        "experimental_attention_variant='gated_delta_net',",
        "attention_output_gate=True,",
        "layernorm_zero_centered_gamma=True,",
    ):
        assert f"        {line}" in recipe.splitlines()
    back = read_launch(out, problem.cluster)
    assert (back.plan, back.problem.model.linear_attention) == (plan, problem.model.linear_attention)
    assert total_parameters(back.problem.model) == total_parameters(problem.model)
    assert back.problem.model.constants == problem.model.constants
    assert (back.unknown_flags, back.notes) == ((), ())


def test_megatron_bridge_makes_predictions_of_the_last_layer(tmp_path: Path) -> None:
    problem, plan = plans.linear_layers()
    plan = plans.without_recomputation(plan).model_copy(update={"target": "megatron-bridge"})
    for pattern, refused in (("LLL*" * 12, False), ("*LLL" * 12, True)):
        model = with_pattern(pattern).model_copy(update={"mtp_num_layers": 1})
        found = refusals(problem.model_copy(update={"model": model}), plan)
        assert any("need a last layer of full attention" in said for said in found) == refused


PREDICTS: dict[str, Any] = {
    "model_type": "qwen3_next", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 32000,
    "max_position_embeddings": 32768, "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "mtp_num_hidden_layers": 1,
}  # fmt: skip


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_a_plan_with_predictions_is_written_for_the_version_that_builds_them(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan --out` refused to write what it had searched: for core 0.19, which builds none, whatever the
    target; and its plans could run over context-parallel ranks, which no version does beside predictions."""
    (tmp_path / "config.json").write_text(json.dumps(PREDICTS))
    asked = ["plan", "--model", str(tmp_path / "config.json"), "--cluster", "1x8 h100-sxm-80gb"]
    asked += ["--seq-length", "16384", "--global-batch-size", "4", "--gap", "0.3", "--target", target, "-q"]
    out = tmp_path / "launch"
    assert main([*asked, "--out", str(out)]) == ExitCode.PLAN
    said = " ".join(capsys.readouterr().err.split())
    older = "builds no predictions (mtp_num_layers 1) beside the linear attention"
    assert (older in said) == (target == "megatron-lm")
    plan = load_plan(out / "plan.yaml")
    assert target != "megatron-lm" or plan.context_parallel == 1
    if target == "megatron-lm":
        assert "(core 0.18)" in (out / "README.md").read_text()
        again = ["export", str(out / "plan.yaml"), "--out", str(tmp_path / "again"), "--version", "0.19"]
        assert main(again) == ExitCode.WRONG_INPUT
        assert "take version 0.17 or 0.18" in capsys.readouterr().err


def test_a_plan_for_flagscale_is_held_to_the_version_of_core_that_it_follows() -> None:
    """Scores by sqrtsoftplus, of core 0.18 on, were written for its 0.17, which does not know them."""
    problem, plan = plans.experts()
    constants = problem.model.constants.model_copy(update={"expert_scores": "sqrtsoftplus"})
    model = problem.model.model_copy(update={"constants": constants})
    problem = problem.model_copy(update={"model": model})
    assert api.export_texts(plan, "megatron-lm", problem=problem)
    with pytest.raises(PlanRefusedError, match=r"core 0\.17 does not score experts by sqrtsoftplus"):
        api.export_texts(plan, "flagscale", problem=problem)
