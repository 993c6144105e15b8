"""What a stage costs with any run of layers, for models whose layers are of several kinds in any order.

A table over (first layer, end) for each position of a stage on a class, with the least recomputation
that makes the run fit: nothing, the core attention of all its layers, or its first layers in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from formulations.layer_partition_data import Cuts, LayerPartitionData, stages_of
from formulations.stage_selection_data import StageChoice
from planner.cost.communication.hops import hop_send_s
from planner.cost.prices import Floats, Prices
from planner.cost.stage import in_flight_1f1b
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable
from planner.search.empty import ends_without_layers
from planner.search.partition.interval_memory import IntervalMemory, Position, Runs
from planner.units import MS


@dataclass(frozen=True)
class IntervalTable:
    """Arrays [first, end], or over other runs; times in ms, inf where the run does not fit."""

    forward_ms: Floats
    backward_ms: Floats
    reduction_ms: Floats
    follow_ms: Floats
    selective: NDArray[np.bool_]
    """Whether core attention is recomputed."""
    full_layers: NDArray[np.int64]
    """How many of the first layers are recomputed in full."""


class Intervals:
    """Tables by position, kept while the search comes back to them."""

    def __init__(
        self, problem: Problem, prices: Prices, table: DegreeTable, most_on_first: int | None = None
    ) -> None:
        self.problem, self.prices, self.table = problem, prices, table
        self.most_on_first = most_on_first
        index_of = {kind: i for i, kind in enumerate(prices.kinds)}
        self.kind_of_layer = np.array([index_of[kind] for kind in problem.model.kind_of_layer])
        self._all_runs = Runs.all_of(len(self.kind_of_layer))
        self._table = lru_cache(maxsize=256)(lambda at: self.costs(at, self._all_runs))

    def data(self, choice: int, order: Sequence[int]) -> LayerPartitionData:
        """The program of one order of classes; where sends block, they lengthen the passes."""
        tables = [self.of_stage(choice, order, s) for s in range(len(order))]
        forward = np.array([table.forward_ms for table in tables])
        backward = np.array([table.backward_ms for table in tables])
        hops, wait = self.hops_s(choice, order) / MS, np.zeros(len(order))
        if not self.problem.stack.p2p_overlap:
            returning = np.concatenate([[0.0], hops[:-1]])
            forward = forward + hops[:, None, None]
            backward = backward + returning[:, None, None]
            hops = np.zeros_like(hops)
            wait = returning if self.problem.stack.p2p_after_gradient else wait
        return LayerPartitionData(
            num_microbatches=int(self.table.num_microbatches[choice]),
            forward_ms=forward,
            backward_ms=backward,
            reduction_ms=np.array([table.reduction_ms for table in tables]),
            follow_ms=np.array([table.follow_ms for table in tables]),
            send_ms=hops,
            wait_ms=wait,
            constant_ms=float(self.prices.tied_sync_s[choice, order[0], order[-1]]) / MS
            if len(order) > 1
            else 0.0,
            may_be_empty=ends_without_layers(self.problem, len(order)),
        )

    def hops_s(self, choice: int, order: Sequence[int]) -> Floats:
        """Time of each hop of an order, [stage]; the last is 0 [s]."""
        per_node = [node_class.chips_per_node for node_class in self.problem.cluster.classes]
        size = int(self.table.stage_size[choice])
        send, inside = self.prices.send_s[choice], self.prices.send_inside_s[choice]
        hops = hop_send_s(send, inside, order, size, per_node)
        hops[-1] = 0.0
        return hops

    def choice_of(self, choice: int, order: Sequence[int], cuts: Cuts) -> StageChoice:
        """Layers and recomputation of every stage of a split."""
        layers, kinds, recomputed = [], [], []
        for s, (first, end) in enumerate(stages_of(cuts, len(self.kind_of_layer))):
            table = self.of_stage(choice, order, s)
            full = int(table.full_layers[first, end])
            layers.append(end - first)
            kinds.append("selective" if table.selective[first, end] else "full" if full else "none")
            recomputed.append(full)
        return StageChoice(tuple(layers), tuple(kinds), tuple(recomputed))

    def of_stage(self, choice: int, order: Sequence[int], stage: int) -> IntervalTable:
        """The table of one stage of an order."""
        num_stages, m = len(order), int(self.table.num_microbatches[choice])
        return self._table(
            Position(
                choice=choice,
                node_class=int(order[stage]),
                in_flight=in_flight_1f1b(num_stages, stage, m, planned=self.prices.plans_memory),
                first=stage == 0,
                last=stage == num_stages - 1,
                num_stages=num_stages,
                may_be_empty=bool(ends_without_layers(self.problem, num_stages)[stage]),
            )
        )

    def costs(self, key: Position, runs: Runs) -> IntervalTable:
        """What a position costs with each run; [in_flight, run] where it has several numbers in flight."""
        c, n, first, last = key.choice, key.node_class, key.first, key.last
        prices, kinds = self.prices, self.kind_of_layer

        def layers(array: Floats) -> Floats:
            """Sums over runs of a time by [kind, class] and, if it has them, parts."""
            of_kind = array[c, :, n]
            return runs.sums((of_kind.sum(axis=-1) if of_kind.ndim == 2 else of_kind)[kinds])

        def ends(embedding: Floats, head: Floats) -> float:
            """What the embedding and the head add."""
            total = float(np.sum(embedding[c, n])) if first else 0.0
            return total + (float(np.sum(head[c, n])) if last else 0.0)

        def once(task: str) -> Floats:
            """The same once a step, with the layers."""
            head = f"{'head_beside_embedding' if first else 'head'}_{task}_s"
            of_ends = ends(getattr(prices, f"embedding_{task}_s"), getattr(prices, head))
            return layers(getattr(prices, f"layer_{task}_s")) + of_ends

        extra, selective, full = self._least_recompute(key, runs)
        forward = layers(prices.layer_forward_s)
        forward = forward + ends(prices.embedding_forward_s, prices.head_forward_s)
        backward = layers(prices.layer_backward_s) + extra
        backward = backward + ends(prices.embedding_backward_s, prices.head_backward_s)
        reduce, gather = once("reduce"), once("gather")
        follow = once("optimizer") + float(prices.step_fixed_s[c, n]) + float(prices.gather_tail_s[c, n])
        hidden = prices.hidden_fraction
        fits = np.isfinite(extra)
        shown = np.maximum(reduce - hidden * np.where(fits, backward, 0.0), 0.0)
        shown = shown + float(prices.reduce_tail_s[c, n])
        if prices.later_stages_have_one_bucket and not first:
            shown = np.maximum(shown, reduce)
        return IntervalTable(
            forward_ms=np.where(fits, forward, np.inf) / MS,
            backward_ms=np.where(fits, backward, np.inf) / MS,
            reduction_ms=shown / MS,
            follow_ms=(follow + np.maximum(gather - hidden * forward, 0.0)) / MS,
            selective=selective,
            full_layers=full,
        )

    def _least_recompute(
        self, key: Position, runs: Runs
    ) -> tuple[Floats, NDArray[np.bool_], NDArray[np.int64]]:
        """More backward [s], whether selective, and layers in full."""
        c, n = key.choice, key.node_class
        prices, kinds, forbid = self.prices, self.kind_of_layer, self.problem.options.forbid
        memory = IntervalMemory(prices, key, kinds, runs)
        held = runs.length >= (0 if key.may_be_empty else 1)
        if key.first and self.most_on_first is not None:
            held &= runs.length <= self.most_on_first
        extra = np.where(held & memory.fits_plain(), 0.0, np.inf)
        selective = np.zeros(extra.shape, dtype=bool)
        if "recompute=selective" not in forbid:
            time = runs.sums(prices.layer_selective_s[c, :, n].sum(axis=-1)[kinds])
            if key.last:  # an empty stage may have them behind one that ends with the last layer
                time = time + prices.predictions_selective_s[c, n].sum()
            selective = held & (runs.length > 0) & ~np.isfinite(extra) & memory.fits_selective()
            extra = np.where(selective, time, extra)
        if "recompute=full" in forbid:
            return extra, selective, np.zeros(extra.shape, dtype=np.int64)
        until = np.concatenate([[0.0], np.cumsum(prices.layer_full_s[c, :, n].sum(axis=-1)[kinds])])
        fewest = np.where(held & (~np.isfinite(extra) | selective), memory.fewest_full(), 0)
        own = np.where(fewest > 0, until[runs.first + fewest] - until[runs.first], np.inf)
        better = own < extra
        return np.where(better, own, extra), selective & ~better, np.where(better, fewest, 0)
