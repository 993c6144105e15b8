"""Weights of a Megatron-LM model under the names of transformers' models.

The names of transformers' models are walked, and what stands under each is put together from Megatron's; a
name without a rule is an error, so that no weight keeps what it was made with.
"""

from __future__ import annotations

import re
from typing import Any

Weights = dict[str, Any]

_RENAMED = {
    # norms
    r"(input_layernorm|ln_1)": "input_layernorm",
    r"(post_attention_layernorm|ln_2)": "pre_mlp_layernorm",
    r"self_attn\.q_norm": "self_attention.q_layernorm",
    r"self_attn\.k_norm": "self_attention.k_layernorm",
    # attention
    r"attention\.query_key_value": "self_attention.linear_qkv",
    r"(self_attn\.o_proj|attention\.dense)": "self_attention.linear_proj",
    # latent attention
    r"self_attn\.q_a_proj": "self_attention.linear_q_down_proj",
    r"self_attn\.q_a_layernorm": "self_attention.q_layernorm",
    r"self_attn\.q_b_proj": "self_attention.linear_q_up_proj",
    r"self_attn\.kv_a_proj_with_mqa": "self_attention.linear_kv_down_proj",
    r"self_attn\.kv_a_layernorm": "self_attention.kv_layernorm",
    r"self_attn\.kv_b_proj": "self_attention.linear_kv_up_proj",
    # feed-forward blocks
    r"mlp\.(c_fc|dense_h_to_4h|gate_up_proj)": "mlp.linear_fc1",
    r"mlp\.(down_proj|c_proj|dense_4h_to_h)": "mlp.linear_fc2",
    r"mlp\.shared_experts?\.down_proj": "mlp.shared_experts.linear_fc2",
    r"mlp\.(gate|router)": "mlp.router",
}
"""Parts of a layer that are the same weights, by their names in transformers."""

_ENDS = {
    r"(embed_tokens|wte|embed_in)\.weight": "embedding.word_embeddings.weight",
    r"wpe\.weight": "embedding.position_embeddings.weight",
    r"(norm|ln_f|final_layer_norm)\.(weight|bias)": "decoder.final_layernorm.{2}",
}
"""Parts outside the layers."""


def state_of(model: Any, network: Any) -> Weights:
    """What to load into transformers' `network` for it to be Megatron's `model`.

    Raises
    ------
    LookupError
        Where a name of transformers has no rule, or Megatron's model no such weight.
    """
    own = {name.replace("parametrizations.", "").replace(".original", ""): value.detach()
           for name, value in [*model.named_parameters(), *model.named_buffers()]}  # fmt: skip
    wanted = network.state_dict()
    tied = "output_layer.weight" not in own
    found = {}
    for name, weight in wanted.items():
        value = _value(name, own, model.config, network.config, tied)
        if value.shape != weight.shape:
            raise LookupError(f"{name} is {tuple(weight.shape)}, of Megatron-LM {tuple(value.shape)}")
        found[name] = value
    return found


def _value(name: str, own: Weights, config: Any, known: Any, tied: bool) -> Any:
    if re.search(r"(lm_head|embed_out)\.weight$", name):
        return own["embedding.word_embeddings.weight" if tied else "output_layer.weight"]
    layer = re.search(r"\.(?:layers|h)\.(\d+)\.(.+)$", name)
    if layer is None:
        for pattern, target in _ENDS.items():
            if (match := re.search(rf"(?:^|\.){pattern}$", name)) is not None:
                return own[target.format(None, *match.groups())]
        raise LookupError(name)
    prefix, part = f"decoder.layers.{layer[1]}.", layer[2]
    for build in (_linear_attention, _attention, _experts, _gated):
        value = build(part, prefix, own, config, known)
        if value is not None:
            return value
    for pattern, target in _RENAMED.items():
        if (match := re.fullmatch(rf"{pattern}\.(weight|bias)", part)) is not None:
            value = own[f"{prefix}{target}.{match[match.lastindex or 0]}"]
            return value.T if _is_transposed(part, known) else value
    raise LookupError(name)


def _is_transposed(part: str, known: Any) -> bool:
    return known.model_type == "gpt2" and part.endswith("weight") and ".c_" in part


_PLAIN = {
    "conv1d.weight": "conv1d.weight",
    "dt_bias": "dt_bias",
    "A_log": "A_log",
    "out_proj.weight": "out_proj.weight",
}


