"""The reading rules of measured runs, one test each."""

from __future__ import annotations

from typing import Any

import pytest

from planner.calibrate.convert import Candidate, convert
from planner.calibrate.layouts import layers_of_chunks, virtual_stages_of
from planner.calibrate.patterns import SkipRun
from planner.calibrate.stacks import family, memory_kind, stack_id, stack_of
from planner.data.load import load_model
from tests.planner.calibrate.rows import MOE, run


def converted(**changes: Any) -> Candidate:
    return convert(run(**changes))


def reason(**changes: Any) -> str:
    with pytest.raises(SkipRun) as skip:
        converted(**changes)
    return skip.value.reason


def test_plain_run_becomes_its_problem_and_plan() -> None:
    candidate = converted()
    problem, (plan,) = candidate.problem, candidate.plans
    assert problem.cluster.num_chips == 16
    assert (problem.workload.seq_length, problem.workload.global_batch_size) == (8192, 64)
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel) == (2, 4, 2)
    assert plan.num_microbatches == 32  # 64 sequences / (1 a micro-batch x 2 replicas)
    assert [stage.layers for stage in plan.stages] == [(0, 7), (8, 15), (16, 23), (24, 31)]
    # Stages of 4 chips, two on a node of 8.
    assert [stage.hosts for stage in plan.stages] == [("node000",)] * 2 + [("node001",)] * 2
    assert candidate.stack == "nemo"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"measured": {"failed": True}}, "failed"),
        ({"measured": {}}, "nothing measured"),
        ({"plan__microbatch_size": None}, "microbatch_size"),
        ({"workload__global_batch_size": None}, "global_batch_size"),
        ({"plan__expert_parallel": 4}, "model shape: experts unknown"),
        ({"model__vocab_size": None, "model__name": "Yi 34B"}, "vocab"),
        (
            {"model__ffn_hidden_size": None, "model__name": "Yi 34B"},
            "model shape: feed-forward width unknown",
        ),
        ({"model__num_query_groups": 7}, "model shape: impossible sizes"),
        (
            {"model__moe": {**MOE, "local_experts": 16}, "plan__shard_of_one_rank_only": True},
            "model shape: more experts on a chip than there are",
        ),
        (
            {"model__name": "Nemotron-H-56B", "model__num_layers": 32},
            "model shape: order of the kinds of layers unknown",
        ),
        (
            {"model__name": "Nemotron_3_Nano_30B-A3B", "model__moe": MOE, "model__num_layers": 32},
            "model shape: order of the kinds of layers unknown",
        ),
        (
            {"model__name": "Nemotron 3 Ultra", "model__moe": MOE},
            "model shape: order of the kinds of layers unknown",
        ),
        ({"model__name": "Kimi-Linear-48B-A3B", "model__moe": MOE}, "model shape: linear attention"),
        (
            {"model__name": "Qwen3-Next-80B-A3B", "model__moe": MOE},  # 32 layers
            "model shape: order of the kinds of layers unknown",
        ),
        ({"workload__precision": "tf32"}, "precision: tf32 not modelled"),
        ({"workload__global_batch_size": 65}, "batch not divisible by data_parallel x microbatch_size"),
        ({"plan__pipeline_parallel": 8}, "layout: needs more chips than the run had"),
        ({"plan__pipeline_parallel": 10**25}, "layout: more virtual stages than layers"),
        ({"plan__virtual_stages": 10**9}, "layout: more virtual stages than layers"),
        ({"cluster__groups": [{"chip": "abacus", "num_chips": 16}]}, "chip unknown: abacus"),
    ],
)
def test_run_that_cannot_be_scored_says_why(changes: dict[str, Any], why: str) -> None:
    assert reason(**changes) == why


def test_missing_vocabulary_is_that_of_the_named_model() -> None:
    candidate = converted(model__name="MLPerf Llama3.1-8B", model__vocab_size=None)
    assert candidate.problem.model.vocab_size == 128256
    assert "vocabulary of the named model: 128256" in candidate.assumptions


def test_missing_precision_is_bf16_where_the_chip_has_it_else_fp16() -> None:
    assert converted(workload__precision=None).problem.workload.precision == "bf16"
    old = {"groups": [{"chip": "v100-sxm-16gb", "num_chips": 16, "chips_per_node": 8}]}
    assert converted(workload__precision=None, cluster=old).problem.workload.precision == "fp16"


def test_missing_degrees_read_as_one_and_data_parallel_from_the_chips() -> None:
    (plan,) = converted(
        plan__context_parallel=None,
        plan__virtual_stages=None,
        plan__expert_parallel=None,
        plan__data_parallel=None,
    ).plans
    assert (plan.context_parallel, plan.virtual_stages, plan.expert_parallel, plan.data_parallel) == (
        1,
        1,
        1,
        2,
    )


def test_missing_expert_tensor_parallel_is_tensor_parallel() -> None:
    (plan,) = converted(model__moe=MOE, plan__expert_parallel=2).plans
    assert plan.expert_tensor_parallel == 2
    (plan,) = converted(model__moe=MOE, plan__expert_parallel=2, plan__expert_tensor_parallel=1).plans
    assert plan.expert_tensor_parallel == 1


