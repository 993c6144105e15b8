"""Bytes of memory-bound operators against counts by hand."""

from __future__ import annotations

import pytest

from planner.cost.communication.networks import network_of
from planner.cost.kernels.attention_traffic import attention_traffic
from planner.cost.kernels.gated_units import plain_gated_s
from planner.cost.kernels.mamba import mamba_bytes, mamba_traffic
from planner.cost.kernels.operators import layer_matmuls
from planner.cost.kernels.softmax import is_fused, kept_of_a_score, more_launches
from planner.cost.kernels.traffic import (
    Traffic,
    layer_traffic,
    ring_traffic,
    score_traffic,
    selective_traffic,
)
from planner.cost.kernels.traffic_of_ends import head_traffic
from planner.cost.memory.attention_buffers import context_exchange_bytes
from planner.cost.prices import Degrees
from planner.cost.sizes import Sizes
from planner.data.load import load_stack
from tests.planner.cost.problems import prices, problem, with_stack

SIXTEEN_BITS = {"fused_softmax": False, "softmax_in_fp32": False}


def test_scores_in_16_bits_are_masked_normalised_and_dropped() -> None:
    of = problem(model="llama2-7b", seq_length=1024)
    sizes = Sizes.single(of, Degrees.single())
    stack = of.stack.model_copy(update={"dropout": True, **SIXTEEN_BITS})
    moved = score_traffic(of.model, stack, sizes)
    scores = 32 * 1024 * 1024
    # Mask in place: 2 + 2 and the mask; softmax 2 + 2; dropout 2 + 2 and its mask.
    assert moved.forward_bytes == (5 + 4 + 5) * scores
    # Dropout 2 + 2 + 1; softmax reads two and writes one; the gradient is copied, then masked: 4 + 4 + 1.
    assert moved.backward_bytes == (5 + 6 + 9) * scores


def test_a_softmax_that_applies_dropout_draws_its_mask_before_and_reads_it_both_ways() -> None:
    of = with_stack(problem(model="llama2-7b", seq_length=1024, stack="oneflow"), fused_softmax=True)
    moved = score_traffic(of.model, of.stack, Sizes.single(of, Degrees.single()))
    scores = 32 * 1024 * 1024
    assert moved.forward_bytes == (1 + 1 + 2 + 2 + 2) * scores
    assert moved.backward_bytes == (2 + 2 + 1 + 2) * scores


def test_two_heads_of_one_sequence_have_no_fused_softmax() -> None:
    # Megatron-LM's kernel takes four score matrices at a time (fused_softmax.py, is_kernel_available).
    of = problem(model="gpt3-175b", seq_length=1024)
    model = of.model.model_copy(update={"num_attention_heads": 16})
    stack = of.stack.model_copy(update={"flash_attention": False})
    one, two = (
        Sizes.single(of, Degrees.single(tensor_parallel=8, microbatch_size=sequences)) for sequences in (1, 2)
    )
    assert not is_fused(model, stack, one)
    assert is_fused(model, stack, two)
    scores = 2 * 1024 * 1024
    assert score_traffic(model, stack, one).forward_bytes == 37 * scores
    assert score_traffic(model, stack, two).forward_bytes == 4 * 2 * scores
    # Cast, scale, mask and cast back are launches of their own, and fp32 probabilities stay.
    assert more_launches(model, stack, one) == 4
    assert more_launches(model, stack, two) == 0
    assert kept_of_a_score(model, stack, one) == 2 + 4
    assert kept_of_a_score(model, stack, two) == 2


@pytest.mark.parametrize(
    ("stack", "longest"), [("megatron-core", 8192), ("megatron-2022", 4096), ("sailor", 4096)]
)
def test_a_softmax_over_many_columns_is_not_fused(stack: str, longest: int) -> None:
    """Transformer Engine's kernel takes fewer than 16,384, Megatron-LM's own up to 4,096."""
    for seq_length in (4096, 8192, 16384):
        of = problem(model="llama3-8b", seq_length=seq_length)
        software = load_stack(stack).model_copy(update={"flash_attention": False})
        fused = is_fused(of.model, software, Sizes.single(of, Degrees.single()))
        assert fused == (seq_length <= longest)


