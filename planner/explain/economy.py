"""The nodes to use: least cost or energy a token, or the cheapest ones that reach a step time.

Sets       c in C                   node classes
Data       N[c]                     nodes of a class
           w[c]                     price [$/h] or power [kW] of one of its nodes
           T(u)                     least step time of a plan on at most u[c] nodes of each class [s]
           limit_s                  step time to reach, in the second question
Variables  u[c] in 0 .. N[c]        nodes used; from 1 where a class must not idle
Model      (tokens)  min  sum_c w[c] u[c] T(u)
           (reach)   min  sum_c w[c] u[c]    s.t. T(u) <= limit_s
Bound      T falls as u grows. So for every u of a box low <= u <= high no plan does better than
           (tokens) w low x B(high), with B a search's bound on T; (reach) w low, or none at all where
           B(high) > limit_s. Boxes are split and searched, the least bound first, until the best plan
           found is within the gap of the least bound left. A bound of a larger `high` serves smaller ones.
Exact      to the gap, which is proven; idle nodes of the cluster cost nothing here.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from planner import api
from planner.data.changes import with_named_hosts
from planner.data.explanation import Economy
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Result
from planner.explain.budget import Budget
from planner.explain.node_counts import Counts, Objective, used_nodes, weights, with_counts
from planner.units import format_seconds

LEAST_GAP = 1e-4
"""Gap below which nothing is asked: searches end at gaps of their own."""


@dataclass(order=True)
class _Box:
    """Numbers of nodes between two corners, by the bound on them."""

    bound: float
    ticket: int
    low: Counts = field(compare=False)
    high: Counts = field(compare=False)


def cheapest(
    problem: Problem,
    objective: Objective,
    *,
    reach_s: float | None = None,
    spent_s: float = 0.0,
    on_search: Callable[[str], None] = lambda words: None,
) -> tuple[Result | None, Economy]:
    """The plan with the least cost or energy a token, or on the cheapest nodes that reach a step time.

    Parameters
    ----------
    objective
        cost, by `price_usd_per_hour` of every class, or energy, by `power_kw`.
    reach_s
        Step time to reach [s]; without it what a token costs is least.
    spent_s
        Time already spent that counts against the problem's time limit [s].
    on_search
        Called before each search with the nodes it may use.

    Returns
    -------
    tuple
        The result whose plan is the best (its bound is on the step time with the nodes it was searched
        with), or None; and what the choice rests on.

    Raises
    ------
    InstanceError
        Where a class has no price or power.
    """
    named = with_named_hosts(problem)
    return _Economy(named, objective, reach_s, Budget(problem, spent_s), on_search).run()


class _Economy:
    def __init__(
        self,
        problem: Problem,
        objective: Objective,
        reach_s: float | None,
        budget: Budget,
        on_search: Callable[[str], None],
    ) -> None:
        self.problem, self.objective, self.reach_s, self.on_search = problem, objective, reach_s, on_search
        self.budget = budget
        self.weights = weights(problem, objective, is_reach=reach_s is not None)
        self.known: dict[Counts, tuple[float, Result]] = {}
        """Bound on the step time [s] and result for every corner searched."""
        self.best: tuple[float, Result, Counts] | None = None
        self.boxes: list[_Box] = []
        self.tickets = itertools.count()
        self.floor = float("inf")
        """Least bound of the boxes that were closed because they cannot beat the best by the gap."""
        self.interrupted = False

    def run(self) -> tuple[Result | None, Economy]:
        """Split and search until the gap is reached."""
        classes = self.problem.cluster.classes
        options = self.problem.options
        least = tuple(int(c.name in options.use) for c in classes)
        most = tuple(0 if c.name in options.spare else c.num_nodes for c in classes)
        self._add(least, most, 0.0)
        while self.boxes:
            box = heapq.heappop(self.boxes)
            if self._is_hopeless(box.bound):
                self.floor = min(self.floor, box.bound)
                break
            if self.budget.is_up:
                self.interrupted = True
                self.floor = min(self.floor, box.bound)
                break
            try:
                self._open(box)
            except KeyboardInterrupt:
                self.interrupted = True
                self.floor = min(self.floor, box.bound)
                break
        left = min([self.floor, *(box.bound for box in self.boxes)])
        return self._answer(left)

    def _open(self, box: _Box) -> None:
        """Search the upper corner, then halve the box along the class that spreads its bound most."""
        bound_s, _ = self._search(box.high)
        if not np.isfinite(bound_s) or (self.reach_s is not None and bound_s > self.reach_s):
            return
        bound = max(box.bound, self._bound(box.low, bound_s))
        spread = [w * (b - a) for w, a, b in zip(self.weights, box.low, box.high, strict=True)]
        if self._is_hopeless(bound):
            self.floor = min(self.floor, bound)
            return
        if not any(spread):
            if not self._is_out_of_reach(box.high):
                self.floor = min(self.floor, bound)
            return
        c = int(np.argmax(spread))
        middle = (box.low[c] + box.high[c]) // 2
        self._add(box.low, _replaced(box.high, c, middle), bound)
        self._add(_replaced(box.low, c, middle + 1), box.high, bound)

    def _add(self, low: Counts, high: Counts, bound: float) -> None:
        if not any(high):
            return
        if not any(low):
            # Some node is used: at least one, of the cheapest class that there is.
            least = min(w for w, h in zip(self.weights, high, strict=True) if h)
            bound = max(bound, self._value(least, self._known_bound_s(high)))
        bound = max(bound, self._bound(low, self._known_bound_s(high)))
        heapq.heappush(self.boxes, _Box(bound, next(self.tickets), low, high))

    def _bound(self, low: Counts, step_bound_s: float) -> float:
        return self._value(float(np.dot(self.weights, low)), step_bound_s)

    def _value(self, weight: float, step_s: float) -> float:
        """Objective of nodes of a weight: [$/h s] or [kW s] a step; [$/h] or [kW] to reach a step time."""
        return weight if self.reach_s is not None else weight * step_s

    def _known_bound_s(self, high: Counts) -> float:
        """Best bound that searches of as many nodes or more have proven [s]."""
        return max(
            (b for u, (b, _) in self.known.items() if all(x >= y for x, y in zip(u, high, strict=True))),
            default=0.0,
        )

    def _is_out_of_reach(self, high: Counts) -> bool:
        """Whether so many nodes cannot reach the step time.

        Where it lies between the bound and the best plan found, both are searched for until it does not.
        """
        if self.reach_s is None:
            return False
        bound_s, result = self._search(high)
        step_s = result.evaluation.step_s if result.evaluation is not None else 0.0
        if bound_s <= self.reach_s < step_s and not self.budget.is_up:
            bound_s, _ = self._search(high, (1 - self.reach_s / step_s) * 0.99)
        return bound_s > self.reach_s

    def _search(self, high: Counts, gap: float | None = None) -> tuple[float, Result]:
        """Bound on the step time with so many nodes, and the search's result; its plan is a candidate.

        `gap`: one that is smaller than what is asked of the answer, for which they are searched again.
        """
        if high not in self.known or gap is not None:
            self.on_search(self._in_words(high))
            seeds = [known.plan for _, known in self.known.values() if known.plan is not None]
            asked = with_counts(self.problem, high)
            if gap is not None:
                finer = {name: min(gap, getattr(asked.options, name)) for name in ("gap", "virtual_gap")}
                asked = asked.model_copy(update={"options": asked.options.model_copy(update=finer)})
            result = api.plan(self.budget.given(asked), seeds=seeds)
            bound_s = float("inf") if result.termination == "infeasible" else result.bound_s or 0.0
            self.known[high] = bound_s, result
            if result.plan is not None and result.evaluation is not None:
                self._offer(result, result.plan, result.evaluation.step_s)
                for other in result.runners_up:
                    better = result.model_copy(
                        update={"plan": other.plan, "evaluation": other.evaluation, "runners_up": ()}
                    )
                    self._offer(better, other.plan, other.evaluation.step_s)
        return self.known[high]

    def _offer(self, result: Result, plan: Plan, step_s: float) -> None:
        if self.reach_s is not None and step_s > self.reach_s:
            return
        used = used_nodes(self.problem, plan)
        value = self._value(float(np.dot(self.weights, used)), step_s)
        if self.best is None or value < self.best[0]:
            self.best = value, result, used

    def _is_hopeless(self, bound: float) -> bool:
        """Whether a box cannot beat the best by more than the gap."""
        if self.best is None:
            return False
        options, plan = self.problem.options, self.best[1].plan
        virtual = plan is not None and plan.virtual_stages > 1
        gap = max(options.gap, LEAST_GAP, options.virtual_gap if virtual else 0.0)
        return bound >= self.best[0] * (1 - gap)

    def _in_words(self, counts: Counts) -> str:
        names = (c.name for c in self.problem.cluster.classes)
        return ", ".join(f"{n} x {name}" for n, name in zip(counts, names, strict=True) if n)

    def _why_none(self, proven: bool) -> str:
        """Why there is no answer: what all nodes together reach, or that they run no plan."""
        bound_s, result = next(iter(self.known.values()), (0.0, None))
        if self.reach_s is None or result is None or result.evaluation is None:
            reason = "" if result is None or result.reason is None else f": {result.reason}"
            return f"there is no plan{reason}" if proven else f"no plan was found{reason}"
        reaches = "no plan reaches" if proven else "no plan was found that reaches"
        fastest = format_seconds(result.evaluation.step_s)
        return (
            f"{reaches} the step time of {format_seconds(self.reach_s)}: on all nodes the fastest one "
            f"found takes {fastest}, and none takes less than {format_seconds(bound_s)}"
        )

    def _answer(self, bound: float) -> tuple[Result | None, Economy]:
        tokens = self.problem.workload.tokens_per_step
        unit = {"cost": "$", "energy": "kWh"}[self.objective]
        # [$/h s] and [kW s] a step -> [$] and [kWh] a million tokens.
        scale = 1.0 if self.reach_s is not None else 1e6 / tokens / 3600
        rate = {"cost": "$/h", "energy": "kW"}[self.objective]
        if self.best is None:
            proven = math.isinf(bound)
            return None, Economy(
                objective=self.objective, reach_step_s=self.reach_s,
                unit=rate if self.reach_s is not None else f"{unit} a million tokens",
                value=None, bound=None if proven else bound * scale, gap=None, nodes={},
                searches=len(self.known), interrupted=self.interrupted, words=self._why_none(proven),
            )  # fmt: skip
        value, result, used = self.best
        bound = min(bound, value)
        names = [c.name for c in self.problem.cluster.classes]
        return result, Economy(
            objective=self.objective,
            reach_step_s=self.reach_s,
            unit=rate if self.reach_s is not None else f"{unit} a million tokens",
            value=value * scale,
            bound=bound * scale,
            gap=1 - bound / value if value else 0.0,
            nodes={name: n for name, n in zip(names, used, strict=True) if n},
            searches=len(self.known),
            interrupted=self.interrupted,
            words=self._in_words(used),
        )


def _replaced(counts: Counts, c: int, value: int) -> Counts:
    return (*counts[:c], value, *counts[c + 1 :])
