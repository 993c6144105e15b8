"""Batches bounded together: those that differ in nothing but the tensor parallelism that all stages share.

Without sequence parallelism each such degree is a batch of its own. A *family* lets every stage be as in any
of its members, and so holds all their pipelines: its shapes are those of all members. A shape that another
one of its class beats is left out: one with no more chips, whose passes, sends, reduction and what follows
take no longer at any place and for any number of layers. With the better one in its place no row of
`formulations.pipeline_rows` grows, so that a bound over pipelines of the others holds for all.

Families that run as many sequences at a time are looked at as one at first, for the same reasons: that bounds
all of them in the time of two, though no plan takes the memory of one and the times of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.ends import Ends
from planner.search.meshes.places import Ints, Places, PlaceTables, Stages
from planner.search.meshes.shapes import Batch, shape_key, shape_numbers
from planner.search.walks.relaxation import Found

COLUMNS = 24
"""Entries of a table by which shapes are held against each other at first."""


@dataclass(frozen=True)
class Family:
    """Some batches, and the shapes that bound them all."""

    members: tuple[int, ...]
    """Numbers of the batches."""
    batch: Batch
    """Shapes of all members that no other one beats."""
    places: Places


def list_families(batches: Sequence[Batch]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Numbers of the batches of every family, families that run as many sequences at a time together."""
    wide: dict[tuple[int, int, int | None], dict[tuple[bool, bool | None], list[int]]] = {}
    for number, batch in enumerate(batches):
        same = wide.setdefault((batch.sequences, batch.expert_parallel, batch.expert_tensor_parallel), {})
        same.setdefault((batch.sequence_parallel, batch.selective), []).append(number)
    return tuple(tuple(tuple(members) for members in same.values()) for same in wide.values())


def make_family(
    tables: PlaceTables,
    batches: Sequence[Batch],
    members: tuple[int, ...],
    longest: int,
    is_up: Callable[[], bool],
    ends: Ends | None = None,
) -> Family | None:
    """Tables of some batches as one, for pipelines of up to so many stages; None where time is up.

    With `ends` only pipelines that have them are meant, of the batches that can have them. Shapes that others
    beat are left out behind that: a better one need not be what the ends or stages between may be.
    """
    family: tuple[Batch, Places] | None = None
    for member in members:
        if is_up():
            return None
        if ends is not None and not ends.may_be_of(batches[member]):
            continue
        # One at a time: the tables of all members together would take gigabytes.
        known = len(family[0].shapes) if family is not None else 0
        own = batches[member], (tables.of if ends else tables.make)(member, longest)
        both = _joined(family, _with_ends(*own, ends) if ends else own)
        kept = _unbeaten(*both, known)
        family = (
            replace(both[0], shapes=tuple(both[0].shapes[k] for k in kept.tolist())),
            _some(both[1], kept),
        )
    assert family is not None
    return Family(members, *family)


def _with_ends(batch: Batch, places: Places, ends: Ends) -> tuple[Batch, Places]:
    """What pipelines with some ends consist of: others at the ends never fit."""
    kept = np.flatnonzero(ends.inner(batch))
    batch = replace(batch, shapes=tuple(batch.shapes[k] for k in kept.tolist()))
    places = _some(places, kept)
    first, inner = places.first.times_ms.copy(), places.inner.times_ms.copy()
    first[~ends.first(batch)] = np.inf
    # The last stage has none behind it.
    inner[~ends.last(batch), 0] = np.inf
    return batch, replace(
        places,
        first=replace(places.first, times_ms=first),
        inner=replace(places.inner, times_ms=inner),
    )


def found_in(family: Family, batch: Batch, found: Sequence[Found]) -> tuple[Found, ...]:
    """Pipelines of a family whose shapes one of its batches has, by the numbers that they have there."""
    index = shape_numbers(batch)
    keys = [shape_key(shape) for shape in family.batch.shapes]
    return tuple(
        (tuple(index[keys[k]] for k in order), layers)
        for order, layers in found
        if all(keys[k] in index for k in order)
    )


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
    hop_ms, cross_ms = (
        np.concatenate([vars(places)[name], vars(more)[name]]) for name in ("hop_ms", "cross_ms")
    )
    joined = Places(inner, first, hop_ms, cross_ms, (least[0], least[1]))
    return replace(batch, shapes=(*batch.shapes, *other.shapes)), joined


def _some(places: Places, kept: Ints) -> Places:
    """Some of the shapes."""
    inner, first = (
        Stages(**{name: values[kept] for name, values in vars(stages).items()})
        for stages in (places.inner, places.first)
    )
    hop_ms, cross_ms = places.hop_ms[kept], places.cross_ms[kept]
    return replace(places, inner=inner, first=first, hop_ms=hop_ms, cross_ms=cross_ms)


def passes(layer_ms: Floats, base_ms: Floats, n: Ints) -> Floats:
    """Forward passes of n layers, [shape, place, n]."""
    both: Floats = layer_ms[:, :, None] * n + base_ms[:, :, None]
    return both


def _unbeaten(batch: Batch, places: Places, known: int) -> Ints:
    """Shapes that no other one beats, of equal ones the first; the first `known` do not beat each other."""
    n = np.arange(places.inner.times_ms.shape[2])
    tables = [places.hop_ms[:, None], places.cross_ms]
    for stages in (places.inner, places.first):
        forward = passes(stages.forward_ms, stages.base_forward_ms, n)
        tables += [forward, stages.times_ms - forward, stages.follow_ms, stages.reduce_ms]
    flat = [table.reshape(len(table), -1) for table in tables]
    # A few columns rule most pairs out before all are looked at.
    few = np.concatenate([table[:, :: max(table.shape[1] // COLUMNS, 1)] for table in flat], axis=1)
    numbers, chips = np.arange(len(few)), batch.num_chips

    def beats(other: int, k: int) -> bool:
        return all((table[other] <= table[k]).all() for table in flat)

    kept = np.ones(len(few), dtype=np.bool_)
    for k in range(len(few)):
        others = kept & (batch.node_class == batch.node_class[k]) & (chips <= chips[k]) & (numbers != k)
        others &= (numbers >= known) | (k >= known)
        others[others] = (few[others] <= few[k]).all(axis=1)
        kept[k] = not any(
            beats(other, k) and (other < k or chips[other] < chips[k] or not beats(k, other))
            for other in np.flatnonzero(others).tolist()
        )
    return np.flatnonzero(kept)
