"""Placeholders that Transformer Engine keeps for gradients which products add themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.kernels.operators import Matmul
from planner.cost.memory.placeholders import placeholder_bytes
from planner.cost.memory.stage import memory_bytes
from planner.cost.prices import STATES, Prices
from planner.cost.stage import StageContent
from planner.data.problem import Problem
from planner.units import GIB
from tests.planner.cost.problems import prices, problem

GRADIENTS = STATES.index("gradients")


def without(of: Problem, **changes: bool) -> Problem:
    return of.model_copy(update={"stack": of.stack.model_copy(update=changes)})


def product(name: str, n: float, k: float, *, narrow: bool = True, has_weight: bool = True) -> Matmul:
    return Matmul(name, 1.0, n, k, 1.0, narrow=narrow, has_weight=has_weight)


def test_a_placeholder_is_kept_for_each_shape_once() -> None:
    maps = [product("fc1", 8, 2), product("fc2", 2, 8), product("expert", 8, 2), product("shared", 8, 4)]
    others = [product("router", 64, 2, narrow=False), product("scores", 99, 9, has_weight=False)]
    assert placeholder_bytes(maps + others) == 2 * (8 * 2 + 2 * 8 + 8 * 4)


def more(of: Problem, **degrees: int) -> tuple[Prices, Prices]:
    """Prices with and without placeholders."""
    return prices(of, **degrees), prices(without(of, gradient_placeholders=False), **degrees)


def test_layers_and_head_hold_placeholders_whatever_their_number() -> None:
    of = problem(model="llama3-8b")
    with_them, bare = more(of, tensor_parallel=2)
    layer = (4096 * 48 * 128 + 32 * 128 * 4096 + 3 * 4096 * 14_336) / 2
    assert with_them.layer_working_bytes - bare.layer_working_bytes == pytest.approx(2 * layer)
    assert with_them.head_peak_bytes - bare.head_peak_bytes == pytest.approx(2 * layer)
    for name in ("head_state_bytes", "head_beside_embedding_state_bytes"):
        difference = (getattr(with_them, name) - getattr(bare, name))[0]
        assert difference[GRADIENTS] == pytest.approx(2 * 4096 * 128_256 / 2)
        assert difference.sum() == difference[GRADIENTS]
    assert with_them.embedding_state_bytes == pytest.approx(bare.embedding_state_bytes)


def test_gradients_of_their_own_need_no_placeholders() -> None:
    of = without(problem(model="llama3-8b"), gradient_accumulation_fusion=False)
    with_them, bare = more(of)
    assert with_them.layer_working_bytes == pytest.approx(bare.layer_working_bytes)
    assert with_them.head_state_bytes == pytest.approx(bare.head_state_bytes)


def test_leading_dense_layers_stand_beside_experts_but_not_the_other_way_round() -> None:
    of = problem(model="deepseek-v3")
    with_them, bare = more(of, data_parallel=8, expert_parallel=8, expert_tensor_parallel=1)
    held = (with_them.layer_working_bytes - bare.layer_working_bytes)[0]
    dense, experts = (held[with_them.kinds.index(kind)] for kind in ("dense", "moe"))
    assert dense - experts == pytest.approx(2 * 3 * 7168 * 18_432)


@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_of_all_kinds_of_layers_stand_beside_the_step(largest: int) -> None:
    of = prices(problem(model="deepseek-v3"), data_parallel=8, expert_parallel=8, expert_tensor_parallel=1)
    sizes = np.ones_like(of.layer_placeholder_bytes)
    sizes[0, largest] = 2.0
    full = replace(of, layer_placeholder_bytes=sizes * GIB, step_copy_share=100.0)  # the step is fullest
    content = StageContent(0, ((0, 1),), False, False, "none", 0)
    assert memory_bytes(full, 0, content, [1], 4)["working"] == 2.0 * GIB
