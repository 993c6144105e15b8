"""What FlagScale's heterogeneous mode accepts: meshes, device types, micro-batches, recomputation.

A configuration is judged in FlagScale's own terms, whoever wrote it. Rules written from FlagScale
16a2dd5 (Apache-2.0), flagscale/train/arguments.py (`pre_validate_args`, `post_validate_args`) and
flagscale/train/hetero/parallel_context.py; each returns sentences, none where it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

FIELDS_OF_MESH = 5
"""Numbers of a mesh in `hetero_process_meshes`: tp, cp, ep, dp, pp."""

StageValues = tuple[int, ...]
"""One entry of a list by stage and micro-batch: number of stages, then pairs of (micro-batches, value)."""


@dataclass(frozen=True)
class HeteroConfig:
    """The fields of a FlagScale configuration that its heterogeneous mode reads."""

    process_meshes: tuple[int, ...]
    """tp, cp, ep, dp, pp of every mesh, one after the other."""
    layer_split: tuple[int, ...]
    """Layers of every pipeline stage."""
    device_types: tuple[str, ...]
    """Name of the device type of every mesh."""
    num_layers: int
    """Layers of the model."""
    pipeline_parallel: int
    """`pipeline_model_parallel_size`."""
    microbatch_size: int
    """Sequences of a micro-batch on the first mesh."""
    global_batch_size: int
    """Sequences of a step."""
    tied_or_predicting: bool = False
    """Whether embedding and head share weights, or the model predicts several tokens."""
    distributed_optimizer: bool = True
    """`use_distributed_optimizer`."""
    partial_reduce: bool = True
    """`use_partial_reduce_for_shared_embedding`."""
    virtual_stages: int = 1
    """Virtual stages of a pipeline rank."""
    world_size: int | None = None
    """Processes that the hostfile starts; null where it is not at hand."""
    expert_tensor_parallel: tuple[int, ...] | None = None
    """`expert_tensor_parallel_size_per_process_mesh`."""
    recompute_granularity: str | None = None
    """`recompute_granularity`."""
    recompute_method: str | None = None
    """`recompute_method`."""
    recompute_lists: tuple[tuple[str, tuple[StageValues, ...]], ...] = ()
    """The `recompute_*_per_stage_micro_batch` lists by their short names: granularity, method, num_layers."""

    @property
    def meshes(self) -> tuple[tuple[int, ...], ...]:
        """The meshes, each as (tp, cp, ep, dp, pp); a rest that fills none is left out."""
        whole = len(self.process_meshes) // FIELDS_OF_MESH * FIELDS_OF_MESH
        return tuple(self.process_meshes[i : i + FIELDS_OF_MESH] for i in range(0, whole, FIELDS_OF_MESH))

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a step, the same on all meshes; 0 where there are no meshes."""
        return self.global_batch_size // (self.meshes[0][3] * self.microbatch_size) if self.meshes else 0


def meshes_are_whole(config: HeteroConfig) -> tuple[str, ...]:
    """Five numbers a mesh, a layer count a stage, a device type a mesh; stages and layers add up."""
    found = []
    if not config.meshes or len(config.process_meshes) % FIELDS_OF_MESH:
        return (
            f"hetero_process_meshes: has {len(config.process_meshes)} numbers; each mesh takes "
            f"{FIELDS_OF_MESH} (tp, cp, ep, dp, pp)",
        )
    stages = sum(mesh[4] for mesh in config.meshes)
    if stages != config.pipeline_parallel:
        found.append(
            f"hetero_process_meshes: its meshes have {stages} stages, pipeline_model_parallel_size is "
            f"{config.pipeline_parallel}; write the same"
        )
    if len(config.layer_split) != config.pipeline_parallel:
        found.append(
            f"hetero_pipeline_layer_split: has {len(config.layer_split)} entries for "
            f"{config.pipeline_parallel} stages; write one a stage"
        )
    if sum(config.layer_split) != config.num_layers:
        found.append(
            f"hetero_pipeline_layer_split: adds up to {sum(config.layer_split)} layers, the model has "
            f"{config.num_layers}; correct the split"
        )
    if len(config.device_types) != len(config.meshes):
        found.append(
            f"hetero_device_types: has {len(config.device_types)} names for {len(config.meshes)} meshes; "
            "write one a mesh"
        )
    ranks = sum(tp * cp * dp * pp for tp, cp, _, dp, pp in config.meshes)
    if config.world_size is not None and ranks != config.world_size:
        found.append(f"hetero_process_meshes: needs {ranks} ranks, {config.world_size} are started")
    return tuple(found)


