"""Pipelines told apart by what their ends are, where both hold the embedding."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.communication.resharding import StageShape
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.ends import Ends, list_ends
from planner.search.meshes.opener import MeshOpener
from planner.search.meshes.pairs import list_pairs, longest_of
from planner.search.meshes.places import Places, Stages
from planner.search.meshes.shapes import Batch, leads_to_its_end
from tests.random_problems import random_problem, with_unlike_adapters

REL = 1e-12
"""Rounding."""
SHARED = with_unlike_adapters(random_problem(2)).model_copy(update={"target": "flagscale"})
"""A problem whose ends share an embedding."""


def belongs(batch: Batch, order: tuple[int, ...], ends: Ends) -> bool:
    return bool(ends.of_stages(batch, len(order))[np.arange(len(order)), list(order)].all())


@pytest.mark.parametrize("seed", range(3))
def test_every_pipeline_that_runs_has_one_choice_of_ends(seed: int) -> None:
    """One tensor parallelism, and of that one number of replicas at one of its ends."""
    rng = np.random.default_rng(seed)
    degrees = {(int(rng.choice([1, 2, 4])), int(rng.choice([1, 2, 3, 4, 6, 12]))) for _ in range(9)}
    shapes = tuple(StageShape(k, 0, tp, dp, tp * dp) for k, (tp, dp) in enumerate(sorted(degrees)))
    batch = Batch(12, 4, True, 1, None, False, shapes)
    listed = {wide: list_ends([batch], wide) for wide in list_ends([batch], None)}
    seen = 0
    for _ in range(300):
        order = tuple(rng.integers(len(shapes), size=int(rng.integers(1, 5))).tolist())
        of_tensor = [ends for ends in listed if belongs(batch, order, ends)]
        mine = [ends for wide in of_tensor for ends in listed[wide] if belongs(batch, order, ends)]
        if leads_to_its_end(SHARED, batch, order):
            seen += 1
            assert len(of_tensor) == len(mine) == 1, order
        assert len(of_tensor) <= 1, order
    assert seen > 5


def opener_of(seed: int) -> tuple[MeshOpener, int]:
    """What opens a problem whose ends share an embedding, and its families of most shapes."""
    problem = with_unlike_adapters(random_problem(seed, most_layers=12, num_classes=2))
    search = MeshSearch(problem.model_copy(update={"target": "flagscale"}), None)
    opener = search.make_opener()
    opener.longest = longest_of(list_pairs(search.problem, opener.batches, search.bounds))
    first = [opener.batches[members[0]] for members in opener.families[: opener.num_wide]]
    return opener, max(range(len(first)), key=lambda one: len(first[one].shapes))


def test_no_end_is_left_out_for_a_faster_shape_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all shapes take as long those of fewest chips would beat all others of their class."""
    opener, number = opener_of(4)
    make = opener.places.make

    def alike(member: int, longest: int) -> Places:
        places = make(member, longest)
        inner, first = (Stages(**{k: np.ones_like(v) for k, v in vars(one).items()}) for one in _both(places))
        hops = np.ones_like(places.hop_ms), np.ones_like(places.cross_ms)
        return Places(inner, first, *hops, places.constant_ms)

    monkeypatch.setattr(opener.places, "of", alike)
    batches = [opener.batches[member] for member in opener.families[number]]
    wide = list_ends(batches, None)
    for ends in [*wide, *(finer for one in wide for finer in list_ends(batches, one))]:
        made = opener.family(number, ends)
        assert made is not None and ends.may_be_of(made.batch), ends


def _both(places: Places) -> tuple[Stages, Stages]:
    return places.inner, places.first


@pytest.mark.parametrize("seed", [2, 4])
def test_families_have_as_good_a_shape_for_each_place_that_their_ends_allow(seed: int) -> None:
    """Shapes that others beat are left out, but no end for one that ends may not be."""
    opener, number = opener_of(seed)
    batches = [opener.batches[member] for member in opener.families[number]]
    wide = list_ends(batches, None)
    compared, barred = 0, 0
    for ends in [*wide, *(finer for one in wide for finer in list_ends(batches, one))]:
        made = opener.family(number, ends)
        assert made is not None
        longest = made.places.first.times_ms.shape[1]
        for member, batch in zip(made.members, batches, strict=True):
            if not ends.may_be_of(batch):
                continue
            places = opener.places.of(member, longest)
            at = (
                (ends.first(batch), places.first.times_ms, made.places.first.times_ms),
                (ends.inner(batch), places.inner.times_ms[:, 1:], made.places.inner.times_ms[:, 1:]),
                (ends.last(batch), places.inner.times_ms[:, :1], made.places.inner.times_ms[:, :1]),
            )
            for k in range(len(batch.shapes)):
                same = made.batch.node_class == batch.node_class[k]
                same &= made.batch.num_chips <= batch.num_chips[k]
                for allowed, mine, theirs in at:
                    barred += not allowed[k]
                    compared += bool(allowed[k])
                    assert not allowed[k] or (theirs[same] <= mine[k] * (1 + REL)).all(axis=(1, 2)).any(), (
                        ends,
                        k,
                    )
    assert compared > 0 and barred > 0