def test_missing_recompute_gives_every_setting_but_none_on_megatron_deepspeed() -> None:
    plans = converted(plan__recompute=None).plans
    assert [plan.stages[0].recompute for plan in plans] == ["none", "selective", "full"]
    assert plans[2].stages[0].recompute_layers == 8
    candidate = converted(plan__recompute=None, software="Megatron-DeepSpeed")
    assert [plan.stages[0].recompute for plan in candidate.plans] == ["none"]
    assert "nothing recomputed" in candidate.assumptions


def test_internevo_computes_norms_again_where_it_recomputes_nothing_else() -> None:
    found = [converted(plan__recompute=x, software="InternEvo").plans[0] for x in ("none", "full")]
    assert [plan.stages[0].recompute for plan in found] == ["selective", "full"]


def test_share_of_whole_layers_that_fits_is_recomputed_where_selective_means_that() -> None:
    # fms-fsdp checkpoints a share of the blocks; its Llama 2 70B would not fit otherwise.
    found = converted(
        software="fms-fsdp torch.compile", plan__recompute="selective", plan__pipeline_parallel=1
    )
    stages = [plan.stages[0] for plan in found.plans]
    assert [stage.recompute for stage in stages] == ["full"] * 4
    assert [stage.recompute_layers for stage in stages] == [11, 16, 21, 32]  # 1/3, 1/2, 2/3, all of 32


def test_order_of_a_hybrids_layers_and_windows_come_from_the_named_model() -> None:
    hybrid = converted(
        model__name="Nemotron_H 56B",
        model__num_layers=118,
        model__hidden_size=8192,
        model__ffn_hidden_size=32768,
        model__num_attention_heads=64,
        plan__pipeline_parallel=1,
    ).problem.model
    kinds = hybrid.kind_of_layer
    assert [kinds.count(kind) for kind in ("mamba", "mlp", "attention")] == [54, 54, 10]
    moe = {**MOE, "num_experts": 512, "top_k": 22}
    latent = converted(
        model__name="Nemotron_3_Super 120B-A12B",
        model__num_layers=88,
        model__moe=moe,
        plan__pipeline_parallel=1,
    ).problem.model
    assert (latent.routed_width, latent.prediction_kinds) == (1024, ("attention", "experts"))
    without = converted(
        model__name="Nemotron_3_Super 120B-A12B",
        model__num_layers=88,
        model__moe=moe,
        plan__pipeline_parallel=1,
        notes="without MTP",
    ).problem.model
    assert (without.mtp_num_layers, without.kind_of_layer) == (0, latent.kind_of_layer)
    assert [latent.kind_of_layer.count(kind) for kind in ("mamba", "experts", "attention")] == [40, 40, 8]
    linear = converted(
        model__name="Qwen3-Next 80B-A3B",
        model__num_layers=48,
        model__moe={**MOE, "num_experts": 512, "top_k": 10, "shared_ffn_hidden_size": 512},
        plan__pipeline_parallel=1,
    ).problem.model
    assert [linear.kind_of_layer.count(kind) for kind in ("linear_moe", "moe")] == [36, 12]
    assert linear.moe is not None and linear.moe.shared_expert_gate
    windowed = converted(model__name="GPT-OSS-120B", model__head_dim=64).problem.model
    assert (windowed.sliding_window, windowed.global_layer_every) == (128, 2)


def test_latent_attention_and_prediction_layers_come_from_the_named_model() -> None:
    moe = {
        "num_experts": 256,
        "top_k": 8,
        "ffn_hidden_size": 2048,
        "shared_ffn_hidden_size": 2048,
        "first_dense_layers": 3,
    }
    shape = {
        "name": "DeepSeek-V3",
        "num_layers": 61,
        "hidden_size": 7168,
        "ffn_hidden_size": 18432,
        "num_attention_heads": 128,
        "num_query_groups": 128,
        "head_dim": 192,
        "vocab_size": 129280,
        "moe": moe,
    }
    model = converted(model=shape).problem.model
    assert model.mla is not None and model.mla.kv_lora_rank == 512
    assert model.mtp_num_layers == 1
    assert model.moe is not None and model.moe.router_bias
    assert converted(model=shape, notes="w/o MTP; MLA").problem.model.mtp_num_layers == 0
    slice_of_it = {**shape, "name": "DeepSeek-V3 slice 4L", "num_layers": 4}
    model = converted(model=slice_of_it, plan__pipeline_parallel=2, plan__data_parallel=4).problem.model
    assert (model.num_layers, model.mtp_num_layers) == (4, 0)


def test_every_second_layer_with_experts_is_read() -> None:
    model = converted(model__moe={**MOE, "moe_layer_freq": 2}).problem.model
    assert model.kind_of_layer[:4] == ("dense", "moe", "dense", "moe")


@pytest.mark.parametrize(
    ("layers", "chunks", "expected"),
    [
        (32, 4, (8, 8, 8, 8)),
        (94, 8, (11, *[12] * 6, 11)),  # 96 places, embedding and loss take one each
        (126, 64, (1, *[2] * 62, 1)),
        (61, 16, (*[4] * 15, 1)),  # published layout Et*4|(t*4|)*14tmL
        (61, 8, (*[8] * 7, 5)),
    ],
)
def test_layers_that_do_not_divide_are_split_as_published(
    layers: int, chunks: int, expected: tuple[int, ...]
) -> None:
    split, assumption = layers_of_chunks(layers, chunks)
    assert split == expected
    assert (assumption is None) == (layers % chunks == 0)


