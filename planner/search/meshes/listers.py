"""Queue all pipelines of some numbers of stages one by one, where few may be better than the best plan.

The constants are guesses: they say what is looked at, never what is proven.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.items import Lengths
from planner.search.meshes.listing import Lister, is_too_large
from planner.search.meshes.places import Ints
from planner.units import MS

if TYPE_CHECKING:
    from planner.search.meshes.opener import MeshOpener

CREDIT = 2
"""How many more numbers of stages may have too many pipelines to list, which costs some 0.2 s each, than have
a few, before no more are tried in the whole search. A guess."""
TRIED = 3
"""Pipelines of one number of stages that are tried at once. A guess."""


def list_pipelines(opener: MeshOpener, part: Lengths, stages: Ints, known_s: Floats) -> NDArray[np.bool_]:
    """Queue all pipelines of a part that may be better; of which numbers of stages, [number of stages].

    `known_s` are bounds of these numbers. Nothing is listed of many families at once, nor without a plan.
    """
    is_listed, cutoff_s = np.zeros(len(stages), dtype=np.bool_), opener.frontier.cutoff_s
    if part.choice < opener.num_wide or not np.isfinite(cutoff_s) or opener.credit <= 0:
        return is_listed
    listers = _listers(opener, part, cutoff_s)
    for i, p in enumerate(stages.tolist() if listers else ()):
        found = _of_length(opener, listers, p)
        if found is None:
            # Of longer ones there are more.
            opener.credit -= 1
            break
        is_listed[i], opener.credit = True, opener.credit + bool(found)
        # What is not listed takes no less.
        opener.frontier.close(cutoff_s)
        for member, order, least_ms in found:
            opener.push_orders(max(float(known_s[i]), least_ms * MS), member, [order])
        _try_best(opener, found)
    return is_listed


def _try_best(opener: MeshOpener, found: list[tuple[int, tuple[int, ...], float]]) -> None:
    """Try those of least bound: a better plan leaves fewer."""
    ranked = (one for one in sorted(found, key=lambda one: one[2]) if opener.is_allowed(*one[:2]))
    for member, order, least_ms in islice(ranked, TRIED):
        if least_ms * MS < opener.frontier.cutoff_s:
            opener.try_order(member, order)


def _of_length(
    opener: MeshOpener, listers: dict[int, Lister], p: int
) -> list[tuple[int, tuple[int, ...], float]] | None:
    """Batch, shapes and bound [ms] of each pipeline; None where these are too many or time is up."""
    found: list[tuple[int, tuple[int, ...], float]] = []
    for member, lister in listers.items():
        if p <= opener.longest[member]:
            listed = None if opener.clock.is_up else lister.list(p)
            if listed is None:
                return None
            orders, bounds_ms = listed
            pairs = zip(orders.tolist(), bounds_ms.tolist(), strict=True)
            found += [(member, tuple(order), least_ms) for order, least_ms in pairs]
    return found


def _listers(opener: MeshOpener, part: Lengths, cutoff_s: float) -> dict[int, Lister]:
    """What lists pipelines of each batch of a part; nothing where chips are too many."""
    batches, ends = opener.batches, part.ends
    longest = {
        member: min(opener.longest[member], max(part.stages))
        for member in opener.families[part.choice]
        if member in opener.longest and (ends is None or ends.may_be_of(batches[member]))
    }
    if any(is_too_large(opener.problem, batches[member], most) for member, most in longest.items()):
        return {}
    return {
        member: Lister(
            opener.problem,
            opener.prices,
            batches[member],
            opener.places.of(member, opener.longest[member]),
            cutoff_s / MS,
            ends,
        )
        for member in longest
    }
