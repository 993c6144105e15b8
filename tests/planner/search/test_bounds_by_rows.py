"""Bounds of coarse parts never exceed the rows that they are made of, for any order and split of the layers.

The rows of `planner.search.bounds` and `planner.search.virtual.bounds` are written out here anew over made-up
times: slow and free sends, leading layers that take longer or shorter, stages without a layer. A row is
often far below the step, so that a bound that claims too much may pass all other tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from planner.search.bound_data import BoundData
from planner.search.bounds import group_bounds, relaxed_bounds
from planner.search.virtual.bounds import virtual_bounds

Floats = np.ndarray


@dataclass(frozen=True)
class Times:
    """One row of degrees of a made-up model, and what bounds know of it; arrays [class] or [class, class]."""

    bounds: BoundData
    num_layers: int
    num_lead: int
    forward_share: Floats
    lead_ratio: Floats
    optimizer: Floats
    lead_optimizer: Floats


@dataclass(frozen=True)
class Stages:
    """Passes of a plan [stage], the sends between its stages [stage], and what follows the pipeline."""

    forward: Floats
    backward: Floats
    send: Floats
    follow: float


def made_up(seed: int) -> Times:
    rng = np.random.default_rng(seed)
    num, num_lead = int(rng.integers(1, 4)), int(rng.choice([0, 0, 1, 2]))
    num_layers = int(rng.integers(num_lead + 1, 9))
    layer = rng.uniform(0.5, 2.0, num)
    ratio = float(rng.choice([0.2, 0.8, 1.0, 2.5])) if num_lead else 1.0
    lead_ratio = ratio * (1 + rng.random(num) * (np.arange(num) > 0) * rng.choice([0.0, 1.0]))
    hop = rng.uniform(0.0, rng.choice([0.0, 0.3, 6.0]), (num, num))
    hop += np.where(np.eye(num, dtype=bool), 0.0, rng.choice([0.0, 4.0]))
    np.fill_diagonal(hop, np.minimum(np.diag(hop), hop.min()))
    share, optimizer = rng.uniform(0.1, 0.6, num), rng.uniform(0.0, rng.choice([0.0, 9.0]), num)
    lead_optimizer = optimizer * rng.choice([0.3, 1.0, 4.0])
    ends = rng.uniform(0.0, rng.choice([0.0, 1.0, 6.0]), (2, num))
    bounds = BoundData(
        num_layers=np.array([num_layers - num_lead * (1 - ratio)]),
        slack_layers=np.array([num_lead * max(1 - ratio, 0.0)]),
        layer_s=layer[None],
        longer_fraction=np.maximum(share, 1 - share)[None],
        embedding_s=ends[0][None],
        head_s=ends[1][None],
        optimizer_s=np.minimum(optimizer, lead_optimizer / ratio)[None],
        fixed_s=rng.uniform(0.0, 3.0, num)[None],
        tail_s=rng.uniform(0.0, 3.0, num)[None],
        hop_s=hop[None],
        sends_block=bool(rng.random() < 0.4),
        num_empty=np.array([0]),
    )
    return Times(bounds, num_layers, num_lead, share, lead_ratio, optimizer, lead_optimizer)


def splits(num_layers: int, least: list[int]) -> Iterator[list[int]]:
    """All ways to give every stage its least or more."""
    spare = num_layers - sum(least)
    for bars in itertools.combinations(range(spare + len(least) - 1), len(least) - 1) if spare >= 0 else ():
        more = np.diff([-1, *bars, spare + len(least) - 1]) - 1
        yield [n + int(k) for n, k in zip(least, more, strict=True)]


def stages_of(of: Times, order: tuple[int, ...], layers: list[int], virtual_stages: int = 1) -> Stages:
    """What a plan takes; a send that blocks lengthens its sender forth, and its receiver back."""
    data, at, p = of.bounds, np.array(order), len(order)
    n, lead = np.array(layers, dtype=float), np.where(np.arange(p) == 0, of.num_lead, 0)
    counted = n - lead + lead * of.lead_ratio[at]
    times = counted * data.layer_s[0, at]
    times[0] += data.embedding_s[0, order[0]]
    times[-1] += data.head_s[0, order[-1]]
    forward = of.forward_share[at] * times
    backward = times - forward
    send = data.hop_s[0, at, np.roll(at, -1)] if p > 1 else np.zeros(1)
    if virtual_stages == 1:
        send[-1] = 0.0
    if data.sends_block:
        forth = np.full(p, virtual_stages)
        forth[-1] -= 1
        forward, backward = forward + forth * send, backward + np.roll(forth * send, 1)
        send = np.zeros(p)
    optimizer = (n - lead) * of.optimizer[at] + lead * of.lead_optimizer[at]
    follow = float((data.fixed_s[0, at] + optimizer).max()) + float(data.tail_s[0, order[0]])
    return Stages(forward, backward, send, follow)


def plain_rows(one: Stages, m: int) -> float:
    """The rows of `bounds`, by its docstring."""
    t, p, hops = one.forward + one.backward, len(one.forward), 2 * float(one.send[:-1].sum())
    longer = np.maximum(one.forward, one.backward).max()
    rows = [t.sum() + (m - 1) * longer + hops, ((m - 1) // p + 1) * (t.sum() + hops), m * t.max()]
    if m >= p + 1:
        rows.append((m - p - 1) * t.max() + 2 * t.sum() + hops)
        rows += [((m - 1 - p) // 2 + 2) * (t[s] + t[s + 1] + 2 * one.send[s]) for s in range(p - 1)]
    return float(max(rows)) + one.follow


def virtual_rows(one: Stages, m: int, v: int) -> float:
    """The rows of `virtual_bounds`, by its docstring."""
    t, p = one.forward + one.backward, len(one.forward)
    behind = p - 1 - np.arange(p)
    sent = ((v - 1 + 2 * behind / p) * one.send).sum()
    rows = [m * t.max(), m / p * t.sum() + (behind * t).sum() / (p * v) + sent]
    if (looped := m - 2 * p) > 0:
        own = p + (looped - 2) / 3
        rows += [own * (t[s] + t[s + 1]) + 2 * (looped * v // 3) * one.send[s] for s in range(p - 1)]
    return float(max(rows)) + one.follow


def group_of(rng: np.random.Generator, num_classes: int, p: int) -> list[int]:
    return np.bincount(rng.integers(0, num_classes, p), minlength=num_classes).tolist()


def orders_of(counts: list[int]) -> set[tuple[int, ...]]:
    return set(itertools.permutations([c for c, k in enumerate(counts) for _ in range(k)]))


FEW, MANY = range(40), [pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 600)]


@pytest.mark.parametrize("seed", [*FEW, *MANY])
def test_no_bound_exceeds_the_rows_of_any_plan(seed: int) -> None:
    of, rng = made_up(seed), np.random.default_rng(seed)
    p, m = int(rng.integers(1, 5)), int(rng.choice([1, 2, 3, 4, 5, 6, 8, 11, 40]))
    p = min(p, of.num_layers - max(of.num_lead - 1, 0))
    counts = group_of(rng, len(of.forward_share), p)
    empty = [p > 1 and not of.num_lead and bool(rng.random() < 0.4), p > 1 and bool(rng.random() < 0.4)]
    least = [1] * p
    least[0], least[-1] = max(least[0] - empty[0], of.num_lead), least[-1] - empty[1]
    of = replace(of, bounds=replace(of.bounds, num_empty=np.array([sum(empty)])))
    plans = [
        (stages_of(of, order, layers), order)
        for order in orders_of(counts)
        for layers in splits(of.num_layers, least)
    ]
    best = min(plain_rows(one, m) for one, _ in plans)
    one, many = np.array([0]), np.array([m])
    group = float(group_bounds(of.bounds, one, many, np.array([counts]))[0])
    assert group <= best * (1 + 1e-12)
    room = np.array([[k + int(rng.integers(0, 2)) for k in counts]])
    assert relaxed_bounds(of.bounds, one, many, room, np.array([p]))[0] <= group * (1 + 1e-12)
    for order in orders_of(counts):
        own = [stages for stages, other in plans if other == order]
        tau = min(float((one.forward + one.backward).max()) for one in own)
        sends = float(of.bounds.hop_s[0, order[:-1], order[1:]].sum())
        known = np.array([tau]), np.array([sends])
        bound = float(group_bounds(of.bounds, one, many, np.array([counts]), *known)[0])
        assert bound <= min(plain_rows(stages, m) for stages in own) * (1 + 1e-12)


@pytest.mark.parametrize("seed", [*FEW, *MANY])
def test_no_bound_with_virtual_stages_exceeds_the_rows_of_any_plan(seed: int) -> None:
    of, rng = made_up(seed), np.random.default_rng(seed)
    p, fewest = int(rng.integers(2, 5)), int(rng.integers(2, 4))
    most, m = fewest + int(rng.integers(0, 2)), p * int(rng.choice([1, 2, 3, 4, 5, 9]))
    counts = group_of(rng, len(of.forward_share), p)
    room = [k + int(rng.integers(0, 2)) for k in counts]
    empty = bool(rng.random() < 0.4)
    of = replace(of, num_layers=max(of.num_layers, p * fewest))
    found = of.num_layers - of.num_lead + of.num_lead * float(of.lead_ratio.min())
    of = replace(of, bounds=replace(of.bounds, num_layers=np.array([found])))
    bests = dict.fromkeys(itertools.product((False, True), range(fewest, most + 1)), np.inf)
    for order in itertools.product(range(len(counts)), repeat=p):
        of_class = [order.count(c) for c in range(len(counts))]
        if any(k > limit for k, limit in zip(of_class, room, strict=True)):
            continue
        for v in range(fewest, most + 1):
            least = [v] * p
            if empty:
                least[0], least[-1] = v - 1, v - 1
            least[0] = max(least[0], v - 1 + of.num_lead)
            for layers in splits(of.num_layers, least):
                value = virtual_rows(stages_of(of, order, layers, v), m, v)
                for group in {of_class == counts, False}:
                    bests[group, v] = min(bests[group, v], value)
    fastest = np.argsort(of.bounds.layer_s[0], kind="stable")
    taken = np.zeros(len(counts), dtype=np.int64)
    for c in fastest:
        taken[c] = min(room[c], p - taken.sum())
    choice, many, blocks = np.array([0]), np.array([m]), of.bounds.sends_block
    used = np.array([counts]) > 0
    for low, high in {(fewest, most), *((v, v) for v in range(fewest, most + 1))}:
        limits = np.array([low]), np.array([high])
        more = {"sends_block": blocks, "empty_ends": np.array([empty])}
        group_s = virtual_bounds(
            of.bounds, choice, many, np.array([counts]), *limits, crosses=used.sum(axis=1) > 1, **more
        )
        pair_s = virtual_bounds(
            of.bounds,
            choice,
            many,
            taken[None],
            *limits,
            any_class=np.array([room]) > 0,
            crosses=np.array([max(room) < p]),
            **more,
        )
        for v in range(low, high + 1):
            assert group_s[0] <= bests[True, v] * (1 + 1e-6)
            assert pair_s[0] <= bests[False, v] * (1 + 1e-6)
