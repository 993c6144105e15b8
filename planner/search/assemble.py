"""Write the answer of a formulation as a plan: hosts, layer ranges, degrees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formulations.stage_selection_data import StageChoice
from formulations.virtual_selection_data import VirtualChoice
from planner.data.plan import Plan, Recompute, Stage
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable


def hosts_needed(
    class_of_stage: Sequence[int], stage_size: int | Sequence[int], chips_per_node: Sequence[int]
) -> dict[int, int]:
    """Hosts that each class lends: a run of its stages is packed from the start of a host."""
    sizes = [stage_size] * len(class_of_stage) if isinstance(stage_size, int) else stage_size
    needed: dict[int, int] = {}
    chips = 0
    for s, node_class in enumerate(class_of_stage):
        chips += sizes[s]
        if s + 1 == len(class_of_stage) or class_of_stage[s + 1] != node_class:
            needed[node_class] = needed.get(node_class, 0) + -(-chips // chips_per_node[node_class])
            chips = 0
    return needed


def hosts_of_stages(
    problem: Problem, class_of_stage: Sequence[int], stage_size: int | Sequence[int]
) -> list[tuple[str, ...]]:
    """Host names of every stage, taken from each class in order."""
    sizes = [stage_size] * len(class_of_stage) if isinstance(stage_size, int) else stage_size
    next_host = [0] * len(problem.cluster.classes)
    names = [problem.cluster.hosts_of(c) for c in range(len(problem.cluster.classes))]
    hosts: list[tuple[str, ...]] = []
    run_start, chips = 0, 0
    for s, node_class in enumerate(class_of_stage):
        per_node = problem.cluster.classes[node_class].chips_per_node
        if s == 0 or class_of_stage[s - 1] != node_class:
            run_start, chips = next_host[node_class], 0
        first = chips // per_node
        chips += sizes[s]
        last = (chips - 1) // per_node
        hosts.append(names[node_class][run_start + first : run_start + last + 1])
        next_host[node_class] = run_start + last + 1
    return hosts


def own_classes(table: DegreeTable, choice: int, class_of_stage: Sequence[int]) -> Sequence[int]:
    """The class of every stage, where an order has those of the same nodes counted as one."""
    if table.own_stages is None or (table.max_stages[choice] == table.own_stages[choice]).all():
        return class_of_stage
    left = np.minimum(table.own_stages[choice], len(class_of_stage)).tolist()
    dealt = {group[0]: iter([c for c in group for _ in range(left[c])]) for group in table.same_nodes}
    return tuple(next(dealt[c]) if c in dealt else c for c in class_of_stage)


def assemble_plan(
    problem: Problem,
    table: DegreeTable,
    choice: int,
    class_of_stage: Sequence[int],
    stage_choice: StageChoice,
) -> Plan:
    """The plan of one row of degrees, one order of classes and one answer of `stage_selection`."""
    degrees = table.degrees
    tp, dp = int(degrees.tensor_parallel[choice]), int(degrees.data_parallel[choice])
    class_of_stage = own_classes(table, choice, class_of_stage)
    hosts = hosts_of_stages(problem, class_of_stage, int(table.stage_size[choice]))
    stages = []
    first = 0
    for s, count in enumerate(stage_choice.layers):
        node_class = problem.cluster.classes[class_of_stage[s]]
        recompute: Recompute = stage_choice.recompute[s]  # type: ignore[assignment]
        stages.append(
            Stage(
                layers=(first, first + count - 1),
                chip=node_class.chip,
                node_class=node_class.name,
                hosts=hosts[s],
                tensor_parallel=tp,
                data_parallel=dp,
                recompute=recompute,
                recompute_layers=stage_choice.recompute_layers[s],
            )
        )
        first += count
    return Plan(
        target=problem.target,
        tensor_parallel=tp,
        context_parallel=int(degrees.context_parallel[choice]),
        expert_parallel=int(degrees.expert_parallel[choice]),
        expert_tensor_parallel=int(degrees.expert_tensor_parallel[choice]),
        data_parallel=dp,
        microbatch_size=int(degrees.microbatch_size[choice]),
        num_microbatches=int(table.num_microbatches[choice]),
        sequence_parallel=bool(degrees.sequence_parallel[choice]),
        dp_mode="distopt",
        stages=tuple(stages),
        prediction_stage=len(stages) - 2 if table.is_apart(choice) else None,
    )


def assemble_virtual_plan(
    problem: Problem,
    table: DegreeTable,
    choice: int,
    class_of_stage: Sequence[int],
    virtual_choice: VirtualChoice,
) -> Plan:
    """The plan of one row of degrees, one order of classes and one answer of `virtual_selection`."""
    sums = tuple(sum(counts) for counts in virtual_choice.layers)
    whole = StageChoice(sums, virtual_choice.recompute, virtual_choice.recompute_layers)
    plan = assemble_plan(problem, table, choice, class_of_stage, whole)
    v = len(virtual_choice.layers[0])
    chunks: list[list[tuple[int, int]]] = [[] for _ in sums]
    first = 0
    for k in range(v):
        for s, counts in enumerate(virtual_choice.layers):
            chunks[s].append((first, first + counts[k] - 1))
            first += counts[k]
    stages = tuple(
        stage.model_copy(update={"layers": tuple(own)})
        for stage, own in zip(plan.stages, chunks, strict=True)
    )
    return plan.model_copy(update={"virtual_stages": v, "stages": stages})
