"""What went wrong for users of other tools, told in public, and what we make of it.

Each test or row names the thread that it comes from; only its facts are kept here: model, degrees, cluster.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from planner.cost.communication.collective_counts import collective_counts
from planner.cost.prices import STATES
from planner.cost.stage_shape import StageShape
from planner.data.load import build_problem, load_model, load_problem
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.errors import InstanceError
from planner.launchers.directory import export_plan
from planner.launchers.megatron.hybrid import hybrid_pattern
from planner.launchers.megatron.plan_arguments import pipeline_layout
from planner.launchers.read.back import ReadBack
from planner.launchers.read.megatron import read_arguments
from planner.report import words
from planner.report.slow_links import slow_links
from planner.rules import experts, sequence, tensor
from planner.rules.versions import version_violations
from planner.search import driver
from planner.simulate.evaluate import evaluate
from tests.planner.launchers import plans

NODE = "1x8 h100-sxm-80gb"

MODERN = (
    "--bf16 --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear "
    "--position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 "
)
SMALL: dict[str, Any] = {
    "num_layers": 32,
    "hidden_size": 1024,
    "ffn_hidden_size": 4096,
    "num_attention_heads": 16,
    "seq_length": 2048,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
    "micro_batch_size": 1,
    "global_batch_size": 64,
}
LLAMA_70B = {
    "num_layers": 80,
    "hidden_size": 8192,
    "ffn_hidden_size": 28672,
    "num_attention_heads": 64,
    "group_query_attention": "",
    "num_query_groups": 8,
    "seq_length": 4096,
    "max_position_embeddings": 4096,
}
EXPERTS = {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 2048}


def read(cluster: str = NODE, flags: str = "", common: str = MODERN, **sizes: Any) -> ReadBack:
    """A user's arguments on a cluster: a small model, unless told otherwise."""
    values = {**SMALL, **sizes}
    words = [f"--{name.replace('_', '-')} {value}" for name, value in values.items()]
    return read_arguments(f"{' '.join(words)} {common} {flags}", cluster, where="case")


def judged(cluster: str = NODE, flags: str = "", common: str = MODERN, **sizes: Any) -> Evaluation:
    """What the referee says of a user's arguments."""
    back = read(cluster, flags, common, **sizes)
    return evaluate(back.problem, back.plan)


def layers_of(back: ReadBack) -> list[list[int]]:
    return [[last - first + 1 for first, last in stage.chunks] for stage in back.plan.stages]


@lru_cache
def asked(model: str, cluster: str, batch: int = 16, **options: int) -> Problem:
    """A question to the planner, with degrees pinned."""
    of = build_problem(cluster=cluster, model=model, seq_length=1024, global_batch_size=batch)
    return of.model_copy(update={"options": of.options.model_copy(update={"pin": options})})


def reason(of: Problem) -> str:
    """Why there is no plan."""
    result = driver.search(of)
    assert result.termination == "infeasible" and result.reason is not None
    return result.reason


@pytest.mark.parametrize(
    ("layers", "stages", "layout"),
    [
        (7, 2, "Et*4|t*3L"),  # NVIDIA/Megatron-LM#381
        (30, 4, "Et*7|t*8|t*8|t*7L"),  # NVIDIA/Megatron-LM#1304: 28 layers were built in silence
        (46, 4, "Et*11|t*12|t*12|t*11L"),  # modelscope/ms-swift#5737
    ],
)
def test_layers_that_do_not_divide_are_refused_with_a_layout_that_holds_them(
    layers: int, stages: int, layout: str
) -> None:
    flags = f"--pipeline-model-parallel-size {stages}"
    with pytest.raises(InstanceError, match=f"{layers} layers do not split evenly") as refusal:
        read(flags=flags, num_layers=layers)
    assert f'"{layout}"' in str(refusal.value)
    back = read(flags=f"{flags} --pipeline-model-parallel-layout {layout}", num_layers=layers)
    assert sum(map(sum, layers_of(back))) == layers
    assert pipeline_layout(back.plan) == layout


def test_forty_layers_on_sixteen_stages_need_two_or_three_each() -> None:
    # NVIDIA/Megatron-LM#1303; equal middle stages would need (40 - first - last) to be a multiple of 14.
    with pytest.raises(InstanceError) as refusal:
        read("2x8 h100-sxm-80gb", "--pipeline-model-parallel-size 16", num_layers=40)
    entries = str(refusal.value).partition('"E')[2].partition('L"')[0].split("|")
    assert sorted(entries) == ["t*2"] * 8 + ["t*3"] * 8


