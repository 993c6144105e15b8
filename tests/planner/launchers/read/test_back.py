"""The way back: scripts and argument lists read as the problem and plan that they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli import main
from planner.cost.parameters import total_parameters
from planner.data.chip import Precision
from planner.data.load import load_model, load_stack, names
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.launchers.bridge import overrides as bridge_overrides
from planner.launchers.directory import export_plan
from planner.launchers.megatron.arguments import words
from planner.launchers.megatron.dispatching import dispatch_arguments
from planner.launchers.megatron.hybrid import hybrid_arguments, hybrid_pattern
from planner.launchers.megatron.model import inexpressible, model_arguments, moe_arguments
from planner.launchers.megatron.plan_arguments import (
    grouped_gemm_runs,
    optimizer_arguments,
    parallel_arguments,
    refusals,
)
from planner.launchers.model_constants import all_constants
from planner.launchers.read import run_script
from planner.launchers.read.constants import other_constants
from planner.launchers.read.flags import Flags
from planner.launchers.read.launch import read_launch
from planner.launchers.read.layout import layer_counts, layout_stages
from planner.launchers.read.megatron import read_arguments, read_script
from planner.launchers.read.model import layers_with_experts, read_capacity, read_model
from planner.launchers.read.software import read_recompute_modules, read_stack
from planner.rules.versions import NEWEST, version_violations
from planner.simulate.evaluate import evaluate
from tests.planner.launchers import plans

FAST = {"virtual_stages", "latent_attention_and_prediction", "sharded_parameters"}
MODELS = [name for name in names("models") if not inexpressible(load_model(name))]


def as_read(problem: Problem, plan: Plan) -> Plan:
    """The plan as a script can tell it: without experts, their tensor parallelism is Megatron's default."""
    if problem.model.moe is not None:
        return plan
    return plan.model_copy(update={"expert_tensor_parallel": plan.tensor_parallel})


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in plans.ALL]
)
def test_an_exported_script_reads_back_as_its_plan(name: str, tmp_path: Path) -> None:
    problem, plan = plans.ALL[name]()
    out = export_plan(problem, plan, "megatron-lm", tmp_path / "launch")
    back = read_script(out / "launch.sh", problem.cluster)
    assert back.plan == as_read(problem, plan)
    assert (back.problem.workload, back.problem.stack) == (problem.workload, problem.stack)
    assert total_parameters(back.problem.model) == total_parameters(problem.model)
    assert (back.unknown_flags, back.notes) == ((), ())


@pytest.mark.parametrize("hybrid", plans.HYBRIDS)
@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("version", [pytest.param("0.17", marks=pytest.mark.slow), "0.19"])
def test_an_exported_hybrid_reads_back_as_its_plan(
    version: str, virtual: bool, hybrid: tuple[str, int], tmp_path: Path
) -> None:
    problem, plan = plans.hybrid_layers(virtual, *hybrid)
    if version == "0.17":
        plan = plans.without_recomputation(plan)
    out = export_plan(problem, plan, "megatron-lm", tmp_path / "launch", version=version)
    back = read_script(out / "launch.sh", problem.cluster)
    assert back.plan == as_read(problem, plan)
    assert back.problem.model == problem.model
    assert (back.unknown_flags, back.notes) == ((), ())
    assert "mamba-ssm" in (out / "README.md").read_text()


@pytest.mark.parametrize("hybrid", plans.HYBRIDS)
def test_a_hybrid_of_the_users_own_is_built_from_its_flags(hybrid: tuple[str, int]) -> None:
    problem, plan = plans.hybrid_layers(False, *hybrid)
    model = problem.model.model_copy(update={"vocab_size": 77_777})
    experts = moe_arguments(model, grouped_gemm=False)
    shape = (*model_arguments(model, 4096), *experts, *hybrid_arguments(model, "0.19"))
    pattern = ("--hybrid-layer-pattern", hybrid_pattern(model, plan), "--vocab-size", "77777")
    found = read_model(Flags((*words(shape), *pattern)), [])
    assert found.hybrid == model.hybrid
    assert total_parameters(found) == total_parameters(model)


@pytest.mark.parametrize("spread", [(3, 2), (2, 2), (0, 2), (4, 3), (5, 1), (0, 20)])
def test_experts_behind_leading_dense_layers_are_read_where_they_are(spread: tuple[int, int]) -> None:
    """Behind three dense layers, with experts in every second one, the second was read with experts."""
    model = load_model("mixtral-8x7b")
    assert model.moe is not None
    places = {"first_dense_layers": spread[0], "layer_freq": spread[1]}
    model = model.model_copy(update={"id": "spread", "moe": model.moe.model_copy(update=places)})
    shape = (*model_arguments(model, 4096), *moe_arguments(model, grouped_gemm=True))
    notes: list[str] = []
    back = read_model(Flags((*words(shape), "--vocab-size", "32000")), notes)
    assert (back.kind_of_layer, notes) == (model.kind_of_layer, [])


