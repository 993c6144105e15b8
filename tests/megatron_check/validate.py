"""Megatron-LM's own reading of a command line: accepted or not, and what runs where."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from .hybrid import hybrid_model
from .linear import linear_layers
from .local_modules import parameters_of
from .refusal import Refused

_REFUSALS = (AssertionError, ValueError, RuntimeError, NotImplementedError, TypeError)
"""What Megatron-LM raises where it does not like an argument."""


@contextlib.contextmanager
def refusals_of_megatron() -> Any:
    """Turn Megatron's refusals into ours, with its own words."""
    try:
        yield
    except SystemExit as error:
        raise Refused(f"Megatron-LM's parser stops with status {error.code}") from error
    except _REFUSALS as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(frame.filename)}, {frame.name}"
        raise Refused(f"Megatron-LM ({place}): {type(error).__name__}: {error}") from error


def read_arguments(arguments: Sequence[str], world_size: int, rank: int = 0) -> Namespace:
    """Parse and validate as rank `rank` of `world_size` would."""
    from megatron.training import arguments as megatron_arguments

    _read_docstrings_once()
    os.environ.update(WORLD_SIZE=str(world_size), RANK=str(rank), LOCAL_RANK="0")
    sys.argv = ["pretrain_gpt.py", *arguments]
    with contextlib.redirect_stdout(io.StringIO()):
        args = megatron_arguments.parse_args()
        megatron_arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
    return args


@functools.cache
def _read_docstrings_once() -> None:
    """Megatron-LM reads the source of its settings for their help anew for each command line: most of the
    time that parsing one takes."""
    from megatron.training.argument_utils import ArgumentGroupFactory

    read, known = ArgumentGroupFactory._get_field_docstrings, dict[type, dict[str, str]]()

    def remembered(self: Any, settings: type) -> dict[str, str]:
        if settings not in known:
            known[settings] = read(self, settings)
        return dict(known[settings])

    ArgumentGroupFactory._get_field_docstrings = remembered


def transformer_config(args: Namespace) -> Any:
    """The model's configuration, with the checks that its constructor makes."""
    try:
        from megatron.training.argument_utils import core_transformer_config_from_args
    except ImportError:  # where it stood up to core 0.17
        from megatron.training.arguments import core_transformer_config_from_args

    return core_transformer_config_from_args(args)


def settings(args: Namespace, config: Any) -> dict[str, Any]:
    """Plain values of the configuration, and of the arguments where it has none, by name."""
    found = {**vars(args), **vars(config)}
    if args.vocab_size:
        found["padded_vocab_size"] = _padded_vocab_size(args)
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """As JSON has it: functions and types by name, tuples as lists."""
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__name__", str(value))


def num_microbatches(args: Namespace) -> int:
    """Micro-batches of a step, by Megatron's calculator."""
    from megatron.core import num_microbatches_calculator as calculator

    calculator.unset_num_microbatches_calculator()
    calculator.init_num_microbatches_calculator(
        rank=args.rank,
        rampup_batch_size=None,
        global_batch_size=args.global_batch_size,
        micro_batch_size=args.micro_batch_size,
        data_parallel_size=args.data_parallel_size,
    )
    count = calculator.get_num_microbatches()
    calculator.unset_num_microbatches_calculator()
    return count


def rank_order(args: Namespace) -> str:
    """Axes of the ranks, fastest first."""
    return "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp"


def make_process_groups(args: Namespace, rank: int) -> None:
    """Form all process groups as one rank of the world, on torch's fake backend."""
    import torch.distributed
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    destroy_process_groups()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=args.world_size)
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
        order=rank_order(args),
        create_gloo_process_groups=False,
    )


