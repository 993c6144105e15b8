"""Every batch with every number of stages, bounded at once as if chips were divisible.

With R the layers a second of all classes at the best rate of each, tau of the slowest stage is at least
L / R. Stage s with r[s] layers a second holds r[s] t[s] of them, and sum_s r[s] <= R, so that with r_min of
the slowest shape

    sum_s t[s] >= p tau - (R tau - L) / r_min,    and    sum_s t[s] >= L on the fastest shape.

Either goes into the rows work, paced, path and window of `planner.search.bounds`. All are linear in tau, and
the bound is the least over tau of the largest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.data.problem import Problem
from planner.search.bound_data import BoundData
from planner.search.bounds import least_of_largest
from planner.search.degrees import allowed_stages
from planner.search.items import Lengths
from planner.search.meshes.shapes import Batch
from planner.search.space import Pairs

FARTHEST = 8.0
"""Slowest stage that is looked at, in times of the least; with a slower one m tau is bound enough."""


def list_lengths(pairs: Pairs, families: Sequence[Sequence[int]]) -> list[tuple[float, Lengths]]:
    """All numbers of stages of each family of batches together, by ascending bound."""
    family_of = {batch: number for number, members in enumerate(families) for batch in members}
    least: dict[int, dict[int, float]] = {}
    for choice, stages, bound_s in zip(
        pairs.choice.tolist(), pairs.stages.tolist(), pairs.bound_s.tolist(), strict=True
    ):
        mine = least.setdefault(family_of[choice], {})
        mine[stages] = min(bound_s, mine.get(stages, bound_s))
    found = []
    for family, members in least.items():
        numbers, bounds = zip(*sorted(members.items()), strict=True)
        found.append((min(bounds), Lengths(family, numbers, bounds)))
    return sorted(found, key=lambda part: (part[0], part[1].choice))


def longest_of(pairs: Pairs) -> dict[int, int]:
    """Most stages of every batch."""
    found: dict[int, int] = {}
    for choice, stages in zip(pairs.choice.tolist(), pairs.stages.tolist(), strict=True):
        found[choice] = max(found.get(choice, 0), stages)
    return found


def list_pairs(problem: Problem, batches: Sequence[Batch], data: BoundData) -> Pairs:
    """Every batch with every number of stages, by ascending bound."""
    none = np.zeros(0, dtype=np.int64)
    choice, stages, bounds = [none], [none], [np.zeros(0)]
    for number, batch in enumerate(batches):
        p = _stages(problem, batch)
        choice.append(np.full(len(p), number))
        stages.append(p)
        bounds.append(_bounds_s(problem, batch, data, p))
    choices, counts, least = np.concatenate(choice), np.concatenate(stages), np.concatenate(bounds)
    order = np.argsort(least, kind="stable")
    return Pairs(choices[order], counts[order], least[order])


def _stages(problem: Problem, batch: Batch) -> NDArray[np.int64]:
    """Numbers of stages that the classes can hold in the smallest shapes."""
    chips = np.array([node_class.num_chips for node_class in problem.cluster.classes], dtype=np.float64)
    smallest = np.full(len(chips), np.inf)
    np.minimum.at(smallest, batch.node_class, batch.num_chips.astype(np.float64))
    most = int(min((chips // smallest).sum(), problem.model.num_layers))
    most = min(most, problem.options.max_pipeline_parallel or most)
    return np.array(allowed_stages(problem.options, most), dtype=np.int64)


def _bounds_s(problem: Problem, batch: Batch, data: BoundData, p: NDArray[np.int64]) -> Floats:
    """Bound of one batch by number of stages [s]."""
    chips = np.array([node_class.num_chips for node_class in problem.cluster.classes], dtype=np.float64)
    at = batch.choice, batch.node_class
    layer, num_layers, m = (
        data.layer_s[at],
        float(data.num_layers[batch.choice].min()),
        batch.num_microbatches,
    )
    best = np.zeros(len(chips))
    np.maximum.at(best, batch.node_class, 1 / (layer * batch.num_chips))
    rate, slowest = float((best * chips).sum()), 1 / float(layer.max())
    least_tau = num_layers / rate
    tau = np.broadcast_to(np.array([least_tau, FARTHEST * least_tau]), (len(p), 2))
    ends = float(data.embedding_s[at].min()) + float(data.head_s[at].min())
    total = np.full_like(tau, num_layers * float(layer.min()) + ends)
    spread = p[:, None] * tau - (rate * tau - num_layers) / slowest
    rows = [m * tau]
    for held in (total, spread):
        rows.append(np.where(m >= p[:, None] + 1, (m - p[:, None] - 1) * tau + 2 * held, 0.0))
        rows.append(held + (m - 1) * tau / 2)
        rows.append(((m - 1) // p[:, None] + 1) * held)
    pipeline = np.minimum(least_of_largest(np.stack(rows)), m * FARTHEST * least_tau)
    after = float((data.fixed_s + data.tail_s)[at].min())
    return pipeline + after + num_layers / p * float(data.optimizer_s[at].min())
