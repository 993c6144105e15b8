"""Process groups of a pipeline whose stages differ in degrees, and the memory of their communicators.

FlagScale's heterogeneous mode makes one pipeline group for every way through the meshes from a rank of the
first to one of the last, and warms each up, so that it has communicators (Megatron-LM-FL,
megatron/plugin/hetero/parallel_context.py, `build_global_process_groups`; `warm_up_comm_group_hetero` of its
pipeline communication). Where neighbours differ in degrees a rank is on several ways, and where degrees
alternate they multiply. A way is one among the tensor-parallel ranks and one among the replicas, each on its
own, so that their numbers are products.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import gcd, prod
from typing import NamedTuple

from planner.cost.memory.communicators import TWO_RANKS
from planner.data.problem import Problem
from planner.units import GIB

Lanes = tuple[tuple[int, ...], tuple[int, ...]]
"""Tensor- and data-parallel degrees of all stages."""


class GroupCounts(NamedTuple):
    """Groups of one configuration."""

    pipelines: tuple[int, ...]
    """[stage] most pipeline groups that one of its ranks is in."""
    all_pipelines: int
    """Pipeline groups of the job, each of which every rank takes part in making."""
    embedding_pairs: tuple[int, int]
    """Most ranks of the last stage that one of the first is joined with, and the other way round."""


def group_counts(degrees: Iterable[tuple[int, int]]) -> GroupCounts:
    """The groups of a pipeline.

    Parameters
    ----------
    degrees
        Tensor and data parallelism of every stage.
    """
    tensor, data = zip(*degrees, strict=True)
    lanes = _counts_of_lane(tensor), _counts_of_lane(data)
    first, last = zip(*(lane.embedding_pairs for lane in lanes), strict=True)
    return GroupCounts(
        pipelines=tuple(prod(of_stage) for of_stage in zip(*(lane.pipelines for lane in lanes), strict=True)),
        all_pipelines=prod(lane.all_pipelines for lane in lanes),
        embedding_pairs=(prod(first), prod(last)),
    )


def further_communicator_bytes(problem: Problem, degrees: Sequence[tuple[int, int]]) -> list[float]:
    """[stage] memory of the communicators beyond those of a pipeline of equal stages, at most [bytes].

    There one group of the pipeline counts, and one pair for a common embedding. A rank's groups are taken to
    have communicators of their own, as large as any: nothing is known to share them. Zero where all stages
    have the same degrees.
    """
    if len(set(degrees)) < 2:
        return [0.0] * len(degrees)
    stack, counts = problem.stack, group_counts(degrees)
    one = max(stack.communicator_gib, stack.far_communicator_gib or 0.0) * GIB
    of_pipeline = one * (1.0 if len(degrees) > 2 else TWO_RANKS)
    found = [(groups - 1) * of_pipeline for groups in counts.pipelines]
    if problem.model.copies_embedding:
        for stage, pairs in zip((0, -1), counts.embedding_pairs, strict=True):
            found[stage] += (pairs - 1) * one * TWO_RANKS
    return found


@lru_cache(maxsize=4096)
def _counts_of_lane(degrees: tuple[int, ...]) -> GroupCounts:
    """The groups of one kind of rank, of tensor-parallel ones or of replicas.

    What all degrees have in common only makes as many times the same groups.
    """
    shared = gcd(*degrees)
    parts = [degree // shared for degree in degrees]
    onward, back = _ways(parts), _ways(parts[::-1])[::-1]
    most = [max(a * b for a, b in zip(f, g, strict=True)) for f, g in zip(onward, back, strict=True)]
    return GroupCounts(
        pipelines=tuple(most),
        all_pipelines=shared * sum(onward[-1]),
        embedding_pairs=(_most_met(parts), _most_met(parts[::-1])),
    )


def _ways(degrees: Sequence[int]) -> list[list[int]]:
    """[stage][place] ways from the first stage to each place of a stage."""
    ways = [[1] * degrees[0]]
    for first, second in pairwise(degrees):
        found = [0] * second
        for place, count in enumerate(ways[-1]):
            for met in _met(place, place, first, second):
                found[met] += count
        ways.append(found)
    return ways


def _met(begin: int, end: int, first: int, second: int) -> range:
    """Parts of `second` equal ones that the parts from `begin` to `end` of `first` equal ones meet."""
    return range(begin * second // first, -(-(end + 1) * second // first))


def _most_met(degrees: Sequence[int]) -> int:
    """Most places of the last stage that one of the first reaches."""
    most = 0
    for place in range(degrees[0]):
        reached = range(place, place + 1)
        for first, second in pairwise(degrees):
            reached = _met(reached[0], reached[-1], first, second)
        most = max(most, len(reached))
    return most