@pytest.mark.parametrize(
    ("layers", "last", "expected"),
    [
        (94, 22, [24, 24, 24, 22]),  # modelscope/ms-swift#6476
        (94, 16, [26, 26, 26, 16]),  # NovaSky-AI/SkyRL#1000
        (61, 13, [16, 16, 16, 13]),  # radixark/miles#1102: the last stage has fewer, not more
    ],
)
def test_a_last_stage_of_its_own_count_leaves_the_rest_even(
    layers: int, last: int, expected: list[int]
) -> None:
    flags = f"--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers {last}"
    assert layers_of(read(flags=flags, num_layers=layers)) == [[count] for count in expected]


def test_a_count_for_the_last_of_one_stage_is_refused() -> None:
    # NVIDIA/Megatron-LM#1778: the model became one layer, its FLOP were reported for 20.
    with pytest.raises(InstanceError, match="one pipeline stage, which holds all 20 layers"):
        read(flags="--decoder-last-pipeline-num-layers 1", num_layers=20)


def test_embedding_and_loss_count_as_a_layer_each() -> None:
    # ISEEKYAN/Megatron-LM#53.
    flags = "--pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split"
    back = read(flags=f"{flags} --account-for-loss-in-pipeline-split", num_layers=6)
    assert layers_of(back) == [[1], [2], [2], [1]]


def test_chunks_of_a_layout_are_dealt_round_the_ranks() -> None:
    # microsoft/ltp-megatron-lm#49 lists them rank by rank; a layout lists chunk 0 of all ranks, then chunk 1.
    layout = "Et*3|t*4|t*5|t*4|t*4|t*4|t*4|t*4L"
    back = read(flags=f"--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout {layout}")
    assert layers_of(back) == [[3, 4], [4, 4], [5, 4], [4, 4]]


@pytest.mark.parametrize(
    ("stages", "layout", "expected"),
    [
        (4, "Et*16|t*16|t*16|t*13mL", [16, 16, 16, 13]),  # NVIDIA-NeMo/Megatron-Bridge#1502
        (8, "Et*8|(t*8|)*6t*5mL", [8, 8, 8, 8, 8, 8, 8, 5]),  # NVIDIA-NeMo/Megatron-Bridge#1478
    ],
)
def test_published_layouts_of_deepseek_v3_are_read(stages: int, layout: str, expected: list[int]) -> None:
    flags = f"--pipeline-model-parallel-size {stages} --pipeline-model-parallel-layout {layout}"
    back = read(flags=f"{flags} --mtp-num-layers 1", num_layers=61)
    assert layers_of(back) == [[count] for count in expected]


def test_a_layout_beside_a_number_of_virtual_stages_is_refused() -> None:
    # NVIDIA-NeMo/Megatron-Bridge#5443: a layout of 16 entries was left from a recipe of 16 stages.
    flags = "--pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 1"
    with pytest.raises(InstanceError, match="the layout alone says"):
        read(flags=f"{flags} --pipeline-model-parallel-layout Et*2|(tt|)*14ttL")


@pytest.mark.parametrize("layout", ["E|t*16|t*16|L", "E|t*16|t*16|mL"])
def test_embedding_or_loss_may_have_a_stage_of_its_own(layout: str) -> None:
    # NVIDIA/Megatron-LM#890, and modelscope/ms-swift#9823 with prediction beside the loss.
    flags = f"--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout {layout}"
    back = read(flags=flags + (" --mtp-num-layers 1" if "m" in layout else ""))
    found = evaluate(back.problem, back.plan)
    assert found.violations == ()
    # Near-miss: a stage in between without layers only adds a hop.
    between = flags.replace(layout, "Et*16||t*16|L")
    assert any("layer range" in message for message in judged(flags=between).violations)


@pytest.mark.parametrize(
    ("stages", "batch"),
    [
        (6, 3),  # NVIDIA-NeMo/Speech#14288
        (8, 12),  # NVIDIA-BioNeMo/bionemo-recipes#286
    ],
)
def test_interleaving_names_the_ways_out(stages: int, batch: int) -> None:
    flags = f"--pipeline-model-parallel-size {stages} --num-virtual-stages-per-pipeline-rank 2"
    cluster = f"1x{stages} h100-sxm-80gb"
    found = judged(cluster, flags, num_layers=2 * stages, global_batch_size=batch).violations
    assert any(
        f"num_microbatches {batch}" in message and "raise global_batch_size, use fewer stages" in message
        for message in found
    )


