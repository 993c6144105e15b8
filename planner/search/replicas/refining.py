"""How a box is refined whose best chain is bounded lower than it takes itself.

`planner.search.replicas.pricing` has what weight and shares of a box mean. The constants are guesses: they
say what is looked at, never what is proven.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.search.replicas.boxes import Boxes, Found
from planner.search.replicas.chains import Chains
from planner.tolerances import COUNT_TOL

FINEST = 1.0005
"""Ratio of the ends of a box's times at last."""
CLOSE = 5e-4
"""Relative distance to the best chain at which a box is closed."""
HEAVIEST, LIGHTEST = 8, 1 / 8
"""Weights at most and at least, in times of the least time of a box, before one is bracketed."""
LEAST_SHARE = 0.25
"""Share of a row below which it is left out."""
NARROW = 0.02
"""Distance between two weights, in the same times, between which none is tried."""
SHARE_OF_GAP = 0.8
"""Share of the way to the cutoff that another weight must promise."""
MOST_TURNS = 4
"""Other shares of the rows that are tried before a box is cut."""
FAR = 0.05
"""By how much more than the box's value stages behind the slow one must say for the near one to count. A
guess."""
WIDEST, LONG = 1.02, 0.25
"""Ratio of the ends of a box's times up to which that is looked at, and of stages to micro-batches from
which. Guesses."""
NEAR, APART = 0.85, 0.1
"""How near that stage is to the slow one, and what share the row of that keeps. Any bound: guesses."""
NEAR_RATE = 1.1
"""Ratio of two rates of adapters between which none is tried."""


@dataclass(frozen=True)
class Line:
    """A weight that was tried, with the value and its slope there."""

    weight: float
    value: float
    slope: float


@dataclass(frozen=True)
class Asked:
    """The last weights of a box where its value still rises, and already falls."""

    rising: Line | None = None
    falling: Line | None = None
    turns: int = 0
    """Other shares that were tried since the box was cut."""


def refined(
    chains: Chains, box: Boxes, value: float, found: Found, asked: Asked, cutoff: float
) -> tuple[list[Boxes], Asked]:
    """A box with a better weight or share, or in two pieces; nothing where it cannot be cut any more.

    Parameters
    ----------
    value, found
        What the box is bounded by [ms], and the chain that gave it.
    cutoff
        Bound from which on the box is closed [ms].
    """
    low, weight = float(box.low[0]), float(box.weight[0])
    microbatches = found.worth / found.column.microbatch_size
    if _is_nearer(box, found, value):
        near = replace(box, near=np.array([NEAR]), apart=np.array([APART]))
        return [near], Asked(turns=asked.turns)
    slope = _slope(box, found, microbatches)
    if slope < 0:
        asked = replace(asked, falling=Line(weight, value, slope))
    elif slope > 0:
        asked = replace(asked, rising=Line(weight, value, slope))
    better = _weight(low, asked, value, cutoff) if slope else None
    if better is not None:
        return [replace(box, weight=np.array([better]))], asked
    if asked.turns < MOST_TURNS:
        again = Asked(turns=asked.turns + 1)
        better = _share(float(box.late[0]), found.gain_ms, CLOSE * value)
        if better is not None:
            return [replace(box, late=np.array([better]))], again
        adapters = _adapters(chains, box, found, CLOSE * value)
        if adapters is not None:
            return [replace(box, adapters=np.array([adapters]))], again
    pieces = _cut(chains, box, value, found, microbatches)
    if not pieces and slope:
        better = _weight(low, asked, value, value * (1 + CLOSE / 2))
        if better is not None:
            return [replace(box, weight=np.array([better]))], asked
    return pieces, Asked()


def _is_nearer(box: Boxes, found: Found, value: float) -> bool:
    """Whether stages behind the slow one say more, so that the last of those near it is to count."""
    is_narrow = bool(box.near[0] == 1 and box.high[0] < WIDEST * box.low[0])
    is_long = len(found.column.items) > LONG * box.least_m[0]
    return is_narrow and is_long and found.behind_ms > (1 + FAR) * value


