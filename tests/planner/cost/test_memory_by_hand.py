"""Memory of a stage by term against a count of its own: tensors listed one by one, for unusual settings.

Weights are the modules' matrices and vectors on one rank; activations what autograd saves of Transformer
Engine's modules (their inputs and the outputs that attention reads), listed with their shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
import pytest

from planner.cost.memory.stage import memory_bytes
from planner.cost.prices import Degrees
from planner.cost.pricing import price
from planner.cost.stage import StageContent, in_flight_1f1b, in_flight_of_stages
from planner.data.load import load_model
from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem
from tests.planner.cost.problems import problem

INPUT = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
"""Bytes of a value that a product keeps: blocks of 32 (16) share a scale of one byte, of 128 one of four."""


@dataclass(frozen=True)
class Setting:
    """Degrees and batch of a stage."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    sp: bool = False
    mbs: int = 1
    seq: int = 2048
    precision: str = "bf16"
    dp_mode: str = "distopt"
    stages: int = 1
    stage: int = 0
    layers: int = 3
    recompute: str = "none"

    @property
    def tokens(self) -> float:
        return self.mbs * self.seq / self.cp

    @property
    def norm_tokens(self) -> float:
        return self.tokens / (self.tp if self.sp else 1)

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1


def terms(of: Problem, s: Setting) -> dict[str, float]:
    """Ours [bytes]; the layers are the last of the model."""
    degrees = Degrees.single(
        tensor_parallel=s.tp,
        context_parallel=s.cp,
        expert_parallel=s.ep,
        data_parallel=s.dp,
        microbatch_size=s.mbs,
        sequence_parallel=s.sp,
        dp_mode=s.dp_mode,
    )
    prices = price(of, degrees)
    kinds = tuple(prices.kinds.index(kind) for kind in of.model.kind_of_layer[-s.layers :])
    content = StageContent(0, (kinds,), s.stage == 0, s.is_last, s.recompute, s.layers)
    return memory_bytes(prices, 0, content, [in_flight_1f1b(s.stages, s.stage, 8)], s.stages)


def case(model: str, s: Setting, stack: str = "megatron-core") -> Problem:
    return problem("64x8 b200-180gb", model, s.seq, s.precision, stack)