def interleaved(group: int | None, batch: int, stages: int = 8) -> ReadBack:
    """Two virtual stages a rank, in groups of so many micro-batches."""
    flags = f"--pipeline-model-parallel-size {stages} --num-virtual-stages-per-pipeline-rank 2"
    if group is not None:
        flags += f" --microbatch-group-size-per-virtual-pipeline-stage {group}"
    return read(f"1x{stages} h100-sxm-80gb", flags, global_batch_size=batch)


def test_small_groups_of_interleaving_are_warned_of_and_refused() -> None:
    # NVIDIA/Megatron-LM#1829: a group below the number of stages multiplies the bubble.
    small, usual = interleaved(4, 64), interleaved(None, 64)
    assert "below the 8 pipeline stages" in " ".join(small.warnings) and usual.warnings == ()
    (message,) = evaluate(small.problem, small.plan).violations
    assert "must lie between the 8 pipeline stages" in message


def test_micro_batches_that_are_no_multiple_of_the_stages_run_in_groups_that_fit() -> None:
    # pytorch/pytorch#129597: PP 4 and 10 micro-batches, legal in 2 rounds of 5.
    refused, legal = interleaved(None, 10, 4), interleaved(5, 10, 4)
    (message,) = evaluate(refused.problem, refused.plan).violations
    assert "or microbatch_group_size 5" in message
    assert evaluate(legal.problem, legal.plan).violations == () and legal.warnings == ()
    assert legal.plan.microbatch_group_size == 5
    # More micro-batches wait on the first stage than in groups of 4.
    held, of_twelve = (
        evaluate(back.problem, back.plan).stages[0].memory_gib["activations"]
        for back in (legal, interleaved(None, 12, 4))
    )
    assert held > of_twelve
    last = interleaved(16, 20)
    assert any("last group of 4" in message for message in evaluate(last.problem, last.plan).violations)


def test_the_pattern_of_a_hybrid_ends_every_virtual_stage() -> None:
    # NVIDIA/Megatron-LM#3377.
    for virtual in (False, True):
        problem, plan = plans.hybrid_layers(virtual)
        pattern = hybrid_pattern(problem.model, plan)
        assert pattern.count("|") == plan.pipeline_parallel * plan.virtual_stages - 1
        assert problem.model.hybrid is not None and pattern.replace("|", "") == problem.model.hybrid.pattern
        of_stage = [len(part) for part in pattern.split("|")]
        assert of_stage == ([7, 19, 11, 15] if virtual else [15, 37])


def test_a_hybrid_asks_for_a_release_that_ends_stages_and_recomputes_layers() -> None:
    problem, plan = plans.hybrid_layers()
    assert version_violations(problem, plan, "0.18") == ()
    (recompute,) = version_violations(problem, plan, "0.17")
    assert "does not recompute the layers" in recompute
    assert any("take version 0.17 or newer" in said for said in version_violations(problem, plan, "0.16"))


def test_context_parallelism_of_a_hybrid_is_refused_not_mispriced() -> None:
    problem, plan = plans.hybrid_layers()
    halved = plan.model_copy(update={"context_parallel": 2, "data_parallel": 2})
    assert any("around Mamba layers is not priced" in said for said in evaluate(problem, halved).violations)


def test_prediction_apart_from_the_loss_needs_three_stages() -> None:
    # NVIDIA-NeMo/Megatron-Bridge#3928.
    flags = "--pipeline-model-parallel-size 2 --mtp-num-layers 1 --pipeline-model-parallel-layout "
    for layout in ("Et*16|t*16|m|L", "Et*32m|L"):
        back = read(flags=flags + layout)
        assert any("needs 3 pipeline stages" in said for said in evaluate(back.problem, back.plan).violations)
    with pytest.raises(InstanceError, match="needs one E"):
        read(flags=flags + "Et*32|m")


def test_replicas_of_a_stage_that_meet_over_two_transports_are_refused() -> None:
    # NVIDIA/nccl#234: InfiniBand on some nodes of a group only.
    back = read("1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb", "--tensor-model-parallel-size 8")
    assert back.plan.stages[0].replicas is not None
    first, second = back.problem.cluster.classes
    thin = second.model_copy(update={"transport": "tcp"})
    cluster = back.problem.cluster.model_copy(update={"classes": (first, thin)})
    problem = back.problem.model_copy(update={"cluster": cluster})
    assert evaluate(back.problem, back.plan).violations == ()
    found = evaluate(problem, back.plan).violations
    assert any("reach each other in different ways" in message for message in found)


