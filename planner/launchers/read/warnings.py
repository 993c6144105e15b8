"""Traps in a Megatron-LM command line that its parser lets pass, and that no prediction shows.

Each is a public report on Megatron-LM; the sentence says what happens, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from planner.data.catalog import names
from planner.data.load import load_model
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.launchers.megatron.plan_arguments import GROUP_SIZE
from planner.launchers.megatron.rotary_positions import FIRST_DIVISION, LLAMA3_FACTOR
from planner.launchers.read.constants import other_constants
from planner.launchers.read.flags import Flags
from planner.launchers.read.other import same_cost_other_network, unpriced
from planner.launchers.read.software import captures_graphs
from planner.rules.experts import exchange_cannot_hide
from planner.rules.versions import kv_heads_are_not_copied
from planner.units import GIB

LARGEST_MASK_BYTES = 4 * GIB
"""Attention mask of a sample that the data loader still made (65,536 tokens; NVIDIA/Megatron-LM#1025)."""


def warnings_of(problem: Problem, plan: Plan, flags: Flags) -> tuple[str, ...]:
    """A sentence for each trap that the flags walk into."""
    found = [
        *_interleaving_groups(plan),
        *_hidden_exchange(problem, plan, flags),
        *_recomputation_under_fsdp2(plan, flags),
        *_mask_of_loader(problem, flags),
        *_expert_tensor_parallel(problem, plan, flags),
        *unpriced(flags),
        *_memory_of_graphs(flags),
        *_recomputed_layers(flags),
        *_constants(problem),
        *_lost_stretching(problem, plan),
        *(f"{phrase}: another network at the same cost" for phrase in same_cost_other_network(flags)),
    ]
    copied = kv_heads_are_not_copied(problem, plan, "0.15")
    return (*found, copied) if copied is not None else tuple(found)


def device_connections(problem: Problem, plan: Plan, found: Collection[str]) -> Iterator[str]:
    """An order of kernels that tensor and context parallelism count on, on chips before Blackwell.

    Parameters
    ----------
    found
        Values of CUDA_DEVICE_MAX_CONNECTIONS that processes are started with.
    """
    chips = [problem.chips[chip] for stage in plan.stages for _, chip, _ in stage.places]
    ordered = any(chip.backend == "cuda" and (chip.compute_capability or 0) < 10 for chip in chips)
    splits = plan.tensor_parallel > 1 or plan.context_parallel > 1
    if ordered and splits and plan.dp_mode in ("ddp", "distopt") and set(found) != {"1"}:
        yield (
            "CUDA_DEVICE_MAX_CONNECTIONS is not 1, without which Megatron-LM does not start with tensor or "
            "context parallelism on chips before Blackwell; export it, unless the container does"
        )


def _interleaving_groups(plan: Plan) -> Iterator[str]:
    """Groups of fewer than p micro-batches (NVIDIA/Megatron-LM#1829)."""
    group, p = plan.microbatch_group_size, plan.pipeline_parallel
    if group is not None and group < p:
        yield (
            f"{GROUP_SIZE} {group}: below the {p} pipeline stages every group waits for the one before it, "
            f"and newer releases refuse it; take at least {p}, or leave the flag out"
        )


def _hidden_exchange(problem: Problem, plan: Plan, flags: Flags) -> Iterator[str]:
    """Exchange of tokens behind computation on uneven stages (NVIDIA/Megatron-LM#1810, open)."""
    yield from exchange_cannot_hide(problem, plan)
    uneven = len({stage.num_layers for stage in plan.stages}) > 1
    if problem.model.moe is not None and uneven and "--overlap-moe-expert-parallel-comm" in flags:
        yield (
            "--overlap-moe-expert-parallel-comm on stages with unequal numbers of layers: large runs are "
            "reported to hang early on; try a short run first, or leave the flag out"
        )


def _recomputation_under_fsdp2(plan: Plan, flags: Flags) -> Iterator[str]:
    """Recomputation that saved nothing under PyTorch's FSDP2 (NVIDIA/Megatron-LM#1368)."""
    if "--use-torch-fsdp2" in flags and any(stage.recompute != "none" for stage in plan.stages):
        yield (
            "recomputation with --use-torch-fsdp2: reported to save no memory, which the prediction counts "
            "as saved; measure it, or take --use-megatron-fsdp"
        )


def _constants(problem: Problem) -> Iterator[str]:
    """Numbers that cost nothing, but without which a published network becomes another."""
    name = problem.model.id
    if name in names("models") and (others := list(other_constants(problem.model, load_model(name)))):
        yield f"{'; '.join(others)}: of the shape of {name}, yet another network is trained"


def _lost_stretching(problem: Problem, plan: Plan) -> Iterator[str]:
    """Numbers of rotary positions that are parsed and not handed on (NVIDIA/Megatron-LM#6305)."""
    scaling = problem.model.constants.rotary_scaling
    if scaling is None or plan.target == "megatron-bridge":  # which has fields of its own for them
        return
    if scaling.kind == "llama3" and scaling.factor != LLAMA3_FACTOR:
        yield (
            f"--rope-scaling-factor {scaling.factor:g}: Megatron-LM up to core 0.19.2 builds "
            f"{LLAMA3_FACTOR:g} whatever it says; take newer code that hands it on, or Megatron-Bridge"
        )
    if scaling.kind == "linear":
        yield (
            f"--rotary-seq-len-interpolation-factor {scaling.factor:g}: Megatron-LM before core "
            f"{FIRST_DIVISION} builds a model without it; take a newer release, or Megatron-Bridge"
        )


def _mask_of_loader(problem: Problem, flags: Flags) -> Iterator[str]:
    """An attention mask of s x s made for every sample (NVIDIA/Megatron-LM#1025)."""
    mask_bytes = problem.workload.seq_length**2
    if mask_bytes > LARGEST_MASK_BYTES and "--no-create-attention-mask-in-dataloader" not in flags:
        yield (
            f"sequences of {problem.workload.seq_length} tokens: the data loader makes a mask of "
            f"{mask_bytes / GIB:.0f} GiB for each and may crash; add --no-create-attention-mask-in-dataloader"
        )


def _memory_of_graphs(flags: Flags) -> Iterator[str]:
    """Buffers that graphs keep for what goes in and out, for every micro-batch in flight."""
    if captures_graphs(flags):
        yield "CUDA graphs keep buffers of their own, which are not priced: more memory than predicted"


def _recomputed_layers(flags: Flags) -> Iterator[str]:
    """A number of layers that newer releases want."""
    whole = flags.text("--recompute-granularity", "none") == "full"
    if whole and flags.number("--recompute-num-layers", 0, least=0) < 1:
        yield "--recompute-granularity full without --recompute-num-layers, which Megatron-LM wants: 1 taken"


def _expert_tensor_parallel(problem: Problem, plan: Plan, flags: Flags) -> Iterator[str]:
    """Experts split as the rest where nothing is said (NVIDIA-NeMo/Megatron-Bridge#546)."""
    tp = plan.tensor_parallel
    if problem.model.moe is not None and tp > 1 and "--expert-tensor-parallel-size" not in flags:
        yield f"no --expert-tensor-parallel-size: Megatron-LM splits experts over the {tp} tensor ranks, too"
