"""How many layers the stages of an interleaved pipeline can hold if its step is to beat a limit.

With t[s] the time of a micro-batch on all chunks of s, `formulations.interleaved_rows` (wait, k = 0) says

    T >= m t[s] + sum_{i<s} (f[i,0] + b[i,0] + 2 c[i]) + (what follows the pipeline)

for every stage s, with what stage 0 reduces at least among what follows, and without the way back (b[i,0] and
one c[i] of every i) but with what s itself reduces. So a limit on T is one on the layers of each stage, by
class and place, memory and
recomputation included (`formulations.virtual_selection_tables`). Where sends block, every chunk of a stage
also takes its quickest sends forth and back, instead of the c[i]. Where the stages together cannot hold the
model's layers in any order of the classes no plan beats the limit. Chunk 0 of the stages before s takes what
a layer takes on the fastest classes that there are. How many prices are tried is a guess; any of them bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_rows import dealt_factors
from planner.cost.prices import Floats
from planner.search.virtual.assignment import UNFIT, most_layers
from planner.search.virtual.prefixes import Places
from planner.search.virtual.tables import StageTimes

ROUNDING = 1e-9
"""Part of a limit by which the row must exceed it, and of the layers by which the stages must miss them."""
SECTIONS = 16
"""Pieces of the interval between a part's bound and the cutoff, and again of the piece that decides."""
HALVINGS = 6
"""Halvings of the interval that is left for the row (dealt)."""
PRICES = 8
"""Prices of a layer that are tried at once, and again between the neighbours of the best."""
BARRED = 1e3
"""Cost of a stage that holds nothing below a limit, by the limit."""
WALKS = 40
"""Steps of all prices together, where a bound is worth it."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class VirtualLimits:
    """Part of the orders: stages of each class, and the classes of the first stages."""

    fewest: tuple[int, ...]
    most: tuple[int, ...]
    prefix: tuple[int, ...] = ()


class Capacity:
    """What the stages of one part hold; values are steps in ms."""

    def __init__(
        self,
        tables: StageTimes,
        limits: VirtualLimits,
        num_microbatches: int,
        *,
        sends_block: bool,
    ) -> None:
        num_stages, self.num_layers = tables.times_ms.shape[1], tables.times_ms.shape[2] - 1
        fewest, most = np.array(limits.fewest), np.array(limits.most)
        # Stages that the other classes cannot have are left to a class, and the other way round.
        self.fewest = np.maximum(fewest, num_stages - (most.sum() - most))
        self.most = np.minimum(most, num_stages - (self.fewest.sum() - self.fewest))
        self.allowed = np.repeat((self.most > 0)[:, None], num_stages, axis=1)
        for s, c in enumerate(limits.prefix):
            self.allowed[:, s] = np.arange(len(self.most)) == c
        self.blocked_ms = self._blocked_ms(tables, sends_block=sends_block)
        first = tables.first_ms + self.blocked_ms[:, None]
        first[:, 0] -= self.blocked_ms  # nothing comes before it, and it sends nothing back
        hops = np.zeros_like(tables.hop_ms) if sends_block else tables.hop_ms
        fill = self._fill_ms(first, limits.prefix, 2 * hops)
        there = self._fill_ms(tables.first_forward_ms, limits.prefix, hops)
        can_be_first = self.allowed[:, 0, None] & np.isfinite(tables.times_ms[:, 0])
        tail = float(np.where(can_be_first, tables.least_reduction_ms, np.inf).min())
        after = tables.follow_ms + tables.constant_ms
        blocked = tables.virtual_stages * self.blocked_ms[:, None].repeat(num_stages, axis=1)
        blocked[:, [0, -1]] -= self.blocked_ms[
            :, None
        ]  # nothing comes before the first chunk, nor after the last
        times = tables.times_ms + blocked[:, :, None]
        with np.errstate(invalid="ignore"):
            work = np.where(self.allowed[:, :, None], num_microbatches * times + after, np.inf)
            own = work + tables.reduction_ms
        alone = work + tail
        alone[:, 0] = own[:, 0]
        self.places = Places(alone, first, hops, self.fewest, self.most, tables.follow_ms)
        """What each stage takes wherever it stands."""
        self.values_ms = np.maximum(alone + fill[None, :, None], own + there[None, :, None])
        """[class, stage, n] least step where that stage holds n layers."""
        share = np.arange(num_stages) / tables.virtual_stages
        even = np.where(np.isfinite(times), times, 0.0) * share[None, :, None]
        self.likely_ms = self.values_ms + np.maximum(even - fill[None, :, None], 0.0)
        """The same if chunks of the stages before take as long as its own: no bound, but near."""
        self._or_more: dict[bool, Floats] = {}
        used = np.flatnonzero(self.most > 0)
        hop = 0.0 if sends_block else float(tables.hop_ms[np.ix_(used, used)].min())
        of_stage, of_send = dealt_factors(num_stages, num_microbatches, tables.virtual_stages)
        self.mean_ms = of_stage[:, None] * times + tables.follow_ms / num_stages
        """[class, stage, n] w, of the row (dealt)."""
        held = np.where(np.isfinite(self.mean_ms), self.mean_ms, 0.0)
        self.most_price_ms = 2 * float((held[:, :, 1:] / np.arange(1, self.num_layers + 1)).max())
        """Price of a layer beyond which the row is surely no larger."""
        self.beside_ms = hop * float(of_send.sum()) + tail + tables.constant_ms
        """What that row counts beside it."""

    def _blocked_ms(self, tables: StageTimes, *, sends_block: bool) -> Floats:
        """Least time that the sends of a chunk keep a stage busy, [class]: one forth and one back."""
        used = self.most > 0
        if not sends_block or tables.times_ms.shape[1] == 1:
            return np.zeros(len(used))
        hop = np.where(used[:, None] & used[None, :], tables.hop_ms, np.inf)
        return np.where(used, hop.min(axis=1) + hop.min(axis=0), 0.0)

    def _fill_ms(self, first: Floats, prefix: tuple[int, ...], sends: Floats) -> Floats:
        """Least time that a micro-batch takes to reach each stage, and perhaps to come back from it, [stage].

        Parameters
        ----------
        first
            [class, stage] what chunk 0 takes of it.
        sends
            [class, class] between neighbours.
        """
        fixed = list(prefix)
        num_stages, left = first.shape[1], self.most.copy()
        np.subtract.at(left, fixed, 1)
        used = np.flatnonzero(self.most > 0)
        inner = first[:, min(1, num_stages - 1)]
        one = inner[fixed].tolist()
        pool = np.sort(np.repeat(inner[used], np.maximum(left[used], 0)))
        taken = np.concatenate([one, pool])[:num_stages]
        starts = used if not fixed else np.array(fixed[:1])
        embedding = float((first[starts, 0] - inner[starts]).min())
        send = float(sends[np.ix_(used, used)].min())
        fill = np.concatenate([[0.0], np.cumsum(taken)[: num_stages - 1] + embedding])
        result: Floats = fill + send * np.arange(num_stages)
        return result

    def fits(self, limit_ms: float, follow_ms: float = 0.0) -> Bools:
        """Numbers of layers with which a stage keeps below the limit, [class, stage, n].

        Parameters
        ----------
        follow_ms
            What some stage of every plan below the limit adds after the pipeline, at least.
        """
        with np.errstate(invalid="ignore"):
            more = np.maximum(follow_ms - self.places.follow_ms, 0.0)
        kept: Bools = self.values_ms + more <= limit_ms
        return kept

    def holds(self, limit_ms: float, *, likely: bool = False) -> bool:
        """Whether the stages may hold all layers below the limit; never wrongly no, unless `likely`."""
        return bool(self._hold(np.array([limit_ms]), likely=likely)[0])

    def _hold(self, limits_ms: Floats, *, likely: bool) -> Bools:
        """The same for many limits [limit]."""
        if likely not in self._or_more:
            values = self.likely_ms if likely else self.values_ms
            self._or_more[likely] = np.minimum.accumulate(values[:, :, ::-1], axis=2)[:, :, ::-1]
        fits = self._or_more[likely] <= limits_ms[:, None, None, None]
        most = fits.sum(axis=3) - 1.0
        most = np.where(most < 0, UNFIT, most)
        most = np.where(self.allowed, most, UNFIT * fits.shape[2])
        held: Bools = most_layers(most, self.fewest, self.most) >= self.num_layers
        return held

    def raised_ms(self, low_ms: float, high_ms: float) -> float:
        """The same with more prices tried and the row (dealt), which takes longer.

        Where the least step that would be told apart is kept, as mostly, so are all beyond it.
        """
        if self._may_keep_below(low_ms + (high_ms - low_ms) / 2**HALVINGS):
            return low_ms
        for _ in range(HALVINGS):
            middle_ms = (low_ms + high_ms) / 2
            if self._may_keep_below(middle_ms):
                high_ms = middle_ms
            else:
                low_ms = middle_ms
        return low_ms

    def _may_keep_below(self, limit_ms: float) -> bool:
        """Whether neither the layers nor the row (dealt) say that no plan does."""
        fits = self.fits(limit_ms)
        layers = np.arange(self.num_layers + 1)
        most = np.where(fits, layers, UNFIT).max(axis=2)
        needed = self.num_layers * (1 - ROUNDING)
        if most_layers(most, self.fewest, self.most, WALKS, np.array(needed)) < needed:
            return False
        return self.least_mean_ms(limit_ms) <= limit_ms * (1 + ROUNDING)

    def least_mean_ms(self, limit_ms: float) -> float:
        """Row (dealt) at its least over stages that keep below a limit, or more than it; never too large."""
        layers = np.arange(self.num_layers + 1)
        mean_ms = np.where(self.fits(limit_ms), self.mean_ms, BARRED * limit_ms)
        low, high, best = 0.0, self.most_price_ms, 0.0
        for _ in range(2):
            prices = np.linspace(low, high, PRICES + 1)
            costs = np.min(mean_ms - prices[:, None, None, None] * layers, axis=3)
            enough = prices * self.num_layers + self.beside_ms - limit_ms * (1 + 2 * ROUNDING)
            values = prices * self.num_layers - most_layers(-costs, self.fewest, self.most, WALKS, enough)
            at = int(np.argmax(values))
            best = max(best, float(values[at]))
            if best + self.beside_ms > limit_ms * (1 + ROUNDING):
                break
            low, high = float(prices[max(at - 1, 0)]), float(prices[min(at + 1, PRICES)])
        return best + self.beside_ms

    def bound_ms(self, low_ms: float, high_ms: float, *, likely: bool = False) -> float:
        """Least step for which the stages may hold all layers, between a bound that is known and a limit."""
        for _ in range(2):
            limits = np.linspace(low_ms, high_ms, SECTIONS + 1)
            held = self._hold(limits[1:], likely=likely)
            if not held.any():
                return high_ms
            first = int(np.argmax(held))
            low_ms, high_ms = limits[first : first + 2].tolist()
        return low_ms