def test_copied_key_value_heads_ask_for_a_release_that_copies_them() -> None:
    # modelscope/ms-swift#8219: 2 groups at TP 8, refused by core 0.15, accepted from 0.16 on.
    flags = "--tensor-model-parallel-size 8 --sequence-parallel --group-query-attention --num-query-groups 2"
    back = read(flags=flags)
    assert evaluate(back.problem, back.plan).violations == ()
    assert version_violations(back.problem, back.plan, "0.16") == ()
    assert "version 0.16 or newer" in version_violations(back.problem, back.plan, "0.15")[0]
    assert any("version 0.16 or newer" in warning for warning in back.warnings)


@pytest.mark.parametrize(
    ("model", "tp", "legal"),
    [
        ("llama2-13b", 3, "1, 2"),  # vllm-project/vllm#596: 40 heads
        ("llama-30b", 8, "1, 2, 4"),  # deepspeedai/DeepSpeed#3634: 52 heads
        ("qwen2.5-7b", 8, "1, 2, 4"),  # THU-KEG/AdaptThink#1: 28 heads
    ],
)
def test_heads_that_do_not_split_name_the_legal_degrees(model: str, tp: int, legal: str) -> None:
    refusals = tensor.tensor_parallel_refusals(load_model(model), tp)
    assert "attention heads do not split evenly" in refusals[0]
    assert refusals[0].endswith(f"legal below it: {legal}")


def test_expert_parallelism_that_does_not_fit_prints_its_factors() -> None:
    # THUDM/slime#2077: 8 ranks, TP 2, PP 2, EP 8, ETP 1; NVIDIA-NeMo/Speech#14838: whence the 8?
    flags = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel "
    found = judged(
        flags=flags + "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1", **EXPERTS
    ).violations
    message = next(one for one in found if "expert_parallel 8" in one)
    assert "x expert_tensor_parallel 1 = 8" in message and "tensor 2 x context 1 x data 2" in message
    assert (
        experts.expert_ranks_divide_stage(tp=1, cp=1, dp=2, etp=1, ep=2) is None
    )  # the second thread's case


def test_experts_split_as_the_rest_unless_told_otherwise() -> None:
    # NVIDIA-NeMo/Megatron-Bridge#546: TP 4, EP 4 on 4 chips, expert tensor parallelism not passed on.
    flags = "--tensor-model-parallel-size 4 --expert-model-parallel-size 4 --sequence-parallel"
    back = read("1x4 h100-sxm-80gb", flags, **EXPERTS)
    found = evaluate(back.problem, back.plan).violations
    assert any("expert_tensor_parallel 4 = 16" in message and "to 1" in message for message in found)
    assert any("--expert-tensor-parallel-size" in warning for warning in back.warnings)


@pytest.mark.parametrize(("has_experts", "refused"), [(True, True), (False, False)])
def test_only_experts_need_sequence_parallelism(has_experts: bool, refused: bool) -> None:
    # NVIDIA/Megatron-LM#1587; ROCm/Megatron-LM#85: the check fired on dense models.
    found = judged(flags="--tensor-model-parallel-size 2", **(EXPERTS if has_experts else {})).violations
    assert any("sequence_parallel: off with experts" in message for message in found) == refused


@pytest.mark.parametrize(
    ("flags", "sizes", "said"),
    [
        (  # NVIDIA/Megatron-LM#1810
            "--overlap-moe-expert-parallel-comm --pipeline-model-parallel-size 2 "
            "--decoder-first-pipeline-num-layers 15",
            EXPERTS,
            "reported to hang",
        ),
        (  # NVIDIA/Megatron-LM#1368
            "--use-torch-fsdp2 --recompute-granularity full --recompute-method uniform",
            {},
            "save no memory",
        ),
        (  # NVIDIA/Megatron-LM#1025
            "--context-parallel-size 4",
            {"seq_length": 131072, "max_position_embeddings": 131072},
            "--no-create-attention-mask-in-dataloader",
        ),
    ],
)
def test_known_traps_are_warned_of(flags: str, sizes: dict[str, int], said: str) -> None:
    assert said in " ".join(read(flags=flags, **sizes).warnings)


