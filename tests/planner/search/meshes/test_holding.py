"""What pipelines can hold within a limit: against all of them one by one, and what it adds to the search."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from planner.data.problem import Problem
from planner.search.meshes import bounding, closing, listing, sequences
from planner.search.meshes.brackets import EXCESS, FOLLOW, PACE, SLOWEST, SUM, Brackets
from planner.search.meshes.choices import Choices
from planner.search.meshes.closing import close_lengths, least_sum
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.holding import NUM_LAYERS, Holding
from planner.search.meshes.measures import Measured
from planner.search.meshes.opener import MeshOpener
from planner.search.meshes.pairs import list_pairs, longest_of
from planner.search.meshes.spans import spans_of
from planner.search.meshes.units import count_units
from planner.search.meshes.walks import MeshWalks
from planner.search.meshes.ways import most_within
from planner.simulate.alternating import alternating_stage_ends_s
from planner.units import MS
from tests.random_problems import random_problem, with_deferred_sends

TICKS = 1000
SUMS = 50


def opener_of(problem: Problem) -> MeshOpener:
    search = MeshSearch(problem, None)
    opener = search.make_opener()
    opener.longest = longest_of(list_pairs(problem, opener.batches, search.bounds))
    return opener


def walks_of(opener: MeshOpener, number: int, lengths: list[int]) -> MeshWalks:
    return MeshWalks(
        opener.places.of(number, opener.longest[number]),
        opener.batches[number],
        lengths,
        opener.chips_of_class,
        count_units(opener.batches[number], opener.chips_of_class, 1),
        sends_block=not opener.problem.stack.p2p_overlap,
    )


def rows_ms(
    walks: MeshWalks, order: tuple[int, ...], layers: tuple[int, ...]
) -> tuple[list[float], list[float], float]:
    """Rows of a pipeline as in `formulations.pipeline_rows`, what follows it, stage by stage, and its sum."""
    m, p = walks.num_microbatches, len(order)
    lines = [walks.first if s == 0 else walks.inner for s in range(p)]
    place = [min(p - 1 - s, lines[s].times.shape[1] - 1) for s in range(p)]
    t = [float(lines[s].times[order[s], place[s], layers[s]]) for s in range(p)]
    forward = [float(lines[s].forward[order[s], place[s]]) * layers[s] for s in range(p)]
    forward = [f + float(lines[s].base_forward[order[s], place[s]]) for s, f in enumerate(forward)]
    # A stage pays half of what its two hops take.
    ahead = [float(walks.places.hop_ms[order[s]]) if not walks.sends_block else 0.0 for s in range(p)]
    hops = [ahead[s] + ahead[s + 1] for s in range(p - 1)]
    reduce = float(lines[0].reduce[order[0], place[0], layers[0]])
    reduces = [float(lines[s].reduce[order[s], place[s], layers[s]]) for s in range(p)]
    rows = []
    for s in range(p):
        q, f, b = p - 1 - s, forward[s], t[s] - forward[s]
        up, d = sum(t[:s]) + sum(hops[:s]), sum(t[s + 1 :]) + sum(hops[s:])
        k, r = divmod(m - 1, q + 1)
        core = max(m * t[s], (k + 1) * (t[s] + d) + r * max(f, b))
        if m >= q + 2:
            core = max(core, m * t[s] + max(0.0, d - q * f) + max(0.0, d - q * b))
        # As if it were the first stage, where that is more.
        rows.append(max(up + core + reduce, core + reduces[s]))
    follows = [float(lines[s].follow[order[s], place[s], layers[s]]) for s in range(p)]
    return rows, follows, sum(t) + sum(hops) + reduce


def slow_rows_ms(
    walks: MeshWalks, order: tuple[int, ...], layers: tuple[int, ...]
) -> tuple[list[Callable[[float], float]], list[float]]:
    """Row (slow) of every stage, by the time of a stage up to it, and times of all stages."""
    m, p = walks.num_microbatches, len(order)
    pipeline = Measured(walks, order, layers)
    whole = float(pipeline.measures[SUM])

    def row(s: int, slowest: float) -> float:
        q, t = p - 1 - s, float(pipeline.time[s])
        return whole - float(pipeline.ways_down[s]) + max(0, m - 1 - q) * t + min(q, m - 1) * slowest

    return [partial(row, s) for s in range(p)], pipeline.time.tolist()


def events_ms(walks: MeshWalks, order: tuple[int, ...], layers: tuple[int, ...]) -> tuple[float, float]:
    """When the last stage has reduced its gradients, by the events of a pipeline, and its excess."""
    pipeline, p = Measured(walks, order, layers), len(order)
    lines = [walks.first if s == 0 else walks.inner for s in range(p)]
    place = [min(p - 1 - s, lines[s].times.shape[1] - 1) for s in range(p)]
    reduce = [float(lines[s].reduce[order[s], place[s], layers[s]]) for s in range(p)]
    sends = [float(lines[s].delay[order[s], place[s]]) for s in range(p)]
    # A stage pays half of what its two hops take, both ways; the first and the last have one.
    hop = [sends[s] if s in (0, p - 1) else sends[s] / 2 for s in range(p)]
    c = np.array([(hop[s] + hop[s + 1]) / 2 for s in range(p - 1)] + [0.0])
    passes = pipeline.forward[None], (pipeline.time - pipeline.forward)[None]
    ends = alternating_stage_ends_s(*passes, c[None], walks.num_microbatches)[0]
    return float((ends + np.array(reduce)).max()), float(pipeline.measures[EXCESS])


def test_a_stage_waits_for_slower_ones_before_it() -> None:
    """Row (slow) never exceeds the events of a pipeline, with few micro-batches and with many."""
    rng, tight = np.random.default_rng(5), 0
    for _ in range(400):
        p, m = int(rng.integers(1, 8)), int(rng.integers(1, 14))
        f, b = rng.random((2, p)) + 0.05
        c = np.append(rng.random(p - 1) * rng.choice([0.0, 0.3]), 0.0)
        step = float(alternating_stage_ends_s(f[None], b[None], c[None], m).max())
        t = f + b
        for s in range(p):
            q, up = p - 1 - s, t[: s + 1].sum() + 2 * c[:s].sum()
            row = up + max(0, m - 1 - q) * t[s] + min(q, m - 1) * t[: s + 1].max()
            assert row <= step * (1 + 1e-9)
            tight += bool(row >= step * 0.98) and q > 0 and t[s] < t[: s + 1].max()
    assert tight > 10


def test_a_pipeline_keeps_rows_with_the_longer_pass_of_a_slow_stage_and_with_a_later_reduction() -> None:
    """Rows (paced) and (own), and all others with the excess, never exceed the events of a pipeline."""
    rng, tight = np.random.default_rng(6), np.zeros(3, dtype=np.int64)
    for _ in range(600):
        p, m = int(rng.integers(2, 8)), int(rng.integers(1, 14))
        f, b = rng.random((2, p)) * rng.choice([0.1, 1.0], size=p) + 0.02
        r = rng.random(p) * rng.choice([0.1, 3.0], size=p)
        c = np.append(rng.random(p - 1) * rng.choice([0.0, 0.3]), 0.0)
        step = float((alternating_stage_ends_s(f[None], b[None], c[None], m) + r).max())
        t = f + b
        before = np.concatenate([[0.0], np.cumsum(t + 2 * c)[:-1]]) + np.where(np.arange(p) > 0, r[0], 0.0)
        excess = np.where(np.arange(p) > 0, r - before, 0.0)
        longest, sl = int(np.argmax(excess)), int(np.argmax(t))
        whole, more = float(before[-1] + t[-1]), float(max(excess.max(), 0.0))
        for s in range(1, p):
            q, x = p - 1 - s, whole - float(before[s] + t[s])
            k, rest = divmod(m - 1, q + 1)
            waits = max(0.0, x - q * f[s]) + max(0.0, x - q * b[s]) if m >= q + 2 else 0.0
            core = max(m * t[s] + waits, (k + 1) * (t[s] + x) + rest * max(f[s], b[s]))
            own = core + r[s]
            added = more * (s >= longest)
            rows = [own, before[s] + core + added]
            if s >= sl:
                # The excess counts beside a slow stage that is not before the one that has it.
                added *= sl >= longest
                paced = whole + (m - 1 - q) * t[s] + q * max(f[sl], b[sl]) if m >= q + 2 else 0.0
                slow = before[s] + t[s] + max(0, m - 1 - q) * t[s] + min(q, m - 1) * t[sl]
                rows += [paced + added, slow + added]
            assert max(rows) <= step * (1 + 1e-9)
            tight += [
                own >= step * 0.98,
                added > 0 and rows[1] >= step * 0.98,
                max(rows[2:], default=0) > step * 0.98,
            ]
    assert (tight > 5).all(), tight


@pytest.mark.parametrize(
    ("seed", "deferred"),
    [(3, False), *(pytest.param(seed, seed % 2 == 0, marks=pytest.mark.slow) for seed in range(4, 12))],
)
def test_what_is_held_is_the_most_of_all_pipelines(seed: int, deferred: bool) -> None:
    """Of all sequences of a few shapes none that keeps the limit holds more, and one about as much.

    In all brackets of what follows, of the slowest stage and of its longer pass together, each of them with
    its lower edge, also where a slower stage is asked for once a pass is known.
    """
    problem = random_problem(seed, most_layers=4).model_copy(update={"target": "flagscale"})
    opener = opener_of(with_deferred_sends(problem) if deferred else problem)
    rng = np.random.default_rng(seed)
    for number in rng.permutation(list(opener.longest))[:3].tolist():
        for p in range(1, min(opener.longest[number], 3) + 1):
            walks = walks_of(opener, number, [p])
            shapes = rng.permutation(len(walks.batch.shapes))[:4].tolist()
            walks.allowed = np.isin(np.arange(len(walks.batch.shapes)), shapes)[None].repeat(p, axis=0)
            price = rng.random(len(walks.shares.room)) / 4
            pipelines = []
            for order in itertools.product(shapes, repeat=p):
                for layers in itertools.product(range(1, walks.num_layers + 1), repeat=p):
                    rows, follows, _ = rows_ms(walks, order, layers)
                    paid = walks.shares.taken[list(order)].sum(axis=0) @ price
                    if np.isfinite(rows).all():
                        slow, times = slow_rows_ms(walks, order, layers)
                        worth, events = sum(layers) - float(paid), events_ms(walks, order, layers)
                        assert max(rows) <= events[0] * (1 + 1e-9)
                        longer = Measured(walks, order, layers).longer.tolist()
                        pipelines.append((rows, follows, worth, slow, times, *events, longer))
            if not pipelines:
                continue
            limit = float(np.median([max(rows) + max(follows) for rows, follows, *_ in pipelines]))
            edges = np.linspace(0.0, limit, SUMS + 1)
            brackets, cuts = Brackets.of_sums(edges[:-1], edges[1:]), {}
            cut_by = (FOLLOW, [0.3, 0.6]), (PACE, [0.5]), (SLOWEST, [0.4]), (PACE, [0.5]), (EXCESS, [0.7])
            for measure, at in cut_by:
                number_of = {FOLLOW: 1, SLOWEST: 4, EXCESS: 6, PACE: 7}[measure]
                of_all = [one[6] if measure == EXCESS else max(one[number_of]) for one in pipelines]
                cuts[measure] = np.concatenate([[0.0], np.unique(np.quantile(of_all, at)), [np.inf]])
                for cut in cuts[measure][1:-1].tolist():
                    brackets = brackets.cut(np.full(len(brackets), measure), np.full(len(brackets), cut))
            holding = Holding(walks, limit, brackets, limit / TICKS)
            held = float(holding.held(np.tile(price, (len(brackets), 1))).max())
            # Within a bracket the time before a stage is that of its edge, and each stage is off by a tick.
            loose = limit * (1 + 1 / SUMS + 2 * p / TICKS)
            most, about = -np.inf, -np.inf
            for rows, follows, worth, slow, times, end, _, longer in pipelines:
                assert max(row(max(times[: i + 1])) for i, row in enumerate(slow)) <= end * (1 + 1e-9)
                if end + max(follows) <= limit:
                    most = max(most, worth)
                least, slowest = (
                    cuts[measure][max(int(np.searchsorted(cuts[measure], max(of_all))) - 1, 0)]
                    for measure, of_all in ((FOLLOW, follows), (SLOWEST, times))
                )
                # Behind the first stage that may be the slowest the edge of its bracket counts.
                pace = max(one for time, one in zip(times, longer, strict=True) if time >= slowest)
                pace = cuts[PACE][max(int(np.searchsorted(cuts[PACE], pace)) - 1, 0)]
                first = next(
                    i
                    for i, (time, one) in enumerate(zip(times, longer, strict=True))
                    if time >= slowest and one >= pace
                )
                rows = [max(row, slow[i](slowest)) if i > first else row for i, row in enumerate(rows)]
                if max(row + max(follow, least) for row, follow in zip(rows, follows, strict=True)) <= loose:
                    about = max(about, worth)
            assert most - 1e-9 <= held <= about + 1e-9, (number, p)


def keeps_rows(
    holding: Holding, choices: Choices, q: int, count: NDArray[np.int64], *, is_first: bool
) -> NDArray[np.bool_]:
    """Whether choices keep their rows with `count` ticks behind, by the rows alone, [count, choice, row].

    The row that falls, stands and rises with what lies behind is asked where it may turn.
    """
    m, tick, low = holding.walks.num_microbatches, holding.tick, holding.least(SUM)
    count = count[:, None, None]
    t, f, b, hop, more, follow, reduce, own = (
        getattr(choices, name)[:, None]
        for name in ("time", "forward", "backward", "least_hop", "most_hop", "follow", "reduce", "own_reduce")
    )
    ahead, error, at_first = (count + choices.ticks[:, None]) * tick, q * tick, reduce * is_first
    k, r = divmod(m - 1, q + 1)
    window = low + k * (t + count * tick + hop) + r * np.maximum(f, b)
    if is_first:
        window = (k + 1) * (t + count * tick + hop) + r * np.maximum(f, b)
    steps = []
    for y in (count * tick, count * tick + error, q * f - hop, q * b - hop):
        y = np.clip(y, count * tick, count * tick + (0.0 if is_first else error))
        before = 0.0 if is_first else low - y - more - t
        waits = np.maximum(y + hop - q * f, 0.0) + np.maximum(y + hop - q * b, 0.0)
        steps.append(before + m * t + waits * (m >= q + 2) + 0 * window)
    step = np.min(steps, axis=0)
    if m >= q + 2 or is_first:
        step = np.maximum(step, window)
    else:
        step = np.maximum(step, low + (m - 1) * np.maximum(f, b))
    kept = step + at_first + np.maximum(follow, holding.least(FOLLOW)) <= holding.limit
    kept &= (follow <= holding.most(FOLLOW)) & (ahead <= holding.most(SUM))
    if not is_first:
        x = count * tick + hop
        waits = np.maximum(x - q * f, 0.0) + np.maximum(x - q * b, 0.0)
        alone = np.maximum(m * t + waits * (m >= q + 2), (k + 1) * (t + x) + r * np.maximum(f, b)) + own
        kept &= alone + np.maximum(follow, holding.least(FOLLOW)) <= holding.limit
        kept &= x + t + np.maximum(own - holding.most(EXCESS), 0.0) <= holding.most(SUM)
    return np.asarray(kept & (ahead + error + tick >= low) if is_first else kept)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 4, 7))])
def test_a_choice_keeps_its_rows_on_one_span_of_ticks(seed: int) -> None:
    """Each count of ticks by itself against the span, with few micro-batches and with more."""
    problem = random_problem(seed, most_layers=5).model_copy(update={"target": "flagscale"})
    opener = opener_of(with_deferred_sends(problem) if seed % 2 else problem)
    kinds = set()
    for number in list(opener.longest):
        walks = walks_of(opener, number, list(range(1, opener.longest[number] + 1)))
        limit = 1.7 * max(walks.num_microbatches, walks.longest) * least_sum(walks) / walks.longest
        edges, between = np.linspace(0.2, 1.0, 6) * limit, np.array([0.0, 0.01, 0.0, 0.02, 0.0]) * limit
        if not np.isfinite(limit):
            continue
        follows = between, np.array([np.inf, 0.05, np.inf, 0.1, 0.03]) * limit
        slowest = np.tile([[0.0], [np.inf]], 5)
        excess = np.zeros(5), np.array([np.inf, 0.02, np.inf, 0.0, 0.05]) * limit
        brackets = Brackets(np.stack([[edges[:-1], edges[1:]], follows, slowest, excess, slowest]))
        holding = Holding(walks, limit, brackets, limit / 97)
        for q in range(walks.longest):
            for choices in (holding.first[q], *holding.inner[q : q + 1]):
                is_first = choices is holding.first[q]
                low, high = spans_of(holding, choices, q, is_first=is_first)
                counts = np.arange(holding.width)
                seen = keeps_rows(holding, choices, q, counts, is_first=is_first)
                each = counts[:, None, None]
                assert (seen == ((low <= each) & (each <= high))).all(), (number, q, is_first)
                kinds |= {(is_first, walks.num_microbatches >= q + 2)} if seen.any() else set()
    assert len(kinds) == 4


def test_the_largest_value_of_spans_is_that_of_their_points() -> None:
    rng = np.random.default_rng(0)
    value = rng.random((3, 37))
    low, high = rng.integers(37, size=(2, 200, 3))
    for choice, row in np.ndindex(200, 3):
        span = value[row, low[choice, row] : high[choice, row] + 1]
        assert most_within(value, low, high)[choice, row] == span.max(initial=-np.inf)


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
def test_no_length_is_closed_at_the_step_of_its_best_pipeline(seed: int) -> None:
    problem = random_problem(seed, most_layers=6).model_copy(update={"target": "flagscale"})
    opener = opener_of(problem)
    for number in list(opener.longest)[:6]:
        lengths = list(range(1, opener.longest[number] + 1))
        walks = walks_of(opener, number, lengths)
        limit = 3 * walks.num_microbatches * least_sum(walks)
        if not np.isfinite(limit):
            continue
        closed = close_lengths(walks, limit, lambda: False, 1)
        for order, layers in closed.found:
            whole = opener.whole_layers(number, order, layers)
            if whole is None or not opener.is_allowed(number, order):
                continue
            opener.best = None
            opener.judge_layers(number, order, whole)
            if opener.best is not None:
                at = opener.best[0] * 1e3 * (1 + 1e-9)
                again = close_lengths(walks_of(opener, number, [len(order)]), at, lambda: False, 2)
                assert not again.closed[0], (number, order)


@pytest.mark.slow
def test_lengths_held_against_limits_change_no_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(21, most_layers=3).model_copy(update={"target": "flagscale"})
    monkeypatch.setattr(sequences, "MOST_LISTED", 0)
    monkeypatch.setattr(listing, "MOST_BEGUN", 0)
    both = []
    for limits in (bounding.LIMITS, ()):
        monkeypatch.setattr(bounding, "LIMITS", limits)
        monkeypatch.setattr(bounding, "LIMITS_OF_FAR", limits)
        monkeypatch.setattr(bounding, "LIMITS_OF_ONE", limits)
        monkeypatch.setattr(bounding, "LIMITS_OF_FEW", limits)
        result = MeshSearch(problem, None).run()
        assert result.termination == "optimal" and result.evaluation is not None
        both.append(result.evaluation.step_s)
    assert both[0] == pytest.approx(both[1], rel=1e-9)


@pytest.fixture(scope="module")
def searched() -> MeshOpener:
    """The parts of a small problem that was searched."""
    search = MeshSearch(random_problem(7, most_layers=6).model_copy(update={"target": "flagscale"}), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "MOST_LISTED", 0)
        patch.setattr(listing, "MOST_BEGUN", 0)
        search.run()
    assert isinstance(search.opener, MeshOpener)
    return search.opener


@pytest.mark.slow
@pytest.mark.parametrize(
    "measures", [(SUM,), (SUM, FOLLOW), (SUM, SLOWEST), (SUM, EXCESS), (SUM, PACE), closing.MEASURES]
)
def test_brackets_cut_by_any_measures_close_no_best_plan(
    searched: MeshOpener, measures: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "MEASURES", measures)
    opener = searched
    assert opener.best is not None
    step_s, number, order = opener.best
    walks, at_ms = walks_of(opener, number, [len(order)]), step_s / MS * (1 + 1e-9)
    assert not close_lengths(walks, at_ms, lambda: False, 12).closed[0]
    assert close_lengths(walks, 0.9 * step_s / MS, lambda: False, 12).closed[0]


@pytest.mark.slow
def test_finer_ticks_close_what_coarse_ones_gave_up(
    searched: MeshOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline of all layers that coarse ticks let be left its length open for good."""
    monkeypatch.setattr(closing, "TICKS", 12)
    opener = searched
    assert opener.best is not None
    step_s, number, order = opener.best
    walks = walks_of(opener, number, [len(order)])
    closed = [close_lengths(walks, 0.9 * step_s / MS, lambda: False, h).closed[0] for h in (0, 8)]
    assert closed == [False, True]
    looks = iter([False, True])
    cut = close_lengths(walks, 0.9 * step_s / MS, lambda: next(looks, True), 8)
    assert not cut.closed[0] and cut.found == () and next(looks, None) is None


