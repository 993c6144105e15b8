"""Chains as columns: the stages of a box's best chain, with the replicas that suit them best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Boxes, Column, Found, Picked, rows_ms
from planner.search.replicas.chains import Chains, Kind
from planner.search.replicas.space import Ints
from planner.tolerances import ROUNDING_TOL

UNFIT_MS = 1e15
"""Time of stages that do not fit with some number of replicas."""


class Least:
    """Least times of the stages of a kind."""

    def __init__(self, chains: Chains, number: int) -> None:
        self.times_ms = chains.least_times(number)
        """[item, n] at any place."""
        stages = [*chains.stages(number, 0, 1), *(chains.stages(number, 1, 1) if chains.longest > 1 else ())]
        self.forward_ms: Floats = np.min([place.forward for place in stages], axis=0)
        """[item, n] forward at any place."""
        self.most_forward_ms: Floats = np.max([place.most_forward for place in stages], axis=0)
        """[item, n] the same at most, with a send to one side."""
        self.after_ms = chains.least_after_ms(number)
        """What follows the pipeline."""
        self._by_class = [
            _chips_of_layer(self.times_ms[own, 1:], chains.tensor_parallel[own])
            for own in (chains.node_class == c for c in range(len(chains.available)))
        ]
        self.room = chains.room(number)
        """[class] chips that a chain may take."""

    def pace(self, low_ms: Floats, high_ms: Floats) -> Floats:
        """Most share of the forward in a stage's time, if that lies in some interval, [box]."""
        fits = self.times_ms <= high_ms[:, None, None]
        time = np.where(fits, np.maximum(self.times_ms, low_ms[:, None, None]), np.inf)
        most: Floats = np.minimum((self.most_forward_ms / time).max(axis=(1, 2)), 1.0)
        return most

    def chips_of_layer(self, most_ms: Floats) -> Floats:
        """Least chips of a layer on stages no slower than some times, inf for none, [box, class]."""
        found = np.empty((len(most_ms), len(self._by_class)))
        for c, (times, chips) in enumerate(self._by_class):
            found[:, c] = np.append(np.inf, chips)[np.searchsorted(times, most_ms, side="right")]
        return found

    def worth_of_chain(self, worth: Floats, num_layers: int, most_ms: Floats) -> Floats:
        """Least worth of a chain's chips on stages no slower than some times, inf where none is, [box].

        The layers go to the classes where one is worth least, as far as the chips of each reach.

        Parameters
        ----------
        worth
            [class] what a chip is worth.
        """
        chips = self.chips_of_layer(most_ms)
        there = np.isfinite(chips)
        of_layer = np.where(there, np.where(there, chips, 0.0) * worth, np.inf)
        order = np.argsort(of_layer, axis=1, kind="stable")
        sorted_worth = np.take_along_axis(of_layer, order, axis=1)
        room = np.take_along_axis(self.room / chips, order, axis=1)
        before = np.minimum(np.cumsum(room, axis=1) - room, num_layers)
        placed = np.minimum(before + room, num_layers) - before
        total: Floats = (np.where(placed > 0, sorted_worth, 0.0) * placed).sum(axis=1)
        total[placed.sum(axis=1) < num_layers * (1 - 1e-12)] = np.inf
        return total


def _chips_of_layer(times_ms: Floats, tensor_parallel: Ints) -> tuple[Floats, Floats]:
    """Times of stages in ascending order, and the least chips of a layer up to each."""
    order = np.argsort(times_ms, axis=None, kind="stable")
    item, layers = np.divmod(order, times_ms.shape[1])
    chips: Floats = np.minimum.accumulate(tensor_parallel[item] / (layers + 1))
    return times_ms.ravel()[order], chips