def test_virtual_stages_interleave_the_layers() -> None:
    (plan,) = converted(plan__virtual_stages=2).plans
    assert plan.stages[1].layers == ((4, 7), (20, 23))


def test_uneven_stages_are_taken_as_stated_even_empty_ones() -> None:
    counts = [0, 12, 12, 8]
    stages = [{"num_layers": n, "embedding": i == 0, "head": i == 3} for i, n in enumerate(counts)]
    (plan,) = converted(plan__stages=stages).plans
    assert [stage.num_layers for stage in plan.stages] == counts
    assert reason(plan__stages=stages[:3]) == "layout: stages do not match the pipeline degree"
    stages[0]["num_layers"] = 1
    assert reason(plan__stages=stages) == "layout: stages do not add up to the layers"


MIXED = {
    "groups": [
        {
            "chip": "v100-sxm-16gb",
            "num_chips": 4,
            "chips_per_node": 4,
            "inter_node_gbit_per_s": 10,
            "intra_node_gbit_per_s": 170,
        },
        {
            "chip": "t4-16gb",
            "num_chips": 4,
            "chips_per_node": 4,
            "inter_node_gbit_per_s": 50,
            "intra_node_gbit_per_s": 50,
        },
    ]
}


def mixed_stages(first: str, second: str) -> list[dict[str, Any]]:
    def devices(chips: str, node: int) -> list[dict[str, Any]]:
        names = {"v": "v100-sxm-16gb", "t": "t4-16gb"}
        return [{"node": node if c == chips[0] else 1 - node, "chip": names[c]} for c in chips]

    return [
        {"num_layers": 20, "tensor_parallel": 2, "embedding": True, "devices": devices(first, 0)},
        {"num_layers": 12, "tensor_parallel": 2, "head": True, "devices": devices(second, 1)},
    ]


def test_two_items_lead_and_four_trail_in_amps_pipelines() -> None:
    stages = [{"num_layers": n, "embedding": i == 0, "head": i == 3} for i, n in enumerate((7, 8, 8, 9))]
    notes = "12 items out of 38 (32 transformer layers + embedding/transpose/norm/head pseudo-layers)"
    (plan,) = converted(plan__stages=stages, notes=notes).plans
    assert [last - first + 1 for ((first, last),) in ((s.chunks) for s in plan.stages)] == [8, 8, 8, 8]
    (as_stated,) = converted(plan__stages=stages).plans
    assert as_stated.stages[0].layers == (0, 6)


def test_mixed_run_puts_each_stage_on_its_chip() -> None:
    candidate = converted(
        cluster=MIXED,
        workload__precision="fp16",
        plan__pipeline_parallel=2,
        plan__stages=mixed_stages("vvvv", "tttt"),
    )
    assert [stage.chip for stage in candidate.plans[0].stages] == ["v100-sxm-16gb", "t4-16gb"]
    volta, turing = candidate.problem.cluster.classes
    assert (volta.nics_per_node, volta.nic_gbit_per_s, volta.transport) == (1, 10, "tcp")
    assert candidate.problem.cluster.mtu_bytes == 1500
    assert converted(source="amp-hetero").problem.cluster.mtu_bytes == 9001
    # 50 Gbit/s are what a pair reaches: of a PCIe link of 64 GB/s it is 38.6.
    assert turing.intra_node_bandwidth_gb_per_s == pytest.approx(6.25 * 64 / 38.6, rel=0.01)


def test_stage_of_two_chips_lists_its_replicas() -> None:
    (plan,) = converted(
        cluster=MIXED,
        workload__precision="fp16",
        plan__tensor_parallel=2,
        plan__pipeline_parallel=2,
        plan__stages=mixed_stages("vvtt", "ttvv"),
    ).plans
    assert plan.mixes_chips
    assert plan.stages[1].replicas is not None
    assert [(r.chip, r.tensor_parallel) for r in plan.stages[1].replicas] == [
        ("t4-16gb", 2),
        ("v100-sxm-16gb", 2),
    ]
    assert plan.stages[1].hosts == tuple(h for r in plan.stages[1].replicas for h in r.hosts)


def test_tensor_parallel_group_of_two_chips_is_skipped() -> None:
    why = reason(
        cluster=MIXED,
        plan__tensor_parallel=2,
        plan__pipeline_parallel=2,
        plan__stages=mixed_stages("vvtt", "tvtv"),
    )
    assert why == "a tensor-parallel group mixes chips"


def test_replicas_of_a_mixed_run_give_its_tensor_parallel_degree() -> None:
    stages = [
        {"num_layers": 20, "embedding": True, "replicas": [{"chip": "v100-sxm-16gb", "tensor_parallel": 4}]},
        {"num_layers": 12, "head": True, "replicas": [{"chip": "t4-16gb", "tensor_parallel": 4}]},
    ]
    (plan,) = converted(
        cluster=MIXED,
        workload__precision="fp16",
        plan__tensor_parallel=None,
        plan__data_parallel=1,
        plan__pipeline_parallel=2,
        plan__stages=stages,
    ).plans
    assert plan.tensor_parallel == 4
    stages[1]["replicas"][0]["tensor_parallel"] = 2
    (plan,) = converted(
        cluster=MIXED,
        workload__precision="fp16",
        plan__tensor_parallel=None,
        plan__data_parallel=1,
        plan__pipeline_parallel=2,
        plan__stages=stages,
    ).plans
    assert [stage.tensor_parallel for stage in plan.stages] == [4, 2]
    assert plan.world_size == 6


