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

from planner.cost.hops import block_on_sends, hop_send_s
from planner.cost.prices import Prices
from planner.cost.pricing import price
from planner.cost.stage import (
    StageContent,
    chunk_times,
    exposed_gather_s,
    exposed_reduce_s,
    optimizer_s,
)
from planner.cost.stage_memory import kept_bytes, memory_bytes
from planner.data.problem import Problem
from planner.search import empty
from planner.simulate.pipeline import stage_ends_s
from planner.simulate.schedules import peak_in_flight
from planner.tolerances import MEMORY_TOL_BYTES
from tests.oracle_plans import MAX_PLANS, Best, degrees_of, orders_of

Option = tuple[tuple[float, ...], tuple[float, ...], float, float, tuple[object, ...]]
"""Forward and backward of each chunk, reduction, what follows, and what it is."""


def brute_force_virtual(problem: Problem, most: int) -> Best:
    """The least step time over all plans with 2 to `most` virtual stages a rank."""
    best = Best()
    num_layers = problem.model.num_layers
    for row, m in degrees_of(problem):
        prices = price(problem, row)
        size = int(row.tensor_parallel[0] * row.context_parallel[0] * row.data_parallel[0])
        for order in orders_of(problem, row):
            p = len(order)
            if p == 1 or m % p or (problem.options.keep_class_order and list(order) != sorted(order)):
                continue
            for v in range(2, most + 1):
                for chunks in _dealings(problem, num_layers, p, v):
                    _score(problem, prices, m, size, order, chunks, best)
                    assert best.num_plans <= MAX_PLANS
    return best


def _dealings(problem: Problem, num_layers: int, p: int, v: int) -> Iterator[list[tuple[int, ...]]]:
    """Layers of each chunk by stage, for every way to cut the layers into p v runs."""
    are_short = num_layers <= empty.MOST_BESIDE_EMPTY * p * v or len(problem.cluster.classes) == 1
    may_be_empty = are_short and "stages=empty" not in problem.options.forbid
    for cuts in itertools.combinations_with_replacement(range(num_layers + 1), p * v - 1):
        runs = np.diff([0, *cuts, num_layers])
        if runs[1:-1].all() and (may_be_empty or runs.all()):
            dealt = runs.reshape(v, p)
            yield [tuple(int(n) for n in dealt[:, s]) for s in range(p)]


def _options(
    problem: Problem, prices: Prices, order: tuple[int, ...], s: int, counts: tuple[int, ...], m: int
) -> list[Option]:
    p, v, found = len(order), len(counts), []
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
        content = StageContent(order[s], tuple(chunks), s == 0, s == p - 1, recompute, count)
        # `memory_bytes` of one micro-batch has no activations where the optimizer's step is fullest.
        kept = kept_bytes(prices, 0, content)
        memory = memory_bytes(prices, 0, content, peak_in_flight(p, s, m, v, kept), p)
        if sum(memory.values()) > problem.memory_limit_bytes(order[s]) + MEMORY_TOL_BYTES:
            continue
        forward, backward = (part.sum(axis=1) for part in chunk_times(prices, 0, content))
        follow = float(prices.step_fixed_s[0, order[s]]) + optimizer_s(prices, 0, content)
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
) -> None:
    p, v = len(order), len(chunks[0])
    picks = list(itertools.product(*[_options(problem, prices, order, s, chunks[s], m) for s in range(p)]))
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
