"""The incumbent, the plans seen, and the queue of choices that may still beat it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from planner.cost.prices import Floats
from planner.data.plan import Plan
from planner.data.result import Evaluation, RunnerUp
from planner.search.clock import Clock
from planner.search.floors import Floors
from planner.tolerances import GAP_TOL, ROUNDING_TOL

T = TypeVar("T")

FINER = 0.2
"""Gap of whole stages, over the one asked for, that is looked for where virtual stages follow: the better the
best plan, the more of their parts are closed, and none are dearer to bound. A guess."""
FINER_BESIDE = 0.3
"""The same behind the search of a neighbour, whose bounds then close most parts as they are. A guess."""
LEAST_FURTHER, FURTHER = 4, 0.25
"""Parts opened for that beyond the gap asked for: a number, and over those opened up to it. A guess."""


class Queue(Generic[T]):
    """Open parts by bound, the least first; ties in order of arrival, so that runs repeat.

    Beside a heap it holds one stream of parts whose bounds come sorted: they are made when their turn
    comes, as most never are.
    """

    def __init__(self) -> None:
        self._heaps: dict[int, list[tuple[float, int, T]]] = {0: []}
        self._ticket = itertools.count()
        self._stream_s: Floats = np.zeros(0)
        self._make: Callable[[int], T] | None = None
        self._next = 0
        self.turn_of: Callable[[T], int] = lambda part: 0
        """Turn of a part, from 0: parts are opened once all of earlier turns have reached the cutoff."""

    def __len__(self) -> int:
        return sum(len(heap) for heap in self._heaps.values()) + len(self._stream_s) - self._next

    def stream(self, bounds_s: Floats, make: Callable[[int], T]) -> None:
        """Add the parts `make(0)`, `make(1)` ... with ascending bounds."""
        self._stream_s, self._make, self._next = bounds_s, make, 0

    def push(self, bound_s: float, part: T) -> None:
        """Add a part that no plan of it undercuts `bound_s`."""
        heap = self._heaps.setdefault(self.turn_of(part), [])
        heapq.heappush(heap, (bound_s, next(self._ticket), part))

    def parts(self) -> Iterator[tuple[float, T]]:
        """Bounds and parts that were pushed and are open, in no order that means anything."""
        return ((bound_s, part) for heap in self._heaps.values() for bound_s, _, part in heap)

    def pop(self, cutoff_s: float = float("inf"), *, in_turn: bool = True) -> tuple[float, T]:
        """The part of least bound of the first turn that has any below the cutoff; else of all."""
        turn, _ = self.head(cutoff_s, in_turn=in_turn)
        heap, head_s = self._heaps[turn], self._head_s()
        from_stream = turn == 0 and head_s is not None and (not heap or head_s <= heap[0][0])
        if from_stream and head_s is not None and self._make is not None:
            self._next += 1
            return head_s, self._make(self._next - 1)
        bound_s, _, part = heapq.heappop(heap)
        return bound_s, part

    def pop_of(self, turn: int) -> tuple[float, T] | None:
        """The part of least bound that was pushed for a turn; None where there is none."""
        heap = self._heaps.get(turn)
        if not heap:
            return None
        bound_s, _, part = heapq.heappop(heap)
        return bound_s, part

    def head(self, cutoff_s: float = float("inf"), *, in_turn: bool = True) -> tuple[int, float]:
        """Turn and bound of the part that `pop` would take."""
        heads = self._heads()
        below = [turn for turn in sorted(heads) if in_turn and heads[turn] < cutoff_s]
        turn = below[0] if below else min(heads, key=lambda one: (heads[one], one))
        return turn, heads[turn]

    def _heads(self) -> dict[int, float]:
        """Least bound of each turn that has any part."""
        heads = {turn: heap[0][0] for turn, heap in self._heaps.items() if heap}
        head_s = self._head_s()
        if head_s is not None:
            heads[0] = min(heads.get(0, head_s), head_s)
        return heads

    @property
    def least_ready_s(self) -> float | None:
        """Bound of the best open part whose turn is the first; None where all of those are closed."""
        return self._heads().get(0)

    def _head_s(self) -> float | None:
        return float(self._stream_s[self._next]) if self._next < len(self._stream_s) else None

    @property
    def least_s(self) -> float | None:
        """Bound of the best open part; None where all are closed."""
        return min(self._heads().values(), default=None)


class Incumbent:
    """Plans that the referee has confirmed, best first, one for each set of degrees."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._best: dict[tuple[int, ...], RunnerUp] = {}
        self.step_s: float | None = None

    def offer(self, plan: Plan, evaluation: Evaluation) -> None:
        """Take a plan without violations."""
        key = (
            plan.tensor_parallel,
            plan.expert_parallel,
            plan.data_parallel,
            plan.pipeline_parallel,
            plan.microbatch_size,
            int(plan.sequence_parallel),
            plan.virtual_stages,
        )
        known = self._best.get(key)
        if known is None or evaluation.step_s < known.evaluation.step_s:
            self._best[key] = RunnerUp(plan=plan, evaluation=evaluation)
        if self.step_s is None or evaluation.step_s < self.step_s:
            self.step_s = evaluation.step_s

    @property
    def is_full(self) -> bool:
        """Whether as many plans are known as are asked for."""
        return len(self._best) >= self._keep

    @property
    def worth_judging_s(self) -> float:
        """A plan slower than this enters no list [s]."""
        ranked = self.ranked()
        return ranked[-1].evaluation.step_s if len(ranked) == self._keep else float("inf")

    def ranked(self) -> list[RunnerUp]:
        """The best plans, the very best first."""
        order = sorted(self._best.items(), key=lambda item: (item[1].evaluation.step_s, item[0]))
        return [runner_up for _, runner_up in order[: self._keep]]


