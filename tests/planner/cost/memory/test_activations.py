"""Bytes of states and activations against published formulas and measurements."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner.cost.checkpointing import repeated_shares
from planner.cost.memory import pipelines
from planner.cost.memory.activations import layer_activations, logits_peak_bytes
from planner.cost.memory.attention_buffers import context_exchange_bytes
from planner.cost.memory.communicators import (
    EXCHANGE_BYTES_PER_PEER,
    near_stages,
    sharing_across,
    sharing_inside,
)
from planner.cost.memory.dispatchers import deepep_bytes, hybridep_bytes
from planner.cost.memory.stage import memory_bytes
from planner.cost.memory.states import state_bytes
from planner.cost.parameters import layer_parameters, total_parameters
from planner.cost.prices import PARTS, Degrees
from planner.cost.sizes import Sizes
from planner.cost.stage import StageContent
from planner.data.load import build_problem, load_model, load_stack
from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack
from planner.simulate.evaluate import evaluate
from planner.units import GB, GIB
from tests.megatron_check.expectation import stage_parameters
from tests.planner.cost.problems import prices, problem, with_stack
from tests.planner.launchers.plans import Sketch, in_stages

LAYERS = Path(__file__).parents[5] / "shared/calibration/onechip_ops_h100_h200.json"
MOE_LAYERS = LAYERS.with_name("onechip_moe_ops_h100.json")
OLD_STACK = SoftwareStack(id="2022", flash_attention=False, dropout=True)


def outside_bytes(of: Problem, *, is_end: bool = False, **degrees: int) -> float:
    """Context and communicators of a stage of the pipeline that fills the cluster."""
    num_stages = of.cluster.num_chips // int(Sizes.single(of, Degrees.single(**degrees)).stage_chips)
    return float(pipelines.outside_bytes(prices(of, **degrees), 0, 0, is_end, num_stages))


def sizes(of, **degrees) -> Sizes:
    return Sizes.of(of, Degrees.single(**degrees))


@pytest.mark.parametrize("tp", [1, 8])
def test_gpt_layers_of_2022_keep_what_korthikanti_counted(tp: int) -> None:
    # arXiv 2205.05198, equation 4: s b h (34 + 5 a s / h) / t with sequence parallelism.
    of = problem(model="gpt3-175b", seq_length=2048)
    s, b, h, a = 2048, 4, 12288, 96
    found = layer_activations(
        of.model,
        "dense",
        OLD_STACK,
        sizes(of, tensor_parallel=tp, microbatch_size=b, sequence_parallel=tp > 1),
    )
    assert found.whole[0] == pytest.approx(s * b * h * (34 + 5 * a * s / h) / tp, rel=1e-3)
    assert found.selective[0] == pytest.approx(s * b * h * 34 / tp, rel=1e-3)
    assert found.full[0] == pytest.approx(2 * s * b * h / tp)


def test_without_sequence_parallelism_norms_and_residuals_are_kept_whole() -> None:
    # arXiv 2205.05198, equation 2: s b h (10 + 24 / t + 5 a s / (h t)).
    of = problem(model="gpt3-175b", seq_length=2048)
    s, h, a, t = 2048, 12288, 96, 8
    found = layer_activations(of.model, "dense", OLD_STACK, sizes(of, tensor_parallel=t))
    assert found.whole[0] == pytest.approx(s * h * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-3)


@pytest.mark.parametrize(
    ("dropout", "fuses", "passing"), [(False, True, 2), (True, True, 4), (True, False, 8)]
)
def test_the_backward_of_scores_in_memory_makes_gradients_as_large(
    dropout: bool, fuses: bool, passing: int
) -> None:
    """When the layer's MLP, whose activations are gone then, has had its turn."""
    of = problem(model="gpt3-175b", seq_length=2048)
    stack = of.stack.model_copy(update={"flash_attention": False, "dropout": dropout, "fused_softmax": fuses})
    found = layer_activations(of.model, "dense", stack, sizes(of, tensor_parallel=8))
    scores, hidden, width = 96 / 8 * 2048 * 2048, 2 * 2048 * 12288 * 2, 2 * 2 * 2048 * 4 * 12288 / 8
    assert found.working[0] == pytest.approx(max(passing * scores + hidden - width, hidden + width))


