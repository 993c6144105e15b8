"""The way back from FlagScale: its YAML and hostfile, as the problem and plan that they are.

Every leaf below `train` is a command-line argument (`num_layers` is `--num-layers`), so that model, batch
and software are read as from a Megatron-LM command line. The heterogeneous mode adds meshes, a layer split
and device types; its stages are those of the meshes one after the other. Fields: FlagScale 16a2dd5.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from planner.data.cluster import Cluster
from planner.data.plan import Plan, Recompute, Stage
from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.launchers.flagscale_files import (
    Host,
    experiment_files,
    leaves_of,
    read_hosts,
    words_of,
    yaml_table,
)
from planner.launchers.read.back import ReadBack
from planner.launchers.read.flags import Flags
from planner.launchers.read.megatron import assemble, host_names, plan_fields, read_problem
from planner.launchers.read.other import same_cost_other_network
from planner.launchers.read.stages import recomputation, stage_on
from planner.launchers.read.warnings import warnings_of
from planner.rules.flagscale_config import (
    HeteroConfig,
    a_mesh_is_one_stage,
    device_types_are_distinct,
    logical_ranks,
    meshes_are_whole,
    recompute_lists_add_up,
)

_LISTS = ("granularity", "method", "num_layers")


def read_flagscale(path: str | Path, cluster: str | Cluster, *, stack: str = "megatron-core") -> ReadBack:
    """Read a launch directory of FlagScale, its `config.yaml`, or the file of `train` alone.

    Parameters
    ----------
    cluster
        The chips that it runs on; hosts that it does not know are taken in the order of its classes.

    Raises
    ------
    InstanceError
        Where a file is missing or something in it cannot be read back.
    """
    train, hostfile = experiment_files(Path(path))
    leaves = dict(leaves_of(yaml_table(train)))
    flags = Flags(tuple(words_of(leaves)), str(train))
    if flags.text("--tokenizer-type", "") == "NullTokenizer" and "--vocab-size" in flags:
        # It adds an entry for the end of a document (`megatron_model.mock_vocabulary`).
        flags.values["--vocab-size"] = (str(flags.number("--vocab-size") + 1),)
    hosts = read_hosts(hostfile)
    if not leaves.get("enable_hetero"):
        if not hosts:
            raise InstanceError("no hostfile beside it says on which hosts it runs", str(train))
        ranks = [node for node, host in enumerate(hosts) for _ in range(host.slots)]
        words = tuple(words_of(leaves))
        return assemble([words] * len(ranks), ranks, cluster, stack, str(train), hostfile)
    return _Hetero(leaves, flags, hosts, hostfile).read(cluster, stack)


class _Hetero:
    """A configuration of the heterogeneous mode."""

    def __init__(
        self, leaves: dict[str, Any], flags: Flags, hosts: list[Host], hostfile: Path | None
    ) -> None:
        self.leaves, self.flags, self.hosts, self.hostfile = leaves, flags, hosts, hostfile
        self.config = _config(leaves, flags, sum(host.slots for host in hosts) or None)

    def read(self, cluster: str | Cluster, stack: str) -> ReadBack:
        """Problem and plan.

        Raises
        ------
        InstanceError
            Where meshes, split and hosts do not belong together.
        """
        config, flags, notes = self.config, self.flags, list[str]()
        broken = meshes_are_whole(config)
        if broken:
            raise InstanceError("; ".join(broken), flags.where)
        experts = {mesh[2] for mesh in config.meshes}
        if len(experts) > 1:
            raise InstanceError(
                f"expert parallel {', '.join(map(str, sorted(experts)))} by mesh; our plans have one",
                flags.where,
            )
        tp, cp, ep, dp, _ = config.meshes[0]
        etp = (config.expert_tensor_parallel or (flags.number("--expert-tensor-parallel-size", tp),))[0]
        problem = read_problem(flags, cluster, stack, notes, dp * cp)
        plan = Plan(
            target="flagscale",
            tensor_parallel=tp,
            context_parallel=cp,
            expert_parallel=ep,
            expert_tensor_parallel=etp,
            data_parallel=dp,
            microbatch_size=config.microbatch_size,
            num_microbatches=max(1, config.num_microbatches),
            stages=self._stages(problem, notes),
            **plan_fields(flags, [flags], problem.stack, notes),
        )
        warnings = (
            *a_mesh_is_one_stage(config),
            *device_types_are_distinct(config),
            *recompute_lists_add_up(config),
            *warnings_of(problem, plan, flags),
        )
        unlike = tuple(same_cost_other_network(flags))
        return ReadBack(
            problem, plan, flags.unknown, tuple(dict.fromkeys(notes)), warnings, other_network=unlike
        )

    def _stages(self, problem: Problem, notes: list[str]) -> tuple[Stage, ...]:
        """The stages of the meshes one after the other, on the hosts of their ranks."""
        shapes = [mesh for mesh in self.config.meshes for _ in range(mesh[4])]
        split = self.config.layer_split
        host_of_rank = self._host_of_rank(problem.cluster, notes)
        stages, first_rank = [], 0
        for s, ((tp, cp, _, dp, _), last) in enumerate(zip(shapes, accumulate(split), strict=True)):
            group = tp * cp
            own = host_of_rank[first_rank : first_rank + group * dp]
            first_rank += group * dp
            places = [own[i : i + group] for i in range(0, len(own), group)]
            shape = {"tensor_parallel": tp, "data_parallel": dp}
            stages.append(
                stage_on(problem, ((last - split[s], last - 1),), places, shape, self._recompute(s, notes))
            )
        return tuple(stages)

    def _host_of_rank(self, cluster: Cluster, notes: list[str]) -> list[str]:
        """Host of every logical rank: FlagScale sorts ranks by the place of their device type."""
        types = self.config.device_types
        if not self.hosts:
            known = [host for i in range(len(cluster.classes)) for host in cluster.hosts_of(i)]
            sizes = [c.chips_per_node for c in cluster.classes for _ in range(c.num_nodes)]
            notes.append("no hostfile: hosts taken in the order of the cluster's classes")
            return [host for host, size in zip(known, sizes, strict=True) for _ in range(size)]
        for host in self.hosts:
            if host.kind not in types:
                raise InstanceError(
                    f"host {host.name} has type {host.kind!r}; hetero_device_types has {', '.join(types)}",
                    str(self.hostfile),
                )
        names = host_names(cluster, len(self.hosts), self.hostfile, self.flags.where, notes)
        physical = [(names[i], host.kind) for i, host in enumerate(self.hosts) for _ in range(host.slots)]
        places = logical_ranks(tuple(kind for _, kind in physical), types)
        found = [""] * len(physical)
        for (name, _), logical in zip(physical, places, strict=True):
            found[logical] = name
        return found

    def _recompute(self, s: int, notes: list[str]) -> tuple[Recompute, int, int]:
        """Kind, layers and layers of a piece of what a stage recomputes."""
        lists, layers = dict(self.config.recompute_lists), self.config.layer_split[s]
        if not lists:
            return recomputation(self.flags, [layers])
        values = {}
        for name in _LISTS:
            row = _row_of_stage(lists.get(name, ()), s)
            if len(set(row)) > 1:
                notes.append(
                    f"recompute_{name}_per_stage_micro_batch differs by micro-batch: the first counts"
                )
            values[name] = row[0] if row else 0
        if not values["granularity"] or not values["num_layers"]:
            return "none", 0, 1
        if values["method"] == 1:
            return "full", min(values["num_layers"], layers), 1
        return "full", layers, max(1, min(values["num_layers"], layers))


def _row_of_stage(rows: Sequence[Sequence[int]], s: int) -> tuple[int, ...]:
    """Values that a list has for a stage, one a run of micro-batches."""
    for row in rows:
        if s < row[0]:
            return tuple(row[2::2])
        s -= row[0]
    return ()


def _config(leaves: dict[str, Any], flags: Flags, world_size: int | None) -> HeteroConfig:
    """The configuration in the terms of its rules."""
    lists = {name: _listed(leaves, f"recompute_{name}_per_stage_micro_batch", flags) for name in _LISTS}
    etp = "expert_tensor_parallel_size_per_process_mesh"
    method = flags.text("--recompute-method", "")
    return HeteroConfig(
        process_meshes=_numbers(leaves, "hetero_process_meshes", flags),
        layer_split=_numbers(leaves, "hetero_pipeline_layer_split", flags),
        device_types=tuple(map(str, _listed(leaves, "hetero_device_types", flags))),
        num_layers=flags.number("--num-layers"),
        pipeline_parallel=flags.number("--pipeline-model-parallel-size", 1),
        microbatch_size=flags.number("--micro-batch-size"),
        global_batch_size=flags.number("--global-batch-size"),
        world_size=world_size,
        expert_tensor_parallel=None if leaves.get(etp) is None else _numbers(leaves, etp, flags),
        recompute_granularity=flags.text("--recompute-granularity", "") or None,
        recompute_method=method or None,
        recompute_lists=tuple(
            (name, tuple(_row(row, flags) for row in rows)) for name, rows in lists.items() if rows
        ),
    )


def _listed(leaves: dict[str, Any], key: str, flags: Flags) -> list[Any]:
    """A list; empty where the key is absent."""
    values = leaves.get(key)
    if values is not None and not isinstance(values, list):
        raise InstanceError(f"{key}: needs a list, got {values!r}", flags.where)
    return values or []


def _numbers(leaves: dict[str, Any], key: str, flags: Flags) -> tuple[int, ...]:
    values = _listed(leaves, key, flags)
    if not values or not all(isinstance(value, int) and value > 0 for value in values):
        raise InstanceError(f"{key}: needs a list of whole numbers above 0", flags.where)
    return tuple(values)


def _row(row: object, flags: Flags) -> tuple[int, ...]:
    """A row of a list by stage, written as a list or as a word like `[1,4,0]`."""
    try:
        values = yaml.safe_load(row) if isinstance(row, str) else row
    except yaml.YAMLError:
        values = None
    if not isinstance(values, list) or len(values) < 3 or not all(isinstance(v, int) for v in values):
        raise InstanceError(
            f"recompute list {row!r}: needs stages, then micro-batches and a value", flags.where
        )
    return tuple(values)
