"""Open one part of the space of pipelines of free shapes: bound it, split it, or solve it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from formulations.stage_selection_data import StageChoice
from planner.cost.prices import Prices
from planner.data.plan import Plan, Recompute, Stage
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.search.assemble import hosts_of_stages
from planner.search.bounds import BoundData
from planner.search.degrees import DegreeTable, length_is_allowed
from planner.search.items import Item, Lengths, Order, Prefix
from planner.search.meshes.pairs import LONG
from planner.search.meshes.relaxation import Relaxation
from planner.search.meshes.shapes import Batch, can_be_placed, ends_match
from planner.search.meshes.tables import MeshTables
from planner.search.openings import Opener
from planner.search.referee import confirmed
from planner.search.state import Clock, Frontier
from planner.simulate.evaluate import evaluate_stages
from planner.units import MS

HALVINGS = 6
"""Halvings of the interval in which the bound of a batch and number of stages lies."""
HALVINGS_OF_PREFIX = 2
"""The same where the first shapes are known, and the bound of what they came from."""


class MeshOpener(Opener):
    """Opens parts whose orders are shapes of a batch: `choice` is its number, an order its shapes."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        bounds: BoundData,
        frontier: Frontier[Item],
        clock: Clock,
        batches: Sequence[Batch],
        use: Sequence[str] = (),
    ) -> None:
        super().__init__(problem, prices, table, bounds, frontier, clock)
        self.batches, self.use = batches, set(use)
        self.meshes = MeshTables(problem, prices, batches)
        self.tables = self.meshes  # type: ignore[assignment]
        self.relaxation = lru_cache(maxsize=256)(self._relaxation)
        self.best: tuple[float, int, tuple[int, ...]] | None = None
        """Step time, batch and shapes of the best plan that was judged here."""

    def open(self, bound_s: float, item: Item) -> None:
        """Bound a part better, split it, or judge what is in it."""
        if isinstance(item, Lengths):
            self._look_at_lengths(bound_s, item)
        elif isinstance(item, Prefix):
            self._extend(bound_s, item)
        else:
            super().open(bound_s, item)

    def _look_at_lengths(self, bound_s: float, part: Lengths) -> None:
        """Close several numbers of stages together, or halve them; one becomes a part of its own."""
        if len(part.stages) == 1:
            self._push_bounded(bound_s, Prefix(part.choice, part.stages[0], ()))
            return
        deadline_s = self._deadline_s()
        if deadline_s is not None:
            together = self._relaxation(part.choice, part.stages[0], coarse=True, longest=part.stages[-1])
            if together.misses(deadline_s / MS):
                self.frontier.close(deadline_s)
                return
        half = len(part.stages) // 2
        for side in (slice(half), slice(half, None)):
            bounds = part.bounds_s[side]
            self.frontier.push(max(bound_s, min(bounds)), Lengths(part.choice, part.stages[side], bounds))

    def _deadline_s(self) -> float | None:
        """What a part must miss to be closed: a little beyond the cutoff, so that rounding keeps the gap."""
        best_s = self.frontier.incumbent.step_s
        if best_s is None:
            return None
        return self.frontier.cutoff_s + (best_s - self.frontier.cutoff_s) / 1000

    def is_allowed(self, choice: int, order: tuple[int, ...]) -> bool:
        """Whether the classes have the hosts that the shapes take, and the user lets the order be."""
        if not length_is_allowed(self.problem.options, len(order)):
            return False
        return can_be_placed(self.problem, self.batches[choice], order) and self._is_whole(choice, order)

    def _is_whole(self, choice: int, order: tuple[int, ...]) -> bool:
        """Whether first and last stage go together, and all classes that must be busy are."""
        batch = self.batches[choice]
        used = {self.problem.cluster.classes[batch.shapes[k].node_class].name for k in order}
        return self.use <= used and ends_match(self.problem, batch, order[0], order[-1])

    def _extend(self, bound_s: float, part: Prefix) -> None:
        """One part for each shape of the next stage."""
        batch = self.batches[part.choice]
        for k in range(len(batch.shapes)):
            if self.clock.is_up:
                self.frontier.close(bound_s)
                return
            shapes = (*part.shapes, k)
            if not can_be_placed(self.problem, batch, shapes):
                continue
            if len(shapes) < part.stages:
                self._push_bounded(bound_s, Prefix(part.choice, part.stages, shapes))
            elif self._is_whole(part.choice, shapes):
                self.frontier.push(bound_s, Order(part.choice, shapes))

    def _push_bounded(self, bound_s: float, part: Prefix) -> None:
        """Keep a part open with the bound of its relaxation, unless that closes it."""
        deadline_s = self._deadline_s()
        if deadline_s is not None and bound_s < self.frontier.cutoff_s:
            if self._misses(part, deadline_s):
                self.frontier.close(deadline_s)
                return
            relaxation = self.relaxation(part.choice, part.stages)
            halvings = HALVINGS_OF_PREFIX if part.shapes else HALVINGS
            found_ms = relaxation.bound_ms(bound_s / MS, deadline_s / MS, halvings, part.shapes)
            bound_s = max(bound_s, found_ms * MS)
        self.frontier.push(bound_s, part)

    def _misses(self, part: Prefix, deadline_s: float) -> bool:
        """Whether nothing of a part finishes by a deadline, long pipelines looked at in groups first."""
        deadline_ms = deadline_s / MS
        if not part.shapes and part.stages > LONG:
            coarse = self._relaxation(part.choice, part.stages, coarse=True)
            if coarse.misses(deadline_ms):
                return True
        return self.relaxation(part.choice, part.stages).misses(deadline_ms, part.shapes)

    def _relaxation(
        self, choice: int, num_stages: int, coarse: bool = False, longest: int | None = None
    ) -> Relaxation:
        batch = self.batches[choice]
        return Relaxation(
            table=self.meshes.pair(choice, num_stages, coarse),
            num_layers=self.problem.model.num_layers,
            num_microbatches=batch.num_microbatches,
            class_of_shape=batch.node_class,
            chips_of_shape=batch.num_chips,
            chips_of_class=np.array([float(c.num_chips) for c in self.problem.cluster.classes]),
            sends_block=not self.problem.stack.p2p_overlap,
            longest=longest or num_stages,
        )

    def _bound_order(self, bound_s: float, part: Order) -> tuple[float, tuple[int, ...] | None]:
        """The bound of the prefix that became it stands."""
        return bound_s, None

    def _evaluated(
        self, choice: int, order: tuple[int, ...], stage_choice: StageChoice
    ) -> tuple[Plan, Evaluation]:
        batch = self.batches[choice]
        plan = assemble_meshes(self.problem, batch, order, stage_choice)
        rows = [batch.shapes[k].choice for k in order]
        evaluation = evaluate_stages(self.problem, plan, self.prices, rows)
        if self.best is None or evaluation.step_s < self.best[0]:
            self.best = evaluation.step_s, choice, order
        return confirmed(plan, evaluation)