def test_attention_with_sinks_has_no_fused_softmax() -> None:
    """Their column is put beside the scores, whose number is then no multiple of eight."""
    of = with_stack(problem(model="gpt-oss-20b", seq_length=4096), flash_attention=False)
    assert not is_fused(of.model, of.stack, Sizes.single(of, Degrees.single()))


def test_grouped_keys_and_values_are_repeated_for_scores_in_memory() -> None:
    """Written and read once for each of 32 heads, as there are 8 of either."""
    of = problem(model="llama3-8b", seq_length=4096)
    sizes, plain = Sizes.single(of, Degrees.single()), of.stack.model_copy(update={"flash_attention": False})
    fused, repeated = (layer_traffic(of.model, "dense", stack, sizes) for stack in (of.stack, plain))
    # Before fused attention queries and values are copied instead.
    assert repeated.forward_bytes - fused.forward_bytes == 4096 * (32 + 8 - 32 - 8) * 128 * 2 * 2
    assert repeated.backward_bytes - fused.backward_bytes == 4096 * (32 + 8 - 32 - 16) * 128 * 2 * 2
    many = of.model.model_copy(update={"num_query_groups": 32})
    fused, repeated = (layer_traffic(many, "dense", stack, sizes) for stack in (of.stack, plain))
    # Of as many keys only values are, as positions have made new queries.
    assert fused.forward_bytes - repeated.forward_bytes == 4096 * 32 * 128 * 2 * 2


def test_latent_attention_turns_shares_of_heads_alone_and_writes_keys_and_values_once() -> None:
    """Of 128 heads of DeepSeek-V3 64 of 192 values are turned in place, 256 read, and 192 and 128 written."""
    of = problem(model="deepseek-v3", seq_length=4096)
    sizes = Sizes.single(of, Degrees.single())
    latent = 4096 * (1536 + 512)
    fused = attention_traffic(of.model, of.stack, sizes)
    assert fused[0] == 4096 * 128 * 2 * (2 * 64 + 256 + 192 + 128) + latent * 4
    assert fused[1] - fused[0] == latent * 2
    plain = attention_traffic(of.model, of.stack.model_copy(update={"fused_latent_rotary": False}), sizes)
    # Queries and keys are joined, values copied, each of 192, 192 and 128; 28 bytes turn one of 64 values.
    assert plain[0] == 4096 * 128 * (4 * (192 + 192 + 128) + 28 * 64) + latent * 4


def test_up_projections_of_latent_attention_turn_and_copy_again() -> None:
    of = problem(model="deepseek-v3", seq_length=4096)
    sizes = Sizes.single(of, Degrees.single())
    stack = of.stack.model_copy(update={"selective_modules": ("mla_up_proj",)})
    again = selective_traffic(of.model, "dense", stack, sizes)
    assert again == attention_traffic(of.model, of.stack, sizes)[0]


def test_a_loss_of_plain_operators_passes_over_its_logits_many_times() -> None:
    of = problem(model="llama2-7b", seq_length=1024)
    sizes = Sizes.single(of, Degrees.single())
    moved = head_traffic(of.model, of.stack, 1000.0, sizes)
    norm, logits = 1024 * of.model.hidden_size, 1024 * 1000
    # To fp32 (2 + 4), largest (4), minus it (8), exponentials (8), their sum (4), over it (8).
    assert moved.forward_bytes == 4 * norm + (6 + 4 + 8 + 8 + 4 + 8) * logits
    # Times the loss's gradient (8), to 16 bits (4 + 2).
    assert moved.backward_bytes == 6 * norm + (8 + 6) * logits