@pytest.mark.slow
def test_ticks_grow_no_finer_than_memory_lets_them(
    searched: MeshOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bracket that a plan keeps open asked for finer ticks with each halving, up to all memory."""
    values = list[float]()

    def made(walks: MeshWalks, limit: float, brackets: Brackets, tick: float, *more: object) -> Holding:
        values.append(len(brackets) * NUM_LAYERS * walks.longest * limit / tick)
        return Holding(walks, limit, brackets, tick, *more)  # type: ignore[arg-type]

    most = 200_000
    monkeypatch.setattr(closing, "MOST_VALUES", most)
    monkeypatch.setattr(closing, "OFF", 0.0)
    monkeypatch.setattr(closing, "Holding", made)
    assert searched.best is not None
    step_s, number, order = searched.best
    at_ms = step_s / MS * (1 + 1e-9)
    assert not close_lengths(walks_of(searched, number, [len(order)]), at_ms, lambda: False, 30).closed[0]
    assert len(values) > 3 and max(values[1:]) <= most < closing.FINER ** len(values) * values[0]


@pytest.mark.parametrize(
    ("bounds", "shares"),
    [
        # A few far below the cutoff: half of the way alone, as to keep the cutoff takes long to tell.
        ((90.0, 91.0, 92.0), (0.5,)),
        ((90.0,), (0.5,)),
        # Near it, or many: the cutoff first.
        ((98.0, 98.5, 99.0), (1.0, 0.5)),
        ((98.0,), (0.7, 0.7)),
        # Short of it there is nothing to gain.
        ((99.7,), (1.0, 1.0)),
        ((93.0,) * 9, (1.0, 0.5)),
        ((90.0,) * 9, (1.0, 0.5, 0.25)),
    ],
)
def test_lengths_far_below_the_cutoff_are_first_asked_what_takes_little(
    monkeypatch: pytest.MonkeyPatch, bounds: tuple[float, ...], shares: tuple[float, ...]
) -> None:
    """A few lengths were held against the cutoff at once: ten times as long, and none of them closed."""
    asked = []

    def close_none(walks: list[int], limit: float, *_: object) -> closing.Closed:
        asked.append(limit)
        return closing.Closed(np.zeros(len(walks), dtype=np.bool_), (), None)

    monkeypatch.setattr(bounding, "bound_by_walks", lambda *_: (np.array(bounds), ()))
    monkeypatch.setattr(bounding, "close_lengths", close_none)
    lengths = list(range(1, len(bounds) + 1))
    edges = np.zeros(len(bounds)), 100.0
    learned = bounding.Learned()
    bounding.bound_lengths(
        lambda kept: kept,  # type: ignore[arg-type, return-value]
        lengths,
        edges,
        lambda: False,
        0,
        learned,
        is_whole=False,
    )
    least = min(bounds)
    assert asked == pytest.approx([least + share * (100.0 - least) for share in shares])


@pytest.mark.parametrize(
    ("bound", "work", "shares"),
    [
        # What took little is followed by the cutoff, for the next length at once.
        (97.5, bounding.LITTLE_WORK, [(0.7, 1.0), (1.0,)]),
        (97.5, bounding.LITTLE_WORK + 1, [(0.7, 0.91), (0.7, 0.91)]),
        # Far below the cutoff it is not, as to keep that takes longer.
        (93.0, bounding.LITTLE_WORK, [(0.5,), (0.5,)]),
    ],
)
def test_lengths_after_those_that_took_little_are_held_against_the_cutoff(
    monkeypatch: pytest.MonkeyPatch, bound: float, work: int, shares: list[tuple[float, ...]]
) -> None:
    asked = list[float]()

    def close_all(_: SimpleNamespace, limit: float, *__: object) -> closing.Closed:
        asked.append(limit)
        return closing.Closed(np.ones(1, dtype=np.bool_), (), None)

    monkeypatch.setattr(bounding, "bound_by_walks", lambda *_: (np.array([bound]), ()))
    monkeypatch.setattr(bounding, "close_lengths", close_all)
    learned = bounding.Learned()
    for length, share in enumerate(shares):
        asked.clear()
        bounding.bound_lengths(
            lambda _: SimpleNamespace(work=work),  # type: ignore[arg-type, return-value]
            [length],
            (np.zeros(1), 100.0),
            lambda: False,
            0,
            learned,
            is_whole=True,
        )
        assert asked == pytest.approx([bound + one * (100.0 - bound) for one in share])


def test_a_slower_stage_is_asked_for_without_the_pass_known_of_another() -> None:
    """The stage with the long pass may be too fast to be the slower one: its pass says nothing of that."""
    brackets = Brackets.of_sums(np.zeros(1), np.ones(1)).cut(np.array([PACE]), np.array([5.0]))
    brackets = brackets.cut(np.full(2, SLOWEST), np.full(2, 7.0))
    assert brackets.edges[PACE].tolist() == [[0.0, 0.0, 5.0, 0.0], [5.0, 5.0, np.inf, np.inf]]
    assert brackets.edges[SLOWEST].tolist() == [[0.0, 7.0, 0.0, 7.0], [7.0, np.inf, 7.0, np.inf]]