def test_experts_over_chips_beat_wide_tensor_parallelism() -> None:
    # NVIDIA/Megatron-LM#756: Mixtral on 16 H100, 130 TFLOP/s at a high TP, about 230 with TP 2 and EP 8.
    mixtral = EXPERTS | {
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "moe_ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "group_query_attention": "",
        "num_query_groups": 8,
        "seq_length": 4096,
        "max_position_embeddings": 4096,
        "global_batch_size": 128,
    }
    common = "--use-distributed-optimizer --sequence-parallel --moe-token-dispatcher-type alltoall"
    wide, spread = (
        judged(
            "2x8 h100-sxm-80gb",
            f"{common} --tensor-model-parallel-size {tp} --expert-model-parallel-size {ep} "
            f"--expert-tensor-parallel-size {etp}",
            **mixtral,
        ).step_s
        for tp, ep, etp in ((8, 1, 8), (2, 8, 1))
    )
    assert spread < wide * 130 / 230 * 1.25


def test_context_parallelism_wants_two_pieces_a_rank() -> None:
    # huggingface/trl#3994; NVIDIA-NeMo/Speech#8869 with FP8.
    work = build_problem(
        cluster=NODE, model="llama3-8b", seq_length=16384, global_batch_size=8, precision="fp8"
    ).workload
    assert "no multiple of 6" in (sequence.context_splits(work, 3) or "")
    odd = work.model_copy(update={"seq_length": 5504 + 8})
    assert "no multiple of 16" in (sequence.fp8_tokens_fill_rows(odd, 1, 2, 1, False) or "")


def test_seventy_billion_on_two_chips_say_how_many_it_takes() -> None:
    # NVIDIA/Megatron-LM#783; 69 billion x 18 bytes; ai-dynamo/aiconfigurator#437: memory is to blame.
    said = reason(asked("llama2-70b", "1x2 h100-sxm-80gb"))
    assert "does not fit" in said and "take 1,156 GiB" in said and "more than 15 chips" in said
    assert "Add chips" in said
    assert "does not fit" in reason(asked("deepseek-v3", "1x2 h200-sxm-141gb"))


def test_the_closest_layout_is_the_closest_and_pins_may_be_lifted() -> None:
    """Layouts of tensor parallelism 2 alone were looked at: there are so many of them."""
    problem = build_problem(
        cluster="4x8 a40-48gb", model="llama3-70b", seq_length=131_072, global_batch_size=8
    )
    said = reason(problem)
    assert "tensor parallel 8, 4 stages, data parallel 1" in said and "Lift" not in said
    options = problem.options.model_copy(update={"pin": {"tp": 2, "pp": 8}})
    pinned = reason(problem.model_copy(update={"options": options}))
    assert "Lift tp=2 or pp=8. Add chips" in pinned
    short = [float(text.split(" GiB short")[0].split()[-1]) for text in (said, pinned)]
    assert short[0] < short[1]


def test_a_pinned_degree_that_no_node_holds_is_named_with_the_devices() -> None:
    # flagos-ai/FlagScale#845.
    said = reason(asked("llama3-8b", "1x2 h100-sxm-80gb", tp=4))
    assert "tp=4 is pinned" in said and "2 devices" in said


def test_a_batch_that_does_not_divide_offers_the_nearest() -> None:
    # OpenRLHF/OpenRLHF#346; verl-project/verl#1811.
    said = reason(asked("qwen2.5-7b", "1x7 h100-sxm-80gb", 256, mbs=2, dp=7))
    assert "nearest legal: 252 or 266" in said


@pytest.mark.parametrize(
    ("cluster", "flags", "sizes", "fits"),
    [
        # hpcaitech/ColossalAI#5139: 70 billion on 32 chips, TP 8 alone or with PP 4.
        ("4x8 a100-sxm-80gb", "--tensor-model-parallel-size 8 --sequence-parallel", LLAMA_70B, False),
        (
            "4x8 a100-sxm-80gb",
            "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel",
            LLAMA_70B,
            True,
        ),
        # NVIDIA/Megatron-LM#1000: 8 chips cannot hold it.
        (
            "1x8 a100-sxm-80gb",
            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2",
            LLAMA_70B,
            False,
        ),
    ],
)
def test_what_ran_out_of_memory_is_refused_and_what_fits_is_not(
    cluster: str, flags: str, sizes: dict[str, Any], fits: bool
) -> None:
    found = judged(cluster, f"{flags} --use-distributed-optimizer", **sizes)
    assert all(stage.peak_memory_gib <= stage.limit_gib for stage in found.stages) == fits


