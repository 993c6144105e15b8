"""Prices of models unlike any measured one, on chips with and without tables of their own."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from planner.cost.kernels.operators import layer_matmuls
from planner.cost.prices import Degrees, Floats, Prices
from planner.cost.pricing import price
from planner.cost.sizes import Sizes
from planner.data.load import build_problem, load_model
from planner.data.model_spec import WITH_ATTENTION, ModelSpec
from planner.data.problem import Problem


def dense(**changes: object) -> ModelSpec:
    return load_model("llama3-8b").model_copy(update={"id": "made-up", **changes})


def fine_experts() -> ModelSpec:
    """512 small experts."""
    model = load_model("qwen3-235b-a22b")
    assert model.moe is not None
    moe = model.moe.model_copy(update={"num_experts": 512, "top_k": 10, "ffn_hidden_size": 512})
    return model.model_copy(update={"id": "made-up", "moe": moe})


MODELS = {
    "few words": dense(vocab_size=1024),
    "a million words": dense(vocab_size=1_000_000),
    "one key head": dense(num_query_groups=1),
    "wide heads": dense(head_dim=256, num_attention_heads=16, num_query_groups=16),
    "wide": dense(hidden_size=32768, ffn_hidden_size=131072, num_attention_heads=256, num_query_groups=16),
    "512 experts": fine_experts(),
    "latent": load_model("deepseek-v3"),
}
CHIPS = (
    ("h100-sxm-80gb", "fp8"),
    ("h20-96gb", "fp8"),
    ("mi300x-192gb", "bf16"),
    ("gb200-186gb", "nvfp4"),
    ("v100-sxm-32gb", "fp16"),
)
ROWS: tuple[dict[str, int | bool], ...] = (
    {},
    {"tensor_parallel": 16, "sequence_parallel": True},
    {"context_parallel": 16},
    {"expert_parallel": 64, "expert_tensor_parallel": 1},
)


def whole(prices: Prices, name: str) -> Floats:
    """Time of a pass of each kind of layer, all parts together."""
    return np.asarray(getattr(prices, name)[0, :, 0].sum(axis=-1))


def products_s(of: Problem, degrees: Degrees, kind: str) -> float:
    """Time of a layer's products and of half of all pairs of tokens at the chip's peaks."""
    precision, chip, sizes = of.workload.precision, of.chip_of(0), Sizes.single(of, degrees)
    half = chip.peak_flop_per_s("fp16" if precision == "fp16" else "bf16")
    peak = chip.peak_flop_per_s(precision)
    assert half is not None and peak is not None
    found = layer_matmuls(of.model, kind, sizes)  # type: ignore[arg-type]
    taken = sum(float(x.flop) / (peak if x.narrow else half) for x in found)
    if kind in WITH_ATTENTION:
        heads = of.model.num_attention_heads * sum(of.model.head_widths)
        taken += heads * float(sizes.tokens / sizes.tp) * of.workload.seq_length / half
    return taken


@pytest.mark.parametrize("name", MODELS)
def test_no_price_of_a_made_up_model_is_absurd(name: str) -> None:
    model = MODELS[name]
    for chip, precision in CHIPS:
        size = 4 if chip.startswith("gb") else 8
        of = build_problem(
            cluster=f"{512 // size}x{size} {chip}",
            model=model,
            seq_length=32768,
            global_batch_size=512,
            precision=precision,
        )
        for row in ROWS:
            if "expert_parallel" in row and model.moe is None:
                continue
            one, two = (
                Degrees.single(data_parallel=32, microbatch_size=b, **row)  # type: ignore[arg-type]
                for b in (1, 2)
            )
            prices, twice = price(of, one), price(of, two)
            for field in fields(Prices):
                value = getattr(prices, field.name)
                if isinstance(value, np.ndarray):
                    assert np.isfinite(value).all() and (value >= 0).all(), (chip, row, field.name)
            forward, backward = whole(prices, "layer_forward_s"), whole(prices, "layer_backward_s")
            least = np.array([products_s(of, one, kind) for kind in prices.kinds])
            assert (forward > least).all() and (backward > 1.99 * least).all(), (chip, row)
            # Two sequences take no less than one and, but for rows that meet other kernels, no more than two.
            for once, both in (
                (forward, whole(twice, "layer_forward_s")),
                (backward, whole(twice, "layer_backward_s")),
            ):
                assert (both >= once).all() and (both < 2.2 * once).all(), (chip, row)