def destroy_process_groups() -> None:
    """Leave the world that `make_process_groups` made, if any."""
    import torch.distributed
    from megatron.core import parallel_state

    if torch.distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def rank_coordinates(args: Namespace) -> list[dict[str, int]]:
    """Place of every rank on every axis, by Megatron's rank generator."""
    from megatron.core.parallel_state import RankGenerator

    pp = args.pipeline_model_parallel_size
    coordinates: list[dict[str, int]] = [{} for _ in range(args.world_size)]

    def note(generator: Any, axis: str, name: str) -> None:
        for group in generator.get_ranks(axis):
            for position, rank in enumerate(group):
                coordinates[rank][name] = position

    dense = RankGenerator(
        tp=args.tensor_model_parallel_size,
        ep=1,
        dp=args.data_parallel_size,
        pp=pp,
        cp=args.context_parallel_size,
        order=rank_order(args),
    )
    for axis in ("tp", "cp", "dp", "pp"):
        note(dense, axis, axis)
    if args.num_experts:
        etp, ep = args.expert_tensor_parallel_size, args.expert_model_parallel_size
        replicas = args.world_size // (etp * ep * pp)
        expert = RankGenerator(tp=etp, ep=ep, dp=replicas, pp=pp, cp=1, order=rank_order(args))
        for axis, name in (("tp", "etp"), ("ep", "ep"), ("dp", "edp")):
            note(expert, axis, name)
    return coordinates


def layers_of_stages(args: Namespace, config: Any) -> list[list[list[int]]]:
    """Decoder layers of every virtual stage of every pipeline rank, by the layout that Megatron parsed.

    The process groups must stand: without them the layout object takes every chunk for the first.
    """
    if args.hybrid_layer_pattern is not None:
        return _layers_by_pattern(args)
    layout = config.pipeline_model_parallel_layout
    if layout is None:
        raise Refused("no --pipeline-model-parallel-layout: something else would place the layers")
    chunks = args.virtual_pipeline_model_parallel_size or 1
    # get_num_layers_to_build of 0.19.2 ignores the rank it is asked for; the layout object does not.
    return [
        [layout.get_layer_id_list(vp_stage=chunk, pp_rank=stage) for chunk in range(chunks)]
        for stage in range(args.pipeline_model_parallel_size)
    ]


def _layers_by_pattern(args: Namespace) -> list[list[list[int]]]:
    """The same of a model of Mamba, attention and feed-forward layers, by the function that builds it."""
    import torch.distributed

    try:
        from megatron.core.models.hybrid.hybrid_layer_allocation import select_pipeline_segment
    except ImportError:  # where it stood up to core 0.17
        from megatron.core.ssm.mamba_hybrid_layer_allocation import select_pipeline_segment
    p, chunks = args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size or 1
    ask, size = torch.distributed.get_rank, torch.distributed.get_world_size
    main_pattern = args.hybrid_layer_pattern.partition("/")[0]  # without predictions, as HybridModel cuts it
    found = []
    try:
        torch.distributed.get_world_size = lambda group=None: p
        for stage in range(p):
            torch.distributed.get_rank = lambda group=None, stage=stage: stage
            segments = [
                select_pipeline_segment(main_pattern, object(), chunk if chunks > 1 else None)
                for chunk in range(chunks)
            ]
            found.append([list(range(offset, offset + len(kinds))) for kinds, offset in segments])
    finally:
        torch.distributed.get_rank, torch.distributed.get_world_size = ask, size
    return found


def parameters_per_stage(args: Namespace, config: Any) -> list[int]:
    """Parameters that the first rank of every stage holds, counted on Megatron's model, unallocated."""
    args = _with_fewest_replicas(args)
    coordinates = rank_coordinates(args)
    plain = copy.copy(config)
    plain.transformer_impl = "local"
    # Neither says anything of weights, and both want libraries that are not installed here.
    plain.moe_token_dispatcher_type, plain.recompute_granularity = "alltoall", None
    for switch in (
        "perform_initialization",
        "gradient_accumulation_fusion",
        "moe_grouped_gemm",
        "apply_rope_fusion",
        "moe_permute_fusion",
        "moe_router_fusion",
    ):
        setattr(plain, switch, False)
    counts = []
    for stage in range(args.pipeline_model_parallel_size):
        make_process_groups(args, next(r for r, c in enumerate(coordinates) if c["pp"] == stage))
        chunks = range(args.virtual_pipeline_model_parallel_size or 1)
        models = [_model_chunk(args, plain, chunk if len(chunks) > 1 else None) for chunk in chunks]
        counts.append(sum(parameters_of(model, args.tensor_model_parallel_size) for model in models))
    return counts


