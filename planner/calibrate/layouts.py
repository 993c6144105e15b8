"""The stages of a measured run: which layers on which hosts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from planner.calibrate.patterns import SkipRun
from planner.calibrate.runs import Run, RunStage
from planner.data.cluster import Cluster
from planner.data.model_spec import ModelSpec
from planner.data.plan import LayerRange, Recompute, Stage


def layers_of_chunks(num_layers: int, chunks: int) -> tuple[tuple[int, ...], str | None]:
    """Layers of every virtual stage in model order, and what was assumed.

    Evenly where they divide. Else embedding and loss count as a layer each where that divides
    (Megatron-LM's `account_for_embedding_in_pipeline_split` and `..._loss_...`: 94, 126). Else
    every virtual stage takes the rounded-up share and the last ones what is left, as the shipped
    layouts for 61 layers do (`Et*4|(t*4|)*14tmL` of Megatron-Bridge's DeepSeek-V3 recipes).
    """
    if num_layers % chunks == 0:
        return (num_layers // chunks,) * chunks, None
    if chunks > 1 and (num_layers + 2) % chunks == 0:
        share = (num_layers + 2) // chunks
        layers = [share] * chunks
        layers[0] -= 1
        layers[-1] -= 1
        return tuple(layers), "embedding and loss count as a layer each"
    share = -(-num_layers // chunks)
    ends = [min(num_layers, share * (i + 1)) for i in range(chunks)]
    layers = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return tuple(layers), f"{share} layers a virtual stage, the rest on the last"


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
) -> tuple[tuple[Stage, ...], str | None]:
    """Stages of a run in pipeline order, and what was assumed of the split.

    Raises
    ------
    SkipRun
        Where a stage runs on several chips, or the stated layers are not the model's.
    """
    num_stages = run.plan.pipeline_parallel or 1
    virtual_stages = run.plan.virtual_stages or 1
    assumption = None
    if run.plan.stages is not None:
        if len(run.plan.stages) != num_stages or virtual_stages != 1:
            raise SkipRun("layout: stages do not match the pipeline degree")
        counts = tuple(stage.num_layers for stage in run.plan.stages)
        if sum(counts) != model.num_layers:
            raise SkipRun("layout: stages do not add up to the layers")
    else:
        counts, assumption = layers_of_chunks(model.num_layers, num_stages * virtual_stages)
    ranges = _ranges(counts)
    places = _places(run, cluster, num_stages, stage_size)
    stages = []
    for s, (class_index, hosts) in enumerate(places):
        # Virtual stage v of stage s is chunk v * num_stages + s of the model (Megatron-LM).
        chunks = ranges[s::num_stages]
        most = max(last - first + 1 for first, last in chunks)
        stages.append(
            Stage(
                layers=chunks[0] if virtual_stages == 1 else chunks,
                chip=cluster.classes[class_index].chip,
                node_class=cluster.classes[class_index].name,
                hosts=hosts,
                tensor_parallel=tensor_parallel,
                data_parallel=data_parallel,
                recompute=recompute,
                recompute_layers=most if recompute == "full" else 0,
            )
        )
    return tuple(stages), assumption


def _places(
    run: Run, cluster: Cluster, num_stages: int, stage_size: int
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Node class and hosts of every stage."""
    if len(cluster.classes) > 1:
        return _mixed_places(run.plan.stages, cluster)
    node_class, hosts = cluster.classes[0], cluster.hosts_of(0)
    per_node = node_class.chips_per_node
    if num_stages * stage_size > node_class.num_chips:
        raise SkipRun("layout: needs more chips than the run had")
    return tuple(
        (0, hosts[s * stage_size // per_node : -(-(s + 1) * stage_size // per_node)])
        for s in range(num_stages)
    )


def _mixed_places(
    stages: tuple[RunStage, ...] | None, cluster: Cluster
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Node class and hosts of every stage of a mixed cluster, each on one chip."""
    if stages is None:
        raise SkipRun("mixed cluster without the chips of its stages")
    host_of_node: dict[int, str] = {}
    unused = [list(cluster.hosts_of(i)) for i in range(len(cluster.classes))]
    index_of_chip = {node_class.chip: i for i, node_class in enumerate(cluster.classes)}
    used_chips = [0] * len(cluster.classes)
    places = []
    for stage in stages:
        chips = {rank.chip for rank in stage.devices or stage.replicas or ()}
        if len(chips) != 1:
            raise SkipRun("a stage mixes chips")
        index = index_of_chip.get(chips.pop())
        if index is None:
            raise SkipRun("mixed cluster without the chips of its stages")
        if stage.devices is not None:
            for device in stage.devices:
                if device.node not in host_of_node:
                    host_of_node[device.node] = unused[index].pop(0)
            hosts = tuple(dict.fromkeys(host_of_node[d.node] for d in stage.devices))
        else:
            need = sum(replica.tensor_parallel for replica in stage.replicas or ())
            per_node = cluster.classes[index].chips_per_node
            first, last = used_chips[index] // per_node, (used_chips[index] + need - 1) // per_node
            used_chips[index] += need
            hosts = cluster.hosts_of(index)[first : last + 1]
        places.append((index, hosts))
    return tuple(places)
