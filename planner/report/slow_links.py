"""What a plan sends over links between node classes that are slower than the adapters on either side.

Between sites, or islands of a network, such a link is what a plan must spare: the reader sees what is left
on it. Tensor, context and expert parallelism never cross one, as their groups lie within one class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from planner.cost.kernels.operators import HALF
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.units import GB

Pair = tuple[str, str]
"""Names of two classes, in the order of the cluster."""


def slow_links(problem: Problem, plan: Plan, evaluation: Evaluation) -> list[str]:
    """A sentence for each slow link that the plan uses."""
    told: dict[Pair, list[str]] = defaultdict(list)
    for part in plan.pipeline_plans if plan.pipelines is not None else (plan,):
        for pair, sent_bytes in sorted(_activations_bytes(problem, part).items()):
            gbit_per_s = 8 * sent_bytes / evaluation.step_s / GB
            told[pair].append(
                f"activations and their gradients, {_rounded(sent_bytes / GB)} GB a step, on average "
                f"{_rounded(gbit_per_s)} Gbit/s both ways together"
            )
        for pair, stages in sorted(_shared_stages(problem, part).items()):
            several = "stages" if len(stages) > 1 else "stage"
            told[pair].append(f"gradients and parameters of {several} {', '.join(map(str, stages))}")
    return [f"{a} to {b}: {'; '.join(what)}" for (a, b), what in told.items()]


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _is_slow(problem: Problem, a: str, b: str) -> bool:
    """Whether the link between two classes is slower than the adapters of a node of either."""
    first, second = problem.cluster.class_index(a), problem.cluster.class_index(b)
    inside = min(problem.cluster.link_between(c, c)[0] for c in (first, second))
    return first != second and problem.cluster.link_between(first, second)[0] < inside


def _activations_bytes(problem: Problem, plan: Plan) -> dict[Pair, float]:
    """What stages send one another over each slow link in a step, forward and backward [bytes].

    Every sequence passes a border between stages once each way, and one between virtual stages as often;
    without sequence parallelism each tensor-parallel rank sends all of it.
    """
    sequences = plan.data_parallel * plan.microbatch_size * plan.num_microbatches
    once = 2.0 * HALF * sequences * problem.workload.seq_length * problem.model.hidden_size
    found: dict[Pair, float] = defaultdict(float)
    stages = [stage for _ in range(plan.virtual_stages) for stage in plan.stages]
    for sender, receiver in pairwise(stages):
        copies = 1 if plan.sequence_parallel else sender.tensor_parallel
        borders = list(_pairs(problem, sender, receiver))
        for pair in borders:
            if pair is not None:
                found[pair] += once * copies / len(borders)
    return found


def _pairs(problem: Problem, sender: Stage, receiver: Stage) -> Iterator[Pair | None]:
    """Slow link between each replica of a stage and its successor, None where there is no slow one."""
    ends = [[place[0] for place in stage.places] for stage in (sender, receiver)]
    count = max(map(len, ends))
    for a, b in zip(*(names * count if len(names) == 1 else names for names in ends), strict=False):
        yield _in_order(problem, a, b) if _is_slow(problem, a, b) else None


def _shared_stages(problem: Problem, plan: Plan) -> dict[Pair, list[int]]:
    """Stages whose replicas lie on both sides of a slow link."""
    found: dict[Pair, list[int]] = defaultdict(list)
    for s, stage in enumerate(plan.stages):
        names = list(dict.fromkeys(place[0] for place in stage.places))
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                if _is_slow(problem, a, b):
                    found[_in_order(problem, a, b)].append(s)
    return found


def _in_order(problem: Problem, a: str, b: str) -> Pair:
    index = problem.cluster.class_index
    return (a, b) if index(a) < index(b) else (b, a)
