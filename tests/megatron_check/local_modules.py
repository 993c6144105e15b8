"""Megatron-LM's plain-torch modules in the place of the fused ones of Transformer Engine.

They are the same networks. What they refuse or do otherwise is put right here: the plain norm refuses
sequence parallelism, the plain attention context parallelism (whose own traffic is therefore not
seen) and heads of two widths, latent attention uncompressed queries beside a norm, latent experts maps that
are not Transformer Engine's.
"""

from __future__ import annotations

import copy
from typing import Any

DUPLICATED = ("linear_q_down_proj", "linear_kv_down_proj")
"""Down-projections of latent attention: whole on every rank with Transformer Engine, else sharded."""


def prepare_local_modules() -> None:
    """Let the plain modules take what the fused ones take."""
    _let_random_states_be_of_the_cpu()
    _let_norms_be_sequence_parallel()
    _let_attention_be_plain()
    _let_queries_be_uncompressed()
    _let_latent_maps_be_plain()


def parameters_of(model: Any, tensor_parallel: int) -> int:
    """Parameters that a rank would hold if the model were made of fused modules."""
    return sum(
        weight.numel() * (tensor_parallel if any(name in path for name in DUPLICATED) else 1)
        for path, weight in model.named_parameters()
    )


def _let_random_states_be_of_the_cpu() -> None:
    import torch
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)


def _let_norms_be_sequence_parallel() -> None:
    import torch
    from megatron.core.transformer import torch_norm

    def norm(_cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **_kwargs: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        module = kind(hidden_size, eps=eps)
        for weight in module.parameters():
            weight.sequence_parallel = config.sequence_parallel
        return module

    torch_norm.WrappedTorchNorm.__new__ = norm


def _let_attention_be_plain() -> None:
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    if hasattr(DotProductAttention, "plain_init"):
        return
    DotProductAttention.plain_init = DotProductAttention.__init__

    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        for width in ("k_channels", "v_channels"):  # of latent attention; no weights depend on them
            kwargs.pop(width, None)
        if config.context_parallel_size > 1:
            config = copy.copy(config)
            config.context_parallel_size = 1
        DotProductAttention.plain_init(self, config, *args, **kwargs)

    DotProductAttention.__init__ = init


def _let_queries_be_uncompressed() -> None:
    from megatron.core.transformer.identity_op import IdentityOp

    try:
        from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver
    except ModuleNotFoundError:
        return  # before core 0.19 the model itself chose these modules

    if hasattr(QKNormConfigResolver, "plain_resolve"):
        return
    QKNormConfigResolver.plain_resolve = QKNormConfigResolver.resolve

    def resolve(self: Any) -> dict[str, Any]:
        if self.has_q_lora:
            return QKNormConfigResolver.plain_resolve(self)
        parts = self.submodules
        return self._result(
            linear_q_proj=parts.linear_q_proj,
            linear_q_up_proj=IdentityOp,
            linear_kv_up_proj=parts.linear_kv_up_proj,
            q_layernorm=IdentityOp,
            kv_layernorm=parts.kv_layernorm,
        )

    QKNormConfigResolver.resolve = resolve


def _let_latent_maps_be_plain() -> None:
    """The two maps of latent experts, which every rank holds whole (`parallel_mode="duplicated"`)."""
    import torch
    from megatron.core.transformer.moe import moe_layer

    class Map(torch.nn.Linear):
        def __init__(self, width: int, out: int, *, config: Any, bias: bool, **_kwargs: Any) -> None:
            super().__init__(width, out, bias=bias)
            for weight in self.parameters():
                weight.sequence_parallel = config.sequence_parallel

        def forward(self, x: Any) -> Any:
            return super().forward(x), None

    moe_layer.HAVE_TE, moe_layer.TELinear = True, Map
