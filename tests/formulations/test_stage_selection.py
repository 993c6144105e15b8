"""Both forms of `stage_selection` against enumeration, and what must hold of every answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formulations.options import SolveOptions, SolverName
from formulations.stage_selection_data import (
    Floats,
    StageChoice,
    StageSelectionData,
    least_layers,
    objective_ms,
)
from formulations.stage_selection_tables import least_recompute, objectives_ms
from planner.search.heuristics.local import all_splits
from tests.formulations.instances import by_hand, leading_layers, random_data
from tests.formulations.solving import SOLVERS, form_of, optimum, solve
from tests.oracles import best_by_layers, choices, objective_in_words

AGREE = 1e-6
"""Relative difference of objectives that tolerances and CBC's printed digits may cause."""


def tiny(seed: int) -> StageSelectionData:
    """One to three stages, up to six layers, up to eight micro-batches; memory from ample to too little."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 4))
    return random_data(rng, p, int(rng.integers(p, 7)), int(rng.integers(1, 9)))


@cache
def enumerated(
    made: Callable[[int], StageSelectionData], seed: int
) -> tuple[StageSelectionData, dict[StageChoice, float]]:
    """An instance and the objectives of all choices that fit, which several solvers are held against."""
    data = made(seed)
    return data, {choice: objective_in_words(data, choice) for choice in choices(data)}


def check_against_enumeration(
    made: Callable[[int], StageSelectionData], seed: int, solver: SolverName
) -> str:
    """Assert the optimum, its choice and its bound; the status."""
    data, values = enumerated(made, seed)
    result = solve(data, solver)
    if not values:
        assert result.status == "infeasible"
        return result.status
    least = min(values.values())
    assert result.status == "optimal" and result.choice is not None
    assert result.objective_ms == pytest.approx(least, rel=AGREE)
    assert objective_in_words(data, result.choice) == pytest.approx(result.objective_ms, rel=1e-12)
    assert result.choice in values
    assert result.bound_ms is not None
    assert result.bound_ms <= result.objective_ms
    assert result.bound_ms <= least * (1 + (AGREE if solver == "cbc" else 1e-9))
    assert result.bound_ms == pytest.approx(least, rel=AGREE)
    return result.status


@pytest.mark.parametrize("solver", SOLVERS)
def test_optimum_equals_enumeration(solver: SolverName) -> None:
    seen = {check_against_enumeration(tiny, seed, solver) for seed in range(8)}
    assert seen == {"optimal", "infeasible"}


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_optimum_equals_enumeration_on_many(solver: SolverName) -> None:
    for seed in range(100, 200):
        check_against_enumeration(tiny, seed, solver)


def alike(seed: int) -> StageSelectionData:
    """A tiny instance whose stages recompute one number of layers, in a range of one to four."""
    data = tiny(seed)
    least = 1 + seed % 3
    return replace(data, alike=(least, least + seed % 4))


@pytest.mark.parametrize("solver", SOLVERS)
def test_optimum_with_stages_alike_equals_enumeration(solver: SolverName) -> None:
    seen = {check_against_enumeration(alike, seed, solver) for seed in range(20, 28)}
    assert seen == {"optimal", "infeasible"}


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_optimum_with_stages_alike_equals_enumeration_on_many(solver: SolverName) -> None:
    for seed in range(300, 360):
        check_against_enumeration(alike, seed, solver)
        if seed % 6 == 0 and solver in ("highs", "cp_sat") and best_by_layers(alike(seed)):
            check_cuts(alike(seed), solver)


def leading(seed: int) -> StageSelectionData:
    """A tiny instance whose first stage begins with layers that cost more or less to recompute.

    In half of them more or less passes where these are alone; in a third an end may be without a layer.
    """
    data, rng = tiny(seed), np.random.default_rng(seed)
    p = data.num_stages
    terms = leading_layers(p, int(rng.integers(1, 3)), data.full_ms, data.full_saves_gib / 0.8)
    terms |= {"lead_full_ms": data.full_ms * rng.uniform(0.5, 2.0)}
    ends = np.arange(p) == (p - 1 if p > 1 and seed % 3 == 0 else p)
    if seed % 2:
        own = rng.uniform(-0.3, 0.8, (4, p)) * data.layer_gib
        terms |= {"alone_gib": np.where((terms["lead"] > 0) | ends, own, 0.0)}
    return replace(data, **terms | ({"may_be_empty": ends} if ends.any() else {}))


@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
def test_leading_layers_close_no_choice(solver: SolverName) -> None:
    # Once the cut asked for the backward of both kinds of layers, the program held it to that of the cheaper.
    proven = []
    for seed in range(40):
        data = leading(seed)
        bare = (least_layers(data) == 0).astype(np.int64)
        splits = all_splits(data.num_layers + int(bare.sum()), data.num_stages, 1000)
        assert splits is not None
        least = float(objectives_ms(data, least_recompute(data), splits - bare).min())
        result = solve(data, solver)
        if not np.isfinite(least):
            continue
        assert result.bound_ms is not None and result.choice is not None
        assert result.bound_ms <= least * (1 + 1e-9)
        proven.append(result.bound_ms / least)
    assert len(proven) >= 16 and np.median(proven) > 1 - 1e-6


@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
@pytest.mark.parametrize("mode", range(3))
def test_leading_layers_alone_have_the_room_of_what_they_recompute(mode: int, solver: SolverName) -> None:
    """A first stage of one leading layer fits with less passing, and that in one of the three modes only."""
    saves = [(0.0, 1.5), (1.2, 0.2), (1.0, 0.0)][mode]
    selective, full = (saves if kind == mode else (0.1, 1.5) for kind in (1, 2))
    layer = 1.0 if mode == 0 else 2.0
    data = by_hand(
        2,
        2,
        3,
        lead=np.array([1, 0]),
        layer_gib=[layer, layer],
        selective_saves_gib=[selective[0]] * 2,
        lead_selective_saves_gib=[selective[0]] * 2,
        selective_peak_gib=[selective[1]] * 2,
        full_saves_gib=[full[0]] * 2,
        lead_full_saves_gib=[full[0]] * 2,
        full_peak_gib=[full[1]] * 2,
        lead_full_peak_gib=[full[1]] * 2,
        limit_gib=[0.9, 100.0],
    )
    alone = np.zeros((4, 2))
    assert solve(replace(data, alone_gib=alone), solver).status == "infeasible"
    alone[mode, 0] = 0.15
    table = least_recompute(replace(data, alone_gib=alone))
    assert np.isfinite(table.extra_ms[0, 1])
    assert (table.selective[0, 1], table.full_layers[0, 1]) == (mode == 1, int(mode == 2))
    assert solve(replace(data, alone_gib=alone), solver).choice is not None


def test_objective_equals_the_rows_in_words() -> None:
    for seed in range(20):
        data = tiny(seed)
        for choice in list(choices(data))[:40]:
            assert objective_ms(data, choice) == pytest.approx(objective_in_words(data, choice), rel=1e-12)


def check_cuts(data: StageSelectionData, solver: SolverName) -> None:
    with_all = optimum(data, solver)
    for cuts in ((), *((cut,) for cut in form_of(solver).TIGHTENINGS)):
        assert optimum(data, solver, tighten=cuts) == pytest.approx(with_all, rel=AGREE), cuts


@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
def test_cuts_leave_the_optimum_alone(solver: SolverName) -> None:
    rng = np.random.default_rng(21)
    for p, num_layers, m in ((2, 8, 3), (3, 10, 12)):
        check_cuts(random_data(rng, p, num_layers, m, memory=0.9), solver)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
def test_cuts_leave_the_optimum_alone_on_many(solver: SolverName) -> None:
    rng = np.random.default_rng(22)
    for _ in range(25):
        p = int(rng.integers(1, 6))
        data = random_data(rng, p, int(rng.integers(p, 16)), int(rng.integers(1, 20)))
        check_cuts(data, solver)


@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
def test_cuts_that_close_no_more_than_they_should_keep_every_choice(solver: SolverName) -> None:
    """With all but one layer count excluded the cuts must still allow that one, at its own objective."""
    for seed in (3, 9):
        data = tiny(seed)
        best = best_by_layers(data)
        for layers in list(best)[:2]:
            others = [other for other in best if other != layers]
            assert optimum(data, solver, exclude=others) == pytest.approx(best[layers], rel=AGREE)


@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
def test_excluding_the_best_again_and_again_lists_choices_in_order(solver: SolverName) -> None:
    data = tiny(13)
    best = best_by_layers(data)
    assert len(best) >= 4
    found: list[tuple[int, ...]] = []
    for expected in sorted(best.values())[:3]:
        result = solve(data, solver, exclude=found)
        assert result.choice is not None and result.choice.layers not in found
        assert result.objective_ms == pytest.approx(expected, rel=AGREE)
        found.append(result.choice.layers)


@pytest.mark.parametrize("solver", SOLVERS)
def test_cutoff_below_the_optimum_ends_with_a_true_bound_at_or_above_it(solver: SolverName) -> None:
    data = random_data(np.random.default_rng(5), 3, 9, 6, memory=1.0)
    least = optimum(data)
    result = solve(data, solver, cutoff_ms=0.9 * least)
    assert result.status in ("unknown", "feasible")
    assert result.bound_ms is not None
    assert 0.9 * least <= result.bound_ms <= least * (1 + AGREE)


@pytest.mark.parametrize("solver", SOLVERS)
def test_cutoff_above_the_optimum_changes_nothing(solver: SolverName) -> None:
    data = random_data(np.random.default_rng(5), 3, 9, 6, memory=1.0)
    assert optimum(data, solver, cutoff_ms=1.1 * optimum(data)) == pytest.approx(optimum(data), rel=AGREE)


def test_rows_found_before_give_the_same_optimum() -> None:
    data = random_data(np.random.default_rng(6), 3, 10, 7, memory=1.0)
    first = solve(data, "highs")
    again = solve(data, "highs", rows=first.rows)
    assert again.objective_ms == pytest.approx(first.objective_ms, rel=AGREE)


@pytest.mark.parametrize("solver", ["highs", "cp_sat"])
def test_wide_gap_still_gives_a_true_bound(solver: SolverName) -> None:
    data = random_data(np.random.default_rng(7), 4, 20, 8, memory=1.0)
    least = optimum(data)
    result = solve(data, solver, SolveOptions(gap=0.05))
    assert result.objective_ms is not None and result.bound_ms is not None
    assert result.bound_ms <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= result.objective_ms <= result.bound_ms / 0.95 * (1 + 1e-3)


def test_cp_sat_cut_at_once_has_a_true_bound_and_no_choice_or_a_real_one() -> None:
    data = random_data(np.random.default_rng(8), 6, 30, 12, memory=1.0)
    result = solve(data, "cp_sat", SolveOptions(time_limit_s=0.01))
    assert result.status in ("unknown", "feasible")
    assert result.bound_ms is not None and 0 <= result.bound_ms <= optimum(data) * (1 + 1e-9)


@pytest.mark.parametrize("solver", ["highs", "scip", "cp_sat"])
def test_same_data_and_seed_give_the_same_answer(solver: SolverName) -> None:
    data = random_data(np.random.default_rng(9), 4, 16, 8, memory=0.9)
    assert solve(data, solver) == solve(data, solver)


TIMES = [name for name in StageSelectionData.__dataclass_fields__ if name.endswith("_ms")]


def scaled(data: StageSelectionData, names: list[str], factor: float | Floats) -> StageSelectionData:
    return replace(data, **{name: getattr(data, name) * factor for name in names})


few = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(st.integers(0, 10_000), st.floats(0.01, 100.0))
def test_scaling_all_times_scales_the_objective(seed: int, factor: float) -> None:
    data = tiny(seed)
    for solver in ("highs", "cp_sat"):
        assert optimum(scaled(data, TIMES, factor), solver) == pytest.approx(
            factor * optimum(data, solver), rel=AGREE
        )


@few
@given(st.integers(0, 10_000), st.integers(0, 2), st.floats(0.0, 10.0))
def test_more_memory_never_hurts(seed: int, stage: int, more_gib: float) -> None:
    data = tiny(seed)
    limit = data.limit_gib.copy()
    limit[stage % data.num_stages] += more_gib
    assert optimum(replace(data, limit_gib=limit)) <= optimum(data) * (1 + AGREE)


@few
@given(st.integers(0, 10_000), st.integers(0, 2), st.floats(0.2, 1.0))
def test_faster_stage_never_hurts(seed: int, stage: int, factor: float) -> None:
    """Gathering is left out: a shorter forward hides less of it, also where it is not what takes longest."""
    data = tiny(seed)
    data = replace(data, gather_ms=0 * data.gather_ms, base_gather_ms=0 * data.base_gather_ms)
    factors = np.ones(data.num_stages)
    factors[stage % data.num_stages] = factor
    names = ["forward_ms", "base_forward_ms", "backward_ms", "base_backward_ms", "selective_ms", "full_ms"]
    assert optimum(scaled(data, names, factors)) <= optimum(data) * (1 + AGREE)


@few
@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
def test_faster_send_never_hurts(seed: int, factor: float) -> None:
    data = tiny(seed)
    assert optimum(scaled(data, ["send_ms"], factor)) <= optimum(data) * (1 + AGREE)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_all_solvers_agree_on_eight_stages(seed: int) -> None:
    data = random_data(np.random.default_rng(seed), 8, 40, 16, memory=1.1)
    values = [optimum(data, solver) for solver in SOLVERS]
    assert values == pytest.approx([values[0]] * len(values), rel=AGREE)