def test_shard_of_one_rank_is_a_smaller_model_on_one_chip() -> None:
    alone = {"groups": [{"chip": "h100-sxm-80gb", "num_chips": 1, "chips_per_node": 1}]}
    one_rank = {
        "cluster": alone,
        "plan__pipeline_parallel": 1,
        "plan__data_parallel": 1,
        "plan__tensor_parallel": 4,
        "plan__shard_of_one_rank_only": True,
    }
    candidate = converted(**one_rank)
    model, (plan,) = candidate.problem.model, candidate.plans
    assert (model.num_attention_heads, model.num_query_groups, model.ffn_hidden_size) == (8, 2, 3584)
    assert (model.hidden_size, model.vocab_size, plan.tensor_parallel) == (4096, 128256, 1)
    assert candidate.without_collectives


def test_experts_of_one_rank_are_a_share_of_an_expert_parallel_job() -> None:
    alone = {"groups": [{"chip": "h100-sxm-80gb", "num_chips": 1, "chips_per_node": 1}]}
    candidate = converted(
        cluster=alone,
        model__moe={**MOE, "local_experts": 1},
        plan__tensor_parallel=1,
        plan__pipeline_parallel=1,
        plan__data_parallel=1,
        plan__expert_parallel=8,
        plan__shard_of_one_rank_only=True,
    )
    (plan,) = candidate.plans
    assert (plan.expert_parallel, plan.data_parallel, plan.num_microbatches) == (8, 8, 64)
    assert candidate.without_collectives


def test_optimizer_shared_by_one_replica_is_not_sharded() -> None:
    assert converted(plan__optimizer_shard_size=1).plans[0].dp_mode == "ddp"
    group = converted(plan__data_parallel=4, plan__pipeline_parallel=2, plan__optimizer_shard_size=2)
    assert group.plans[0].dp_mode == "distopt"
    assert group.problem.stack.optimizer_shard_size == 2


def test_nodes_with_fewer_chips_than_usual_and_network_in_words() -> None:
    few = {"groups": [{"chip": "a100-sxm-80gb", "num_chips": 4, "chips_per_node": 8}]}
    cluster = converted(cluster=few, plan__pipeline_parallel=2, plan__data_parallel=1).problem.cluster
    assert (cluster.classes[0].num_nodes, cluster.classes[0].chips_per_node) == (1, 4)
    words = converted(notes="A100-SXM4-80G, 4x100Gb RoCE; more").problem.cluster.classes[0]
    assert (words.nics_per_node, words.nic_gbit_per_s, words.transport) == (4, 100, "rdma")
    usual = converted().problem.cluster.classes[0]
    assert (usual.nics_per_node, usual.nic_gbit_per_s) == (8, 400)


def test_slingshot_is_reached_directly_but_by_sailor() -> None:
    ways = [
        converted(software=f"{runtime}, Slingshot").problem.cluster.classes[0].transport
        for runtime in ("Megatron-LM", "Sailor runtime on Megatron-DeepSpeed")
    ]
    assert ways == ["rdma", "host_staged"]


@pytest.mark.parametrize(
    ("software", "source", "stack"),
    [
        ("NeMo 24.07+vboost", "nemo-docs", "nemo"),
        ("Megatron-DeepSpeed", "vtrain-single", "megatron-deepspeed"),
        ("Sailor runtime on Megatron-DeepSpeed", "sailor-mit", "sailor"),
        ("Megatron-DeepSpeed 1F1B", "amp-hetero", "amp-deepspeed"),
        ("Megatron-LM (Selene)", "korthikanti22", "megatron-2022"),
        ("Megatron-LM 23e00ed (TE 2.11, torch 2.10, CUDA 13.1)", "simumax-b200", "megatron-core"),
        ("PyTorch NVIDIA Release 25.09", "mlperf-training", "mlperf-nemo"),
        ("PyTorch, ROCm 7.0.1", "mlperf-training", "mlperf-rocm"),
        ("Megatron-LM 2021-01", "megatron-readme", "megatron-2022"),
        ("Megatron-LM v2.5", "elsewhere", "megatron-2022"),
        ("Megatron-LM (2024)", "megatron-readme", "megatron-core"),
        ("Megatron-LM core_r0.13.0, January 2023 cluster", "elsewhere", "megatron-core"),
        ("Megatron-LM core 0.20", "elsewhere", "megatron-core"),
        ("Megatron-LM", "elsewhere", "megatron-core"),
        ("software of tomorrow", "elsewhere", "megatron-core"),
    ],
)
def test_software_text_names_its_family(software: str, source: str, stack: str) -> None:
    assert stack_id(run(software=software, source=source)) == stack


