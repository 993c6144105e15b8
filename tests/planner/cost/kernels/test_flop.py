"""FLOP against counts by hand and published figures."""

from __future__ import annotations

import pytest

from planner.cost.kernels.flop import (
    attention_scores_flop,
    feed_forward_flop,
    head_flop,
    layer_flop,
    model_flop_per_step,
)
from planner.cost.parameters import layer_parameters
from planner.data.load import load_model
from tests.planner.cost.problems import problem


def test_a_dense_layer_is_two_flop_a_parameter_and_token_and_the_scores() -> None:
    model = load_model("llama3-8b")
    tokens = 4096.0
    products = layer_parameters(model, "dense").tensor_sharded
    expected = 2 * tokens * products + attention_scores_flop(model, tokens)
    assert layer_flop(model, "dense", tokens) == pytest.approx(expected)


def test_causal_scores_are_half_of_both_score_products() -> None:
    # 32 heads of 128 over 4,096 tokens: 2 products of 2 s^2 128 FLOP a head, halved.
    model = load_model("llama3-8b")
    assert attention_scores_flop(model, 4096.0) == 32 * 2 * 2 * 4096**2 * 128 / 2


def test_a_gate_makes_three_matrices() -> None:
    model = load_model("llama3-8b")
    assert feed_forward_flop(model, 14336, 1.0) == 3 * 2 * 4096 * 14336


def test_a_step_of_llama3_8b_is_about_six_flop_a_parameter_and_token() -> None:
    of = problem()
    tokens = of.workload.tokens_per_step
    embedding = of.model.vocab_size * of.model.hidden_size
    # Near-miss: counting the embedding's rows as a product would add 6.5%.
    weights = 8.03e9 - embedding
    scores = 3 * 32 * attention_scores_flop(of.model, 4096.0) * 64
    assert model_flop_per_step(of) == pytest.approx(6 * weights * tokens + scores, rel=2e-3)


def test_only_visited_experts_count() -> None:
    model = load_model("mixtral-8x7b")
    dense = layer_flop(model, "moe", 4096.0) - attention_scores_flop(model, 4096.0)
    # Two of eight experts of three 4,096 x 14,336 matrices, attention maps, router.
    attention = 2 * 4096 * (4096 * 4096 * 2 + 2 * 4096 * 1024)
    experts = 2 * 4096 * 2 * 3 * 4096 * 14336
    router = 2 * 4096 * 8 * 4096
    assert dense == attention + experts + router


def test_the_head_counts_the_vocabulary_without_padding() -> None:
    model = load_model("llama3-8b")
    assert head_flop(model, 1.0) == 2 * 4096 * 128256


def test_gpt3_175b_matches_the_published_formula() -> None:
    # Narayanan et al. 2021, equation 3, without recomputation: 72 B s l h^2 (1 + s/(6h) + V/(12 l h)),
    # with the causal half of the scores: s/(12h).
    of = problem(model="gpt3-175b", seq_length=2048)
    m, s, batch = of.model, 2048, 64
    h, layers, vocab = m.hidden_size, m.num_layers, m.vocab_size
    formula = 72 * batch * s * layers * h**2 * (1 + s / (12 * h) + vocab / (12 * layers * h))
    assert model_flop_per_step(of) == pytest.approx(formula, rel=1e-9)
