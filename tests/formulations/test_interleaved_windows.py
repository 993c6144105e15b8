"""Neighbouring stages of an interleaved pipeline: never above the events, exact where they are all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from formulations.interleaved_paths import schedule
from formulations.interleaved_windows import Dealings, Passes, passes, window_ends
from tests.formulations.test_interleaved_rows import Pipeline, random_pipeline, together, waits

REL = 1e-12


def window_end(x: Pipeline, s: int, width: int, least: float) -> float:
    """The bound (window) where the other stages take some part of their times at least."""
    outside = passes(s, s + width - 1, least * x.forward, least * x.backward, least * x.send)
    stages = [Dealings(x.forward[i : i + 1], x.backward[i : i + 1]) for i in range(s, s + width)]
    sends = [x.send[i : i + 1] for i in range(s, s + width - 1)]
    return float(window_ends(s, len(x.forward), stages, sends, outside, x.m)[0])


def windows_of(pipelines: Sequence[Pipeline], s: int, width: int, least: np.ndarray) -> np.ndarray:
    """The same of pipelines of one shape at once, with as many parts [part, pipeline]."""
    outside = [
        passes(s, s + width - 1, part * x.forward, part * x.backward, part * x.send)
        for parts in least
        for x, part in zip(pipelines, parts, strict=True)
    ]
    each = Passes(
        **{name: np.concatenate([vars(one)[name] for one in outside], axis=-1) for name in vars(outside[0])}
    )
    many = together([*pipelines] * len(least))
    stages = [Dealings(many.forward[:, i], many.backward[:, i]) for i in range(s, s + width)]
    sends = [many.send[:, i] for i in range(s, s + width - 1)]
    return window_ends(s, many.send.shape[1], stages, sends, each, many.m).reshape(least.shape)


def check(pipelines: Sequence[Pipeline], rng: np.random.Generator) -> list[float]:
    """No window exceeds the events, whatever is known of the others, and wider ones say no less, in pipelines
    of one shape; the largest pair over the events of each."""
    p, ends = len(pipelines[0].forward), np.array([x.ends[0] for x in pipelines])
    shares, narrower = np.ones(len(pipelines)), np.zeros((p + 1, len(pipelines)))
    for width in range(1, p + 1):
        least = np.stack([np.ones(len(pipelines)), rng.random(len(pipelines))])
        found = [windows_of(pipelines, s, width, least) for s in range(p - width + 1)]
        known, less = np.array(found).swapaxes(0, 1)
        assert (known <= ends * (1 + REL)).all(), pipelines
        assert (less <= known * (1 + REL)).all(), pipelines
        assert (known >= np.maximum(narrower[:-1], narrower[1:]) * (1 - REL)).all(), pipelines
        narrower = known
        shares = known.max(axis=0) / ends if width == 2 else shares
    assert known[0] == pytest.approx(ends, rel=REL), pipelines
    return shares.tolist()


@pytest.mark.slow
def test_no_window_exceeds_the_simulated_step_in_a_few_hundred_pipelines() -> None:
    rng = np.random.default_rng(31)
    shares = [share for _ in range(40) for share in check([random_pipeline(rng)], rng)]
    assert 0.9 < float(np.mean(shares)) < 1


def test_ways_of_one_micro_batch_taken_together_exceed_no_pipeline_and_tell_more() -> None:
    """The stages outside deal their times to chunks in one of some ways, each pass the least of all."""
    rng, gains = np.random.default_rng(35), []
    for _ in range(30):
        x = random_pipeline(rng)
        p = len(x.forward)
        s, width = int(rng.integers(p)), 1
        width += int(rng.integers(p - s))
        own, dealt = slice(s, s + width), []
        for _ in range(4):
            forward, backward = (rng.permuted(times, axis=1) for times in (x.forward, x.backward))
            forward[own], backward[own] = x.forward[own], x.backward[own]
            dealt.append(replace(x, forward=forward, backward=backward))
        each = [passes(s, s + width - 1, one.forward, one.backward, x.send) for one in dealt]
        least = Passes(**{name: np.min([vars(one)[name] for one in each], axis=0) for name in vars(each[0])})
        stages = [Dealings(x.forward[[i]], x.backward[[i]]) for i in range(s, s + width)]
        sends = [x.send[[i]] for i in range(s, s + width - 1)]
        apart = Passes.apart(least.forward, least.backward, least.after)
        ways = replace(least, both=least.first[-1] + np.concatenate([least.after[None], least.last]))
        found, of_ways, less = (
            float(window_ends(s, p, stages, sends, one, x.m)[0]) for one in (least, ways, apart)
        )
        assert less * (1 - REL) <= of_ways, x
        assert max(found, of_ways) <= min(float(one.ends[0]) for one in dealt) * (1 + REL), x
        gains.append(max(found, of_ways) / less)
    assert np.mean(gains) > 1.002 and max(gains) > 1.02


def test_first_and_last_micro_batch_taken_together_tell_of_stages_that_are_slow_one_way() -> None:
    """The others are slow forwards or backwards; the near miss, all of them slow forwards, tells no more."""
    own = [Dealings(np.array([[1.0, 3.0]]), np.array([[2.0, 6.0]]))]

    def gain(*slow: tuple[float, float]) -> float:
        ends, each = [], []
        for forward_ms, backward_ms in slow:
            forward, backward = np.full((8, 2), forward_ms), np.full((8, 2), backward_ms)
            forward[0], backward[0] = own[0].forward[0], own[0].backward[0]
            ends.append(float(Pipeline(forward, backward, np.zeros(8), 16).ends[0]))
            each.append(passes(0, 0, forward, backward, np.zeros(8)))
        least = Passes(**{name: np.min([vars(one)[name] for one in each], axis=0) for name in vars(each[0])})
        apart = replace(least, both=least.first[-1] + np.concatenate([least.after[None], least.last]))
        both, single = (float(window_ends(0, 8, own, [], one, 16)[0]) for one in (least, apart))
        assert both <= min(ends) * (1 + REL)
        return both / single

    assert gain((3.0, 2.0), (2.0, 3.0)) > 1.02
    assert gain((3.0, 2.0)) == 1


@pytest.mark.slow
def test_no_window_exceeds_the_simulated_step_twenty_thousand_times() -> None:
    rng, windows = np.random.default_rng(32), 0
    of_shape = defaultdict[tuple[int, ...], list[Pipeline]](list)  # whose windows have the same pieces
    while windows < 20_000:
        x = random_pipeline(rng)
        of_shape[(*x.forward.shape, x.m)].append(x)
        windows += len(x.forward) * (len(x.forward) + 1)
    for pipelines in of_shape.values():
        check(pipelines, rng)


def test_a_pair_sees_long_chunks_at_different_times() -> None:
    """Two stages of (3, 1) and (1, 3) beside each other; the near miss (3, 1) twice waits for nothing."""
    forward = np.ones((8, 2))
    forward[1], forward[2] = (3.0, 1.0), (1.0, 3.0)
    apart = Pipeline(forward, 2 * forward, np.zeros(8), 64)
    assert window_end(apart, 1, 2, 1.0) > max(1.2 * waits(apart), 0.99 * apart.ends[0])
    alike = forward.copy()
    alike[2] = alike[1]
    together = Pipeline(alike, 2 * alike, np.zeros(8), 64)
    assert window_end(together, 1, 2, 1.0) < 1.05 * waits(together)


def test_many_windows_at_once_are_each_what_they_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("formulations.interleaved_windows.BYTES_AT_ONCE", 1)
    monkeypatch.setattr("formulations.interleaved_windows.LEAST_AT_ONCE", 3)
    rng = np.random.default_rng(33)
    times = [Dealings(1 + rng.random((7, 2)), 1 + rng.random((7, 2))) for _ in range(3)]
    ones, sends = np.ones((4, 2)), list(rng.random((2, 7)))
    outside = passes(1, 3, ones, ones, np.ones(4))
    each = replace(outside, forward=outside.forward + rng.random(7), after=outside.after + rng.random(7))
    found = window_ends(1, 4, times, sends, each, 8)
    for i in range(7):
        alone = [Dealings(of.forward[[i]], of.backward[[i]]) for of in times]
        one = replace(each, forward=each.forward[:, [i]], after=each.after[[i]])
        assert window_ends(1, 4, alone, [send[[i]] for send in sends], one, 8)[0] == found[i]


@pytest.mark.parametrize("beyond", [-1e-3, -1e-6, -1e-12, 0.0, 1e-12, 1e-6, 1e-3])
def test_ends_in_single_precision_lie_on_their_side_of_a_limit(beyond: float) -> None:
    """Rounded ends alone would lie on the other side of limits that are as near as a millionth."""
    rng = np.random.default_rng(34)
    times = [Dealings(1 + rng.random((400, 2)), 1 + rng.random((400, 2))) for _ in range(3)]
    ones, sends = np.ones((4, 2)), list(rng.random((2, 400)))
    outside = passes(1, 3, ones, ones, np.ones(4))
    each = replace(outside, forward=outside.forward + rng.random(400), after=outside.after + rng.random(400))
    exact = window_ends(1, 4, times, sends, each, 64)
    limit = exact * (1 + beyond)
    told = window_ends(1, 4, times, sends, each, 64, limit)
    assert ((told <= limit) == (exact <= limit)).all()
    assert np.abs(told / exact - 1).max() < 1e-4
    is_far = abs(beyond) > 1e-4
    assert (told == exact).all() != is_far, "only those near the limit come again in full"


def test_a_window_of_three_sees_what_no_pair_does() -> None:
    """Two stages that are each long on one chunk, with a short one in between, never meet in a pair."""
    forward = np.ones((8, 2))
    forward[1], forward[3] = (3.0, 1.0), (1.0, 3.0)
    x = Pipeline(forward, 2 * forward, np.zeros(8), 64)
    pairs = max(window_end(x, s, 2, 1.0) for s in range(7))
    assert window_end(x, 1, 3, 1.0) > 1.09 * pairs


def test_the_schedule_lists_no_piece_before_what_it_waits_for() -> None:
    p, m, v = 3, 6, 2
    place = {piece: i for i, piece in enumerate(schedule(p, m, v, (0, 1, 2)))}
    assert len(place) == 2 * p * m * v
    for (s, back, k, j), i in place.items():
        virtual = k * p + s + (1 if back else -1)
        if 0 <= virtual < p * v:
            assert place[virtual % p, back, virtual // p, j] < i
        elif back:
            assert place[s, False, k, j] < i
