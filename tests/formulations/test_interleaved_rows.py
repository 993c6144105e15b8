"""Rows of the interleaved schedule: never above the simulated step, exact where they say so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from formulations.interleaved_detours import Detour, detour_rows
from formulations.interleaved_paths import longest_paths, row_value, stage_ends
from formulations.interleaved_rows import (
    WaitRow,
    dealt_factors,
    hop_factors,
    largest_wait,
    largest_waits,
    wait_rows,
)
from planner.simulate.pipeline import simulate, stage_ends_s

REL = 1e-12


@dataclass(frozen=True)
class Pipeline:
    """One pipeline, or many of one shape with an axis `candidate` before all others."""

    forward: np.ndarray
    """[stage, chunk]"""
    backward: np.ndarray
    send: np.ndarray
    """[stage]"""
    m: int

    @property
    def both(self) -> np.ndarray:
        """[stage]"""
        total: np.ndarray = (self.forward + self.backward).sum(axis=-1)
        return total

    @property
    def ends(self) -> np.ndarray:
        if self.send.ndim > 1:
            return stage_ends_s(self.forward, self.backward, self.send, self.m)
        return simulate(self.forward, self.backward, self.send, self.m).stage_end_s


def random_pipeline(rng: np.random.Generator) -> Pipeline:
    """2 to 8 stages, 2 to 4 chunks, one to six groups of micro-batches, sends up to five forwards long."""
    p, v = int(rng.integers(2, 9)), int(rng.integers(2, 5))
    spread, slow = rng.choice([0.0, 0.1, 1.0, 10.0]), rng.choice([0.0, 0.05, 0.3, 1.0, 5.0])
    forward = 1 + spread * rng.random((p, v))
    backward = 2 * forward if rng.random() < 0.5 else 1 + spread * rng.random((p, v))
    return Pipeline(forward, backward, slow * rng.random(p), p * int(rng.integers(1, 7)))


def together(pipelines: Sequence[Pipeline]) -> Pipeline:
    """Pipelines of one shape as one."""
    arrays = (np.array([getattr(x, name) for x in pipelines]) for name in ("forward", "backward", "send"))
    return Pipeline(*arrays, pipelines[0].m)


def value(row: WaitRow | Detour, x: Pipeline) -> np.ndarray:
    """[candidate]"""
    found: np.ndarray = (row.forward * x.forward + row.backward * x.backward).sum(axis=(-2, -1))
    return found + x.send @ row.sends


def waits_of_stages(x: Pipeline) -> np.ndarray:
    """What each stage waits at least, before and after its work, [stage]."""
    least = np.zeros((2, *x.send.shape))
    for row in wait_rows(x.send.shape[-1], x.m, x.forward.shape[-1]):
        of_stage = least[int(row.after), ..., row.stage]
        np.maximum(of_stage, value(row, x), out=of_stage)
    total: np.ndarray = least.sum(axis=0)
    return total


def waits(x: Pipeline) -> np.ndarray:
    """The largest row (wait)."""
    largest: np.ndarray = (waits_of_stages(x) + x.m * x.both).max(axis=-1)
    return largest


def test_the_largest_wait_at_once_is_that_of_the_rows() -> None:
    rng = np.random.default_rng(31)
    for _ in range(60):
        x = random_pipeline(rng)
        expected = pytest.approx(float(waits(x)), rel=REL)
        assert largest_waits(x.forward[None], x.backward[None], x.send[None], x.m)[0] == expected
        row = largest_wait(x.forward, x.backward, x.send, x.m)
        assert row_value(row, x.forward, x.backward, x.send) == expected


def hops(x: Pipeline) -> np.ndarray:
    """The largest row (hop)."""
    both, wait = x.both, waits_of_stages(x)
    row = hop_factors(both.shape[-1], x.m, x.forward.shape[-1])
    if row is None:
        return np.zeros(both.shape[:-1])
    rounds = row.both * (both[..., :-1] + both[..., 1:]) + row.send * x.send[..., :-1]
    bases = (slice(0, -1), slice(1, None))
    largest: np.ndarray = np.max([row.own * both[..., at] + rounds + wait[..., at] for at in bases], axis=0)
    return largest.max(axis=-1)


def detours(x: Pipeline) -> np.ndarray:
    """The largest row (detour); 0 where the step is too short for one."""
    alone = waits_of_stages(x) + x.m * x.both
    largest = np.zeros(alone.shape[:-1])
    for row in detour_rows(alone.shape[-1], x.m, x.forward.shape[-1]):
        more = np.zeros(largest.shape)
        for count, found in row.blocks:
            if found:
                more += count * np.maximum(0.0, np.max([value(one, x) for one in found], axis=0))
        largest = np.maximum(largest, alone[..., row.stage] + more)
    return largest


def dealt(x: Pipeline) -> np.ndarray:
    """The row (dealt), [...]."""
    of_stage, of_send = dealt_factors(x.both.shape[-1], x.m, x.forward.shape[-1])
    row: np.ndarray = (of_stage * x.both).sum(axis=-1) + (of_send * x.send).sum(axis=-1)
    return row


def check(x: Pipeline) -> None:
    """No row exceeds the events of its pipeline."""
    most = x.ends[..., 0] * (1 + REL)
    for largest in (waits(x), hops(x), detours(x), dealt(x)):
        assert largest.shape == most.shape
        assert (largest <= most).all(), x


def check_paths(x: Pipeline, other: Pipeline) -> None:
    """Paths found for another pipeline hold for `x`, as they know no times."""
    ends = x.ends
    for row in longest_paths(other.forward, other.backward, other.send, x.m, [0, len(ends) - 1]):
        assert row_value(row, x.forward, x.backward, x.send) <= ends[row.end_stage] * (1 + REL), x


@pytest.mark.slow
def test_no_row_exceeds_the_simulated_step_in_a_few_hundred_pipelines() -> None:
    rng = np.random.default_rng(11)
    for _ in range(150):
        x = random_pipeline(rng)
        shuffled = Pipeline(rng.permuted(x.forward), rng.permuted(x.backward), x.send[::-1].copy(), x.m)
        check(x)
        check_paths(x, shuffled)


@pytest.mark.slow
def test_no_row_exceeds_the_simulated_step_in_twenty_thousand_pipelines() -> None:
    rng = np.random.default_rng(12)
    of_shape = defaultdict[tuple[int, ...], list[Pipeline]](list)
    for i in range(20_000):
        x = random_pipeline(rng)
        of_shape[(*x.forward.shape, x.m)].append(x)
        if i % 20 == 0:
            check_paths(x, x)
    assert sum(map(len, of_shape.values())) == 20_000
    for pipelines in of_shape.values():
        check(together(pipelines))


def test_longest_paths_are_the_simulated_ends() -> None:
    rng = np.random.default_rng(13)
    for _ in range(60):
        x = random_pipeline(rng)
        ends = x.ends
        found = stage_ends(x.forward[None], x.backward[None], x.send[None], x.m)[0]
        assert found == pytest.approx(ends, rel=REL)
        for row in longest_paths(x.forward, x.backward, x.send, x.m, list(range(len(ends)))):
            value = row_value(row, x.forward, x.backward, x.send)
            assert value == pytest.approx(ends[row.end_stage], rel=1e-9)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (2, 3, 4), (4, 2, 8), (8, 4, 8), (8, 2, 32)])
def test_waits_are_exact_on_even_chunks_without_sends(p: int, v: int, m: int) -> None:
    """m t + (p - 1) t / v; the near miss m t + (p - 1) t is the fill of whole stages."""
    x = Pipeline(np.ones((p, v)), np.full((p, v), 2.0), np.zeros(p), m)
    assert waits(x) == pytest.approx(3 * (m * v + p - 1), rel=REL)
    assert x.ends[0] == pytest.approx(3 * (m * v + p - 1), rel=REL)


def test_hops_see_what_a_slow_link_costs_in_every_round() -> None:
    """Four even stages, one link of ten passes: two sends for every three passes, not a few for the step."""
    x = Pipeline(np.ones((4, 2)), np.full((4, 2), 2.0), np.array([0.0, 10.0, 0.0, 0.0]), 48)
    assert waits(x) < 0.5 * x.ends[0]
    assert hops(x) >= 8 * 6 + (40 - 2) / 3 * (6 + 6) + 2 * 26 * 10
    assert hops(x) > 0.85 * x.ends[0]


def test_detours_see_stages_that_are_on_long_chunks_at_different_times() -> None:
    """Equal stages, of which every other one has its long chunk first: no two neighbours are fast at once."""
    forward = np.tile([[3.0, 1.0], [1.0, 3.0]], (4, 1))
    x = Pipeline(forward, 2 * forward, np.zeros(8), 64)
    assert waits(x) < 0.85 * x.ends[0]
    assert detours(x) > 1.1 * waits(x)
    assert detours(replace(x, m=8)) == 0  # too short for one


def test_waits_come_close_on_nearly_even_chunks() -> None:
    rng = np.random.default_rng(14)
    ratios = []
    for _ in range(100):
        p, v = int(rng.integers(2, 9)), int(rng.integers(2, 5))
        forward = 1 + 0.1 * rng.random((p, v))
        x = Pipeline(forward, 2 * forward, np.zeros(p), p * int(rng.integers(1, 5)))
        ratios.append(waits(x) / x.ends[0])
    assert min(ratios) > 0.96 and float(np.mean(ratios)) > 0.985


def test_dealing_unevenly_never_undercuts_the_dealt_row() -> None:
    """Two stages of twelve layers in two chunks: (6, 6) is best, (1, 11) far worse; one row bounds both."""
    values = []
    for first in range(1, 12):
        forward = np.array([[first, 12 - first]] * 2, dtype=float)
        x = Pipeline(forward, 2 * forward, np.zeros(2), 8)
        values.append(float(x.ends[0]))
        assert dealt(x) == pytest.approx(8 * 36 + 36 / 4, rel=REL)
    assert min(values) == values[5] == pytest.approx(8 * 36 + 18)
