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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.communication.resharding import StageShape
from planner.cost.prices import Floats
from planner.search.meshes.ends import Ends
from planner.search.meshes.places import Ints, Places, PlaceTables, Stages
from planner.search.meshes.shapes import Batch, shape_key, shape_numbers
from planner.search.walks.relaxation import Found

Bools = NDArray[np.bool_]

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
    unbeaten = _Unbeaten()
    for member in members:
        if is_up():
            return None
        if ends is not None and not ends.may_be_of(batches[member]):
            continue
        # One at a time: the tables of all members together would take gigabytes.
        own = batches[member], (tables.of if ends else tables.make)(member, longest)
        unbeaten.add(*(_with_ends(*own, ends) if ends else own))
    return Family(members, *unbeaten.joined())


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


def _some(places: Places, kept: Ints) -> Places:
    """Some of the shapes."""
    return _joined([places], [kept])


def _joined(parts: Sequence[Places], kept: Sequence[Ints]) -> Places:
    """Some of the shapes of each part, one behind the other."""

    def rows(tables: Sequence[object]) -> dict[str, Any]:
        pairs = list(zip(tables, kept, strict=True))
        return {
            name: np.concatenate([vars(table)[name][shapes] for table, shapes in pairs])
            for name, values in vars(tables[0]).items()
            if isinstance(values, np.ndarray)
        }

    inner, first = (Stages(**rows([getattr(part, name) for part in parts])) for name in ("inner", "first"))
    alone, more = (min(part.constant_ms[k] for part in parts) for k in (0, 1))
    return Places(inner, first, **rows(parts), constant_ms=(alone, more))


class _Unbeaten:
    """Shapes that no other one beats, of equal ones the first; those of each member are kept apart."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.places: list[Places] = []
        self.kept: list[Ints] = []
        """Shapes of each member that none beats, by their number in its tables here."""
        self.few: Floats = np.zeros((0, 0))
        """[shape, column] entries of their tables; a few columns rule most pairs out."""
        self.tables: list[tuple[Floats, ...]] = []
        """[shape] all that they are held against each other by."""

    def add(self, batch: Batch, places: Places) -> None:
        """Take in the shapes of another member."""
        known, own = len(self.tables), np.arange(len(batch.shapes))
        few = _few(places)
        self.few = np.concatenate([self.few, few]) if known else few
        self.tables += [_tables(places, k) for k in own.tolist()]
        self.batches.append(batch)
        self.places.append(places)
        self.kept.append(own)
        unbeaten = self._unbeaten(known)
        # Of what was there already no row is copied until the end.
        mine = np.flatnonzero(unbeaten[known:])
        self.batches[-1] = replace(batch, shapes=tuple(batch.shapes[k] for k in mine.tolist()))
        self.places[-1] = _some(places, mine)
        ends = np.cumsum([0, *(len(kept) for kept in self.kept)])
        kept = [kept[unbeaten[a:b]] for kept, a, b in zip(self.kept, ends, ends[1:], strict=False)]
        self.kept = [*kept[:-1], np.arange(len(mine))]
        self.few = self.few[unbeaten]
        self.tables = [table for table, is_kept in zip(self.tables, unbeaten, strict=True) if is_kept]
        self.tables[len(self.tables) - len(mine) :] = [_tables(self.places[-1], k) for k in range(len(mine))]

    def joined(self) -> tuple[Batch, Places]:
        """All of them as one batch."""
        return replace(self.batches[0], shapes=tuple(self._shapes())), _joined(self.places, self.kept)

    def _shapes(self) -> list[StageShape]:
        pairs = zip(self.batches, self.kept, strict=True)
        return [batch.shapes[k] for batch, kept in pairs for k in kept.tolist()]

    def _unbeaten(self, known: int) -> Bools:
        """[shape] whether no other one beats it; the first `known` do not beat each other."""
        shapes = self._shapes()
        classes = np.array([shape.node_class for shape in shapes])
        chips = np.array([shape.num_chips for shape in shapes])
        few, numbers = self.few, np.arange(len(shapes))

        def beats(other: int, k: int) -> bool:
            return all((a <= b).all() for a, b in zip(self.tables[other], self.tables[k], strict=True))

        kept = np.ones(len(shapes), dtype=np.bool_)
        for k in range(len(shapes)):
            others = kept & (classes == classes[k]) & (chips <= chips[k]) & (numbers != k)
            others &= (numbers >= known) | (k >= known)
            others[others] = (few[others] <= few[k]).all(axis=1)
            kept[k] = not any(
                beats(other, k) and (other < k or chips[other] < chips[k] or not beats(k, other))
                for other in np.flatnonzero(others).tolist()
            )
        return kept


def _ends_of_passes(stages: Stages, shapes: slice) -> Floats:
    """Forward passes of no layer and of all, between which they are linear, [shape, 2, place]."""
    most = stages.times_ms.shape[2] - 1
    base = stages.base_forward_ms[shapes]
    return np.stack([base, base + most * stages.forward_ms[shapes]], axis=1)


def _tables(places: Places, k: int) -> tuple[Floats, ...]:
    """All that a shape is held against others by: hops, passes, what follows and reductions."""
    tables = [places.hop_ms[k : k + 1], places.cross_ms[k]]
    for stages in (places.inner, places.first):
        n = np.arange(stages.times_ms.shape[2])
        forward = stages.forward_ms[k, :, None] * n + stages.base_forward_ms[k, :, None]
        backward = stages.times_ms[k] - forward
        tables += [_ends_of_passes(stages, slice(k, k + 1)), backward]
        tables += [stages.follow_ms[k], stages.reduce_ms[k]]
    return tuple(tables)


def _few(places: Places) -> Floats:
    """Some entries of the same tables of all shapes, [shape, column]."""

    def some(table: Floats) -> Floats:
        flat = table.reshape(len(table), -1)
        return np.asarray(flat[:, :: max(flat.shape[1] // COLUMNS, 1)])

    columns = [places.hop_ms[:, None], places.cross_ms]
    for stages in (places.inner, places.first):
        _, width, layers = stages.times_ms.shape
        place, n = np.divmod(some(np.arange(width * layers)[None])[0], layers)
        forward = stages.forward_ms[:, place] * n + stages.base_forward_ms[:, place]
        columns += [some(_ends_of_passes(stages, slice(None))), stages.times_ms[:, place, n] - forward]
        columns += [some(stages.follow_ms), some(stages.reduce_ms)]
    return np.concatenate(columns, axis=1)
