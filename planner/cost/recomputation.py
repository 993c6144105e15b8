"""What selective recomputation runs again of a layer, and what it therefore need not keep.

Modules are those of Megatron-LM core 0.19 (transformer/transformer_config.py, `recompute_modules`). Core
attention, dense MLPs, layers of experts and shared experts are checkpointed: their input stays, all inside
is made anew. Norms, the experts' activation and the up-projections of latent attention drop their output
alone. `moe` holds `moe_act` and `shared_experts`, which then count once.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.checkpointing import KEPT_BY_POLICY
from planner.cost.elementwise import Values
from planner.cost.kernels.launches import (
    DENSE_LAUNCHES,
    LAUNCH_US,
    MLP_LAUNCHES,
    NARROW_MAP_US,
    SHARED_LAUNCHES,
    UP_PROJECTION_LAUNCHES,
    moe_launches,
)
from planner.cost.sizes import Sizes
from planner.data.model_spec import (
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)
from planner.data.stack import SoftwareStack

PRODUCTS = {
    "mla_up_proj": ("kv_up", "q_up"),
    "mlp": ("fc1", "fc2"),
    "all_but_qkv": ("proj", "fc1"),
    "all_but_qkv_proj": ("fc1",),
    "moe": ("router", "latent1", "expert1", "expert2", "latent2", "shared1", "shared2"),
    "shared_experts": ("shared1", "shared2"),
}
"""Matrix products of a module, by their names in `operators.py`."""

CORE_ATTENTION = ("core_attn",)
"""What most stacks recompute selectively."""


def modules_of(model: ModelSpec, kind: LayerKind, modules: Sequence[str]) -> tuple[str, ...]:
    """Those modules that a layer of a kind has, each once."""
    has_attention = kind in WITH_ATTENTION
    if tuple(modules) == CORE_ATTENTION:  # of most
        return CORE_ATTENTION if has_attention else ()
    moe = model.moe if kind in WITH_EXPERTS else None
    present = {
        "core_attn": has_attention,
        "mla_up_proj": has_attention and model.mla is not None,
        "gdn_norm_out": kind in WITH_LINEAR_ATTENTION,
        "layernorm": True,
        "mlp": kind in WITH_ONE_MLP,
        **{policy: kind == "dense" for policy in KEPT_BY_POLICY},
        "every_second_product": kind in ("dense", "mlp", "attention"),
        "moe": moe is not None,
        "moe_act": moe is not None and "moe" not in modules,
        "shared_experts": moe is not None and moe.shared_ffn_hidden_size > 0 and "moe" not in modules,
    }
    return tuple(name for name in present if present[name] and name in modules)


def missing_modules(model: ModelSpec, modules: Sequence[str]) -> tuple[str, ...]:
    """Those modules that no layer of the model has."""
    there = {m for kind in model.layer_kinds for name in modules for m in modules_of(model, kind, (name,))}
    return tuple(name for name in modules if name not in there)


def products_again(modules: Sequence[str]) -> tuple[str, ...]:
    """Names of the matrix products that run again."""
    return tuple(product for module in modules for product in PRODUCTS.get(module, ()))


def tensor_blocks_again(model: ModelSpec, modules: Sequence[str]) -> int:
    """Pairs of a column- and a row-parallel map whose collectives run again with them."""
    shared = model.moe is not None and model.moe.shared_ffn_hidden_size > 0
    return ("mlp" in modules) + (shared and ("moe" in modules or "shared_experts" in modules))


def launches_again(
    model: ModelSpec, stack: SoftwareStack, modules: Sequence[str], sizes: Sizes, narrow: bool = False
) -> Values:
    """Launches that run again, over those of a dense layer; an activation or norm counts nothing."""
    count = sizes.ones * (MLP_LAUNCHES if "mlp" in modules else 0.0)
    if "mla_up_proj" in modules and "attn" not in stack.captured_modules:
        count = count + UP_PROJECTION_LAUNCHES + (2 * NARROW_MAP_US / LAUNCH_US if narrow else 0.0)
    if "moe" in modules:
        count = count + moe_launches(model, stack, sizes, narrow)
    elif "shared_experts" in modules:
        count = count + SHARED_LAUNCHES
    return count / DENSE_LAUNCHES
