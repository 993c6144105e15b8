"""Models with Mamba layers as Megatron-LM builds them, of plain modules, to count their parameters.

Neither mamba_ssm nor Transformer Engine is needed: kernels are never run, and the one module that mamba_ssm
lends, a gated norm, has a weight for each channel.
"""

from __future__ import annotations

import contextlib
from argparse import Namespace
from functools import partial
from typing import Any


def hybrid_model(args: Namespace, config: Any, vocab: int, first: bool, last: bool, chunk: int | None) -> Any:
    """One virtual stage of this rank's model; which layers it has is Megatron's own choice."""
    _lend_gated_norm()
    try:
        from megatron.core.models.hybrid.hybrid_model import HybridModel as Model
    except ModuleNotFoundError:  # its name up to core 0.17
        from megatron.core.models.mamba.mamba_model import MambaModel as Model
    return Model(
        config,
        _stack(),
        vocab,
        args.max_position_embeddings,
        hybrid_layer_pattern=args.hybrid_layer_pattern,
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        vp_stage=chunk,
    )


def _lend_gated_norm() -> None:
    import torch
    from megatron.core.ssm import mamba_mixer

    class GatedNorm(torch.nn.Module):
        def __init__(self, width: int, device: Any = None, **_kwargs: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(width, device=device))

    class NoStates:
        def fork(self) -> Any:
            return contextlib.nullcontext()

    mamba_mixer.get_cuda_rng_tracker = NoStates
    mamba_mixer.HAVE_MAMBA_SSM = True
    mamba_mixer.RMSNormGated = mamba_mixer.ExtendedRMSNorm = GatedNorm


def _stack() -> Any:
    """The stack of `hybrid_stack_spec`, of plain modules: norms stand apart from the maps after them."""
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
    from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
    from megatron.core.ssm.mlp_layer import MLPLayer
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.multi_token_prediction import (
        MultiTokenPredictionBlock,
        MultiTokenPredictionBlockSubmodules,
        MultiTokenPredictionLayer,
        MultiTokenPredictionLayerSubmodules,
    )
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    try:
        from megatron.core.models.hybrid import hybrid_block as block

        stack, parts = block.HybridStack, block.HybridStackSubmodules
    except ModuleNotFoundError:
        from megatron.core.ssm import mamba_block as block

        stack, parts = block.MambaStack, block.MambaStackSubmodules
    block.TENorm = WrappedTorchNorm  # the final one

    mixer = MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear)
    mamba = MambaLayerSubmodules(
        norm=WrappedTorchNorm,
        mixer=ModuleSpec(module=MambaMixer, submodules=mixer),
        mamba_bda=get_bias_dropout_add,
    )
    attention = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear, core_attention=DotProductAttention, linear_proj=RowParallelLinear
    )
    queries = ModuleSpec(
        module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=attention
    )
    maps = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    mlp: Any = ModuleSpec(module=MLP, submodules=maps)
    if hasattr(MLP, "as_mlp_submodule"):
        mlp = partial(MLP.as_mlp_submodule, submodules=maps)
    predictions = MultiTokenPredictionBlockSubmodules(
        layer_specs=[
            ModuleSpec(
                module=MultiTokenPredictionLayer,
                submodules=MultiTokenPredictionLayerSubmodules(
                    enorm=WrappedTorchNorm,
                    hnorm=WrappedTorchNorm,
                    eh_proj=ColumnParallelLinear,
                    layer_norm=WrappedTorchNorm,
                ),
            )
        ]
    )
    return ModuleSpec(
        module=stack,
        submodules=parts(
            mtp_block_spec=ModuleSpec(module=MultiTokenPredictionBlock, submodules=predictions),
            mamba_layer=ModuleSpec(module=MambaLayer, submodules=mamba),
            attention_layer=ModuleSpec(
                module=TransformerLayer,
                submodules=TransformerLayerSubmodules(
                    input_layernorm=WrappedTorchNorm,
                    self_attention=queries,
                    self_attn_bda=get_bias_dropout_add,
                ),
            ),
            mlp_layer=ModuleSpec(
                module=MLPLayer,
                submodules=TransformerLayerSubmodules(
                    pre_mlp_layernorm=WrappedTorchNorm, mlp=mlp, mlp_bda=get_bias_dropout_add
                ),
            ),
            moe_layer=ModuleSpec(
                module=TransformerLayer,
                submodules=TransformerLayerSubmodules(
                    pre_mlp_layernorm=WrappedTorchNorm,
                    mlp=get_moe_module_spec(
                        use_te=False, num_experts=8
                    ),  # any number: only whether there are
                    mlp_bda=get_bias_dropout_add,
                ),
            ),
        ),
    )