def test_steps_added_up_from_parts_anchor_no_whole_ones() -> None:
    whole, parts = (run(software="Megatron-DeepSpeed", source=f"vtrain-{of}") for of in ("multi", "single"))
    assert stack_id(whole) == stack_id(parts) == family(whole) != family(parts)


def test_notes_of_a_run_change_its_software() -> None:
    quiet = stack_of(run(notes="no comm overlap (TP overlap off); cross-entropy fused (TE)"))
    assert (quiet.tp_overlap_fraction, quiet.dp_overlap, quiet.p2p_overlap) == (0.0, False, False)
    assert quiet.fused_cross_entropy
    assert stack_of(run()).dp_overlap


def test_steps_that_were_added_up_have_no_host_work_of_their_own() -> None:
    added, timed = (
        stack_of(run(software="Megatron-DeepSpeed", source=x)) for x in ("vtrain-single", "vtrain-multi")
    )
    assert (added.step_host_ms, added.optimizer_step_bytes) == (0.0, 26.5)
    assert (timed.step_host_ms, timed.optimizer_step_bytes) == (5.0, None)


def test_traits_of_a_run_may_differ_from_those_of_the_model_that_it_names() -> None:
    trained = converted(model__name="OPT-350M").problem.model
    named = load_model("sailor-opt-350m")
    assert (trained.tied_embeddings, named.tied_embeddings) == (False, True)
    assert trained.linear_bias == named.linear_bias == "all"


def test_unknown_names_are_read_by_their_feed_forward_width() -> None:
    wide = converted(model__name="Zebra", model__ffn_hidden_size=16384)
    assert not wide.problem.model.gated_mlp
    assert converted(model__name="Zebra").problem.model.gated_mlp
    assert any("no known family" in assumption for assumption in wide.assumptions)


def test_sequence_parallel_unknown_is_off_and_said() -> None:
    candidate = converted(plan__sequence_parallel=None)
    assert not candidate.plans[0].sequence_parallel
    assert "no sequence parallelism" in candidate.assumptions


def test_benchmarks_of_nvidia_are_read_as_their_scripts_configure_them() -> None:
    """NVTE_FUSED_ATTN=0 for Grok-1 and GPT-3, not for Llama; bf16 sums but for Nemotron-4 of then.

    User buffers sum 8 bits for Llama 3.1 405B alone.
    """
    old = "NeMo (dgxc-benchmarking v24.11.1)"
    grok = stack_of(run(software=old, model__name="Grok-1"))
    gpt = stack_of(run(software=old, model__name="GPT3-175B"))
    llama = stack_of(run(software=old, model__name="Llama3-70B"))
    nemotron = stack_of(run(software=old, model__name="Nemotron4-15B"))
    assert (grok.attention_kernel, gpt.attention_kernel) == ("flash2", "flash2")
    assert (llama.attention_kernel, nemotron.attention_kernel) == ("newest", "newest")
    assert (gpt.dropout, grok.dropout, llama.dropout) == (True, False, False)
    assert (grok.gradient_bytes, llama.gradient_bytes, nemotron.gradient_bytes) == (2, 2, 4)
    largest = stack_of(run(software=old, model__name="Llama3.1-405B"))
    assert [s.tp_narrow_sums for s in (gpt, llama, nemotron, largest)] == [False, False, False, True]
    newer = {"software": "NeMo (dgxc-benchmarking v25.02)"}
    assert stack_of(run(**newer, model__name="GPT3-175B")).attention_kernel == "newest"
    assert stack_of(run(**newer, model__name="Grok-1")).attention_kernel == "flash2"
    assert stack_of(run(software="NeMo 24.07", model__name="Llama2-7B")).attention_kernel == "flash2"


def test_mlperf_submissions_are_read_as_their_scripts_configure_them() -> None:
    """16-bit sums; buckets of one release; 16-bit gathers beside FP4; Cisco and AMD launch eagerly."""
    nemo = {"source": "mlperf-training", "software": "NVIDIA NeMo Framework Release 25.09"}
    before = stack_of(run(**nemo, notes="MLPerf Training v5.0 NVIDIA; layout from config_GB200_tp4pp8cp2.sh"))
    assert (before.gradient_bytes, before.step_gradient_bytes, before.bucket_parameters) == (2, 4, None)
    fp8 = stack_of(run(**nemo, notes="MLPerf Training v5.1 Verda; layout from config_tp1pp1cp2_8b.sh"))
    fp4 = stack_of(run(**nemo, notes="MLPerf Training v5.1 Nebius; layout from config_tp1pp1cp1_8b_fp4.sh"))
    assert (fp8.bucket_parameters, fp8.narrow_parameters) == (134217728, True)
    assert (fp4.bucket_parameters, fp4.narrow_parameters) == (134217728, False)
    cisco = stack_of(run(**nemo, notes="MLPerf Training v5.1 Cisco hpf_n8; layout from config_tp1pp1cp1.sh"))
    assert (cisco.bucket_parameters, cisco.host_layer_floor_ms, cisco.tp_userbuffers) == (None, 0.9, False)
    large = "MLPerf Training v5.1 NVIDIA; layout from config_GB300_128x4x1xtp2pp1cp4_8b.sh, checked"
    assert stack_of(run(**nemo, notes=large)).bucket_parameters == 768000000
    assert fp8.host_layer_floor_ms == 0.0
    amd = stack_of(run(source="mlperf-training", software="PyTorch, ROCm 7.0.1"))
    assert (amd.gradient_bytes, amd.dp_overlap, amd.narrow_parameters) == (2, False, True)