def test_a_hybrid_of_experts_and_feed_forward_layers_is_read() -> None:
    """Its feed-forward layers were read without any width, and the script was refused."""
    problem, plan = plans.hybrid_layers(False, "nemotron-3-nano-30b-a3b", 8)
    assert problem.model.hybrid is not None
    hybrid = problem.model.hybrid.model_copy(update={"pattern": problem.model.hybrid.pattern[:-1] + "-"})
    model = problem.model.model_copy(update={"hybrid": hybrid, "ffn_hidden_size": 3712, "id": "both"})
    shape = (*model_arguments(model, 4096), *moe_arguments(model, False), *hybrid_arguments(model, "0.19"))
    pattern = ("--hybrid-layer-pattern", hybrid_pattern(model, plan), "--vocab-size", str(model.vocab_size))
    back = read_model(Flags((*words(shape), *pattern)), [])
    assert total_parameters(back) == total_parameters(model)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--hybrid-layer-pattern M-G*", "G cannot be read back"),
        ("--hybrid-layer-pattern M-M* --spec my.specs stack", "layers of one's own"),
        ("--hybrid-layer-pattern=||", "names no layer"),
        ("--hybrid-layer-pattern M*/", "names no layer"),
        ("--spec my.specs stack", "Mamba models can with --hybrid-layer-pattern"),
    ],
)
def test_layers_that_our_models_lack_are_refused(flags: str, said: str) -> None:
    with pytest.raises(InstanceError, match=said):
        read_model(Flags([*flags.split(), "--hidden-size", "1024"]), [])


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("llama3-8b", {"--rotary-base": "10000"}, "rotary_base 10000, not 500000"),
        ("qwen3-8b", {"--norm-epsilon": "1e-5"}, "norm_epsilon 1e-05, not 1e-06"),
        ("deepseek-v3", {"--mscale-all-dim": "0"}, "mscale_all_dim 0, not yarn x 40"),
        ("deepseek-v3", {"--moe-router-group-topk": "2"}, "groups_visited 2, not 4"),
        ("deepseek-v2-lite", {"--moe-router-topk-scaling-factor": "2"}, "routed_scale 2, not 1"),
        (
            "gpt-oss-20b",
            {"--yarn-beta-fast": "16"},
            "beta_fast 16 beta_slow 1 original_length 4096",
        ),
        ("llama3.1-405b", {"--rope-scaling-factor": "4"}, "llama3 x 4, not llama3 x 8"),
        ("qwen3-30b-a3b", {"--moe-router-score-function": "sigmoid"}, "expert_scores sigmoid, not softmax"),
        ("glm-4.5", {"--moe-router-score-function": "sqrtsoftplus"}, "sqrtsoftplus, not sigmoid"),
    ],
)
def test_numbers_that_make_another_network_of_a_published_one_are_told(
    name: str, changes: dict[str, str], said: str
) -> None:
    """Only what costs time or memory was compared, so that a wrong rotary base passed as the model."""
    flags = Flags((*arguments_of(name), *words(all_constants(load_model(name), NEWEST))))
    assert read_model(flags, []) == load_model(name)
    flags.values |= {flag: (value,) for flag, value in changes.items()}
    (phrase,) = other_constants(read_model(flags, []), load_model(name))
    assert said in phrase


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--use-rope-scaling --rope-scaling-factor 32", "--rope-scaling-factor 32: Megatron-LM up to"),
        ("--use-rope-scaling", None),
        ("--rotary-seq-len-interpolation-factor 4", "before core 0.19 builds a model without it"),
    ],
)
def test_numbers_of_positions_that_do_not_reach_the_model_are_warned_of(flags: str, said: str | None) -> None:
    arguments = " ".join((*arguments_of("llama3-8b"), flags, "--micro-batch-size 1 --bf16"))
    back = read_arguments(arguments, "1x8 h100-sxm-80gb", where="here")
    found = [warning for warning in back.warnings if "-factor" in warning]
    assert [said in warning for warning in found] == ([] if said is None else [True])


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("llama3-8b", "--rotary-interleaved", "rotates_neighbours True, not False"),
        ("llama3-8b", "--no-rope-freq 4", "unrotated_every 4, not None"),
        ("llama3-8b", "--activation-func-clamp-value 7", "gated units are clamped or moved"),
        ("gpt-oss-20b", "--activation-func-clamp-value 5", "clamped at 5 and moved by 1, not as gpt-oss"),
        ("gpt-oss-20b", "--glu-linear-offset 0", "clamped at 7 and moved by 0, not as gpt-oss"),
        ("gpt-oss-20b", "", None),
    ],
)
def test_a_flag_of_another_network_at_the_same_cost_is_not_passed_over(
    name: str, flags: str, said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts with them were taken for the published network, and `--model` let them pass."""
    stated = " ".join((*arguments_of(name), *words(all_constants(load_model(name), NEWEST)), flags))
    script = tmp_path / "arguments.txt"
    script.write_text(
        stated + " --micro-batch-size 1 --bf16 --vocab-size " + str(load_model(name).vocab_size)
    )
    asked = ["predict", "--from-args", str(script), "--cluster", "8x8 h100-sxm-80gb"]
    code = main([*asked, "--model", name])
    error = capsys.readouterr().err
    if said is None:
        assert code != 2, error
    else:
        assert code == 2 and f"trains another model than {name}: " in error and said in error
        back = read_arguments(script.read_text(), "8x8 h100-sxm-80gb", where="here")
        assert said in " ".join(back.warnings)


def test_gates_that_megatron_does_not_take_together_are_refused() -> None:
    arguments = " ".join((*arguments_of("llama3-8b"), "--squared-relu --micro-batch-size 1 --bf16"))
    (refusal,) = read_arguments(arguments, "1x8 h100-sxm-80gb", where="here").refusals
    assert refusal.startswith("--swiglu with --squared-relu")


def test_experts_in_every_layer_are_known_from_flagscales_files(tmp_path: Path) -> None:
    """Its list of layers has no parentheses, so that gpt-oss was read as a network with biases everywhere."""
    problem, plan = plans.two_stages("gpt-oss-20b")
    out = export_plan(problem, plan, "flagscale", tmp_path / "launch")
    assert read_launch(out, problem.cluster).problem.model == problem.model


def arguments_of(name: str) -> tuple[str, ...]:
    model = load_model(name)
    return words((*model_arguments(model, 1024), *moe_arguments(model, grouped_gemm=True)))


@pytest.mark.parametrize("name", MODELS)
def test_arguments_of_a_shipped_model_read_back_as_it(name: str) -> None:
    flags = Flags((*arguments_of(name), "--vocab-size", str(load_model(name).vocab_size)))
    found = read_model(flags, [])
    assert flags.unknown == ()
    assert found.id == name or found == load_model(name).model_copy(update={"id": found.id})


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_users_own_is_built_from_its_flags(name: str) -> None:
    # Another vocabulary makes it nobody's model; all else must come from the flags.
    changed = load_model(name).model_copy(update={"vocab_size": 77_777})
    found = read_model(Flags((*arguments_of(name), "--vocab-size", "77777")), [])
    assert found.id == "from-script"
    assert found.kind_of_layer == changed.kind_of_layer
    if changed.linear_bias != "attention":  # Megatron has biases everywhere or on qkv
        assert total_parameters(found) == total_parameters(changed)


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et*2|t*3L", ["Ett", "tttL"]),
        ("Ett,t|(tt|)*2tmL", ["Ettt", "tt", "tt", "tmL"]),
        ("E|(t|t|)*2L", ["E", "t", "t", "t", "t", "L"]),
    ],
)
def test_layout_strings_are_written_out(text: str, stages: list[str]) -> None:
    assert layout_stages(text) == stages


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ("--num-layers 8 --pipeline-model-parallel-size 4", [[2]] * 4),
        (
            "--num-layers 8 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
            [[2, 2], [2, 2]],
        ),
        (
            "--num-layers 9 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 "
            "--decoder-last-pipeline-num-layers 2",
            [[1], [3], [3], [2]],
        ),
        (
            "--num-layers 6 --pipeline-model-parallel-size 4 --account-for-loss-in-pipeline-split "
            "--account-for-embedding-in-pipeline-split",
            [[1], [2], [2], [1]],
        ),
        (
            "--num-layers 8 --pipeline-model-parallel-size 2 "
            "--pipeline-model-parallel-layout Et*3|t*2|t|t*2L",
            [[3, 1], [2, 2]],
        ),
    ],
)
def test_every_way_to_place_layers_is_read(given: str, counts: list[list[int]]) -> None:
    assert layer_counts(Flags(given.split())) == counts


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("--num-layers 9 --pipeline-model-parallel-size 4", "9 layers do not split evenly over 4 stages"),
        (
            "--num-layers 80 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ett*40|t*40L",
            "the stages hold 81 layers, --num-layers is 80",
        ),
        (
            "--num-layers 4 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ett|tm|tL|L",
            "needs one E, first, and one L, last",
        ),
    ],
)
def test_layers_that_do_not_add_up_are_told(given: str, complaint: str) -> None:
    with pytest.raises(InstanceError, match=complaint):
        layer_counts(Flags(given.split()))


def test_layers_with_experts_come_from_a_number_or_a_list() -> None:
    base = ("--num-layers", "4", "--moe-layer-freq")
    assert layers_with_experts(Flags((*base, "2"))) == (True, False, True, False)
    assert layers_with_experts(Flags((*base, "([0]*1+[1]*3)"))) == (False, True, True, True)
    assert layers_with_experts(Flags((*base, "[0,1]*2"))) == (False, True, False, True)


# In the manner of the examples that come with Megatron-LM.
TORCHRUN = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
MASTER_ADDR=localhost
NUM_NODES=2
NODE_RANK=${NODE_RANK:-0}
CHECKPOINT_PATH=$1
mkdir -p logs
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank $NODE_RANK
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048
    --max-position-embeddings 2048 --attention-backend auto
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 64 --train-iters 500 --weight-decay 0.1 --clip-grad 1.0
    --bf16 --lr 6.0e-5 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    --exotic-feature 3
)
MODEL_PARALLEL_ARGS=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} --save $CHECKPOINT_PATH
"""

SBATCH = """#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=8
options=" --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 \\
    --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 --fp16 --vocab-size 50257 \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --use-distributed-optimizer"
run_cmd="python -u ${DIR}/pretrain_gpt.py ${options}"
srun -l --container-image image --output=log sh -c "${run_cmd}"
"""


def written(folder: Path, text: str, name: str = "train.sh") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_script_with_torchrun_reads_as_it_would_start(tmp_path: Path) -> None:
    back = read_script(written(tmp_path, TORCHRUN), "2x8 a100-sxm-80gb")
    plan = back.plan
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel) == (8, 2, 1)
    assert [stage.layers for stage in plan.stages] == [(0, 15), (16, 31)]
    assert [(stage.recompute, stage.recompute_layers) for stage in plan.stages] == [("full", 16)] * 2
    assert [stage.hosts for stage in plan.stages] == [("node000",), ("node001",)]
    assert (plan.num_microbatches, plan.dp_mode) == (64, "ddp")
    model = back.problem.model
    assert (model.ffn_hidden_size, model.position_embedding, model.linear_bias) == (16384, "learned", "all")
    assert back.problem.stack.dropout and not back.problem.stack.dp_overlap
    assert back.unknown_flags == ("--exotic-feature",)
    assert any("vocabulary" in note for note in back.notes)
    assert [p.name for p in tmp_path.iterdir()] == ["train.sh"]  # its mkdir happened elsewhere