def dense_parameters(m: ModelSpec, s: Setting) -> float:
    """Parameters of a rank's share of a stage of a gated model without biases, matrix by matrix."""
    d, vocab = m.head_dim, -(-m.vocab_size // (128 * s.tp)) * 128 * s.tp
    layer = [
        (m.hidden_size,),
        ((m.num_attention_heads + 2 * m.num_query_groups) * d / s.tp, m.hidden_size),
        (m.hidden_size, m.num_attention_heads * d / s.tp),
        (m.hidden_size,),
        (2 * m.ffn_hidden_size / s.tp, m.hidden_size),
        (m.hidden_size, m.ffn_hidden_size / s.tp),
    ]
    shapes = s.layers * layer
    if s.stage == 0:
        shapes.append((vocab / s.tp, m.hidden_size))
    if s.is_last:
        shapes.append((m.hidden_size,))
        if not m.tied_embeddings or s.stage > 0:
            shapes.append((vocab / s.tp, m.hidden_size))
    return float(sum(prod(shape) for shape in shapes))


def attention_saved(m: ModelSpec, s: Setting) -> float:
    """Of one attention with rotary positions [bytes]: every tensor with its width on the rank."""
    heads, groups, d, two = m.num_attention_heads, m.num_query_groups, m.head_dim, 2.0
    own_groups = max(groups / s.tp, 1.0)
    # The map's output lives on as the values' view: of all ranks where they have less than a group each.
    mixed = (heads + 2 * groups) * d if groups < s.tp else (heads + 2 * groups) / s.tp * d
    output = heads / s.tp * d
    tensors = [
        (s.tokens, mixed, two),
        (s.tokens, heads / s.tp * d, two),  # rotated queries
        (s.tokens, own_groups * d, two),  # rotated keys
        (s.tokens, output, two),
        (s.tokens, heads / s.tp, 4.0),  # statistics of the softmax
    ]
    if INPUT[s.precision] < 2:
        tensors.append((s.tokens, output, INPUT[s.precision]))  # once more, as input of the output map
    return sum(prod(tensor) for tensor in tensors)


def dense_saved(m: ModelSpec, s: Setting) -> float:
    """Of one dense layer [bytes]."""
    kept, h, f = INPUT[s.precision], m.hidden_size, m.ffn_hidden_size / s.tp
    tensors = [
        (s.norm_tokens, h, 2.0),  # residual before attention, which the norm keeps
        (s.norm_tokens, h, kept),  # its output, input of queries, keys and values
        (s.norm_tokens, h, 2.0),
        (s.norm_tokens, h, kept),
        (s.tokens, 2 * f, 2.0),  # gate and first map, which the activation keeps
        (s.tokens, f, kept),  # input of the second map
    ]
    return attention_saved(m, s) + sum(prod(tensor) for tensor in tensors)


SETTINGS = [
    Setting(),
    Setting(tp=16, sp=True, dp=4, mbs=2),
    Setting(tp=16),
    Setting(tp=2, cp=4, sp=True, dp=2, seq=8192, stages=4, stage=1),
    Setting(tp=8, sp=True, mbs=4, stages=4, stage=3, layers=1, dp_mode="ddp", dp=2),
    Setting(tp=4, sp=True, precision="fp8", stages=2, stage=0, dp=8),
    Setting(tp=4, precision="mxfp8", seq=4096, mbs=2, dp=2, dp_mode="ddp"),
    Setting(tp=2, sp=True, precision="fp8_block", dp=2),
    Setting(tp=1, cp=8, precision="nvfp4", seq=32768 // 4, layers=5, dp=2),
    Setting(tp=8, sp=True, recompute="full", stages=8, stage=2, dp=2),
    Setting(tp=1, recompute="full", mbs=8),
]


@pytest.mark.parametrize("vocab_size", [100, 128_256, 1_000_001])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("s", SETTINGS, ids=str)
def test_terms_of_a_dense_stage_equal_a_list_of_its_tensors(s: Setting, tied: bool, vocab_size: int) -> None:
    of = case("llama3-8b", s)
    m = of.model.model_copy(update={"tied_embeddings": tied, "vocab_size": vocab_size})
    of = of.model_copy(update={"model": m})
    found, n = terms(of, s), dense_parameters(m, s)
    shard = s.dp * s.cp if s.dp_mode == "distopt" else 1
    ends = dense_parameters(m, s) - dense_parameters(m.model_copy(update={"vocab_size": 0}), s)
    matrices = n - ends - (2 * s.layers + (1 if s.is_last else 0)) * m.hidden_size
    weight = 1.0 if s.precision == "fp8_block" else INPUT[s.precision]  # one scale for 128 x 128
    copies = 0.0 if s.precision == "bf16" else 2 * weight * matrices
    assert found["weights"] == pytest.approx(2 * n + copies)
    vocab = -(-vocab_size // (128 * s.tp)) * 128
    head_placeholder = 2 * vocab * m.hidden_size if s.is_last else 0.0
    assert found["gradients"] == pytest.approx(4 * n + head_placeholder)
    assert found["optimizer"] == pytest.approx(12 * n / shard)
    in_flight = min(8, s.stages - s.stage)
    values = s.norm_tokens * m.hidden_size
    kept = s.layers * (2 * values if s.recompute == "full" else dense_saved(m, s))
    kept += 8 * s.tokens if s.stage == 0 else 0.0  # token numbers
    kept += 4 * values if s.is_last else 0.0  # input and output of the final norm
    assert found["activations"] == pytest.approx(in_flight * kept)
    # 16-bit logits and an fp32 copy, which becomes the softmax and its gradient, or 16-bit gradients of
    # logits and of what is no share of the head's input; that, gathered; of the layers' weights a 16-bit
    # placeholder of each shape.
    whole = 2 * s.tokens * m.hidden_size
    loss = max(s.tokens * vocab * (2 + 4), s.tokens * vocab * 2 + whole - 2 * values)
    loss += whole if s.sp and s.tp > 1 else 0.0
    logits = loss + 2 * matrices / s.layers if s.is_last else 0.0
    passing = found["working"] + found["recompute"]
    few_groups = m.num_query_groups < s.tp  # queries, keys and values are made for a whole group
    near = pytest.approx(logits, rel=0.01 if few_groups else None)
    assert found["logits"] == near if passing == 0 else passing >= logits
    if s.recompute == "full" and passing:
        assert found["recompute"] == pytest.approx(dense_saved(m, s) - 2 * values)


@pytest.mark.parametrize(
    "s", [Setting(ep=8, dp=8), Setting(tp=2, sp=True, ep=4, dp=8, precision="fp8")], ids=str
)
def test_terms_of_an_expert_stage_equal_a_list_of_its_tensors(s: Setting) -> None:
    of = case("mixtral-8x7b", s)
    m, moe, kept = of.model, of.model.moe, INPUT[s.precision]
    assert moe is not None
    h, f, rows = m.hidden_size, moe.ffn_hidden_size, s.tokens / s.tp * moe.top_k
    tensors = [
        *((s.norm_tokens, h, width) for width in (2.0, kept, 2.0, kept)),
        (s.norm_tokens, moe.num_experts, 4.0),  # scores in fp32, of the auxiliary loss
        (s.norm_tokens, 2 * moe.num_experts, 4.0),  # places of rows, and numbers of experts
        (s.norm_tokens, moe.num_experts, 1.0),  # which experts a token goes to
        (rows, 3, 4.0),  # weight and places of every routed copy
        (rows, h, kept),
        (rows, 2 * f, 2.0),
        (rows, f, kept),
    ]
    saved = attention_saved(m, s) + sum(prod(tensor) for tensor in tensors)
    # Experts are whole on a rank: the width of one is not split (expert tensor parallelism 1).
    middle = replace(s, stages=4, stage=1)
    found = terms(of, middle)
    assert found["activations"] == pytest.approx(3 * s.layers * saved)
    dense = (m.num_attention_heads * 2 + 2 * m.num_query_groups) * m.head_dim / s.tp * h
    dense += 2 * h + h * moe.num_experts
    expert = 3 * h * f * moe.num_experts / s.ep
    assert found["gradients"] == pytest.approx(4 * s.layers * (dense + expert))
    ranks = s.tp * s.cp * s.dp
    assert found["optimizer"] == pytest.approx(
        12 * s.layers * (dense / (s.dp * s.cp) + expert / (ranks / s.ep))
    )


def test_latent_attention_keeps_low_ranks_and_what_they_make() -> None:
    s = Setting(tp=4, sp=True, stages=4, stage=1, layers=1, dp=2)
    of = case("deepseek-v2-lite", s)
    kinds = ("dense",) * of.model.num_layers
    m = load_model("deepseek-v2-lite").model_copy(update={"moe": None})
    assert m.mla is not None and m.kind_of_layer == kinds
    heads, mla = m.num_attention_heads / s.tp, m.mla
    assert mla.q_lora_rank is None
    nope, rope, value = mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim
    tensors = [
        (s.norm_tokens, mla.kv_lora_rank + rope),  # output of the down-projection, and its norm's
        (s.norm_tokens, mla.kv_lora_rank),
        (s.tokens, heads * (nope + rope)),  # queries and keys, joined with their rotated parts
        (s.tokens, heads * (nope + rope)),
        (s.tokens, heads * (nope + value)),  # output of the up-projection, of which values are a view
        (s.tokens, heads * value),
        *((s.norm_tokens, m.hidden_size) for _ in range(4)),
        (s.tokens, 3 * m.ffn_hidden_size / s.tp),
    ]
    saved = sum(2 * prod(tensor) for tensor in tensors) + 4 * s.tokens * heads
    found = terms(of.model_copy(update={"model": m}), s)
    assert found["activations"] == pytest.approx(3 * saved)


def random_setting(rng: np.random.Generator, recompute: str, *, experts: bool) -> Setting:
    """Degrees, mode and format at random."""
    num_stages = int(rng.choice([1, 2, 8]))
    return Setting(
        tp=int(rng.choice([1, 2, 8, 16])),
        cp=int(rng.choice([1, 2, 4])),
        ep=int(rng.choice([1, 2, 8])) if experts else 1,
        dp=int(rng.choice([1, 8])),
        sp=bool(rng.random() < 0.7),
        seq=1024,
        precision=str(rng.choice(["bf16", "fp8", "mxfp8", "nvfp4"])),
        dp_mode=str(rng.choice(["ddp", "distopt", "zero2", "zero3", "fsdp"])),
        stages=num_stages,
        stage=int(rng.integers(num_stages)),
        layers=int(rng.integers(1, 4)),
        recompute=recompute,
    )


def test_more_of_anything_never_takes_less_memory() -> None:
    """Sequence, micro-batch, layers: on random settings of several models and stacks."""
    rng = np.random.default_rng(0)
    models = ("llama3-8b", "mixtral-8x7b", "deepseek-v3", "gemma2-9b", "nemotron-h-8b")
    stacks = ("megatron-core", "megatron-2022", "torchtitan")
    for model, stack, recompute in product(models, stacks, ("none", "selective", "full")):
        least = random_setting(rng, recompute, experts=load_model(model).moe is not None)
        of = case(model, least, stack)
        more = (
            (case(model, replace(least, seq=2048), stack), replace(least, seq=2048)),
            (of, replace(least, mbs=2)),
            (of, replace(least, layers=least.layers + 1)),
        )
        total = sum(terms(of, least).values()) * (1 - 1e-9)
        for other, setting in more:
            assert sum(terms(other, setting).values()) >= total, (model, stack, setting)


def passing_bytes(m: ModelSpec, s: Setting) -> float:
    """The most that the backward of a dense layer makes for a while: gradients of a gated unit's two halves,
    once the second map's input is gone and its gradient made, beside two of the residual stream."""
    f = m.ffn_hidden_size / s.tp
    tensors = [(2, m.hidden_size, 2.0), (1, f, -2.0), (1, f, 2.0), (2, f, 2.0)]
    return s.tokens * sum(prod(tensor) for tensor in tensors)


def test_a_layers_backward_passes_the_gradients_that_are_there_at_once() -> None:
    s = Setting(tp=2, sp=True, stages=2, stage=1)
    of = case("llama3-8b", s, "megatron-flagperf")
    assert terms(of, replace(s, stages=4))["working"] == pytest.approx(passing_bytes(of.model, s))


def test_products_that_do_not_add_to_the_sum_make_a_gradient_of_their_own() -> None:
    s = Setting(tp=2, sp=True, stages=4, stage=1)
    of = case("llama3-8b", s)
    alone = of.model_copy(
        update={"stack": of.stack.model_copy(update={"gradient_accumulation_fusion": False})}
    )
    m = of.model
    largest = 2 * m.ffn_hidden_size / s.tp * m.hidden_size * 2.0
    assert terms(alone, s)["working"] == pytest.approx(passing_bytes(m, s) + largest)
    assert terms(alone, replace(s, dp=8, dp_mode="fsdp"))["working"] == pytest.approx(
        # Full sharding: gathered weights of two layers, a layer's gradient, and its copy that is scattered.
        passing_bytes(m, s) + (2 + 2 + 2 + 2) * (dense_parameters(m, replace(s, layers=1)))
    )


def test_a_short_micro_batch_peaks_in_the_embeddings_backward() -> None:
    """Its table's 16-bit gradient, of those of all ranks' values, when a layer's activations are gone."""
    s = Setting(tp=2, sp=True, seq=512, stages=4, stage=0, layers=1, recompute="full")
    of = case("llama3-8b", s)
    m, found = of.model, terms(of, s)
    vocab = -(-m.vocab_size // (128 * s.tp)) * 128
    placeholders = 2 * (dense_parameters(m, replace(s, stage=1)) - 2 * m.hidden_size)
    made = 2 * vocab * m.hidden_size + 2 * s.tokens * m.hidden_size + placeholders
    gone = 8 * s.tokens + 2 * s.norm_tokens * m.hidden_size  # token numbers, the layer's input
    assert found["working"] == pytest.approx(made - gone)
    assert found["recompute"] == found["logits"] == 0
    # Near-miss: a stage without the embedding peaks in its layer.
    assert terms(of, replace(s, stage=1))["recompute"] > 0


def test_the_optimizers_step_copies_gradients_that_are_summed_in_16_bits() -> None:
    s = Setting(tp=1, seq=512, stages=4, stage=1, layers=8, recompute="full", dp=2)
    of = case("llama3-8b", s, "megatron-bridge")
    m, n, found = of.model, dense_parameters(case("llama3-8b", s).model, s), terms(of, s)
    assert found["gradients"] == pytest.approx((2 + 4 / s.dp) * n)
    assert found["activations"] == found["recompute"] == 0
    assert found["working"] == pytest.approx(2 * (n / s.layers - 2 * m.hidden_size))  # placeholders stay
    # Near-misses: sums in fp32 are read as they are, and long sequences peak in a backward.
    wide = of.model_copy(update={"stack": of.stack.model_copy(update={"gradient_bytes": 4.0})})
    assert terms(wide, s)["gradients"] == pytest.approx(4 * n)
    assert terms(of, replace(s, mbs=64))["gradients"] == pytest.approx(2 * n)
    assert terms(of, replace(s, dp_mode="ddp"))["gradients"] == pytest.approx((2 + 4) * n)


@pytest.mark.parametrize("planned", [False, True])
def test_stages_hold_together_what_each_holds(planned: bool) -> None:
    for p, m in [(1, 1), (1, 5), (4, 1), (4, 3), (4, 9)]:
        together = in_flight_of_stages(p, m, planned=planned).tolist()
        assert together == [in_flight_1f1b(p, s, m, planned=planned) for s in range(p)], (p, m)
