"""Orders of classes as walks from stage to stage, over states that say what a hop and a stage cost.

A state says what a stage must know of those before it: its class, its place in the run of that class
(stages of a run are packed on hosts from the start of one, `planner.cost.hops`), and the hop that leads to
it. Where sends block, the time of a stage grows with the hops on both sides of it, so that stages
are told apart by class and by the sum of those two: their *kind*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from planner.cost.hops import hops_inside_host
from planner.cost.prices import Floats

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Chain:
    """States of a walk, and its steps from stage to stage."""

    class_of_state: Ints
    first_state: Ints
    """[class] state of the first stage."""
    source: Ints
    """[step] state that it leaves; one more step, the last, is a dummy."""
    hop_ms: Floats
    """[step]"""
    kind: Ints
    """[step] kind of the stage that it leaves."""
    last_kind: Ints
    """[state] kind of the last stage, which no hop follows."""
    into: Ints
    """[state, k] steps that lead to a state, filled up with the dummy."""
    kind_class: Ints
    kind_blocked_ms: Floats
    """[kind] what the hops beside it add to a stage where sends block."""
    may_end: NDArray[np.bool_]
    """[state] whether the class has changed often enough for the last stage."""


def build_chain(
    hops_ms: Floats,
    inside_ms: Floats,
    stage_size: int,
    chips_per_node: Sequence[int],
    least_changes: int,
    *,
    sends_block: bool,
) -> Chain:
    """The walk over some classes.

    Parameters
    ----------
    hops_ms
        [class from, class to] over the network.
    inside_ms
        [class] within a host.
    least_changes
        The class changes so often at least along the pipeline.
    """
    num_classes = len(inside_ms)
    inside = [_inside_run(stage_size, chips) for chips in chips_per_node]
    index: dict[tuple[int, int, float, int], int] = {}
    steps: list[tuple[int, int, float, int]] = []
    states: list[tuple[int, int, float, int]] = []

    def state_of(c: int, place: int, entered_ms: float, changes: int) -> int:
        key = (c, place, entered_ms if sends_block else 0.0, min(changes, least_changes))
        if key not in index:
            index[key] = len(states)
            states.append(key)
        return index[key]

    first = [state_of(c, 0, 0.0, 0) for c in range(num_classes)]
    kinds: dict[tuple[int, float], int] = {}
    done = 0
    while done < len(states):
        c, place, entered_ms, changes = states[done]
        for to in range(num_classes):
            stays = to == c and inside[c][place]
            hop = float(inside_ms[c] if stays else hops_ms[c, to])
            ahead = (place + 1) % len(inside[c]) if to == c else 0
            target = state_of(to, ahead, hop, changes + (to != c))
            blocked = entered_ms + hop if sends_block else 0.0
            steps.append((done, target, hop, kinds.setdefault((c, blocked), len(kinds))))
        done += 1
    last_kind = [kinds.setdefault((c, entered), len(kinds)) for c, _, entered, _ in states]
    into: list[list[int]] = [[] for _ in states]
    for number, (_, target, _, _) in enumerate(steps):
        into[target].append(number)
    width = max((len(found) for found in into), default=0) or 1
    return Chain(
        class_of_state=np.array([c for c, _, _, _ in states]),
        first_state=np.array(first),
        source=np.array([source for source, _, _, _ in steps] + [0]),
        hop_ms=np.array([hop for _, _, hop, _ in steps] + [np.inf]),
        kind=np.array([kind for _, _, _, kind in steps] + [0]),
        last_kind=np.array(last_kind),
        into=np.array([found + [len(steps)] * (width - len(found)) for found in into]),
        kind_class=np.array([c for c, _ in kinds]),
        kind_blocked_ms=np.array([blocked for _, blocked in kinds]),
        may_end=np.array([changes >= least_changes for _, _, _, changes in states]),
    )


def _inside_run(stage_size: int, chips: int) -> tuple[bool, ...]:
    """Whether the hop behind each place of a run stays in its host, over one period of the packing."""
    period = chips // gcd(stage_size, chips)
    return hops_inside_host([0] * (period + 1), stage_size, [chips])[:period]


@dataclass(frozen=True)
class Counter:
    """How many stages of each class a walk has behind it: points by their sum, or one that says nothing."""

    points: tuple[Ints, ...]
    """Of every stage, [point, class]: stages up to it."""
    before: tuple[Ints, ...]
    """Of every stage, [point, class]: row of the point before, if the stage has that class; -1 for none."""
    may_end: NDArray[np.bool_]
    """[point] of the last stage: whether each class has as many stages as it should."""
    exact: bool


def count_nothing(num_stages: int, num_classes: int) -> Counter:
    """A counter that lets every walk pass."""
    point = np.zeros((1, num_classes), dtype=np.int64)
    return Counter((point,) * num_stages, (point,) * num_stages, np.ones(1, dtype=np.bool_), exact=False)


@lru_cache(maxsize=64)
def count_classes(num_stages: int, fewest: tuple[int, ...], most: tuple[int, ...]) -> Counter:
    """Every number of stages on each class up to `most`, and at the end no less than `fewest`."""
    limits = np.array(most)
    grids = np.meshgrid(*[np.arange(limit + 1) for limit in most], indexing="ij")
    points = np.stack(grids, axis=-1).reshape(-1, len(most))
    sums = points.sum(axis=1)
    radix = np.cumprod([1, *(limits + 1)[::-1]])[:-1][::-1]
    row_of = np.full(len(points) + 1, -1)
    levels, before = [], []
    for i in range(num_stages + 1):
        level = points[sums == i]
        codes = level[:, None, :] - np.eye(len(most), dtype=np.int64)
        code = np.where((codes >= 0).all(axis=2), codes @ radix, len(points))
        if i:
            levels.append(level)
            before.append(row_of[code])
        row_of = np.full(len(points) + 1, -1)
        row_of[level @ radix] = np.arange(len(level))
    return Counter(tuple(levels), tuple(before), (levels[-1] >= np.array(fewest)).all(axis=1), exact=True)
