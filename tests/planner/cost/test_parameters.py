"""Parameter counts against published totals and against Megatron's own count of one model."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from planner.cost.parameters import (
    ParameterCounts,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
    total_parameters,
)
from planner.data.load import load_model, names

SHAPES = Path(__file__).parents[4] / "shared" / "instances_raw" / "models.yaml"

NO_PUBLISHED_TOTAL = {"aquila2-34b", "h2-100b", "sailor-gpt-neo-2.7b"}
"""Models of which only a rounded name is public."""

ROUNDED = {
    "gpt3-175b",
    "mt-nlg-530b",
    "glm-4.5",
    "glm-4.5-air",
    "nemotron-4-340b",
    "nemotron-h-8b",
    "nemotron-h-47b",
    "nemotron-h-56b",
    "nemotron-3-super-120b-a12b",
    "gemma3-12b-text",
    "gemma3-27b-text",
    "aquila2-7b",
    "aquila2-70b-expr",
    "sailor-opt-350m",
}
"""Models whose published total is rounded; all others must agree to the last digit."""


@pytest.mark.parametrize("name", names("models"))
def test_total_is_the_published_one(name):
    model = load_model(name)
    if name in NO_PUBLISHED_TOTAL:
        assert model.published_params is None
        return
    total = total_parameters(model)
    assert model.published_params is not None
    assert abs(total / model.published_params - 1) < 0.01
    if name not in ROUNDED:
        assert total == model.published_params


def test_llama3_70b_stages_hold_what_megatron_counts():
    # Parameters of one rank at tp 8, layers 15 + 25 + 25 + 15, as Megatron-LM 0.19 builds them on the
    # meta device. The vocabulary of 128,256 is padded to 129,024; without the padding the first
    # stage would lack 98,304 x 8 = 786,432 parameters a rank.
    model = load_model("llama3-70b")
    layer = layer_parameters(model, "dense").per_rank(8)
    vocab = padded_vocab(model.vocab_size, 8)
    assert vocab == 129_024
    assert layer == 106_971_136
    assert 25 * layer == 2_674_278_400
    assert 15 * layer + embedding_parameters(model, vocab).per_rank(8) == 1_736_687_616
    assert 15 * layer + head_parameters(model, vocab).per_rank(8) == 1_736_695_808


def test_norms_are_not_divided_by_tensor_parallelism():
    model = load_model("llama3-8b")
    assert layer_parameters(model, "dense").replicated == 2 * 4096
    assert head_parameters(model).replicated == 4096


def test_row_parallel_biases_live_on_every_rank():
    # GPT-2 XL, width 1600: two layer norms of two vectors, bias of the output map, bias of the second
    # feed-forward map. The biases of qkv (3 x 1600) and of the first map (6400) are divided.
    model = load_model("gpt2-xl")
    counts = layer_parameters(model, "dense")
    assert counts.replicated == 4 * 1600 + 1600 + 1600
    assert counts.tensor_sharded == 12 * 1600 * 1600 + 3 * 1600 + 6400


def test_latent_attention_holds_its_down_projections_whole():
    model = load_model("deepseek-v3")
    dense = layer_parameters(model, "dense")
    down = 7168 * (1536 + 512 + 64) + 1536 + 512
    assert dense.replicated == down + 2 * 7168
    moe = layer_parameters(model, "moe")
    assert moe.replicated == down + 2 * 7168 + 256 * 7168 + 256  # and the router with its bias
    assert moe.expert == 256 * 3 * 7168 * 2048
    # Layer norms have shifts, also between the projections: two more vectors of the block, one of each rank.
    shifted = layer_parameters(model.model_copy(update={"normalization": "layer"}), "dense")
    assert shifted.replicated == dense.replicated + 2 * 7168 + 1536 + 512


def test_experts_are_divided_by_the_expert_degrees_only():
    counts = ParameterCounts(tensor_sharded=80, replicated=3, expert=64)
    assert counts.per_rank(8) == 10 + 3 + 64
    assert counts.per_rank(8, expert_parallel=4, expert_tensor_parallel=2) == 10 + 3 + 8
    assert (counts + counts.times(2)).total == 3 * counts.total


def test_tied_head_has_no_weights_of_its_own():
    model = load_model("gemma2-9b")
    assert head_parameters(model).total == model.hidden_size
    assert head_parameters(load_model("llama3-8b")).tensor_sharded == 128_256 * 4096


def test_learned_positions_belong_to_the_embedding_and_are_replicated():
    counts = embedding_parameters(load_model("gpt3-175b"))
    assert counts.replicated == 2048 * 12288
    assert counts.tensor_sharded == 50_257 * 12288


@pytest.mark.parametrize(
    ("vocab", "tp", "padded"),
    [(50_257, 8, 51_200), (128_256, 1, 128_256), (128_256, 8, 129_024), (1, 1, 128)],
)
def test_vocabulary_is_padded_to_a_multiple_of_128_per_rank(vocab, tp, padded):
    assert padded_vocab(vocab, tp) == padded


def test_multi_token_prediction_adds_one_layer_a_merge_and_three_norms():
    model = load_model("deepseek-v3")
    assert mtp_parameters(model).total == 11_610_068_224
    assert mtp_parameters(load_model("llama3-8b")).total == 0


@pytest.mark.skipif(not SHAPES.exists(), reason="the collected shapes lie outside the repository")
def test_every_kind_of_layer_has_the_parameters_of_the_collected_shapes():
    kinds = {"M": "mamba", "-": "mlp", "*": "attention"}
    for shape in yaml.safe_load(SHAPES.read_text())["models"]:
        model = load_model(shape["id"])
        for kind, count in shape["params_per_block"].items():
            assert layer_parameters(model, kinds.get(kind, kind)).total == count, (model.id, kind)
        assert embedding_parameters(model).total == shape["embedding_params"], model.id
        if "mtp" in shape:
            assert mtp_parameters(model).total == shape["mtp"]["computed_unique_params"], model.id
