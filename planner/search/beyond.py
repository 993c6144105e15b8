"""Plans whose first stage does not hold all leading layers of another kind.

Leading layers (DeepSeek-V3 has three dense ones before its experts) nearly always lie on the first stage
together, and `openings` counts on it. Where stages are short or chips differ it can be better that the first
holds fewer of them, or none beside the embedding. Such plans are layers of several kinds cut anywhere
(`partition`), less the cuts that `openings` has.

Stages behind the first hold all layers but some leading ones. No stage ends later for having none before
it, so that what bounds a pipeline of theirs alone bounds the whole as well.

Left out: virtual stages, stages on several classes, predictions of further tokens before the last stage, and
recomputation of other modules than the stack's (as in `partition`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.bound_data import bound_data
from planner.search.bounds import group_bounds, relaxed_bounds
from planner.search.clock import Clock
from planner.search.degrees import DegreeTable, one_virtual_stage_is_allowed
from planner.search.empty import ends_without_layers
from planner.search.items import BoundedGroup, Item, Pair
from planner.search.kinds import kinds_of
from planner.search.partition.bounds import OrderBounds
from planner.search.partition.intervals import Intervals
from planner.search.partition.openings import PartitionOpener
from planner.search.referee import Referee
from planner.search.space import Groups, Pairs, list_pairs
from planner.search.state import Frontier, Incumbent

MOST_LAYERS = 16
"""Layers of a model up to which such plans are looked at: on longer stages they gain little, and the times of
all runs of layers take long to list. A guess, of what the search covers."""


def leads_may_go_on(problem: Problem) -> bool:
    """Whether plans are looked at whose leading layers go on beyond the first stage."""
    kinds = kinds_of(problem)
    return (
        kinds is not None
        and problem.model.num_layers <= MOST_LAYERS
        and kinds.num_lead > int(not ends_without_layers(problem, 2)[0])
        and one_virtual_stage_is_allowed(problem.options)
    )


class BeyondOpener(PartitionOpener):
    """Opens such parts for one search, on a frontier of its own that shares the incumbent."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        incumbent: Incumbent,
        gap: float,
        clock: Clock,
        referee: Referee,
    ) -> None:
        kinds = kinds_of(problem)
        assert kinds is not None
        bare, num_layers = ends_without_layers(problem, 2), problem.model.num_layers
        sends_block = not problem.stack.p2p_overlap
        data = bound_data(num_layers, kinds, prices, sends_block=sends_block, num_empty=int(bare.sum()))
        lead_share = 1 + (data.num_layers - num_layers) / kinds.num_lead
        self.behind = replace(
            data,
            num_layers=data.num_layers - (kinds.num_lead - 1) * lead_share,
            embedding_s=np.zeros_like(data.embedding_s),
            num_empty=data.num_empty - int(bare[0]),
        )
        """What bounds need of the stages behind the first."""
        frontier: Frontier[Item] = Frontier(incumbent, gap)
        super().__init__(problem, prices, table, data, frontier, clock, referee)
        self.intervals = Intervals(problem, prices, table, most_on_first=kinds.num_lead - 1)
        self.orders = OrderBounds(self.intervals, lambda: self.clock.is_up)
        pairs = self._pairs()
        frontier.queue.stream(pairs.bound_s, lambda i: Pair(int(pairs.choice[i]), int(pairs.stages[i])))

    def _pairs(self) -> Pairs:
        """Rows of degrees with numbers of stages, by what either bound says."""
        table, num_empty = self.table, int(ends_without_layers(self.problem, 2).sum())
        listed = list_pairs(self.problem, table, self.prices, self.bounds, num_empty=num_empty)
        several = listed.stages > 1
        choice, stages = listed.choice[several], listed.stages[several]
        m, most = table.num_microbatches[choice], table.max_stages[choice]
        bounds = relaxed_bounds(self.behind, choice, m, most, stages - 1)
        bounds = np.maximum(bounds, listed.bound_s[several])
        order = np.argsort(bounds, kind="stable")
        return Pairs(choice[order], stages[order], bounds[order])

    def _groups(self, bound_s: float, pair: Pair) -> Groups:
        """As of `PartitionOpener`; behind a first stage on any class as well."""
        groups = super()._groups(bound_s, pair)
        behind = np.full(len(groups), np.inf)
        for c in range(groups.counts.shape[1]):
            has = groups.counts[:, c] > 0
            behind[has] = np.minimum(behind[has], self._behind_s(pair.choice, groups.counts[has], c))
        return Groups(groups.counts, np.maximum(groups.bound_s, behind))

    def _order_bound_s(self, group: BoundedGroup, order: tuple[int, ...]) -> float:
        """As of `PartitionOpener`; behind its first stage as well."""
        sends_s = np.array([float(self.intervals.hops_s(group.choice, order)[1:].sum())])
        behind = self._behind_s(group.choice, np.array([group.counts]), order[0], sends_s)
        return max(super()._order_bound_s(group, order), float(behind[0]))

    def _behind_s(
        self, choice: int, counts: NDArray[np.int64], first: int, sends_s: Floats | None = None
    ) -> Floats:
        """Bound of groups, [group, node_class], less their first stage on a class [s]."""
        counts = counts - (np.arange(counts.shape[1]) == first)
        rows = np.full(len(counts), choice, dtype=np.int64)
        m = np.full(len(counts), self.table.num_microbatches[choice], dtype=np.int64)
        return group_bounds(self.behind, rows, m, counts, sends_s=sends_s)
