"""Search for `unrestricted`: pipelines of different shape with unequal shares of the batch.

Begins with the plans of the narrower launchers, Megatron-LM and FlagScale, which are all legal here, so that
the answer is never worse. Then mixes of pipelines (`planner.search.replicas.templates`) are chosen by
`formulations.replica_mix`, whose deadline leaves out what the pipelines exchange: the referee has the last
word on each.

The bound holds for every plan: whatever shares the batch, S sequences of L layers are computed by chips
that none does faster than at the best degrees of its class,

    T >= S L / sum_c N[c] r[c] + what follows at least,    r[c] = max over degrees mbs / (t cp layer time),

so that the proven gap holds all bubbles, all exchange and all memory that no plan can do without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from formulations import replica_mix, replica_mix_cp
from formulations.options import SolveOptions
from formulations.replica_mix import ReplicaMix, ReplicaMixData
from planner.cost.pricing import price
from planner.data.plan import Pipeline, Plan
from planner.data.problem import Problem
from planner.data.result import Result
from planner.search.assemble import hosts_needed, hosts_of_stages
from planner.search.bounds import bound_data
from planner.search.degrees import list_degrees
from planner.search.driver import Search
from planner.search.kinds import check_kinds, layer_kinds
from planner.search.meshes.driver import MeshSearch, pinned_beyond
from planner.search.meshes.neighbours import Place, sequence_of
from planner.search.meshes.opener import MeshOpener, assemble_meshes
from planner.search.progress import Progress
from planner.search.replicas.templates import Candidate, list_candidates
from planner.simulate.evaluate import evaluate

SHARE_OF_NARROWER = 0.4
"""Share of the time limit that each of the searches for the narrower launchers may take."""
MOST_PROGRAMS = 16
"""Programs of one mix among which the time that is left is divided."""


def search_replicas(
    problem: Problem,
    on_progress: Callable[[Progress], None] | None = None,
    seeds: Sequence[Plan] = (),
) -> Result:
    """The best plan that was found without a launcher's limits; `seeds` are plans to begin with.

    Raises
    ------
    InstanceError, SolverError
        As `planner.search.driver.search`.
    """
    check_kinds(problem)
    return ReplicaSearch(problem, on_progress, seeds).run()


class ReplicaSearch(MeshSearch):
    """One search; `run` does it."""

    def __init__(
        self,
        problem: Problem,
        on_progress: Callable[[Progress], None] | None,
        seeds: Sequence[Plan] = (),
    ) -> None:
        super().__init__(problem, on_progress, seeds)
        self.whole = problem
        """The problem with every degree that the narrower launchers may use."""

    def _search(self) -> bool:
        narrower = any(plan.target != self.whole.target for plan in self.seeds)
        interrupted = not narrower and self._narrower_plans()
        self.offer_seeds()
        if pinned_beyond(self.whole) is None:
            self._mix_all()
        bound_s = work_bound_s(self.whole)
        if bound_s is not None:
            self.frontier.close(bound_s)
        return interrupted or self.clock.is_up

    def _mix_all(self) -> None:
        """Mixes of what goes with each of the plans at hand."""
        self.reporter.report("mixing pipelines", self.incumbent.step_s, None, 0, 0)
        opener = self.make_opener()
        places = [sequence_of(self.problem, opener.batches, plan) for plan in self.seeds]
        known = [place for place in places if place is not None]
        likes = [opener.batches[number] for number, _ in known] or list(opener.batches)
        for like in {like.shared: like for like in likes}.values():
            self._mix(opener, list_candidates(opener, known, like))

    def _narrower_plans(self) -> bool:
        """The best plans of Megatron-LM and of FlagScale; whether a limit cut either."""
        cut = False
        for target, kind in (("megatron-lm", Search), ("flagscale", MeshSearch)):
            left_s = self.clock.left_s
            share_s = None if left_s is None else max(SHARE_OF_NARROWER * left_s, 1e-3)
            options = self.whole.options.model_copy(update={"time_limit_s": share_s})
            asked = self.whole.model_copy(update={"target": target, "options": options})
            found = kind(asked, None, self.seeds).run()
            self.reason = self.reason or found.reason
            cut = cut or found.interrupted
            if found.plan is not None:
                self.seeds.append(found.plan)
        return cut

    def _mix(self, opener: MeshOpener, candidates: list[Candidate]) -> None:
        """The best mix of some candidates, judged by the referee."""
        if not candidates or self.clock.is_up:
            return
        options = self.problem.options
        data = ReplicaMixData(
            tuple(candidate.template for candidate in candidates),
            tuple(node_class.num_chips for node_class in self.problem.cluster.classes),
            self.problem.workload.global_batch_size,
        )
        form = replica_mix_cp if options.solver == "cp_sat" else replica_mix
        left_s = self.clock.left_s
        solver_options = SolveOptions(
            solver=options.solver,
            gap=0.0,
            seed=options.seed,
            time_limit_s=None if left_s is None else left_s / MOST_PROGRAMS,
        )
        found = form.solve(data, solver_options)
        opener.programs += 1
        plan = None if found is None else assemble_mix(self.problem, opener, candidates, found)
        if plan is None or not set(self.use) <= {stage.node_class for stage in plan.stages}:
            return
        evaluation = evaluate(self.problem, plan)
        opener.evaluated += 1
        if not evaluation.violations:
            self.incumbent.offer(plan, evaluation)


def assemble_mix(
    problem: Problem, opener: MeshOpener, candidates: Sequence[Candidate], mix: ReplicaMix
) -> Plan | None:
    """The plan of a mix, its copies class by class along the hosts; None where the hosts do not go round."""
    copies: list[tuple[Place, Candidate, int]] = []
    for candidate, count, microbatches in zip(candidates, mix.copies, mix.microbatches, strict=True):
        running = min(count, microbatches)
        for i in range(running):
            share = microbatches // running + (i < microbatches % running)
            copies.append((candidate.place, candidate, share))
    copies.sort(key=lambda copy: _along_hosts(opener, copy[0]))
    parts = [
        assemble_meshes(problem, opener.batches[number], order, candidate.choice)
        for (number, order), candidate, _ in copies
    ]
    shapes = [opener.batches[number].shapes[k] for (number, order), _, _ in copies for k in order]
    classes, sizes = [shape.node_class for shape in shapes], [shape.num_chips for shape in shapes]
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]
    needed = hosts_needed(classes, sizes, per_node)
    if not parts or any(n > problem.cluster.classes[c].num_nodes for c, n in needed.items()):
        return None
    hosts = hosts_of_stages(problem, classes, sizes)
    stages = [stage for part in parts for stage in part.stages]
    placed = tuple(s.model_copy(update={"hosts": h}) for s, h in zip(stages, hosts, strict=True))
    pipelines = tuple(
        Pipeline(num_stages=len(part.stages), microbatch_size=part.microbatch_size, num_microbatches=share)
        for part, (_, _, share) in zip(parts, copies, strict=True)
    )
    first = parts[0].model_copy(update={"num_microbatches": copies[0][2], "stages": placed})
    split = any(part.sequence_parallel for part in parts)
    return first.model_copy(
        update={"pipelines": pipelines if len(parts) > 1 else None, "sequence_parallel": split}
    )


def _along_hosts(opener: MeshOpener, place: Place) -> tuple[list[int], list[int]]:
    """Copies on the same classes stand together, the widest tensor parallelism first."""
    shapes = [opener.batches[place[0]].shapes[k] for k in place[1]]
    return [shape.node_class for shape in shapes], [-shape.tensor_parallel for shape in shapes]


def work_bound_s(problem: Problem) -> float | None:
    """What no plan of the problem undercuts, as its chips cannot compute the batch faster [s]."""
    free = problem.options.model_copy(update={"use": ()})
    table = list_degrees(problem.model_copy(update={"options": free}))
    kinds = layer_kinds(problem.model)
    if len(table) == 0 or kinds is None:
        return None
    prices = price(problem, table.degrees)
    data = bound_data(problem.model.num_layers, kinds, prices, sends_block=not problem.stack.p2p_overlap)
    usable = table.max_stages > 0
    degrees = table.degrees
    chips = (degrees.tensor_parallel * degrees.context_parallel / degrees.microbatch_size)[:, None]
    work_s = np.where(usable, data.layer_s * chips, np.inf).min(axis=0)
    ends = np.where(usable, (data.embedding_s + data.head_s) / data.layer_s, np.inf).min()
    counts = np.array([node_class.num_chips for node_class in problem.cluster.classes], dtype=np.float64)
    rate = float((counts / work_s).sum())
    layers = float(data.num_layers.min()) + float(ends)
    after = float(np.where(usable, data.fixed_s + data.tail_s, np.inf).min())
    return problem.workload.global_batch_size * layers / rate + after
