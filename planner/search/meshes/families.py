"""Batches bounded together: those that run as many sequences at a time, whatever else they share.

A *family* lets every stage be as in any of its members, and so holds all their pipelines: its shapes are
those of all members. A shape that another one of its class beats is left out: one with no more chips, whose
passes, sends, reduction and what follows take no longer at any place and for any number of layers. With the
better one in its place no row of `formulations.pipeline_rows` grows, so that a bound over pipelines of the
others holds for all. Few are left beyond those of one member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.places import Ints, Places, PlaceTables, Stages
from planner.search.meshes.shapes import Batch


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
    family: tuple[Batch, Places] | None = None
    for member in members:
        if is_up():
            return None
        # One at a time: the tables of all members together would take gigabytes.
        both = _joined(family, (batches[member], tables.make(member, longest)))
        kept = _unbeaten(*both)
        family = (
            replace(both[0], shapes=tuple(both[0].shapes[k] for k in kept.tolist())),
            _some(both[1], kept),
        )
    assert family is not None
    return Family(members, *family)


def _joined(family: tuple[Batch, Places] | None, member: tuple[Batch, Places]) -> tuple[Batch, Places]:
    """The shapes of a member behind those of the family."""
    if family is None:
        return member
    (batch, places), (other, more) = family, member
    inner, first = (
        Stages(**{name: np.concatenate([values, vars(added)[name]]) for name, values in vars(stages).items()})
        for stages, added in ((places.inner, more.inner), (places.first, more.first))
    )
    least = [min(here, there) for here, there in zip(places.constant_ms, more.constant_ms, strict=True)]
    joined = Places(inner, first, np.concatenate([places.hop_ms, more.hop_ms]), (least[0], least[1]))
    return replace(batch, shapes=(*batch.shapes, *other.shapes)), joined


def _some(places: Places, kept: Ints) -> Places:
    """Some of the shapes."""
    inner, first = (
        Stages(**{name: values[kept] for name, values in vars(stages).items()})
        for stages in (places.inner, places.first)
    )
    return replace(places, inner=inner, first=first, hop_ms=places.hop_ms[kept])


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
