"""What sequence and context parallelism and 8-bit number formats ask of the sequence length.

Each rule returns None where it holds, else a sentence with the thing, the value and the way out.
Line numbers are those of megatron-core 0.19.2 (Apache-2.0).
"""

from __future__ import annotations

from planner.data.attention_kernels import keeps_scores, why_scores_are_kept
from planner.data.chip import HALF_PRECISIONS
from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack
from planner.data.workload import Workload
from planner.rules.narrow import block_of


def sequence_parallel_has_ranks(tp: int, sequence_parallel: bool) -> str | None:
    """Sequence parallelism splits over tensor-parallel ranks, so there must be several.

    Source: megatron/core/model_parallel_config.py:502.
    """
    if not sequence_parallel or tp > 1:
        return None
    return "sequence_parallel: needs tensor_parallel above 1, which is 1; switch it off"


def experts_have_sequence_parallel(model: ModelSpec, tp: int, sequence_parallel: bool) -> str | None:
    """Experts with tensor parallelism train with sequence parallelism only.

    Source: megatron/core/transformer/moe/moe_layer.py:629, raised in the first forward pass.
    """
    if model.moe is None or tp == 1 or sequence_parallel:
        return None
    return f"sequence_parallel: off with experts and tensor_parallel {tp}; switch it on"


def sequence_splits(workload: Workload, tp: int, cp: int) -> str | None:
    """With sequence parallelism every rank holds as many tokens: (seq / cp) % tp == 0.

    Source: megatron/core/tensor_parallel/mappings.py:73 and :177.
    """
    if workload.seq_length % (cp * tp) == 0:
        return None
    return (
        f"seq_length {workload.seq_length}: does not split over context_parallel {cp} x tensor_parallel "
        f"{tp}; switch sequence_parallel off or change the degrees"
    )


def mamba_layers_keep_sequences(model: ModelSpec, cp: int) -> str | None:
    """Megatron exchanges sequences for heads around a Mamba-2 layer (core/ssm/mamba_context_parallel.py).

    A rule of ours: that exchange is not priced.
    """
    if model.hybrid is None or cp == 1:
        return None
    return f"context_parallel {cp}: the exchange around Mamba layers is not priced; use 1"


def linear_heads_split_twice(model: ModelSpec, tp: int, cp: int) -> str | None:
    """Context-parallel ranks exchange sequences for the heads of linear attention: key_heads % (tp cp) == 0.

    Source: megatron/core/transformer/transformer_config.py:1375 (core 0.19 and newer).
    """
    linear = model.linear_attention
    if linear is None or cp == 1 or linear.key_heads % (tp * cp) == 0:
        return None
    return (
        f"context_parallel {cp}: {linear.key_heads} key heads of linear attention do not split over it x "
        f"tensor_parallel {tp}; use a divisor of {linear.key_heads // tp}"
    )


def context_splits(workload: Workload, cp: int) -> str | None:
    """Context parallelism deals each rank an early and a late piece: seq % (2 cp) == 0.

    Source: megatron/training/arguments.py:1295.
    """
    if cp == 1 or workload.seq_length % (2 * cp) == 0:
        return None
    return (
        f"context_parallel {cp}: seq_length {workload.seq_length} is no multiple of {2 * cp}; "
        "change the degree or the length"
    )


