"""Mixes of pipelines that are chosen among candidates, each judged by the referee."""

from __future__ import annotations

import numpy as np

from formulations.solvers import loading_s
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.opener import MeshOpener
from planner.search.replicas.choosing import choose_mix
from planner.search.replicas.mixes import Mixes
from planner.search.replicas.templates import Candidate, assemble_mix, chains_by_share, list_candidates
from planner.simulate.evaluate import evaluate
from planner.units import MS

ANY_NUMBER, FEWER = 1_000_000, (2, 3, 5)
"""Most pipelines of a mix: few large ones exchange less."""


def choose_mixes(search: MeshSearch, opener: MeshOpener, mixes: Mixes) -> int:
    """Choose among the chains that were found, those of plans at hand and some others.

    The most pipelines of a mix that is done before the best plan, one where there is none.
    """
    most = 1
    for chains in chains_by_share(opener, search.seeds, mixes):
        candidates = list_candidates(opener, *chains)
        copies = _mix(search, opener, candidates, ANY_NUMBER)
        for number in FEWER:
            if number < copies:
                _mix(search, opener, candidates, number)
        most = max(most, copies)
    return most


def _mix(search: MeshSearch, opener: MeshOpener, candidates: list[Candidate], most_pipelines: int) -> int:
    """The best mix of some candidates, judged by the referee; its pipelines."""
    if not candidates or search.clock.is_up_behind(loading_s(search.problem.options.solver)):
        return 0
    best_s = search.incumbent.step_s
    latest_ms = np.inf if best_s is None else best_s / MS
    found = choose_mix(search.problem, candidates, most_pipelines, latest_ms, search.clock.left_s)
    opener.programs += 1
    if found is None:
        # What does not run the batch may with chains that are still to be found.
        return most_pipelines if best_s is None else 0
    plan = assemble_mix(search.problem, opener, candidates, found)
    if plan is None or not set(search.use) <= {stage.node_class for stage in plan.stages}:
        return sum(found.copies)
    evaluation = evaluate(search.problem, plan)
    opener.evaluated += 1
    if not evaluation.violations:
        search.incumbent.offer(plan, evaluation)
    return sum(found.copies)