def test_a_fused_loss_over_fp32_logits_casts_them_and_their_gradient() -> None:
    of = with_stack(problem(seq_length=1024), fused_cross_entropy=True)
    wide = with_stack(of, loss_in_fp32=True)
    sizes = Sizes.single(of, Degrees.single())
    a, b = (head_traffic(x.model, x.stack, 1000.0, sizes) for x in (of, wide))
    # To fp32 (2 + 4), read twice (8); overwritten by the gradient (4 + 4), that to 16 bits (4 + 2).
    assert b.forward_bytes - a.forward_bytes == (6 + 8 - 8) * 1024 * 1000
    assert b.backward_bytes - a.backward_bytes == (8 + 6 - 4) * 1024 * 1000


def test_a_loss_that_is_fused_over_whole_logits_alone_passes_over_those_less_often() -> None:
    of = with_stack(problem(seq_length=1024), whole_loss_bytes_per_logit=6)
    plain, fused = (with_stack(of, whole_loss_bytes_per_logit=None, fused_cross_entropy=f) for f in (0, 1))
    for tp, like in ((1, fused), (2, plain)):
        sizes = Sizes.single(of, Degrees.single(tensor_parallel=tp))
        found, same = (head_traffic(x.model, x.stack, 1000.0, sizes) for x in (of, like))
        assert found == same


def test_a_loss_over_gathered_logits_passes_over_those_of_all_ranks() -> None:
    of = problem(model="llama2-7b", seq_length=1024)
    gathers = with_stack(of, gathers_logits=True)
    sizes, alone = (Sizes.single(of, Degrees.single(tensor_parallel=tp)) for tp in (2, 1))
    a, b = (head_traffic(x.model, x.stack, 1000.0, sizes) for x in (of, gathers))
    own, whole = 1024 * 500, 1024 * 1000
    # Each is copied into order (2 + 2) and goes through the loss of 38 and 14; the own share is cut out.
    assert b.forward_bytes - a.forward_bytes == (4 + 38) * whole - 38 * own
    assert b.backward_bytes - a.backward_bytes == 14 * whole + 4 * own - 14 * own
    assert head_traffic(of.model, gathers.stack, 1000.0, alone) == head_traffic(
        of.model, of.stack, 1000.0, alone
    )


def test_norms_that_read_fp32_cast_their_input_and_its_gradient() -> None:
    wide, narrow = (of_layer(fused_pointwise=True, norms_read_fp32=cast) for cast in (True, False))
    # In either of two norms: cast (2 + 4), 4 read for 2; backward two values of 4 for 2, cast (4 + 2).
    assert wide.forward_bytes - narrow.forward_bytes == 2 * (6 + 2) * VALUES
    assert wide.backward_bytes - narrow.backward_bytes == 2 * (2 + 2 + 6) * VALUES


def test_norms_again_in_fp32_cast_their_input_again() -> None:
    of = with_stack(problem(seq_length=1024), selective_modules=("layernorm",))
    s = Sizes.single(of, Degrees.single())
    narrow, wide = (
        selective_traffic(of.model, "dense", with_stack(of, norms_read_fp32=cast).stack, s)
        for cast in (False, True)
    )
    assert narrow == 2 * 4 * 1024 * of.model.hidden_size
    assert wide == 2 * 12 * 1024 * of.model.hidden_size


def test_metrics_of_training_take_the_loss_of_every_microbatch_once_more() -> None:
    of = problem(model="llama2-7b", seq_length=1024)
    sizes = Sizes.single(of, Degrees.single())
    plain, two = (of.stack.model_copy(update={"metric_bytes_per_logit": n}) for n in (0.0, 28.0))
    a, b = (head_traffic(of.model, stack, 1000.0, sizes) for stack in (plain, two))
    # To fp32 (2 + 4), log-softmax (4 + 4), for each; no gradient.
    assert b.forward_bytes - a.forward_bytes == 2 * (6 + 8) * 1024 * 1000
    assert b.backward_bytes == a.backward_bytes