def _linear_attention(part: str, prefix: str, own: Weights, config: Any, known: Any) -> Any:
    """Parts of a gated delta net, whose maps Megatron keeps as one (q, k, v, gate, beta, alpha)."""
    import torch

    prefix += "self_attention."
    joined = own.get(f"{prefix}in_proj.weight")
    if joined is None:
        return None
    if part == "input_layernorm.weight":
        return own[f"{prefix}in_proj.layer_norm_weight"]
    if not part.startswith("linear_attn."):
        return None
    name = part.removeprefix("linear_attn.")
    name = name.removesuffix(".weight") if name.startswith("in_proj") else name
    if name in _PLAIN:
        return own[prefix + _PLAIN[name]]
    if name == "norm.weight":  # which is not centred at zero there
        return own[f"{prefix}out_norm.weight"] + config.layernorm_zero_centered_gamma
    heads, values = config.linear_num_key_heads, config.linear_num_value_heads
    keys_width = heads * config.linear_key_head_dim
    values_width = values * config.linear_value_head_dim
    sections = [keys_width, keys_width, values_width, values_width, values, values]
    q, k, v, z, b, a = joined.split(sections)
    if name in ("in_proj_qkvz", "in_proj_ba"):  # key head by key head
        pieces = (q, k, v, z) if name == "in_proj_qkvz" else (b, a)
        by_head = [piece.reshape(heads, -1, joined.shape[1]) for piece in pieces]
        return torch.cat(by_head, dim=1).reshape(-1, joined.shape[1])
    apart = {"in_proj_qkv": torch.cat([q, k, v]), "in_proj_z": z, "in_proj_b": b, "in_proj_a": a}
    return apart[name]


def _attention(part: str, prefix: str, own: Weights, config: Any, known: Any) -> Any:
    """Queries, keys and values, which Megatron keeps group by group; sinks; GPT-2's own names."""
    import torch

    if part == "self_attn.sinks":
        return own[f"{prefix}self_attention.core_attention.softmax_offset"]
    if (match := re.fullmatch(r"attn\.c_proj\.(weight|bias)", part)) is not None:
        value = own[f"{prefix}self_attention.linear_proj.{match[1]}"]
        return value.T if match[1] == "weight" else value
    if part == "self_attn.q_proj.weight" and f"{prefix}self_attention.linear_q_proj.weight" in own:
        return own[f"{prefix}self_attention.linear_q_proj.weight"]
    match = re.fullmatch(r"(?:self_attn|attn)\.(q_proj|k_proj|v_proj|qkv_proj|c_attn)\.(weight|bias)", part)
    if match is None:
        return None
    joined = own[f"{prefix}self_attention.linear_qkv.{match[2]}"]
    groups = config.num_query_groups
    each = config.num_attention_heads // groups
    gates = each if config.attention_output_gate else 0
    rows = joined.reshape(groups, each + gates + 2, config.kv_channels, -1)
    tail = joined.shape[1:]
    queries = rows[:, :each]
    if gates:  # transformers keeps the gate of a head behind its queries
        queries = torch.stack([queries, rows[:, each : each + gates]], dim=2)
    parts = [queries, rows[:, -2:-1], rows[:, -1:]]
    q, k, v = (piece.reshape(-1, *tail) for piece in parts)
    if match[1] in ("qkv_proj", "c_attn"):
        whole = torch.cat([q, k, v])
        return whole.T if match[1] == "c_attn" and match[2] == "weight" else whole
    return {"q_proj": q, "k_proj": k, "v_proj": v}[match[1]]


def _experts(part: str, prefix: str, own: Weights, config: Any, known: Any) -> Any:
    """Experts, which transformers keeps in one tensor, and what shares a layer with them."""
    import torch

    if re.fullmatch(r"mlp\.(gate|router)\.e_score_correction_bias", part):
        return own[f"{prefix}mlp.router.expert_bias"]
    if part == "mlp.shared_expert_gate.weight":
        return own[f"{prefix}mlp.shared_experts.gate_weight"]
    match = re.fullmatch(r"mlp\.experts\.(gate_up_proj|down_proj)(_bias)?", part)
    if match is None:
        return None
    kind, ending = {"gate_up_proj": "linear_fc1", "down_proj": "linear_fc2"}[match[1]], "bias"
    if match[2] is None:
        ending = "weight"
    names = (f"{prefix}mlp.experts.local_experts.{e}.{kind}.{ending}" for e in range(config.num_moe_experts))
    value = torch.stack([own[name] for name in names])
    if known.model_type != "gpt_oss":
        return value
    if kind == "linear_fc1":  # gate and up in turn
        gate, up = value.chunk(2, dim=1)
        value = torch.stack([gate, up], dim=2).reshape(value.shape)
    return value.transpose(1, 2) if ending == "weight" else value


def _gated(part: str, prefix: str, own: Weights, config: Any, known: Any) -> Any:
    """The halves of a gated unit's first map, and the whole of one without a gate."""
    match = re.fullmatch(r"mlp\.(shared_experts?\.)?(gate_proj|up_proj)\.(weight|bias)", part)
    if match is None:
        return None
    shared = "shared_experts." if match[1] else ""
    value = own[f"{prefix}mlp.{shared}linear_fc1.{match[3]}"]
    if not config.gated_linear_unit:
        return value
    return value.chunk(2)[match[2] == "up_proj"]
