"""Stages of different shape: the degrees, the micro-batch and the prices of each one.

All stages run the same B sequences at a time, the micro-batch of the first stage times its data
parallelism: a stage of data parallel d runs B / d of them on each of its replicas, so that all have as many
micro-batches (FlagScale 16a2dd5, flagscale/train/arguments.py, `post_validate_args`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.communication.resharding import StageShape
from planner.cost.prices import Degrees
from planner.data.plan import Plan
from planner.rules.meshes import microbatch_size_of


def degrees_of_stages(plan: Plan) -> tuple[Degrees, list[int]]:
    """The different degrees of a plan's stages, one row each, and the row of every stage."""
    rows = [(s.tensor_parallel, s.data_parallel, max(microbatch_size_of(plan, s), 1)) for s in plan.stages]
    row_of = {row: i for i, row in enumerate(dict.fromkeys(rows))}
    tp, dp, mbs = np.array(list(row_of), dtype=np.int64).T

    def same(value: int) -> NDArray[np.int64]:
        return np.full(len(row_of), value, dtype=np.int64)

    degrees = Degrees(
        tensor_parallel=tp,
        context_parallel=same(plan.context_parallel),
        expert_parallel=same(plan.expert_parallel),
        expert_tensor_parallel=np.minimum(plan.expert_tensor_parallel, tp),
        data_parallel=dp,
        microbatch_size=mbs,
        sequence_parallel=(tp > 1) & plan.sequence_parallel,
        dp_mode=plan.dp_mode,
    )
    return degrees, [row_of[row] for row in rows]


def shapes_of(plan: Plan, choices: Sequence[int], classes: Sequence[int]) -> list[StageShape]:
    """Where each stage lies and how it cuts its work."""
    return [
        StageShape(
            choice=choices[s],
            node_class=classes[s],
            tensor_parallel=stage.tensor_parallel,
            data_parallel=stage.data_parallel,
            num_chips=plan.context_parallel * stage.tensor_parallel * stage.data_parallel,
        )
        for s, stage in enumerate(plan.stages)
    ]
