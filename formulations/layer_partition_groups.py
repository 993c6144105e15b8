"""What every split of every order takes at least, for many numbers of stages of each class at once.

Sets, data and costs are those of `layer_partition`, the class of each stage open but for how many stages of
each class there are at most. Let s be a slowest stage of a split, tau its time, q = p - 1 - s. By
`pipeline_rows` with what follows any stage at its mean

    (long)   T + O >= sum_{i<s} t[i] + (m - q) tau + 2 sum_{i>s} t[i] + z[0] + sum_i o[i] / p    if m >= q + 2
    (side)   T + O >= sum_i t[i] + (m - 1) tau - q min(f[s], b[s]) + z[0] + sum_i o[i] / p       the same
    (short)  T + O >= sum_i t[i] + (m - 1) max(f[s], b[s]) + z[0] + sum_i o[i] / p               if m <= q + 1
    (late)   T + O >= sum_{i<r} t[i] + 2 sum_{i>=r} t[i] + z[0] + sum_i o[i] / p,  r = p + 1 - m   the same
    (work)   T >= m tau

and sends there and back, those behind s twice in (long), those from r on in (late). Proof. The row
(partial, e = s) is up + m t + max(0, d - q f) + max(0, d - q b), in which d is the sum over the stages behind
s with their sends and that of s: (long) takes both differences, (side) the larger one, (work) none. (late) is
(long) of r, of which m = q + 2 and which lies behind s; with one micro-batch there is no r, and all count
once. (short) is (window) with k = 0. Each holds up to the end of stage 0, whose reduction is behind it; O is
no less than what follows any stage, and so than the mean. Where a hop makes s longer than it counts here, by
x in all, (side) grows by (m - q) x or more. (side) says more than (long) where micro-batches are about as few
as stages, and is looked at there.

Each stage adds a term of its own once it is known whether s lies before it. So for tau between two numbers
the least over all orders, splits and s is a shortest path through the cuts, the stages of each class used up
and whether s has been passed, by runs no slower than the larger one, s no faster than the smaller one. Values
of tau are cut into pieces, which are cut again where a path lies below the limit.

Sends depend on the classes of two stages: their least counts, and by as much as they may be more s may be
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import as_strided

from formulations.pipeline_rows import Floats, Ints

PIECES = 3
"""Pieces of the time of the slowest stage to begin with, and into which a piece is cut. A guess."""
NARROW = 0.005
"""Width of a piece, relatively, that is cut no more. A guess."""
FEW = 2
"""Micro-batches over stages below which (side) is looked at. A guess, that of `planner.search.walks`."""
WIDEST = float("inf")
"""Width of all pieces."""
ANY_TIME = 0.0, float("inf")
"""Where the slowest stage may lie of which nothing is known [ms]."""
NO_TIME = float("inf"), 0.0
"""The same where there is none."""
WIDE = 1.3
"""Where there is no limit, how much longer than the least time the slowest stage is looked at closely."""


@dataclass(frozen=True)
class GroupCosts:
    """Arrays [stage, class, length, end] of runs by length and end, in ms; inf where one does not fit."""

    num_microbatches: int
    forward: Floats
    backward: Floats
    reduction: Floats
    """Of stage 0 alone, [class, length, end]."""
    follow: Floats
    most: tuple[int, ...]
    """Stages on each class at most."""
    sends: Floats | None = None
    """[stage, class] what a send and its return delay others by at least."""
    slack: Floats | None = None
    """[stage, class] by how much passes may be longer than they are here."""

    @property
    def num_stages(self) -> int:
        """p."""
        return len(self.forward)


def taken_together(costs: GroupCosts, together: Sequence[Sequence[int]]) -> GroupCosts:
    """Costs in which each of some sets of classes is one class, which takes the least that any of it does.

    No split of any order takes less than it does there, with as many stages on a set as on its classes: no
    run is longer there, and rows count none less than not at all.
    """

    def least(of: Floats, axis: int) -> Floats:
        found: Floats = np.stack(
            [of.take(list(one), axis=axis).min(axis=axis) for one in together], axis=axis
        )
        return found

    most = [min(sum(costs.most[c] for c in one), costs.num_stages) for one in together]
    return GroupCosts(
        num_microbatches=costs.num_microbatches,
        forward=least(costs.forward, 1),
        backward=least(costs.backward, 1),
        reduction=least(costs.reduction, 0),
        follow=least(costs.follow, 1),
        most=tuple(most),
        sends=None if costs.sends is None else least(costs.sends, 1),
        slack=None if costs.slack is None else -least(-costs.slack, 1),
    )


def by_length(runs: Floats, longest: int | None = None) -> Floats:
    """Array [..., first, end] of runs by length and end, [..., length, end]; inf where there is none."""
    cuts = runs.shape[-1]
    length, end = np.arange((cuts - 1 if longest is None else longest) + 1)[:, None], np.arange(cuts)[None, :]
    found: Floats = np.where(end >= length, runs[..., np.maximum(end - length, 0), end], np.inf)
    return found


@lru_cache(maxsize=512)
def ways_to_use(
    most: tuple[int, ...], num_stages: int
) -> tuple[tuple[Ints, ...], tuple[tuple[int, ...], ...]]:
    """How stages of each class are used up: by stage the state before each, [class, state], -1 where none is;
    stages of each class at the end, by state."""
    states = [(0,) * len(most)]
    sources = []
    ranges = [range(count + 1) for count in most]
    by_sum: dict[int, list[tuple[int, ...]]] = {}
    for used in product(*ranges):
        by_sum.setdefault(sum(used), []).append(used)
    for s in range(num_stages):
        index = {used: i for i, used in enumerate(states)}
        states = by_sum.get(s + 1, [])
        sources.append(
            np.array(
                [
                    [index.get((*used[:c], used[c] - 1, *used[c + 1 :]), -1) for used in states]
                    for c in range(len(most))
                ],
                dtype=np.int64,
            ).reshape(len(most), len(states))
        )
    return tuple(sources), tuple(states)


def num_ways(most: Sequence[int]) -> int:
    """Numbers of stages of each class that may have been used up."""
    return int(np.prod([count + 1 for count in most]))


def windows_of(so_far: Floats, lengths: int) -> Floats:
    """Values [..., state, cut] before a run of each length by its end, a view [length, ..., state, end]."""
    shape = so_far.shape
    padded = np.full((*shape[:-1], lengths - 1 + shape[-1]), np.inf)
    padded[..., lengths - 1 :] = so_far
    step = padded.strides[-1]
    return as_strided(
        padded[..., lengths - 1 :], (lengths, *shape), (-step, *padded.strides), writeable=False
    )


def lengths_first(costs: Floats) -> Floats:
    """Array [..., length, end] as [length, ..., state, end]."""
    return costs.transpose(costs.ndim - 2, *range(costs.ndim - 2), costs.ndim - 1)[..., None, :]


def totals(so_far: Floats, costs: Floats) -> Floats:
    """Sums of what lies before a run and the run, [length, ..., state, end].

    Parameters
    ----------
    so_far
        [..., state, cut]
    costs
        [..., length, end] of one class.
    """
    windows = windows_of(so_far, costs.shape[-2])
    sums = np.empty(windows.shape)
    np.add(windows, lengths_first(costs), out=sums)
    return sums


def ahead(so_far: Floats, costs: Floats, sources: Ints) -> Floats:
    """The least one stage on, [..., state, cut], whose last state is none.

    Parameters
    ----------
    costs
        [..., class, length, end]
    sources
        [class, state] of `ways_to_use`.
    """
    least = np.full((*so_far.shape[:-2], sources.shape[1] + 1, so_far.shape[-1]), np.inf)
    for c, source in enumerate(sources):
        of_class = costs[..., c, :, :]
        lengths = np.flatnonzero(np.isfinite(of_class).any(axis=(*range(of_class.ndim - 2), -1)))
        if (source >= 0).any() and len(lengths):
            value = totals(so_far, of_class[..., : lengths[-1] + 1, :]).min(axis=0)
            np.minimum(least[..., :-1, :], value[..., source, :], out=least[..., :-1, :])
    return least


def start_of(costs: GroupCosts, pieces: int) -> Floats:
    """Nothing placed, [piece, state, cut]."""
    start = np.full((pieces, 2, costs.forward.shape[-1]), np.inf)
    start[:, 0, 0] = 0.0
    return start


def least_slowest_ms(costs: GroupCosts) -> Floats:
    """Least time of the slowest stage, by numbers of stages of `ways_to_use` [ms]; inf where nothing fits."""
    times = costs.forward + costs.backward
    sources, _ = ways_to_use(costs.most, costs.num_stages)
    so_far = start_of(costs, 1)[0]
    for of_stage, source in zip(times, sources, strict=True):
        least = np.full((source.shape[1] + 1, so_far.shape[-1]), np.inf)
        for c, came in enumerate(source):
            if np.isfinite(of_stage[c]).any():
                windows = windows_of(so_far, of_stage.shape[1])
                value = np.maximum(windows, of_stage[c][:, None, :]).min(axis=0)
                np.minimum(least[:-1], value[came], out=least[:-1])
        so_far = least
    found: Floats = so_far[:-1, -1]
    return found


class GroupPaths:
    """Shortest paths of one set of costs."""

    def __init__(self, costs: GroupCosts, is_up: Callable[[], bool] = lambda: False) -> None:
        """`is_up` tells whether the time is up: bounds then stay as they are."""
        self.costs, m, p = costs, costs.num_microbatches, costs.num_stages
        self.is_up = is_up
        self.sources, self.counts = ways_to_use(costs.most, p)
        """Behind them the numbers of stages of each class at the end, by state."""
        self.times = costs.forward + costs.backward
        self.longer = np.where(np.isfinite(self.times), np.maximum(costs.forward, costs.backward), 0.0)
        self.behind = p - 1 - np.arange(p)
        self.is_short = m < self.behind + 2
        self.is_few = m < FEW * p
        send = np.zeros(self.times.shape[:2]) if costs.sends is None else costs.sends
        self.send = send[:, :, None, None]
        slack = np.zeros(self.times.shape[:2]) if costs.slack is None else costs.slack
        self.slack = slack[:, :, None, None]
        self.extra = np.where(np.isfinite(self.times), costs.follow, 0.0) / p
        self.paces_ms = np.full(len(self.counts), np.inf)
        """Upper end of the piece that has the least bound, by `counts`, once they are bounded [ms]."""
        self.open_ms = 0.0, np.inf
        """Where the slowest stage lies in pieces below the limit, once they are bounded [ms]."""
        self.extra[0] += np.where(np.isfinite(self.times[0]), costs.reduction, 0.0)

    def least_ms(
        self, limit_ms: float, narrow: float = NARROW, within_ms: tuple[float, float] = ANY_TIME
    ) -> Floats:
        """What all plans take at least, by `counts` [ms]: no more than a finite limit; inf where none fits.

        Of each group the piece of least bound is cut again until it is narrow or above the limit.

        Parameters
        ----------
        narrow
            Width of a piece, relatively, that is cut no more; `WIDEST` for none to be cut.
        within_ms
            Where the slowest stage lies of every split that is looked for: of others nothing but the limit
            is said.
        """
        slowest = least_slowest_ms(self.costs)
        fits, begin = np.isfinite(slowest), max(float(slowest.min(initial=np.inf)), within_ms[0])
        most_ms = min(limit_ms / self.costs.num_microbatches, within_ms[1])
        if begin >= limit_ms / self.costs.num_microbatches or begin > most_ms:
            self.open_ms = NO_TIME
            return np.where(fits, limit_ms, np.inf)
        edges = np.geomspace(begin, min(most_ms, WIDE * begin), PIECES + 1)
        edges = np.append(edges, most_ms) if most_ms > edges[-1] else edges
        low, high = edges[:-1], edges[1:]
        value = self._shortest(low, high)
        while True:
            least = value.min(axis=0)
            at = np.unique(value.argmin(axis=0)[fits & (least < limit_ms)])
            at = at[(high[at] > low[at] * (1 + narrow)) & np.isfinite(high[at])]
            if not len(at) or self.is_up():
                break
            cut = np.linspace(low[at], high[at], PIECES + 1)
            closer = self._shortest(cut[:-1].ravel(), cut[1:].ravel())
            low, high = (
                np.append(np.delete(old, at), new) for old, new in ((low, cut[:-1]), (high, cut[1:]))
            )
            value = np.concatenate([np.delete(value, at, axis=0), closer])
        self.paces_ms = high[value.argmin(axis=0)]
        is_open = (value[:, fits] < limit_ms).any(axis=1)
        self.open_ms = float(low[is_open].min(initial=np.inf)), float(high[is_open].max(initial=0.0))
        return np.where(fits, np.minimum(least, limit_ms), np.inf)

    def _shortest(self, low: Floats, high: Floats) -> Floats:
        """The least over the splits whose slowest stage lies in a piece, [piece, group]."""
        m, inf = self.costs.num_microbatches, np.inf
        before = start_of(self.costs, len(low))
        long, side, short, late = (np.full_like(before, inf) for _ in range(4))
        for s, source in enumerate(self.sources):
            times = self.times[s]
            quick = times <= high[:, None, None, None]
            own, extra, send = np.where(quick, times, inf), self.extra[s], self.send[s]
            pace = np.maximum(own, low[:, None, None, None])
            if self.is_short[s] and m > 1:
                turn = own + (m - 1) * np.maximum(self.longer[s], pace / 2) + send
            elif self.is_short[s]:
                turn = own + send
            else:
                turn = (m - self.behind[s]) * pace + 2 * send
            turn = np.where(times + self.slack[s] >= low[:, None, None, None], turn + extra, inf)
            turned = ahead(before, turn, source)
            if self.is_short[0]:
                short = ahead(short, own + extra + send, source)
                late = ahead(late, (1 if self.is_short[s] else 2) * (own + send) + extra, source)
            if self.is_short[s]:
                long = side = np.full_like(turned, inf)
                slow = np.where(times + self.slack[s] >= low[:, None, None, None], own, inf)
                short = np.minimum(short, turned)
                late = np.minimum(late, ahead(before, slow + extra + send, source))
            else:
                long = np.minimum(ahead(long, 2 * own + extra + 2 * send, source), turned)
            if not self.is_short[s] and self.is_few:
                turn = turn - send + self.behind[s] * self.longer[s]
                side = np.minimum(ahead(side, own + extra + send, source), ahead(before, turn, source))
            before = ahead(before, own + extra + send, source)
            if not self.is_short[0]:
                short = late = np.full_like(long, inf)
        long = np.maximum(long, side) if self.is_few else long
        found: Floats = np.minimum(long, np.maximum(short, late))[:, :-1, -1]
        return np.maximum(found, (m * low)[:, None])
