"""Orders of the classes with whole layers of every stage that may keep a step below a limit.

Where orders are few all of them are looked at, with every number of whole layers on each stage that fits. One
of them at a time, that with the least bound, gets weights of the longest paths
(`formulations.interleaved_prices`), which bound all others as well, so that a few hundred close a hundred
thousand. The step is at least the end of stage 0, what it still reduces, what the slowest stage adds
afterwards, and what every plan adds.

Left are those whose layers may be dealt in fractions of chunks below the limit: often a handful, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from formulations.interleaved_paths import PathRow
from formulations.interleaved_prices import OrderedLayers, PathWeights, best_weights
from formulations.virtual_classes_data import VirtualClassesData
from formulations.virtual_selection_tables import fewest_layers, least_reduction_ms
from planner.cost.prices import Bools, Floats, Ints
from planner.search.orders import all_orders, count_orders

ROUNDING = 1e-9
"""Part of the limit by which a bound must exceed it."""
MOST_ORDERS, MOST_COMBINATIONS = 5_000, 400_000
"""Orders, and with whole layers, beyond which none are looked at. Guesses."""
MOST_OF_STAGE = 5_000
"""Forwards and backwards of a stage beyond which no paths are looked for. A guess."""
MOST_ROWS = 400
"""Rows (path) that are kept. A guess: with fewer more were needed."""


@dataclass(frozen=True)
class Combinations:
    """Orders with whole layers of every stage, arrays [combination]."""

    order: Ints
    """[combination, stage]"""
    layers: Ints
    """[combination, stage]"""

    def __len__(self) -> int:
        return len(self.order)

    def only(self, keep: Bools) -> Combinations:
        """Some of them."""
        return Combinations(self.order[keep], self.layers[keep])


def combinations(data: VirtualClassesData) -> Combinations | None:
    """All of a part; None where they are too many, or the stages of each class may vary."""
    p, counts = data.sample.num_stages, data.most.tolist()
    if int(data.most.sum()) != p or count_orders(counts) > MOST_ORDERS:
        return None
    orders = np.array(list(all_orders(counts)), dtype=np.int64).reshape(-1, p)
    can: Bools = np.asarray(data.fits.any(axis=2))
    orders = orders[can[orders, np.arange(p)].all(axis=1)]
    least = data.fits.argmax(axis=2)[orders, np.arange(p)]
    most = (data.fits.shape[2] - 1 - data.fits[:, :, ::-1].argmax(axis=2))[orders, np.arange(p)]
    order, layers = np.arange(len(orders)), np.zeros((len(orders), 0), dtype=np.int64)
    for s in range(p):
        left = data.sample.num_layers - layers.sum(axis=1)
        low = np.maximum(least[order, s], left - most[order, s + 1 :].sum(axis=1))
        high = np.minimum(most[order, s], left - least[order, s + 1 :].sum(axis=1))
        count = np.maximum(high - low + 1, 0)
        if int(count.sum()) > MOST_COMBINATIONS:
            return None
        which = np.repeat(np.arange(len(order)), count)
        number = low[which] + np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        fit = data.fits[orders[order[which], s], s, number]
        which, number = which[fit], number[fit]
        order, layers = order[which], np.concatenate([layers[which], number[:, None]], axis=1)
    return Combinations(orders[order], layers)


class PricedOrders:
    """Bounds combinations of one part below its cutoff.

    Parameters
    ----------
    most_rounds
        Rounds of rows, of all programs, after which none is begun.
    is_up
        Whether the time is up.
    """

    def __init__(
        self,
        data: VirtualClassesData,
        some: Combinations,
        most_rounds: float = np.inf,
        is_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.data, self.most_rounds, self.is_up = data, most_rounds, is_up
        self.rounds = 0
        """Rounds of rows of all programs."""
        self.open = some
        """Those that are below the limit, or have not been looked at."""
        self.bounds_ms: Floats = np.full(len(some), -np.inf)
        """[combination] of their steps."""
        self._rows: list[PathRow] = []
        self._limit_ms = data.cutoff_ms * (1 + ROUNDING)
        self._gather(data)

    def _gather(self, data: VirtualClassesData) -> None:
        """Arrays [stage, class], [stage, class, chunk] and [stage, class, n]."""
        one, number, width = data.sample, len(data.most), data.sample.num_layers + 1
        p, v = one.num_stages, one.virtual_stages
        fewest, n = fewest_layers(one), np.arange(width)
        self._more: Floats = np.maximum(n - fewest.sum(axis=1)[:, None], 0.0)
        self._forward, self._backward = np.zeros((2, p, number))
        self._base_forward, self._base_backward = np.zeros((2, p, number, v))
        self._extra, self._follow = np.zeros((2, p, number, width))
        self._reduction = np.zeros((number, width))
        """[class, n] of stage 0."""
        for c, one in data.classes.items():
            forward, backward = one.stage.forward_ms[:, None], one.stage.backward_ms[:, None]
            base_forward, base_backward = one.base_ms()
            extra = data.tables[c].backward_ms - backward * n - base_backward.sum(axis=1)[:, None]
            self._forward[:, c], self._backward[:, c] = forward[:, 0], backward[:, 0]
            self._base_forward[:, c] = base_forward + forward * fewest
            self._base_backward[:, c] = base_backward + backward * fewest
            self._extra[:, c] = np.where(data.fits[c], np.maximum(extra, 0.0), 0.0)
            self._follow[:, c] = np.where(data.fits[c], data.tables[c].follow_ms, 0.0)
            self._reduction[c] = least_reduction_ms(one, data.tables[c])[0]

    def run(self, most_orders: int) -> float:
        """Bound of all plans of the part [ms], at most the limit; those below it are left in `open`.

        Where more orders are left than so many it stops.
        """
        held: list[tuple[Combinations, float]] = []
        after = self._after_ms(self.open)
        while len(self.open) and self.rounds < self.most_rounds and not self.is_up():
            i = int(np.argmin(self.bounds_ms))
            if len({tuple(some.order[0].tolist()) for some, _ in held}) > most_orders:
                break
            one = self._one(i)
            limit_ms = self._limit_ms - float(after[i])
            found = best_weights(one, self.data.sample.stage.num_microbatches, self._rows, limit_ms)
            self._rows, self.rounds = self._rows[-MOST_ROWS:], self.rounds + found.rounds
            ends_ms = self._ends_ms(found.weights, self.open)
            self.bounds_ms = np.maximum(self.bounds_ms, ends_ms + after)
            keep = self.bounds_ms <= self._limit_ms
            if keep[i]:
                held.append((self.open.only(np.arange(len(keep)) == i), float(self.bounds_ms[i])))
                keep[i] = False
            self.open, self.bounds_ms, after = self.open.only(keep), self.bounds_ms[keep], after[keep]
        for some, bound_ms in held:
            both = (np.concatenate(pair) for pair in zip(_arrays(self.open), _arrays(some), strict=True))
            self.open, self.bounds_ms = Combinations(*both), np.append(self.bounds_ms, bound_ms)
        return float(self.bounds_ms.min(initial=self.data.cutoff_ms))

    def _one(self, i: int) -> OrderedLayers:
        """Times of one combination."""
        order, layers = self.open.order[i], self.open.layers[i]
        s = np.arange(len(order))
        return OrderedLayers(
            forward_ms=self._forward[s, order],
            backward_ms=self._backward[s, order],
            base_forward_ms=self._base_forward[s, order],
            base_backward_ms=self._base_backward[s, order],
            more=self._more[s, layers],
            extra_ms=self._extra[s, order, layers],
            send_ms=self.data.hop_ms[order, np.roll(order, -1)],
        )

    def _ends_ms(self, weights: PathWeights, some: Combinations) -> Floats:
        """The bound (price) of the end of stage 0, [combination]."""
        forward, backward = weights.forward[:, None], weights.backward[:, None]
        base = (forward * self._base_forward + backward * self._base_backward).sum(axis=2)
        price = (forward * self._forward[..., None] + backward * self._backward[..., None]).min(axis=2)
        least = base[..., None] + price[..., None] * self._more[:, None]
        least += self._extra * weights.backward.min(axis=1)[:, None, None]
        sends = self.data.hop_ms[some.order, np.roll(some.order, -1, axis=1)] @ weights.sends
        s = np.arange(some.order.shape[1])
        ends: Floats = least[s, some.order, some.layers].sum(axis=1) + sends
        return ends

    def _after_ms(self, some: Combinations) -> Floats:
        """What follows the end of stage 0, [combination]."""
        follow = self._follow[np.arange(some.order.shape[1]), some.order, some.layers].max(
            axis=1, initial=0.0
        )
        reduction = self._reduction[some.order[:, 0], some.layers[:, 0]]
        after: Floats = reduction + follow + self.data.sample.stage.constant_ms
        return after

    def by_order(self) -> list[tuple[float, VirtualClassesData]]:
        """Orders that are left with their bounds [ms], each as a part with the layers that are left."""
        orders, which = np.unique(self.open.order, axis=0, return_inverse=True)
        found = []
        for i, order in enumerate(orders):
            at = np.flatnonzero(which.ravel() == i)
            fits = np.zeros_like(self.data.fits)
            fits[order, np.arange(len(order)), self.open.layers[at]] = True
            found.append((float(self.bounds_ms[at].min()), replace(self.data, fits=fits)))
        return found


def _arrays(some: Combinations) -> tuple[Ints, Ints]:
    return some.order, some.layers