def test_grouped_keys_and_values_are_kept_for_every_head_where_scores_are() -> None:
    of = problem(model="llama3-8b", seq_length=2048)
    plain = of.stack.model_copy(update={"flash_attention": False})
    found = [layer_activations(of.model, "dense", stack, sizes(of)) for stack in (of.stack, plain)]
    repeated, scores = 2048 * (32 - 8) * (128 + 128) * 2, 32 * 2048 * 2048 * 2
    statistics = 2048 * 32 * 4
    assert found[1].whole[0] - found[0].whole[0] == pytest.approx(repeated + scores - statistics)


@pytest.mark.skipif(not LAYERS.exists(), reason="the measured layers are not at hand")
def test_layers_measured_on_one_h100_keep_what_we_count() -> None:
    stack = load_stack("pytorch-one-chip")
    ratios = []
    for row in json.loads(LAYERS.read_text())["h100-sxm-80gb"]["layer"]:
        t, llama = row["tp"], row["kind"] == "llama"
        model = ModelSpec(
            id="layer",
            family="layer",
            num_layers=1,
            hidden_size=row["hidden"],
            ffn_hidden_size=row["ffn"] // t,
            num_attention_heads=row["heads"] // t,
            num_query_groups=max(row["kv_heads"] // t, 1),
            head_dim=row["hidden"] // row["heads"],
            vocab_size=1000,
            max_position_embeddings=row["s"],
            tied_embeddings=False,
            position_embedding="rope" if llama else "none",
            gated_mlp=llama,
            activation="silu",
            normalization="rms" if llama else "layer",
            source="measured layer",
        )
        of = build_problem(
            cluster="1x1 h100-sxm-80gb", model=model, seq_length=row["s"], global_batch_size=row["b"]
        )
        found = layer_activations(model, "dense", stack, sizes(of, microbatch_size=row["b"]))
        ratios.append(found.whole[0] / row["activation_bytes"])
    assert np.median(ratios) == pytest.approx(1.0, abs=0.01)
    assert np.percentile(np.abs(np.array(ratios) - 1), 90) < 0.03


@pytest.mark.parametrize(
    ("mode", "bytes_per_parameter"),
    [("ddp", 18.0), ("distopt", 6 + 12 / 16), ("zero2", 2 + 16 / 16), ("zero3", 18 / 16)],
)
def test_states_take_the_published_bytes_per_parameter(mode: str, bytes_per_parameter: float) -> None:
    # Megatron-LM, theoretical_memory_usage.py: 18, or 6 + 12 / (dp x cp).
    of = problem()
    counts = layer_parameters(of.model, "dense")
    found = state_bytes(counts, sizes(of, data_parallel=8, context_parallel=2), mode)
    assert found.sum() == pytest.approx(bytes_per_parameter * counts.total)


@pytest.mark.parametrize(("stack", "weights"), [("megatron-core", 2.0), ("torchtitan", 0.0)])
def test_full_sharding_keeps_16_bit_shards_where_the_library_does(stack: str, weights: float) -> None:
    """Megatron-FSDP has a buffer for them beside the master weights'; FSDP2 casts what it gathers."""
    of = problem(stack=stack)
    found = prices(of, data_parallel=32, dp_mode="fsdp").layer_state_bytes[0, 0]
    assert found[0] == pytest.approx(weights * layer_parameters(of.model, "dense").total / 32)


def test_expert_states_are_shared_by_expert_data_parallelism() -> None:
    model = load_model("mixtral-8x7b")
    of = problem(model="mixtral-8x7b")
    counts = layer_parameters(model, "moe")
    found = state_bytes(
        counts, sizes(of, data_parallel=8, expert_parallel=4, expert_tensor_parallel=1), "distopt"
    )
    dense, expert = counts.total - counts.expert, counts.expert / 4
    # Near-miss: sharing the experts' optimizer over all 8 ranks would take 12 / 8 bytes.
    assert found.sum() == pytest.approx(dense * (6 + 12 / 8) + expert * (6 + 12 / 2))


@pytest.mark.parametrize("num_predicted", [0, 1])
@pytest.mark.parametrize("tied", [False, True])
def test_stages_hold_the_weights_of_the_parameters_that_megatron_builds(
    tied: bool, num_predicted: int
) -> None:
    # The expected numbers are those that the real model is held to in tests/planner/launchers/
    # test_megatron_accepts.py. Near-miss: with several stages a stage that predicts more tokens reads its own
    # copy of the embedding (tied or not), which is 0.6 GiB here, and the head of a single stage needs none.
    given = load_model("glm-4.5-air").model_copy(
        update={"tied_embeddings": tied, "mtp_num_layers": num_predicted}
    )
    for layers in ([46], [23, 23]):
        of, plan = in_stages(given, layers)
        weights = [stage.memory_gib["weights"] * GIB for stage in evaluate(of, plan).stages]
        expected = [2 * stage_parameters(of, plan, s) for s in range(len(layers))]
        assert weights == pytest.approx(expected, rel=1e-5)  # router biases are buffers to Megatron


def test_vocabulary_is_padded_to_a_multiple_of_128_tp() -> None:
    of = problem()
    found = prices(of, tensor_parallel=8, sequence_parallel=True)
    assert found.embedding_state_bytes[0, 0] == 2 * 129024 / 8 * 4096


def test_the_limit_is_of_usable_memory_less_the_reserve() -> None:
    of = problem()
    found = prices(of)
    assert found.limit_bytes[0] == pytest.approx(0.96 * of.chip_of(0).memory_bytes)


@pytest.mark.skipif(not MOE_LAYERS.exists(), reason="the measured layers are not at hand")
@pytest.mark.parametrize("arch", ["mixtral-8x7b", "mixtral-8x22b"])
def test_expert_layers_measured_on_one_h100_keep_what_we_count(arch: str) -> None:
    base = load_model(arch)
    stack = load_stack("pytorch-one-chip")
    data = json.loads(MOE_LAYERS.read_text())["h100-sxm-80gb"]
    for row in data["moe_layer"]:
        if row["arch"] != arch or row["local_experts"] < row["top_k"]:
            continue
        moe = base.moe.model_copy(update={"num_experts": row["local_experts"]})
        model = base.model_copy(update={"moe": moe, "position_embedding": "none"})
        of = build_problem(
            cluster="1x1 h100-sxm-80gb", model=model, seq_length=row["s"], global_batch_size=row["b"]
        )
        found = layer_activations(model, "moe", stack, sizes(of, microbatch_size=row["b"]))
        assert found.whole[0] == pytest.approx(row["activation_bytes"], rel=0.01)


def test_8_bit_products_keep_their_inputs_in_8_bits() -> None:
    of = problem(model="llama3-70b")
    stack = load_stack("megatron-core")
    half = layer_activations(of.model, "dense", stack, sizes(of), "bf16").whole[0]
    eight = layer_activations(of.model, "dense", stack, sizes(of), "fp8").whole[0]
    hidden, ffn, tokens = 8192, 28672, 4096
    # Two norms' outputs and the activation's lose a byte a value; attention's output is kept once more.
    assert half - eight == tokens * (2 * hidden + ffn - hidden)


def test_norms_that_read_fp32_keep_it_unless_they_run_again() -> None:
    of = problem(model="llama2-7b")
    narrow = of.stack.model_copy(update={"selective_modules": ("layernorm",)})
    wide = narrow.model_copy(update={"norms_read_fp32": True})
    kept = [layer_activations(of.model, "dense", stack, sizes(of)) for stack in (narrow, wide)]
    assert kept[1].whole[0] - kept[0].whole[0] == 2 * 2 * 4096 * 4096
    assert kept[1].selective[0] == kept[0].selective[0]


def test_checkpointing_by_operator_keeps_every_second_product_and_attention() -> None:
    of = problem(model="llama3-8b")
    stack = load_stack("torchtitan")
    s = sizes(of)
    found = layer_activations(of.model, "dense", stack, s)
    # Input and, of q k v o gate up down in the order of calls, queries, values, gate, down; and attention
    # with one fp32 number a head.
    widths = 4096 + (4096 + 1024 + 14336 + 4096) + 4096
    assert found.selective[0] == pytest.approx(s.tokens[0] * (2 * widths + 4 * 32))
    assert repeated_shares(of.model, "dense") == pytest.approx(
        {"qkv": 1024 / 6144, "proj": 1.0, "fc1": 0.5, "fc2": 0.0}
    )


@pytest.mark.parametrize(
    ("policy", "widths"),
    [
        ("all_but_qkv", 6144),
        ("all_but_qkv_proj", 6144 + 4096),
        ("all_but_products", 6144 + 4096 + 2 * 14336),
    ],
)
def test_a_policy_of_xla_keeps_outputs_of_products(policy: str, widths: int) -> None:
    of = problem(model="llama3-8b")
    stack = of.stack.model_copy(update={"selective_modules": (policy,)})
    s = sizes(of)
    found = layer_activations(of.model, "dense", stack, s)
    assert found.selective[0] == pytest.approx(s.tokens[0] * 2 * (4096 + widths))
    assert found.whole[0] > found.selective[0]


def test_every_kind_of_group_with_several_ranks_has_communicators() -> None:
    of = problem(cluster="4x8 h100-sxm-80gb", stack="llm-foundry")

    def sets(**degrees: int) -> float:
        found = outside_bytes(of, **degrees) / GIB - of.stack.context_gib
        chosen = Sizes.single(of, Degrees.single(**degrees))
        near = near_stages(chosen, 32.0 / chosen.stage_chips, 8.0)
        return float((found - near * EXCHANGE_BYTES_PER_PEER / GIB) / of.stack.communicator_gib)

    # The job's own, and that of 32, 4 or no stages in a pipeline.
    assert sets() == pytest.approx(2.0)
    assert sets(tensor_parallel=8) == pytest.approx(3.0)
    assert sets(tensor_parallel=8, data_parallel=4) == pytest.approx(3.0)
    # Two replicas and two stages, each a smaller group of two: 544 of 688 MB.
    assert sets(tensor_parallel=8, data_parallel=2) == pytest.approx(2.0 + 2 * 544 / 688)


def test_a_replica_and_groups_beyond_a_node_have_communicators_of_their_own() -> None:
    """Two nodes of eight: tensor-parallel ranks lie on one, gradients and the job on both."""
    of = problem(cluster="2x8 h100-sxm-80gb", stack="llm-foundry")

    def gib(changes: dict[str, float | bool], **degrees: int) -> float:
        stack = of.stack.model_copy(update={"communicator_gib": 0.6} | changes)
        chosen = of.model_copy(update={"stack": stack})
        return outside_bytes(chosen, **degrees) / GIB - stack.context_gib

    sharing = {"tensor_parallel": 4, "data_parallel": 4}
    assert gib({}, **sharing) == pytest.approx(3 * 0.6)
    assert gib({"far_communicator_gib": 0.4}, **sharing) == pytest.approx(0.6 + 2 * 0.4)
    # A replica is four neighbours without a pipeline, two groups of four on two nodes with one.
    near_replica = gib({"far_communicator_gib": 0.4, "replica_communicator": True}, **sharing)
    assert near_replica == pytest.approx(2 * 0.6 + 2 * 0.4)
    stages = {"tensor_parallel": 4, "data_parallel": 2}
    more = [gib({"far_communicator_gib": 0.4, "replica_communicator": on}, **stages) for on in (True, False)]
    assert more[0] - more[1] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("tp", "near"),
    [(8, 0), (4, 1), (2, 2), (1, 2)],  # a stage of eight fills its node; of four, two share one
)
def test_stages_that_share_a_node_are_connected_as_pairs_of_an_exchange(tp: int, near: int) -> None:
    of = problem(cluster="4x8 h100-sxm-80gb", stack="llm-foundry")
    chosen = Sizes.single(of, Degrees.single(tensor_parallel=tp))
    assert near_stages(chosen, 32.0 / tp, domain_chips=8.0) == near
    every = sharing_inside(chosen) + sharing_across(chosen, 32.0)
    groups = [544 / 688 if group.ranks == 2 else 1.0 for group in every if group.ranks > 1]
    found = outside_bytes(of, tensor_parallel=tp) / GIB - of.stack.context_gib
    assert found - sum(groups) * of.stack.communicator_gib == pytest.approx(near * 3.28 * GB / 7 / GIB)


