"""Least recomputation, least bottleneck and most layers against enumeration; violated rows; ticks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from formulations.pipeline_rows import Floats, step_bound
from formulations.stage_selection_cuts import lower_hull
from formulations.stage_selection_data import (
    StageChoice,
    StageSelectionData,
    most_layers,
    objective_ms,
    reductions_ms,
    times_ms,
    violated_rows,
)
from formulations.stage_selection_tables import (
    bottleneck_layers,
    least_bottleneck_ms,
    least_recompute,
    objectives_ms,
    stage_times_ms,
    with_least_recompute,
)
from formulations.stage_selection_ticks import ROUNDING_SHARE, times_in_ticks
from formulations.written_rows import RowName, row_coefficients
from tests.formulations.instances import by_hand, random_data
from tests.oracles import best_by_layers, choices, layer_counts, recomputes_that_fit

CASES = range(30)


def small(seed: int) -> StageSelectionData:
    rng = np.random.default_rng(1000 + seed)
    p = int(rng.integers(1, 4))
    return random_data(rng, p, int(rng.integers(p, 8)), int(rng.integers(1, 9)))


def extra_ms(data: StageSelectionData, s: int, n: int, kind: str, full: int) -> float:
    if kind == "selective":
        return float(data.selective_ms[s] * n + data.predictions_selective_ms[s])
    return float(data.full_ms[s] * full)


def test_least_recompute_equals_enumeration() -> None:
    for data in map(small, CASES):
        table = least_recompute(data)
        for s in range(data.num_stages):
            for n in range(1, data.num_layers + 1):
                ways = [extra_ms(data, s, n, *way) for way in recomputes_that_fit(data, s, n)]
                assert table.extra_ms[s, n] == pytest.approx(min(ways, default=np.inf), rel=1e-12)
                if ways:
                    full = int(table.full_layers[s, n])
                    kind = "selective" if table.selective[s, n] else "full" if full else "none"
                    assert (kind, full) in recomputes_that_fit(data, s, n)
                    assert extra_ms(data, s, n, kind, full) == pytest.approx(min(ways), rel=1e-12)


def with_leading_layers(seed: int) -> StageSelectionData:
    """Layers of another kind first; sizes in eighths, so that some counts fit to the last bit."""
    data, rng = small(seed), np.random.default_rng(seed)

    def eighths(least: float, most: float) -> Floats:
        return np.round(8 * rng.uniform(least, most, data.num_stages)) / 8

    return replace(
        data,
        layer_gib=eighths(0.5, 1.5),
        base_gib=eighths(0.0, 2.0),
        limit_gib=eighths(0.0, 6.0),
        full_saves_gib=eighths(0.0, 1.0),
        full_peak_gib=eighths(0.0, 1.0),
        lead=rng.integers(0, 4, data.num_stages),
        lead_full_ms=rng.uniform(0, 2, data.num_stages),
        lead_full_saves_gib=eighths(0.0, 1.5),
        lead_full_peak_gib=eighths(0.0, 2.0),
        # Core attention saves nothing here.
        selective_saves_gib=np.zeros(data.num_stages),
        lead_selective_saves_gib=np.zeros(data.num_stages),
    )


def test_fewest_whole_layers_with_leading_ones_equal_enumeration() -> None:
    told_apart = 0
    for data in map(with_leading_layers, range(300)):
        table = least_recompute(data)
        need = data.layer_gib[:, None] * np.arange(data.num_layers + 1) + data.base_gib[:, None]
        for s, lead in enumerate(data.lead.tolist()):
            for n in range(max(lead, 1), most_layers(data)[s] + 1):
                if need[s, n] <= data.limit_gib[s]:
                    continue
                fitting = [
                    count
                    for count in range(1, n + 1)
                    if need[s, n]
                    - data.full_saves_gib[s] * max(count - lead, 0)
                    - data.lead_full_saves_gib[s] * min(count, lead)
                    + (data.full_peak_gib if count > lead else data.lead_full_peak_gib)[s]
                    <= data.limit_gib[s]
                ]
                assert np.isfinite(table.extra_ms[s, n]) == bool(fitting)
                if fitting:
                    assert table.full_layers[s, n] == fitting[0]
                    told_apart += 0 < lead < fitting[0] or 1 < fitting[0] <= lead
    assert told_apart > 20


def test_no_layer_at_all_is_never_a_stage() -> None:
    assert np.isinf(least_recompute(small(0)).extra_ms[:, 0]).all()


def test_least_recompute_is_best_for_the_whole_objective() -> None:
    """A shorter backward hides less of the reduction, and still ends no later."""
    for data in map(small, CASES):
        table = least_recompute(data)
        best = best_by_layers(data)
        for layers in layer_counts(data.num_layers, data.num_stages):
            choice = with_least_recompute(table, layers)
            assert (choice is None) == (layers not in best)
            if choice is not None:
                assert objective_ms(data, choice) == pytest.approx(best[layers], rel=1e-12)


def test_objectives_of_many_equal_the_objective_of_each() -> None:
    for data in map(small, CASES):
        table = least_recompute(data)
        counts = list(layer_counts(data.num_layers, data.num_stages))
        together = objectives_ms(data, table, np.array(counts))
        for layers, value in zip(counts, together, strict=True):
            choice = with_least_recompute(table, layers)
            alone = np.inf if choice is None else objective_ms(data, choice)
            assert value == pytest.approx(alone, rel=1e-12)


def test_least_bottleneck_equals_enumeration() -> None:
    """Over all counts whose stages fit: the sum of the fullest stages may exceed what each count needs."""
    for data in map(small, CASES):
        table = least_recompute(data)
        times = stage_times_ms(data, table)
        stages = np.arange(data.num_stages)
        slowest = [
            float(times[stages, np.array(layers)].max())
            for layers in layer_counts(data.num_layers, data.num_stages)
        ]
        least = least_bottleneck_ms(data, table)
        assert least <= min(slowest) * (1 + 1e-12)
        assert least == pytest.approx(min(slowest), rel=1e-12)


def test_bottleneck_layers_reach_the_least_bottleneck() -> None:
    for data in map(small, CASES):
        table = least_recompute(data)
        layers = bottleneck_layers(data, table)
        assert (layers is None) == bool(np.isinf(least_bottleneck_ms(data, table)))
        if layers is not None:
            assert sum(layers) == data.num_layers
            slowest = stage_times_ms(data, table)[np.arange(data.num_stages), np.array(layers)].max()
            assert slowest == pytest.approx(least_bottleneck_ms(data, table), rel=1e-12)


def test_no_choice_that_fits_holds_more_than_most_layers() -> None:
    for data in map(small, CASES):
        most = most_layers(data)
        for choice in choices(data):
            assert (np.array(choice.layers) <= most).all()


def test_most_layers_leaves_one_to_every_other_stage_and_counts_all_recomputed() -> None:
    """6 layers on 3 stages: 4 at most. 1.5 GiB hold 1 plain layer, 3 of 0.5 GiB, 15 of 0.1."""
    assert most_layers(by_hand(3, 6, 2)).tolist() == [4, 4, 4]
    data = by_hand(3, 6, 2, limit_gib=[1.5, 1.5, 1.5], full_saves_gib=[0.0, 0.5, 0.9])
    assert most_layers(data).tolist() == [1, 3, 4]


def test_violated_rows_are_none_at_the_end_they_force_and_lead_with_the_one_that_forces_it() -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        p = int(rng.integers(1, 7))
        data = random_data(rng, p, 3 * p, int(rng.integers(1, 12)), memory=10.0)
        choice = StageChoice((3,) * p, ("none",) * p, (0,) * p)
        forward, backward = times_ms(data, choice)
        after = reductions_ms(data, choice) + data.reduce_tail_ms
        end = float(step_bound(forward, backward, data.send_ms, data.num_microbatches, after, data.wait_ms))
        assert violated_rows(data, forward, backward, after, end) == []
        found = violated_rows(data, forward, backward, after, 0.9 * end)
        assert 1 <= len(found) <= 6
        assert all(0 <= j <= name.stage for name, j in found)
        assert claim(data, forward, backward, after, *found[0]) == pytest.approx(end, rel=1e-12)


def claim(
    data: StageSelectionData, forward: Floats, backward: Floats, after: Floats, name: RowName, j: int
) -> float:
    """When a row says that stage j has ended and reduced its gradients."""
    row = row_coefficients(name, data.num_stages, data.num_microbatches, data.send_ms, data.wait_ms)
    s, send = name.stage, data.send_ms
    fill = forward[:s].sum() + send[:s].sum()
    drain = backward[j:s].sum() + send[j:s].sum()
    core = row.forward @ forward + row.backward @ backward + row.constant
    return float(fill + core + drain + after[j])


def test_lower_hull_touches_the_points_and_never_passes_above_one() -> None:
    points = [(1, 4.0), (2, 1.0), (3, 2.0), (4, 2.5), (5, 6.0)]
    lines = lower_hull(points)
    assert lines == [(-3.0, 7.0), (0.75, -0.5), (3.5, -11.5)]
    values = [max(slope * x + offset for slope, offset in lines) for x, _ in points]
    assert values == pytest.approx([4.0, 1.0, 1.75, 2.5, 6.0])


def test_ticks_are_a_power_of_two_round_down_and_cost_little() -> None:
    for seed in range(10):
        data = random_data(np.random.default_rng(seed), 4, 24, 32, memory=1.5)
        table = least_recompute(data)
        ticks = times_in_ticks(data, table)
        assert np.log2(ticks.tick_ms) == int(np.log2(ticks.tick_ms))
        n = np.arange(data.num_layers + 1)
        kept_ms = (ticks.layer_forward[:, None] * n + ticks.base_forward[:, None]) * ticks.tick_ms
        lost_ms = data.forward_ms[:, None] * n + data.base_forward_ms[:, None] - kept_ms
        assert (lost_ms >= 0).all() and (lost_ms < ticks.tick_ms * (n + 1)).all()
        least = data.num_microbatches * least_bottleneck_ms(data, table)
        assert ticks.tick_ms * data.num_microbatches * data.num_layers < ROUNDING_SHARE * least
        assert ticks.send[-1] == 0
