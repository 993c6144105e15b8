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
    Ways,
    choices,
    lists_all_choices,
    objectives_ms,
)
from formulations.virtual_selection_tables import fewest_layers
from tests.formulations.interleaved_instances import holds_all, random_interleaved

MORE = (range(100), [*range(100, 130), *range(145, 160)], range(160, 260))
"""Instances of the slow tests, in groups that hold each kind of choice at least once."""


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
    known: Ways = {}
    found = [choice for layers in dealt for choice in choices(data, layers, known)]
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


def awkward(seed: int) -> VirtualSelectionData:
    """A small instance with little memory and all that may be: core attention recomputed at a price, also of
    predictions, ends without a layer, and leading layers that cost and save more or less than others."""
    rng, data = np.random.default_rng(seed), small(seed)
    stage, count = data.stage, int(rng.integers(0, 3))
    times = replace(
        stage,
        num_layers=stage.num_layers + max(count - 1, 0),
        lead=np.where(np.arange(data.num_stages) == 0, count, 0),
        full_ms=stage.full_ms * rng.uniform(0.5, 1.5),
        selective_ms=stage.full_ms * rng.uniform(0.1, 0.6),
        lead_full_ms=stage.full_ms * rng.uniform(0.4, 2.0),
        lead_selective_ms=stage.full_ms * rng.uniform(0.1, 1.2),
        predictions_selective_ms=stage.full_ms * rng.choice([0.0, 1.0]) * (np.arange(data.num_stages) > 0),
        reduce_ms=stage.forward_ms * rng.choice([0.0, 6.0]) * rng.random(data.num_stages),
        base_reduce_ms=stage.forward_ms * rng.choice([0.0, 6.0]) * rng.random(data.num_stages),
        gather_ms=stage.forward_ms * rng.choice([0.0, 6.0]) * rng.random(data.num_stages),
        base_gather_ms=stage.forward_ms * rng.choice([0.0, 6.0]) * rng.random(data.num_stages),
        gather_tail_ms=stage.forward_ms * rng.random(data.num_stages),
    )
    kept, full = data.kept_gib, data.kept_full_gib
    some = full + (kept - full) * rng.uniform(0.2, 0.8)
    share, whole = rng.uniform(0.4, 1.5), float(full[0])
    return replace(
        data,
        stage=times,
        kinds=("full",) if seed % 4 == 1 else ("selective", "full"),
        empty_ends=bool(rng.random() < 0.5),
        kept_selective_gib=some,
        lead_kept_gib=(float(kept[0]) * share, whole + float(some[0] - whole) * share, whole),
        selective_peak_gib=kept * rng.choice([0.0, 0.5]),
        limit_gib=data.limit_gib * rng.uniform(0.5, 1.0),
    )


def check_awkward(seed: int) -> tuple[str, ...]:
    """Assert that no bound lies above the best choice, nor below it without leading layers; what it does."""
    data = awkward(seed)
    known: Ways = {}
    found = [one for layers in dealings(data) for one in choices(data, layers, known)]
    if not found:
        return ()
    values = objectives_ms(data, found)
    best, lead = float(values.min()), bool(data.stage.lead.any())
    for cutoff_ms in (None, best * 1.001):
        result = virtual_selection.solve(data, SolveOptions(), cutoff_ms=cutoff_ms)
        assert result.status != "infeasible"
        assert result.bound_ms is not None and result.bound_ms <= best * (1 + 1e-6)
        assert lead or result.bound_ms == pytest.approx(best, rel=1e-6)
    chosen = found[int(values.argmin())]
    empty = ["empty"] if any(0 in counts for counts in chosen.layers) else []
    return tuple({*chosen.recompute, *empty, *(["lead"] if lead else [])})


@pytest.mark.parametrize(
    "seeds", [range(130, 145), *(pytest.param(one, marks=pytest.mark.slow) for one in MORE)]
)
def test_no_bound_lies_above_the_best_choice_of_awkward_instances(seeds: Iterable[int]):
    # Chunk 0 once could not have all the layers that the other chunks leave beside leading ones.
    seen = [kind for seed in seeds for kind in check_awkward(seed)]
    assert {"none", "selective", "full", "empty", "lead"} <= set(seen)


def test_leading_layers_that_all_must_be_recomputed_close_no_choice():
    # Once the cut asked for the backward of both kinds of layers, the program held it to that of the cheaper.
    assert {"full", "lead"} <= set(check_awkward(165))


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
