"""What tensor parallelism asks of the model: widths that split evenly over its ranks.

Each rule returns None where it holds, else why not; `tensor_parallel_refusals` adds the way out.
Line numbers are those of megatron-core 0.19.2 (Apache-2.0).
"""

from __future__ import annotations

from planner.data.model_spec import ModelSpec


def heads_split(model: ModelSpec, tp: int) -> str | None:
    """Every tensor-parallel rank holds whole attention heads: heads % tp == 0.

    Source: megatron/core/transformer/transformer_config.py:1323.
    """
    if model.num_attention_heads % tp == 0:
        return None
    return f"{model.num_attention_heads} attention heads do not split evenly"


def kv_heads_split(model: ModelSpec, tp: int) -> str | None:
    """Key-value heads split over the ranks, or are copied to whole groups of ranks.

    kv_heads % tp == 0 or tp % kv_heads == 0.
    Source: megatron/core/transformer/transformer_config.py:1338; up to 0.15 only the first was legal.
    """
    kv_heads = model.num_query_groups
    if kv_heads % tp == 0 or tp % kv_heads == 0:
        return None
    return f"{kv_heads} key-value heads are neither a multiple nor a divisor of it"


def mlp_splits(model: ModelSpec, tp: int) -> str | None:
    """The feed-forward block and the shared experts split by columns: their width % tp == 0.

    Source: megatron/core/tensor_parallel/layers.py:965 (columns) and :1328 (rows).
    """
    widths = [model.ffn_hidden_size]
    if model.moe is not None:
        widths.append(model.moe.shared_ffn_hidden_size)
    for width in widths:
        if width % tp:
            return f"feed-forward width {width} does not split evenly"
    return None


def hidden_splits(model: ModelSpec, tp: int) -> str | None:
    """The projection of a multi-token-prediction layer splits the residual width: hidden % tp == 0.

    Source: megatron/core/transformer/multi_token_prediction.py:1000 (`eh_proj`, split by columns).
    """
    if model.mtp_num_layers == 0 or model.hidden_size % tp == 0:
        return None
    return f"hidden width {model.hidden_size} does not split evenly"


def mamba_splits(model: ModelSpec, tp: int) -> str | None:
    """Heads and groups of a Mamba-2 layer split over the ranks.

    Source: megatron/core/ssm/mamba_mixer.py:260 (heads) and :268 (groups).
    """
    if model.hybrid is None:
        return None
    for name, count in (("heads", model.hybrid.mamba_heads), ("groups", model.hybrid.groups)):
        if count % tp:
            return f"{count} Mamba {name} do not split evenly"
    return None


def linear_heads_split(model: ModelSpec, tp: int) -> str | None:
    """Key and value heads of linear attention split over the ranks; the latter are a multiple of the former.

    Source: megatron/core/transformer/transformer_config.py:1375.
    """
    linear = model.linear_attention
    if linear is None or linear.key_heads % tp == 0:
        return None
    return f"{linear.key_heads} key heads of linear attention do not split evenly"


RULES = (heads_split, kv_heads_split, mlp_splits, hidden_splits, mamba_splits, linear_heads_split)
"""All rules on a tensor-parallel degree, in the order in which they are reported."""


def tp_is_legal(model: ModelSpec, tp: int) -> bool:
    """Whether the model splits over a tensor-parallel degree."""
    return all(rule(model, tp) is None for rule in RULES)


def tensor_parallel_refusals(model: ModelSpec, tp: int) -> tuple[str, ...]:
    """A sentence for every rule that a degree breaks: the value, why not, and what is legal below it."""
    reasons = [reason for rule in RULES if (reason := rule(model, tp)) is not None]
    if not reasons:
        return ()
    # No legal degree exceeds the number of heads, which it divides.
    most = min(tp - 1, model.num_attention_heads)
    legal = ", ".join(str(degree) for degree in range(1, most + 1) if tp_is_legal(model, degree))
    return tuple(f"tensor_parallel {tp}: {reason}; legal below it: {legal}" for reason in reasons)