def test_latent_attention_on_blackwell_goes_through_memory_before_its_kernel_came() -> None:
    gb200 = {"chip": "gb200-186gb", "num_chips": 16, "chips_per_node": 4}
    deepseek = {"software": "NeMo (dgxc-benchmarking v25.05.05)", "model__name": "DeepSeek-V3"}
    assert not stack_of(run(**deepseek, cluster__groups=[gb200])).flash_attention
    assert stack_of(run(**deepseek)).flash_attention
    assert stack_of(
        run(
            software="Megatron-Bridge / NeMo container 25.09",
            model__name="DeepSeek-V3",
            cluster__groups=[gb200],
        )
    ).flash_attention


def test_runs_without_a_recipe_take_that_of_their_release() -> None:
    b200 = {"chip": "b200-180gb", "num_chips": 16, "chips_per_node": 8}
    deepseek = {
        "software": "Megatron-Bridge / NeMo container 26.04.01",
        "model__name": "DeepSeek-V3",
        "cluster__groups": [b200],
    }
    unnamed = stack_of(run(**deepseek, notes="recompute not stated in source table"))
    assert unnamed.ep_overlap
    assert unnamed.captured_modules == ("attn", "moe_router", "moe_preprocess")
    named = stack_of(run(**deepseek, notes="recipe X_V2@v0.4.1, moe_flex_dispatcher_backend=hybridep"))
    assert not named.ep_overlap and not named.captured_modules


def test_runs_without_a_recipe_launch_as_that_of_their_model_does() -> None:
    software = "Megatron-Bridge / NeMo container 25.11"
    b200 = [{"chip": "b200-180gb", "num_chips": 8, "chips_per_node": 8}]
    gb300 = [{"chip": "gb300-288gb", "num_chips": 8, "chips_per_node": 4}]
    eager = (("DeepSeek-V3", b200), ("GPT-OSS-120B", b200))
    for name, groups in eager:
        stack = stack_of(run(software=software, model__name=name, cluster__groups=groups))
        assert stack.host_layer_floor_ms > 0 and not stack.captured_modules
        assert stack.moe_dispatcher == "alltoall"
    large = stack_of(run(software=software, model__name="GPT-OSS-120B", cluster__groups=gb300))
    assert large.host_layer_floor_ms == 0.0
    parts = stack_of(run(software=software, model__name="Qwen3-30B-A3B", cluster__groups=b200))
    assert parts.captured_modules == ("attn", "moe_router", "moe_preprocess")


@pytest.mark.parametrize(
    ("model", "chip", "precision", "modules"),
    [
        ("DeepSeek-V3", "gb200-186gb", "bf16", ("moe_router", "moe_preprocess")),
        ("DeepSeek-V3", "gb200-186gb", "mxfp8", ("attn", "moe_router", "moe_preprocess")),
        ("Llama3-70B", "gb200-186gb", "bf16", None),
    ],
)
def test_graphs_of_mixtures_hold_what_their_recipes_name(
    model: str, chip: str, precision: str, modules: tuple[str, ...] | None
) -> None:
    release = "25.11" if modules else "26.02"
    found = stack_of(
        run(
            software=f"Megatron-Bridge / NeMo container {release}",
            notes="" if modules else "recipe X@v0.3.0, cuda_graph_impl=transformer_engine",
            model__name=model,
            cluster__groups=[{"chip": chip, "num_chips": 8, "chips_per_node": 4}],
            workload__precision=precision,
        )
    )
    assert found.captured_modules == (modules or ())
    assert (found.host_layer_floor_ms > 0) == (modules is not None)


@pytest.mark.parametrize(
    ("model", "moe", "chip", "precision", "modules"),
    [
        ("A-model-nobody-named", MOE, "gb300-288gb", "mxfp8", ("attn", "moe_router", "moe_preprocess")),
        ("A-model-nobody-named", None, "gb300-288gb", "mxfp8", ()),
        ("Nemotron-H-56B", None, "gb300-288gb", "fp8", ("attn",)),
        ("Qwen3-30B-A3B", MOE, "gb200-186gb", "mxfp8", ("moe_router", "moe_preprocess")),
        ("Qwen3-30B-A3B", MOE, "gb200-186gb", "bf16", ("attn", "moe_router", "moe_preprocess")),
        ("Qwen3-30B-A3B", MOE, "h100-sxm-80gb", "bf16", ("moe_router", "moe_preprocess")),
    ],
)
def test_layers_graphs_hold_modules_alone_where_a_model_has_experts(
    model: str, moe: dict[str, object] | None, chip: str, precision: str, modules: tuple[str, ...]
) -> None:
    found = stack_of(
        run(
            software="Megatron-Bridge / NeMo container 26.04",
            notes="recipe X_V1@v0.4.0, cuda_graph_impl=transformer_engine",
            model__name=model,
            model__moe=moe,
            cluster__groups=[{"chip": chip, "num_chips": 8, "chips_per_node": 4}],
            workload__precision=precision,
        )
    )
    assert found.captured_modules == modules
    assert (found.host_layer_floor_ms > 0) == bool(modules)


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ("recompute_modules=mla_up_proj, mlp, cuda_graph_impl=none", ("mla_up_proj", "mlp")),
        ("recompute_modules=['moe', 'layernorm'], moe_a2a_overlap=True", ("moe", "layernorm")),
        ("recompute_modules=layernorm+moe_act; MLA attention, mlp", ("layernorm", "moe_act")),
        ("cuda_graph_impl=none", ("mla_up_proj", "moe_act", "layernorm")),
    ],
)
def test_every_module_that_a_recipe_recomputes_is_read(words: str, modules: tuple[str, ...]) -> None:
    software = "Megatron-Bridge / NeMo container 26.04"
    assert stack_of(run(software=software, notes=f"recipe X@v0.4.0, {words}")).selective_modules == modules


