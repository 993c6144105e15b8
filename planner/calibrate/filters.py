"""Which measured runs to score: conditions on their fields, as `--where precision=bf16` gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.calibrate.convert import layer_family, precision_of
from planner.calibrate.patterns import SkipRun
from planner.calibrate.runs import Run
from planner.calibrate.stacks import stack_id
from planner.data.load import load_chip
from planner.data.nearest import did_you_mean
from planner.errors import InstanceError


def _precision(run: Run) -> str | None:
    try:
        return precision_of(run, [load_chip(group.chip) for group in run.cluster.groups])
    except (SkipRun, InstanceError):
        return run.workload.precision


FIELDS: dict[str, Callable[[Run], Any]] = {
    "id": lambda run: run.id,
    "source": lambda run: run.source,
    "software": lambda run: run.software,
    "stack": stack_id,
    "quality": lambda run: run.quality,
    "chip": lambda run: tuple(group.chip for group in run.cluster.groups),
    "num_chips": lambda run: run.cluster.num_chips,
    "model": lambda run: run.model.name,
    "layers": layer_family,
    "seq_length": lambda run: run.workload.seq_length,
    "global_batch_size": lambda run: run.workload.global_batch_size,
    "precision": _precision,
    "tensor_parallel": lambda run: run.plan.tensor_parallel,
    "pipeline_parallel": lambda run: run.plan.pipeline_parallel,
    "context_parallel": lambda run: run.plan.context_parallel or 1,
    "expert_parallel": lambda run: run.plan.expert_parallel or 1,
    "data_parallel": lambda run: run.plan.data_parallel,
    "virtual_stages": lambda run: run.plan.virtual_stages or 1,
    "microbatch_size": lambda run: run.plan.microbatch_size,
    "dp_mode": lambda run: run.plan.dp_mode,
    "recompute": lambda run: run.plan.recompute,
    "sequence_parallel": lambda run: run.plan.sequence_parallel,
    "memory_kind": lambda run: run.memory_kind,
}
"""Fields that a condition can name; `layers` is dense or moe, `chip` any chip of the run."""


def parse_conditions(where: dict[str, str]) -> dict[str, str]:
    """The conditions, with the names checked.

    Raises
    ------
    InstanceError
        For an unknown field, with the nearest names.
    """
    for name in where:
        if name not in FIELDS:
            raise InstanceError(
                f"runs cannot be chosen by {name!r}{did_you_mean(name, tuple(FIELDS))}; "
                f"fields: {', '.join(FIELDS)}",
                "--where",
            )
    return {name: str(value) for name, value in where.items()}


def matches(run: Run, conditions: dict[str, str]) -> bool:
    """Whether a run has all the values; upper and lower case are alike."""
    return all(_equals(FIELDS[name](run), value) for name, value in conditions.items())


def _equals(value: Any, wanted: str) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    spelled = {"null" if v is None else str(v).lower() for v in values}
    return wanted.lower() in spelled