class Frontier(Generic[T]):
    """What is open, what is closed, and what that proves: no plan undercuts `bound_s`."""

    def __init__(self, incumbent: Incumbent, gap: float, floors: Floors | None = None) -> None:
        self.incumbent, self.gap = incumbent, gap
        self._asked_gap, self._near_at = gap, 0
        self.floors = floors or Floors()
        """What was known of parts before, and what is proven of them."""
        self.queue: Queue[T] = Queue()
        self.floor_s = float("inf")
        """Least bound of the parts that were closed, or will not be opened."""
        self.virtual_floor_s = float("inf")
        """The same of the parts with virtual stages, which are closed at a gap of their own."""

    @property
    def cutoff_s(self) -> float:
        """Bound from which no part holds a plan better by more than the gap; rounding may take a little."""
        return self.cutoff_at(self.incumbent.step_s, self.gap)

    def cutoff_at(self, step_s: float | None, gap: float) -> float:
        """The same where the best plan takes so long, at another gap [s]."""
        return float("inf") if step_s is None else step_s * (1 - gap) * (1 + ROUNDING_TOL)

    def look_closer(self) -> None:
        """Close whole stages at a finer gap than asked for, as long as that takes few parts more."""
        finer = FINER_BESIDE if self.floors.has_neighbour else FINER
        self.gap = max(finer * self._asked_gap, GAP_TOL)

    def has_looked_closer(self, opened: int, turn: int, bound_s: float) -> bool:
        """Whether that ends here: so many parts have been opened, the next is of this turn and bound."""
        if (
            self.gap >= self._asked_gap
            or turn > 0
            or bound_s < self.cutoff_at(self.incumbent.step_s, self._asked_gap)
        ):
            return False
        self._near_at = self._near_at or opened
        if opened < self._near_at * (1 + FURTHER) + LEAST_FURTHER:
            return False
        self.gap = self._asked_gap
        return True

    @property
    def bound_s(self) -> float | None:
        """What no plan of the space undercuts."""
        waiting_s = self.queue.least_s or float("inf")
        least = min(self.virtual_floor_s, waiting_s, self.whole_bound_s or float("inf"))
        return least if np.isfinite(least) else None

    @property
    def whole_bound_s(self) -> float | None:
        """The same for plans without virtual stages."""
        ready_s = self.queue.least_ready_s or float("inf")
        least = min(self.floor_s, ready_s, self.incumbent.step_s or float("inf"))
        return least if np.isfinite(least) else None

    @property
    def may_hold_plans(self) -> bool:
        """Whether any part was closed by its bound alone, or is left in the queue as the search gave up."""
        return bool(np.isfinite(self.floor_s)) or len(self.queue) > 0

    def close(self, bound_s: float) -> None:
        """Note the bound of a part that is not looked at any more."""
        self.floor_s = min(self.floor_s, bound_s)

    def close_virtual(self, bound_s: float) -> None:
        """Note the bound of a part with virtual stages that is not looked at any more."""
        self.virtual_floor_s = min(self.virtual_floor_s, bound_s)

    def push(self, bound_s: float, part: T) -> None:
        """Keep a part open, or note its bound where it cannot win any more; an infinite one holds no plan."""
        if bound_s == float("inf"):
            return
        if bound_s >= self.cutoff_s:
            self.close(bound_s)
        else:
            self.queue.push(bound_s, part)


def heads_of(frontiers: Sequence[Frontier[T]], clock: Clock) -> tuple[list[tuple[int, float]], bool]:
    """Turn and bound of the part that comes next on each frontier, and whether turns count.

    They do not once it is late, which is noted where it makes a difference.
    """
    in_turn = not clock.is_late
    heads = [one.queue.head(one.cutoff_s, in_turn=in_turn) for one in frontiers]
    if not in_turn and not clock.was_felt:
        clock.was_felt = heads != [one.queue.head(one.cutoff_s) for one in frontiers]
    return heads, in_turn


def is_proven(step_s: float, wanted: Iterable[tuple[float | None, float]]) -> bool:
    """Whether all bounds, each with the gap that is asked for, have come near enough to a step [s]."""
    return all(bound_s is not None and (step_s - bound_s) / step_s <= gap for bound_s, gap in wanted)