@pytest.mark.parametrize(
    ("method", "number", "layers", "pieces"),
    [
        ("uniform", 1, [11, 6], 1),
        ("uniform", 4, [11, 6], 4),
        ("block", 9, [9, 6], 1),
        ("block", 0, [0, 0], 1),
    ],
)
def test_all_that_chunks_of_unlike_length_recompute_is_read(
    method: str, number: int, layers: list[int], pieces: int, tmp_path: Path
) -> None:
    """Once as few of each as the shortest has, which may be none: far more memory than the run took."""
    text = TORCHRUN.replace("--recompute-num-layers 1", f"--recompute-num-layers {number}")
    text = text.replace("--recompute-method uniform", f"--recompute-method {method}")
    layout = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*11|t*6|t*9|t*5|t|L'"
    text = text.replace("--pipeline-model-parallel-size 2)", f"{layout})")
    back = read_script(written(tmp_path, text), "2x8 a100-sxm-80gb")
    assert [[n - m + 1 for m, n in stage.chunks] for stage in back.plan.stages] == [[11, 9, 1], [6, 5, 0]]
    stages = back.plan.stages
    assert [stage.recompute_layers for stage in stages] == layers
    assert all(stage.recompute_piece == pieces for stage in stages)
    evaluation = evaluate(back.problem, back.plan)
    assert not any("recompute" in sentence for sentence in evaluation.violations)
    if method == "uniform" and number == 1:  # every layer keeps its input alone
        problem = back.problem
        kept = 2 * 2048 * 4096 / 2**30 * 21  # a micro-batch on all chunks of stage 0
        assert evaluation.stages[0].memory_gib["activations"] < 4 * 2 * kept
        assert problem.model.num_layers == 32


