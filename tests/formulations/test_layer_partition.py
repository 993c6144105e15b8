"""Cutting layers that differ is as good as trying every cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from formulations import layer_partition, layer_partition_cp
from formulations.layer_partition_data import (
    LayerPartitionData,
    LayerPartitionResult,
    least_bottleneck,
    objective_ms,
    stages_of,
)
from formulations.options import SolveOptions, SolverName


def partition_data(
    per_layer: np.ndarray, speed: np.ndarray, m: int, *, most: float = np.inf, **more: object
) -> LayerPartitionData:
    """Backward twice the forward; stage s takes `speed[s]` times as long; at most `most` weight a stage."""
    until = np.concatenate([[0.0], np.cumsum(per_layer)])
    weight = np.where(until[None, :] > until[:, None], until[None, :] - until[:, None], np.inf)
    forward = speed[:, None, None] * np.where(weight <= most, weight, np.inf)[None]
    zero = np.zeros_like(forward)
    plain: dict[str, object] = {
        "num_microbatches": m,
        "forward_ms": forward,
        "backward_ms": 2 * forward,
        "reduction_ms": zero,
        "follow_ms": zero,
        "send_ms": np.zeros(len(speed)),
        "wait_ms": np.zeros(len(speed)),
        "constant_ms": 0.0,
    }
    return LayerPartitionData(**(plain | more))  # type: ignore[arg-type]


def random_data(seed: int) -> LayerPartitionData:
    """Kinds that differ up to eightfold, stages threefold; sends, reductions, memory."""
    rng = np.random.default_rng(seed)
    p, layers, m = int(rng.integers(1, 5)), int(rng.integers(5, 11)), int(rng.integers(1, 9))
    per_layer = rng.choice([0.25, 1.0, 2.0], layers) * rng.uniform(0.9, 1.1, layers)
    data = partition_data(
        per_layer,
        rng.uniform(0.5, 1.5, p),
        m,
        most=float(per_layer.sum()) / p * float(rng.choice([1.3, 2.0, 9.0])),
        send_ms=np.append(rng.choice([0.0, 0.1, 1.0]) * rng.random(p - 1), 0.0),
        constant_ms=float(rng.random()),
    )
    table = rng.random(data.forward_ms.shape)
    return replace(data, reduction_ms=2 * table, follow_ms=table[::-1] * 2)


def brute_force(data: LayerPartitionData) -> float:
    """Every cut."""
    cuts = combinations(range(1, data.num_layers), data.num_stages - 1)
    return min(objective_ms(data, c) for c in cuts)


SOLVERS: tuple[SolverName, ...] = ("highs", "scip", "cbc", "cp_sat")


def solve(data: LayerPartitionData, solver: SolverName, **more: object) -> LayerPartitionResult:
    """The integer twin for CP-SAT, the linear form for all others."""
    form = layer_partition_cp if solver == "cp_sat" else layer_partition
    return form.solve(data, SolveOptions(solver=solver), **more)  # type: ignore[arg-type]


def optimum(data: LayerPartitionData, solver: SolverName = "highs", **more: object) -> float:
    result = solve(data, solver, **more)
    if result.status == "infeasible":
        return float("inf")
    assert result.status == "optimal" and result.cuts is not None and result.objective_ms is not None
    assert result.objective_ms == objective_ms(data, result.cuts)
    assert result.bound_ms is not None and result.bound_ms <= result.objective_ms
    return result.objective_ms


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_that_of_every_cut(seed: int, solver: SolverName):
    data = random_data(seed)
    assert optimum(data, solver) == pytest.approx(brute_force(data), rel=1e-6)


def check_cuts(seed: int, solver: SolverName) -> None:
    """The optimum and the bound stay without any cut, and with each of them alone."""
    data = random_data(seed)
    best = brute_force(data)
    cuts = (layer_partition_cp if solver == "cp_sat" else layer_partition).TIGHTENINGS
    cutoffs = [None, best * 1.01] if np.isfinite(best) else [None]
    for cutoff_ms in cutoffs:
        for kept in ((), *((cut,) for cut in cuts), cuts):
            found = optimum(data, solver, cutoff_ms=cutoff_ms, tighten=kept)
            assert found == pytest.approx(best, rel=1e-6), (cutoff_ms, kept)


@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
@pytest.mark.parametrize("seed", [2, 3])
def test_cuts_leave_the_optimum_alone(seed: int, solver: SolverName):
    check_cuts(seed, solver)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_the_integer_twin_is_true_and_within_its_rounding(seed: int):
    """CP-SAT's bound, in ticks rounded down, lies at most 1e-7 of the objective below the optimum."""
    data = random_data(seed)
    best, result = brute_force(data), solve(data, "cp_sat")
    if np.isfinite(best):
        assert result.bound_ms is not None
        assert best * (1 - 1.1e-7) <= result.bound_ms <= best * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 70))
