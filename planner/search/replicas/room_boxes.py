"""Boxes of pipelines with one number of replicas, by the time of their slowest stage, and what stages cost.

A chain of p stages, of which the slowest take between a and a', runs m micro-batches. Let s be one of the
slowest, with t[s] = f + g its passes, q the stages behind it, x the way from it to the last one and back, and
S the time of all stages with the sends on both of their sides and with what follows the first of them. The
rows of `formulations.pipeline_rows` say

    T >= S + (m - 1) t[s] + max(0, x - q f) + max(0, x - q g) - x    (partial), m >= q + 2
    T >= S + (m - 1) max(f, g)                                       (window), m <= q + 1

No stage takes longer than t[s], and min(f, g) <= rho t[s] with rho the most share of the forward in a stage's
time, or a half. With e[i] the sends at stage i, and at the first one what follows it, both of these hold:

    T >= (m - 1) a + sum_i (min(t[i], 2 t[i] - a) + e[i]), less rho (M - 1) a unless p < m    (twice)
    T >= (m - 1 + rho) a + sum_i (t[i] - rho a + e[i])                                        (once)

where m <= M. Proof of (twice): the last terms of (partial) are x - q t[s] or more, of which each stage i
behind s counts t[i] - t[s] or more. With t[i] that makes 2 t[i] - t[s], less than min(t[i], 2 t[i] - a) by
t[s] - a at most; there are q <= m - 2 of them, for which (m - 1) t[s] in the place of (m - 1) a makes up.
Stages ahead of s count t[i]. In (window) max(f, g) >= (1 - rho) t[s]. Proof of (once): the last terms of
(partial) are least at x = q max(f, g), where they are -q min(f, g) >= -q rho t[s], and q < p. In (window)
m <= q + 1 <= p, so that (m - 1)(1 - rho) a >= (m - 1 + rho - rho p) a.

Let a chain's chips be worth W sequences, w[i] at stage i, and d its replicas of b sequences. With the cost

    c[i] = (min(t[i], 2 t[i] - a) + e[i]) / a + w[i] / b

of a stage, D >= T says that m <= D / a + 1 - sum_i c[i] + W / b, so that the pipeline gains

    d (b m - W) <= d b (D / a + 1 - sum_i c[i])

by (twice), and by (once) in the same way. The least sum of the costs is a shortest path over the stages and
layers (`planner.search.replicas.room_floors`). Stages are told apart by how many are behind them, as those
hold more micro-batches, or as many as the chain has at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Bools
from planner.search.replicas.chains import Chains
from planner.search.replicas.columns import Least
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL

ENDS = 2
"""Stages behind one from which on it has others on both sides, or is the first of them."""


@dataclass(frozen=True)
class RoomBoxes:
    """Boxes of one kind, arrays [box]."""

    low: Floats
    high: Floats
    """The slowest stage takes `low` to `high` [ms]."""
    worth: Floats
    """Micro-batches that the chips of a chain are worth at least."""
    least_m: Ints
    most_m: Ints
    """Micro-batches of those that are asked for."""
    once: bool = False
    """Whether (once) counts, not (twice)."""

    def __len__(self) -> int:
        return len(self.low)

    def at(self, rows: Ints | Bools, *, once: bool = False) -> RoomBoxes:
        """Some of them."""
        low, high, worth = self.low[rows], self.high[rows], self.worth[rows]
        return RoomBoxes(low, high, worth, self.least_m[rows], self.most_m[rows], once)

    @staticmethod
    def join(parts: Sequence[RoomBoxes]) -> RoomBoxes:
        """All of several."""
        low, high, worth = (np.concatenate([getattr(p, n) for p in parts]) for n in ("low", "high", "worth"))
        least_m, most_m = (np.concatenate([getattr(p, n) for p in parts]) for n in ("least_m", "most_m"))
        return RoomBoxes(low, high, worth, least_m, most_m)


@dataclass(frozen=True)
class _Place:
    """Stages with as many behind them, arrays [item, n], n = 0 unused."""

    times: Floats
    more: Floats
    """Sends, and at the first stage what follows it."""


def _tables(places: list[_Place]) -> tuple[Floats, Floats]:
    """Times, and times with what comes beside them, [place, item, n]."""
    times = np.array([place.times for place in places])
    return times, times + np.array([place.more for place in places])


class Places:
    """Stages of chains of one kind that run some number of micro-batches or more."""

    def __init__(
        self, chains: Chains, least: Least, number: int, held: int, price: Floats, levels: Ints | None = None
    ) -> None:
        """`levels` are the numbers of micro-batches held that are told apart, all by default.

        Those between count as the one below, which takes no more memory and no more time.
        """
        self.chains, self.number = chains, number
        kind, levels = chains.kinds[number], chains.held if levels is None else levels
        self.size, self.replicas = kind.microbatch_size, chains.replicas_of(number)[0]
        self.num_layers = chains.num_layers
        self.longest = min(chains.longest, int((chains.available // self.replicas).sum()))
        self.worth: Floats = price[chains.node_class] * chains.tensor_parallel / self.size
        """[item] micro-batches that the chips of a stage are worth."""
        pace = float(least.pace(np.zeros(1), np.full(1, np.inf))[0])
        # The forward may be more of the time with one number of replicas than of the least times of several.
        self.rho = min(pace, 0.5) if kind.is_single else 0.5
        hop = chains.hops_ms(number)[:, None]
        self.place_of: list[int] = []
        """By the stages behind, number of what stands there."""
        self.first: list[_Place] = []
        self.inner: list[_Place] = []
        last: tuple[int, int] | None = None
        for behind in range(self.longest):
            level = int(levels[np.searchsorted(levels, min(held, behind + 1), side="right") - 1])
            key = level, min(behind, ENDS)
            if key != last:
                first, inner = chains.stages(number, behind, level)
                after = np.where(np.isfinite(first.times), first.after + hop * (behind > 0), np.inf)
                self.first.append(_Place(first.times, after))
                self.inner.append(_Place(inner.times, np.broadcast_to(hop * (1 + (behind > 0)), after.shape)))
                last = key
            self.place_of.append(len(self.first) - 1)

        self._first_tables, self._inner_tables = _tables(self.first), _tables(self.inner)
        self._rough_tables = tuple(
            (times.min(axis=0)[None], own.min(axis=0)[None])
            for times, own in (self._first_tables, self._inner_tables)
        )
        """The least of all places, as if they were one."""
        least_of_both = [times.min(axis=(0, 1)) for times, _ in self._rough_tables]
        self._least_times: Floats = np.minimum(*least_of_both)
        """[n]"""

    def times_ms(self) -> Floats:
        """All times of stages at some place, ascending."""
        times = [place.times[np.isfinite(place.times)] for place in (*self.first, *self.inner)]
        return np.unique(np.concatenate(times))

    def width(self, boxes: RoomBoxes) -> int:
        """Most layers of a stage of any box."""
        return int(self._widths(self._least_times[None], float(boxes.high.max()) * (1 + COUNT_TOL))[0])

    @staticmethod
    def _widths(times: Floats, highest: float) -> Ints:
        """Most layers that take a time or less, [item, n] -> [item]."""
        fits = times <= highest
        fits[:, 0] = False
        widths: Ints = np.where(fits.any(axis=1), times.shape[1] - 1 - np.argmax(fits[:, ::-1], axis=1), 0)
        return widths

    def most(self, boxes: RoomBoxes, deadline_ms: float) -> Floats:
        """What the micro-batches and the costs of a chain's stages are by a deadline at most, [box]."""
        return deadline_ms / boxes.low + 1 - (self.rho if boxes.once else 0.0)

    @property
    def num_places(self) -> int:
        """Places that are told apart."""
        return len(self.first)

    def costs(self, boxes: RoomBoxes, number: int, width: int, *, is_first: bool) -> Floats:
        """Costs of the stages of a place, inf where there is none, [item, box, n] for n = 0 .. `width`."""
        place = (self.first if is_first else self.inner)[number]
        low = boxes.low[:, None]
        times = place.times[:, None, : width + 1]
        counted = times - self.rho * low if boxes.once else np.minimum(times, 2 * times - low)
        with np.errstate(invalid="ignore"):
            own = (counted + place.more[:, None, : width + 1]) / low + self.worth[:, None, None]
        fits = times <= boxes.high[:, None] * (1 + COUNT_TOL)
        fits[:, :, 0] = False
        costs: Floats = np.where(fits, own, np.inf)
        return costs

    def least_costs(
        self, boxes: RoomBoxes, width: int, *, is_first: bool, num_places: int | None = None
    ) -> Floats:
        """The least of the costs over the items, [place, box, n].

        Of the first `num_places`, or of all places as one where it is None: a cost rises with the time of a
        stage and with what comes beside it, so that the least of both is no more than at any place.
        """
        if num_places is None:
            times, own = self._rough_tables[0 if is_first else 1]
        else:
            times, own = self._first_tables if is_first else self._inner_tables
        times, own = times[:num_places, ..., : width + 1], own[:num_places, ..., : width + 1]
        found = np.full((len(times), len(boxes), width + 1), np.inf)
        scale, high = 1 / boxes.low[:, None], boxes.high[:, None] * (1 + COUNT_TOL)
        widths = self._widths(times.min(axis=0), float(high.max())).tolist()
        fits_all = (times <= float(high.min())).all(axis=0)
        for item, most in enumerate(widths):
            # Most items have far fewer layers than the widest.
            passes, beside = times[:, item, None, 1 : most + 1], own[:, item, None, 1 : most + 1]
            costs = beside * scale
            if not boxes.once:
                less = passes * scale
                less -= 1
                np.minimum(less, 0.0, out=less)
                costs += less
            costs += self.worth[item]
            cut = np.flatnonzero(~fits_all[item, 1 : most + 1])
            if len(cut):
                begin = int(cut[0])
                np.copyto(costs[..., begin:], np.inf, where=passes[..., begin:] > high)
            least = found[:, :, 1 : most + 1]
            np.minimum(least, costs, out=least)
        return found - self.rho if boxes.once else found

    def less_late(self, boxes: RoomBoxes, behind: Ints) -> Floats:
        """What (twice) may take off chains whose first stage has some others behind it, [behind, box]."""
        if boxes.once:
            return np.zeros((len(behind), len(boxes)))
        stages = behind[:, None] + 1
        less: Floats = np.where(
            stages >= boxes.least_m, self.rho * (np.minimum(boxes.most_m, stages) - 1), 0.0
        )
        return less