def test_a_batch_script_with_srun_reads_as_it_would_start(tmp_path: Path) -> None:
    back = read_script(written(tmp_path, SBATCH), "2x8 v100-sxm-32gb")
    plan = back.plan
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel) == (2, 4, 2)
    assert (plan.num_microbatches, plan.dp_mode, back.problem.workload.precision) == (16, "distopt", "fp16")
    assert back.problem.model.vocab_size == 50257
    assert back.notes == ()


def test_a_stage_on_two_classes_lists_its_replicas(tmp_path: Path) -> None:
    text = TORCHRUN.replace("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 1")
    back = read_script(written(tmp_path, text), "1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb")
    replicas = back.plan.stages[0].replicas
    assert replicas is not None
    assert [replica.chip for replica in replicas] == ["h100-sxm-80gb", "a100-sxm-80gb"]
    assert any("order of the cluster's classes" in note for note in back.notes)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("echo nothing to do >&2\n", "starts no training: nothing to do"),
        ("sleep 20\n", "has not ended"),
        ("\0" * 100, "is no shell script: it holds zero bytes"),
        pytest.param(
            TORCHRUN.replace("NUM_NODES=2", "NUM_NODES=4"),
            "runs on 4 nodes, the cluster has 2",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            TORCHRUN.replace("--lr 6.0e-5", "--hidden-dropout 0.$NODE_RANK"),
            "ranks differ in --hidden-dropout",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_script_that_cannot_be_read_says_why(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_script, "TIME_LIMIT_S", 0.3 if "sleep" in text else 60)
    with pytest.raises(InstanceError, match=complaint):
        read_script(written(tmp_path, text), "2x8 a100-sxm-80gb")


SOUND = " ".join(
    (
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --bf16",
        "--max-position-embeddings 2048 --micro-batch-size 1 --tensor-model-parallel-size 8",
    )
)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("--num-layers 32", "", "--num-layers is missing"),
        ("--num-layers 32", "--num-layers many", "'many', which is no whole number"),
        ("--num-layers 32", "--num-layers", "--num-layers has no value"),
        ("-parallel-size 8", "-parallel-size 3", "16 ranks are no multiple of tensor 3"),
        ("--bf16", "", "training in fp32 is not predicted"),
        ("--bf16", "--bf16 --hybrid-override-pattern M*M-", "cannot be read back; Mamba models can"),
        ("--bf16", "--bf16 --num-experts 8 --moe-layer-freq [0]*3", "names 3 layers of 32"),
        ("--bf16", "--bf16 --position-embedding-type relative", "relative is not known"),
        # Numbers that once ended in a division by zero, a complaint of pydantic's or without end.
        ("--num-layers 32", "--num-layers 1000000000", "--num-layers is 1000000000; it must be 1 to 10000"),
        ("-heads 32", "-heads 0", "--num-attention-heads is 0; it must be 1 to"),
        ("-batch-size 1", "-batch-size 0", "--micro-batch-size is 0; it must be 1 to"),
        ("-batch-size 1", "-batch-size -1", "--micro-batch-size is -1; it must be 1 to"),
        ("--bf16", "--bf16 --num-experts 8 --moe-layer-freq 0", "--moe-layer-freq 0 is not understood"),
        ("--bf16", "--bf16 --expert-model-parallel-size 0", "--expert-model-parallel-size is 0"),
        ("--bf16", "--bf16 --ddp-bucket-size 0", "--ddp-bucket-size is 0"),
        ("--bf16", "--bf16 --num-distributed-optimizer-instances 0", "-instances is 0"),
        ("--bf16", '--bf16 --init-method-std "0.02', "no closing quotation"),
        ("--bf16", "--bf16 --hidden-dropout x", "--hidden-dropout is 'x', which is no number"),
        ("--bf16", "--bf16 --hidden-dropout nan", "--hidden-dropout is 'nan', which is no number"),
        ("--bf16", "--bf16 --num-experts 8 --first-k-dense-replace x", "-replace is 'x', which is no whole"),
        (
            "--bf16",
            "--bf16 --num-experts 8 --n-shared-experts",
            "-experts is '', which is no whole",
        ),
        ("--bf16", "--bf16 --num-experts 8 --moe-layer-freq [1]*99999999", "is not understood"),
        ("--bf16", "--bf16 --noop-layers 0 --pipeline-model-parallel-size 0", "-parallel-size is 0"),
        ("--bf16", "--bf16 --pipeline-model-parallel-layout Et*99999999L", "repeats more than 10000 times"),
        ("--bf16", "--bf16 --spec", "layers by --spec or --hybrid-override-pattern cannot"),
    ],
)
def test_arguments_that_cannot_be_read_say_why(old: str, new: str, complaint: str) -> None:
    assert read_arguments(SOUND, "2x8 a100-sxm-80gb", where="args").plan.data_parallel == 2
    with pytest.raises(InstanceError, match=complaint):
        read_arguments(SOUND.replace(old, new), "2x8 a100-sxm-80gb", where="args")