def test_blocks_around_a_ring_are_scaled_and_added_once_each() -> None:
    """Two ranks: one block of each rank's own, and one that came from the rank before or after."""
    of = problem(model="llama3-8b")
    s = Sizes.single(of, Degrees.single(context_parallel=2, tensor_parallel=2))
    tokens, queries, keys = 4096 / 2, 32 / 2 * 128, 8 / 2 * 128
    moved = ring_traffic(of.model, of.stack, s, 2.0)
    # Joined keys and values: 2 tensors read and written, 2 bytes each. Output: scaled (read, write), then
    # read with the block that is added, and written; on half of the ranks for half of the rows.
    added = (6 + 3) / 2
    assert moved.forward_bytes == tokens * (8 * keys + (4 + added) * queries)
    assert moved.backward_bytes == tokens * ((4 + added) * queries + (2 * 8 + 2 * added) * keys)
    alone = ring_traffic(of.model, of.stack, s, 1.0)
    assert alone.forward_bytes == alone.backward_bytes == 0.0


def test_repeated_keys_and_values_are_exchanged_for_every_head() -> None:
    # torchtitan and fms-fsdp repeat them before attention; grouped ones were priced.
    of = problem(model="llama3-8b")
    grouped, repeated = (of.stack.model_copy(update={"repeats_groups": yes}) for yes in (False, True))
    s = Sizes.single(of, Degrees.single(context_parallel=2))
    (a, _), (b, _) = (attention_traffic(of.model, stack, s) for stack in (grouped, repeated))
    assert b - a == 2048 * (32 + 8) * 128 * 2 * 2
    (a, b) = (ring_traffic(of.model, stack, s, 2.0).forward_bytes for stack in (grouped, repeated))
    assert b - a == 2048 * 8 * (32 - 8) * 128
    (a, b) = (context_exchange_bytes(of.model, stack, s) for stack in (grouped, repeated))
    assert b - a == 2 * 2048 * 2 * (32 - 8) * 2 * 128


def test_keys_and_values_that_are_gathered_first_leave_no_blocks_to_join() -> None:
    def core_s(kind: str) -> float:
        of = problem(model="llama3-8b", seq_length=32_768)
        of = of.model_copy(update={"stack": of.stack.model_copy(update={"cp_exchange": kind})})
        return float(prices(of, context_parallel=4).layer_selective_s[0, 0, 0, 0])

    assert core_s("p2p") > core_s("all_gather")


def of_layer(**changes: bool) -> Traffic:
    """Traffic of one layer of GPT-3 on a stack that differs in some fields."""
    of = problem(model="gpt3-175b", seq_length=1024)
    stack = of.stack.model_copy(update={"dropout": True, "fused_pointwise": False, **changes})
    return layer_traffic(of.model, "dense", stack, Sizes.single(of, Degrees.single()))


VALUES = 1024 * 12288
"""Values of an activation of that layer."""


def test_biases_of_their_own_kernels_are_read_written_and_their_gradients_summed() -> None:
    taken_along, alone = of_layer(), of_layer(biases_in_products=False)
    # Queries, keys and values, and both maps back to the residual stream: five widths of the model.
    assert alone.forward_bytes - taken_along.forward_bytes == 5 * 4 * VALUES
    assert alone.backward_bytes - taken_along.backward_bytes == 5 * 2 * VALUES


def test_plain_modules_pass_over_their_values_in_fp32() -> None:
    of = problem(model="llama3-8b", seq_length=1024)
    sizes = Sizes.single(of, Degrees.single())
    plain, fused = (
        of.stack.model_copy(update={"fused_pointwise": False, "plain_modules": plain})
        for plain in (True, False)
    )
    a, b = (layer_traffic(of.model, "dense", stack, sizes) for stack in (plain, fused))
    values, queries, keys = 1024 * 4096, 1024 * 4096, 1024 * 1024
    # Two norms, 36 and 84 bytes a value, for 1.5 and 2.6 times what PyTorch's own must move; positions 20 by
    # plain operators of either kind; keys repeated for every head, as values are: read and written.
    attention = 2 * 2 * (queries + keys)
    assert a.forward_bytes - b.forward_bytes == pytest.approx(2 * values * (36 - 4 * 1.5) + attention)
    assert a.backward_bytes - b.backward_bytes == pytest.approx(2 * values * (84 - 6 * 2.6) + attention)


