"""Models with linear attention as Megatron-LM builds them, of plain modules.

Neither fla nor Transformer Engine is needed: no kernel is run where parameters are counted, and Megatron's
own plain form (`deterministic_mode`) where they compute. Which layers there are, how they are put together
and what a gated delta net holds is Megatron's own code; norms stand apart from the maps after them, but for
that of the gated delta net, whose map has its weight.
"""

from __future__ import annotations

from typing import Any


def linear_layers(config: Any, chunk: int | None) -> Any:
    """Layers of one virtual stage of this rank's model."""
    import torch
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as specs
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.tensor_parallel import ColumnParallelLinear

    _pretend_kernels()

    class MapAfterNorm(ColumnParallelLinear):
        def __init__(self, width: int, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(width, *args, **kwargs)
            self.layer_norm_weight = torch.nn.Parameter(torch.empty(width))
            if self.config.normalization == "LayerNorm":
                self.layer_norm_bias = torch.nn.Parameter(torch.empty(width))

        def forward(self, tokens: Any, *args: Any, **kwargs: Any) -> Any:
            weight, width = self.layer_norm_weight, tokens.shape[-1:]
            if self.config.layernorm_zero_centered_gamma:
                weight = weight + 1
            tokens = torch.nn.functional.rms_norm(tokens, width, weight, self.config.layernorm_epsilon)
            return super().forward(tokens, *args, **kwargs)

    class Plain(LocalSpecProvider):
        def column_parallel_layer_norm_linear(self) -> Any:
            return MapAfterNorm

    def attention(config: Any, backend: Any = None) -> Any:
        layer = gpt_layer_specs.get_gpt_layer_local_spec(
            None, False, config.qk_layernorm, False, normalization=config.normalization
        )
        found = layer.submodules.self_attention
        found.metainfo["fuse_input_layernorm"] = False
        return found

    specs._get_backend_spec_provider = lambda config=None: Plain()
    specs._get_self_attention_module_spec = attention
    return specs.get_transformer_block_with_experimental_attention_variant_spec(config, vp_stage=chunk)


def _pretend_kernels() -> None:
    """Answer that fla is there; whoever calls its kernel gets an error."""
    try:
        from megatron.core.ssm.gated_delta_net import common, gdn

        modules = [common, gdn]
    except ImportError:  # one file up to core 0.18
        from megatron.core.ssm import gated_delta_net

        modules = [gated_delta_net]
    for module in modules:
        module.HAVE_FLA, module.chunk_gated_delta_rule = True, _missing_kernel
        module.l2norm = _unit_length


def _unit_length(values: Any) -> Any:
    """As fla's kernel, with its epsilon."""
    return values * (values.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def _missing_kernel(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError("fla is only pretended to be here")
