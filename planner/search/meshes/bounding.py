"""Bound some lengths of pipelines: by shortest walks, and those left open by what they can hold.

Walks (`planner.search.meshes.relaxation`) bound a step; what pipelines hold within a limit
(`planner.search.meshes.closing`) only tells whether it can be kept, but tells that better. So lengths that
walks leave open are held against the cutoff, then against a limit between their bound and that; one length by
itself against limits between the largest that it did not keep and the least that it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.closing import close_lengths
from planner.search.meshes.most_layers import most_layers
from planner.search.meshes.relaxation import MAX_FOUND, Found, Known, relax
from planner.search.meshes.walks import MeshWalks

FEW_LENGTHS, HALVINGS, MORE_HALVINGS, MOST_HALVINGS = 4, 0, 6, 16
"""Lengths up to which brackets are cut in two more often, and how often; the most for one alone: guesses."""
MOST_LENGTHS = 32
"""Lengths beyond which a look is left to walks, until there are fewer: a guess."""
LIMITS, LIMITS_OF_FAR, LIMITS_OF_ONE, LIMITS_OF_FEW = (1.0, 0.5), (1.0, 0.5, 0.25), (0.7, 0.7), (0.5,)
"""Limits that lengths are held against, as shares of the way from their bound to the cutoff, where that is
far, where it is far for one by itself, and farther for that or a few: what they keep takes ten times as long
to tell as what they do not, and that is better asked once nothing else lies below. Guesses."""
FAR, FAR_OF_FEW, FAR_OF_ONE = 0.08, 0.03, 0.01
"""Share of the cutoff from which it is far from a bound, and from that of a few and of one: guesses."""
LITTLE_WORK = 150_000_000
"""Numbers gone through up to which a length by itself is closed with little, so that the cutoff is next:
half a second, measured in 2026."""
WORTH_A_LIMIT = 2e-3
"""Share of the cutoff that a limit short of it must add to a bound to be worth it: a guess."""


@dataclass
class Learned:
    """Good prices of a batch or family, of walks and of what pipelines hold."""

    walks: Known | None = None
    sums: Known | None = None
    kept_ms: dict[int, float] = field(default_factory=dict)
    """Least limit that a length by itself was held against in vain."""
    took_little: bool = False
    """Whether the last length by itself that was closed took little."""

    def is_unsettled(self, length: int, bound_ms: float, cutoff_ms: float) -> bool:
        """Whether a limit between the bound of a length and the least that it kept may tell more."""
        kept_ms = self.kept_ms.get(length, 0.0)
        return (kept_ms - bound_ms) / 2 >= WORTH_A_LIMIT * cutoff_ms


def bound_by_walks(
    walks: MeshWalks, cutoff_ms: float, is_up: Callable[[], bool], halvings: int, learned: Learned
) -> tuple[Floats, tuple[Found, ...]]:
    """Bounds over all pipelines of some lengths, up to the cutoff [ms], and pipelines that came up.

    Infinite where none holds all layers, however long that takes.
    """
    holds = most_layers(walks) >= walks.num_layers
    if not holds.any():
        return np.full(len(holds), np.inf), ()
    relaxed = relax(walks, cutoff_ms, is_up, halvings, learned.walks)
    learned.walks = relaxed.known
    return np.where(holds, relaxed.bound_ms, np.inf), relaxed.found


def bound_lengths(
    walks_of: Callable[[Sequence[int]], MeshWalks],
    lengths: Sequence[int],
    edges_ms: tuple[Floats, float],
    is_up: Callable[[], bool],
    halvings: int,
    learned: Learned,
    *,
    is_whole: bool,
) -> tuple[Floats, tuple[Found, ...]]:
    """The same by walks and by what pipelines hold; `walks_of` prepares walks of lengths.

    Parameters
    ----------
    edges_ms
        Bounds that are known of the lengths, and the cutoff.
    is_whole
        Whether all pipelines of the lengths are looked at, so that limits kept by one will be again.
    """
    known_ms, cutoff_ms = edges_ms
    bound, found = np.minimum(known_ms, cutoff_ms), tuple[Found, ...]()
    # What is far from the cutoff still, walks of more lengths have not brought nearer.
    far = learned.sums is not None and bound.min() < (1 - FAR_OF_ONE) * cutoff_ms
    if not far or len(lengths) > FEW_LENGTHS:
        reached, found = bound_by_walks(walks_of(lengths), cutoff_ms, is_up, halvings, learned)
        bound = np.maximum(bound, reached)
    number = np.count_nonzero(bound < cutoff_ms)
    few = number <= MOST_LENGTHS
    limits: tuple[float, ...] = LIMITS if bound.min() > (1 - FAR) * cutoff_ms else LIMITS_OF_FAR
    if number <= FEW_LENGTHS and bound.min() < (1 - FAR_OF_FEW) * cutoff_ms:
        limits = LIMITS_OF_FEW
    elif len(lengths) == 1 and bound[0] < (1 - FAR_OF_ONE) * cutoff_ms:
        limits = LIMITS_OF_ONE
    for share in limits if few else ():
        still = np.flatnonzero(bound < cutoff_ms)
        if not len(still) or is_up():
            break
        least = float(bound[still].min())
        kept = learned.kept_ms.get(lengths[still[0]], np.inf) if is_whole and len(still) == 1 else np.inf
        limit = least + share * (cutoff_ms - least)
        if is_whole and len(still) == 1 and learned.took_little and least >= (1 - FAR_OF_FEW) * cutoff_ms:
            limit = cutoff_ms
        if cutoff_ms - limit < WORTH_A_LIMIT * cutoff_ms:
            limit = cutoff_ms
        if limit >= kept * (1 - WORTH_A_LIMIT):
            limit = (least + kept) / 2
        if limit - least < WORTH_A_LIMIT * cutoff_ms and limit < cutoff_ms:
            break
        still = still[bound[still] < limit]
        walks = walks_of([lengths[i] for i in still.tolist()])
        halvings = MORE_HALVINGS if len(still) <= FEW_LENGTHS else HALVINGS
        if len(still) == 1:
            halvings = MOST_HALVINGS
        closed = close_lengths(walks, limit, is_up, halvings, learned.sums)
        learned.sums = closed.known
        found = _merged(closed.found, found)
        bound[still[closed.closed]] = limit
        if is_whole and len(still) == 1:
            learned.took_little = bool(closed.closed[0]) and walks.work <= LITTLE_WORK
        if is_whole and len(still) == 1 and not closed.closed[0] and not is_up():
            learned.kept_ms[lengths[still[0]]] = limit
    return bound, found


def _merged(first: Sequence[Found], then: Sequence[Found]) -> tuple[Found, ...]:
    """Pipelines of two searches in turn, without repetition."""
    both = [one for pair in zip(first, then, strict=False) for one in pair]
    shorter = min(len(first), len(then))
    both += [*first[shorter:], *then[shorter:]]
    return tuple(dict.fromkeys(both))[:MAX_FOUND]
