"""Which communicators a stage holds: those of its own pipeline, whatever else the cluster has."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.memory import communicators
from planner.cost.memory.pipelines import outside_bytes
from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.data.load import build_problem
from planner.data.problem import Problem
from planner.simulate.evaluate import evaluate
from planner.units import GIB
from tests.planner.cost.problems import with_stack
from tests.planner.simulate.synthetic import packed_plan

STACKS = ("megatron-core", "megatron-flagperf", "sailor", "megatron-deepspeed")
"""Groups of Megatron-LM; beside them buffers below switches; fewer channels between nodes; a replica's."""


def on_nodes(count: int, model: str = "sailor-opt-350m", stack: str = "megatron-core") -> Problem:
    return build_problem(
        cluster=f"{count}x8 h100-sxm-80gb", model=model, seq_length=2048, global_batch_size=64, stack=stack
    )


def some_prices(of: Problem) -> Prices:
    """Rows of several sizes of a stage."""
    rows = np.array([(1, 1), (2, 1), (4, 1), (1, 4), (8, 2), (4, 8)])
    one = np.ones(len(rows), dtype=np.int64)
    return price(
        of, Degrees(rows[:, 0], one, one, one, rows[:, 1], one, sequence_parallel=np.zeros(len(rows), bool))
    )


@pytest.mark.parametrize("stack", [*STACKS, "oneflow"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_nodes_left_idle_take_no_memory(stack: str, stages: int) -> None:
    """`oneflow` plans memory ahead, which takes more where there are several stages."""
    needed = stages // 2 or 1
    plan = packed_plan(on_nodes(needed, stack=stack), [(0, 24 // stages)] * stages, tensor_parallel=4)
    held = [
        [stage.memory_gib for stage in evaluate(on_nodes(count, stack=stack), plan).stages]
        for count in (needed, needed + 1, 16)
    ]
    assert held[0] == held[1] == held[2]


def test_a_stage_alone_has_no_groups_of_a_pipeline() -> None:
    """Eight chips: those that share layers, gradients, the replica, the optimizer, and all of them."""
    of = on_nodes(4, "sailor-opt-350m")
    stack, found = of.stack, price(of, Degrees.single(tensor_parallel=4, data_parallel=2))
    two = communicators.TWO_RANKS
    alone = float(outside_bytes(found, 0, 0, True, 1)) / GIB - stack.context_gib
    assert alone == pytest.approx((1 + two + 1 + 1 + 1) * stack.communicator_gib)
    # Two stages on two nodes: a pipeline of two ranks, and the embedding that both ends hold.
    assert of.model.copies_embedding
    more = float(outside_bytes(found, 0, 0, True, 2)) / GIB - stack.context_gib - alone
    assert more == pytest.approx(2 * two * stack.communicator_gib)


def test_only_the_ends_share_the_embedding() -> None:
    of = on_nodes(4, "sailor-opt-350m")
    found = price(of, Degrees.single(tensor_parallel=8))
    inner, end = (float(outside_bytes(found, 0, 0, is_end, 4)) / GIB for is_end in (False, True))
    assert end - inner == pytest.approx(communicators.TWO_RANKS * of.stack.communicator_gib)
    untied = of.model_copy(update={"model": of.model.model_copy(update={"tied_embeddings": False})})
    same = price(untied, Degrees.single(tensor_parallel=8))
    assert outside_bytes(same, 0, 0, False, 4) == outside_bytes(same, 0, 0, True, 4)
    plan = packed_plan(of, [(0, 6)] * 4)
    held = [stage.memory_gib["context"] for stage in evaluate(of, plan).stages]
    assert held == pytest.approx([end, inner, inner, end])


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("model", ["sailor-opt-350m", "mixtral-8x7b"])
def test_lengths_beyond_those_told_apart_take_as_much(
    stack: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = on_nodes(4, model, stack)
    told = some_prices(of)
    # Searches compare the prices of clusters of several sizes.
    assert told.fixed_bytes.shape == some_prices(on_nodes(1, model, stack)).fixed_bytes.shape
    monkeypatch.setattr(communicators, "told_lengths", lambda *_: 40)
    every = some_prices(of)
    for p in range(1, 41):
        for is_end in (False, True):
            rows = np.arange(len(every.fixed_bytes))
            found, wanted = (outside_bytes(one, rows, 0, is_end, p) for one in (told, every))
            assert np.array_equal(found, wanted), p


@pytest.mark.parametrize("far_gib", [None, 0.1, 1.5])
def test_the_least_of_longer_pipelines_is_no_more_than_any(far_gib: float | None) -> None:
    """Between nodes a group may take less than inside one, or more."""
    of = with_stack(on_nodes(4), far_communicator_gib=far_gib, switch_buffer_mib=192.0)
    found = some_prices(of)
    rows = np.arange(len(found.fixed_bytes))
    for fewest in range(1, 12):
        least = outside_bytes(found, rows, 0, False, fewest, at_least=True)
        longer = [outside_bytes(found, rows, 0, False, p) for p in range(fewest, 40)]
        assert np.array_equal(least, np.min(longer, axis=0))
