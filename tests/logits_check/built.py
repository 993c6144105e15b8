"""A small network as Megatron-LM's own builder makes it of a launch script, of plain modules on a CPU.

Which modules there are, and all their numbers, follow from the script's arguments; the number format alone is
another (fp32), so that results can be compared closely.
"""

from __future__ import annotations

import os
from typing import Any

from tests.megatron_check import standins, validate
from tests.megatron_check.linear import linear_layers
from tests.megatron_check.local_modules import prepare_local_modules
from tests.megatron_check.script import start_as_node


def build(script: str) -> Any:
    """The model of all layers on one rank, its weights not yet set.

    Raises
    ------
    Refused
        Where the script or Megatron-LM stops.
    """
    import torch
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.training.argument_utils import gpt_config_from_args
    from megatron.training.models.gpt import GPTModelBuilder

    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    standins.pretend_transformer_engine("2.9.0")
    with validate.refusals_of_megatron():
        args = validate.read_arguments(start_as_node(script, 0, {}).arguments, 1)
        config = validate.transformer_config(args)
        validate.make_process_groups(args, 0)
        prepare_local_modules()
        model_parallel_cuda_manual_seed(1)
        _let_norms_be_as_configured()
        _be_plain(config)
        model_config = gpt_config_from_args(args, config)
        if config.experimental_attention_variant is not None:
            model_config.transformer_layer_spec = linear_layers(config, None)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        model = GPTModelBuilder(model_config).build_model(groups, True, True)
    if config.multi_latent_attention:  # plain attention takes values to be as wide as keys
        for module in model.modules():
            if isinstance(module, DotProductAttention):
                module.hidden_size_per_partition = config.num_attention_heads * config.v_head_dim
    return model.to(torch.float32).eval()


def _be_plain(config: Any) -> None:
    """Leave out what needs a GPU or kernels of its own; the network stays the same."""
    import torch

    config.transformer_impl, config.moe_token_dispatcher_type = "local", "alltoall"
    config.params_dtype = config.pipeline_dtype = torch.float32
    config.autocast_dtype = torch.float32
    config.use_cpu_initialization = config.deterministic_mode = True
    for switch in (
        *("bf16", "fp16", "perform_initialization", "gradient_accumulation_fusion", "moe_grouped_gemm"),
        *("masked_softmax_fusion", "bias_activation_fusion", "bias_dropout_fusion", "persist_layer_norm"),
        *("apply_rope_fusion", "moe_permute_fusion", "moe_router_fusion"),
    ):
        setattr(config, switch, False)


def _let_norms_be_as_configured() -> None:
    """Norms centred at zero, which plain modules refuse, multiply by 1 more than their weights."""
    import torch
    from megatron.core.transformer import torch_norm

    def norm(_cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **_kwargs: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        module = kind(hidden_size, eps=eps)
        if config.layernorm_zero_centered_gamma:
            torch.nn.utils.parametrize.register_parametrization(module, "weight", _OneMore(), unsafe=True)
        return module

    class _OneMore(torch.nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight + 1

    torch_norm.WrappedTorchNorm.__new__ = norm
