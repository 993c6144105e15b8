"""Lower bounds on the step time of many outer choices at once, before any program is solved.

A group is a row of degrees with a number of stages on each class; the order of the classes is open.
Its bound holds for every order, every whole or fractional split of the layers and any recomputation.
With tau the time of the slowest stage, Sigma the sum over all stages, C the sum of all sends:

    (paced)   T >= (m - p - 1) tau + 2 Sigma + 2 C               if m >= p + 1
    (path)    T >= Sigma + (m - 1) max_s max(f[s], b[s]) + 2 C
    (window)  T >= (floor((m - 1) / p) + 1) (Sigma + 2 C)
    (work)    T >= m tau
    (hop)     T >= (J + 2) (t[s] + t[s+1] + 2 c[s]),  J = floor((m - 1 - p) / 2),  if m >= p + 1

paced is proved in `formulations.stage_selection` (tighten_bottleneck); path is the row (window) for
m <= q + 1, and for more micro-batches follows from the row (partial, e = s): (m - 1) t - q f >= (m - 1) b.
window and hop are the rows (window) of stage 0 and (partial, e = s + 1), weakened to q = p - 1.
tau cannot be less than what all stages reach together, Sigma not less than the layers on the fastest
stages that tau lets take them, one on each stage that must have one; Sigma falls as tau rises, piecewise
linearly and convexly, so the least of the first two over tau is at a breakpoint. (hop) counts for the slow
hops between classes, of which there are at least one fewer than classes: the two stages at such a hop can
hold less than others. The longest of these joins all classes in use (`planner.search.hop_bounds`): (hop)
counts with it, and where sends block, tau is no less, as it lengthens a stage on either side.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.bound_data import BoundData
from planner.search.hop_bounds import joining_hop_s, least_sends, slow_hop_bounds

BLOCK = 4096
"""Pairs whose bounds are worked out at once; half a million together take five times as long."""


def group_bounds(
    data: BoundData,
    choice: NDArray[np.int64],
    num_microbatches: NDArray[np.int64],
    counts: NDArray[np.int64],
    least_bottleneck_s: Floats | None = None,
    sends_s: Floats | None = None,
) -> Floats:
    """Bound on the step time of every group [s].

    Parameters
    ----------
    choice, num_microbatches
        Arrays [group].
    counts
        [group, node_class] stages on each class.
    least_bottleneck_s
        [group] a better bound on the slowest stage, where one is known.
    sends_s
        [group] sum of all hops, where the order is known.
    """
    used = counts > 0
    layer = np.where(used, data.layer_s[choice], np.inf)
    embedding = np.where(used, data.embedding_s[choice] / data.layer_s[choice], np.inf).min(axis=1)
    head = np.where(used, data.head_s[choice] / data.layer_s[choice], np.inf).min(axis=1)
    rate = np.where(used, counts / data.layer_s[choice], 0.0)
    same_s, cross_s = _hops(data, choice, used)
    same, changes = counts - used, used.sum(axis=1) - 1
    sends = (same * same_s).sum(axis=1) + changes * cross_s
    # Layers that fit into the time that sends block: each blocks its sender forth, its receiver back.
    blocked = np.zeros(len(choice))
    if data.sends_block:
        slowest = np.where(used, data.layer_s[choice], 0.0).max(axis=1)
        blocked = 2 * np.where(used, same * same_s / data.layer_s[choice], 0.0).sum(axis=1)
        blocked = np.maximum(blocked + 2 * changes * cross_s / slowest, 0.0)
    tau = (data.num_layers[choice] + embedding + head + blocked) / rate.sum(axis=1)
    stages = counts.sum(axis=1)
    longest_s = joining_hop_s(data.hop_s[choice], counts, stages, used)
    if data.sends_block:
        tau = np.maximum(tau, longest_s)
    if least_bottleneck_s is not None:
        tau = np.maximum(tau, least_bottleneck_s)
    sends = sends + longest_s - np.where(changes > 0, cross_s, 0.0) if sends_s is None else sends_s
    ends = _least(used, data.embedding_s[choice]) + _least(used, data.head_s[choice])
    ends = ends + (2 * sends if data.sends_block else 0.0)
    delays = np.zeros_like(sends) if data.sends_block else sends
    pipeline = _pipeline_bound(
        data, choice, used, layer, counts, rate, tau, ends, delays, num_microbatches, stages
    )
    slow = slow_hop_bounds(data.num_layers[choice], layer, used, rate, longest_s, num_microbatches, stages)
    pipeline = np.maximum(pipeline, slow)
    follow = _least(used, data.fixed_s[choice])
    follow = follow + _least(used, data.optimizer_s[choice]) * data.num_layers[choice] / stages
    bound: Floats = pipeline + _least(used, data.tail_s[choice]) + follow
    return bound


def _hops(data: BoundData, choice: NDArray[np.int64], used: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Least hop within each class [group, node_class] and between two used classes [group]; 0 without."""
    hop_s = data.hop_s[choice]
    num_classes = used.shape[1]
    pair = used[:, :, None] & used[:, None, :] & ~np.eye(num_classes, dtype=np.bool_)
    cross = np.where(pair, hop_s, np.inf).min(axis=(1, 2))
    cross = np.where(np.isfinite(cross), cross, 0.0)
    same = np.where(used, np.diagonal(hop_s, axis1=1, axis2=2), 0.0)
    return same, cross


