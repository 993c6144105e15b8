"""How many process groups FlagScale's heterogeneous mode makes of a pipeline whose degrees change.

It makes one pipeline group for every way through the meshes from a rank of the first to one of the last, and
warms each up, so that it has communicators (Megatron-LM-FL, megatron/plugin/hetero/parallel_context.py,
`build_global_process_groups`; `warm_up_comm_group_hetero` of its pipeline communication). Where neighbours
differ in degrees a rank is on several ways, and where degrees alternate they multiply. A way is one among the
tensor-parallel ranks and one among the replicas, each on its own, so that their numbers are products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from planner.data.plan import Plan


@dataclass(frozen=True)
class GroupCounts:
    """Groups of one configuration."""

    pipelines: tuple[int, ...]
    """[stage] most pipeline groups that one of its ranks is in."""
    all_pipelines: int
    """Pipeline groups of the job, each of which every rank takes part in making."""
    embedding_pairs: tuple[int, int]
    """Most ranks of the last stage that one of the first is joined with, and the other way round."""


def group_counts(plan: Plan) -> GroupCounts:
    """The groups that FlagScale makes of a plan, one mesh a stage."""
    lanes = [[s.tensor_parallel for s in plan.stages], [s.data_parallel for s in plan.stages]]
    onward = [_ways(degrees) for degrees in lanes]
    back = [_ways(degrees[::-1])[::-1] for degrees in lanes]
    most = [
        [max(a * b for a, b in zip(f, g, strict=True)) for f, g in zip(ahead, behind, strict=True)]
        for ahead, behind in zip(onward, back, strict=True)
    ]
    return GroupCounts(
        pipelines=tuple(prod(of_stage) for of_stage in zip(*most, strict=True)),
        all_pipelines=prod(sum(ahead[-1]) for ahead in onward),
        embedding_pairs=(
            prod(_most_met(degrees) for degrees in lanes),
            prod(_most_met(degrees[::-1]) for degrees in lanes),
        ),
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
