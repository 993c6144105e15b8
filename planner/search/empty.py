"""Which stages may be without a layer, with the embedding or the loss alone, and how many stages may be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.data.problem import Problem
from planner.rules.target import TARGETS
from planner.search.kinds import layer_kinds

MOST_BESIDE_EMPTY = 1.25
"""Layers of a virtual stage, on average, up to which the first and the last may have none on mixed clusters:
where they are longer, one layer fewer there hardly matters, and proofs take twice as long. A guess, of what
the search covers."""


def ends_may_be_empty(problem: Problem, num_chunks: int) -> bool:
    """Whether the embedding, and the loss, may have one of so many virtual stages to themselves, both."""
    are_short = problem.model.num_layers <= MOST_BESIDE_EMPTY * num_chunks
    if problem.model.predictions_need_a_layer:
        return False
    return stages_may_be_empty(problem) and (are_short or len(problem.cluster.classes) == 1)


def stages_may_be_empty(problem: Problem) -> bool:
    """Whether the embedding, and the loss, may have a whole stage of a pipeline of several to themselves."""
    return TARGETS[problem.target].empty_ends and "stages=empty" not in problem.options.forbid


def ends_without_layers(
    problem: Problem, num_stages: int, *, predictions_apart: bool = False
) -> NDArray[np.bool_]:
    """Which stages may be without a layer, [stage]; leading layers keep the first from it all the same."""
    ends, are_alone = np.zeros(num_stages, dtype=np.bool_), not problem.model.predictions_need_a_layer
    if num_stages > 1:
        ends[[0, -1]] = stages_may_be_empty(problem)
        ends[-1] &= predictions_apart or are_alone
    if predictions_apart:
        ends[-2] = are_alone
    return ends


def most_without_layers(problem: Problem) -> int:
    """How many stages of a long pipeline may be without a layer."""
    kinds = layer_kinds(problem.model)
    stays = kinds is not None and kinds.num_lead > 0
    return int(ends_without_layers(problem, 2).sum()) - (stays and stages_may_be_empty(problem))


def most_stages(problem: Problem, *, predictions_apart: bool = False, num_empty: int | None = None) -> int:
    """Stages of the longest pipeline whose stages all find a layer, but for those that may be empty."""
    bare = most_without_layers(problem) if num_empty is None else num_empty
    most = problem.model.num_layers + bare + predictions_apart
    return min(most, problem.options.max_pipeline_parallel or most)


def most_virtual_stages(problem: Problem, stages: int) -> int:
    """Virtual stages of so many stages that all find a layer, but for those that may be empty."""
    num_layers = problem.model.num_layers
    return (num_layers + 2 * ends_may_be_empty(problem, num_layers)) // stages
