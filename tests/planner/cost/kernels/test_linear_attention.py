"""Gated delta nets: parameters, times and memory against counts by hand and published kernel times."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from planner.cost.communication.collective_counts import tensor_blocks
from planner.cost.communication.networks import network_of
from planner.cost.kernels.flop import layer_flop
from planner.cost.kernels.linear_attention import linear_bytes, mixer_s, rule_bytes, rule_flop
from planner.cost.parameters import layer_parameters, mtp_parameters, total_parameters
from planner.cost.prices import PARTS, Degrees
from planner.cost.sizes import Sizes
from planner.cost.tensors import Divisors, layer_tensors
from planner.data.load import load_model
from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem
from tests.planner.cost.problems import prices, problem, with_stack

NEXT = load_model("qwen3-next-80b-a3b")
CP = PARTS.index("cp")


def of_heads(key_heads: int, value_heads: int) -> ModelSpec:
    """The shipped model with other heads of linear attention."""
    assert NEXT.linear_attention is not None
    heads = {"key_heads": key_heads, "value_heads": value_heads}
    return NEXT.model_copy(update={"linear_attention": NEXT.linear_attention.model_copy(update=heads)})


def sizes(of: Problem, **degrees: int | bool) -> Sizes:
    return Sizes.single(of, Degrees.single(**degrees))


def test_a_layer_has_the_parameters_of_the_published_one() -> None:
    # Width 2048; 16 heads of queries and keys, 32 of values and gates, 128 wide: one map to 12,288 and two
    # numbers a head, a convolution of 8,192 channels over 4 tokens, decay and its bias, a norm of one head.
    mixer = 2048 * (12_288 + 64) + 8192 * 4 + 2 * 32 + 4096 * 2048
    counts = layer_parameters(NEXT, "linear_moe")
    experts = 2048 * 512 + 2048  # router, and the gate of the shared expert
    assert counts.tensor_sharded == mixer + 3 * 2048 * 512
    assert counts.replicated == 128 + 2 * 2048 + experts
    # Gated attention: 16 heads of queries and gates and 2 of keys and values, 256 wide.
    full = layer_parameters(NEXT, "moe")
    assert full.tensor_sharded == 2048 * 256 * (2 * 16 + 2 * 2) + 16 * 256 * 2048 + 3 * 2048 * 512
    assert full.expert == counts.expert == 512 * 3 * 2048 * 512


def test_a_layer_of_predictions_makes_the_published_checkpoint() -> None:
    predicting = ModelSpec.model_validate(NEXT.model_dump() | {"mtp_num_layers": 1})
    assert predicting.prediction_kinds == ("moe",)
    assert total_parameters(predicting) + mtp_parameters(predicting).total == 81_324_862_720


def test_linear_attention_in_every_layer_is_priced() -> None:
    """Without a layer of full attention, of which predictions would be; once an error of ours."""
    assert NEXT.linear_attention is not None
    linear = NEXT.linear_attention.model_copy(update={"pattern": "L" * NEXT.num_layers})
    alone = ModelSpec.model_validate(NEXT.model_dump() | {"linear_attention": linear.model_dump()})
    priced = prices(problem(model="qwen3-next-80b-a3b").model_copy(update={"model": alone}))
    assert priced.kinds == ("linear_moe",) and (priced.layer_forward_s.sum() > 0).all()


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("normalization", ["rms", "layer"])
def test_tensors_of_a_rank_are_its_parameters(normalization: str, tp: int) -> None:
    model = NEXT.model_copy(update={"normalization": normalization})
    for kind in model.layer_kinds:
        held = sum(tensor.size for tensor in layer_tensors(model, kind, Divisors(tp, 8, 1)))
        assert held == layer_parameters(model, kind).per_rank(tp, 8, 1)
        assert tensor_blocks(model, kind) == 2


def test_flop_of_a_layer_are_those_that_megatron_counts() -> None:
    # training.py, num_floating_point_operations: in proj, conv1d, gated delta rule (v_heads v^2 4), out proj.
    mixer = 2048 * (2 * 2048 + 2 * 4096 + 2 * 32) + 4 * (2 * 2048 + 4096) + 32 * 128**2 * 4 + 2048 * 4096
    experts = 512 * 2048 + 10 * 3 * 512 * 2048 + 3 * 512 * 2048
    assert layer_flop(NEXT, "linear_moe", 1.0) == 2.0 * (mixer + experts)


def test_the_rule_multiplies_and_moves_what_its_kernels_do() -> None:
    linear = NEXT.linear_attention
    assert linear is not None
    # Heads of 128, chunks of 64: three products with a state, and 5 of the chunk's pairs; the inverse.
    forward = 3 * 128 * 128 + 64 * 128 * 5 + 64 * 64 / 3
    # kkt 1; solve; w, u 2; v_new, h; o: operands read and results written, in bytes.
    kkt, solve, w_u = 256 + 256, 256 + 128, 3 * 256 - 128 + 512
    states, out = 3 * 256 + 256 + 512, 3 * 256 + 512 + 256
    assert rule_flop(linear)[0] == pytest.approx(2 * forward)
    assert rule_bytes(linear)[0] == kkt + solve + w_u + states + out
    again, local, back = w_u + states, 4 * 256, 5 * 256 + 256 + 512
    gradients, wy, summed = 6 * 256 + 2 * 512 + 3 * 256, 4 * 256 + 128 + 2 * 256, 3 * 256
    assert rule_bytes(linear)[1] == again + local + back + gradients + wy + summed


# Chip, tokens of a sequence, sequences, key heads, value heads, forward and backward of fla 0.5.1 [ms]; None
# where one of them was not timed (QwenLM/FlashQLA, benchmark/benchmark_results_H200.txt and _GB200.txt).
TIMED = [
    ("h200-sxm-141gb", 8192, 1, 16, 32, 0.472, 1.444),
    ("h200-sxm-141gb", 32768, 1, 16, 32, 1.890, 5.697),
    ("h200-sxm-141gb", 8192, 4, 16, 32, 1.898, 5.721),
    ("h200-sxm-141gb", 4096, 1, 16, 32, 0.247, None),
    ("h200-sxm-141gb", 8192, 1, 16, 64, 0.814, None),
    ("h200-sxm-141gb", 8192, 1, 8, 16, None, 0.957),
    ("h200-sxm-141gb", 4096, 8, 8, 16, None, 2.973),
    ("h200-sxm-141gb", 8192, 1, 2, 8, 0.234, None),
    ("h200-sxm-141gb", 8192, 1, 4, 8, None, 0.722),
    ("gb200-186gb", 8192, 1, 32, 32, 0.478, 1.446),
    ("gb200-186gb", 32768, 1, 32, 32, 1.812, 5.714),
    ("gb200-186gb", 8192, 4, 32, 32, 1.806, 5.583),
    ("gb200-186gb", 8192, 1, 16, 16, 0.342, 1.013),
    ("gb200-186gb", 8192, 1, 16, 64, 0.755, None),
    ("gb200-186gb", 8192, 1, 8, 8, None, 0.798),
]


def test_the_rule_takes_what_was_measured() -> None:
    errors = []
    for chip, tokens, sequences, key_heads, value_heads, *timed in TIMED:
        of = problem(cluster=f"1x4 {chip}", model=NEXT.id, seq_length=tokens)
        of = of.model_copy(update={"model": of_heads(key_heads, value_heads)})
        s = sizes(of, microbatch_size=sequences)
        found = mixer_s(network_of(of, 0).relative, of.model, "linear_moe", s)
        errors += [f * 1e3 / t - 1 for f, t in zip(found, timed, strict=True) if t is not None]
    assert np.abs(errors).mean() < 0.12
    assert np.abs(errors).max() < 0.3


def test_slower_chips_take_longer_and_full_attention_nothing() -> None:
    taken = []
    for chip in ("h200-sxm-141gb", "h100-sxm-80gb", "a100-sxm-80gb"):
        of = problem(cluster=f"1x8 {chip}", model=NEXT.id)
        relative, s = network_of(of, 0).relative, sizes(of)
        taken.append(mixer_s(relative, NEXT, "linear_moe", s))
        assert mixer_s(relative, NEXT, "moe", s) == (0.0, 0.0)
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(taken))


def test_kept_and_passing_bytes_by_hand() -> None:
    of = problem(model=NEXT.id)
    kept, passing = linear_bytes(NEXT, sizes(of), 2.0)
    # Convolved 8,192; normalised 4,096; queries and keys for 32 heads 8,192; values, gates, result and its
    # norm 16,384; a triangle of 64 for each of 32 heads; the output map's input 4,096; 20 bytes a head.
    values = 8192 + 4096 + 8192 + 16_384 + 64 * 32 + 4096
    assert kept == 4096 * (2 * values + 20 * 32)
    # w, dq, dk twice, dw; u, v_new, do, dv thrice; states and their gradients, 128 x 128 a chunk and head.
    assert passing == 4096 * 2 * (5 * 4096 + 6 * 4096 + 2 * 32 * 128 * 128 / 64)
    halved = linear_bytes(NEXT, sizes(of, tensor_parallel=2, sequence_parallel=True), 2.0)
    assert halved == (kept / 2, passing / 2)


def test_recomputing_the_norm_keeps_less_and_takes_little() -> None:
    of = problem(model=NEXT.id)
    of = with_stack(of, selective_modules=("gdn_norm_out",))
    one = prices(of, expert_parallel=8, data_parallel=8)
    k = one.kinds.index("linear_moe")
    saved = one.layer_activation_bytes - one.layer_activation_selective_bytes
    assert saved[0, k, 0] == 4096 * 4096 * (2 + 2)
    assert saved[0, one.kinds.index("moe"), 0] == 0
    again, whole = one.layer_selective_s[0, k, 0].sum(), one.layer_forward_s[0, k, 0].sum()
    assert 0 < again < 0.1 * whole


def test_context_ranks_exchange_heads_and_share_the_rule() -> None:
    of = problem(model=NEXT.id, seq_length=32768)
    one = prices(of, expert_parallel=8, data_parallel=8)
    two = prices(of, expert_parallel=8, data_parallel=4, context_parallel=2)
    k = one.kinds.index("linear_moe")
    assert one.layer_forward_s[0, k, 0, CP] == 0
    # 16,384 tokens of 12,352 values go there and of 4,096 come back, half of it to the other rank: 0.54 GB.
    crossed = 16384 * (12_352 + 4096) * 2 / 2
    assert two.layer_forward_s[0, k, 0, CP] > crossed / 450e9
    assert two.layer_forward_s[0, k, 0, CP] == two.layer_backward_s[0, k, 0, CP]
    assert two.layer_activation_bytes[0, k, 0] == pytest.approx(one.layer_activation_bytes[0, k, 0] / 2)


def test_a_gate_of_attention_is_a_wider_map_and_kept() -> None:
    plain = problem(model="qwen3-8b")
    gated = plain.model_copy(update={"model": plain.model.model_copy(update={"output_gate": True})})
    a, b = prices(plain), prices(gated)
    queries, tokens = 4096, 4096
    # The gate's place in the map's output, its copy in order, and the output map's input.
    more = b.layer_activation_bytes - a.layer_activation_bytes
    assert more[0, 0, 0] == 3 * tokens * queries * 2
    assert (
        layer_parameters(gated.model, "dense").total - layer_parameters(plain.model, "dense").total == 4096**2
    )
    assert b.layer_forward_s[0, 0, 0].sum() > a.layer_forward_s[0, 0, 0].sum()
