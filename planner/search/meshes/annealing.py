"""Better pipelines of free shapes, by changing many at once in small random steps.

As `planner.search.heuristics.annealing` for orders of classes; here a walker is a pipeline of one batch of
any length, the shape of every stage with its layers. A change swaps two stages, moves one along, gives one or
all stages of one shape another shape, cuts one in two, joins two, hands over a layer. Shorter pipelines are
filled up at the front with stages that hold nothing and take no time: their forwards are over at once, so
that nothing behind them waits, and places count from the last stage.

Whatever comes of it the referee judges; what the communicators of further pipeline groups take
(`planner.cost.communication.mesh_groups`) is left out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.cost.communication.resharding import hops_between_s
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.degrees import allowed_stages
from planner.search.heuristics.annealing import MOST_ORDERS
from planner.search.heuristics.walkers import Bools, Cooling, anneal_walkers, for_all, new_places, step_ms
from planner.search.meshes.balance import NOTHING, Balance
from planner.search.meshes.places import Ints, Places
from planner.search.meshes.shapes import Batch, ends_match
from planner.search.meshes.tables import tied_ms
from planner.search.walks.relaxation import Found
from planner.units import MS

COOLING = Cooling(steps=500, warmth=0.003, follow_every=100)
MOST_WAVES = 72
"""Micro-batches and stages up to which a pipeline is valued by its events, each of which costs. A guess."""
LAYER, SHAPE, SHAPES, SWAP, SHIFT, CUT, JOIN = range(7)
"""A layer moves; a stage gets another shape; all of a shape do; two change places; one moves along; one
becomes two; two become one."""
SHARES = (0.3, 0.2, 0.05, 0.15, 0.1, 0.1, 0.1)
"""How often a change is of each kind."""
AND_A_LAYER = 0.5
"""How often a layer moves beside a change of another kind."""
COPIED, OF_ITS_CLASS = 0.5, 0.7
"""How often a new shape is one of the pipeline's, and how often another is of the class of the stage."""
BALANCED = 0.75
"""How often all layers are balanced behind a change of shapes. Guesses."""


