"""Models of Mamba-2, attention and feed-forward layers as fields of Megatron-Bridge's own provider for them.

It builds neither virtual stages nor, as here, predictions (megatron-bridge 0.6.2, models/hybrid/
hybrid_provider.py); the pattern of layers ends the stages, as for Megatron-LM.
"""

from __future__ import annotations

from planner.data.model_spec import HybridSpec, ModelSpec

PLAIN_SOFTMAX = {"attention_softmax_in_fp32": "False", "masked_softmax_fusion": "True"}
"""What Megatron-LM has for every model, and providers of hybrids and of latent attention otherwise: scores
in 32 bits, and their softmax in several kernels, which keep more."""


def hybrid_fields(spec: HybridSpec) -> dict[str, str]:
    """Layers of several kinds, as Python text; overrides cut the pattern into stages.

    The last fields are what Megatron-LM has for such a model, and this provider otherwise.
    """
    return {
        "hybrid_layer_pattern": repr(spec.pattern),
        "mamba_num_heads": repr(spec.mamba_heads),
        "mamba_head_dim": repr(spec.mamba_head_dim),
        "mamba_state_dim": repr(spec.ssm_state),
        "mamba_num_groups": repr(spec.groups),
        "is_hybrid_model": "True",
        "mtp_num_layers": "None",
        **PLAIN_SOFTMAX,
        "apply_rope_fusion": "False",
    }


def provider_of(model: ModelSpec) -> tuple[str, str]:
    """Module below `megatron.bridge.models` and class of the provider that builds a network."""
    if model.hybrid is not None:
        return "hybrid.hybrid_provider", "HybridModelProvider"
    if model.mla is not None:
        return "mla_provider", "MLAModelProvider"
    return "gpt_provider", "GPTModelProvider"
