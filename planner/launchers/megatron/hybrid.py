"""Models of Mamba-2, attention and feed-forward layers as arguments of Megatron-LM.

Megatron builds them from a pattern, one letter a layer, in which `|` ends a virtual stage: `M-M*|-M-M`.
Behind a `/` stand the layers of each multi-token prediction: `M-M*|-M-M/*-/*-`. Entry v * P + p is chunk v of
pipeline rank p, as in `planner.launchers.megatron.pipeline_layout`; no layout string goes with it.
(megatron-core 0.19.2, `megatron/core/models/hybrid/hybrid_layer_allocation.py`, and
`megatron/training/arguments.py:761`; 0.17.1 the same in `megatron/core/ssm`.)
"""

from __future__ import annotations

from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.launchers.megatron.arguments import Arguments, option
from planner.rules.versions import VERSIONS

PATTERN = "--hybrid-layer-pattern"
STAGE_END = "|"
PREDICTION = "/"

SPECS = {
    "mamba": ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"),
    "hybrid": ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"),
}
"""Where the layers are defined; called mamba up to core 0.17, hybrid from 0.18 on."""

FIRST_HYBRID = "0.18"

ENTRY_POINTS = ("pretrain_gpt.py", *(f"pretrain_{name}.py" for name in SPECS))
"""Scripts of the Megatron-LM checkout that train."""


def entry_point(model: ModelSpec, version: str) -> str:
    """Script of the Megatron-LM checkout that trains the model."""
    return "pretrain_gpt.py" if model.hybrid is None else f"pretrain_{_name(version)}.py"


def hybrid_arguments(model: ModelSpec, version: str) -> Arguments:
    """Shape of the Mamba-2 layers, and where Megatron finds all kinds; empty for other models."""
    if model.hybrid is None:
        return ()
    spec = model.hybrid
    return (
        option("--spec", *SPECS[_name(version)]),
        option("--mamba-num-heads", spec.mamba_heads),
        option("--mamba-head-dim", spec.mamba_head_dim),
        option("--mamba-state-dim", spec.ssm_state),
        option("--mamba-num-groups", spec.groups),
    )


def hybrid_pattern(model: ModelSpec, plan: Plan) -> str:
    """The pattern cut into the plan's virtual stages, with that of each prediction behind it."""
    assert model.hybrid is not None
    layers = STAGE_END.join(
        model.hybrid.pattern[first : last + 1]
        for chunk in range(plan.virtual_stages)
        for first, last in (stage.chunks[chunk] for stage in plan.stages)
    )
    return PREDICTION.join([layers, *[model.hybrid.prediction_pattern or ""] * model.mtp_num_layers])


def _name(version: str) -> str:
    return "hybrid" if VERSIONS.index(version) >= VERSIONS.index(FIRST_HYBRID) else "mamba"
