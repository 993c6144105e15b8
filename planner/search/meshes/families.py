"""Batches bounded together: those that run as many sequences at a time, whatever else they share.

A *family* lets every stage be as in any of its members, and so holds all their pipelines. A shape that
several members have counts once, with the least of each of its tables. A shape that another one of its class
beats is left out: one with no more chips, whose passes, sends, reduction and what follows take no longer at
any place and for any number of layers. With the better one in its place no row of
`formulations.pipeline_rows` grows, so that a bound over pipelines of the others holds for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.prices import Floats
from planner.cost.resharding import StageShape
from planner.search.meshes.places import Ints, Places, PlaceTables, Stages
from planner.search.meshes.shapes import Batch, shape_key


@dataclass(frozen=True)
class Family:
    """Some batches, and the shapes that bound them all."""

    members: tuple[int, ...]
    """Numbers of the batches."""
    batch: Batch
    """Shapes of all members that no other one beats."""
    places: Places


def list_families(batches: Sequence[Batch]) -> tuple[tuple[int, ...], ...]:
    """Numbers of the batches that are bounded together."""
    found: dict[tuple[int, int, int | None], list[int]] = {}
    for number, batch in enumerate(batches):
        key = batch.sequences, batch.expert_parallel, batch.expert_tensor_parallel
        # Sequence parallelism with all shapes first: orders are told by the first batch that has them.
        found.setdefault(key, []).append(number)
    return tuple(
        tuple(sorted(members, key=lambda number: (not batches[number].sequence_parallel, number)))
        for members in found.values()
    )


def make_family(
    tables: PlaceTables,
    batches: Sequence[Batch],
    members: tuple[int, ...],
    longest: int,
    is_up: Callable[[], bool],
) -> Family | None:
    """Tables of some batches as one, for pipelines of up to so many stages; None where time is up."""
    shapes: dict[tuple[int, int, int], StageShape] = {}
    for member in members:
        for shape in batches[member].shapes:
            shapes.setdefault(shape_key(shape), shape)
    number = {key: k for k, key in enumerate(shapes)}
    inner, first = _Least(len(shapes)), _Least(len(shapes))
    hop_ms, constant_ms = np.full(len(shapes), np.inf), np.full(2, np.inf)
    for member in members:
        if is_up():
            return None
        # One at a time: the tables of all members together would take gigabytes.
        places = tables.make(member, longest)
        rows = np.array([number[shape_key(shape)] for shape in batches[member].shapes])
        inner.take(rows, places.inner)
        first.take(rows, places.first)
        hop_ms[rows] = np.minimum(hop_ms[rows], places.hop_ms)
        constant_ms = np.minimum(constant_ms, places.constant_ms)
    joined = Places(inner.stages(), first.stages(), hop_ms, (float(constant_ms[0]), float(constant_ms[1])))
    batch = replace(batches[members[0]], shapes=tuple(shapes.values()))
    kept = _unbeaten(batch, joined)
    batch = replace(batch, shapes=tuple(batch.shapes[k] for k in kept.tolist()))
    return Family(members, batch, _some(joined, kept))


def _some(places: Places, kept: Ints) -> Places:
    """Some of the shapes."""
    inner, first = (
        Stages(**{name: values[kept] for name, values in vars(stages).items()})
        for stages in (places.inner, places.first)
    )
    return replace(places, inner=inner, first=first, hop_ms=places.hop_ms[kept])


class _Least:
    """The least of every table by shape; recomputation begins where it last may."""

    def __init__(self, num_shapes: int) -> None:
        self._num_shapes = num_shapes
        self._tables: dict[str, Floats] = {}

    def take(self, rows: Ints, stages: Stages) -> None:
        """Take the tables of some shapes."""
        n = np.arange(stages.times_ms.shape[2])
        forward = passes(stages.forward_ms, stages.base_forward_ms, n)
        values = vars(stages) | {"times_ms": stages.times_ms - forward, "plain": -stages.plain}
        for name, table in values.items():
            if name not in self._tables:
                self._tables[name] = np.full((self._num_shapes, *table.shape[1:]), np.inf)
            self._tables[name][rows] = np.minimum(self._tables[name][rows], table)

    def stages(self) -> Stages:
        """What has been taken, as one."""
        least = self._tables
        n = np.arange(least["times_ms"].shape[2])
        return Stages(
            times_ms=least["times_ms"] + passes(least["forward_ms"], least["base_forward_ms"], n),
            forward_ms=least["forward_ms"],
            base_forward_ms=least["base_forward_ms"],
            follow_ms=least["follow_ms"],
            plain=(-least["plain"]).astype(np.int64),
            reduce_ms=least["reduce_ms"],
        )


def passes(layer_ms: Floats, base_ms: Floats, n: Ints) -> Floats:
    """Forward passes of n layers, [shape, place, n]."""
    both: Floats = layer_ms[:, :, None] * n + base_ms[:, :, None]
    return both


def _unbeaten(batch: Batch, places: Places) -> Ints:
    """Shapes that no other one beats; of equal ones the first."""
    n = np.arange(places.inner.times_ms.shape[2])
    tables = []
    for stages in (places.inner, places.first):
        forward = passes(stages.forward_ms, stages.base_forward_ms, n)
        tables += [forward, stages.times_ms - forward, stages.follow_ms, stages.reduce_ms]
    flat = np.concatenate([table.reshape(len(table), -1) for table in tables], axis=1)
    flat = np.concatenate([places.hop_ms[:, None], batch.num_chips[:, None].astype(float), flat], axis=1)
    # A few columns rule most pairs out before all are looked at.
    few = flat[:, :: max(flat.shape[1] // 16, 1)]
    kept = np.ones(len(flat), dtype=np.bool_)
    for k in range(len(flat)):
        others = kept & (batch.node_class == batch.node_class[k]) & (few <= few[k]).all(axis=1)
        others[k] = False
        for other in np.flatnonzero(others).tolist():
            if (flat[other] <= flat[k]).all() and (other < k or (flat[other] < flat[k]).any()):
                kept[k] = False
                break
    return np.flatnonzero(kept)
