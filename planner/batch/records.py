"""From an entry of a jobs file to its problem; each file and each shipped record is read once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from planner.batch.job_spec import JobSpec
from planner.data import load
from planner.data.cluster import Cluster
from planner.data.model_spec import ModelSpec
from planner.data.options import Options
from planner.data.problem import Problem, ProblemFile
from planner.data.stack import SoftwareStack
from planner.data.workload import Workload
from planner.errors import InstanceError

R = TypeVar("R")


class Records:
    """Records that entries name, kept for the next entry; files are relative to a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: dict[str, Problem | InstanceError] = {}
        self._clusters: dict[str, Cluster | InstanceError] = {}
        self._models: dict[str, ModelSpec | InstanceError] = {}
        self._stacks: dict[str, SoftwareStack | InstanceError] = {}

    def problem(self, spec: JobSpec, where: str) -> Problem:
        """The problem of an entry, checked as a whole.

        Raises
        ------
        InstanceError
            Where a name is unknown, something is missing, or the parts contradict each other.
        """
        fields: dict[str, Any] = {}
        if spec.problem is not None:
            base = self._once(self._problems, load.load_problem, spec.problem, f"{where}.problem")
            fields = dict(load.problem_file(base))
        elif spec.cluster is None or spec.model is None:
            lacking = (
                "cluster" if spec.model else "model" if spec.cluster else "problem, or cluster and model"
            )
            raise InstanceError(f"says no {lacking}", where)
        if spec.cluster is not None:
            fields["cluster"] = self._cluster(spec.cluster, where)
        if spec.model is not None:
            fields["model"] = self._model(spec.model, where)
        if spec.stack is not None or "stack" not in fields:
            fields["stack"] = self._stack(spec.stack or "megatron-core", where)
        if spec.target is not None:
            fields["target"] = spec.target
        fields["workload"] = _workload(spec, fields.get("workload"), where)
        wishes = spec.options()
        if wishes:
            fields["options"] = fields.get("options", Options()).model_copy(update=wishes)
        if not wishes and spec.problem is not None and spec.model_fields_set <= {"problem", "name"}:
            return base
        return load.resolve_problem(ProblemFile.model_construct(**{**_DEFAULTS, **fields}), where)

    def _cluster(self, given: str | Cluster, where: str) -> Cluster:
        if isinstance(given, Cluster):
            return given
        return self._once(self._clusters, load.load_cluster, given, f"{where}.cluster")

    def _model(self, given: str | ModelSpec, where: str) -> ModelSpec:
        if isinstance(given, ModelSpec):
            return given
        return self._once(self._models, load.load_model, given, f"{where}.model")

    def _stack(self, given: str | SoftwareStack, where: str) -> SoftwareStack:
        if isinstance(given, SoftwareStack):
            return given
        return self._once(self._stacks, load.load_stack, given, f"{where}.stack")

    def _once(self, kept: dict[str, R | InstanceError], read: Callable[[str], R], name: str, where: str) -> R:
        """What `read` makes of a name, read at its first use; a refusal is kept as well."""
        if name not in kept:
            beside = self._folder / name
            path = str(beside) if len(name) < 256 and "\0" not in name and beside.is_file() else name
            try:
                kept[name] = read(path)
            except InstanceError as refusal:
                kept[name] = refusal
        found = kept[name]
        if isinstance(found, InstanceError):
            raise InstanceError(str(found).removeprefix("cluster: ").removeprefix("model: "), where)
        return found


_DEFAULTS: dict[str, Any] = {
    name: field.get_default(call_default_factory=True)
    for name, field in ProblemFile.model_fields.items()
    if not field.is_required()
}


def _workload(spec: JobSpec, base: Workload | None, where: str) -> Workload:
    wanted = {
        name: getattr(spec, name)
        for name in ("seq_length", "global_batch_size", "precision", "expert_imbalance")
        if getattr(spec, name) is not None
    }
    if base is not None:
        return base.model_copy(update=wanted)
    for name in ("seq_length", "global_batch_size"):
        if name not in wanted:
            raise InstanceError(f"says no {name}", where)
    return Workload(**wanted)
