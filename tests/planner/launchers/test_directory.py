"""A launch directory is written whole or not at all, and never over anything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.data.load import load_model, load_plan
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.errors import InstanceError, PlanRefusedError
from planner.launchers import directory
from planner.launchers.directory import export_plan
from planner.launchers.megatron.model import inexpressible
from tests.planner.launchers import plans


def tree(path: Path) -> dict[str, str]:
    """Text of every file under a path."""
    return {str(p.relative_to(path)): p.read_text() for p in sorted(path.rglob("*")) if p.is_file()}


def test_directory_holds_one_top_level_script_and_the_files_of_the_contract(tmp_path: Path) -> None:
    out = export_plan(*plans.mixed_128(), "megatron-lm", tmp_path / "a" / "launch")
    assert [p.name for p in out.glob("*.sh")] == ["launch.sh"]
    assert {p.name for p in out.iterdir()} == {
        "launch.sh",
        "lib",
        "submit.sbatch",
        "plan.yaml",
        "hosts.txt",
        "README.md",
        "forms",
    }
    assert (out / "launch.sh").stat().st_mode & 0o111


def test_hosts_stand_in_rank_order_with_chip_and_stages(tmp_path: Path) -> None:
    out = export_plan(*plans.stages_share_a_host(), "megatron-lm", tmp_path / "launch")
    assert (out / "hosts.txt").read_text() == "node000 h100-sxm-80gb 0,1\nnode001 a100-sxm-80gb 2\n"


def test_plan_file_carries_its_problem_and_exports_to_the_same_directory(tmp_path: Path) -> None:
    problem, plan = plans.mixed_128()
    out = export_plan(problem, plan, "megatron-lm", tmp_path / "launch")
    again = load_plan(out / "plan.yaml")
    assert again.problem is not None
    assert again.model_copy(update={"problem": None}) == plan
    second = export_plan(problem, again, "megatron-lm", tmp_path / "second")
    assert tree(second) == tree(out)


def test_exporting_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    first = export_plan(*plans.experts(), "megatron-lm", tmp_path / "a" / "launch")
    second = export_plan(*plans.experts(), "megatron-lm", tmp_path / "b" / "launch")
    assert tree(first) == tree(second)


def test_existing_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "launch"
    out.mkdir()
    with pytest.raises(InstanceError, match="--force"):
        export_plan(*plans.uniform(), "megatron-lm", out)
    assert list(tmp_path.iterdir()) == [out]
    assert not list(out.iterdir())


@pytest.mark.parametrize("plan_file", [None, "schema: somebody/else/v1\n"])
def test_force_leaves_a_directory_alone_that_is_no_launch_directory(
    plan_file: str | None, tmp_path: Path
) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter1.tex").write_text("years of work")
    if plan_file is not None:
        (out / "plan.yaml").write_text(plan_file)
    before = tree(out)
    with pytest.raises(InstanceError, match="not a launch directory"):
        export_plan(*plans.uniform(), "megatron-lm", out, force=True)
    assert tree(out) == before
    assert list(tmp_path.iterdir()) == [out]


def test_force_replaces_an_earlier_export_and_keeps_what_is_not_ours(tmp_path: Path) -> None:
    out = export_plan(*plans.stages_share_a_host(), "megatron-lm", tmp_path / "launch")
    assert (out / "lib" / "run_stage.py").exists()
    (out / "slurm-17.out").write_text("a log")
    export_plan(*plans.uniform(), "megatron-lm", out, force=True)
    fresh = export_plan(*plans.uniform(), "megatron-lm", tmp_path / "fresh")
    assert tree(out) == tree(fresh) | {"slurm-17.out": "a log"}
    assert {p.name for p in tmp_path.iterdir()} == {"launch", "fresh"}


def test_force_fills_an_empty_directory(tmp_path: Path) -> None:
    out = tmp_path / "launch"
    out.mkdir()
    export_plan(*plans.uniform(), "megatron-lm", out, force=True)
    assert (out / "launch.sh").exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_file_or_a_link_in_the_way_is_refused(force: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(InstanceError, match="no directory"):
            export_plan(*plans.uniform(), "megatron-lm", tmp_path / name, force=force)


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> dict[str, str]:
        return {"launch.sh": "half", "bad\udcff": "cannot be encoded", "hosts.txt": "\udcff"}

    monkeypatch.setitem(directory._WRITERS, "megatron-lm", fail)
    with pytest.raises(UnicodeEncodeError):
        export_plan(*plans.uniform(), "megatron-lm", tmp_path / "launch")
    assert not list(tmp_path.iterdir())


def lose_a_layer(plan: Plan) -> Plan:
    """The last stage forgets its last layer."""
    first, last = plan.stages[-1].chunks[0]
    stage = plan.stages[-1].model_copy(update={"layers": (first, last - 1)})
    return plan.model_copy(update={"stages": (*plan.stages[:-1], stage)})


def break_the_batch(plan: Plan) -> Plan:
    """One micro-batch too many."""
    return plan.model_copy(update={"num_microbatches": plan.num_microbatches + 1})


def lack_the_modules(plan: Plan) -> Plan:
    """Ask for what the exporter cannot write: to recompute experts that the network has not."""
    first = plan.stages[0].model_copy(update={"recompute": "selective"})
    return plan.model_copy(update={"recompute_modules": ("moe",), "stages": (first, *plan.stages[1:])})


@pytest.mark.parametrize("damage", [lose_a_layer, break_the_batch, lack_the_modules])
def test_a_damaged_plan_is_refused_and_nothing_is_written(
    damage: Callable[[Plan], Plan], tmp_path: Path
) -> None:
    problem, plan = plans.uniform()
    with pytest.raises(PlanRefusedError):
        export_plan(problem, damage(plan), "megatron-lm", tmp_path / "launch")
    assert not list(tmp_path.iterdir())


REFUSED_MODELS: list[tuple[str, TargetName, str]] = [
    ("gemma2-9b", "megatron-lm", "4 norms"),
    ("nemotron-3-super-120b-a12b", "megatron-bridge", "predicts beside Mamba"),
    ("nemotron-h-8b", "flagscale", "Mamba"),
]


@pytest.mark.parametrize(("model", "target", "complaint"), REFUSED_MODELS)
def test_a_model_that_the_command_line_cannot_state_is_refused(
    model: str, target: TargetName, complaint: str, tmp_path: Path
) -> None:
    problem, plan = shape_only(model)
    with pytest.raises(PlanRefusedError, match=complaint):
        export_plan(problem, plan.model_copy(update={"target": target}), target, tmp_path / "launch")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"pattern": "-M*"}, "takes its pattern for a flag"), ({"conv": 3}, "convolves 3 tokens")],
)
def test_a_hybrid_that_megatron_would_misread_is_refused(change: dict[str, Any], complaint: str) -> None:
    model = load_model("nemotron-h-8b")
    assert model.hybrid is not None and inexpressible(model, builds_hybrids=True) == ()
    changed = model.model_copy(update={"hybrid": model.hybrid.model_copy(update=change)})
    assert any(complaint in said for said in inexpressible(changed, builds_hybrids=True))


def test_a_hybrid_counted_with_two_norms_a_layer_is_refused() -> None:
    """What is counted for models whose layers are of two blocks, unless told otherwise."""
    model = load_model("nemotron-h-8b").model_copy(update={"norms_per_layer": 2})
    assert any("norms_per_layer: 1" in said for said in inexpressible(model, builds_hybrids=True))


def shape_only(model: str) -> tuple[Problem, Plan]:
    """A model on one chip, with a sequence of 2,048."""

    sketch = plans.Sketch([[load_model(model).num_layers]], [0], num_microbatches=1)
    return plans.case(model, "1x1 h100-sxm-80gb", 1, 2048, sketch)
