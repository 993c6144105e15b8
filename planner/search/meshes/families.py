"""Batches bounded together: those that run as many sequences at a time, whatever else they share.

A *family* lets every stage be as in any of its members, and so holds all their pipelines. A shape that
several members have counts once, with the least of each of its tables. A shape that another one of its class
beats is left out: one with no more chips, whose passes, sends, reduction and what follows take no longer at
any place and for any number of layers. With the better one in its place no row of
`formulations.pipeline_rows` grows, so that a bound over pipelines of the others holds for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.prices import Floats
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
    tables: PlaceTables, batches: Sequence[Batch], members: tuple[int, ...], longest: int
) -> Family:
    """The tables of some batches put together, for pipelines of up to so many stages."""
    all_places = [tables.of(member, longest) for member in members]
    shapes = [shape for member in members for shape in batches[member].shapes]
    joined = Places(
        inner=_joined([places.inner for places in all_places]),
        first=_joined([places.first for places in all_places]),
        hop_ms=np.concatenate([places.hop_ms for places in all_places]),
        constant_ms=(
            min(places.constant_ms[0] for places in all_places),
            min(places.constant_ms[1] for places in all_places),
        ),
    )
    keys: dict[tuple[int, int, int], list[int]] = {}
    for k, shape in enumerate(shapes):
        keys.setdefault(shape_key(shape), []).append(k)
    places = _least(joined, list(keys.values()))
    batch = replace(batches[members[0]], shapes=tuple(shapes[same[0]] for same in keys.values()))
    kept = _unbeaten(batch, places)
    return Family(
        members, replace(batch, shapes=tuple(batch.shapes[k] for k in kept.tolist())), _some(places, kept)
    )


def _joined(parts: Sequence[Stages]) -> Stages:
    names = vars(parts[0])
    return Stages(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _some(places: Places, kept: Ints) -> Places:
    """Some of the shapes."""
    inner, first = (
        Stages(**{name: values[kept] for name, values in vars(stages).items()})
        for stages in (places.inner, places.first)
    )
    return replace(places, inner=inner, first=first, hop_ms=places.hop_ms[kept])


def _least(places: Places, groups: Sequence[Sequence[int]]) -> Places:
    """Each group of shapes as one, with the least of every table; recomputation begins where it last may."""

    def of(values: Floats) -> Floats:
        return np.stack([values[group[0]] if len(group) == 1 else values[group].min(0) for group in groups])

    def stages_of(stages: Stages) -> Stages:
        n = np.arange(stages.times_ms.shape[2])
        forward, base = of(stages.forward_ms), of(stages.base_forward_ms)
        backward = of(stages.times_ms - passes(stages.forward_ms, stages.base_forward_ms, n))
        return Stages(
            times_ms=backward + passes(forward, base, n),
            forward_ms=forward,
            base_forward_ms=base,
            follow_ms=of(stages.follow_ms),
            plain=np.stack([stages.plain[group].max(axis=0) for group in groups]),
            reduce_ms=of(stages.reduce_ms),
        )

    return replace(
        places, inner=stages_of(places.inner), first=stages_of(places.first), hop_ms=of(places.hop_ms)
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