def ranks_that_exchange_heads(stack: SoftwareStack, tp: int, cp: int, domain_chips: int) -> int:
    """Context-parallel ranks that exchange heads for tokens with one another; 1 where none do.

    Where a ring joins nodes (a2a+p2p), those that `domain_chips` joined by fast links hold.
    """
    if stack.cp_exchange == "a2a":
        return cp
    if stack.cp_exchange != "a2a+p2p":
        return 1
    inner = max(1, min(cp, domain_chips // tp))
    return inner if cp % inner == 0 else 1


def attention_runs_in_parts(
    model: ModelSpec, stack: SoftwareStack, tp: int, cp: int, domain_chips: int
) -> str | None:
    """What attention context-parallel ranks cannot compute together; parameters as below.

    A ring knows neither windows nor sinks, gathered keys and values no sinks, and latent attention, whose
    values are narrower than its keys, needs a ring. Attention of plain operators needs whole sequences.

    Source: Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/attention/dot_product_attention/
    context_parallel.py, `attn_forward_func_with_cp`, and utils.py, `get_attention_backend`.
    """
    if cp == 1:
        return None
    way, trouble = str(stack.cp_exchange), None
    if way == "a2a+p2p":  # of one level where all ranks exchange heads, or none do
        way = {1: "p2p", cp: "a2a"}.get(ranks_that_exchange_heads(stack, tp, cp, domain_chips), way)
    if not stack.flash_attention:
        trouble = "attention of plain operators (flash_attention false) computes whole sequences; use 1"
    elif model.attention_sinks and way != "a2a":
        trouble = f"the attention sinks of {model.id} need cp_exchange a2a, not {way}; use that, or 1"
    elif model.sliding_window is not None and way not in ("a2a", "all_gather"):
        trouble = f"the windows of {model.id} need cp_exchange a2a or all_gather, not {way}; use one, or 1"
    elif model.mla is not None and way in ("a2a", "all_gather"):
        trouble = f"the latent attention of {model.id} needs cp_exchange p2p, not {way}; use that, or 1"
    return f"context_parallel {cp}: {trouble}" if trouble else None


def class_attends_in_parts(problem: Problem, class_index: int, cp: int) -> str | None:
    """Context-parallel ranks need attention in one kernel, which some chips do not have.

    Source: Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/attention/dot_product_attention/
    utils.py, `get_attention_backend`: no UnfusedDotProductAttention with context parallelism.
    """
    if cp == 1 or not keeps_scores(problem, class_index):
        return None
    name = problem.cluster.classes[class_index].name
    return (
        f"context_parallel {cp}: chips of class {name} have no attention in one kernel "
        f"({why_scores_are_kept(problem, class_index)}), and their plain one computes whole sequences; use "
        "1, or leave the class out"
    )


def exchanged_heads_split(
    model: ModelSpec, stack: SoftwareStack, tp: int, cp: int, domain_chips: int
) -> str | None:
    """Where context-parallel ranks exchange heads for tokens, each gets as many query and key-value heads.

    Parameters
    ----------
    domain_chips
        Chips that fast links join on every class, inside which heads are exchanged where a ring joins them.

    Source: Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/attention/dot_product_attention/
    context_parallel.py, `AttnFuncWithCPAndQKVOA2A`.
    """
    exchanging = ranks_that_exchange_heads(stack, tp, cp, domain_chips)
    groups = model.num_attention_heads if model.mla is not None else model.num_query_groups
    heads, key_heads = model.num_attention_heads // tp, max(groups // tp, 1)
    if heads % exchanging == 0 and key_heads % exchanging == 0:
        return None
    return (
        f"context_parallel {cp}: {heads} query and {key_heads} key-value heads a rank do not split over the "
        f"{exchanging} ranks that exchange heads (cp_exchange {stack.cp_exchange}); take a divisor of both, "
        "or another exchange"
    )


def fp8_tokens_fill_rows(
    workload: Workload, tp: int, cp: int, microbatch_size: int, sequence_parallel: bool
) -> str | None:
    """In an 8-bit (or 4-bit) format each rank's tokens come in whole blocks: 16, or 32 in MXFP8.

    Source: `planner.rules.narrow`; megatron/core/fp8_utils.py:318 pads the experts' tokens only.
    """
    if workload.precision in HALF_PRECISIONS:
        return None
    tokens, ranks = workload.seq_length * microbatch_size, cp * (tp if sequence_parallel else 1)
    block = block_of(workload.precision)
    if tokens % (ranks * block) == 0:
        return None
    return (
        f"precision {workload.precision}: {tokens} tokens of a micro-batch on {ranks} ranks are no multiple "
        f"of {block} on each; change microbatch_size or the degrees"
    )


def sequence_parallel_is_legal(model: ModelSpec, workload: Workload, tp: int, cp: int) -> bool:
    """Whether sequence parallelism may be switched on."""
    return sequence_parallel_has_ranks(tp, True) is None and sequence_splits(workload, tp, cp) is None


def sequence_parallel_is_required(model: ModelSpec, tp: int) -> bool:
    """Whether the model refuses to train without sequence parallelism."""
    return experts_have_sequence_parallel(model, tp, False) is not None