@pytest.mark.parametrize(
    ("release", "pads"), [("v24.11.1", False), ("v25.02", True), ("v25.05.05", True), ("v25.07", False)]
)
def test_rows_of_experts_are_copied_by_the_releases_that_pad_whatever_their_number(
    release: str, pads: bool
) -> None:
    software = f"NeMo (dgxc-benchmarking {release})"
    found = [stack_of(run(software=software, model__moe=moe)) for moe in (MOE, None)]
    assert [stack.pads_narrow_experts for stack in found] == [pads, False]


def test_exchanges_run_beside_products_whole_only_in_captured_iterations() -> None:
    software = "Megatron-Bridge / NeMo container 26.06"
    captured = stack_of(run(software=software, notes="moe_a2a_overlap=True, cuda_graph_impl=full_iteration"))
    eager = stack_of(run(software=software, notes="moe_a2a_overlap=True"))
    assert captured.ep_overlap and captured.ep_overlap_share == 1.0
    assert eager.ep_overlap and 0 < eager.ep_overlap_share < 1


def test_heads_and_attention_of_deepseek_on_grace_hosts_run_in_8_bits_since_their_release() -> None:
    def of(release: str, chip: str) -> tuple[bool, str]:
        chips = {"chip": chip, "num_chips": 16, "chips_per_node": 4}
        software = f"Megatron-Bridge / NeMo container {release}"
        found = stack_of(run(software=software, model__name="DeepSeek-V3", cluster__groups=[chips]))
        return found.narrow_head, found.attention_kernel

    assert of("26.06.01", "gb300-288gb") == (True, "mxfp8")
    assert of("26.06.01", "gb200-186gb") == (True, "newest")
    assert of("26.04", "gb300-288gb") == (False, "newest")


def test_recipes_of_2025_for_deepseek_on_h100_overlap_exchanges_and_no_gradients() -> None:
    software = {"software": "Megatron-Bridge / NeMo container 25.09", "model__name": "DeepSeek-V3"}
    dropless = stack_of(run(**software, notes="dropless"))
    assert dropless.ep_overlap and not dropless.dp_overlap
    assert dropless.selective_modules == ("mla_up_proj", "mlp")
    assert not stack_of(run(**software, notes="tokendrop")).ep_overlap


def test_sorting_and_loss_of_nemo_are_those_of_its_release() -> None:
    newer, older = (stack_of(run(software=f"NeMo (dgxc-benchmarking v25.0{m})")) for m in (5, 2))
    assert newer.fused_cross_entropy and newer.moe_permute_loops
    assert not older.fused_cross_entropy and not older.moe_permute_loops


def test_qwen3_exchanges_plainly_on_h100_whatever_backend_its_recipe_names() -> None:
    qwen = {
        "software": "Megatron-Bridge / NeMo container 26.02.01",
        "model__name": "Qwen3-235B-A22B",
        "notes": "recipe X_V2@v0.3.1, moe_flex_dispatcher_backend=deepep",
    }
    found = stack_of(run(**qwen))
    assert (found.moe_dispatcher, found.tp_userbuffers) == ("alltoall", False)
    gb200 = [{"chip": "gb200-186gb", "num_chips": 16, "chips_per_node": 4}]
    assert stack_of(run(**qwen, cluster__groups=gb200)).moe_dispatcher == "deduplicating"


def test_maxtext_recomputes_all_but_what_its_script_names() -> None:
    found = convert(run(software="MaxText (JAX) dgxc-benchmarking v25.02", plan__recompute=None))
    assert [plan.stages[0].recompute for plan in found.plans] == ["selective"]
    assert found.problem.stack.selective_modules == ("all_but_qkv",)
    llama2 = stack_of(run(software="MaxText (JAX) dgxc-benchmarking v24.11.1", plan__recompute=None))
    assert llama2.selective_modules == ("all_but_qkv_proj",)


def test_paxml_saves_dots_and_shards_over_the_nodes_of_its_script() -> None:
    small, large = (
        convert(run(software="PaxML (JAX) v24.11.1", plan__recompute=None, model__name=name))
        for name in ("GPT3-5B", "GPT3-175B")
    )
    assert [plan.stages[0].recompute for plan in small.plans] == ["selective"]
    stacks = [found.problem.stack for found in (small, large)]
    assert [stack.selective_modules for stack in stacks] == [("all_but_products",), ("all_but_qkv_proj",)]
    assert [stack.optimizer_shard_size for stack in stacks] == [8, 128]