def test_switches_that_add_up_take_buffers_for_every_rank_below_them() -> None:
    """Two nodes of eight: tp 8 and all ranks lie on eight of a switch, gradients of two nodes on one."""
    with_buffers = {"switch_buffer_mib": 192.0, "megatron_groups": False}

    def more_mib(chip: str, **degrees: int) -> float:
        of = problem(cluster=f"2x8 {chip}")
        some = of.model_copy(update={"stack": of.stack.model_copy(update=with_buffers)})
        none = of.model_copy(
            update={"stack": of.stack.model_copy(update=with_buffers | {"switch_buffer_mib": 0.0})}
        )
        return (outside_bytes(some, **degrees) - outside_bytes(none, **degrees)) / 2**20

    assert more_mib("h100-sxm-80gb", tensor_parallel=8, data_parallel=2) == pytest.approx(192 * (8 + 8))
    # Pairs need no switch to add up; of eight gradient ranks four lie on each node.
    assert more_mib("h100-sxm-80gb", tensor_parallel=2, data_parallel=8) == pytest.approx(192 * (4 + 8))
    assert more_mib("a100-sxm-80gb", tensor_parallel=8, data_parallel=2) == 0.0


def test_an_exchange_connects_every_pair_of_a_node() -> None:
    of = problem(model="mixtral-8x7b", cluster="4x8 h100-sxm-80gb", stack="llm-foundry")

    def exchange_gb(ep: int, of: Problem = of) -> float:
        whole, alone = (
            outside_bytes(of, data_parallel=32, expert_parallel=x, expert_tensor_parallel=1) for x in (ep, 1)
        )
        group = of.stack.communicator_gib * (1.0 if ep > 2 else 544 / 688)
        return (whole - alone - group * GIB) / GB

    assert exchange_gb(8) == pytest.approx(3.28)
    assert exchange_gb(2) == pytest.approx(3.28 / 7)
    other = of.model_copy(update={"stack": of.stack.model_copy(update={"moe_dispatcher": "deduplicating"})})
    # No exchange of NCCL's, but DeepEP's buffer: 10 channels, 8 ranks, 256 rows of 4,096 values and the rest.
    assert exchange_gb(8, other) == pytest.approx(10 * 8 * 256 * (2 * 4096 + 2056) / GB)


