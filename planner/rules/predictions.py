"""Multi-token-prediction layers on a stage of their own, before the one with the loss.

Lines are those of megatron-core 0.19.2 (Apache-2.0), core/transformer/pipeline_parallel_layer_layout.py,
`validate_layer_layout`: all predictions on one rank (:124), in its last virtual stage (:117), behind all
layers of the model (:107), never on the first rank. The loss ends the last stage.
"""

from __future__ import annotations

from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.rules.target import TARGETS


def has_prediction_stage(model: ModelSpec, plan: Plan) -> bool:
    """Whether a stage other than the last holds predictions, and it is one that can."""
    return not prediction_stage_refusals(model, plan) and plan.prediction_stage is not None


def prediction_stage_refusals(model: ModelSpec, plan: Plan) -> tuple[str, ...]:
    """Sentences on what a stage of predictions breaks; empty where there is none."""
    stage, last = plan.prediction_stage, len(plan.stages) - 1
    if stage is None:
        return ()
    name = f"prediction_stage {stage}"
    if not TARGETS[plan.target].prediction_stage:
        return (f"{name}: target {plan.target} has none; leave it out",)
    if not model.mtp_num_layers:
        return (f"{name}: {model.id} predicts no further tokens (mtp_num_layers 0); leave it out",)
    if model.hybrid is not None:
        return (f"{name}: the pattern of a hybrid's layers ends in its predictions; leave it out",)
    if last < 2:
        return (f"{name}: needs 3 pipeline stages or more, the plan has {last + 1}; leave it out",)
    if stage != last - 1:
        return (f"{name}: must be {last - 1}, before the last stage, which has the loss; or leave it out",)
    if plan.mixes_chips or plan.degrees_differ or plan.pipelines is not None:
        return (f"{name}: not with stages of several chips or degrees; leave it out",)
    first, end = plan.stages[last].chunks[-1]
    if end >= first:
        return (
            f"{name}: the stage with the loss holds layers {first} to {end}, which must come before the "
            f"predictions; move them to stage {stage} or earlier",
        )
    return ()