def test_maxtext_shards_over_sixteen_nodes_from_sixty_four_on() -> None:
    def size(num_chips: int) -> int | None:
        groups = [{"chip": "h100-sxm-80gb", "num_chips": num_chips, "chips_per_node": 8}]
        of = run(software="MaxText (JAX) dgxc-benchmarking v25.02", cluster__groups=groups)
        return stack_of(of).optimizer_shard_size

    assert [size(n) for n in (128, 256, 512, 2048)] == [None, None, 128, 128]


def test_megatron_of_2021_adds_gradients_apart_and_that_of_2022_where_sums_are_narrow() -> None:
    of_2021, of_2022 = (
        stack_of(run(software="Megatron-LM (Selene)", source=source))
        for source in ("sc21-megatron", "korthikanti22")
    )
    assert (of_2021.gradient_bytes, of_2021.gradient_accumulation_fusion) == (2, False)
    assert (of_2022.gradient_bytes, of_2022.gradient_accumulation_fusion) == (4, True)


def test_mindspeed_adds_gradients_apart_and_overlaps_their_sums_where_the_script_says_so() -> None:
    plain = stack_of(run(software="MindSpeed-LLM 1.0.RC3 (Mcore)", notes="script enables mc2"))
    asked = stack_of(run(software="MindSpeed-LLM 1.0.RC3 (Mcore)", notes="mc2; overlap-grad-reduce; x"))
    assert (plain.gradient_accumulation_fusion, plain.dp_overlap, asked.dp_overlap) == (False, False, True)


@pytest.mark.parametrize(
    ("software", "script", "fused"),
    [
        ("MindSpeed-LLM 1.0.RC3 (Legacy)", "examples/llama/pretrain_llama_33B_ptd_32p.sh", False),
        ("MindSpeed-LLM 1.0.RC3 (Mcore)", "examples/mcore/gemma/pretrain_gemma_2b_ptd.sh", False),
        ("MindSpeed-LLM 1.0.RC3 (Mcore)", "examples/mcore/llama2/pretrain_llama2_70b_ptd.sh", True),
    ],
)
def test_mindspeed_fuses_activations_where_the_script_asks_for_it(
    software: str, script: str, fused: bool
) -> None:
    stack = stack_of(run(software=software, notes=f"config from {script}"))
    assert stack.fused_pointwise == fused


def test_llama_of_flagperf_on_40_gb_has_no_fused_norm() -> None:
    small = {"groups": [{"chip": "a100-sxm-40gb", "num_chips": 16, "chips_per_node": 8}]}
    words = {"software": "PaddleNLP (FlagPerf) fp16 O2, flash attention", "model__name": "LLaMA1-7B"}
    assert stack_of(run(**words, cluster=small)).plain_modules
    assert not stack_of(run(**words)).plain_modules


@pytest.mark.parametrize(
    ("software", "model", "dropout"),
    [
        ("Megatron-Core 0.6.0 (FlagPerf)", "Llama3-8B", True),
        ("Megatron-Core 0.6.0 (FlagPerf)", "Mixtral-8x7B", False),
        ("Megatron-LM (FlagPerf)", "Llama2-70B", False),
    ],
)
def test_scripts_of_flagperf_that_name_no_dropout_have_it(software: str, model: str, dropout: bool) -> None:
    assert stack_of(run(software=software, model__name=model)).dropout == dropout


def test_paddlenlp_of_flagperf_ran_before_flash_attention_2() -> None:
    # Its steps were 7% too short, every one of them.
    later = "PaddlePaddle 9b36e53 / PaddleNLP 0b246a6 (2023-11)"
    for software, kernel in (("PaddleNLP (FlagPerf) fp16 O2", "flash1"), (later, "newest")):
        assert stack_of(run(software=software)).attention_kernel == kernel


def test_qwen_under_paddlenlp_gathers_its_logits() -> None:
    software = "PaddlePaddle 9b36e53 / PaddleNLP 0b246a6 (2023-11)"
    assert stack_of(run(software=software, model__name="Qwen-7B")).gathers_logits
    assert not stack_of(run(software=software, model__name="Llama-13B")).gathers_logits


def test_paddlenlps_table_of_2023_shows_reserved_memory_and_runs_without_master_gradients() -> None:
    of = run(software="PaddlePaddle 9b36e53 / PaddleNLP 0b246a6 (2023-11)", memory_kind="allocated")
    assert memory_kind(of) == "reserved"
    assert stack_of(of).gradient_bytes == 2
    assert memory_kind(run(memory_kind="allocated")) == "allocated"
    assert memory_kind(run()) is None


def test_virtual_stages_that_a_list_leaves_out_are_those_of_the_launchers_configuration() -> None:
    listed = {"model__name": "Nemotron-22B", "notes": "VP not listed in this revision"}
    assert virtual_stages_of(run(**listed, plan__virtual_stages=None)) == 10
    assert virtual_stages_of(run(**listed, plan__virtual_stages=2)) == 2
    assert virtual_stages_of(run(model__name="Nemotron-22B", plan__virtual_stages=None)) == 1
