"""Launch scripts as people write them: other launchers, forks' words, files around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InstanceError
from planner.launchers.read.back import ReadBack
from planner.launchers.read.dialects import expert_pattern
from planner.launchers.read.flags import Flags
from planner.launchers.read.launch import read_launch
from planner.launchers.read.layout import layer_counts
from planner.launchers.read.megatron import read_arguments, read_script
from planner.launchers.read.model import layers_with_experts

MODEL = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 "
)
MIND = (
    "--multi-head-latent-attention --qk-rope-head-dim 64 --qk-nope-head-dim 128 --q-lora-rank 512 "
    "--kv-lora-rank 256 --v-head-dim 128 --first-k-dense-replace 1 --moe-layer-freq 1 --n-shared-experts 2 "
    "--num-experts 16 --moe-router-topk 4 --moe-intermediate-size 512 "
    "--moe-token-dispatcher-type alltoall_seq --swiglu --ffn-hidden-size 2048 --padded-vocab-size 32000 "
)


def written(folder: Path, text: str, name: str = "train.sh") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def of_arguments(flags: str, cluster: str = "1x8 h100-sxm-80gb") -> ReadBack:
    return read_arguments(MODEL + flags, cluster, where="case")


@pytest.mark.parametrize(
    ("words", "entries"),
    [
        ("--padded-vocab-size 32768", 32768),  # more than a multiple of 128 asks for: the network has them
        ("--padded-vocab-size 32256 --tensor-model-parallel-size 2", 32256),
        ("--padded-vocab-size 32256 --tensor-model-parallel-size 4", 32000),
        ("--pad-vocab-size-to 33000", 33000),
    ],
)
def test_entries_of_the_network_go_before_those_of_the_tokenizer(words: str, entries: int) -> None:
    """A padded vocabulary beside --vocab-size was passed over, though Megatron-LM builds it."""
    assert of_arguments(words).problem.model.vocab_size == entries


def test_layers_that_do_nothing_are_no_layers() -> None:
    # Ascend/MindSpeed-LLM, DeepSeek-V3 on 64 nodes: 61 layers padded to 64, so that 8 stages divide them.
    pattern = "([0]*3+[1]*61)"
    words = (
        f"--num-layers 64 --pipeline-model-parallel-size 8 --noop-layers 61,62,63 --moe-layer-freq {pattern} "
        "--mtp-num-layers 1"
    )
    flags = Flags(words.split())
    assert layer_counts(flags) == [[8]] * 7 + [[5]]
    assert layers_with_experts(flags) == (False,) * 3 + (True,) * 58
    assert flags.text("--pipeline-model-parallel-layout").endswith("|t*5mL")
    virtual = Flags(f"{words} --num-layers-per-virtual-pipeline-stage 4".split())
    assert layer_counts(virtual) == [[4, 4]] * 7 + [[4, 1]]
    alone = Flags(["--num-layers", "8", "--noop-layers", "0,7"])
    assert layer_counts(alone) == [[6]]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--num-layers 8 --noop-layers 8", "have no such layer"),
        ("--num-layers 7 --pipeline-model-parallel-size 2 --noop-layers 6", "do not split evenly"),
        ("--pipeline-model-parallel-size 2 --num-layer-list 4,4,4 --num-layers 12", "3 entries for 2"),
        (  # Ascend/MindSpeed-LLM, guide to converting checkpoints
            "--pipeline-model-parallel-size 2 --num-layer-list 4,4 --num-layers 8 "
            "--num-layers-per-virtual-pipeline-stage 2",
            "with virtual stages",
        ),
    ],
)
def test_forks_splits_that_contradict_themselves_are_refused(words: str, complaint: str) -> None:
    with pytest.raises(InstanceError, match=complaint):
        Flags(words.split())


def test_a_list_of_layers_is_a_layout() -> None:
    flags = Flags(
        ["--num-layers", "32", "--pipeline-model-parallel-size", "4", "--num-layer-list", "7,8,9,8"]
    )
    assert layer_counts(flags) == [[7], [8], [9], [8]]


@pytest.mark.parametrize(
    ("words", "fused"),
    [
        ("", True),
        ("--transformer-impl local", False),
        ("--transformer-impl local --use-flash-attn", True),  # older releases, and MindSpeed
        ("--transformer-impl transformer_engine --attention-backend unfused", False),
    ],
)
def test_megatrons_own_layers_keep_the_scores_of_attention(words: str, fused: bool) -> None:
    """The flag passed for harmless, though the scores of 8,192 tokens take four times a chip's memory."""
    assert of_arguments(f"{MIND} {words}").problem.stack.flash_attention is fused


def test_graphs_are_said_to_take_more_memory() -> None:
    for words, told in (("--cuda-graph-impl local", True), ("--cuda-graph-impl none", False), ("", False)):
        warnings = " ".join(of_arguments(f"{MIND} {words}").warnings)
        assert ("CUDA graphs keep buffers of their own" in warnings) == told