def test_tokens_sent_once_to_a_node_take_buffers_for_rows_in_flight() -> None:
    row = 2 * 7168 + 128 * 16 + 8
    near, far = 10 * 8 * 288 * row, 2 * 10 * (64 / 8) * 140 * row
    assert deepep_bytes(7168, 64.0) == near + far
    assert deepep_bytes(7168, 4.0) == 10 * 4 * 256 * row
    assert deepep_bytes(7168, 1.0) == 0.0
    some = deepep_bytes(7168, np.array([1.0, 64.0, 256.0]))
    assert some[0] == 0.0 and some[1] == near + far < some[2]


def test_hybrideps_buffers_hold_what_comes_if_all_tokens_come_here() -> None:
    # 4,096 tokens of each of 64 ranks: 7,168 values of 2 bytes, a weight of each of 256 experts, 56 scales.
    row = 2 * 7168 + 4 * 256
    assert hybridep_bytes(7168, 256, 4096, 64, 64) == 4096 * 64 * (row + 4 * 56)
    # Over 8 nodes the rows know 32 experts, and three buffers hold those that come and go between nodes.
    row = 2 * 7168 + 4 * 32
    assert hybridep_bytes(7168, 32, 4096, 64, 8) == 4096 * (64 * (row + 4 * 56) + 3 * 7 * row)
    of = problem(model="deepseek-v3", cluster="16x8 h100-sxm-80gb")

    def fixed_gb(library: str) -> float:
        changes = {"moe_dispatcher": "deduplicating", "dispatcher_library": library}
        some = of.model_copy(update={"stack": of.stack.model_copy(update=changes)})
        degrees = {"data_parallel": 128, "expert_parallel": 64, "expert_tensor_parallel": 1}
        return outside_bytes(some, **degrees) / GB

    more = hybridep_bytes(7168, 32, 4096, 64, 8) - deepep_bytes(7168, 64.0)
    assert fixed_gb("hybridep") - fixed_gb("deepep") == pytest.approx(more / GB)


