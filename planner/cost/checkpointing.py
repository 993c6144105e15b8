"""Selective checkpointing by operator: what of a layer is kept, and what is computed again.

A policy under XLA names products whose output is kept; of the rest whatever a gradient needs runs again,
attention, norms and the activation among it. No gradient needs the output of the last map, so that it is
neither kept nor made again (praxis/layers/checkpoint_policy.py; MaxText's remat_policy).

torchtitan keeps the output of every second matrix product, counted in the order of their calls, and of
attention; everything else, pointwise operators above all, runs again in the backward
(torchtitan/models/llama3/infra/parallelize.py, `_apply_ac_to_transformer_block`, BSD-3-Clause).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.elementwise import Values, maximum
from planner.cost.kernels.operators import HALF, attention_dims
from planner.cost.sizes import Sizes
from planner.data.model_spec import LayerKind, ModelSpec

KEPT_BY_POLICY = {
    "all_but_qkv": ("qkv",),
    "all_but_qkv_proj": ("qkv", "proj"),
    "all_but_products": ("qkv", "proj", "fc1"),
}
"""Products of `operators.py` whose output a policy keeps: MaxText's save_qkv_proj; Praxis' SAVE_QKV_OUT_PROJ
and SAVE_DOT_ONLY, where fused attention is no dot."""


def policy_of(modules: Sequence[str]) -> str | None:
    """The policy under XLA among the modules of selective recomputation, or null."""
    return next((name for name in modules if name in KEPT_BY_POLICY), None)


def policy_bytes(model: ModelSpec, policy: str, s: Sizes) -> Values:
    """Bytes that a dense layer keeps beside its input under a policy of XLA."""
    groups = maximum(model.num_query_groups / s.tp, 1.0)
    per_gate = 2 if model.gated_mlp else 1
    bytes_of = {
        "qkv": s.tokens * (model.num_attention_heads / s.tp + 2 * groups) * model.head_dim,
        "proj": s.norm_tokens * model.hidden_size,
        "fc1": s.tokens * per_gate * model.ffn_hidden_size / s.tp,
    }
    kept: Values = s.zeros
    for name in KEPT_BY_POLICY[policy]:
        kept = kept + HALF * bytes_of[name]
    return kept


def calls_in_order(model: ModelSpec, kind: LayerKind) -> list[tuple[str, int, bool]]:
    """Products of a layer as they are called: the product of `operators.py` that they are part of, the width
    of their output, and whether tensor parallelism divides it."""
    calls: list[tuple[str, int, bool]] = []
    if kind != "mlp":
        groups = model.num_query_groups * model.head_dim
        calls += [("qkv", model.num_attention_heads * model.head_dim, True)]
        calls += [("qkv", groups, True), ("qkv", groups, True), ("proj", model.hidden_size, False)]
    if kind != "attention":
        calls += [("fc1", model.ffn_hidden_size, True)] * (2 if model.gated_mlp else 1)
        calls += [("fc2", model.hidden_size, False)]
    return calls


def kept_bytes(model: ModelSpec, kind: LayerKind, s: Sizes) -> Values:
    """Bytes that a layer keeps beside its input: outputs of every second product and of attention."""
    width = s.zeros
    for _, n, divided in calls_in_order(model, kind)[::2]:
        width = width + (n / s.tp if divided else n)
    kept: Values = s.tokens * HALF * width
    if kind != "mlp":
        heads = model.num_attention_heads / s.tp
        kept = kept + s.tokens * heads * (HALF * attention_dims(model)[1] + 4.0)
    return kept


def repeated_shares(model: ModelSpec, kind: LayerKind) -> dict[str, float]:
    """Share of each product of a layer that is computed again, by its name."""
    calls = calls_in_order(model, kind)
    whole: dict[str, int] = {}
    again: dict[str, int] = {}
    for i, (name, n, _) in enumerate(calls):
        whole[name] = whole.get(name, 0) + n
        again[name] = again.get(name, 0) + (n if i % 2 else 0)
    return {name: again[name] / whole[name] for name in whole}