def test_the_words_of_mindspeed_describe_the_network_that_they_name() -> None:
    parallel = (
        "--tensor-model-parallel-size 2 --expert-model-parallel-size 4 --moe-tp-extend-ep --sequence-parallel"
    )
    back = of_arguments(f"{MIND} {parallel} --context-parallel-algo ulysses_cp_algo --swap-optimizer")
    model = back.problem.model
    assert model.mla is not None and (model.mla.qk_rope_head_dim, model.mla.kv_lora_rank) == (64, 256)
    assert model.moe is not None and model.moe.first_dense_layers == 1
    assert (model.moe.ffn_hidden_size, model.moe.shared_ffn_hidden_size) == (512, 1024)
    assert (back.plan.expert_parallel, back.plan.expert_tensor_parallel) == (8, 1)
    assert back.problem.stack.cp_exchange == "a2a"
    assert back.unknown_flags == ()
    assert "--swap-optimizer is not priced" in " ".join(back.warnings)


def test_the_words_of_deepspeed_and_of_old_releases_mean_what_they_meant() -> None:
    deepspeed = of_arguments(
        "--deepspeed --zero-stage 1 --num-experts 1 --moe-expert-parallel-size 1 --checkpoint-activations"
    )
    assert deepspeed.problem.model.moe is None and deepspeed.plan.dp_mode == "distopt"
    assert [(s.recompute, s.recompute_layers) for s in deepspeed.plan.stages] == [("full", 8)]
    old = of_arguments(
        "--model-parallel-size 2 --activations-checkpoint-method block --checkpoint-num-layers 3"
    )
    assert old.plan.tensor_parallel == 2
    assert [(s.recompute, s.recompute_layers) for s in old.plan.stages] == [("full", 3)]
    plain = of_arguments("--zero-stage 0")
    assert plain.plan.dp_mode == "ddp"
    assert of_arguments("--deepspeed --zero-stage 0").plan.dp_mode == "distopt"  # MODEL is in bf16
    weighed = "--pipeline-model-parallel-size 2 --pp-partition-method type:transformer|embedding"
    assert [stage.num_layers for stage in of_arguments(weighed).plan.stages] == [4, 4]
    bloom = of_arguments("--position-embedding-type alibi --embed-layernorm")
    assert bloom.problem.model.position_embedding == "none" and bloom.unknown_flags == ()
    assert of_arguments("--zero-stage 3").plan.dp_mode == "fsdp"
    assert of_arguments("--fp8-hybrid").problem.workload.precision == "fp8"
    assert of_arguments("--fp8-format hybrid --fp8-param-gather").problem.stack.narrow_parameters


def test_the_vocabulary_of_gpt2_is_known_without_its_size() -> None:
    back = read_arguments(
        MODEL.replace("--vocab-size 32000", "--vocab-file v.json --merge-file m.txt"),
        "1x8 h100-sxm-80gb",
        where="case",
    )
    assert back.problem.model.vocab_size == 50257


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--lora-rank 16", "adapters beside frozen weights"),
        ("--peft lora", "adapters"),
        ("--freeze-all-layers", "frozen weights"),
        ("--perform-rl-step", "reinforcement learning"),
        ("--heterogeneous-layers-config-path layers.json", "layers that differ"),
        ("--experimental-attention-variant dsa", "sparse attention"),
        ("--use-checkpoint-args", "sizes that a checkpoint states"),
    ],
)
def test_another_model_or_training_is_refused_not_predicted(flags: str, what: str) -> None:
    with pytest.raises(InstanceError, match=what):
        of_arguments(flags)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--optimizer-cpu-offload", "less memory on the chip"),
        ("--optimizer muon", "predicted is Adam"),
        ("--rampup-batch-size 32 32 1000", "the whole of it"),
    ],
)
def test_what_is_not_priced_is_told(flags: str, what: str) -> None:
    back = of_arguments(flags)
    assert what in " ".join(back.warnings) and back.unknown_flags == ()


def test_patterns_of_experts_are_read_or_refused() -> None:
    assert expert_pattern("[0,1]*2", 4, "case") == [False, True, False, True]
    for text, complaint in (("[0,1]", "names 2 layers of 4"), ("[2]*4", "not understood")):
        with pytest.raises(InstanceError, match=complaint):
            expert_pattern(text, 4, "case")


INNER = f"""#!/usr/bin/env bash
set -euo pipefail
source ./settings.env
PER_NODE=$(nvidia-smi --list-gpus | wc -l)
ulimit -n 99999999
cd /workspace/megatron
mkdir -p /ckpt/$SIZE logs
rm -rf "$PRECIOUS"
numactl --interleave=all torchrun --nproc_per_node $PER_NODE --nnodes $SLURM_NNODES \\
    --node_rank $SLURM_NODEID pretrain_gpt.py {MODEL} --tensor-model-parallel-size $TP > logs/out.log
"""
OUTER = """#!/bin/bash
#SBATCH --nodes=2        # as many as there are
#SBATCH --ntasks-per-node=1
nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
export HEAD=${nodes[1]} RUNTIME=docker
$RUNTIME pull image
srun bash -c '$RUNTIME run --env SIZE=8 image /bin/bash -lc "echo $HEAD; bash inner.sh 2>&1 | tee o"'
"""