def test_the_optimum_is_that_of_every_cut_on_more(seed: int):
    data = random_data(seed)
    best = brute_force(data)
    for solver in (SOLVERS[seed % 3], "cp_sat"):
        assert optimum(data, solver) == pytest.approx(best, rel=1e-6)
    check_cuts(seed, SOLVERS[seed % 4])


@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
@pytest.mark.parametrize(("seed", "judged"), [(7, 28), (13, 41), (24, 2), (28, 34)])
def test_no_split_left_lies_below_the_bound_whatever_is_cut_off(seed: int, judged: int, solver: SolverName):
    # The cut takes splits away whose steps lie above the cutoff, but not above those that it leaves.
    data = random_data(seed)
    splits = combinations(range(1, data.num_layers), data.num_stages - 1)
    values = sorted((objective_ms(data, cuts), cuts) for cuts in splits)
    least_ms = values[judged][0]
    for part in (0.95, 0.97, 0.999):
        exclude = [cuts for _, cuts in values[:judged]]
        result = solve(data, solver, exclude=exclude, cutoff_ms=least_ms * part)
        assert result.bound_ms is not None and result.bound_ms <= least_ms * (1 + 1e-9)


def test_two_micro_batches_by_hand():
    """Layers of 1 1 1 3 1 1, backward twice the forward, two stages, no sends.

    Cut 4 + 2 (6 and 2): stage 0 runs its forwards until 12, while stage 1 has done the first micro-batch
    by then, and its backwards, 12 each, until 36. Cut 3 + 3 (3 and 5) is more even and slower: stage 1 is
    busy from 3 to 33, and the last backward of stage 0 ends at 39.
    """
    data = partition_data(np.array([1.0, 1, 1, 3, 1, 1]), np.ones(2), 2)
    result = layer_partition.solve(data, SolveOptions())
    assert result.cuts == (4,) and result.objective_ms == pytest.approx(36.0)
    assert objective_ms(data, (3,)) == pytest.approx(39.0)


def test_a_layer_that_does_not_fit_beside_another_moves_the_cut():
    """With at most 4 a stage the 3 keeps one neighbour: 1 1 1 | 3 1 | 1 on three stages."""
    data = partition_data(np.array([1.0, 1, 1, 3, 1, 1]), np.ones(3), 1, most=4.0)
    assert layer_partition.solve(data, SolveOptions()).cuts in {(3, 5), (3, 4), (2, 4)}
    assert optimum(partition_data(np.array([1.0, 1, 1, 3, 1, 1]), np.ones(2), 1, most=4.0)) == float("inf")


def test_splits_that_were_judged_are_not_found_again():
    data = partition_data(np.array([1.0, 1, 1, 3, 1, 1]), np.ones(2), 2)
    for solver in SOLVERS:
        assert solve(data, solver, exclude=[(4,)]).cuts == (3,)


def test_a_cutoff_that_the_slowest_stage_alone_exceeds_ends_it_with_a_bound():
    data = random_data(2)
    floor_ms = data.num_microbatches * least_bottleneck(data)[0] + data.constant_ms
    best = brute_force(data)
    assert floor_ms <= best
    for solver in ("highs", "cp_sat"):
        cut = solve(data, solver, cutoff_ms=floor_ms * 0.99)
        assert cut.status == "unknown" and cut.cuts is None and cut.bound_ms is not None
        assert floor_ms <= cut.bound_ms <= best * (1 + 1e-9)
        between = solve(data, solver, cutoff_ms=best * 0.999)
        assert between.cuts is None or between.objective_ms == pytest.approx(best)
        assert between.bound_ms is not None and between.bound_ms <= best * (1 + 1e-6)


def test_the_least_bottleneck_is_that_of_every_cut():
    data = random_data(5)
    times = data.forward_ms + data.backward_ms
    least = min(
        max(times[s, a, e] for s, (a, e) in enumerate(stages_of(c, data.num_layers)))
        for c in combinations(range(1, data.num_layers), data.num_stages - 1)
    )
    found, cuts = least_bottleneck(data)
    assert found == pytest.approx(least) and cuts is not None and np.isfinite(objective_ms(data, cuts))