def test_maps_of_their_own_copy_their_input_where_no_rank_splits_the_sequence() -> None:
    of = problem(model="llama2-7b", stack="paddlenlp")
    joined = of.stack.model_copy(update={"column_input_copies": False})
    values, reduce = 4096 * 4096, {}
    for sp in (False, True):
        at = sizes(of, tensor_parallel=2, sequence_parallel=sp)
        kept = [layer_activations(of.model, "dense", x, at).whole[0] for x in (of.stack, joined)]
        # Five copies for queries, keys, values, gate and first map in the place of two norms' outputs; no
        # value is a view of a joined output that queries and keys are part of.
        assert kept[0] - kept[1] == (0 if sp else 3 * 2 * values) - 2 * 2 * values / 2
    alone = sizes(of)
    kept = [layer_activations(of.model, "dense", x, alone).whole[0] for x in (of.stack, joined)]
    assert kept[0] - kept[1] == -2 * 2 * values
    for name, stack in (("own", of.stack), ("joined", joined)):
        found = prices(of.model_copy(update={"stack": stack}), tensor_parallel=2)
        reduce[name] = found.layer_backward_s[0, 0, 0, PARTS.index("tp")]
    assert reduce["own"] == pytest.approx(5 / 2 * reduce["joined"])


def test_sharded_gradients_that_hide_behind_nothing_are_whole_at_the_end_of_a_backward() -> None:
    of = problem(model="llama2-13b", stack="paddlenlp", cluster="1x8 a100-sxm-80gb")

    def gradients(recompute: str, of: Problem = of) -> float:
        count = 40 if recompute == "full" else 0
        stage = StageContent(0, ((0,) * 40,), True, True, recompute, count)
        return memory_bytes(prices(of, data_parallel=8, dp_mode="zero2"), 0, stage, [1.0], 1)["gradients"]

    layers = 40 * layer_parameters(of.model, "dense").total
    share = gradients("none")  # what is not recomputed takes more before the backward
    assert share == pytest.approx(of.stack.gradient_bytes * total_parameters(of.model) / 8, rel=1e-3)
    assert gradients("full") == pytest.approx(share + 2 * layers)
    behind = of.model_copy(update={"stack": of.stack.model_copy(update={"dp_overlap": True})})
    assert gradients("full", behind) == pytest.approx(share)  # freed as they go