def device_types_are_distinct(config: HeteroConfig) -> tuple[str, ...]:
    """Each mesh has a device type of its own.

    Source: parallel_context.py, `RankMapper`: ranks are sorted by the first place of their type in the
    list, so that with A, B, A all ranks of type A come before those of B, whatever the meshes say.
    """
    again = sorted({name for name in config.device_types if config.device_types.count(name) > 1})
    return tuple(
        f"hetero_device_types: names {name} more than once, and FlagScale then gathers its ranks in front; "
        "give each mesh a name of its own"
        for name in again
    )


def a_mesh_is_one_stage(config: HeteroConfig) -> tuple[str, ...]:
    """No mesh has both several stages and several replicas.

    Source: parallel_context.py, `logical_coords_to_physical_ranks`, which drops the data-parallel axis in
    the place of the expert one, so that such a mesh gets wrong pipeline groups (seen: meshes 2,1,1,2,2 and
    2,1,1,2,1 give 0,4,10 for 0,4,8). With one stage a mesh the groups are right.
    """
    return tuple(
        f"mesh {i}: has {mesh[4]} stages and data parallel {mesh[3]}, for which FlagScale forms wrong "
        "pipeline groups; write one mesh a stage"
        for i, mesh in enumerate(config.meshes)
        if mesh[4] > 1 and mesh[3] > 1
    )


def degrees_agree(config: HeteroConfig) -> tuple[str, ...]:
    """Context parallel 1 everywhere, experts split on all meshes or on none, no virtual stages."""
    found = [
        f"mesh {i}: context parallel {mesh[1]}; the heterogeneous mode has none, set it to 1"
        for i, mesh in enumerate(config.meshes)
        if mesh[1] != 1
    ]
    experts_split = {mesh[2] > 1 for mesh in config.meshes}
    if len(experts_split) > 1:
        found.append("hetero_process_meshes: expert parallel is 1 on some meshes only; split on all or none")
    if config.virtual_stages > 1:
        found.append(f"virtual_stages {config.virtual_stages}: the heterogeneous mode has none; set it to 1")
    etp = config.expert_tensor_parallel
    if etp is not None and len(etp) != len(config.meshes):
        found.append(
            f"expert_tensor_parallel_size_per_process_mesh: has {len(etp)} entries for "
            f"{len(config.meshes)} meshes; write one a mesh"
        )
    return tuple(found)


def microbatches_divide(config: HeteroConfig) -> tuple[str, ...]:
    """The sequences of a micro-batch over all replicas split evenly over those of every mesh.

    Mesh i runs dp_0 mbs / dp_i sequences at a time, so that all meshes run as many micro-batches.
    """
    if not config.meshes:
        return ()
    together = config.meshes[0][3] * config.microbatch_size
    found = [
        f"mesh {i}: data parallel {mesh[3]} does not divide the {together} sequences that the first mesh's "
        f"{config.meshes[0][3]} replicas run at a time; take a divisor or another micro-batch size"
        for i, mesh in enumerate(config.meshes)
        if together % mesh[3]
    ]
    if config.global_batch_size % together:
        found.append(
            f"global_batch_size {config.global_batch_size}: is no multiple of the {together} sequences that "
            "all replicas run at a time"
        )
    return tuple(found)


def shared_embedding_fits(config: HeteroConfig) -> tuple[str, ...]:
    """First and last mesh can sum the gradient of weights that both hold."""
    if not config.tied_or_predicting or len(config.meshes) < 2:
        return ()
    first, last = config.meshes[0], config.meshes[-1]
    found = []
    if first[0] != last[0]:
        found.append(
            f"tensor parallel of the first mesh is {first[0]}, of the last {last[0]}; with tied embeddings "
            "or multi-token prediction both must agree"
        )
    if first[3] != last[3] and config.distributed_optimizer:
        if first[3] % last[3] and last[3] % first[3]:
            found.append(
                f"data parallel of the first mesh is {first[3]}, of the last {last[3]}; with tied embeddings "
                "or multi-token prediction and the distributed optimizer one must divide the other"
            )
        if not config.partial_reduce:
            found.append("use_partial_reduce_for_shared_embedding: must be on where the two differ")
    return tuple(found) or _pairs_of_the_embedding_are_right(config)