def test_an_argument_list_fills_the_cluster() -> None:
    text = " \\\n".join(arguments_of("llama3-8b")) + " --bf16 --micro-batch-size 1 --global-batch-size 32"
    back = read_arguments(text + " --tensor-model-parallel-size 4", "2x8 h100-sxm-80gb", where="args.txt")
    assert back.problem.model.id == "llama3-8b"
    assert (back.plan.data_parallel, back.plan.num_microbatches) == (4, 8)


def test_how_gradients_are_exchanged_survives_the_way_there_and_back() -> None:
    problem, plan = plans.uniform()
    changes = {"gradient_bytes": 2.0, "optimizer_shard_size": 2, "bucket_parameters": 1e8}
    stack = problem.stack.model_copy(update=changes)
    changed = problem.model_copy(update={"stack": stack})
    given = words(optimizer_arguments(changed, plan))
    wanted = "--grad-reduce-in-bf16 --num-distributed-optimizer-instances 2 --ddp-bucket-size 100000000"
    assert set(wanted.split()) <= set(given)
    assert not set(wanted.split()) & set(words(optimizer_arguments(problem, plan)))
    flags = Flags((*given, "--bf16"))
    assert flags.unknown == ()
    assert read_stack(flags, problem.stack, [], gradient_ranks=4).model_dump() == {
        **problem.stack.model_dump(),
        **changes,
    } | {"dropout": True}
    # The precision-aware optimizer takes the narrow sums as they are.
    aware = Flags((*given, "--bf16", "--use-precision-aware-optimizer"))
    found = read_stack(aware, problem.stack, [], gradient_ranks=4).step_gradient_bytes
    assert (problem.stack.step_gradient_bytes, found) == (4.0, 0.0)
    uneven = problem.model_copy(update={"stack": stack.model_copy(update={"optimizer_shard_size": 3})})
    assert refusals(changed, plan) == ()
    assert "optimizer_shard_size 3 does not divide the 4" in refusals(uneven, plan)[0]