def test_a_batch_script_that_starts_a_container_that_starts_a_script_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    monkeypatch.setenv("PRECIOUS", str(precious))
    written(tmp_path, "TP=2\n", "settings.env")
    written(tmp_path, INNER, "inner.sh")
    back = read_script(written(tmp_path, OUTER, "job.sbatch"), "2x4 h100-sxm-80gb")
    plan = back.plan
    assert (plan.tensor_parallel, plan.data_parallel) == (2, 4) and back.unknown_flags == ()
    assert precious.is_dir() and sorted(p.name for p in tmp_path.iterdir()) == [
        *("inner.sh", "job.sbatch", "precious", "settings.env"),
    ]


WITH_WORDS = f"""set -e
if [ $1 = cloud ]; then NODES=${{WORLD_SIZE}}; ME=${{RANK}}; else NODES=1; ME=0; fi
TP=$2
RECOMPUTE=$(( ($TP > 1) ? 1 : 0 ))
options="--nproc_per_node 8 --nnodes $NODES --node_rank $ME"
if [ $RECOMPUTE -eq 1 ]; then more="--recompute-activations"; fi
run="torchrun $options pretrain_model.py
 {MODEL} --tensor-model-parallel-size $TP $more --moe-layer-freq '([0]*8)' > $3/log-$ME.txt"
eval $run
"""


def test_words_on_the_command_line_and_a_log_that_is_there_already(tmp_path: Path) -> None:
    log = written(tmp_path, "of the last run", "log-0.txt")
    script = written(tmp_path, WITH_WORDS)
    back = read_launch(script, "2x8 h100-sxm-80gb", words=("cloud", "4", str(tmp_path)))
    assert (back.plan.tensor_parallel, back.plan.data_parallel) == (4, 4)
    assert {stage.recompute for stage in back.plan.stages} == {"selective"}
    assert log.read_text() == "of the last run"
    assert read_launch(script, "2x8 h100-sxm-80gb", words=("desk", "8", "/nowhere")).plan.world_size == 8


@pytest.mark.parametrize(
    ("line", "chips", "note"),
    [
        ("deepspeed pretrain_gpt.py", 16, "as deepspeed takes"),
        ("deepspeed --num_nodes 1 --num_gpus 4 pretrain_gpt.py", 4, ""),
        ("torchrun --nnodes 2 --nproc-per-node gpu pretrain_gpt.py", 16, ""),
        ("torchrun --nnodes 1:2 --nproc-per-node 8 pretrain_gpt.py", 16, ""),
        ("mpirun -np 16 -N 8 --hostfile hosts python pretrain_gpt.py", 16, ""),
        ("srun -N2 -n16 python pretrain_gpt.py", 16, ""),
        ("python pretrain_gpt.py", 1, "processes of a node: 1"),
    ],
)
def test_every_launcher_says_how_many_processes_in_its_own_words(
    line: str, chips: int, note: str, tmp_path: Path
) -> None:
    back = read_script(written(tmp_path, f"{line} {MODEL}\n"), "2x8 h100-sxm-80gb")
    assert back.plan.world_size == chips
    assert note in " ".join(back.notes)


def test_a_script_that_only_submits_says_what_it_calls(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="it only calls ssh host make train"):
        read_script(written(tmp_path, "ssh host make train\n"), "2x8 h100-sxm-80gb")


OF_ANOTHER_SITE = f"""set -e
source $SITE_FOLDER/environment.sh
clear
ENTRY=examples/pretrain_gpt.py
if [ ! -f "$ENTRY" ]; then echo no $ENTRY; exit 1; fi
SIZES="--nproc_per_node $KUBERNETES_CONTAINER_RESOURCE_GPU --nnodes $WORLD_SIZE"
export LAUNCHER="python -u -m torch.distributed.run $SIZES"
srun --wait=60 bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $ENTRY {MODEL}" 2>&1 | tee -a /site/log.txt
"""


def test_what_only_another_site_has_is_passed_over(tmp_path: Path) -> None:
    back = read_script(written(tmp_path, OF_ANOTHER_SITE), "2x8 h100-sxm-80gb")
    assert back.plan.world_size == 16


@pytest.mark.parametrize(
    ("setting", "degree", "chip", "warned"),
    [
        ("", 2, "h100-sxm-80gb", True),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=32", 2, "h100-sxm-80gb", True),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1", 2, "h100-sxm-80gb", False),
        ("", 1, "h100-sxm-80gb", False),
        ("", 2, "b200-180gb", False),
    ],
)
def test_a_missing_order_of_kernels_is_warned_of(
    setting: str, degree: int, chip: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    words = f"{MODEL} --tensor-model-parallel-size {degree}"
    text = f"{setting}\ntorchrun --nproc-per-node 8 pretrain_gpt.py {words}\n"
    back = read_script(written(tmp_path, text), f"1x8 {chip}")
    assert ("CUDA_DEVICE_MAX_CONNECTIONS" in " ".join(back.warnings)) == warned
