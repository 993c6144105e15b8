"""Better bounds of rows of degrees with a number of stages, for those that a first plan leaves open.

`planner.search.bounds` takes layers as divisible and knows of gradients and parameters that travel only what
no pass ever hides. Here stages hold whole layers, and what a layer's own pass cannot hide counts. Let stage j
run on class c, and hold n layers of the main kind, whose time, reduction and gathering there are l, r and g,
with f and b the passes of one and w the share of a pass that hides. Hops beside the stage that block it add
h[j] to its time t, at least h[c] each: one at either end of the pipeline, two between.

    (whole)    t >= n l + h[j]: a stage no slower than tau holds no more than (tau - h[j]) / l whole layers.
               The slowest stage takes at least the least tau at which so many stages hold all layers.
    (own)      T >= m t + z,   z = max(0, sum of its reductions - w times its backward) + tail
               >= n (m l + max(0, r - w b)) + m h[j] + tail
               Proof. Stage j does its work before its last reduction ends. What it has beside the n layers
               (leading layers, embedding, head, recomputation) adds m times its passes and its reduction, and
               hides no more than w <= 1 <= m times its backward: never less than nothing in all. What a hop
               blocks hides nothing. So (whole) holds with T - tail for tau, m l + max(0, r - w b) for l and
               m h for h.
    (follow)   What follows stage j is no less than n (o + max(0, g - w f)) - a[j], o the optimizer's time of
               a layer, a[j] what the passes of its embedding, head and leading layers hide beyond what they
               gather: zero between the ends. The longest of all is no less than their mean, nor than that of
               a stage of ceil(L / p) layers, which there is.

`less_s` is taken off z and off what follows a stage, where hops may hide that much beside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats, Prices
from planner.search.bound_data import BoundData
from planner.search.bounds import relaxed_bounds
from planner.search.kinds import LayerKinds, kinds_of
from planner.search.openings import Opener
from planner.search.space import Pairs
from planner.tolerances import COUNT_TOL

HALVINGS = 14
"""Halvings of the interval of the least time; its lower end is a valid bound."""

AT_ONCE = 4096
"""Pairs bounded before the clock is looked at: some 0.1 s. A guess."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Exposed:
    """What one layer's own passes do not hide, arrays [choice, node_class] in seconds."""

    num_layers: int
    """Layers of the main kind."""
    reduce_s: Floats
    follow_s: Floats
    """Optimizer and exposed gathering."""
    ends_s: Floats
    """[end, choice] what the passes of the first and the last stage hide beyond what their ends gather."""
    less_s: Floats
    """[choice]"""


def exposed_of(num_layers: int, kinds: LayerKinds, prices: Prices, num_plain: int | None = None) -> Exposed:
    """From prices; behind `num_plain` rows follow those of `planner.search.apart`, where it is given."""
    main, lead, w = kinds.main, kinds.lead, prices.hidden_fraction
    forward, backward = prices.layer_forward_s.sum(axis=-1), prices.layer_backward_s.sum(axis=-1)
    shown = prices.layer_gather_s - w * forward
    of_head = np.minimum(prices.head_gather_s, prices.head_beside_embedding_gather_s)
    first = np.maximum(w * prices.embedding_forward_s.sum(axis=-1) - prices.embedding_gather_s, 0.0)
    first = first + kinds.num_lead * np.maximum(-shown[:, lead], 0.0)
    last = np.maximum(w * prices.head_forward_s.sum(axis=-1) - of_head, 0.0).max(axis=1)
    if num_plain is not None:
        # Both the last stage and that of predictions have a part of the head.
        rows = [slice(i * num_plain, (i + 1) * num_plain) for i in range(4)]
        last[rows[1]] = last[rows[2]] + last[rows[3]]
    return Exposed(
        num_layers=num_layers - kinds.num_lead,
        reduce_s=np.maximum(prices.layer_reduce_s - w * backward, 0.0)[:, main],
        follow_s=prices.layer_optimizer_s[:, main] + np.maximum(shown, 0.0)[:, main],
        ends_s=np.stack([first.max(axis=1), last]),
        less_s=np.zeros(len(first)),
    )