def _pairs_of_the_embedding_are_right(config: HeteroConfig) -> tuple[str, ...]:
    """Each rank of the first mesh is paired with the ranks of the last one that hold its part, and no other.

    Source: parallel_context.py of Megatron-LM-FL, `build_global_process_groups`: every way of a micro-batch's
    piece through the meshes makes a pair of its ends. A mesh that joins pieces which the first and the last
    one hold apart leads from one piece to its neighbour, and the pair sums other rows of the vocabulary
    (`setup_embeddings_and_output_layer`), or with the distributed optimizer other shares of the gradient
    (`_allreduce_embedding_grad`).
    """
    first, last, between = config.meshes[0], config.meshes[-1], config.meshes[1:-1]
    fewest = min(first[3], last[3])
    shared = (
        "with tied embeddings or multi-token prediction FlagScale then sums other parts of the embedding's"
    )
    found = [
        f"mesh {i}: tensor parallel {mesh[0]} is no multiple of the first mesh's {first[0]}; {shared} rows"
        for i, mesh in enumerate(between, start=1)
        if mesh[0] % first[0]
    ]
    if config.distributed_optimizer:
        found += [
            f"mesh {i}: data parallel {mesh[3]} is no multiple of {fewest}, the fewer of the first and the "
            f"last mesh's; {shared} gradient"
            for i, mesh in enumerate(between, start=1)
            if mesh[3] % fewest
        ]
    return tuple(found)


def the_gradient_is_measured_once(config: HeteroConfig) -> tuple[str, ...]:
    """Without the distributed optimizer all meshes have as many replicas.

    Source: `get_grad_norm_fp32` of Megatron-LM-FL (megatron/plugin/optimizer/clip_grads.py), which adds up
    the sums over the model-parallel groups of a rank; where replicas meet others there are several. With
    the distributed optimizer it is one sum over all ranks.
    """
    replicas = sorted({mesh[3] for mesh in config.meshes})
    if config.distributed_optimizer or len(replicas) < 2:
        return ()
    return (
        f"hetero_process_meshes: data parallel {' and '.join(map(str, replicas))} without the distributed "
        "optimizer; FlagScale then counts parts of the gradient's norm several times, so use the distributed "
        'optimizer (dp_mode "distopt")',
    )


def recompute_lists_add_up(config: HeteroConfig) -> tuple[str, ...]:
    """Lists by stage cover all stages and all micro-batches, and go with full recomputation only."""
    if not config.recompute_lists:
        return ()
    found = []
    if config.recompute_granularity != "full" or config.recompute_method is None:
        found.append(
            "recompute_granularity_per_stage_micro_batch: needs recompute_granularity full and a method"
        )
    m = config.num_microbatches
    for name, rows in config.recompute_lists:
        key = f"recompute_{name}_per_stage_micro_batch"
        if sum(row[0] for row in rows) != config.pipeline_parallel:
            found.append(
                f"{key}: covers {sum(row[0] for row in rows)} stages of {config.pipeline_parallel}; "
                "the first numbers of its rows must add up to all"
            )
        for i, row in enumerate(rows):
            counts, values = row[1::2], row[2::2]
            if len(row) % 2 == 0 or sum(counts) != m:
                found.append(
                    f"{key}: row {i} covers {sum(counts)} micro-batches, a step has {m}; correct the counts"
                )
            if name in ("granularity", "method") and any(value not in (0, 1) for value in values):
                found.append(f"{key}: row {i} has a value that is neither 0 nor 1")
    return tuple(found)


CONFIG_RULES = (
    meshes_are_whole,
    device_types_are_distinct,
    a_mesh_is_one_stage,
    degrees_agree,
    microbatches_divide,
    shared_embedding_fits,
    the_gradient_is_measured_once,
    recompute_lists_add_up,
)
"""All rules on a configuration, in the order in which they are reported."""


def config_violations(config: HeteroConfig) -> tuple[str, ...]:
    """Sentences on everything that FlagScale would refuse, or run wrongly."""
    return tuple(message for rule in CONFIG_RULES for message in rule(config))


def logical_ranks(types_of_ranks: tuple[str, ...], device_types: tuple[str, ...]) -> tuple[int, ...]:
    """Logical rank of every physical rank: sorted by the place of its type, then by its number.

    Source: flagscale/train/hetero/parallel_context.py, `RankMapper`.
    """
    order = sorted(range(len(types_of_ranks)), key=lambda r: (device_types.index(types_of_ranks[r]), r))
    place = {physical: logical for logical, physical in enumerate(order)}
    return tuple(place[r] for r in range(len(types_of_ranks)))
