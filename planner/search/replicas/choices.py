"""Mixes bounded for each choice of what all pipelines share, where experts make these choices many.

Experts are spread over as many ranks in all pipelines of a mix. The chains of all choices together take the
memory of one spread and the times of another, which no mix does: they bound mixes of models with experts far
too low, and prices tell little of them. Each mix belongs to one choice, so that the least bound of the
choices holds for all. Most of them a few looks close; more and more is asked of what is left, the least bound
first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.search.replicas.mixes import Mixes

FEW_BOXES = 100
"""Boxes that are priced of each before deadlines. A guess."""


def are_many(mixes: Mixes) -> bool:
    """Whether pipelines share more than whether the sequence is split."""
    return mixes.problem.model.moe is not None and len(mixes.that_share()) > 1


def _first_look(part: Mixes, most_s: float) -> float:
    """Few boxes and one deadline, at one price."""
    if part.aims.looks or part.improve(most_s, FEW_BOXES) >= most_s:
        return most_s if part.is_closed(most_s) else part.bound_s
    return part.improve_by_deadlines(most_s, 1)


LOOKS: tuple[Callable[[Mixes, float], float], ...] = (
    _first_look,
    lambda part, most_s: part.improve_by_shares(most_s),
    lambda part, most_s: part.improve_by_prices(most_s),
    lambda part, most_s: part.improve(most_s),
    lambda part, most_s: part.improve_whole(most_s),
)
"""What raises the bound of a choice up to a time [s], the quickest first."""


def improve_each(mixes: Mixes, most_s: float) -> float:
    """Raise the bound up to a time for each choice; the least of the choices holds [s]."""
    mixes.improve(most_s, FEW_BOXES)
    hard = [part for part in mixes.that_share() if not part.is_closed(most_s)]
    for look in LOOKS:
        if mixes.is_up():
            break
        hard.sort(key=lambda part: part.bound_ms)
        hard = [part for part in hard if look(part, most_s) < most_s]
    mixes.looks = sum(part.looks for part in mixes.that_share())
    return mixes.least_of(hard, most_s)
