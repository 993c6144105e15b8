"""How a router weighs experts, where a model's constants leave it open."""

from __future__ import annotations

from planner.data.model_spec import ModelSpec


def expert_scores(model: ModelSpec) -> str | None:
    """Function that weighs the experts, None without any.

    Where the model states none: a sigmoid with a router bias that only balances, as in DeepSeek-V3
    (arXiv:2412.19437, section 2.1.2); that of gpt-oss is an ordinary bias of a linear map.
    """
    if model.moe is None:
        return None
    return model.constants.expert_scores or ("sigmoid" if balances_by_bias(model) else "softmax")


def balances_by_bias(model: ModelSpec) -> bool:
    """Whether the router has a bias that takes part in the choice of experts alone."""
    return model.moe is not None and model.moe.router_bias and not model.moe.expert_bias


def softmax_over_all(model: ModelSpec) -> bool:
    """Whether experts are weighed by a softmax over all; one over a single chosen expert is always 1."""
    return (
        model.moe is not None
        and expert_scores(model) == "softmax"
        and (model.constants.softmax_over_all or model.moe.top_k == 1)
    )
