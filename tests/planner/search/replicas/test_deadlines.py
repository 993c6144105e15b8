"""Deadlines that no mix keeps, against brute force over small mixes and over chains of tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.search.replicas.aims import APART, NEAR, PRICES, SLACK, TRIES, Aims, Row
from planner.search.replicas.deadlines import MORE_HALVINGS, Deadlines
from planner.search.replicas.holding import LeastWorth, _Line, _undominated
from planner.search.replicas.holding_rows import ChainStages, SumBracket, inner_range
from planner.search.replicas.mixes import Mixes
from planner.search.replicas.remainder import most_worth
from planner.simulate.pipeline import stage_ends_s
from planner.tolerances import BOUND_TOL
from planner.units import MS
from tests.planner.search.replicas.test_mixes import (
    all_pipelines,
    best_pair_s,
    end_ms,
    mixes_of,
    small_problem,
)


def random_price(random: np.random.Generator, mixes) -> np.ndarray:  # type: ignore[no-untyped-def]
    price: np.ndarray = random.uniform(0.1, 1.0, 2)
    price *= mixes.batch / float(price @ mixes.available)
    return price


def test_prices_that_nearly_close_a_deadline_are_left_no_further_than_rows_ask() -> None:
    """The midst of few rows may lie far off, where others are open that took long to close."""
    mixes = mixes_of(small_problem(0))
    nearly, midst = np.array([1.0, 1.0]), np.array([0.5, 3.0])
    aims = Aims(mixes.pricing.paths, nearly, lambda *_: (midst, 0.0), lambda _: None)
    rows = [Row((1.0, 0.0), 0.6), Row((0.0, 1.0), 1.2), Row((0.0, 2.0), 2.2)]
    assert aims._towards(midst, rows) is midst
    aims._nearly = nearly
    price = aims._towards(midst, rows)
    assert price[1] == pytest.approx(1.2 * (1 + SLACK)) and 0.9 < price[0] < 1
    assert aims._towards(midst, [Row((0.0, 1.0), 4.0)]) == pytest.approx(midst)
    assert aims._towards(midst, rows[:1]) == pytest.approx(nearly)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_pipeline_runs_what_its_chips_are_worth_by_a_deadline_that_is_closed(seed: int) -> None:
    """At random prices, all pipelines with room for another; most of the way to the first is closed."""
    random = np.random.default_rng(seed)
    mixes = mixes_of(small_problem(seed))
    pipelines = all_pipelines(mixes.problem)
    paths, shares = mixes.pricing.paths, []
    before, beyond = (0.65, 0.8, 0.95), (1 + 1e-6, 1.1, 1.4)
    for _ in range(6):
        price = random_price(random, mixes)
        worth = np.array([price @ np.array(timed.chips) for timed in pipelines])
        room = mixes.batch - worth.min(initial=np.inf)
        assert most_worth(paths, price) >= room
        beside = [timed for timed, own in zip(pipelines, worth, strict=True) if own <= room * (1 + 1e-9)]
        first_ms = min((end_ms(timed, price) for timed in beside), default=np.inf)
        if not np.isfinite(first_ms):
            continue
        closed = [aim for aim in before + beyond if Deadlines(paths, price).closes(aim * first_ms)]
        assert max(closed, default=0.0) <= 1
        shares.append(max(closed, default=0.0))
    assert len(shares) > 2
    assert max(shares) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_pipeline_that_runs_some_micro_batches_is_worth_less_than_said(seed: int) -> None:
    """For every number of micro-batches, at deadlines of all kinds."""
    random = np.random.default_rng(seed)
    mixes = mixes_of(small_problem(seed))
    chains, pipelines = mixes.chains, all_pipelines(mixes.problem)
    price = random_price(random, mixes)
    holding, compared = LeastWorth(mixes.pricing.paths, price), 0
    ends = [timed.ends_s[-1] for timed in pipelines]
    for deadline_s in np.quantile(ends, [0.02, 0.2, 0.6]):
        for size in (1, 2):
            for m in range(1, 13):
                kind = chains.kind_of(size, m)
                if kind is None:
                    continue
                own = [
                    float(price @ np.array(timed.chips)) / timed.plan.data_parallel
                    for timed in pipelines
                    if timed.plan.microbatch_size == size
                    and len(timed.ends_s) >= m
                    and timed.ends_s[m - 1] + timed.tail_s + timed.beyond_s <= deadline_s
                ]
                need = float(random.uniform(0.9, 1.6)) * min(own, default=1.0)
                first = int(random.integers(max(m - 1, 1), m + 1))
                found = holding.least(
                    kind, first, deadline_s / MS, need, int(random.integers(0, MORE_HALVINGS + 1))
                )
                if own and need > min(own) * (1 + 1e-9):
                    compared += 1
                    assert found.worth < need
    assert compared > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_pair_of_pipelines_is_done_by_a_deadline_that_is_closed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any deadline to begin with; those before it are looked at often, and as often as usually.

    That the bound by prices alone holds too is shown beside them, in `test_mixes`.
    """
    others = [mixes_of(small_problem(seed)) for _ in range(2)]
    best = best_pair_s(others[0].problem)
    for other, tries in zip(others, (TRIES, 1), strict=True):
        monkeypatch.setattr("planner.search.replicas.aims.TRIES", tries)
        for aim in (0.7, 1.0, 2.0):
            assert min(other.improve_by_deadlines(aim * best), best) <= best * (1 + 1e-9)
            assert other.bound_s <= best * (1 + 1e-9)
        assert other.bound_s > 0.5 * best


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_no_prices_close_what_the_chips_that_came_up_are_worth_too_little_for(seed: int) -> None:
    """A row that a look gave cuts off its own prices, and none that close its chains in the same time."""
    random = np.random.default_rng(seed)
    mixes = mixes_of(small_problem(seed))
    paths = mixes.pricing.paths
    kept = broken = 0
    for aim_ms in np.geomspace(20.0, 2000.0, 12).tolist():
        price = random_price(random, mixes)
        look = Deadlines(paths, price)
        look.closes(aim_ms)
        for one in look.open_ones:
            if one.chips is None:
                continue
            need, span = look.sequences(one.span), one.span
            assert float(price @ one.chips) <= need * (1 + 1e-9)
            for _ in range(8):
                other_price = random_price(random, mixes) * float(random.uniform(0.5, 2.0))
                other = LeastWorth(paths, other_price)
                if other._beyond_ms(span.kind, need) != look.holding._beyond_ms(span.kind, need):
                    continue
                found = other.least(span.kind, span.least_m, aim_ms, need, MORE_HALVINGS)
                if found.worth >= need * (1 - 1e-9):
                    kept += 1
                    assert float(other_price @ one.chips) >= need * (1 - 1e-6)
                else:
                    broken += 1
    assert kept > 2 and broken > 2