def test_scores_in_memory_put_results_in_order_and_join_gradients() -> None:
    fused, scores = of_layer(), of_layer(flash_attention=False)
    # The result is copied; three gradients are joined, two of them scaled before.
    assert scores.forward_bytes - fused.forward_bytes == 4 * VALUES
    assert scores.backward_bytes - fused.backward_bytes == (3 + 2) * 4 * VALUES


def test_dropout_of_its_own_reads_and_writes_both_ways() -> None:
    with_dropout, without = of_layer(), of_layer(dropout=False)
    # In either of two blocks: read, written, and the mask of a byte.
    assert with_dropout.forward_bytes - without.forward_bytes == 2 * (4 + 1) * VALUES
    assert with_dropout.backward_bytes - without.backward_bytes == 2 * (4 + 1) * VALUES


def test_maps_of_their_own_do_the_same_work_and_add_the_gradients_of_their_input() -> None:
    of = problem(stack="torchtitan")
    joined = with_stack(of, joined_maps="all")
    s = Sizes.single(of, Degrees.single())
    apart, together = (layer_matmuls(of.model, "dense", s, kept) for kept in ("none", "all"))
    assert [x.name for x in apart] == ["qkv"] * 3 + ["proj"] + ["fc1"] * 2 + ["fc2"]
    assert [x.input_again for x in apart] == [False, True, True, False, False, True, False]
    assert sum(x.flop for x in apart) == pytest.approx(sum(x.flop for x in together))
    gate = layer_matmuls(of.model, "dense", s, "attention")
    assert [x.name for x in gate] == ["qkv", "proj", "fc1", "fc1", "fc2"]
    # Three gradients and two are read, their sums written.
    more = [layer_traffic(x.model, "dense", x.stack, s).backward_bytes for x in (of, joined)]
    assert more[0] - more[1] == pytest.approx(s.tokens * of.model.hidden_size * 2 * (4 + 3))
    eager = [
        layer_traffic(x.model, "dense", with_stack(x, fused_pointwise=False).stack, s).backward_bytes
        for x in (of, joined)
    ]
    assert eager[0] - eager[1] == pytest.approx(s.tokens * of.model.hidden_size * 2 * 3 * (2 + 1))
    # Narrow maps wait for their input, which each of them reads.
    narrow = [
        prices(x, tensor_parallel=8, microbatch_size=8).layer_forward_s[0, 0, 0, 0] for x in (of, joined)
    ]
    assert narrow[0] > 1.02 * narrow[1]


def test_sorting_that_loops_over_all_experts_is_slow_where_few_of_many_are_chosen() -> None:
    def sorted_bytes(model: str, loops: bool) -> float:
        of = with_stack(problem(model=model), moe_permute_loops=loops)
        sizes = Sizes.single(of, Degrees.single(data_parallel=32, expert_parallel=8))
        return float(layer_traffic(of.model, "moe", of.stack, sizes).forward_bytes)

    # Sorting and its reverse each read a token and write 8 copies, or the other way round; of 256 experts the
    # loops took ten times as long.
    tokens = 2 * 4096 * 7168
    more = sorted_bytes("deepseek-v3", True) - sorted_bytes("deepseek-v3", False)
    assert more == pytest.approx(9 * 2 * (1 + 8) * tokens)
    # With 2 of 8 experts the loops take less than the copies.
    assert sorted_bytes("mixtral-8x7b", True) == sorted_bytes("mixtral-8x7b", False)


def test_rows_of_narrow_experts_are_padded_where_nothing_else_does_it() -> None:
    def moved(narrow: bool, **changes: object) -> float:
        of = with_stack(problem(model="mixtral-8x7b"), **{"pads_narrow_experts": True, **changes})
        sizes = Sizes.single(of, Degrees.single(data_parallel=32, expert_parallel=8))
        return float(layer_traffic(of.model, "moe", of.stack, sizes, narrow).forward_bytes)

    assert moved(True) - moved(False) == pytest.approx(
        2 * 4096 * 4096 * 8
    )  # two rows a token, there and back
    assert moved(True, pads_narrow_experts=False) == moved(False)
    hybrid = {"moe_dispatcher": "deduplicating", "dispatcher_library": "hybridep"}
    assert moved(True, **hybrid) == moved(False, **hybrid)