def test_falcon_40b_needs_more_than_eight_chips() -> None:
    # epfLLM/Megatron-LLM#6: 41.8 billion x 18 bytes / 8 = 87.6 GiB a chip.
    found = judged(
        "1x8 a100-sxm-80gb",
        "--tensor-model-parallel-size 8 --sequence-parallel --group-query-attention --num-query-groups 8",
        MODERN.replace("--swiglu", ""),
        num_layers=60,
        hidden_size=8192,
        ffn_hidden_size=32768,
        num_attention_heads=128,
        vocab_size=65024,
        global_batch_size=8,
    )
    (stage,) = found.stages
    states = sum(stage.memory_gib[name] for name in STATES)
    assert states == pytest.approx(87.6, rel=0.02)
    assert stage.peak_memory_gib > stage.limit_gib


def test_eight_bit_training_takes_no_less_memory_for_weights() -> None:
    # NVIDIA/Megatron-LM#1236.
    wide, narrow = (
        judged(flags=flags).stages[0].memory_gib["weights"] for flags in ("", "--fp8-format hybrid")
    )
    assert narrow >= wide


def test_memory_falls_along_the_pipeline_and_no_average_hides_the_fullest() -> None:
    # NVIDIA-NeMo/Megatron-Bridge#5077 (split 1, 2, 2, 3), AMD-AGI/Primus#362 (falls with the rank).
    flags = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|tt|tt|tttL"
    weights = [stage.memory_gib["weights"] for stage in judged(flags=flags, num_layers=8).stages]
    assert max(weights) == weights[-1] > 1.2 * sum(weights) / 4
    even = judged(flags="--pipeline-model-parallel-size 8", num_layers=64)
    kept = [stage.memory_gib["activations"] for stage in even.stages]
    assert kept == sorted(kept, reverse=True) and len(set(kept)) == 8


def test_no_plan_goes_to_the_brim() -> None:
    # ai-dynamo/aiconfigurator#1396: a plan for 99.8% of the card.
    of = asked("llama3-8b", NODE)
    assert of.memory_limit_bytes(0) <= 0.96 * of.usable_memory_bytes(0) * (1 + 1e-12)


def test_seventy_billion_on_128_chips_reach_what_was_measured() -> None:
    # NVIDIA/Megatron-LM#1031: TP 8, PP 8, DP 2, 5 layers recomputed: 296.5 TFLOP/s a chip (peak 989.4).
    flags = (
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --sequence-parallel "
        "--use-distributed-optimizer --overlap-grad-reduce --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 5"
    )
    sizes = LLAMA_70B | {"seq_length": 8192, "max_position_embeddings": 8192, "vocab_size": 128256}
    found = judged("16x8 h100-sxm-80gb", flags, **sizes, global_batch_size=1024)
    assert found.mfu * 989.4 == pytest.approx(296.5, rel=0.2)


def test_fewer_key_value_heads_than_ranks_cost_a_gather_and_its_memory() -> None:
    # ISEEKYAN/Megatron-LM#91; ai-dynamo/modelexpress#650: of the weights each rank still has its share alone.
    flags = "--tensor-model-parallel-size 8 --sequence-parallel"
    copied, split = (
        judged(flags=flags, **(LLAMA_70B | {"num_layers": 4, "num_query_groups": groups})).stages[0]
        for groups in (4, 8)
    )
    # Per layer 4,096 tokens x 2 bytes x (64 + 2 x 4) heads x 128 = 72 MiB are gathered, and kept for the
    # backward, in the place of an eighth of (64 + 2 x 8) heads, 10 MiB.
    more_gib = copied.memory_gib["activations"] - split.memory_gib["activations"]
    assert more_gib == pytest.approx(4 * 62 / 1024, rel=0.01)
    assert copied.memory_gib["weights"] < split.memory_gib["weights"]
    assert copied.forward_s > split.forward_s and copied.backward_s > split.backward_s


def test_copied_heads_issue_the_collectives_that_megatron_issues() -> None:
    # Counted on core 0.19.2 with 3 layers, one of them recomputed, 2 micro-batches, 2 groups on 4 ranks: of
    # all ranks' queries, keys and values 6 gathers forward, 2 more in the backward, 6 scatters.
    model = load_model("llama3-8b").model_copy(update={"num_layers": 3, "num_query_groups": 2})
    shape = StageShape(
        kinds=("dense",) * 3,
        has_embedding=True,
        has_head=True,
        stage=0,
        num_stages=1,
        tp=4,
        sequence_parallel=True,
        num_microbatches=2,
        recomputed_layers=1,
    )
    whole = 1024 * (32 + 2 * 2) * 128 * 2
    found = {(c.phase, c.op): c.count for c in collective_counts(model, shape, 1024) if c.size_bytes == whole}
    assert found == {
        ("forward", "all_gather"): 6,
        ("backward", "all_gather"): 2,
        ("backward", "reduce_scatter"): 6,
    }