def test_where_no_pipeline_gains_more_rounding_leaves_nothing_open() -> None:
    """By a deadline that no stage keeps; what was asked for once came back an ulp short, and stayed open."""
    random = np.random.default_rng(0)
    mixes = mixes_of(small_problem(0))
    holding, kind = LeastWorth(mixes.pricing.paths, mixes.best_price), mixes.chains.kind_of(1, 2)
    assert kind is not None
    for mu, need in random.uniform(0.1, 8.0, (200, 2)).tolist():
        asked = SumBracket(kind, 2, 1e-3, 1e-4, 1e-3, 1e-5, need)
        found, _ = holding._of_bracket(holding._places(kind, 2, 1e-3), asked, mu)
        assert found.chain is None and found.worth >= need


def test_a_look_that_ends_at_what_stays_open_is_not_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no pipeline came up for what stayed open, the look once counted as one that closed the rest."""
    mixes = mixes_of(small_problem(0))
    look = Deadlines(mixes.pricing.paths, mixes.best_price)
    monkeypatch.setattr(look, "_pieces", lambda *_: None)
    assert not look.closes(1e6) and not look.open_ones and not look.is_nearly


def test_two_pipelines_weigh_up_to_all_layers() -> None:
    """One two layers short and one a layer beyond: a third of the first, two thirds of the other."""
    mixes = mixes_of(small_problem(0))
    holding = LeastWorth(mixes.pricing.paths, mixes.best_price)
    fewer, more = _Line(1.0, 2.0, 2.0, ((0, 2),)), _Line(1.5, 2.0, -1.0, ((0, 2), (1, 3)))
    taken = holding._taken(fewer, more)
    assert taken is not None and taken[:2] == pytest.approx([1.0, 2 / 3]) and not taken[2:].any()
    assert holding._taken(fewer, None) is None and holding._taken(None, more) is None
    whole = _Line(1.0, 2.0, 0.0, ((1, 4),))
    both = holding._taken(whole, whole)
    assert both is not None and both[:2].tolist() == [0.0, 1.0]


def test_deadlines_rise_and_what_one_closes_is_kept() -> None:
    """By a stand-in for looks that closes all before 100 ms, at any prices that are no longer the first."""
    mixes = mixes_of(small_problem(0))
    first, asked = mixes.best_price.copy(), []
    aims = mixes.aims

    def closes(deadline_ms: float, most_prices: int) -> bool:
        asked.append((round(deadline_ms, 6), most_prices))
        return deadline_ms < 100.0 and most_prices > 1

    aims._closes = closes  # type: ignore[method-assign]
    assert 99.0 <= aims.improve(50.0, 110.0) < 100.0
    assert asked[:4] == [(110.0, 1), (99.0, PRICES), (105.6, PRICES), (102.3, PRICES)]
    assert aims.closed_ms < 100.0 < aims.missed_ms < 100.0 * (1 + 2 * APART)
    assert aims.improve(0.0, 90.0) >= 99.0
    assert (aims.price == first).all()


class _UpTo:
    """A stand-in for looks that close every deadline before 100 ms at any prices."""

    def __init__(self, *_: object) -> None:
        self.deadline_ms, self.open_ones, self.is_nearly = 0.0, [], False  # type: ignore[var-annotated]

    def closes(self, deadline_ms: float, first: object) -> bool:
        self.deadline_ms = deadline_ms
        return deadline_ms < 100.0

    def columns(self) -> list[object]:
        return []


def test_prices_that_do_not_close_a_deadline_are_tried_for_one_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Now and then the middle, from the last one closed on: what a limit cuts is not lost."""
    monkeypatch.setattr("planner.search.replicas.aims.Deadlines", _UpTo)
    mixes, looks = mixes_of(small_problem(0)), [0]

    def program(*_: object) -> tuple[np.ndarray, float]:
        looks[0] += 1
        return mixes.best_price * np.array([1 + 0.3 * (-1) ** looks[0], 1.0]), 0.0

    def aims_of(most_looks: int) -> Aims:
        looks[0] = 0
        up = lambda: looks[0] > most_looks  # noqa: E731
        return Aims(mixes.pricing.paths, mixes.best_price, program, lambda columns: None, up)

    assert not aims_of(1000)._closes(110.0, TRIES - 1)
    for tries, low in ((TRIES, 79.9), (2 * TRIES, 94.9), (3 * TRIES, 94.9), (8 * TRIES, 94.9)):
        aims = aims_of(1000)
        aims.closed_ms = 50.0
        assert not aims._closes(110.0, tries)
        assert low < aims.closed_ms < 100.0
    assert aims_of(TRIES).improve(50.0, 110.0) >= 80.0 * (1 - NEAR)


