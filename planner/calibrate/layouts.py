"""The stages of a measured run: which layers on which hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from planner.calibrate.patterns import SkipRun, occurs
from planner.calibrate.runs import Run, RunDevice, RunReplica
from planner.data.cluster import Cluster
from planner.data.model_spec import ModelSpec
from planner.data.plan import LayerRange, Recompute, Replica, Stage


def layers_of_chunks(
    num_layers: int, chunks: int, *, counts_prediction: bool = False
) -> tuple[tuple[int, ...], str | None]:
    """Layers of every virtual stage in model order, and what was assumed.

    Evenly where they divide. Else embedding and loss count as a layer each where that divides
    (Megatron-LM's `account_for_embedding_in_pipeline_split` and `..._loss_...`: 94, 126). Else
    every virtual stage takes the rounded-up share and the last ones what is left, as the shipped
    layouts for 61 layers do (`Et*4|(t*4|)*14tmL` of Megatron-Bridge's DeepSeek-V3 recipes), or, where
    nothing would be left for the last one, the first one has less (`Et|(tt|)*30mL` of those for H100).

    Parameters
    ----------
    counts_prediction
        Whether a further prediction counts as a layer of the last one too, where that divides.
    """
    if num_layers % chunks == 0:
        return (num_layers // chunks,) * chunks, None
    at_last = 2 if counts_prediction and (num_layers + 3) % chunks == 0 else 1
    if chunks > 1 and (num_layers + 1 + at_last) % chunks == 0:
        layers = [(num_layers + 1 + at_last) // chunks] * chunks
        layers[0] -= 1
        layers[-1] -= at_last
        prediction = ", a further prediction" if at_last > 1 else ""
        return tuple(layers), f"embedding{prediction} and loss count as a layer each"
    share = -(-num_layers // chunks)
    first = num_layers - share * (chunks - 2)
    if 0 < first < share:
        return (first, *(share,) * (chunks - 2), 0), f"{share} layers a virtual stage, {first} on the first"
    ends = [min(num_layers, share * (i + 1)) for i in range(chunks)]
    layers = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return tuple(layers), f"{share} layers a virtual stage, the rest on the last"


PREDICTION_COUNTS = r"^NeMo \(dgxc-benchmarking"
"""Software whose layouts count a further prediction as a layer: the first stage of DeepSeek-V3 has one layer
less than those between, the last one two (NVIDIA/NeMo, scripts/performance/llm/pretrain_deepseek_v3.py)."""


THREE_AT_EITHER_END = r"3 leading pseudo-layers|embedding/transpose/norm/head pseudo-layers"
"""Words of runs whose layers were counted as pipeline items less three that are no layers at either end."""


LAUNCHER_VIRTUAL_STAGES = {"Nemotron-22B": 10, "Llama3-70B": 5}
"""Virtual stages of models in NVIDIA's launcher, whose lists of runs left them out at first
(NeMo-Framework-Launcher, launcher_scripts/conf/training: nemotron_22b.yaml, llama3_70b.yaml)."""


def virtual_stages_of(run: Run) -> int:
    """Virtual stages of a run; where its list leaves them out, those of the launcher's configuration."""
    if run.plan.virtual_stages is None and occurs("VP not listed", run.text):
        return LAUNCHER_VIRTUAL_STAGES.get(run.model.name, 1)
    return run.plan.virtual_stages or 1


def _stated_layers(run: Run) -> tuple[int, ...]:
    """Layers of every stage as the run states them, in pipeline order.

    AMP's fork begins with two items (embedding, transpose) and ends with four (transpose, norm, head,
    cast to fp32): `GPT2ModelPipe` in megatron/model/gpt2_model.py of DachengLi1/AMP. Where three were taken
    off at either end, the first stage has a layer more and the last one less.
    """
    assert run.plan.stages is not None
    counts = [stage.num_layers for stage in run.plan.stages]
    if len(counts) > 1 and counts[-1] > 0 and occurs(THREE_AT_EITHER_END, run.text):
        counts[0] += 1
        counts[-1] -= 1
    return tuple(counts)


def _ranges(layers: Sequence[int]) -> tuple[LayerRange, ...]:
    """First and last layer of consecutive counts; an empty one ends before it begins."""
    ends = tuple(accumulate(layers))
    return tuple((end - count, end - 1) for count, end in zip(layers, ends, strict=True))


def stages_of(
    run: Run,
    model: ModelSpec,
    cluster: Cluster,
    *,
    tensor_parallel: int,
    data_parallel: int,
    stage_size: int,
    recompute: Recompute,
    recompute_share: float = 1.0,
) -> tuple[tuple[Stage, ...], str | None]:
    """Stages of a run in pipeline order, and what was assumed of the split.

    Parameters
    ----------
    recompute_share
        Of the layers of a stage, those that are recomputed whole where any are.

    Raises
    ------
    SkipRun
        Where the chips of a mixed stage are not stated, or the stated layers are not the model's.
    """
    num_stages = run.plan.pipeline_parallel or 1
    virtual_stages = virtual_stages_of(run)
    assumption = None
    if num_stages * virtual_stages > model.num_layers + 2:  # one may hold the embedding alone, one the loss
        raise SkipRun("layout: more virtual stages than layers")
    if run.plan.stages is not None:
        if len(run.plan.stages) != num_stages or virtual_stages != 1:
            raise SkipRun("layout: stages do not match the pipeline degree")
        counts = _stated_layers(run)
        if sum(counts) != model.num_layers:
            raise SkipRun("layout: stages do not add up to the layers")
    else:
        counts, assumption = layers_of_chunks(
            model.num_layers,
            num_stages * virtual_stages,
            counts_prediction=model.mtp_num_layers > 0 and occurs(PREDICTION_COUNTS, run.software),
        )
    ranges = _ranges(counts)
    replicas = _mixed_replicas(run, cluster) if len(cluster.classes) > 1 else None
    if replicas is not None and any(len(row) != data_parallel for row in replicas):
        raise SkipRun("layout: replicas do not match the data-parallel degree")
    mixes = replicas is not None and any(
        {(r.node_class, r.tensor_parallel) for r in row} != {(row[0].node_class, tensor_parallel)}
        for row in replicas
    )
    places = _uniform_places(cluster, num_stages, stage_size) if replicas is None else _on_one_class(replicas)
    stages = []
    for s, (name, chip, hosts) in enumerate(places):
        # Virtual stage v of stage s is chunk v * num_stages + s of the model (Megatron-LM).
        chunks = ranges[s::num_stages]
        most = max(last - first + 1 for first, last in chunks)
        stages.append(
            Stage(
                layers=chunks[0] if virtual_stages == 1 else chunks,
                chip=chip,
                node_class=name,
                hosts=hosts,
                tensor_parallel=tensor_parallel if replicas is None else replicas[s][0].tensor_parallel,
                data_parallel=data_parallel,
                recompute=recompute,
                recompute_layers=math.floor(recompute_share * most + 0.5) if recompute == "full" else 0,
                replicas=replicas[s] if mixes and replicas is not None else None,
            )
        )
    return tuple(stages), assumption


Place = tuple[str, str, tuple[str, ...]]
"""Node class, chip and hosts of a stage."""


def _uniform_places(cluster: Cluster, num_stages: int, stage_size: int) -> tuple[Place, ...]:
    """Places of stages that are packed one after the other on the nodes of one class."""
    node_class, hosts = cluster.classes[0], cluster.hosts_of(0)
    per_node = node_class.chips_per_node
    if num_stages * stage_size > node_class.num_chips:
        raise SkipRun("layout: needs more chips than the run had")
    return tuple(
        (
            node_class.name,
            node_class.chip,
            hosts[s * stage_size // per_node : -(-(s + 1) * stage_size // per_node)],
        )
        for s in range(num_stages)
    )


def _on_one_class(replicas: tuple[tuple[Replica, ...], ...]) -> tuple[Place, ...]:
    """Places of stages by their first replica, with the hosts of all."""
    return tuple(
        (
            row[0].node_class,
            row[0].chip,
            tuple(dict.fromkeys(host for replica in row for host in replica.hosts)),
        )
        for row in replicas
    )


def _mixed_replicas(run: Run, cluster: Cluster) -> tuple[tuple[Replica, ...], ...]:
    """Every data-parallel rank of every stage of a mixed cluster, as the run lists its chips."""
    hosts = _HostsOfRun(cluster)
    if run.plan.stages is None:
        raise SkipRun("mixed cluster without the chips of its stages")
    found = []
    for stage in run.plan.stages:
        if stage.devices is not None:
            tp = stage.tensor_parallel or run.plan.tensor_parallel
            if tp is None or len(stage.devices) % tp:
                raise SkipRun("layout: ranks of a stage do not divide by its tensor_parallel")
            ranks = [stage.devices[i : i + tp] for i in range(0, len(stage.devices), tp)]
            found.append(tuple(hosts.of_devices(group) for group in ranks))
        elif stage.replicas is not None:
            found.append(tuple(hosts.of_replica(replica) for replica in stage.replicas))
        else:
            raise SkipRun("mixed cluster without the chips of its stages")
    return tuple(found)


class _HostsOfRun:
    """Deals the hosts of a mixed cluster to the ranks of a run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.class_of_chip = {node_class.chip: i for i, node_class in enumerate(cluster.classes)}
        self.host_of_node: dict[int, str] = {}
        self.unused = [list(cluster.hosts_of(i)) for i in range(len(cluster.classes))]
        self.used_chips = [0] * len(cluster.classes)

    def _class(self, chips: set[str]) -> int:
        if len(chips) != 1:
            raise SkipRun("a tensor-parallel group mixes chips")
        index = self.class_of_chip.get(chips.pop())
        if index is None:
            raise SkipRun("mixed cluster without the chips of its stages")
        return index

    def of_devices(self, devices: Sequence[RunDevice]) -> Replica:
        """The rank on devices that name their nodes."""
        index = self._class({device.chip for device in devices})
        for device in devices:
            if device.node not in self.host_of_node:
                if not self.unused[index]:
                    raise SkipRun("layout: needs more chips than the run had")
                self.host_of_node[device.node] = self.unused[index].pop(0)
        names = tuple(dict.fromkeys(self.host_of_node[device.node] for device in devices))
        return self._replica(index, names, len(devices))

    def of_replica(self, replica: RunReplica) -> Replica:
        """The rank on the next chips of its class."""
        index = self._class({replica.chip})
        per_node, used = self.cluster.classes[index].chips_per_node, self.used_chips[index]
        self.used_chips[index] = end = used + replica.tensor_parallel
        if end > self.cluster.classes[index].num_chips:
            raise SkipRun("layout: needs more chips than the run had")
        names = self.cluster.hosts_of(index)[used // per_node : -(-end // per_node)]
        return self._replica(index, names, replica.tensor_parallel)

    def _replica(self, index: int, hosts: tuple[str, ...], tp: int) -> Replica:
        node_class = self.cluster.classes[index]
        return Replica(node_class=node_class.name, chip=node_class.chip, hosts=hosts, tensor_parallel=tp)
