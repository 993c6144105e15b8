"""What the search knows of a row of degrees and a number of stages: stage times by class and layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from formulations.stage_selection_data import StageSelectionData, exposed_reduction_ms
from formulations.stage_selection_tables import (
    RecomputeTable,
    least_bottleneck_ms,
    least_recompute,
    stage_times_ms,
)
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search import shared
from planner.search.coefficients import entry_coefficients, stage_coefficients
from planner.search.degrees import DegreeTable
from planner.search.entries import entries_of, order_hops_s
from planner.search.heuristics.local import first_layers
from planner.search.walks.dual import dual_bounds_ms, in_pieces
from planner.units import MS

T = TypeVar("T")

BISECTIONS = 30
"""Halvings of a bottleneck interval: its lower end, a valid bound, is then within 1e-9 of its width."""


@dataclass(frozen=True)
class ClassTables:
    """Times of one micro-batch on a stage with least recomputation, sends left out."""

    times_ms: Floats
    """[node_class, stage, n] forward and backward; inf where n layers do not fit or the class is out."""
    forward_ms: Floats
    """[node_class, stage, n] forward alone."""
    backward_ms: Floats
    """[node_class, stage, n] backward alone."""
    follow_ms: Floats
    """[node_class, stage, n] optimizer, exposed gathering and what else follows the pipeline."""
    reduce_ms: Floats
    """[node_class, stage, n] exposed reduction with its tail."""
    tied_ms: Floats
    """[node_class, node_class] sharing of an embedding with these at the ends; inf where one is out."""

    @property
    def constant_ms(self) -> float:
        """The least that every plan adds to the step."""
        return float(self.tied_ms.min())


@dataclass(frozen=True)
class Start:
    """What a search for good layers begins with."""

    data: StageSelectionData
    recompute: RecomputeTable
    bottleneck_ms: float
    """Least possible time of the slowest stage; inf where nothing fits."""
    layers: NDArray[np.int64] | None
    """Layers whose slowest stage is as fast as possible; None where nothing fits."""

    @property
    def least_step_ms(self) -> float:
        """What no step of these stages undercuts: the slowest works through all micro-batches."""
        return self.data.num_microbatches * self.bottleneck_ms + self.data.constant_ms


def start_of(data: StageSelectionData) -> Start:
    """What follows from the coefficients of an order before any layer is placed."""
    recompute = least_recompute(data)
    bottleneck_ms = least_bottleneck_ms(data, recompute)
    return Start(data, recompute, bottleneck_ms, first_layers(data, recompute, bottleneck_ms))


class Tables:
    """Coefficients by row of degrees, kept while the search comes back to them."""

    shares = True
    """Whether they follow from the problem alone, so that searches of one process may share them."""

    def __init__(self, problem: Problem, prices: Prices, table: DegreeTable) -> None:
        self.problem, self.prices, self.table = problem, prices, table
        self._class_tables = lru_cache(maxsize=48)(self._compute)
        self._shared = shared.current() if self.shares else None
        self._key = None if self._shared is None else shared.table_key(problem)

    def data(self, choice: int, class_of_stage: Sequence[int]) -> StageSelectionData:
        """Coefficients of one order of classes."""
        return self.start(choice, class_of_stage).data

    def start(self, choice: int, class_of_stage: Sequence[int]) -> Start:
        """Coefficients of one order, and what follows from them before any layer is placed."""

        def made() -> Start:
            return start_of(
                stage_coefficients(
                    self.problem,
                    self.prices,
                    choice,
                    int(self.table.stage_size[choice]),
                    int(self.table.num_microbatches[choice]),
                    class_of_stage,
                    rows_apart=self.table.rows_apart(choice),
                )
            )

        found = self._once(choice, len(class_of_stage), tuple(class_of_stage), made)
        count = int(self.table.num_microbatches[choice])
        if found.data.num_microbatches == count:
            return found
        return replace(found, data=replace(found.data, num_microbatches=count))

    def _once(self, choice: int, num_stages: int, what: object, make: Callable[[], T]) -> T:
        """A value that depends on the batch only by how many micro-batches the stages hold, if all of p."""
        if self._shared is None:
            return make()
        filled = min(int(self.table.num_microbatches[choice]), num_stages)
        row = shared.degrees_key(self.table.degrees, choice), self.table.is_apart(choice)
        return self._shared.value((self._key, row, num_stages, filled, what), make)

    def of_classes(self, choice: int, num_stages: int) -> ClassTables:
        """Stage times by class, position and layers."""
        return self._class_tables(choice, num_stages)

    def _compute(self, choice: int, num_stages: int) -> ClassTables:
        used = tuple(np.flatnonzero(self.table.max_stages[choice]).tolist())
        return self._once(choice, num_stages, ("classes", used), lambda: self._made(choice, num_stages))

    def _made(self, choice: int, num_stages: int) -> ClassTables:
        layers = np.arange(self.problem.model.num_layers + 1, dtype=np.float64)
        used = np.flatnonzero(self.table.max_stages[choice])
        shape = (self.table.max_stages.shape[1], num_stages, len(layers))
        data = self._all_stages(choice, num_stages, used)
        times = stage_times_ms(data, least_recompute(data))
        forward = _line(data.forward_ms, data.base_forward_ms, layers)
        backward = times - forward
        gathering = _line(data.gather_ms, data.base_gather_ms, layers)
        follow = _line(data.optimizer_ms, data.base_optimizer_ms + data.gather_tail_ms, layers)
        follow += np.maximum(gathering - data.hidden_fraction * forward, 0.0)
        finite = np.where(np.isfinite(backward), backward, 0.0)
        reduction = exposed_reduction_ms(data, layers[:, None], finite.T) + data.reduce_tail_ms

        ends = np.ix_(used, used)
        tied = np.full((shape[0], shape[0]), np.inf)
        tied[ends] = self._least_tied_ms(choice, num_stages)[ends]

        def by_class(values: Floats) -> Floats:
            table = np.full(shape, np.inf)
            table[used] = values.reshape(len(used), *shape[1:])
            return table

        return ClassTables(
            times_ms=by_class(times),
            forward_ms=by_class(forward),
            backward_ms=by_class(backward),
            follow_ms=by_class(follow),
            reduce_ms=by_class(reduction.T),
            tied_ms=tied,
        )

    def _least_tied_ms(self, choice: int, num_stages: int) -> Floats:
        """What sharing an embedding takes at least with these classes at the ends, [node_class, node_class].

        Beside predictions on a stage of their own: with the best class for that stage.
        """
        rows = self.table.rows_apart(choice)
        if rows is None:
            shared: Floats = self.prices.tied_sync_s[choice] / MS * (num_stages > 1)
            return shared
        used = self.table.max_stages[choice] > 0
        all_pairs = self.prices.tied_sync_s[rows[1]] / MS
        to_predictions = np.where(used, all_pairs, np.inf).min(axis=1)[:, None]
        least: Floats = to_predictions + 0.0 * all_pairs
        return np.maximum(least, all_pairs) if self.problem.model.tied_embeddings else least

    def _all_stages(self, choice: int, num_stages: int, used: NDArray[np.int64]) -> StageSelectionData:
        """Coefficients of a stage of every class at every place, one class after the other; without sends."""
        classes = np.repeat(used, num_stages)
        entries = entries_of(self.problem, choice, num_stages, classes, self.table.rows_apart(choice))
        count, nothing = int(self.table.num_microbatches[choice]), np.zeros(len(classes))
        return entry_coefficients(self.problem, self.prices, entries, count, nothing, nothing)

    def longest_step_s(self, choice: int, num_stages: int, used: Sequence[int]) -> float:
        """What no step of stages on some classes exceeds: all pieces of work one after the other [s]."""
        tables, m = self.of_classes(choice, num_stages), int(self.table.num_microbatches[choice])

        def most(values: Floats) -> Floats:
            largest: Floats = np.where(np.isfinite(values), values, 0.0).max(axis=-1)
            return largest

        stages_ms = float(most(tables.times_ms[used]).max(axis=0).sum())
        after_ms = float(most(tables.reduce_ms[used]).max() + most(tables.follow_ms[used]).max())
        tied_ms = float(tables.tied_ms[np.ix_(used, used)].max())
        sends = self.prices.send_s[choice][np.ix_(used, used)], self.prices.send_inside_s[choice][used]
        hop_s = max(float(of.max()) for of in sends)
        return m * (stages_ms * MS + 2 * num_stages * hop_s) + (after_ms + tied_ms) * MS

    def order_bounds_s(self, choice: int, orders: Sequence[Sequence[int]]) -> Floats:
        """Bounds of several orders of one group from weights on rows (`planner.search.walks.dual`) [s]."""
        tables = self.of_classes(choice, len(orders[0]))
        stages = np.arange(len(orders[0]))
        found = []
        tied = np.array([tables.tied_ms[order[0], order[-1]] for order in orders])
        for piece in in_pieces(len(orders), tables.times_ms[0].size):
            classes = np.array([orders[i] for i in piece])
            found.append(
                dual_bounds_ms(
                    tables.forward_ms[classes, stages],
                    tables.backward_ms[classes, stages],
                    tables.reduce_ms[classes[:, 0], 0],
                    tables.follow_ms[classes, stages],
                    np.array([self.hops_s(choice, orders[i]) for i in piece]) / MS,
                    int(self.table.num_microbatches[choice]),
                    sends_block=not self.problem.stack.p2p_overlap,
                )
            )
        bounds: Floats = (np.concatenate(found) + tied) * MS
        return bounds

    def hops_s(self, choice: int, order: Sequence[int]) -> Floats:
        """Time of each hop of an order, [stage]; the last is 0 [s]."""
        size, rows = int(self.table.stage_size[choice]), self.table.rows_apart(choice)
        hops = order_hops_s(self.problem, self.prices, choice, size, order, rows)
        hops[-1] = 0.0
        return hops

    def order_bottleneck_s(self, choice: int, order: Sequence[int]) -> float:
        """Least time of the slowest stage for one order [s]; inf where nothing fits."""
        num_stages = len(order)
        times = self.of_classes(choice, num_stages).times_ms[np.array(order), np.arange(num_stages)]
        if not self.problem.stack.p2p_overlap:
            hops_ms = self.hops_s(choice, order) / MS
            times = times + (hops_ms + np.concatenate([[0.0], hops_ms[:-1]]))[:, None]
        layers = np.arange(times.shape[1])
        low, high = 0.0, float(np.where(np.isfinite(times), times, 0.0).max())

        def holds(limit: float) -> bool:
            most = np.where(times <= limit, layers, 0).max(axis=1)
            return bool((times <= limit).any(axis=1).all() and most.sum() >= times.shape[1] - 1)

        if not holds(high):
            return float("inf")
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return low * MS


def _line(slope: Floats, offset: Floats, layers: Floats) -> Floats:
    """slope n + offset, arrays [stage] -> [stage, n]."""
    values: Floats = slope[:, None] * layers[None, :] + offset[:, None]
    return values