def test_flagscale_writes_checkpoints_that_meshes_of_different_width_can(tmp_path: Path) -> None:
    # flagos-ai/FlagScale#319.
    of, plan = plans.uniform()
    out = export_plan(of, plan.model_copy(update={"target": "flagscale"}), "flagscale", tmp_path / "launch")
    assert "ckpt_format: torch\n" in (out / "train" / "hetero.yaml").read_text()


def test_every_node_starts_as_many_processes_as_it_has_chips(tmp_path: Path) -> None:
    # huggingface/accelerate#3894, deepspeedai/DeepSpeed#3409: 8 and 2 chips, which became 5 and 5.
    of = build_problem(
        cluster="accelerate-3894-8plus2", model="qwen3-8b", seq_length=2048, global_batch_size=40
    )
    pinned = of.options.model_copy(update={"pin": {"pp": 5, "tp": 2}, "gap": 0.5})
    result = driver.search(of.model_copy(update={"options": pinned}))
    assert result.plan is not None
    out = export_plan(of, result.plan, "megatron-lm", tmp_path / "launch")
    hostfile = (out / "forms" / "mpi" / "hostfile").read_text()
    # Either node may come first.
    assert sorted(line.rpartition("=")[2] for line in hostfile.split("\n") if line) == ["2", "8"]


VIRTUAL = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "


@pytest.mark.parametrize(
    ("flags", "sizes", "said"),
    [
        # Each is refused by Megatron-LM core 0.19.2, whose parser was shown these very words.
        ("--recompute-granularity full", {}, "add uniform or block"),
        ("--recompute-granularity selective --recompute-method uniform", {}, "leave it out"),
        ("--recompute-granularity selective --recompute-modules attn_core", {}, "no such module"),
        ("--recompute-granularity selective --recompute-modules moe_act", EXPERTS, "moe-grouped-gemm"),
        ("--overlap-param-gather --overlap-grad-reduce", {}, "without --use-distributed-optimizer"),
        ("--use-distributed-optimizer --overlap-param-gather", {}, "without --overlap-grad-reduce"),
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", {}, "without --sequence-parallel"),
        ("--moe-pad-expert-input-to-capacity", EXPERTS, "up to which it pads"),
        ("--moe-shared-expert-overlap", EXPERTS, "take alltoall or flex"),
        (
            "--overlap-moe-expert-parallel-comm --pipeline-model-parallel-size 2",
            EXPERTS,
            "needs virtual ones",
        ),
        (
            VIRTUAL + "--overlap-moe-expert-parallel-comm --recompute-granularity full "
            "--recompute-method uniform --recompute-num-layers 1",
            EXPERTS,
            "whole layers recomputed",
        ),
        (VIRTUAL + "--no-overlap-p2p-communication", {}, "on 2 pipeline ranks"),
        ("--moe-router-enable-expert-bias", EXPERTS, "score-function sigmoid"),
        ("--moe-router-num-groups 3", EXPERTS, "does not divide the 8 experts"),
        ("--multi-latent-attention --group-query-attention --num-query-groups 4", {}, "no such groups"),
        ("--recompute-granularity selective --recompute-modules mla_up_proj", {}, "leave the module out"),
        ("--context-parallel-size 4 --cp-comm-type a2a+p2p", {}, "whose product is 4"),
        (
            "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4",
            {},
            "whose product is 4",
        ),
        (VIRTUAL + "--num-layers-per-virtual-pipeline-stage 8", {}, "give one of them"),
        ("--fp16", {}, "takes one of them"),
        ("", {"max_position_embeddings": 1024}, "is below --seq-length"),
    ],
)
def test_flags_that_contradict_one_another_are_refused(flags: str, sizes: dict[str, Any], said: str) -> None:
    (refusal,) = read(flags=flags, **sizes).refusals
    assert said in refusal


