"""What the stages of all orders of a row of degrees cost with each run of layers that may be of use."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from formulations.layer_partition_groups import GroupCosts
from planner.cost.prices import Floats
from planner.cost.stage import in_flight_1f1b, in_flight_of_stages
from planner.search.empty import ends_without_layers
from planner.search.partition.interval_memory import Position, Runs
from planner.search.partition.intervals import Intervals
from planner.units import MS

NAMES = ("forward_ms", "backward_ms", "reduction_ms", "follow_ms")


class RunTables:
    """Costs by length and end of runs, for many stages at once; kept while the search comes back to them."""

    def __init__(self, intervals: Intervals) -> None:
        self.intervals, self.problem = intervals, intervals.problem
        self._longest = lru_cache(maxsize=4096)(self._longest_run)
        self._inner = lru_cache(maxsize=256)(self._inner_tables)

    def costs(
        self, choice: int, most: tuple[int, ...], stages: int, limit_s: float, first: tuple[int, ...] = ()
    ) -> GroupCosts:
        """Costs of pipelines of so many stages, of `most` on each class, whose first ones have these classes.

        Runs that take longer than a limit for all micro-batches may be left out.
        """
        m = int(self.intervals.table.num_microbatches[choice])
        longest = self._longest(choice, float(limit_s))
        num_layers = len(self.intervals.kind_of_layer)
        shape = (4, stages, len(most), longest + 1, num_layers + 1)
        arrays = np.full(shape, np.inf)
        for c in np.flatnonzero(most).tolist():
            for s in {0, stages - 1}:
                arrays[:, s, c] = self._end(choice, c, stages, s, longest)
            if stages > 2:
                arrays[:, 1:-1, c] = self._inner_stages(choice, c, stages, longest)
        for s, c in enumerate(first):
            arrays[:, s, np.arange(len(most)) != c] = np.inf
        sends, slack = self._hops(choice, most, stages, first)
        forward, backward, reduction, follow = arrays
        waits = None
        if self.problem.stack.p2p_overlap:
            waits = 2 * sends[0]
        else:
            forward, backward = forward + sends[0, :, :, None, None], backward + sends[1, :, :, None, None]
        return GroupCosts(
            num_microbatches=m,
            forward=forward,
            backward=backward,
            reduction=reduction[0],
            follow=follow,
            most=most,
            sends=waits,
            slack=None if self.problem.stack.p2p_overlap else slack,
        )

    def _longest_run(self, choice: int, limit_s: float) -> int:
        """Layers of the longest run that a class computes in time without recomputation."""
        intervals = self.intervals
        prices, num_layers = intervals.prices, len(intervals.kind_of_layer)
        if not np.isfinite(limit_s):
            return num_layers
        limit_s /= int(intervals.table.num_microbatches[choice])
        times = (prices.layer_forward_s + prices.layer_backward_s)[choice].sum(axis=-1)
        until = np.concatenate([[0.0], np.cumsum(times.min(axis=1)[intervals.kind_of_layer])])
        ends = np.searchsorted(until, until + limit_s, side="right") - 1
        return max(int((ends - np.arange(num_layers + 1)).max()), 1)

    def _end(self, choice: int, c: int, stages: int, s: int, longest: int) -> Floats:
        """[cost, length, end] of the first or the last stage."""
        m = int(self.intervals.table.num_microbatches[choice])
        held = in_flight_1f1b(stages, s, m, planned=self.intervals.prices.plans_memory)
        empty = bool(ends_without_layers(self.problem, stages)[s])
        at = Position(choice, c, held, s == 0, s == stages - 1, stages, empty)
        return self._tables(at, longest)[:, 0]

    def _inner_stages(self, choice: int, c: int, stages: int, longest: int) -> Floats:
        """[cost, stage, length, end] of the stages between."""
        m, planned = int(self.intervals.table.num_microbatches[choice]), self.intervals.prices.plans_memory
        held = in_flight_of_stages(stages, m, planned=planned)[1:-1].astype(np.int64)
        least, many = int(held.min()), 1
        if not planned:
            least, many = 1, min(m, int(self.intervals.table.max_stages[choice].sum()))
        return self._inner(choice, c, self._alike(choice, c, stages), many, least, longest)[:, held - least]

    def _alike(self, choice: int, c: int, stages: int) -> int:
        """The fewest stages, 2 or more, of a pipeline whose inner stages need as much memory."""
        fixed = self.intervals.prices.fixed_bytes[choice, c, :, 0]
        own = fixed[min(stages, len(fixed)) - 1]
        return int(np.flatnonzero(np.append(fixed[1:], own) == own)[0]) + 2

    def _inner_tables(self, choice: int, c: int, stages: int, many: int, held: int, longest: int) -> Floats:
        """[cost, in_flight, length, end] of stages that hold `held` micro-batches, or one of `many` more."""
        at = Position(choice, c, held + np.arange(many)[:, None, None], False, False, stages, False)
        return self._tables(at, longest)

    def _tables(self, at: Position, longest: int) -> Floats:
        """[cost, in_flight, length, end]"""
        end = np.arange(len(self.intervals.kind_of_layer) + 1)[None, :]
        length = np.arange(longest + 1)[:, None]
        table = self.intervals.costs(at, Runs(np.maximum(end - length, 0), end))
        many = at.in_flight.shape[0] if isinstance(at.in_flight, np.ndarray) else 1
        shape = (many, longest + 1, end.shape[1])
        found = np.stack([np.broadcast_to(getattr(table, name), shape) for name in NAMES])
        found[:2, :, end < length] = np.inf
        return found

    def _hops(
        self, choice: int, most: tuple[int, ...], stages: int, first: tuple[int, ...]
    ) -> tuple[Floats, Floats]:
        """Least time of the hop behind each stage, and before it, [2, stage, class], and by how much both may
        be longer [ms]: between a stage of the class and any that its neighbour may have."""
        prices, classes = self.intervals.prices, self.problem.cluster.classes
        hop = prices.send_s[choice] / MS
        size, shortest = int(self.intervals.table.stage_size[choice]), hop.copy()
        for c, node_class in enumerate(classes):
            if 2 * size <= node_class.chips_per_node:
                shortest[c, c] = min(hop[c, c], prices.send_inside_s[choice, c] / MS)
        may = np.tile(np.array(most) > 0, (stages, 1))
        may[np.arange(len(first))] = np.arange(len(most)) == np.array(first, dtype=np.int64)[:, None]
        sends, more = np.zeros((2, stages, len(most))), np.zeros((stages, len(most)))
        for side, (at, other) in enumerate([(slice(0, -1), slice(1, None)), (slice(1, None), slice(0, -1))]):
            there = may[other, None, :]
            of_class = [times if side == 0 else times.T for times in (shortest, hop)]
            sends[side, at] = np.where(there, of_class[0], np.inf).min(axis=2)
            largest = np.where(there, of_class[1], 0.0).max(axis=2)
            more[at] += np.maximum(largest - sends[side, at], 0.0)
        return sends, more
