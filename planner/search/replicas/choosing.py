"""Choose which pipelines run side by side, and what each gets of the batch; the referee judges a choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from formulations import replica_mix, replica_mix_cp
from formulations.options import SolveOptions
from formulations.replica_mix import ReplicaMix, ReplicaMixData
from formulations.solvers import loading_s
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.opener import MeshOpener
from planner.search.replicas.mixes import Mixes
from planner.search.replicas.templates import Candidate, assemble_mix, chains_by_share, list_candidates
from planner.simulate.evaluate import evaluate
from planner.units import MS

ANY_NUMBER, FEWER = 1_000_000, (2, 3, 5)
"""Most pipelines of a mix: few large ones exchange less."""
MOST_PROGRAMS = 40
"""Programs among which the time that is left is divided."""
MUCH_EXCHANGE = 1.05
"""Step over the deadline of a mix beyond which mixes of fewer classes are looked at: what pipelines exchange
is no part of the deadline, and over a slow link may take longer than all else."""
MOST_SETS = 8
"""Sets of classes whose mixes are looked at. Guesses, both."""


@dataclass(frozen=True)
class Chosen:
    """What came of choosing mixes once."""

    copies: int
    """The most pipelines of a mix that is done before the best plan, one where there is none."""
    judged: tuple[tuple[Plan, Evaluation], ...]
    """Plans that the referee confirmed, in the order in which they came up."""
    programs: int
    evaluated: int
    """Mixes that it looked at."""

    def take(self, search: MeshSearch, opener: MeshOpener) -> None:
        """Take over what another process chose."""
        for plan, evaluation in self.judged:
            search.incumbent.offer(plan, evaluation)
        opener.programs += self.programs
        opener.evaluated += self.evaluated


def choose_mix(
    problem: Problem,
    candidates: Sequence[Candidate],
    most_pipelines: int,
    latest_ms: float,
    left_s: float | None,
) -> ReplicaMix | None:
    """The mix of at most so many pipelines that ends first, without what they exchange.

    None where none is found that ends before `latest_ms`. `left_s` is the time that is left [s], None without
    a limit.
    """
    options = problem.options
    data = ReplicaMixData(
        tuple(candidate.template for candidate in candidates),
        tuple(node_class.num_chips for node_class in problem.cluster.classes),
        problem.workload.global_batch_size,
        most_pipelines,
        latest_ms,
    )
    solver_options = SolveOptions(
        solver=options.solver,
        gap=0.0,
        seed=options.seed,
        time_limit_s=None if left_s is None else left_s / MOST_PROGRAMS,
    )
    if options.solver == "cp_sat":
        return replica_mix_cp.solve(data, solver_options)
    return replica_mix.solve(data, solver_options)


def choose_mixes(search: MeshSearch, opener: MeshOpener, mixes: Mixes) -> Chosen:
    """Choose among the chains that were found, those of plans at hand and some others."""
    most, judged, before = 1, list[tuple[Plan, Evaluation]](), (opener.programs, opener.evaluated)
    for chains in chains_by_share(opener, search.seeds, mixes):
        if mixes.is_up():
            break
        candidates = list_candidates(opener, *chains)
        most = max(most, _mix_classes(search, opener, candidates, judged))
    return Chosen(most, tuple(judged), opener.programs - before[0], opener.evaluated - before[1])


def _mix_classes(
    search: MeshSearch,
    opener: MeshOpener,
    candidates: list[Candidate],
    judged: list[tuple[Plan, Evaluation]],
) -> int:
    """Mixes of some candidates, also without classes that exchange much; the most pipelines of one."""
    most, sets = 0, [frozenset[int]()]
    for left_out in sets:
        own = [one for one in candidates if not any(one.template.chips[c] for c in left_out)]
        first = _mix(search, opener, own, ANY_NUMBER, judged)
        others = [_mix(search, opener, own, n, judged) for n in FEWER if n < first.pipelines]
        most = max(most, first.pipelines)
        for c in dict.fromkeys(c for mix in (first, *others) for c in mix.exchanging):
            if len(sets) < MOST_SETS and left_out | {c} not in sets:
                sets.append(left_out | {c})
    return most


@dataclass(frozen=True)
class Mixed:
    """What came of one choice."""

    pipelines: int = 0
    exchanging: tuple[int, ...] = ()
    """Its classes, where it has several and exchanges much."""


def _mix(
    search: MeshSearch,
    opener: MeshOpener,
    candidates: list[Candidate],
    most_pipelines: int,
    judged: list[tuple[Plan, Evaluation]],
) -> Mixed:
    """The best mix of some candidates, judged by the referee."""
    if not candidates or search.clock.is_up_behind(loading_s(search.problem.options.solver)):
        return Mixed()
    best_s = search.incumbent.step_s
    latest_ms = np.inf if best_s is None else best_s / MS
    found = choose_mix(search.problem, candidates, most_pipelines, latest_ms, search.clock.left_s)
    opener.programs += 1
    if found is None:
        # What does not run the batch may with chains that are still to be found.
        return Mixed(most_pipelines if best_s is None else 0)
    pipelines = sum(found.copies)
    plan = assemble_mix(search.problem, opener, candidates, found)
    if plan is None or not set(search.use) <= {stage.node_class for stage in plan.stages}:
        return Mixed(pipelines)
    evaluation = evaluate(search.problem, plan)
    opener.evaluated += 1
    if not evaluation.violations:
        search.incumbent.offer(plan, evaluation)
        judged.append((plan, evaluation))
    if evaluation.step_s <= MUCH_EXCHANGE * found.deadline_ms * MS:
        return Mixed(pipelines)
    names = {stage.node_class for stage in plan.stages}
    used = tuple(c for c, one in enumerate(search.problem.cluster.classes) if one.name in names)
    return Mixed(pipelines, used if len(used) > 1 else ())