def _slope(box: Boxes, found: Found, microbatches: float) -> float:
    """How the value changes with the weight; 0 where it is highest."""
    weight, least_m, most_m = float(box.weight[0]), int(box.least_m[0]), int(box.most_m[0])
    # Where the weight takes over all that the row counts of a micro-batch, the slope jumps.
    counted = 1.0 if found.by_partial else 1 - found.share / 2
    apart, near = float(box.apart[0]), float(box.near[0])
    jump = float(box.low[0]) * (apart + (1 - apart) * counted * near)
    if weight == jump:
        return min(microbatches - least_m, 0.0) + max(microbatches - most_m, 0.0)
    return microbatches - (least_m if weight < jump else most_m)


def _weight(low: float, asked: Asked, value: float, cutoff: float) -> float | None:
    """The next weight to try: where two lines meet; None where none promises more."""
    left, right = asked.rising, asked.falling
    # A box that no weight closes is cut all the same.
    enough = min(value + max(SHARE_OF_GAP * (cutoff - value), CLOSE / 2 * value), max(cutoff, value))
    if right is None:
        if left is None or left.weight >= HEAVIEST * low:
            return None
        promised = left.value + left.slope * (HEAVIEST * low - left.weight)
        return left.weight * 2 if promised > enough else None
    if left is None:
        promised = right.value - right.slope * right.weight
        return right.weight / 2 if right.weight > LIGHTEST * low and promised > enough else None
    if right.weight - left.weight < NARROW * low:
        return None
    rise = right.value - left.value + left.slope * left.weight - right.slope * right.weight
    cross = rise / (left.slope - right.slope)
    promised = left.value + left.slope * (cross - left.weight)
    if promised <= enough or not left.weight < cross < right.weight:
        return None
    return cross


def _share(share: float, gain_ms: float, enough_ms: float) -> float | None:
    """Another share of a row that says more of the chain found, or less; None where it is good enough."""
    if gain_ms * (1 - share) > enough_ms:
        return min(2 * share, 1.0) if share else 1.0
    if -gain_ms * share > enough_ms:
        return share / 2 if share > LEAST_SHARE else 0.0
    return None


def _adapters(chains: Chains, box: Boxes, found: Found, enough_ms: float) -> float | None:
    """Another rate of adapters at which the exchange is taken for linear, where it counts too little."""
    replicas, at, rate = chains.most_replicas(int(box.kind[0])), float(box.adapters[0]), found.adapters
    exchange_ms, counted_ms = 1 / (replicas * rate), chains.exchange_ms
    if at > 0:
        counted_ms = (2 * at - rate) / (replicas * at**2)
        rate = float(np.sqrt(at * rate))
        if 1 / NEAR_RATE < rate / at < NEAR_RATE:
            return None
    return rate if exchange_ms - counted_ms > enough_ms else None


def _cut(chains: Chains, box: Boxes, value: float, found: Found, microbatches: float) -> list[Boxes]:
    """Pieces of a box where its chain leaves most; none where it cannot be cut any more."""
    low, high = float(box.low[0]), float(box.high[0])
    least_m, most_m, column = int(box.least_m[0]), int(box.most_m[0]), found.column
    rounding = 0.0
    if least_m <= microbatches <= most_m:
        rounding = column.slowest_ms * (float(np.ceil(microbatches - COUNT_TOL)) - microbatches)
    time_ms = column.time_ms(found.worth)
    rest = time_ms - value - rounding - found.loss_ms if np.isfinite(time_ms) else 0.0
    can_cut_m, can_cut_time = most_m > least_m, high > low * FINEST
    kind = int(box.kind[0])
    if not chains.kinds[kind].is_single and (
        found.loss_ms >= max(rounding, rest) or not (can_cut_m or can_cut_time)
    ):
        return [replace(box, kind=np.array([half])) for half in chains.halves(kind)]
    if can_cut_m and (rounding >= rest or not can_cut_time or most_m / least_m > (high / low) ** 2):
        middle = int(np.clip(np.floor(microbatches + COUNT_TOL), least_m, most_m - 1))
        fewer, more = replace(box, most_m=np.array([middle])), chains.with_more(kind, middle + 1)
        if more is None:
            return [fewer]
        return [fewer, replace(box, kind=np.array([more]), least_m=np.array([middle + 1]))]
    if can_cut_time:
        middle_ms = np.array([float(np.sqrt(low * high))])
        upper = replace(box, low=middle_ms, weight=middle_ms * (float(box.weight[0]) / low))
        return [replace(box, high=middle_ms), upper]
    return []
