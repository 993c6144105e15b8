"""Good pipelines of free shapes without a proof: one shape a class, then changes that help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.search.meshes.opener import MeshOpener
from planner.search.meshes.shapes import Batch, shape_key, shape_numbers
from planner.search.meshes.tables import cross_hops_ms
from planner.units import MS

SHAPES_OF_CLASS = 3
"""Shapes of each class that first pipelines are made of: those that do most for their chips."""
FIRST_TRIES, MAX_TRIES = 150, 150
"""Changes that are tried at first, and in a later look."""

Place = tuple[int, tuple[int, ...]]
"""Number of a batch and the shapes of its stages."""
Blocks = tuple[tuple[int, int], ...]
"""Shapes, and how many stages in a row have each."""


def sequence_of(problem: Problem, batches: Sequence[Batch], plan: Plan) -> Place | None:
    """Where a plan stands among the batches; None where it belongs to none, as one whose stages mix chips."""
    if plan.mixes_chips:
        return None
    kinds = {stage.recompute for stage in plan.stages}
    wanted = [
        (problem.cluster.class_index(stage.node_class), stage.tensor_parallel, stage.data_parallel)
        for stage in plan.stages
    ]
    for number, batch in enumerate(batches):
        fits = batch.sequences == plan.microbatch_size * plan.data_parallel
        fits &= batch.expert_parallel == plan.expert_parallel
        fits &= batch.expert_tensor_parallel in (None, plan.expert_tensor_parallel)
        fits &= batch.sequence_parallel == plan.sequence_parallel or plan.tensor_parallel == 1
        fits &= batch.selective in (None, kinds == {"selective"})
        if not fits:
            continue
        index = shape_numbers(batch)
        if all(key in index for key in wanted):
            return number, tuple(index[key] for key in wanted)
    return None


def most_stages(problem: Problem) -> int:
    """Most stages that the layers and the user let be."""
    return min(problem.model.num_layers, problem.options.max_pipeline_parallel or problem.model.num_layers)


def first_sequences(opener: MeshOpener, most: int) -> list[Place]:
    """Pipelines that give each class one shape and all its chips, the most promising first."""
    found: list[tuple[float, int, Blocks]] = []
    for number in range(len(opener.batches)):
        if opener.clock.is_up:
            break
        found += [(time_s, number, blocks) for time_s, blocks in _of_batch(opener, number, most)]
    found.sort()
    places: list[Place] = []
    for _, number, picked in found[:most]:
        layer = opener.bounds.layer_s[opener.batches[number].choice, opener.batches[number].node_class]
        slow_first = sorted(picked, key=lambda block: (-float(layer[block[0]]), block[0]))
        for sequence in (slow_first, slow_first[::-1])[: len(picked)]:
            order = _flat(sequence)
            if opener.is_allowed(number, order):
                places.append((number, order))
    return places


def _of_batch(opener: MeshOpener, number: int, most: int) -> list[tuple[float, Blocks]]:
    """The most promising pipelines of a batch that give each class one shape or none, and their times [s]."""
    batch, num_layers = opener.batches[number], opener.problem.model.num_layers
    layer = opener.bounds.layer_s[batch.choice, batch.node_class]
    options: list[list[int | None]] = []
    stages, rates, used = np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1, dtype=np.int64)
    for c, node_class in enumerate(opener.problem.cluster.classes):
        mine = np.flatnonzero(batch.node_class == c)
        best = mine[np.argsort(layer[mine] * batch.num_chips[mine], kind="stable")[:SHAPES_OF_CLASS]]
        best = best[batch.num_chips[best] <= node_class.num_chips]
        counts = node_class.num_chips // batch.num_chips[best]
        options.append([None, *best.tolist()])
        stages = np.add.outer(stages, np.array([0, *counts])).ravel()
        rates = np.add.outer(rates, np.array([0.0, *(counts / layer[best])])).ravel()
        used = np.add.outer(used, np.array([0, *np.ones_like(counts)])).ravel()
    times_s = np.full(len(stages), np.inf)
    fits = (stages > 0) & (stages <= most_stages(opener.problem))
    times_s[fits] = (batch.num_microbatches + stages[fits] - 1) * (num_layers / rates[fits])
    # A slow hop between classes holds up rounds of two micro-batches, row (hop) of `planner.search.bounds`.
    rounds = np.maximum((batch.num_microbatches - 1 - stages) // 2, 0) + 2
    times_s[fits & (used > 1)] += (2 * rounds * _least_cross_s(opener, batch))[fits & (used > 1)]
    worst_s = np.sort(times_s)[min(most, len(times_s)) - 1]
    found = []
    for i in np.flatnonzero(fits & (times_s <= worst_s)).tolist():
        picks = np.unravel_index(i, [len(of_class) for of_class in options])
        shapes = [of_class[int(j)] for of_class, j in zip(options, picks, strict=True)]
        blocks = tuple(
            (k, opener.chips_of_class[c] // int(batch.num_chips[k]))
            for c, k in enumerate(shapes)
            if k is not None
        )
        found.append((float(times_s[i]), blocks))
    return found


def _least_cross_s(opener: MeshOpener, batch: Batch) -> float:
    """Least hop between stages of two classes [s]; 0 where there is one class."""
    cross = cross_hops_ms(opener.prices, batch) * MS
    others = batch.node_class[:, None] != np.arange(cross.shape[1])
    # What no stage of the batch is on takes no part.
    others &= np.isin(np.arange(cross.shape[1]), batch.node_class)[None, :]
    return float(cross[others].min()) if others.any() else 0.0


def improve(opener: MeshOpener, tried: set[Place]) -> None:
    """Change the best pipeline as long as that helps; `tried` are changes that have been tried."""
    most = len(tried) + (MAX_TRIES if tried else FIRST_TRIES)
    longest = most_stages(opener.problem)
    while opener.best is not None and len(tried) < most:
        before = opener.best
        for place in _changes(opener, before[1], before[2]):
            if place in tried or opener.clock.is_up or len(tried) >= most:
                continue
            tried.add(place)
            if 0 < len(place[1]) <= longest and opener.is_allowed(*place):
                opener.try_order(*place)
            if opener.best != before:
                break
        if opener.best == before:
            return


def _changes(opener: MeshOpener, number: int, order: tuple[int, ...]) -> Iterator[Place]:
    """Pipelines that differ in the shape of a run or a stage, in its place, in length, or in the batch."""
    batch = opener.batches[number]
    runs = [(k, len(list(stages))) for k, stages in groupby(order)]
    for i, (k, count) in enumerate(runs):
        before, after = runs[:i], runs[i + 1 :]
        chips = count * batch.shapes[k].num_chips
        for other, shape in enumerate(batch.shapes):
            if shape.node_class == batch.shapes[k].node_class and other != k:
                new = chips // shape.num_chips
                for stages in (new, new + 1, new - 1):
                    yield number, _flat([*before, (other, stages), *after])
                yield number, _flat([*before, (other, 1), (k, count - 1), *after])
                yield number, _flat([*before, (k, count - 1), (other, 1), *after])
        for change in (1, -1):
            yield number, _flat([*before, (k, count + change), *after])
        for j in range(len(runs) - 1):
            moved = [*before, *after]
            moved.insert(j, (k, count))
            yield number, _flat(moved)
    yield from _other_batches(opener, number, order)


def _other_batches(opener: MeshOpener, number: int, order: tuple[int, ...]) -> Iterator[Place]:
    """The same shapes with another number of sequences at a time, or another choice of what all share."""
    keys = [shape_key(opener.batches[number].shapes[k]) for k in order]
    for other, batch in enumerate(opener.batches):
        index = shape_numbers(batch)
        if other != number and all(key in index for key in keys):
            yield other, tuple(index[key] for key in keys)


def _flat(runs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(k for k, count in runs for _ in range(count))
