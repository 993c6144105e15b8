"""Brute force over all plans of a small problem with virtual stages, scored by the referee's own pieces.

Every row of degrees, every order of classes, every number of virtual stages, every split of the layers into
chunks (of one layer at least, but for those of embedding and head) and every combination of recomputation is
run through the referee's simulation. The
enumeration shares nothing with the search but the rules; degrees and orders are those of `oracle_plans`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from planner.cost.communication.hops import block_on_sends, hop_send_s
from planner.cost.memory.stage import kept_bytes, memory_bytes
from planner.cost.prices import Prices
from planner.cost.pricing import price
from planner.cost.stage import (
    StageContent,
    chunk_times,
    exposed_gather_s,
    exposed_reduce_s,
    optimizer_s,
)
from planner.data.problem import Problem
from planner.search import empty
from planner.simulate.pipeline import stage_ends_s
from planner.simulate.schedules import peak_in_flight
from planner.tolerances import MEMORY_TOL_BYTES
from tests.oracle_plans import MAX_PLANS, Best, degrees_of, orders_of

Option = tuple[tuple[float, ...], tuple[float, ...], float, float, tuple[object, ...]]
"""Forward and backward of each chunk, reduction, what follows, and what it is."""

Known = dict[tuple[int, int, int, tuple[int, ...]], list[Option]]
"""Options of one row of degrees by class, number of stages, stage and layers of its chunks."""


def brute_force_virtual(problem: Problem, most: int) -> Best:
    """The least step time over all plans with 2 to `most` virtual stages a rank."""
    best = Best()
    num_layers = problem.model.num_layers
    for row, m in degrees_of(problem):
        prices = price(problem, row)
        size = int(row.tensor_parallel[0] * row.context_parallel[0] * row.data_parallel[0])
        known: Known = {}
        for order in orders_of(problem, row):
            p = len(order)
            if p == 1 or m % p or (problem.options.keep_class_order and list(order) != sorted(order)):
                continue
            for v in range(2, most + 1):
                for chunks in _dealings(problem, num_layers, p, v):
                    _score(problem, prices, m, size, order, chunks, best, known)
                    assert best.num_plans <= MAX_PLANS
    return best


def _dealings(problem: Problem, num_layers: int, p: int, v: int) -> Iterator[list[tuple[int, ...]]]:
    """Layers of each chunk by stage, for every way to cut the layers into p v runs."""
    are_short = num_layers <= empty.MOST_BESIDE_EMPTY * p * v or len(problem.cluster.classes) == 1
    may_be_empty = are_short and "stages=empty" not in problem.options.forbid
    may_be_empty = may_be_empty and not problem.model.predictions_need_a_layer
    at = range(num_layers + 1) if may_be_empty else range(1, num_layers)
    for cuts in itertools.combinations(at, p * v - 1):  # none between the ends is empty
        runs = [end - begin for begin, end in itertools.pairwise((0, *cuts, num_layers))]
        yield [tuple(runs[s::p]) for s in range(p)]


def _options(
    problem: Problem, prices: Prices, node_class: int, p: int, s: int, counts: tuple[int, ...], m: int
) -> list[Option]:
    v, found = len(counts), []
    main = len(prices.kinds) - 1
    num_lead = sum(kind != problem.model.kind_of_layer[-1] for kind in problem.model.kind_of_layer)
    chunks = [(main,) * n for n in counts]
    if s == 0 and num_lead:
        if num_lead > counts[0]:
            return []
        chunks[0] = (0,) * num_lead + (main,) * (counts[0] - num_lead)
    shortest = min(n for n in counts if n)
    kinds = [("none", 0), ("selective", 0), *(("full", r) for r in range(1, shortest + 1))]
    for recompute, count in kinds:
        content = StageContent(node_class, tuple(chunks), s == 0, s == p - 1, recompute, count)
        # `memory_bytes` of one micro-batch has no activations where the optimizer's step is fullest.
        kept = kept_bytes(prices, 0, content)
        memory = memory_bytes(prices, 0, content, peak_in_flight(p, s, m, v, kept), p)
        if sum(memory.values()) > problem.memory_limit_bytes(node_class) + MEMORY_TOL_BYTES:
            continue
        forward, backward = (part.sum(axis=1) for part in chunk_times(prices, 0, content))
        follow = float(prices.step_fixed_s[0, node_class]) + optimizer_s(prices, 0, content)
        found.append(
            (
                tuple(forward.tolist()),
                tuple(backward.tolist()),
                exposed_reduce_s(prices, 0, content, float(backward.sum())),
                follow + exposed_gather_s(prices, 0, content, float(forward.sum())),
                (counts, recompute, count),
            )
        )
    return found


def _score(
    problem: Problem,
    prices: Prices,
    m: int,
    size: int,
    order: tuple[int, ...],
    chunks: list[tuple[int, ...]],
    best: Best,
    known: Known,
) -> None:
    p, v = len(order), len(chunks[0])
    places = [(order[s], p, s, chunks[s]) for s in range(p)]
    for place in places:
        if place not in known:
            known[place] = _options(problem, prices, *place, m)
    picks = list(itertools.product(*[known[place] for place in places]))
    best.num_plans += len(picks)
    if not picks:
        return
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]
    hops = hop_send_s(prices.send_s[0], prices.send_inside_s[0], order, size, per_node)
    nothing = np.zeros((p, v))
    blocked = block_on_sends(nothing, nothing, hops, p2p_overlap=problem.stack.overlaps_sends(v))
    forward, backward = (np.array([[one[i] for one in pick] for pick in picks]) for i in (0, 1))
    reduction, follow = (np.array([[one[i] for one in pick] for pick in picks]) for i in (2, 3))
    send = np.broadcast_to(blocked[2], (len(picks), p))
    ends = stage_ends_s(forward + blocked[0], backward + blocked[1], send, m)
    tied = float(prices.tied_sync_s[0, order[0], order[-1]])
    step = (ends + reduction).max(axis=1) + tied + follow.max(axis=1)
    i = int(np.argmin(step))
    if step[i] < best.step_s:
        best.step_s, best.what = float(step[i]), (order, m, [one[4] for one in picks[i]])