def test_joined_gradients_lie_beside_activations_and_leave_their_reduction_alone() -> None:
    """DeepSpeed's fp16 optimizer: gradients of 2 bytes, joined in 4 for its step and in 2 to be reduced."""
    of = problem(model="llama2-13b", stack="megatron-deepspeed", cluster="1x8 a100-sxm-80gb")
    bare = of.model_copy(update={"stack": of.stack.model_copy(update={"joined_gradient_bytes": 0.0})})
    stage = StageContent(0, ((0,) * of.model.num_layers,), True, True, "none", 0)
    with_joined, without = (prices(x, data_parallel=8) for x in (of, bare))
    terms, fewer = (memory_bytes(x, 0, stage, [1.0], 1) for x in (with_joined, without))
    parameters = terms["weights"] / 2
    assert terms["gradients"] == pytest.approx(8 * parameters)
    assert terms["gradients"] - fewer["gradients"] == pytest.approx(6 * parameters)
    assert terms["activations"] == fewer["activations"]
    assert with_joined.layer_backward_s == pytest.approx(without.layer_backward_s)


def test_eight_bit_products_keep_weights_and_their_transposes_beside_the_wide_ones() -> None:
    wide = problem(model="llama3-8b")
    narrow = wide.model_copy(update={"workload": wide.workload.model_copy(update={"precision": "fp8"})})
    alone = narrow.model_copy(update={"stack": narrow.stack.model_copy(update={"narrow_parameters": True})})
    weights = [prices(x).layer_state_bytes[0, 0, 0] for x in (wide, narrow, alone)]
    products = 218_103_808  # of a layer of Llama-3 8B, two norms of 4,096 apart
    assert weights[1] - weights[0] == pytest.approx(2 * products)
    assert weights[2] == weights[0]


