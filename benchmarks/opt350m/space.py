"""The judge's plans on a cluster, as arrays: what each stage may run on, and what that costs.

A stage is described by the *set* of kinds among its replicas. Sets of one kind are the meshes of a
launcher; the others mix chips, or degrees, inside one data-parallel group. Nothing else that the judge
reads of a stage's replicas matters, but who talks to whom and how many chips they take:

- talk: each replica of s has a partner in s+1 and the other way round, so the slowest send is at least
  max(max over k of min over l, max over l of min over k) of the pair's time. Equal where one side is of
  one kind.
- chips: D replicas of set K take at least D min over k in K of w[chip k] t[k] of the chips weighted by
  w >= 0. For counts that need not be whole these inequalities, for the weights in `WEIGHTS`, say all:
  what a set takes is piecewise linear and concave in w with breaks at ratios of two degrees, so that
  an excess shows at a break or at an end.
- degrees: drop from a set all but the least degree of each chip type. Its slowest computation, its
  memory, its chips and its first update do not grow; its least degree and the chip types that meet in
  its ring stay. For its sends the least over all sets that become the same is taken. So of 63 sets the
  15 with one degree a chip type do, as a relaxation: six of one kind, nine mixed.

Layers, order of the chip types, micro-batch size, D and S are free; chips may idle. Nodes of four
hold degrees of 1, 2 and 4 without waste, so counts of chips are all that a cluster limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from benchmarks.opt350m.judge import (
    BUCKET_BYTES,
    GLOBAL_BATCH_SIZE,
    LIMIT_BYTES,
    RUNTIME_BYTES,
    STATE_BYTES,
)
from benchmarks.opt350m.profile import (
    CHIPS,
    DEGREES,
    FLOAT_BYTES,
    KINDS,
    NUM_LAYERS,
    SIZES,
    SLOW,
    Kind,
    bandwidth_gb_per_s,
    profile,
)
from planner.units import GB, MB

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
KindSet = tuple[Kind, ...]

NUM_BLOCKS = NUM_LAYERS - 2
WEIGHTS = np.array([(1, 0), (0, 1), (1, 1), (1, 2), (2, 1), (1, 4), (4, 1)])
"""Weights of (fast, slow) chips in the surrogate limits."""


@dataclass(frozen=True)
class Space:
    """Costs by set of kinds; axes: size, kind set, first layer, end, data-parallel degree less one."""

    chips: tuple[int, int]
    """Fast and slow chips of the cluster."""
    sets: tuple[KindSet, ...]
    mixed: bool
    """Whether replicas of one stage may differ."""
    time_s: Floats
    """[size, set, first, end] forward + backward; inf where not measured."""
    update_s: Floats
    """[size, set]"""
    fits: Bools
    """[size, set, first, end, depth] whether it fits as the depth-th stage from the end."""
    send_s: Floats
    """[size, from, to] activations or their gradient, but those behind the head."""
    head_send_s: Floats
    """[size, from, to] what a stage that holds the head alone sends back."""
    sync_s: Floats
    """[dp, degree, chip, embedding, head, blocks] all-reduce of a stage."""
    cut: Ints
    """[set] index of the least degree."""
    link: Ints
    """[set] index of the chip whose network the ring uses."""
    uses: Ints
    """[set, weight] weighted chips that one replica takes at least."""
    capacity: Floats
    """[dp, weight] weighted chips that one of dp replicas may take."""
    microbatches: Ints
    """[size, dp]"""


def kind_sets(kinds: tuple[Kind, ...], *, mixed: bool) -> tuple[KindSet, ...]:
    """Each kind alone and, where stages may mix, each pair of both chip types."""
    alone = [(kind,) for kind in kinds]
    pairs = [(a, b) for a in kinds for b in kinds if mixed and a.chip != b.chip and a.chip != SLOW]
    return tuple(alone + pairs)


def space(chips: tuple[int, int], kinds: tuple[Kind, ...] = KINDS, *, mixed: bool = False) -> Space:
    """The plans of a cluster whose stages run on some kinds."""
    sets = kind_sets(kinds, mixed=mixed)
    degrees = np.arange(1, sum(chips) + 1)
    uses = [[min(weighted(kind, w) for kind in group) for w in WEIGHTS] for group in sets]
    costs = [_costs(size, sets) for size in SIZES]
    behind = [profile().output_bytes(layer, 1) for layer in (1, NUM_LAYERS - 1)]
    sends = [
        np.array([sends_s(size * bytes_, kinds, sets, mixed=mixed) for size in SIZES]) for bytes_ in behind
    ]
    return Space(
        chips=chips,
        sets=sets,
        mixed=mixed,
        time_s=np.array([time for time, _, _ in costs]),
        update_s=np.array([update for _, update, _ in costs]),
        fits=np.array([fit for _, _, fit in costs]),
        send_s=sends[0],
        head_send_s=sends[1],
        sync_s=sync_table_s(degrees),
        cut=np.array([DEGREES.index(min(kind.tensor_parallel for kind in group)) for group in sets]),
        link=np.array([int(any(kind.chip == SLOW for kind in group)) for group in sets]),
        uses=np.array(uses),
        capacity=(WEIGHTS @ np.array(chips))[None, :] / degrees[:, None] + 1e-9,
        microbatches=-(-GLOBAL_BATCH_SIZE // (np.array(SIZES)[:, None] * degrees[None, :])),
    )


def weighted(kind: Kind, weights: Ints) -> int:
    """Weighted chips of one replica."""
    return int(weights[CHIPS.index(kind.chip)]) * kind.tensor_parallel


def _costs(size: int, sets: tuple[KindSet, ...]) -> tuple[Floats, Floats, Bools]:
    """Time, update and fit of every set for one micro-batch size."""
    times = profile().times_s
    n = NUM_LAYERS + 1
    time = np.full((len(sets), n, n), np.inf)
    update = np.full(len(sets), np.inf)
    fits = np.zeros((len(sets), n, n, n), dtype=bool)
    for index, group in enumerate(sets):
        if all((kind, size) in times for kind in group):
            time[index] = np.max([spans(times[kind, size][:, :2].sum(axis=1)) for kind in group], axis=0)
            update[index] = max(times[kind, size][0, 2] for kind in group)
            fits[index] = np.all([_fits(kind, size) for kind in group], axis=0)
    return time, update, fits


def spans(values: Floats) -> Floats:
    """Sums over layers first .. end - 1, array [first, end]; negative below the diagonal."""
    until = np.concatenate([[0.0], np.cumsum(values)])
    sums: Floats = until[None, :] - until[:, None]
    return sums


def _fits(kind: Kind, size: int) -> Bools:
    """Whether layers fit on a kind, array [first, end, depth]."""
    floats = profile().floats[kind.tensor_parallel]
    depth = np.arange(NUM_LAYERS + 1)
    state = STATE_BYTES * spans(floats[:, 0])[:, :, None] + RUNTIME_BYTES[kind.tensor_parallel]
    kept = FLOAT_BYTES * size * spans(floats[:, 2])[:, :, None] * depth
    allowed: Bools = state + kept <= LIMIT_BYTES[kind.chip]
    return allowed


def sends_s(
    size_bytes: float, space_kinds: tuple[Kind, ...], sets: tuple[KindSet, ...], *, mixed: bool
) -> Floats:
    """Least that the slowest message between two sets takes, array [from, to].

    Where stages may mix, each set stands for all that leave it when larger degrees are dropped.
    """
    wholes = (
        [c for n in range(1, len(space_kinds) + 1) for c in combinations(space_kinds, n)] if mixed else sets
    )
    pair = np.array(
        [[profile().transfer_s(size_bytes, kind, other) for other in space_kinds] for kind in space_kinds]
    )
    member = np.array([[kind in group for kind in space_kinds] for group in wholes])
    onward = np.where(member[None, :, :], pair[:, None, :], np.inf).min(axis=2)
    back = np.where(member[None, :, :], pair.T[:, None, :], np.inf).min(axis=2)
    slowest_onward = np.where(member[:, :, None], onward[None, :, :], -np.inf).max(axis=1)
    slowest_back = np.where(member[:, :, None], back[None, :, :], -np.inf).max(axis=1).T
    times = np.maximum(slowest_onward, slowest_back)
    least = np.full((len(sets), len(sets)), np.inf)
    to = np.array([sets.index(least_degrees(group)) for group in wholes])
    np.minimum.at(least, (to[:, None], to[None, :]), times)
    return least


def least_degrees(group: KindSet) -> KindSet:
    """The least degree of each chip type in a set."""
    return tuple(
        min(kind for kind in group if kind.chip == chip) for chip in CHIPS if chip in {k.chip for k in group}
    )


def sync_table_s(degrees: Ints) -> Floats:
    """All-reduce of a stage, array [dp, degree, chip, embedding, head, blocks]; inf where no fit holds."""
    data = profile()
    params = data.floats[1][:, 0] * FLOAT_BYTES
    ends = np.array([0.0, 1.0])
    weights = (
        ends[:, None, None] * params[0]
        + ends[None, :, None] * params[-1]
        + np.arange(NUM_BLOCKS + 1)[None, None, :] * params[1]
    )
    table = np.zeros((len(degrees), len(DEGREES), len(CHIPS), *weights.shape))
    ring = degrees[:, None, None, None].astype(np.float64)
    for i, degree in enumerate(DEGREES):
        for j, chip in enumerate(CHIPS):
            fit = data.fits[Kind(chip, 1), Kind(chip, 1)]
            left = np.broadcast_to(weights / degree, (len(degrees), *weights.shape)).copy()
            while (left > 0).any():
                bucket = np.minimum(left, BUCKET_BYTES)
                share = np.where(bucket > 0, bucket, 1.0) / ring
                rate = bandwidth_gb_per_s(fit, np.log2(share / MB)) * GB
                time = np.where(rate > 0, 2 * (ring - 1) * share / np.where(rate > 0, rate, 1.0), np.inf)
                table[:, i, j] += np.where((bucket > 0) & (ring > 1), time, 0.0)
                left -= bucket
    return table
