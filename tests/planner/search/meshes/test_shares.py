"""What pipelines share: none that fits breaks a share, and the best plan stays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.cost.communication.resharding import StageShape
from planner.search.meshes import shares, walks
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.shapes import Batch
from planner.search.meshes.shares import list_shares
from tests.random_problems import random_problem


def batch_of(sizes: list[tuple[int, int]]) -> Batch:
    """A batch whose shapes are of a class and so many chips each."""
    return Batch(
        sequences=8,
        num_microbatches=8,
        sequence_parallel=True,
        expert_parallel=1,
        expert_tensor_parallel=None,
        selective=None,
        shapes=tuple(StageShape(0, c, 1, chips, chips) for c, chips in sizes),
    )


@pytest.mark.parametrize("seed", range(6))
def test_every_pipeline_whose_chips_are_there_keeps_all_shares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    room = rng.integers(1, 30, size=2).tolist()
    batch = batch_of([(int(rng.integers(2)), int(rng.integers(1, 12))) for _ in range(4)])
    found = list_shares(batch, room, rounded=2)
    for stages in range(1, 6):
        for order in itertools.combinations_with_replacement(range(4), stages):
            chips = np.bincount(batch.node_class[list(order)], batch.num_chips[list(order)], minlength=2)
            if (chips <= room).all():
                assert (found.taken[list(order)].sum(axis=0) <= found.room).all()


def test_what_large_stages_leave_over_counts_once() -> None:
    """Of 12 chips one stage of 10 is made or two of 5; single chips would let one and a fifth be, or 2.4.

    A stage of 10 and one of 5 do not go together, which units of 10 would not say.
    """
    batch = batch_of([(0, 10), (0, 5), (0, 2), (1, 4)])
    found = list_shares(batch, [12, 8], rounded=1)
    assert found.room.tolist() == [12, 8, 2]
    assert found.taken.tolist() == [[10, 0, 2], [5, 0, 1], [2, 0, 0], [0, 4, 0]]


@pytest.mark.parametrize("seed", [21, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (4, 9, 13))])
def test_shares_change_no_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(seed, most_layers=3).model_copy(update={"target": "flagscale"})
    found = []
    for rounded in (0, 1, 3):
        monkeypatch.setattr(walks, "list_shares", lambda *given, r=rounded: shares.list_shares(*given, r))
        result = MeshSearch(problem, None).run()
        assert result.termination == "optimal" and result.evaluation is not None
        found.append(result.evaluation.step_s)
    assert found == pytest.approx([found[0]] * 3, rel=1e-9)