def test_layers_of_further_predictions_have_narrow_copies_too() -> None:
    wide, narrow = (problem(model="deepseek-v3", precision=precision) for precision in ("bf16", "fp8"))

    def more(name: str) -> float:
        found = [getattr(prices(x, data_parallel=32, expert_parallel=32), name) for x in (narrow, wide)]
        return float((found[0] - found[1])[0, 0])

    layer = layer_parameters(wide.model, "moe")
    merge = 2 * wide.model.hidden_size**2
    rank = layer.tensor_sharded + layer.expert / 32 + merge
    assert more("head_state_bytes") == more("head_beside_embedding_state_bytes") == pytest.approx(2 * rank)
    assert more("embedding_state_bytes") == 0.0


def test_plain_modules_keep_what_fused_ones_make_again() -> None:
    of = problem(model="llama2-70b")
    plain = of.stack.model_copy(update={"plain_modules": True})
    at = sizes(of, tensor_parallel=8, sequence_parallel=True)
    kept = [layer_activations(of.model, "dense", x, at).whole[0] for x in (plain, of.stack)]
    # Of two norms an fp32 input in the place of a 16-bit one and 16-bit values; keys and values of 64 heads
    # in the place of 8; the activation of the gate.
    widths = 2 * 8192 * 4 + 2 * (64 - 8) * 128 * 2 + 28672 * 2
    assert kept[0] - kept[1] == 4096 * widths / 8


def test_deepspeeds_pipeline_holds_the_logits_of_the_micro_batch_before() -> None:
    """Two buffers of outputs on the last stage: 16 bits a logit, whatever else the stage holds."""
    of = problem(model="sailor-opt-350m", seq_length=2048, precision="fp16", stack="sailor")
    one = of.model_copy(update={"stack": of.stack.model_copy(update={"output_buffers": 1})})
    degrees = {"tensor_parallel": 4, "microbatch_size": 8}
    more = prices(of, **degrees).head_activation_bytes[0] - prices(one, **degrees).head_activation_bytes[0]
    assert more == pytest.approx(2 * 8 * 2048 * 50688 / 4)


@pytest.mark.parametrize(
    ("exchange", "widths"),
    [
        ("p2p", 2 * 2 * 128 + 8 * 128),  # keys and values of two groups, an output of eight heads
        ("all_gather", 2 * 2 * 2 * 128),
        ("a2a", 0),
    ],
)
def test_attention_around_a_ring_holds_what_every_step_brought_and_made(exchange: str, widths: int) -> None:
    """In the forward, beside all that is kept; the backward's buffers are smaller on long rings."""
    of = problem(model="llama3-8b", seq_length=131072)
    stack = of.stack.model_copy(update={"cp_exchange": exchange})
    long, alone = (sizes(of, tensor_parallel=4, context_parallel=cp) for cp in (16, 1))
    assert context_exchange_bytes(of.model, stack, long)[0] == 131072 * 2 * widths
    assert context_exchange_bytes(of.model, stack, alone)[0] == 0
    found = layer_activations(of.model, "dense", stack, long).working[0]
    assert found >= context_exchange_bytes(of.model, stack, long)[0]


def test_a_loss_over_gathered_logits_holds_those_of_all_ranks_beside_its_own() -> None:
    of = problem(model="qwen3-8b", seq_length=4096, stack="paddlenlp")
    stack = of.stack.model_copy(update={"gathers_logits": True})
    chosen, vocab = sizes(of, tensor_parallel=2), 151936.0
    own = 4096 * vocab / 2
    assert logits_peak_bytes(of.model, of.stack, vocab, chosen)[0] == 10 * own
    # All ranks' logits in 16 bits, in fp32 and as softmax, and the own ones from which they came.
    assert logits_peak_bytes(of.model, stack, vocab, chosen)[0] == 10 * 2 * own + 2 * own
    alone = sizes(of, tensor_parallel=1)
    assert logits_peak_bytes(of.model, stack, vocab, alone)[0] == 10 * 2 * own


