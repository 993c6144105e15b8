"""Layers that predict further tokens on a stage of their own: rules, price, layout string, the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cost.memory.communicators import TWO_RANKS
from planner.data.model_spec import ModelSpec
from planner.errors import PlanRefusedError
from planner.launchers.directory import export_plan
from planner.launchers.read.flags import Flags
from planner.launchers.read.layout import prediction_stage
from planner.rules.megatron import violations
from planner.rules.predictions import prediction_stage_refusals
from planner.simulate.evaluate import evaluate
from planner.simulate.step import embedding_holders
from tests.planner.launchers import plans
from tests.planner.launchers.test_megatron_accepts import check, write
from tests.planner.launchers.test_round_trip import assert_reads_back


def apart(layers: list[list[int]], stage: int | None, **model: Any) -> plans.Case:
    problem, _ = plans.prediction_apart()
    changed: ModelSpec = problem.model.model_copy(update=model)
    sketch = plans.Sketch(
        layers, [0] * len(layers), tensor_parallel=2, expert_parallel=4, data_parallel=4, num_microbatches=8,
        sequence_parallel=True,
    )  # fmt: skip
    problem, plan = plans.case(changed, "4x8 h200-sxm-141gb", 32, 2048, sketch)
    return problem, plan.model_copy(update={"prediction_stage": stage})


@pytest.mark.parametrize(
    ("layers", "layout"),
    [
        ([[23], [23], [0], [0]], "Et*23|t*23|m*1|L"),
        ([[12], [12], [22], [0]], "Et*12|t*12|t*22m*1|L"),
        ([[8, 4], [8, 4], [9, 4], [9, 0]], "Et*8|t*8|t*9|t*9|t*4|t*4|t*4m*1|L"),
    ],
)
def test_the_layout_puts_predictions_before_the_loss_and_reads_back(
    layers: list[list[int]], layout: str, tmp_path: Path
) -> None:
    problem, plan = apart(layers, 2)
    assert_reads_back(problem, plan, "megatron-lm", tmp_path / "launch")
    assert f"--pipeline-model-parallel-layout '{layout}'" in (tmp_path / "launch/launch.sh").read_text()


@pytest.mark.parametrize(
    ("layers", "stage", "bare"),
    [
        ([[24], [23], [0], [0]], 2, 2),
        ([[16], [16], [15], [0]], None, 3),
        ([[16], [16], [15], [0]], 2, None),
        ([[12], [12], [12], [11]], None, None),
        ([[8, 4], [8, 4], [8, 7], [8, 0]], None, 3),
    ],
)
@pytest.mark.parametrize("every", [2, 1])
def test_predictions_of_a_dense_layer_amid_experts_share_a_stage_with_a_layer(
    layers: list[list[int]], stage: int | None, bare: int | None, every: int
) -> None:
    """Megatron gives them experts otherwise, which the price leaves out."""
    moe = plans.prediction_apart()[0].model.moe
    assert moe is not None
    changed = moe.model_copy(update={"first_dense_layers": 0, "layer_freq": every})
    problem, plan = apart(layers, stage, num_layers=47, moe=changed)
    said = [sentence for sentence in violations(problem, plan) if "then builds with" in sentence]
    assert len(said) == (bare is not None and every == 2)
    assert all(f"stage {bare}: has no layer beside the predictions" in sentence for sentence in said)


def test_core_0_15_keeps_predictions_with_the_loss(tmp_path: Path) -> None:
    problem, plan = plans.prediction_apart()
    with pytest.raises(PlanRefusedError, match=r"0\.16 or newer"):
        export_plan(problem, plan, "megatron-lm", tmp_path / "launch", version="0.15")
    export_plan(problem, plan, "megatron-lm", tmp_path / "launch", version="0.16")


@pytest.mark.parametrize(
    ("case", "changes", "complaint"),
    [
        (apart([[23], [23], [0], [0]], 1), {}, "must be 2"),
        (apart([[12], [12], [12], [10]], 2), {}, "holds layers 36 to 45"),
        (apart([[46], [0]], 0), {}, "3 pipeline stages"),
        (apart([[23], [23], [0], [0]], 2, mtp_num_layers=0), {}, "predicts no further tokens"),
        (plans.prediction_apart(), {"target": "megatron-bridge"}, "target megatron-bridge has none"),
    ],
)
def test_a_stage_that_cannot_hold_predictions_is_refused(
    case: plans.Case, changes: dict[str, Any], complaint: str
) -> None:
    problem, plan = case
    (said,) = prediction_stage_refusals(problem.model, plan.model_copy(update=changes))
    assert complaint in said
    assert any(complaint in message for message in evaluate(problem, plan).violations) or changes


def test_pieces_of_several_layers_do_not_stand_beside_predictions() -> None:
    """Megatron-LM stops in the first step ("recompute_num_layers must be 1 for MTP recompute")."""
    problem, plan = apart([[12], [12], [22], [0]], 2)
    pieces = {"recompute": "full", "recompute_layers": 22, "recompute_piece": 2}
    stages = (*plan.stages[:2], plan.stages[2].model_copy(update=pieces), plan.stages[3])
    changed = plan.model_copy(update={"stages": stages})
    (said,) = violations(problem, changed)
    assert "stage 2: recompute_piece 2 beside the 1 layers" in said
    assert violations(problem, plan) == ()


def test_predictions_in_two_places_are_not_read() -> None:
    words = ["--pipeline-model-parallel-size", "3", "--pipeline-model-parallel-layout", "Et|m|mL"]
    with pytest.raises(Exception, match="must be together"):
        prediction_stage(Flags(words))


@pytest.mark.parametrize(
    ("stage", "tied", "holders"), [(2, False, [0, 2]), (2, True, [0, 2, 3]), (None, True, [0, 3])]
)
def test_an_embedding_is_shared_by_the_stages_that_hold_it(
    stage: int | None, tied: bool, holders: list[int]
) -> None:
    problem, plan = apart([[23], [23], [0], [0]], stage, tied_embeddings=tied, id="own")
    assert embedding_holders(problem, plan) == holders


@pytest.mark.parametrize("tied", [False, True])
def test_a_stage_of_predictions_moves_work_and_adds_a_longer_send(tied: bool) -> None:
    def evaluated(layers: list[list[int]], stage: int | None, **model: Any) -> Any:
        problem, plan = apart(layers, stage, tied_embeddings=tied, id="own", **model)
        # Sends that do not block leave the work of stages alone.
        stack = problem.stack.model_copy(update={"p2p_overlap": True})
        return evaluate(problem.model_copy(update={"stack": stack}), plan)

    together = evaluated([[12], [12], [12], [10]], None)
    own = evaluated([[23], [23], [0], [0]], 2)
    for name in ("forward_s", "backward_s"):
        work = [sum(getattr(stage, name) for stage in found.stages) for found in (together, own)]
        assert work[0] == pytest.approx(work[1], rel=1e-9)
    # The last stage has two heads to run and to compute the loss of, but the states of one alone.
    one = evaluated([[23], [23], [0], [0]], None, mtp_num_layers=0)
    assert own.stages[3].forward_s == pytest.approx(2 * one.stages[3].forward_s)
    assert own.stages[3].memory_gib["weights"] == pytest.approx(one.stages[3].memory_gib["weights"])
    assert own.stages[2].send_s > 1.5 * own.stages[1].send_s
    weights = [sum(stage.memory_gib["weights"] for stage in found.stages) for found in (together, own)]
    assert weights[1] == pytest.approx(weights[0])


@pytest.mark.parametrize(("tied", "shares"), [(True, (1.0, 1.0, 1.0)), (False, (1.0, 1.0, 0.0))])
def test_the_communicator_of_an_embedding_is_that_of_the_stages_that_hold_it(
    tied: bool, shares: tuple[float, ...]
) -> None:
    """Three of a tied embedding were counted as two, and the stage of the loss had one without any part."""
    problem, plan = apart([[12], [12], [22], [0]], 2, tied_embeddings=tied, id="own")
    outside = [stage.memory_gib["context"] for stage in evaluate(problem, plan).stages]
    one = problem.stack.communicator_gib * (1.0 if tied else TWO_RANKS)
    for s, share in zip((0, 2, 3), shares, strict=True):
        assert outside[s] - outside[1] == pytest.approx(share * one)


@pytest.mark.slow
def test_megatron_places_and_runs_a_stage_of_predictions(megatron_python: str, tmp_path: Path) -> None:
    problem, plan = apart([[2], [1], [0], [0]], 2, num_layers=3, published_params=None)
    out = write(tmp_path, problem, plan)
    report_file = tmp_path / "report.json"
    expected = ("--expect", str(tmp_path / "expected.json"), "--json", str(report_file))
    done = check(megatron_python, out, "--simulate", "stages", *expected)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert len(json.loads(report_file.read_text())["simulated"]) == 4
