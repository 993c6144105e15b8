"""Mixes of pipelines that are chosen among candidates, each judged by the referee."""

from __future__ import annotations

from formulations.solvers import loading_s
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.opener import MeshOpener
from planner.search.replicas.choosing import choose_mix
from planner.search.replicas.mixes import Mixes
from planner.search.replicas.templates import Candidate, assemble_mix, chains_by_share, list_candidates
from planner.simulate.evaluate import evaluate

NUMBERS_OF_PIPELINES = (2, 3, 5, 1_000_000)
"""Most pipelines of a mix: few large ones exchange less."""


def choose_mixes(search: MeshSearch, opener: MeshOpener, mixes: Mixes) -> int:
    """Choose among the chains that were found, those of plans at hand and some others.

    The most pipelines of a mix that was the best of its kind.
    """
    most = 1
    for chains in chains_by_share(opener, search.seeds, mixes.chains, mixes.columns):
        candidates = list_candidates(opener, *chains)
        for number in NUMBERS_OF_PIPELINES:
            copies = _mix(search, opener, candidates, number)
            most = max(most, copies)
            if copies < number:
                break
    return most


def _mix(search: MeshSearch, opener: MeshOpener, candidates: list[Candidate], most_pipelines: int) -> int:
    """The best mix of some candidates, judged by the referee; its pipelines."""
    if not candidates or search.clock.is_up_behind(loading_s(search.problem.options.solver)):
        return 0
    found = choose_mix(search.problem, candidates, most_pipelines, search.clock.left_s)
    opener.programs += 1
    if found is None:
        return most_pipelines
    plan = assemble_mix(search.problem, opener, candidates, found)
    if plan is None or not set(search.use) <= {stage.node_class for stage in plan.stages}:
        return sum(found.copies)
    evaluation = evaluate(search.problem, plan)
    opener.evaluated += 1
    if not evaluation.violations:
        search.incumbent.offer(plan, evaluation)
    return sum(found.copies)
