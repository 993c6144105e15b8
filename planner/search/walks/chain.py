"""Orders of classes as walks from stage to stage, over states that say what a hop and a stage cost.

A state says what a stage must know of those before it: its class, its place in the run of that class (stages
of a run are packed on hosts from the start of one, `planner.cost.communication.hops`), and the hop that leads
to it. Where sends block, the time of a stage grows with the hops on both sides of it, so that stages are told
apart by class and by the sum of those two: their *kind*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from planner.cost.communication.hops import hops_inside_host
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
    kind_wait_ms: Floats
    """[kind] what a stage waits between a backward and a forward."""
    may_end: NDArray[np.bool_]
    """[state] whether the class has changed often enough for the last stage."""
    new_hosts: Ints
    """[state] hosts that the stage is the first of its run to use."""


def build_chain(
    hops_ms: Floats,
    inside_ms: Floats,
    stage_size: int,
    chips_per_node: Sequence[int],
    least_changes: int,
    *,
    sends_block: bool,
    waits: bool = False,
    keeps_order: bool = False,
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
    waits
        Whether a stage waits for its sends between a backward and a forward (`formulations.pipeline_rows`).
    keeps_order
        Whether no class comes again behind a later one.
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
    kinds: dict[tuple[int, float, float], int] = {}
    done = 0
    while done < len(states):
        c, place, entered_ms, changes = states[done]
        for to in range(c if keeps_order else 0, num_classes):
            stays = to == c and inside[c][place]
            hop = float(inside_ms[c] if stays else hops_ms[c, to])
            ahead = (place + 1) % len(inside[c]) if to == c else 0
            target = state_of(to, ahead, hop, changes + (to != c))
            blocked = entered_ms + hop if sends_block else 0.0
            kind = c, blocked, entered_ms if waits else 0.0
            steps.append((done, target, hop, kinds.setdefault(kind, len(kinds))))
        done += 1
    ends = [(c, entered, entered if waits else 0.0) for c, _, entered, _ in states]
    last_kind = [kinds.setdefault(kind, len(kinds)) for kind in ends]
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
        kind_class=np.array([c for c, _, _ in kinds]),
        kind_blocked_ms=np.array([blocked for _, blocked, _ in kinds]),
        kind_wait_ms=np.array([wait for _, _, wait in kinds]),
        may_end=np.array([changes >= least_changes for _, _, _, changes in states]),
        new_hosts=np.array([_new_hosts(place, stage_size, chips_per_node[c]) for c, place, _, _ in states]),
    )


def _inside_run(stage_size: int, chips: int) -> tuple[bool, ...]:
    """Whether the hop behind each place of a run stays in its host, over one period of the packing."""
    period = chips // gcd(stage_size, chips)
    return hops_inside_host([0] * (period + 1), stage_size, [chips])[:period]


def _new_hosts(place: int, stage_size: int, chips: int) -> int:
    """Hosts that stages up to a place of a run use, less those that stages before it use."""
    return -(-(place + 1) * stage_size // chips) + (-place * stage_size // chips)


@dataclass(frozen=True)
class Counter:
    """What a walk has behind it: stages, and hosts, of each class; or one point that says nothing."""

    points: tuple[Ints, ...]
    """Of every stage, [point, what is counted]: up to it."""
    before: tuple[Ints, ...]
    """Of every stage, [point, step]: row of the point before, if the stage adds that step; -1 for none."""
    may_end: NDArray[np.bool_]
    """[point] of the last stage: whether there is as much of everything as there should be."""
    step_of_state: Ints
    """[state of the chain] what a stage in it adds."""
    exact: bool


def count_nothing(num_stages: int, chain: Chain) -> Counter:
    """A counter that lets every walk pass."""
    point, step = np.zeros((1, 1), dtype=np.int64), np.zeros_like(chain.class_of_state)
    return Counter(
        (point,) * num_stages, (point,) * num_stages, np.ones(1, dtype=np.bool_), step, exact=False
    )


def count_classes(num_stages: int, chain: Chain, fewest: Sequence[int], most: Sequence[int]) -> Counter:
    """Every number of stages on each class up to `most`, and at the end no less than `fewest`."""
    steps = tuple(map(tuple, np.eye(len(most), dtype=np.int64).tolist()))
    return _counter(num_stages, steps, chain.class_of_state, tuple(fewest), tuple(most))


def count_hosts(
    num_stages: int, chain: Chain, fewest: Sequence[int], most: Sequence[int], hosts: Sequence[int]
) -> Counter:
    """The same, and no more hosts of each class than there are.

    Several runs of a class may need more hosts than one run of as many stages, as each begins a host anew.
    """
    classes = len(most)
    unit = np.eye(classes, dtype=np.int64)
    adds = np.hstack([unit[chain.class_of_state], unit[chain.class_of_state] * chain.new_hosts[:, None]])
    steps, step_of_state = np.unique(adds, axis=0, return_inverse=True)
    limits = tuple(int(k) for k in (*most, *hosts))
    least = (*(int(k) for k in fewest), *(0,) * classes)
    return _counter(num_stages, tuple(map(tuple, steps.tolist())), step_of_state.reshape(-1), least, limits)


def _counter(
    num_stages: int,
    steps: tuple[tuple[int, ...], ...],
    step_of_state: Ints,
    fewest: tuple[int, ...],
    most: tuple[int, ...],
) -> Counter:
    points, before = _lattice(num_stages, steps, most)
    may_end: NDArray[np.bool_] = np.all(points[-1] >= np.array(fewest), axis=1)
    return Counter(points, before, may_end, step_of_state, exact=True)


@lru_cache(maxsize=64)
def _lattice(
    num_stages: int, steps: tuple[tuple[int, ...], ...], most: tuple[int, ...]
) -> tuple[tuple[Ints, ...], tuple[Ints, ...]]:
    """Points up to `most` that so many steps reach, and from where, as in `Counter`."""
    limits, adds = np.array(most), np.array(steps, dtype=np.int64)
    radix = np.cumprod([1, *(limits + 1)[::-1]])[:-1][::-1]
    level = np.zeros((1, len(most)), dtype=np.int64)
    points, before = [], []
    for _ in range(num_stages):
        reached = (level[:, None, :] + adds).reshape(-1, len(most))
        reached = reached[(reached <= limits).all(axis=1)]
        ahead = np.unravel_index(np.unique(reached @ radix), limits + 1)
        codes, level = level @ radix, np.stack(ahead, axis=1).astype(np.int64)
        came = level[:, None, :] - adds
        row = np.searchsorted(codes, came @ radix)
        found = (came >= 0).all(axis=2) & np.isin(came @ radix, codes)
        points.append(level)
        before.append(np.where(found, row, -1))
    return tuple(points), tuple(before)
