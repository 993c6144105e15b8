"""A plan from the shapes of a batch and what the program chose for them."""

from __future__ import annotations

from collections.abc import Sequence

from formulations.stage_selection_data import StageChoice
from planner.data.plan import Plan, Recompute, Stage
from planner.data.problem import Problem
from planner.search.assemble import hosts_of_stages
from planner.search.meshes.shapes import Batch


def assemble_meshes(problem: Problem, batch: Batch, order: Sequence[int], stage_choice: StageChoice) -> Plan:
    """The plan of one batch, one sequence of shapes and one answer of `stage_selection`."""
    shapes = [batch.shapes[k] for k in order]
    hosts = hosts_of_stages(
        problem, [shape.node_class for shape in shapes], [shape.num_chips for shape in shapes]
    )
    stages, first = [], 0
    for s, (shape, count) in enumerate(zip(shapes, stage_choice.layers, strict=True)):
        node_class = problem.cluster.classes[shape.node_class]
        recompute: Recompute = "selective" if batch.selective else stage_choice.recompute[s]  # type: ignore[assignment]
        stages.append(
            Stage(
                layers=(first, first + count - 1),
                chip=node_class.chip,
                node_class=node_class.name,
                hosts=hosts[s],
                tensor_parallel=shape.tensor_parallel,
                data_parallel=shape.data_parallel,
                recompute=recompute,
                recompute_layers=stage_choice.recompute_layers[s],
            )
        )
        first += count
    tp, dp = shapes[0].tensor_parallel, shapes[0].data_parallel
    return Plan(
        target=problem.target,
        tensor_parallel=tp,
        expert_parallel=batch.expert_parallel,
        expert_tensor_parallel=tp if batch.expert_tensor_parallel is None else batch.expert_tensor_parallel,
        data_parallel=dp,
        microbatch_size=batch.sequences // dp,
        num_microbatches=batch.num_microbatches,
        sequence_parallel=batch.sequence_parallel and any(shape.tensor_parallel > 1 for shape in shapes),
        dp_mode="distopt",
        stages=tuple(stages),
    )