@pytest.mark.parametrize(
    ("flags", "sizes", "said"),
    [
        ("", EXPERTS | {"moe_router_topk": 9}, "top_k 9 exceeds num_experts 8"),
        ("--group-query-attention --num-query-groups 3", {}, "must be a multiple of num_query_groups 3"),
        ("", {"num_attention_heads": 12}, "give --kv-channels"),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 3", {}, "does not divide the 8"),
        (  # ms-swift wants one m however many layers predict, Megatron-LM one for each
            "--pipeline-model-parallel-size 2 --mtp-num-layers 2 "
            "--pipeline-model-parallel-layout Et*16|t*16mL",
            {},
            "write one m for each",
        ),
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
            {},
            "8 layers of a stage do not split so",
        ),
        (
            "--pipeline-model-parallel-size 4 --account-for-loss-in-pipeline-split "
            "--decoder-first-pipeline-num-layers 4",
            {},
            "give one or the other",
        ),
    ],
)
def test_sizes_that_cannot_be_are_one_message(flags: str, sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(InstanceError, match=said):
        read(flags=flags, **sizes)


def test_sequence_parallelism_on_one_tensor_rank_is_off() -> None:
    # As Megatron-LM's parser switches it off, with a warning.
    back = read(flags="--sequence-parallel")
    assert not back.plan.sequence_parallel and evaluate(back.problem, back.plan).violations == ()


def test_adapters_of_two_makers_are_warned_of() -> None:
    # NVIDIA/nccl#1526: Mellanox on one node, Broadcom on the other; it ran, then stalled.
    back = read("nccl-1526-mixed-hca", "--tensor-model-parallel-size 8")
    said = " ".join(evaluate(back.problem, back.plan).assumptions)
    assert "adapters of two makers (mellanox, broadcom)" in said
    alike = read("2x8 h100-sxm-80gb", "--tensor-model-parallel-size 8")
    assert "makers" not in " ".join(evaluate(alike.problem, alike.plan).assumptions)


def test_a_measured_rate_explains_a_network_that_is_far_below_its_name() -> None:
    # huggingface/transformers#3274: 0.5 s a step on one node, 4 s on two, over 40 Gbit/s in name.
    bert = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "ffn_hidden_size": 3072}
    sizes = bert | {"vocab_size": 30522, "seq_length": 512, "max_position_embeddings": 512}
    # Apex' mixed precision keeps parameters, and so their gradients, in fp32.
    old = MODERN.replace(
        "--bf16 --swiglu --normalization RMSNorm", "--fp16 --accumulate-allreduce-grads-in-fp32"
    )
    back = read("azure-nc24s-v3-40g", "", old, **sizes, micro_batch_size=32, global_batch_size=256)
    (node_class,) = back.problem.cluster.classes
    steps, exchanged = [], []
    for rate in ({}, {"nic_gbit_per_s": 1.7, "rate_basis": "measured"}):
        changed = back.problem.cluster.model_copy(update={"classes": (node_class.model_copy(update=rate),)})
        found = evaluate(back.problem.model_copy(update={"cluster": changed}), back.plan)
        steps.append(found.step_s)
        exchanged.append(found.breakdown_s["dp"] / found.step_s)
    assert steps[0] < 1 and steps[1] == pytest.approx(4, rel=0.25)
    assert exchanged[1] > 0.8 > exchanged[0]


def test_an_empty_chunk_is_shown_as_one() -> None:
    back = read(flags="--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|t*16|t*16|L")
    assert [words.layers_of(stage) for stage in back.plan.stages] == [
        "- (0)",
        "0-15 (16)",
        "16-31 (16)",
        "- (0)",
    ]


@pytest.mark.slow
def test_a_link_between_sites_carries_no_group_but_what_is_named() -> None:
    """NVIDIA/Megatron-LM#2795: over 1,000 km never a layer, a sequence or experts; the rest must be named.

    With 8 Gbit/s a node, stages that hand on activations beat replicas that exchange 1.4 TB of gradients.
    """
    of = load_problem("nemotron-4-340b-two-sites-768")
    loose = of.options.model_copy(update={"gap": 0.1, "virtual_gap": 0.1, "top": 1})
    result = driver.search(of.model_copy(update={"options": loose}))
    assert result.plan is not None and result.evaluation is not None
    plan = result.plan
    assert plan.tensor_parallel <= 8 and plan.context_parallel == plan.expert_parallel == 1
    assert {stage.node_class for stage in plan.stages} == {"dc1", "dc2"}
    (told,) = slow_links(of, plan, result.evaluation)
    assert told.startswith("dc1 to dc2: activations and their gradients, 464 GB a step")
    assert all(stage.replicas is None for stage in plan.stages) and "parameters" not in told
