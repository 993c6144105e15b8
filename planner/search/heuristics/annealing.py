"""Better orders of classes and splits of the layers, by changing many plans at once in small random steps.

The orders of a group are too many to list, and the shortest walks of its relaxation lead to a few of them.
Here some plans, the *walkers*, each make one random change a step: two stages change places, one moves
along the pipeline, one goes to another class that has room, one hands over a layer. A change that lengthens
the step is kept with a probability that falls with the loss and, as the search cools, to nothing; now and
then the worst walkers go on from the places of the best ones. All change and are valued together, as arrays.
The random numbers come from the user's seed, so that runs repeat.

Short pipelines are valued by their events, long ones, and those whose activations wait for gradients, by
the pipeline rows without spans, which take less time and say as much there. Whatever comes of it the referee
judges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.cost.communication.hops import hops_inside_host
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable
from planner.search.heuristics.walkers import Bools, Cooling, anneal_walkers, for_all, new_places, step_ms
from planner.search.tables import ClassTables, Tables
from planner.search.walks.cheapest import Ints
from planner.search.walks.relaxation import Found
from planner.units import MS

COOLING = Cooling(steps=1200, warmth=2e-3, follow_every=150)
MOST_ORDERS = 4
"""Orders handed over at the end."""
MOST_WAVES = 160
"""Micro-batches and stages up to which a plan is valued by its events."""
LAYER, CLASS, SWAP, SHIFT = range(4)
"""A layer moves; a stage goes to another class; two stages change places; a stage moves along."""
SHARES = (0.4, 0.1, 0.3, 0.2)
"""How often a change is of each kind."""
AND_A_LAYER = 0.5
"""How often a layer moves beside a change of another kind."""


@dataclass(frozen=True)
class OrderTimes:
    """Values orders and splits of one row of degrees and number of stages, many at once."""

    tables: ClassTables
    num_microbatches: int
    send_ms: Floats
    """[class from, class to] over the network."""
    inside_ms: Floats
    """[class] within a host."""
    is_inside: Bools
    """[class, place] whether the hop behind a place of a run of stages of one class stays within a host."""
    sends_block: bool
    waits: bool
    """Whether stages wait for their sends between a backward and a forward."""

    def values_ms(self, order: Ints, layers: Ints) -> Floats:
        """Step times, [walker, stage] -> [walker]; inf where a stage does not fit."""
        tables, stages = self.tables, np.arange(order.shape[1])
        at = order, stages, layers
        backward = tables.backward_ms[at]
        fits = np.asarray(np.isfinite(backward).all(axis=1))
        forward, backward = (
            np.where(fits[:, None], times, 0.0) for times in (tables.forward_ms[at], backward)
        )
        step = step_ms(
            forward,
            backward,
            self._hops_ms(order),
            tables.reduce_ms[at],
            tables.follow_ms[at],
            self.num_microbatches,
            MOST_WAVES,
            sends_block=self.sends_block,
            waits=self.waits,
        )
        return np.where(fits, step + tables.tied_ms[order[:, 0], order[:, -1]], np.inf)

    def _hops_ms(self, order: Ints) -> Floats:
        """Time of each hop, [walker, stage]; the last is 0."""
        stages = np.arange(order.shape[1])
        starts = np.ones(order.shape, dtype=np.bool_)
        starts[:, 1:] = order[:, 1:] != order[:, :-1]
        place = np.asarray(stages - np.maximum.accumulate(np.where(starts, stages, 0), axis=1))
        hops = np.zeros(order.shape)
        here, there = order[:, :-1], order[:, 1:]
        inside: Bools = (here == there) & self.is_inside[here, place[:, :-1]]
        hops[:, :-1] = np.where(inside, self.inside_ms[here], self.send_ms[here, there])
        return hops


def order_times(
    problem: Problem, prices: Prices, table: DegreeTable, tables: Tables, choice: int, stages: int
) -> OrderTimes:
    """What values the orders of a row of degrees with so many stages."""
    size = int(table.stage_size[choice])
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]
    is_inside = [hops_inside_host([0] * (stages + 1), size, [chips])[:stages] for chips in per_node]
    return OrderTimes(
        tables=tables.of_classes(choice, stages),
        num_microbatches=int(table.num_microbatches[choice]),
        send_ms=prices.send_s[choice] / MS,
        inside_ms=prices.send_inside_s[choice] / MS,
        is_inside=np.array(is_inside),
        sends_block=not problem.stack.p2p_overlap,
        waits=not problem.stack.p2p_overlap and problem.stack.p2p_after_gradient,
    )


def anneal(
    times: OrderTimes,
    starts: Sequence[Found],
    fewest: Sequence[int],
    most: Sequence[int],
    seed: int,
    is_up: Callable[[], bool],
) -> list[Found]:
    """The best orders met with their layers, the best first.

    Parameters
    ----------
    starts
        Orders with layers that add up, to begin with.
    fewest, most
        [class] stages between which the number of each class stays.
    """
    random = np.random.default_rng(seed)
    order, layers = (np.array(begun) for begun in zip(*for_all(starts), strict=True))
    change = partial(_changed, fewest=np.array(fewest), most=np.array(most), random=random)
    found = anneal_walkers(order, layers, times.values_ms, change, COOLING, random, is_up)
    return [(tuple(order.tolist()), tuple(layers.tolist())) for order, layers in found[:MOST_ORDERS]]


def _changed(
    order: Ints, layers: Ints, fewest: Ints, most: Ints, random: np.random.Generator
) -> tuple[Ints, Ints, Bools]:
    """Every walker after one random change, and whether the change is one that may be."""
    walkers, p = order.shape
    rows = np.arange(walkers)
    kind = random.choice(len(SHARES), size=walkers, p=SHARES)
    picks: Ints = random.integers(p, size=(4, walkers))
    one, other, giver, taker = picks
    new_class = np.asarray(random.integers(len(most), size=walkers))
    turns = kind == CLASS
    place = new_places(p, one, other, np.asarray(kind == SWAP), np.asarray(kind == SHIFT))
    source = np.argsort(place, axis=1, kind="stable")
    order, layers = np.take_along_axis(order, source, axis=1), np.take_along_axis(layers, source, axis=1)
    order[rows[turns], one[turns]] = new_class[turns]
    hands = (kind == LAYER) | (random.random(walkers) < AND_A_LAYER)
    layers[rows[hands], giver[hands]] -= 1
    layers[rows[hands], taker[hands]] += 1
    counts = (order[:, :, None] == np.arange(len(most))).sum(axis=1)
    legal = ((counts >= fewest) & (counts <= most)).all(axis=1) & (layers.min(axis=1) >= 0)
    return order, np.clip(layers, 0, None), legal
