"""One training iteration of one rank, by Megatron-LM's own training loop, on the CPU.

Some checks Megatron makes only while it runs: interleaving against the number of micro-batches,
experts with tensor but without sequence parallelism, shapes at stage borders. So the loop runs, on
torch's fake backend, with every width shrunk and every count kept: layers, degrees, micro-batches and
the schedule are the plan's.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from . import standins
from .collectives import Recorder
from .local_modules import prepare_local_modules
from .nodes import flags_of
from .validate import read_arguments, refusals_of_megatron

_ABSENT_ON_CPU = {
    # kernels of libraries that are not there
    "--tp-comm-overlap",
    "--attention-backend",
    "--transformer-impl",
    "--moe-grouped-gemm",
    "--moe-permute-fusion",
    "--moe-router-fusion",
    "--moe-router-padding-for-fp8",
    "--cross-entropy-loss-fusion",
    "--cross-entropy-fusion-impl",
    "--fp8-format",
    "--fp8-recipe",
    "--fp4-format",
    "--fp4-recipe",
    "--softmax-type",
    "--window-size",
    "--window-attn-skip-freq",
    # data, checkpoints and length of the run
    "--mock-data",
    "--data-path",
    "--split",
    "--tokenizer-type",
    "--tokenizer-model",
    "--vocab-size",
    "--save",
    "--load",
    "--save-interval",
    "--train-iters",
    "--train-samples",
    "--lr-decay-style",
    "--lr-warmup-fraction",
    "--eval-iters",
    "--eval-interval",
    "--log-interval",
    "--log-throughput",
    "--no-create-attention-mask-in-dataloader",
}
"""Flags that are left out of the simulated command line; whatever else the plan says stays."""

_ON_CPU = {
    "--transformer-impl": ("local",),
    "--fake-process-group": (),
    "--use-cpu-initialization": (),
    "--no-masked-softmax-fusion": (),
    "--no-bias-gelu-fusion": (),
    "--no-bias-swiglu-fusion": (),
    "--no-bias-dropout-fusion": (),
    "--no-rope-fusion": (),
    "--no-persist-layer-norm": (),
    "--no-gradient-accumulation-fusion": (),
    "--no-create-attention-mask-in-dataloader": (),
    "--train-iters": ("1",),
    "--lr-decay-style": ("constant",),
    "--eval-iters": ("0",),
    "--log-interval": ("100",),
    "--num-workers": ("0",),
    "--tokenizer-type": ("NullTokenizer",),
}


def run_iteration(arguments: Sequence[str], world_size: int, rank: int, recorder: Recorder) -> dict[str, Any]:
    """Run one iteration as one rank; its coordinates and the collectives that it issued.

    Spoils the process for anything else: call it in a child.

    Raises
    ------
    Refused
        Where Megatron-LM stops in the iteration.
    """
    import torch

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    with refusals_of_megatron():
        args = read_arguments(arguments, world_size, rank)
        standins.pretend_transformer_engine(None)
        prepare_local_modules()
        _record_phases(recorder)
        skip_data_and_compilation()
        _answer_shapes()
        run_training(shrunk_arguments(arguments, args))
    return {"rank": rank, "coordinates": coordinates(), "collectives": recorder.table()}


def coordinates() -> dict[str, int]:
    """Place of this process along every axis."""
    from megatron.core import parallel_state

    return {
        "tp": parallel_state.get_tensor_model_parallel_rank(),
        "cp": parallel_state.get_context_parallel_rank(),
        "dp": parallel_state.get_data_parallel_rank(),
        "pp": parallel_state.get_pipeline_model_parallel_rank(),
    }


def shrunk_arguments(arguments: Sequence[str], args: Namespace) -> list[str]:
    """The command line with small widths and without what a CPU lacks."""
    tp, cp = args.tensor_model_parallel_size, args.context_parallel_size
    seq_length = 8 * tp * cp
    small = {
        "--hidden-size": 4 * args.num_attention_heads,
        "--kv-channels": 4,
        "--ffn-hidden-size": 8 * tp,
        "--vocab-size": 128 * tp - 1,
    }
    if args.num_experts:
        # Enough tokens that the experts of this rank see some: eight each on average.
        tokens = -(-4 * args.num_experts // args.moe_router_topk)
        seq_length = max(seq_length, tokens * (tp if args.sequence_parallel else 1) * 2 * cp)
        small["--moe-ffn-hidden-size"] = 8 * tp
        if args.moe_shared_expert_intermediate_size:
            small["--moe-shared-expert-intermediate-size"] = 8 * tp
    if args.multi_latent_attention:
        small |= {"--qk-head-dim": 4, "--qk-pos-emb-head-dim": 4, "--v-head-dim": 4, "--kv-lora-rank": 8}
        if args.q_lora_rank:
            small["--q-lora-rank"] = 8
    small |= {"--seq-length": seq_length, "--max-position-embeddings": seq_length}
    flags = {flag: values for flag, values in flags_of(arguments).items() if flag not in _ABSENT_ON_CPU}
    flags |= _ON_CPU
    flags |= {flag: (str(size),) for flag, size in small.items()}
    if args.num_experts:
        flags["--moe-router-force-load-balancing"] = ()
    return [word for flag, values in flags.items() for word in (flag, *values)]


def _record_phases(recorder: Recorder) -> None:
    """Tell the recorder which part of the step runs, and record in the step only."""
    from megatron.core.optimizer import optimizer
    from megatron.core.pipeline_parallel import schedules
    from megatron.training import training

    schedules.forward_step = recorder.phase("forward", schedules.forward_step)
    schedules.backward_step = recorder.phase("backward", schedules.backward_step)
    training.finalize_model_grads = recorder.phase("gradients", training.finalize_model_grads)
    for kind in (optimizer.MixedPrecisionOptimizer, optimizer.ChainedOptimizer, optimizer.FP32Optimizer):
        kind.step = recorder.phase("optimizer", kind.step)
    training.train_step = recorder.only_during(training.train_step)


def _answer_shapes() -> None:
    """Tell the shapes that neighbours would tell, which do where predictions are apart from the loss.

    For one virtual stage: what the stage of n predictions sends on, and gets back, is 1 + n times as long.
    """
    import torch
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
    from megatron.training import get_args

    def shapes(self: Any, _next: Any, _previous: Any, recv_prev: bool, recv_next: bool) -> tuple[Any, Any]:
        args, stage = get_args(), torch.distributed.get_rank(self.pp_group)
        parts = args.context_parallel_size
        parts *= args.tensor_model_parallel_size if args.sequence_parallel else 1

        def sent_by(sender: int) -> list[int]:
            holds = "m" in str(args.pipeline_model_parallel_layout).split("|")[sender]
            times = 1 + args.mtp_num_layers if holds else 1
            return [times * args.seq_length // parts, args.micro_batch_size, args.hidden_size]

        return (sent_by(stage - 1) if recv_prev else [0, 0, 0], sent_by(stage) if recv_next else [0, 0, 0])

    P2PCommunicator._communicate_shapes = shapes


def skip_data_and_compilation() -> None:
    """Let the training loop go without a dataset and without building kernels."""
    from megatron.core.rerun_state_machine import RerunDataIterator
    from megatron.training import get_args, initialize, training

    def iterators(_provider: Any) -> tuple[Any, None, None]:
        args = get_args()
        args.do_train, args.do_valid, args.do_test = True, False, False
        return RerunDataIterator(iter(int, 1)), None, None

    training.build_train_valid_test_data_iterators = iterators
    training.set_jit_fusion_options = lambda **_kwargs: None
    initialize._compile_dependencies = lambda: None


def run_training(arguments: list[str]) -> None:
    """Run the training loop that the command line asks for, on made-up tokens."""
    from megatron.core.enums import ModelType
    from megatron.training.argument_utils import gpt_config_from_args, pretrain_cfg_container_from_args
    from megatron.training.arguments import parse_and_validate_args
    from megatron.training.training import pretrain

    sys.argv = ["pretrain_gpt.py", *arguments]
    with contextlib.redirect_stdout(io.StringIO()):
        args = parse_and_validate_args()
        config = pretrain_cfg_container_from_args(args, gpt_config_from_args(args))
        pretrain(config, lambda _samples, vp_stage=None: None, ModelType.encoder_or_decoder, forward_step)


def forward_step(_batches: Any, model: Any, *_args: Any) -> tuple[Any, Any]:
    """The forward step of pretrain_gpt.py, on made-up tokens."""
    import torch
    from megatron.training import get_args

    args = get_args()
    shape = (args.micro_batch_size, args.seq_length // args.context_parallel_size)
    tokens = torch.randint(0, args.vocab_size, shape)
    positions = torch.arange(shape[1]).expand(shape)
    losses = model(tokens, positions, None, labels=tokens)

    def reduce(output: Any) -> tuple[Any, Any, dict[str, Any]]:
        total, count = output.float().sum(), torch.tensor(output.numel(), dtype=torch.int)
        return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}

    return losses, reduce