def test_parameters_are_sharded_as_they_are_priced() -> None:
    """A plan of DeepSpeed's kind was started under Megatron-FSDP, in up to 1 GiB more than was priced."""
    problem, plan = plans.sharded_parameters()
    assert plan.dp_mode == "fsdp" and refusals(problem, plan) == ()
    assert "dp_mode zero3" in refusals(problem, plan.model_copy(update={"dp_mode": "zero3"}))[0]


def test_experts_divide_into_as_many_optimizer_groups_as_the_rest() -> None:
    # Megatron-LM refused an export of 4 groups over experts of one replica (parallel_state.py:1447).
    problem, plan = plans.experts()
    few = problem.stack.model_copy(update={"optimizer_shard_size": 2})
    shared = problem.model_copy(update={"stack": few})
    assert "4 groups, into which the 1 replicas of the experts" in refusals(shared, plan)[0]
    assert refusals(shared, plan.model_copy(update={"expert_parallel": 2})) == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "a pipeline of 2 stages needs virtual stages"),
        ({"recompute": "full", "recompute_layers": 2}, "no stage may recompute in full"),
        ({"recompute": "selective"}, "must not name moe"),
    ],
)
def test_an_exchange_that_megatron_cannot_hide_is_refused(changes: dict[str, object], reason: str) -> None:
    # Megatron-LM refused exports with --overlap-moe-expert-parallel-comm (transformer_config.py:2669).
    problem, plan = plans.experts()
    assert refusals(problem, plan) == ()
    hidden = problem.model_copy(update={"stack": problem.stack.model_copy(update={"ep_overlap": True})})
    stages = tuple(stage.model_copy(update=changes) for stage in plan.stages)
    changed = plan.model_copy(update={"stages": stages, "recompute_modules": ("moe",)})
    assert reason in refusals(hidden, changed)[0]