def _least(used: NDArray[np.bool_], values: Floats) -> Floats:
    least: Floats = np.where(used, values, np.inf).min(axis=1)
    return least


def _pipeline_bound(
    data: BoundData,
    choice: NDArray[np.int64],
    used: NDArray[np.bool_],
    layer: Floats,
    counts: NDArray[np.int64],
    rate: Floats,
    tau: Floats,
    ends: Floats,
    sends: Floats,
    num_microbatches: NDArray[np.int64],
    stages: NDArray[np.int64],
) -> Floats:
    """Least over the time of the layers on the slowest stage of the largest of the four rows.

    All four are convex in it, and linear between breakpoints; beyond the last none falls. `tau` is what
    the slowest stage needs at least, embedding, head and sends included.
    """
    num_layers = data.num_layers[choice]
    widest = np.where(np.isfinite(layer), layer, 0.0).max(axis=1)
    slack = (data.slack_layers[choice] * widest)[:, None]
    longer = _least(used, data.longer_fraction[choice])[:, None]
    least = num_layers / rate.sum(axis=1)
    order = np.argsort(layer, axis=1, kind="stable")
    layer = np.take_along_axis(layer, order, axis=1)
    layer = np.where(np.isfinite(layer), layer, 0.0)
    counts = np.take_along_axis(counts, order, axis=1)
    rate = np.take_along_axis(rate, order, axis=1)
    # The slowest stages are those that need no layer, if there are any.
    empty = np.where(stages > 1, data.num_empty[choice], 0)[:, None]
    slower = stages[:, None] - np.cumsum(counts, axis=1)
    needed = counts - np.clip(empty - slower, 0, counts)
    # Breakpoint j: the j + 1 fastest classes hold all layers but one for each slower stage that needs it.
    spare = num_layers[:, None] - (needed.sum(axis=1)[:, None] - np.cumsum(needed, axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        breakpoints = np.where(counts > 0, spare / np.cumsum(rate, axis=1), 0.0)
    taus = np.concatenate([least[:, None], tau[:, None], breakpoints], axis=1)
    taus = np.maximum(np.concatenate([taus, tau[:, None] / (2 * longer)], axis=1), least[:, None])
    held = np.minimum(taus[:, :, None] * rate[:, None, :], num_layers[:, None, None])
    held = np.maximum(held, counts[:, None, :])
    # Fill the fastest classes first, one layer a stage that needs it being taken everywhere.
    left = np.broadcast_to(np.maximum(num_layers - needed.sum(axis=1), 0.0)[:, None], taus.shape)
    total = np.broadcast_to((needed * layer).sum(axis=1)[:, None], taus.shape).copy()
    for c in range(counts.shape[1]):
        more = np.minimum(np.maximum(held[:, :, c] - needed[:, None, c], 0.0), left)
        total += more * layer[:, None, c]
        left = left - more
    total = np.maximum(total - slack, 0.0) + ends[:, None]
    m, p, hops = num_microbatches[:, None], stages[:, None], 2 * sends[:, None]
    slowest = np.maximum(taus, tau[:, None])
    paced = np.where(m >= p + 1, (m - p - 1) * slowest + 2 * total + hops, 0.0)
    path = total + (m - 1) * np.maximum(longer * taus, tau[:, None] / 2) + hops
    window = ((m - 1) // p + 1) * (total + hops)
    rows = np.stack([paced, path, window, m * slowest])
    sequence = np.argsort(taus, axis=1, kind="stable")
    return least_of_largest(np.take_along_axis(rows, sequence[None], axis=2))


def least_of_largest(rows: Floats) -> Floats:
    """Least of the largest of several functions, [row, group, breakpoint] linear in between -> [group].

    On a piece it lies at an end, or where two of them cross.
    """
    best = rows.max(axis=0).min(axis=1)
    left, right = rows[:, :, :-1], rows[:, :, 1:]
    for a, b in combinations(range(len(rows)), 2):
        before, after = left[a] - left[b], right[a] - right[b]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = before / (before - after)
        crossing = np.where((share > 0) & (share < 1), share, 0.0)
        there = (left + crossing * (right - left)).max(axis=0)
        best = np.minimum(best, there.min(axis=1))
    result: Floats = best
    return result


def relaxed_bounds(
    data: BoundData,
    choice: NDArray[np.int64],
    num_microbatches: NDArray[np.int64],
    max_stages: NDArray[np.int64],
    stages: NDArray[np.int64],
    available: NDArray[np.bool_] | None = None,
    least_bottleneck_s: Floats | None = None,
    limits: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> Floats:
    """Bound over all groups of a row of degrees with so many stages, array [pair] in seconds.

    As if the fastest classes took all stages they can hold: a faster class in the place of a slower
    one lowers tau and Sigma, and what follows is taken from the cheapest class. Where no class holds all
    stages there are hops between classes, of the least between any two. `available` tells which
    classes may take part where that is more than those with stages of their own, [pair, node_class];
    `least_bottleneck_s` a better bound on the slowest stage, where one is known, [pair]; `limits` the fewest
    and the most stages of each class, where `max_stages` are the fastest that they allow, [pair, node_class].
    """
    if available is None:
        available = max_stages > 0
    least = np.zeros(len(choice)) if least_bottleneck_s is None else least_bottleneck_s
    fewest, most = (np.zeros_like(max_stages), max_stages) if limits is None else limits
    blocks = [slice(first, first + BLOCK) for first in range(0, len(choice), BLOCK)]
    bounds = [
        _relaxed_block(
            data,
            choice[b],
            num_microbatches[b],
            max_stages[b],
            stages[b],
            available[b],
            least[b],
            (fewest[b], most[b]),
        )
        for b in blocks
    ]
    return np.concatenate(bounds) if bounds else np.zeros(0)


def _relaxed_block(
    data: BoundData,
    choice: NDArray[np.int64],
    num_microbatches: NDArray[np.int64],
    max_stages: NDArray[np.int64],
    stages: NDArray[np.int64],
    available: NDArray[np.bool_],
    least_bottleneck_s: Floats,
    limits: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> Floats:
    """`relaxed_bounds` of some pairs, few enough for their arrays to stay in cache."""
    layer = np.where(available, data.layer_s[choice], np.inf)
    order = np.argsort(layer, axis=1, kind="stable")
    room = np.take_along_axis(max_stages, order, axis=1)
    taken = np.clip(stages[:, None] - (np.cumsum(room, axis=1) - room), 0, room)
    counts = np.zeros_like(max_stages)
    np.put_along_axis(counts, order, taken, axis=1)
    used = counts > 0
    layer = np.where(used, layer, np.inf)
    rate = np.where(used, counts / np.where(used, layer, 1.0), 0.0)
    tau = np.maximum(data.num_layers[choice] / rate.sum(axis=1), least_bottleneck_s)
    longest_s, sends = least_sends(data.hop_s[choice], limits, available, stages)
    if data.sends_block:
        tau = np.maximum(tau, longest_s)
    ends, delays = (2 * sends, np.zeros_like(sends)) if data.sends_block else (np.zeros_like(sends), sends)
    pipeline = _pipeline_bound(
        data, choice, available, layer, counts, rate, tau, ends, delays, num_microbatches, stages
    )
    several = available & (longest_s > 0)[:, None]
    of_any = np.where(available, data.layer_s[choice], np.inf)
    slow = slow_hop_bounds(
        data.num_layers[choice], of_any, several, rate, longest_s, num_microbatches, stages
    )
    pipeline = np.maximum(pipeline, slow)
    follow = _least(available, data.fixed_s[choice])
    follow = follow + _least(available, data.optimizer_s[choice]) * data.num_layers[choice] / stages
    bound: Floats = pipeline + _least(available, data.tail_s[choice]) + follow
    return bound