def found_chain(
    chains: Chains,
    boxes: Boxes,
    row: int,
    picked: Sequence[Picked],
    worth: Floats,
    slow: int,
    share: float,
    by_partial: bool,
) -> Found:
    """The chain of a box by its stages, in pipeline order; `worth` is that of the chips of each item."""
    number, least_m = int(boxes.kind[row]), int(boxes.least_m[row])
    kind, p = chains.kinds[number], len(picked)
    size = kind.microbatch_size
    # The chain with any number of replicas, and with the fewest and the most.
    ends = sorted({kind.first, kind.end - 1})
    own = [chains.number(Kind(size, degree, degree + 1)) for degree in ends]
    degrees = np.array([chains.most_replicas(k) for k in (number, *own)])
    places = np.array(
        [
            [
                chains.stages(k, p - 1 - s, min(least_m, p - s))[int(s > 0)].of(stage.item, stage.layers)
                for s, stage in enumerate(picked)
            ]
            for k in (number, *own)
        ]
    )
    unfit = ~np.isfinite(places[:, :, 0]).all(axis=1)
    places[unfit, :, :2] = UNFIT_MS
    stages_ms, after_ms, forward_ms = places[:, :, 0], places[:, :, 1], places[0, :, 2]
    items = [stage.item for stage in picked]
    hop = np.array([chains.hops_ms(k)[items] for k in (number, *own)])
    before_ms, behind_ms, gain_ms = _ways(stages_ms, forward_ms, after_ms, hop)
    adapters = float(chains.adapters[items].sum())
    exchange_ms = np.maximum(1 / (adapters * degrees) - chains.exchange_ms, 0.0)
    before_ms = before_ms + exchange_ms[:, None]
    asked = float(worth[items].sum())
    m = max(int(np.ceil(asked / size * (1 - ROUNDING_TOL))), 1)
    times = rows_ms(stages_ms, before_ms, behind_ms, m)
    chips = np.zeros(len(chains.available))
    np.add.at(chips, chains.node_class[items], chains.tensor_parallel[items])
    times[unfit | (degrees * size * m > chains.batch)] = np.inf
    best = 1 + int(np.argmin(times[1:]))
    # With no more stages than micro-batches no stage ever holds more of them.
    most_m = chains.batch // (size * int(degrees[best]))
    if p > least_m:
        most_m = min(most_m, int(boxes.most_m[row]))
    column = Column(
        kind=own[best - 1],
        items=tuple(items),
        layers=tuple(stage.layers for stage in picked),
        chips=tuple(chips.tolist()),
        microbatch_size=size,
        most_m=most_m,
        stages_ms=tuple(stages_ms[best].tolist()),
        before_ms=tuple(before_ms[best].tolist()),
        behind_ms=tuple(behind_ms[best].tolist()),
    )
    whole_ms = float(rows_ms(stages_ms[0], before_ms[0], behind_ms[0], m))
    loss_ms = float(times[best]) - whole_ms if not kind.is_single else 0.0
    gain = float(gain_ms[best, slow])
    later = np.array(column.stages_ms[slow + 1 :])
    behind = float((least_m * later + before_ms[best, slow + 1 :]).max(initial=0.0))
    return Found(column, asked, slow, share, by_partial, adapters, gain, behind, loss_ms)


def _ways(
    stages_ms: Floats, forward_ms: Floats, after_ms: Floats, hop: Floats
) -> tuple[Floats, Floats, Floats]:
    """What comes before each stage and after the pipeline, and the way from it to the last one and back.

    The third array is by how much the end of the stage itself leaves more than that of the first one.
    """
    p = stages_ms.shape[1]
    ahead, back = hop * (np.arange(p) > 0), hop * (np.arange(p) < p - 1)
    both, into = stages_ms + ahead + back, forward_ms + (ahead + back) / 2
    whole = np.cumsum(both, axis=1) - both + ahead + after_ms[:, :1]
    own = np.cumsum(into, axis=1) - into + ahead / 2 + after_ms
    behind = np.cumsum(both[:, ::-1], axis=1)[:, ::-1] - both + back
    return np.maximum(whole, own), behind, own - whole
