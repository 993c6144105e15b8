"""The pipelines of a part: one by one where they are few, else one of them and the parts beside it.

On few chips it takes less to look at each pipeline than to bound sets of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.data.problem import Problem
from planner.search.items import Prefix
from planner.search.meshes.places import Places
from planner.search.meshes.shapes import Batch, can_be_placed
from planner.search.meshes.ways import Bools

MOST_LISTED, FEW_LISTED = 1000, 100
"""Beginnings of pipelines beyond which a part is cut instead, and pipelines up to which it is not bounded
before. Guesses."""


def allowed_shapes(batch: Batch, part: Prefix) -> Bools:
    """Shapes that each stage of a part may have, [stage, shape]."""
    allowed = np.ones((part.stages, len(batch.shapes)), dtype=np.bool_)
    if part.ends is not None:
        allowed = part.ends.of_stages(batch, part.stages)
    for s, k in enumerate(part.shapes):
        allowed[s] &= np.arange(len(batch.shapes)) == k
    allowed[len(part.shapes), list(part.banned)] = False
    return allowed


def any_order(batch: Batch, part: Prefix) -> tuple[int, ...]:
    """Some pipeline of a part."""
    return tuple(allowed_shapes(batch, part).argmax(axis=1).tolist())


def parts_beside(problem: Problem, batch: Batch, part: Prefix, order: tuple[int, ...]) -> Iterator[Prefix]:
    """All of a part but one pipeline, by the first stage at which they differ from it."""
    start = len(part.shapes)
    for j in range(start, part.stages):
        banned = (*(part.banned if j == start else ()), order[j])
        if len(banned) < len(batch.shapes) and (j == 0 or can_be_placed(problem, batch, order[:j])):
            yield Prefix(part.choice, part.stages, order[:j], tuple(sorted(banned)), part.ends)


def list_sequences(
    problem: Problem, batch: Batch, places: Places, part: Prefix, most: int
) -> list[tuple[int, ...]] | None:
    """All pipelines of a part that hosts and memory hold; None where more beginnings than `most` come up.

    With the most layers that a shape holds at the place of each stage they must hold all of the model.
    """
    allowed = [np.flatnonzero(shapes).tolist() for shapes in allowed_shapes(batch, part)]
    q = np.minimum(np.arange(part.stages)[::-1], places.num_places - 1)
    layers = np.arange(places.inner.times_ms.shape[2])
    tables = [places.first.times_ms, *[places.inner.times_ms] * (part.stages - 1)]
    # [stage][shape]; of the times those that fit the memory are finite.
    held_at = [
        np.where(np.isfinite(table[:, behind]), layers, 0).max(axis=1).tolist()
        for table, behind in zip(tables, q.tolist(), strict=True)
    ]
    ahead = [sum(max(of_stage) for of_stage in held_at[s:]) for s in range(part.stages + 1)]
    looked_at = 0

    def grown(order: tuple[int, ...], held: int) -> Iterator[tuple[int, ...]]:
        nonlocal looked_at
        s = len(order)
        if s == part.stages:
            yield order
            return
        for k in allowed[s]:
            looked_at += 1
            if looked_at > most:
                return
            holds = held_at[s][k] > 0 and held + held_at[s][k] + ahead[s + 1] >= len(layers) - 1
            if holds and can_be_placed(problem, batch, (*order, k)):
                yield from grown((*order, k), held + held_at[s][k])

    found = list(grown((), 0))
    return None if looked_at > most else found
