"""Choosing the layers of every chunk is as good as trying every dealing, with and without each cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from formulations import virtual_selection, virtual_selection_data
from formulations.options import SolveOptions, SolverName
from formulations.virtual_selection_data import (
    VirtualSelectionData,
    choices,
    lists_all_choices,
    objectives_ms,
)
from formulations.virtual_selection_tables import fewest_layers
from tests.formulations.interleaved_instances import holds_all, random_interleaved


def small(seed: int) -> VirtualSelectionData:
    """At most two layers more than the chunks hold at least."""
    for at in range(100 * seed, 100 * seed + 100):
        data = random_interleaved(at)
        most = int(fewest_layers(data).sum()) + 2
        fewer = replace(data, stage=replace(data.stage, num_layers=min(data.num_layers, most)))
        if holds_all(fewer):
            return fewer
    raise AssertionError("unreachable")


def dealings(data: VirtualSelectionData) -> Iterator[list[list[int]]]:
    """Every way to deal the layers to the chunks."""
    fewest = fewest_layers(data)

    def more(left: int, chunks: int) -> Iterator[list[int]]:
        if chunks == 1:
            yield [left]
            return
        for first in range(left + 1):
            for rest in more(left - first, chunks - 1):
                yield [first, *rest]

    spare = data.num_layers - int(fewest.sum())
    for extra in more(spare, fewest.size):
        yield (fewest + np.array(extra).reshape(fewest.shape)).tolist()


def brute_force(data: VirtualSelectionData) -> float:
    """The least objective of all dealings with every recomputation worth looking at; inf where none fits."""
    return best_of(data, dealings(data))


def best_of(data: VirtualSelectionData, dealt: Iterable[Sequence[Sequence[int]]]) -> float:
    """The same of some dealings."""
    found = [choice for layers in dealt for choice in choices(data, layers)]
    return float(objectives_ms(data, found).min()) if found else float("inf")


def optimum(data: VirtualSelectionData, solver: SolverName = "highs", **more: object) -> float:
    result = virtual_selection.solve(data, SolveOptions(solver=solver), **more)  # type: ignore[arg-type]
    if result.status == "infeasible":
        return float("inf")
    assert result.status == "optimal" and result.layers is not None and result.bound_ms is not None
    value = best_of(data, [result.layers])
    assert result.bound_ms <= value * (1 + 1e-6)
    return value


def check(seed: int, solver: SolverName) -> None:
    data = small(seed)
    best = brute_force(data)
    assert optimum(data, solver) == pytest.approx(best, rel=1e-6)
    cutoffs = [None, best * 1.01] if np.isfinite(best) else [None]
    for cutoff_ms in cutoffs:
        for cuts in ((), *((cut,) for cut in virtual_selection.TIGHTENINGS), virtual_selection.TIGHTENINGS):
            found = optimum(data, solver, cutoff_ms=cutoff_ms, tighten=cuts)
            assert found == pytest.approx(best, rel=1e-6), (cutoff_ms, cuts)
    if np.isfinite(best):
        below = virtual_selection.solve(
            data, SolveOptions(solver=solver), cutoff_ms=best * 0.999, tighten=("cutoff",)
        )
        assert below.status == "infeasible" or below.bound_ms == best * 0.999


def test_the_optimum_is_that_of_every_dealing_whatever_cuts_are_added():
    check(1, "highs")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 14))
def test_the_optimum_is_that_of_every_dealing_whatever_cuts_are_added_on_more(seed: int):
    check(seed, ("highs", "scip", "cbc")[seed % 3])  # type: ignore[arg-type]


def leading(seed: int) -> VirtualSelectionData:
    """A small instance whose first chunk begins with layers that cost and save more or less than others."""
    rng, data = np.random.default_rng(seed), small(seed)
    stage, count = data.stage, int(rng.integers(1, 3))
    lead_stage = replace(
        stage,
        num_layers=stage.num_layers + count - 1,
        lead=np.where(np.arange(data.num_stages) == 0, count, 0),
        lead_full_ms=stage.full_ms * rng.uniform(0.4, 2.0),
        lead_selective_ms=stage.selective_ms * rng.uniform(0.4, 2.0),
    )
    kept, selective, full = (
        float(one[0]) for one in (data.kept_gib, data.kept_selective_gib, data.kept_full_gib)
    )
    share, room = rng.uniform(0.4, 1.5), rng.uniform(0.5, 1.0)
    return replace(
        data,
        stage=lead_stage,
        lead_kept_gib=(kept * share, full + (selective - full) * share, full),
        limit_gib=data.limit_gib * room,
    )


def check_leading(seed: int) -> bool:
    """Assert that no bound lies above the best choice; whether there is a choice."""
    data = leading(seed)
    best = brute_force(data)
    if not np.isfinite(best):
        return False
    for cutoff_ms in (None, best * 1.001):
        result = virtual_selection.solve(data, SolveOptions(), cutoff_ms=cutoff_ms)
        assert result.status != "infeasible"
        assert result.bound_ms is not None and result.bound_ms <= best * (1 + 1e-6)
    return True


@pytest.mark.parametrize("seed", [30, 48, 52, 66])
def test_leading_layers_close_no_choice(seed: int):
    # Once the cut asked for the backward of both kinds of layers, the program held it to that of the cheaper;
    # and chunk 0 could not have all the layers that the other chunks leave (seed 66).
    assert check_leading(seed)


@pytest.mark.slow
def test_leading_layers_close_no_choice_on_more():
    assert sum(check_leading(seed) for seed in range(20, 80)) >= 20


def test_it_is_known_where_recomputations_of_a_dealing_are_left_out(monkeypatch: pytest.MonkeyPatch):
    some = 0
    for seed in (0, 45, 49, 57):
        data = small(seed)
        numbers = [(layers, len(list(choices(data, layers)))) for layers in dealings(data)]
        with monkeypatch.context() as patch:
            patch.setattr(virtual_selection_data, "MAX_COMBINATIONS", 1)
            assert all(lists_all_choices(data, layers) == (number <= 1) for layers, number in numbers)
        some += sum(number > 1 for _, number in numbers)
        assert all(lists_all_choices(data, layers) for layers, _ in numbers)
    assert some == 9
