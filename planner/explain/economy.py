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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner import api
from planner.data.changes import with_cluster, with_named_hosts, with_nodes
from planner.data.explanation import Economy
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Result
from planner.errors import InstanceError
from planner.explain.budget import Budget
from planner.units import format_seconds

Objective = Literal["cost", "energy"]
Counts = tuple[int, ...]

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
        self.weights = _weights(problem, objective, is_reach=reach_s is not None)
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
        if self._is_hopeless(bound) or not any(spread):
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

    def _search(self, high: Counts) -> tuple[float, Result]:
        """Bound on the step time with so many nodes, and the search's result; its plan is a candidate."""
        if high not in self.known:
            self.on_search(self._in_words(high))
            seeds = [known.plan for _, known in self.known.values() if known.plan is not None]
            result = api.plan(self.budget.given(_with_counts(self.problem, high)), seeds=seeds)
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
        used = _used(self.problem, plan)
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

    def _why_none(self) -> str:
        """Why there is no answer: what all nodes together reach, or that they run no plan."""
        bound_s, result = next(iter(self.known.values()), (0.0, None))
        if self.reach_s is None or result is None or result.evaluation is None:
            reason = "" if result is None or result.reason is None else f": {result.reason}"
            return f"there is no plan{reason}"
        fastest = format_seconds(result.evaluation.step_s)
        return (
            f"no plan reaches the step time of {format_seconds(self.reach_s)}: on all nodes the fastest one "
            f"found takes {fastest}, and none takes less than {format_seconds(bound_s)}"
        )

    def _answer(self, bound: float) -> tuple[Result | None, Economy]:
        tokens = self.problem.workload.tokens_per_step
        unit = {"cost": "$", "energy": "kWh"}[self.objective]
        # [$/h s] and [kW s] a step -> [$] and [kWh] a million tokens.
        scale = 1.0 if self.reach_s is not None else 1e6 / tokens / 3600
        rate = {"cost": "$/h", "energy": "kW"}[self.objective]
        if self.best is None:
            words = self._why_none()
            return None, Economy(
                objective=self.objective, reach_step_s=self.reach_s, unit=unit, value=None, bound=None,
                gap=None, nodes={}, searches=len(self.known), interrupted=self.interrupted, words=words,
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


def _weights(problem: Problem, objective: Objective, *, is_reach: bool) -> NDArray[np.float64]:
    """Price or power of a node of every class, [node_class]; `is_reach` where a step time is asked for."""
    asked = "--reach-step-s" if is_reach and objective == "cost" else f"--objective {objective}"
    key = {"cost": "price_usd_per_hour", "energy": "power_kw"}[objective]
    values = []
    for i, node_class in enumerate(problem.cluster.classes):
        value = getattr(node_class, key)
        if value is None and node_class.name not in problem.options.spare:
            raise InstanceError(
                f"class {node_class.name} has no {key}, which `{asked}` needs; add it",
                f"{problem.name}: cluster.classes[{i}]",
            )
        values.append(float(value or 0.0))
    return np.array(values)


def _with_counts(problem: Problem, counts: Counts) -> Problem:
    """The problem on so many nodes of each class."""
    cluster = problem.cluster
    gone = [cluster.classes[c].name for c, n in enumerate(counts) if n == 0]
    for c in reversed(range(len(counts))):
        smaller = with_nodes(cluster, c, counts[c])
        assert smaller is not None, "at least one class keeps nodes"
        cluster = smaller
    spare = tuple(name for name in problem.options.spare if name not in gone)
    options = problem.options.model_copy(update={"spare": spare, "time_limit_s": None})
    return with_cluster(problem, cluster).model_copy(update={"options": options})


def _used(problem: Problem, plan: Plan) -> Counts:
    """Nodes of each class that a plan uses."""
    working = {host for stage in plan.stages for _, _, hosts in stage.places for host in hosts}
    return tuple(
        sum(host in working for host in problem.cluster.hosts_of(c))
        for c in range(len(problem.cluster.classes))
    )


def _replaced(counts: Counts, c: int, value: int) -> Counts:
    return (*counts[:c], value, *counts[c + 1 :])