def test_a_loss_may_go_narrow_where_a_rank_has_all_logits() -> None:
    of = problem(model="gpt2-xl", seq_length=1024, precision="fp16", stack="oneflow")
    one, two = (
        logits_peak_bytes(of.model, of.stack, 50688.0, sizes(of, tensor_parallel=tp))[0] for tp in (1, 2)
    )
    assert one == 6 * 1024 * 50688
    assert two == 10 * 1024 * 50688 / 2


def test_memory_planned_ahead_has_places_for_all_micro_batches_that_may_be_in_flight() -> None:
    """Places are there whether micro-batches fill them or not: a run of OneFlow was predicted 18% too low."""
    of = problem("2x4 v100-sxm-16gb", "gpt2-xl", 1024, "fp16", "oneflow")
    full = {stage: ("full", 12) for stage in range(4)}
    plan = Sketch([[12]] * 4, [0] * 4, data_parallel=2, num_microbatches=32, recompute=full).plan(of)
    ahead, as_needed = evaluate(of, plan), evaluate(with_stack(of, plans_memory=False), plan)
    assert [stage.in_flight for stage in ahead.stages] == [9, 9, 9, 1]
    for stage, needs in zip(ahead.stages, as_needed.stages, strict=True):
        held, less = stage.memory_gib, needs.memory_gib
        assert held["gradients"] == pytest.approx(2 * less["gradients"])
        assert held["activations"] * needs.in_flight == pytest.approx(less["activations"] * stage.in_flight)
    layer = as_needed.stages[1].memory_gib["recompute"]
    assert ahead.stages[1].memory_gib["working"] - as_needed.stages[1].memory_gib["working"] == (
        pytest.approx(layer)
    )
    alone = Sketch([[48]], [0], data_parallel=8, num_microbatches=8).plan(of)
    once = [evaluate(x, alone).stages[0].memory_gib for x in (of, with_stack(of, plans_memory=False))]
    assert once[0] == once[1]


@pytest.mark.parametrize(("model", "mask"), [("llama2-7b", 0), ("gpt3-175b", 1)])
def test_paddlenlps_layers_keep_what_its_operators_do(model: str, mask: int) -> None:
    """Maps of their own, a gate's activation apart from the product, dropout in GPT alone, rotary tables."""
    of, tp, tokens = problem(model=model, seq_length=2048, stack="paddlenlp"), 2, 2048
    m = of.model
    h, f = m.hidden_size, m.ffn_hidden_size / tp
    heads = m.num_attention_heads / tp
    maps = 3 + (2 if m.gated_mlp else 1)
    tensors = [
        (2, h, 2.0),  # what the norms read
        (maps, h, 2.0),  # a copy of a norm's output for every map
        (4, heads * m.head_dim, 2.0),  # queries, keys, values, output; rotation keeps nothing of its input
        (1, heads, 4.0),
        (4 if m.gated_mlp else 2, f, 2.0),  # gate, its activation, the other half, their product
        (2, h, mask),
        (2, m.head_dim * (m.position_embedding == "rope"), 2.0),  # sine and cosine in 16 bits
    ]
    found = layer_activations(m, "dense", of.stack, sizes(of, tensor_parallel=tp))
    assert found.whole[0] == pytest.approx(tokens * sum(n * width * size for n, width, size in tensors))


@pytest.mark.parametrize(("model", "tables"), [("llama2-7b", 2), ("gpt3-175b", 0)])
def test_layers_with_rotary_tables_of_their_own_hold_them_in_fp32(model: str, tables: int) -> None:
    of = problem(model=model, seq_length=2048, stack="paddlenlp")
    once = with_stack(of, rotary_tables_in_layers=False)
    weights = [prices(p, tensor_parallel=2).layer_state_bytes[0, 0, 0] for p in (of, once)]
    assert weights[0] - weights[1] == tables * 2048 * of.model.head_dim * 4.0