def test_a_deadline_whose_look_time_cut_is_tried_with_as_many_prices_as_before() -> None:
    # The last one, looked at with the first prices alone, was tried with sixty of them behind a cut.
    mixes, calls = mixes_of(small_problem(0)), [0]

    def is_up() -> bool:
        calls[0] += 1
        return calls[0] > 1

    keep = lambda columns: None  # noqa: E731
    aims = Aims(mixes.pricing.paths, mixes.best_price, mixes._middle, keep, is_up)
    aims.improve(0.0, 1e6)
    assert aims.looks == 1 and next(aims._aims(1e6)) == (1e6, 1)


@pytest.mark.slow
def test_a_look_that_time_cut_goes_on_where_it_ended() -> None:
    """And does not look again at what was closed; an earlier deadline is closed with it."""
    mixes = mixes_of(small_problem(0))
    paths, price = mixes.pricing.paths, mixes.best_price
    whole = Deadlines(paths, price)
    deadline_ms = next(t for t in np.geomspace(1e4, 1.0, 60).tolist() if Deadlines(paths, price).closes(t))
    assert whole.closes(deadline_ms)
    left = [40]

    def is_up() -> bool:
        left[0] -= 1
        return left[0] < 0

    cut = Deadlines(paths, price, is_up)
    assert not cut.closes(deadline_ms)
    before = cut.holding.evaluated
    left[0] = 1_000_000
    assert cut.closes(0.99 * deadline_ms)
    assert before > 0
    assert cut.holding.evaluated - before < whole.holding.evaluated


