"""Ranks that agree on 8-bit scales after each pass of a chunk."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.cost.stage import StageContent, chunk_times
from planner.data.load import build_problem, load_stack
from planner.data.problem import Problem


def of(precision: str = "fp8", **changes: object) -> Problem:
    """Llama-3 70B in NeMo on 32 hosts, with some fields of the software changed."""
    return build_problem(
        cluster="32x8 h100-sxm-80gb",
        model="llama3-70b",
        seq_length=8192,
        global_batch_size=256,
        precision=precision,
        stack=load_stack("nemo").model_copy(update=changes),
    )


def prices(problem: Problem, data_parallel: int = 16) -> Prices:
    """Prices of tensor parallelism of 4."""
    return price(
        problem, Degrees.single(tensor_parallel=4, data_parallel=data_parallel, sequence_parallel=True)
    )


def test_every_chunk_agrees_once_a_pass() -> None:
    agreed, alone = prices(of()), prices(of(scales_agreed_by="nobody"))
    assert alone.scales_s is None and agreed.scales_s is not None
    for chunks in (1, 4):
        content = StageContent(
            0, ((0,) * 4,) * chunks, has_embedding=True, has_head=True, recompute="none", recompute_layers=0
        )
        for with_scales, without in zip(
            chunk_times(agreed, 0, content), chunk_times(alone, 0, content), strict=True
        ):
            more = (with_scales - without).sum()
            assert more == pytest.approx(chunks * float(agreed.scales_s[0, 0]))


def test_more_ranks_agree_later() -> None:
    near, far = (prices(of(), dp).scales_s for dp in (2, 32))
    tensor = prices(of(scales_agreed_by="tensor"), 32).scales_s
    assert near is not None and far is not None and tensor is not None
    assert 0 < tensor[0, 0] < near[0, 0] < far[0, 0] < 200e-6


def test_rows_of_many_choices_are_those_of_each() -> None:
    both = Degrees(
        *(np.concatenate([getattr(d, name) for d in _choices()]) for name in _names()), dp_mode="distopt"
    )
    found = price(of(), both).scales_s
    assert found is not None
    alone = [price(of(), d).scales_s for d in _choices()]
    np.testing.assert_allclose(found, np.concatenate([a for a in alone if a is not None]))


@pytest.mark.parametrize(("precision", "changes"), [("bf16", {}), ("fp8", {"current_scaling": True})])
def test_other_scales_need_no_agreement(precision: str, changes: dict[str, object]) -> None:
    assert prices(of(precision, **changes)).scales_s is None


def _choices() -> tuple[Degrees, Degrees]:
    return tuple(Degrees.single(tensor_parallel=4, data_parallel=dp) for dp in (2, 32))  # type: ignore[return-value]


def _names() -> list[str]:
    return [name for name in Degrees.__dataclass_fields__ if name != "dp_mode"]