def closer_bounds(
    data: BoundData,
    exposed: Exposed,
    choice: Ints,
    num_microbatches: Ints,
    room: Ints,
    stages: Ints,
    available: NDArray[np.bool_] | None = None,
    limits: tuple[Ints, Ints] | None = None,
) -> Floats:
    """Bound on the step time of every pair, no less than `relaxed_bounds` says; arguments as there, [s]."""
    of_class = room > 0 if available is None else available
    most = room if limits is None else limits[1]
    layer_s = data.layer_s[choice]
    hop_s = np.zeros_like(layer_s)
    if data.sends_block:
        hop_s = np.minimum(data.hop_s.min(axis=1), data.hop_s.min(axis=2))[choice]

    def least(values: Floats) -> Floats:
        found: Floats = np.where(of_class, values[choice], np.inf).min(axis=1)
        return found

    m, num_layers = num_microbatches[:, None], exposed.num_layers
    slowest_s = least_pace_s(layer_s, hop_s, num_layers, most, stages)
    bounds = relaxed_bounds(data, choice, num_microbatches, room, stages, available, slowest_s, limits)
    own_s = least_pace_s(m * layer_s + exposed.reduce_s[choice], m * hop_s, num_layers, most, stages)
    own_s = own_s - exposed.less_s[choice] + least(data.tail_s)
    known_s = least(data.optimizer_s) * data.num_layers[choice] / stages
    longest_s = np.maximum(bounds, own_s + least(data.fixed_s) + known_s)
    follow_s = follow_of_layers_s(exposed, choice, least(exposed.follow_s), stages)
    closer: Floats = longest_s + np.maximum(follow_s - known_s, 0.0)
    return closer


def follow_of_layers_s(exposed: Exposed, choice: Ints, of_layer_s: Floats, stages: Ints) -> Floats:
    """(follow), [pair]; `of_layer_s` the least of any class."""
    ends = exposed.ends_s[:, choice]
    both = ends.sum(axis=0)
    mean = (exposed.num_layers * of_layer_s - both) / stages
    most = -(-exposed.num_layers // stages)
    fullest = most * of_layer_s - np.where(stages > 1, ends.max(axis=0), both)
    longest: Floats = np.maximum(mean, fullest) - exposed.less_s[choice]
    return longest


def least_pace_s(layer_s: Floats, hop_s: Floats, num_layers: int, room: Ints, stages: Ints) -> Floats:
    """The least time at which stages hold all layers, n layers taking n `layer_s` and their hops, [pair] [s].

    Parameters
    ----------
    layer_s, hop_s, room
        [pair, node_class]; `hop_s` of each hop beside a stage: two between others, one at either end.
    """
    rate = np.where(room > 0, 1 / layer_s, 0.0)
    at_end = np.where(stages > 1, 1, 0)[:, None] * hop_s
    between = np.where(stages > 2, 2, 1)[:, None] * at_end
    num_ends = np.minimum(stages, 2)

    def held(time_s: Floats) -> Floats:
        """Layers that stages hold at most."""
        inner, end = (
            np.floor(np.maximum(time_s[:, None] - hops, 0.0) * rate * (1 + COUNT_TOL))
            for hops in (between, at_end)
        )
        total: Floats = _of_roomiest(inner, room, stages) + num_ends * (end - inner).max(axis=1)
        return total

    low = num_layers / np.maximum(_of_roomiest(rate, room, stages), np.finfo(np.float64).tiny)
    high = 2 * low + np.where(room > 0, layer_s + 2 * hop_s, 0.0).max(axis=1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = held(middle) >= num_layers
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    return low


def _of_roomiest(each: Floats, room: Ints, stages: Ints) -> Floats:
    """Sum over so many stages of the classes that have most each, [pair]."""
    order = np.argsort(-each, axis=1, kind="stable")
    sorted_room = np.take_along_axis(room, order, axis=1)
    before = np.cumsum(sorted_room, axis=1) - sorted_room
    taken = np.clip(stages[:, None] - before, 0, sorted_room)
    total: Floats = (taken * np.take_along_axis(each, order, axis=1)).sum(axis=1)
    return total


def closer_pairs(opener: Opener, pairs: Pairs) -> Pairs:
    """Pairs with those below the cutoff bounded better, the least first while there is time; by bound."""
    table, kinds = opener.table, kinds_of(opener.problem)
    assert kinds is not None
    exposed = exposed_of(opener.problem.model.num_layers, kinds, opener.prices, table.num_plain)
    few = np.flatnonzero(pairs.bound_s < opener.frontier.cutoff_s)
    few = few[np.argsort(pairs.bound_s[few], kind="stable")]
    bound_s = pairs.bound_s.copy()
    for start in range(0, len(few), AT_ONCE):
        if opener.clock.is_up:
            break
        mine = few[start : start + AT_ONCE]
        choice, stages = pairs.choice[mine], pairs.stages[mine]
        given = choice, table.num_microbatches[choice], table.max_stages[choice], stages
        bound_s[mine] = np.maximum(bound_s[mine], closer_bounds(opener.bounds, exposed, *given))
    order = np.argsort(bound_s, kind="stable")
    return Pairs(pairs.choice[order], pairs.stages[order], bound_s[order])