def test_predict_shows_what_a_script_costs_and_what_is_not_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = written(tmp_path, TORCHRUN)
    command = ["predict", "--from-script", str(script), "--cluster", "2x8 a100-sxm-80gb"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "not known    --exotic-feature" in printed
    assert "step time" in printed
    arguments = written(tmp_path, SOUND + " --exotic-feature", "args.txt")
    assert main(["predict", "--from-args", str(arguments), *command[3:], "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["unknown_flags"] == ["--exotic-feature"]
    assert data["violations"] == [] and data["step_s"] > 0
    assert main([*command[:3]]) == 2
    assert "add --cluster" in capsys.readouterr().err
    assert main(["predict", "--cluster", "1x8 h100-sxm-80gb"]) == 2
    assert "--from-script" in capsys.readouterr().err


def test_predict_tells_how_to_look_for_a_better_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = " ".join(arguments_of("llama3-8b")).replace("(", "'(").replace(")", ")'")
    text += " --bf16 --micro-batch-size 1 --global-batch-size 32 --tensor-model-parallel-size 8"
    arguments = written(tmp_path, text, "args.txt")
    assert main(["predict", "--from-args", str(arguments), "--cluster", "1x8 h100-sxm-80gb"]) in (0, 3)
    assert (
        "hetplan plan --cluster '1x8 h100-sxm-80gb' --model llama3-8b --seq-length 1024 "
        "--global-batch-size 32 --precision bf16" in capsys.readouterr().err
    )


def test_a_script_of_another_model_is_named_not_where_that_model_is_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The message once began with the web page of the shipped model that the script was found to train."""
    text = " ".join(arguments_of("llama3-8b")).replace("(", "'(").replace(")", ")'")
    text += " --bf16 --micro-batch-size 1 --global-batch-size 32 --tensor-model-parallel-size 8"
    arguments = written(tmp_path, text, "args.txt")
    command = ["predict", "--from-args", str(arguments), "--cluster", "1x8 h100-sxm-80gb"]
    assert main([*command, "--model", "llama2-7b"]) == 2
    assert f"error: {arguments}: trains another model than llama2-7b: " in capsys.readouterr().err


def test_predict_says_that_a_script_is_illegal_or_does_not_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    big = SOUND.replace("--num-layers 32", "--num-layers 320").replace("size 4096", "size 8192")
    arguments = written(tmp_path, big, "args.txt")
    assert main(["predict", "--from-args", str(arguments), "--cluster", "2x8 a100-sxm-80gb"]) == 3
    assert "may use" in capsys.readouterr().out


def test_words_on_software_and_experts_are_read() -> None:
    words = """--moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity --cp-comm-type a2a
    --ddp-bucket-size 1000000 --cuda-graph-impl local --bf16 --grad-reduce-in-bf16
    --recompute-granularity selective --recompute-modules moe layernorm"""
    flags, notes = Flags(words.split()), list[str]()
    stack = read_stack(flags, load_stack("megatron-core"), notes)
    assert (stack.cp_exchange, stack.bucket_parameters, stack.gradient_bytes) == ("a2a", 1_000_000, 2.0)
    assert stack.host_layer_floor_ms == 0.0
    assert notes == ["no waiting for the host: CUDA graphs are captured"]
    assert stack.gradients_checked and stack.gradients_divided_apart
    unchecked = Flags(["--no-check-for-nan-in-loss-and-grad", "--ddp-average-in-collective"])
    found = read_stack(unchecked, load_stack("megatron-core"), notes)
    assert unchecked.unknown == () and not found.gradients_checked and not found.gradients_divided_apart
    assert read_capacity(flags) == {"capacity_factor": 1.25, "pad_to_capacity": True}
    assert set(read_recompute_modules(flags, stack, notes) or ()) == {"moe", "layernorm"}
    ring = read_stack(Flags(["--cp-comm-type", "p2p", "a2a"]), load_stack("megatron-core"), notes)
    assert ring.cp_exchange == "p2p"
    assert "--cp-comm-type p2p a2a is not modelled" in notes[-1]
    hybrid = "--num-experts 8 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep"
    stack = read_stack(Flags(hybrid.split()), load_stack("megatron-core"), notes)
    assert (stack.moe_dispatcher, stack.dispatcher_library) == ("deduplicating", "hybridep")
    graphs = "--num-experts 8 --cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router"
    padded = Flags(f"{graphs} --moe-router-padding-for-quantization".split())
    stack = read_stack(padded, load_stack("megatron-core"), notes)
    assert padded.unknown == ()
    assert stack.captured_modules == ("attn", "moe_router") and stack.host_layer_floor_ms > 0
    assert not stack.pads_narrow_experts
    with pytest.raises(InstanceError, match="which is no number"):
        read_capacity(Flags(["--moe-expert-capacity-factor", "much"]))


def test_how_tokens_reach_experts_is_written_as_priced_and_read_back(tmp_path: Path) -> None:
    problem, plan = plans.experts()
    changed = {"moe_dispatcher": "deduplicating", "moe_permute_fusion": False, "ep_overlap": True}
    of = problem.model_copy(update={"stack": problem.stack.model_copy(update=changed)})
    flags = Flags(("--num-experts", "8", *words(dispatch_arguments(of, plan))))
    assert flags.unknown == ()
    stack = read_stack(flags, problem.stack, [])
    assert {name: getattr(stack, name) for name in changed} == changed
    # Experts of a script without --moe-grouped-gemm were priced as if they ran as grouped products.
    assert stack.experts_apart and not stack.experts_as_single_products
    grouped = read_stack(Flags(("--num-experts", "8", "--moe-grouped-gemm")), problem.stack, [])
    assert not grouped.experts_apart
    assert grouped.experts_as_single_products == problem.stack.experts_as_single_products
    assert grouped_gemm_runs(problem, plan)
    apart = problem.stack.model_copy(update={"experts_apart": True})
    assert not grouped_gemm_runs(problem.model_copy(update={"stack": apart}), plan)
    alone = plan.model_copy(update={"expert_parallel": 1})
    assert words(dispatch_arguments(of, alone)) == ("--moe-token-dispatcher-type", "alltoall")
    notes: list[str] = []
    read_stack(Flags(("--num-experts", "8")), problem.stack, notes)
    assert "allgather is not priced" in notes[0]


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
def test_who_pads_experts_for_narrow_products_is_written_and_read_back(
    precision: Precision,
) -> None:
    problem, plan = plans.experts()
    written = "--moe-router-padding-for-fp8"

    def of(**changes: object) -> Problem:
        stack = problem.stack.model_copy(update=changes)
        workload = problem.workload.model_copy(update={"precision": precision})
        return problem.model_copy(update={"stack": stack, "workload": workload})

    for pads in (False, True):
        arguments = words(dispatch_arguments(of(pads_narrow_experts=pads), plan))
        assert (written in arguments) is not pads
        flags = Flags(("--num-experts", "8", *arguments))
        assert flags.unknown == ()
        read = read_stack(flags, problem.stack, [])
        assert read.pads_narrow_experts is pads
        fields = bridge_overrides._experts(of(pads_narrow_experts=pads), plan)
        assert fields["model.moe_router_padding_for_quantization"] is not pads
    # 16 bits need no padding, HybridEP pads as it sends, and a capacity is the same for all experts.
    wide = of(pads_narrow_experts=False).model_copy(update={"workload": problem.workload})
    hybrid = {"moe_dispatcher": "deduplicating", "dispatcher_library": "hybridep"}
    moe = problem.model.moe.model_copy(update={"capacity_factor": 1.0}) if problem.model.moe else None
    full = of(pads_narrow_experts=False).model_copy(
        update={"model": problem.model.model_copy(update={"moe": moe})}
    )
    for other in (wide, of(pads_narrow_experts=False, **hybrid), full):
        assert written not in words(dispatch_arguments(other, plan))


def test_routers_of_the_oldest_version_do_not_pad_for_four_bits() -> None:
    problem, plan = plans.experts()
    workload = problem.workload.model_copy(update={"precision": "nvfp4"})
    for pads, version, refused in ((False, "0.15", True), (False, "0.16", False), (True, "0.15", False)):
        stack = problem.stack.model_copy(update={"pads_narrow_experts": pads})
        changed = problem.model_copy(update={"stack": stack, "workload": workload})
        said = version_violations(changed, plan, version)
        assert any("pads_narrow_experts" in sentence for sentence in said) is refused


def test_exchange_of_context_is_written_wherever_the_sequence_is_split() -> None:
    """Left out, Megatron-LM would pass keys around a ring, whatever was priced."""
    problem, plan = plans.context_parallel()
    stack = problem.stack.model_copy(update={"cp_exchange": "a2a"})
    exchanging = problem.model_copy(update={"stack": stack})
    assert plan.context_parallel == 2
    split = Flags(words(parallel_arguments(exchanging, plan)))
    assert split.values["--cp-comm-type"] == ("a2a",)
    whole = plan.model_copy(update={"context_parallel": 1})
    assert "--cp-comm-type" not in Flags(words(parallel_arguments(exchanging, whole)))


def test_replicas_outermost_with_split_sequences_need_experts() -> None:
    """Megatron-LM forms expert groups of tp ranks all the same, and wants as many replicas of them."""
    problem, plan = plans.context_parallel()
    outermost = plan.model_copy(update={"rank_order": "tp-cp-ep-pp-dp"})
    assert "needs a model with experts" in refusals(problem, outermost)[0]
    assert refusals(problem, plan) == ()
    assert refusals(problem, outermost.model_copy(update={"context_parallel": 1})) == ()
    with_experts, _ = plans.experts()
    assert not any("needs a model with experts" in said for said in refusals(with_experts, outermost))
