"""When the orders of a pair are annealed (`planner.search.heuristics.annealing`), and from which plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.search.bound_data import BoundData
from planner.search.heuristics.annealing import anneal, order_times
from planner.search.items import Part
from planner.search.judge import Judge
from planner.search.space import fill_fastest
from planner.search.walks.relaxation import Found

WORTH_A_GAP = 0.02
"""How far below the best plan the bound of a part must lie for its orders to be annealed at first sight."""
ROUNDS_WITHOUT = 30
"""Rounds of pairs before that on clusters of few classes, where searches often end sooner."""
FEW_CLASSES = 4
FEW_ORDERS = 600
"""Orders of a pair up to which none are annealed, as all are listed."""

Limits = tuple[tuple[int, ...], tuple[int, ...]]
"""Fewest and most stages of each class."""


class Annealer:
    """Anneals the pairs of one search, each once; what comes of it the judge evaluates."""

    def __init__(
        self,
        judge: Judge,
        limits_of: Callable[[int, int], Limits],
        bounds: BoundData,
        is_up: Callable[[], bool],
    ) -> None:
        self._judge, self._limits_of, self._bounds, self._is_up = judge, limits_of, bounds, is_up
        self._done: set[tuple[int, int]] = set()
        self._rounds = 0

    def improve_best(self, bounded: Sequence[tuple[float, Part]]) -> None:
        """Anneal the part of a round that promises most, where it promises much more than the best plan."""
        self._rounds += 1
        far = max(WORTH_A_GAP, 2 * self._judge.problem.options.gap)
        enough_s = (1 - far) * (self._judge.incumbent.step_s or np.inf)
        bound_s, part = min(bounded, key=lambda entry: (entry[0], entry[1].choice, entry[1].stages))
        few_classes = self._judge.table.max_stages.shape[1] <= FEW_CLASSES
        if self._rounds > (ROUNDS_WITHOUT if few_classes else 0) and bound_s < enough_s and not part.fine:
            self.improve(part.choice, part.stages, ())

    def improve(self, choice: int, stages: int, found: Sequence[Found]) -> None:
        """Look for better plans among all orders of a pair, from those found and from blocks of classes."""
        fewest, most = self._limits_of(choice, stages)
        few = sum(count > 0 for count in most) ** stages <= FEW_ORDERS
        judge, options = self._judge, self._judge.problem.options
        if few or (choice, stages) in self._done or options.keep_class_order:
            return
        self._done.add((choice, stages))
        orders = list(found)
        counts = fill_fastest(judge.table, self._bounds, choice, stages)
        if counts is not None:
            blocks = np.argsort(-self._bounds.layer_s[choice], kind="stable").tolist()
            orders.append((tuple(c for c in blocks for _ in range(counts[c])), (1,) * stages))
        starts = [(order, judge.whole_layers(choice, order, layers)) for order, layers in orders]
        begun = [(order, layers) for order, layers in starts if layers is not None]
        if not begun:
            return
        times = order_times(judge.problem, judge.prices, judge.table, judge.tables, choice, stages)
        for order, layers in anneal(times, begun, fewest, most, options.seed, self._is_up):
            if judge.is_allowed(choice, order):
                # As they are: what improves them by the rows alone may do worse by the events.
                judge.judge_layers(choice, order, layers)