def assemble_meshes(problem: Problem, batch: Batch, order: Sequence[int], stage_choice: StageChoice) -> Plan:
    """The plan of one batch, one sequence of shapes and one answer of `stage_selection`."""
    shapes = [batch.shapes[k] for k in order]
    hosts = hosts_of_stages(
        problem, [shape.node_class for shape in shapes], [shape.num_chips for shape in shapes]
    )
    stages, first = [], 0
    for s, (shape, count) in enumerate(zip(shapes, stage_choice.layers, strict=True)):
        node_class = problem.cluster.classes[shape.node_class]
        recompute: Recompute = "selective" if batch.selective else stage_choice.recompute[s]  # type: ignore[assignment]
        stages.append(
            Stage(
                layers=(first, first + count - 1),
                chip=node_class.chip,
                node_class=node_class.name,
                hosts=hosts[s],
                tensor_parallel=shape.tensor_parallel,
                data_parallel=shape.data_parallel,
                recompute=recompute,
                recompute_layers=stage_choice.recompute_layers[s],
            )
        )
        first += count
    tp, dp = shapes[0].tensor_parallel, shapes[0].data_parallel
    return Plan(
        target=problem.target,
        tensor_parallel=tp,
        expert_parallel=batch.expert_parallel,
        expert_tensor_parallel=tp if batch.expert_tensor_parallel is None else batch.expert_tensor_parallel,
        data_parallel=dp,
        microbatch_size=batch.sequences // dp,
        num_microbatches=batch.num_microbatches,
        sequence_parallel=batch.sequence_parallel and any(shape.tensor_parallel > 1 for shape in shapes),
        dp_mode="distopt",
        stages=tuple(stages),
    )
