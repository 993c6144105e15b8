"""Several pipelines side by side: the share of each, and the gradients that they exchange.

Each pipeline reduces the gradients of its own replicas as ever. Then the pipelines sum theirs: of every run
of layers that all of them hold on one stage, each stage's hosts send what lies on them around a ring of the
pipelines, 2 (G - 1) / G of it, at the rate of the slowest link between neighbours. Stages that share a host
share its adapters, as all of them sum at once. A stage with several such runs sums them one after the other.
The copy of the embedding that the last of several stages holds is summed as well. Nothing of this is hidden
behind computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from planner.cost.communication.exchange import exchange_link, exchanged_parameters
from planner.cost.identity import remembered
from planner.cost.remembered import remembered_price
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.data.result import Evaluation, TimelineEvent
from planner.simulate.meshes import degrees_of_stages, shapes_of
from planner.simulate.step import class_of_stage, stage_contents, step_times


def share_of(problem: Problem, part: Plan) -> Problem:
    """The problem with the sequences that one pipeline runs as its batch."""
    return _with_batch(problem, part.data_parallel * part.microbatch_size * part.num_microbatches)


@remembered
def _with_batch(problem: Problem, sequences: int) -> Problem:
    """The same object for the same share, so that what is priced for it is not priced again."""
    workload = problem.workload.model_copy(update={"global_batch_size": sequences})
    return problem.model_copy(update={"workload": workload})


def tail_s(problem: Problem, part: Plan) -> float:
    """What follows the reductions of one pipeline: update of the weights, gathering [s]."""
    degrees, choices = degrees_of_stages(part)
    prices = remembered_price(problem, degrees)
    contents = stage_contents(problem, part, prices)
    shapes = shapes_of(part, choices, [content.node_class for content in contents])
    return step_times(problem, part, prices, shapes, contents).tail_s


def exchange_s(problem: Problem, parts: Sequence[Plan]) -> float:
    """Sum of the gradients of all pipelines, on the stage that takes longest for it [s]."""
    if len(parts) == 1:
        return 0.0
    classes = [class_of_stage(problem, part) for part in parts]
    cuts = sorted({stage.chunks[0][0] for part in parts for stage in part.stages})
    copies = any(len(part.stages) > 1 for part in parts)
    took: dict[tuple[int, int], float] = {}
    for first, end in pairwise([*cuts, problem.model.num_layers]):
        holders = [_holder(part, first) for part in parts]
        places = []
        for g, s in enumerate(holders):
            node_class = classes[g][s]
            places.append((node_class, _nodes(problem, node_class, parts[g], parts[g].stages[s])))
        parameters = exchanged_parameters(problem, first, end, copies=copies)
        seconds = _ring_s(problem, places, problem.stack.gradient_bytes * parameters)
        for g, s in enumerate(holders):
            took[g, s] = took.get((g, s), 0.0) + seconds
    return max(took.values())


def _holder(part: Plan, layer: int) -> int:
    """Stage of a pipeline that holds a layer; the last where none does, which the rules complain of."""
    held = (s for s, stage in enumerate(part.stages) if stage.chunks[0][0] <= layer <= stage.chunks[0][1])
    return next(held, len(part.stages) - 1)


def _nodes(problem: Problem, node_class: int, part: Plan, stage: Stage) -> float:
    """Hosts that share what a stage holds, a part of one where it does not fill it."""
    chips = part.context_parallel * stage.tensor_parallel * stage.data_parallel
    return chips / problem.cluster.classes[node_class].chips_per_node


def _ring_s(problem: Problem, places: Sequence[tuple[int, float]], size_bytes: float) -> float:
    """All-reduce of a buffer among stages on (class, hosts), around a ring in their order [s]."""
    num, slowest = len(places), 0.0
    for g, (node_class, nodes) in enumerate(places):
        after = places[(g + 1) % num][0]
        rate, latency_s = exchange_link(problem, node_class, after)
        steps = 2 * (num - 1)
        moved = steps / num * size_bytes / min(nodes, places[(g + 1) % num][1])
        slowest = max(slowest, moved / rate + steps * latency_s)
    return slowest


def joined_timelines(evaluations: Sequence[Evaluation], parts: Sequence[Plan]) -> tuple[TimelineEvent, ...]:
    """Events of all pipelines, stages numbered as in the plan."""
    events, before = [], 0
    for evaluation, part in zip(evaluations, parts, strict=True):
        events += [
            event.model_copy(update={"stage": event.stage + before}) for event in evaluation.timeline or ()
        ]
        before += len(part.stages)
    return tuple(events)