@cache
def bounded_by_prices(seed: int, most_s: float) -> tuple[Mixes, float]:
    """Mixes of a small problem once they are bounded by prices without any limit, and their bound [s]."""
    mixes = mixes_of(small_problem(seed))
    return mixes, mixes.improve_by_prices(most_s)


@pytest.mark.parametrize(
    "after", [16, *(pytest.param(calls, marks=pytest.mark.slow) for calls in (1, 4, 7, 10, 13, 19, 22))]
)
def test_boxes_that_time_cut_are_asked_before_deadlines_once_there_is_time(after: int) -> None:
    # Where few boxes were cut the rest were not asked: deadlines took ten times as long to close as much.
    problem, left, most_s = small_problem(1), [after], 10.0
    whole, whole_s = bounded_by_prices(1, most_s)

    def is_up() -> bool:
        left[0] -= 1
        return left[0] < 0

    cut = mixes_of(problem, is_up)
    cut.improve_by_prices(most_s)
    assert left[0] < 0 and not cut.aims.looks
    left[0] = 10**9
    assert cut.improve_by_prices(most_s) == whole_s
    assert (cut.aims.looks, cut.pricing.evaluated) == (whole.aims.looks, whole.pricing.evaluated)


def test_choices_that_another_is_as_good_as_are_left_out() -> None:
    one, two = np.array([1.0, 1.0, 2.0, 1.0]), np.array([3.0, 3.0, 1.0, 4.0])
    assert _undominated(one, two).tolist() == [True, False, True, False]


@pytest.mark.parametrize("seed", range(3))
def test_every_stage_of_a_step_keeps_the_rows_up_to_its_own_end_with_what_follows_it(seed: int) -> None:
    """Random pipelines, event by event: what follows a stage once counted of the first one alone."""
    random = np.random.default_rng(seed)
    tighter = 0
    for _ in range(300):
        p, m = int(random.integers(2, 7)), int(random.integers(1, 14))
        forward = random.uniform(0.2, 1.0, p)
        backward = forward * random.uniform(1.0, 3.0, p)
        hop = float(random.choice([0.0, 0.1, 0.5]))
        after = random.uniform(0.0, float(random.choice([1.0, 20.0])), p)
        ends = stage_ends_s(forward[None, :, None], backward[None, :, None], np.full((1, p), hop), m)[0]
        deadline, times = float((ends + after).max()) * (1 + BOUND_TOL), forward + backward
        total = float(times.sum()) + 2 * hop * (p - 1) + float(after[0])
        for s in range(1, p):
            behind = p - 1 - s
            way = float(times[s + 1 :].sum()) + 2 * hop * behind
            asked = SumBracket(0, m, deadline, total, total, 1.0, 1.0)
            one = [np.array([value]) for value in (0, 1.0, times[s], hop, after[s], 1.0)]
            stage = ChainStages(*one, pace=forward[s : s + 1] / times[s])
            shortest, longest = inner_range(asked, stage, behind)
            assert shortest[0] - 1e-9 <= way <= longest[0] + 1e-9
            alone = replace(stage, after=np.zeros(1))
            tighter += int(longest[0] < inner_range(asked, alone, behind)[1][0] - 1e-9)
    assert tighter > 50