@dataclass(frozen=True)
class MeshTimes:
    """Values pipelines of one batch, many at once."""

    forward_ms: Floats
    """[inner or first, shape, place, n]"""
    backward_ms: Floats
    """The same; inf where n layers do not fit."""
    reduce_ms: Floats
    follow_ms: Floats
    tied_ms: Floats
    """[shape, shape] what sharing an embedding adds with these at the ends."""
    send_ms: Floats
    """[shape from, shape to] over the network."""
    inside_ms: Floats
    """[shape from, shape to] within a host."""
    match: Bools
    """[shape, shape] whether the two can be first and last stage."""
    lengths: Bools
    """[number of stages] whether there may be so many."""
    chips: Ints
    """[shape]"""
    tensor: Ints
    """[shape] chips that share a layer."""
    node_class: Ints
    """[shape]"""
    per_node: Ints
    """[shape] chips of a host."""
    nodes: Ints
    """[class]"""
    num_microbatches: int
    sends_block: bool
    ends_share: bool
    """Whether the pairs of ranks that share an embedding follow from the stages between (FlagScale)."""

    def values_ms(self, order: Ints, layers: Ints) -> Floats:
        """Step times, [walker, stage] -> [walker]; inf where one does not fit the chips or the hosts."""
        stages = order.shape[1]
        real = order != NOTHING
        count = real.sum(axis=1)
        shape = np.maximum(order, 0)
        place = np.broadcast_to(
            np.minimum(np.arange(stages)[::-1], self.forward_ms.shape[2] - 1), order.shape
        )
        first = (np.arange(stages) == (stages - count)[:, None]).astype(np.int64)
        at = first, shape, place, layers
        backward = self.backward_ms[at]
        fits, hops = self._laid(order, shape, real)
        head = np.take_along_axis(shape, np.minimum(stages - count, stages - 1)[:, None], axis=1)[:, 0]
        fits &= self.lengths[count] & self.match[head, shape[:, -1]]
        if self.ends_share:
            fits &= (self._nest(head, shape) | ~real).all(axis=1)
        fits &= (np.isfinite(backward) & (layers > 0) | ~real).all(axis=1)
        tables = self.forward_ms[at], backward, self.reduce_ms[at], self.follow_ms[at]
        forward, backward, reduction, follow = (np.where(real & fits[:, None], one, 0.0) for one in tables)
        m, blocks = self.num_microbatches, self.sends_block
        step = step_ms(forward, backward, hops, reduction, follow, m, MOST_WAVES, sends_block=blocks)
        constant = np.where(count > 1, self.tied_ms[head, shape[:, -1]], 0.0)
        return np.where(fits, step + constant, np.inf)

    def _nest(self, head: Ints, shape: Ints) -> Bools:
        """Whether stages join nothing that first and last one hold apart, [walker, stage]."""
        replicas = self.chips // self.tensor
        fewest = np.minimum(replicas[head], replicas[shape[:, -1]])
        in_sequence = self.tensor[shape] % self.tensor[head][:, None] == 0
        return np.asarray(in_sequence & (replicas[shape] % fewest[:, None] == 0))

    def _laid(self, order: Ints, shape: Ints, real: Bools) -> tuple[Bools, Floats]:
        """Whether the hosts hold whole tensor-parallel groups, and the hops, [walker, stage]."""
        stages = np.arange(order.shape[1])
        node_class = np.where(real, self.node_class[shape], NOTHING)
        chips = np.where(real, self.chips[shape], 0)
        starts = np.ones(order.shape, dtype=np.bool_)
        starts[:, 1:] = node_class[:, 1:] != node_class[:, :-1]
        begun = np.maximum.accumulate(np.where(starts, stages, 0), axis=1)
        before = np.cumsum(chips, axis=1) - chips
        offset = before - np.take_along_axis(before, begun, axis=1)
        per_node = self.per_node[shape]
        ends = np.ones(order.shape, dtype=np.bool_)
        ends[:, :-1] = starts[:, 1:]
        hosts = np.where(ends & real, -(-(offset + chips) // per_node), 0)
        used = np.stack([np.where(node_class == c, hosts, 0).sum(axis=1) for c in range(len(self.nodes))])
        fits: Bools = np.asarray((used <= self.nodes[:, None]).all(axis=0))
        fits &= np.asarray((offset % self.tensor[shape] == 0).all(axis=1))
        host, last = offset // per_node, (offset + chips - 1) // per_node
        alone = host == last
        inside = alone[:, :-1] & alone[:, 1:] & ~starts[:, 1:] & (host[:, :-1] == host[:, 1:])
        hops = np.zeros(order.shape)
        here, there = shape[:, :-1], shape[:, 1:]
        hops[:, :-1] = np.where(inside, self.inside_ms[here, there], self.send_ms[here, there])
        hops[:, :-1] = np.where(real[:, :-1], hops[:, :-1], 0.0)
        return fits, hops


def mesh_times(problem: Problem, prices: Prices, batch: Batch, places: Places, longest: int) -> MeshTimes:
    """What values the pipelines of a batch of up to so many stages."""
    classes = problem.cluster.classes
    n = np.arange(places.inner.times_ms.shape[2])
    tables = places.inner, places.first
    forward = np.stack([one.forward_ms[:, :, None] * n + one.base_forward_ms[:, :, None] for one in tables])
    lengths = np.zeros(longest + 1, dtype=np.bool_)
    lengths[allowed_stages(problem.options, longest)] = True
    send_s, inside_s = hops_between_s(problem, prices, batch.shapes)
    return MeshTimes(
        forward_ms=forward,
        backward_ms=np.stack([one.times_ms for one in tables]) - forward,
        reduce_ms=np.stack([one.reduce_ms for one in tables]),
        follow_ms=np.stack([one.follow_ms for one in tables]),
        tied_ms=tied_ms(prices, batch),
        send_ms=send_s / MS,
        inside_ms=inside_s / MS,
        match=np.array(
            [
                [ends_match(problem, batch, a, b) for b in range(len(batch.shapes))]
                for a in range(len(batch.shapes))
            ]
        ),
        lengths=lengths,
        chips=batch.num_chips,
        tensor=np.array([shape.tensor_parallel for shape in batch.shapes]),
        node_class=batch.node_class,
        per_node=np.array([classes[c].chips_per_node for c in batch.node_class.tolist()]),
        nodes=np.array([one.num_nodes for one in classes]),
        num_microbatches=batch.num_microbatches,
        sends_block=not problem.stack.p2p_overlap,
        ends_share=problem.model.copies_embedding and problem.target == "flagscale",
    )


def anneal(
    times: MeshTimes,
    balance: Balance,
    starts: Sequence[Found],
    seed: int,
    is_up: Callable[[], bool],
    steps: int = COOLING.steps,
) -> list[Found]:
    """The best pipelines met with their layers, the best first.

    Parameters
    ----------
    starts
        Pipelines with layers that add up, to begin with.
    """
    random = np.random.default_rng(seed)
    longest = len(times.lengths) - 1
    front = [longest - len(order) for order, _ in starts]
    filled = [
        ((NOTHING,) * none + order, (0,) * none + split)
        for none, (order, split) in zip(front, starts, strict=True)
    ]
    order, layers = (np.array(begun) for begun in zip(*for_all(filled), strict=True))
    change = partial(_Draw(times, balance).changed, random=random)
    cooling = replace(COOLING, steps=steps)
    found = anneal_walkers(order, layers, times.values_ms, change, cooling, random, is_up)
    return [
        (tuple(order[order != NOTHING].tolist()), tuple(layers[order != NOTHING].tolist()))
        for order, layers in found[:MOST_ORDERS]
    ]


class _Draw:
    """Random changes of pipelines."""

    def __init__(self, times: MeshTimes, balance: Balance) -> None:
        self.balance = balance
        self.node_class = times.node_class
        num_classes = len(times.nodes)
        self.of_class = [np.flatnonzero(times.node_class == c) for c in range(num_classes)]
        width = max(len(found) for found in self.of_class)
        self.table = np.zeros((num_classes, width), dtype=np.int64)
        self.sizes = np.array([len(found) for found in self.of_class])
        for c, found in enumerate(self.of_class):
            self.table[c, : len(found)] = found

    def changed(self, order: Ints, layers: Ints, random: np.random.Generator) -> tuple[Ints, Ints, Bools]:
        """Every walker after one random change; each may be."""
        walkers, stages = order.shape
        rows = np.arange(walkers)
        before, order, layers = order, order.copy(), layers.copy()
        real = order != NOTHING
        count = real.sum(axis=1)
        front = stages - count
        kind = random.choice(len(SHARES), size=walkers, p=SHARES)
        one, other, giver, taker = front + (random.random((4, walkers)) * count).astype(np.int64)
        is_cut = np.asarray((kind == CUT) & (front > 0) & (layers[rows, one] > 1))
        is_join = np.asarray((kind == JOIN) & (one < stages - 1))
        here = order[rows, one]
        copied = random.random(walkers) < COPIED
        new = np.where(copied, order[rows, other], self._shape(here, random))
        turns = np.asarray((kind == SHAPE) | is_cut | is_join)
        many = np.asarray(kind == SHAPES)[:, None] & np.asarray(order == here[:, None])
        order = np.where(many, new[:, None], order)
        order[rows[turns], one[turns]] = new[turns]
        place = new_places(stages, one, other, np.asarray(kind == SWAP), np.asarray(kind == SHIFT))
        # The stage that a cut adds comes out of the first place, which holds none.
        cut, at = rows[is_cut], one[is_cut]
        order[cut, 0] = new[is_cut]
        layers[cut, 0] = layers[cut, at] // 2
        layers[cut, at] -= layers[cut, 0]
        place[cut, 0] = at + 0.5
        joined, at = rows[is_join], one[is_join]
        layers[joined, at] += layers[joined, at + 1]
        order[joined, at + 1], layers[joined, at + 1], place[joined, at + 1] = NOTHING, 0, -1.0
        hands = (kind == LAYER) | (random.random(walkers) < AND_A_LAYER)
        hands &= (layers[rows, giver] > 1) & (order[rows, taker] != NOTHING)
        layers[rows[hands], giver[hands]] -= 1
        layers[rows[hands], taker[hands]] += 1
        source = np.argsort(place, axis=1, kind="stable")
        order, layers = (np.take_along_axis(of, source, axis=1) for of in (order, layers))
        anew = np.flatnonzero((order != before).any(axis=1) & (random.random(walkers) < BALANCED))
        balanced, fits = self.balance.layers(order[anew], random)
        layers[anew[fits]] = balanced[fits]
        return order, layers, np.ones(walkers, dtype=np.bool_)

    def _shape(self, here: Ints, random: np.random.Generator) -> Ints:
        """Another shape, mostly of the same class."""
        used = np.flatnonzero(self.sizes)
        node_class = np.where(
            random.random(len(here)) < OF_ITS_CLASS,
            self.node_class[here],
            used[random.integers(len(used), size=len(here))],
        )
        pick = (random.random(len(here)) * self.sizes[node_class]).astype(np.int64)
        chosen: Ints = self.table[node_class, pick]
        return chosen