def weight_and_optimizer_bytes(args: Namespace) -> float:
    """Weights, gradients and optimizer state of the fullest rank, by the estimate that Megatron-LM logs."""
    from megatron.training.theoretical_memory_usage import compute_weight_and_optimizer_memory

    told = copy.copy(args)
    told.padded_vocab_size = _padded_vocab_size(args)
    return float(compute_weight_and_optimizer_memory(told))


def _with_fewest_replicas(args: Namespace) -> Namespace:
    """The same degrees in a smaller world: a rank's parameters do not depend on the number of replicas."""
    ranks = args.tensor_model_parallel_size * args.context_parallel_size
    experts = args.expert_tensor_parallel_size * args.expert_model_parallel_size if args.num_experts else 1
    replicas = next(
        dp
        for dp in range(1, args.data_parallel_size + 1)
        if args.data_parallel_size % dp == 0 and ranks * dp % experts == 0
    )
    small = copy.copy(args)
    small.data_parallel_size, small.num_distributed_optimizer_instances = replicas, 1
    small.world_size = ranks * replicas * args.pipeline_model_parallel_size
    return small


def _model_chunk(args: Namespace, config: Any, chunk: int | None) -> Any:
    """One virtual stage of this rank's model, on the meta device."""
    from megatron.core import parallel_state

    vocab = _padded_vocab_size(args)
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk)
    if args.hybrid_layer_pattern is not None:
        with _unallocated():
            return hybrid_model(args, config, vocab, first, last, chunk)
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs

    one_layer = gpt_layer_specs.get_gpt_layer_local_spec(
        config.num_moe_experts,
        False,
        args.qk_layernorm,
        args.multi_latent_attention,
        normalization=args.normalization,
    )
    layers = one_layer
    if getattr(args, "experimental_attention_variant", None) is not None:
        layers = linear_layers(config, chunk)
    elif args.num_experts:
        layers = gpt_layer_specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=args.normalization, vp_stage=chunk
        )
    prediction = None
    if args.mtp_num_layers:
        prediction = gpt_layer_specs.get_gpt_mtp_block_spec(
            config, one_layer, use_transformer_engine=False, vp_stage=chunk
        )
    with _unallocated():
        return GPTModel(
            config,
            layers,
            vocab,
            args.max_position_embeddings,
            pre_process=first,
            post_process=last,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type,
            mtp_block_spec=prediction,
            vp_stage=chunk,
        )


@contextlib.contextmanager
def _unallocated() -> Iterator[None]:
    """Make tensors on the meta device, also those that are asked for on the current device of CUDA.

    Megatron fills copies of the embedding with zeros, which takes seconds where they have memory.
    """
    import torch

    current = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("meta")
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.cuda.current_device = current


def _padded_vocab_size(args: Namespace) -> int:
    """Size of the vocabulary that Megatron pads to."""
    if args.padded_vocab_size is not None:
        return int(args.padded_vocab_size)
    from megatron.core.tokenizers.utils.build_tokenizer import vocab_size_with_padding

    entries = args.vocab_size
    if args.tokenizer_type == "NullTokenizer":  # which adds one up to core 0.17
        from megatron.core.tokenizers.text.libraries.null_tokenizer import NullTokenizer

        entries = NullTokenizer(entries).vocab_size
    return int(vocab_size_with_padding(entries, args, logging_enabled=False))
