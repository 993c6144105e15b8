"""What routers keep of every token and expert."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost.memory.routers import router_bytes
from planner.data.load import load_model, load_stack


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        ("mixtral-8x7b", {}, 1 + 4 + 8),  # a softmax of the chosen: the loss alone has scores of all
        ("deepseek-v3", {}, 1 + 4 + 4 + 8),  # once 5
        ("mixtral-8x7b", {"moe_router_fusion": True}, 1 + 4 + 4 + 8),
        ("deepseek-v3", {"moe_permute_loops": True}, 1 + 4 + 4 + 4),
        ("deepseek-v3", {"moe_dispatcher": "deduplicating"}, 1 + 4 + 4),
        ("deepseek-v3", {"moe_permute_fusion": False, "balances_by_loss": False}, 1 + 4),
    ],
)
def test_scores_and_places_of_all_experts_are_kept(
    model: str, changes: dict[str, Any], expected: float
) -> None:
    stack = load_stack("megatron-core").model_copy(update=changes)
    assert router_bytes(load_model(model), stack) == expected