@pytest.mark.parametrize(("chip", "is_slower"), [("h200-sxm-141gb", True), ("v100-sxm-32gb", False)])
def test_plain_gated_units_take_what_their_kernels_do_where_memory_is_fast(
    chip: str, is_slower: bool
) -> None:
    precision = "bf16" if is_slower else "fp16"
    of = with_stack(problem(cluster=f"1x8 {chip}", precision=precision), fused_pointwise=False)
    relative, sizes = network_of(of, 0).relative, Sizes.single(of, Degrees.single(tensor_parallel=8))

    def beside_s(**changes: object) -> tuple[float, float]:
        stack = of.stack.model_copy(update=changes)
        forward, backward = plain_gated_s(relative, of.model, "dense", stack, sizes)
        return float(forward), float(backward)

    values, rate = 4096 * 14336 / 8, relative.memory_bytes_per_s
    own = (values / 2.42e11 - values * 10 / rate, values / 7.9e10 - values * 18 / rate)
    assert beside_s() == pytest.approx(own if is_slower else (0.0, 0.0))
    assert beside_s(fused_pointwise=True) == (0.0, 0.0)


def test_positions_and_norms_of_heads_by_plain_operators_pass_over_memory_as_counted() -> None:
    # Both were taken as 2.5 times a fused kernel, whose norm of heads wrote as much back as it read.
    of = problem(model="qwen3-32b", seq_length=1024)
    sizes, values = Sizes.single(of, Degrees.single()), 1024 * (64 + 8) * 128

    def moved(*, normed: bool = True, **changes: object) -> tuple[float, float]:
        model = of.model.model_copy(update={"qk_norm": normed})
        forward, backward = attention_traffic(model, of.stack.model_copy(update=changes), sizes)
        return float(forward), float(backward)

    apart = [a - b for a, b in zip(moved(), moved(normed=False), strict=True)]
    assert apart == [values * 4, values * 6]
    plain = [a - b for a, b in zip(moved(fused_pointwise=False), moved(), strict=True)]
    # Half negated 2, joined 4, two products 8, sum 6; PyTorch's norms take 1.5 and 2.6 times a copy's time.
    assert plain == pytest.approx([values * (20 - 4 + 6 - 4), values * (20 - 4 + 2.6 * 6 - 6)])


def test_mamba_layers_move_and_keep_what_their_kernels_do() -> None:
    # They moved 12 and 24 times inputs and states, and passed as much in their backward as they kept.
    of = problem(model="nemotron-3-nano-30b-a3b", seq_length=1024)
    inner, state, scores = 64 * 64, 2 * 8 * 128, 2 * 8 * 128  # as many states as tokens in a chunk
    one = Sizes.single(of, Degrees.single())
    assert mamba_traffic(of.model, one) == (
        1024 * 2 * (15 * inner + 4 * state + 2 * scores),
        1024 * 2 * (42 * inner + 14.5 * state + 6 * scores),
    )
    assert mamba_bytes(of.model, one) == (
        1024 * 2 * (5 * inner + state),
        1024 * 2 * (10 * inner + 2 * state + scores),
    )
    two = Sizes.single(of, Degrees.single(microbatch_size=2))
    turned = [
        b - 2 * a for a, b in zip(mamba_traffic(of.model, one), mamba_traffic(of.model, two), strict=True)
    ]
    assert turned == [2048 * 2 * (6 * inner + 2 * state)] * 2
    # C times B once for each of 8 groups, values, states and C times states for each of 64 heads.
    scan = {x.name: x.flop for x in layer_matmuls(of.model, "mamba", one) if x.name.startswith("scan")}
    by_heads = 2 * 1024 * 128 * 64 * 64
    assert scan == {
        "scan_scores": 2 * 1024 * 128 * 128 * 8,
        **dict.fromkeys(("scan_values", "scan_states", "scan_outputs"), by_heads),
    }
