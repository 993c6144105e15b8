"""Counts and sizes of collectives against calls counted in Megatron-LM core 0.19 itself."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from pathlib import Path

import pytest

from planner.cost.collective_counts import StageShape, collective_counts
from planner.data.model_spec import ModelSpec, MoeSpec

TRUTH = Path(__file__).parents[4] / "shared/groundtruth/megatron_collectives.json"

OPS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "isend": "send",
}
GROUPS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EMBEDDING_GROUP": "embedding",
}
SKIPPED = ("--grad-reduce-in-bf16", "--num-distributed-optimizer-instances", "--mtp-num-layers")
"""Arguments of runs that the planner does not use."""


def runs() -> list[dict]:
    """Dense runs, and those with experts for what is not data dependent in them."""
    if not TRUTH.exists():
        return []
    return [
        r for r in json.loads(TRUTH.read_text())["runs"] if not any(flag in r["args"] for flag in SKIPPED)
    ]


def value(args: list[str], flag: str, default: int) -> int:
    """Last value of an argument."""
    found = [int(args[i + 1]) for i, a in enumerate(args) if a == flag]
    return found[-1] if found else default


def spec(args: list[str]) -> ModelSpec:
    """The tiny model of the counted runs."""
    experts = value(args, "--num-experts", 0)
    llama = "--swiglu" in args
    groups = value(args, "--num-query-groups", 4) if llama else 4
    moe = MoeSpec(
        num_experts=experts or 1,
        top_k=2 if experts else 1,
        ffn_hidden_size=64,
        shared_ffn_hidden_size=value(args, "--moe-shared-expert-intermediate-size", 0),
    )
    return ModelSpec(
        id="tiny",
        family="tiny",
        num_layers=value(args, "--num-layers", 2),
        hidden_size=64,
        ffn_hidden_size=256,
        num_attention_heads=4,
        num_query_groups=groups,
        head_dim=16,
        vocab_size=100,
        max_position_embeddings=32,
        tied_embeddings="--untie-embeddings-and-output-weights" not in args,
        position_embedding="rope" if llama else "learned",
        gated_mlp=llama,
        activation="silu" if llama else "gelu",
        normalization="rms" if llama else "layer",
        qk_norm="--qk-layernorm" in args,
        linear_bias="none" if "--disable-bias-linear" in args else "all",
        moe=moe if experts else None,
        source="counted runs",
    )


def shape_of(run: dict, args: list[str], rank: int) -> StageShape:
    """The stage that a rank belongs to."""
    tp = value(args, "--tensor-model-parallel-size", 1)
    pp = value(args, "--pipeline-model-parallel-size", 1)
    v = value(args, "--num-virtual-stages-per-pipeline-rank", 1)
    dp = run["world_size"] // (tp * pp)
    stage = rank // (tp * dp)
    layers = value(args, "--num-layers", 2)
    per_stage = [layers // pp] * pp
    if "--pipeline-model-parallel-layout" in args:
        layout = shlex.split(args[args.index("--pipeline-model-parallel-layout") + 1])[0]
        per_stage = [part.count("t") for part in layout.split("|")]
    count = per_stage[stage]
    kind = "moe" if "--num-experts" in args else "dense"
    recomputed = 0
    if "full" in args:
        block = "block" in args
        recomputed = min(count, value(args, "--recompute-num-layers", 1)) if block else count
    return StageShape(
        kinds=(kind,) * count,
        has_embedding=stage == 0,
        has_head=stage == pp - 1,
        stage=stage,
        num_stages=pp,
        tp=tp,
        dp=dp,
        ep=value(args, "--expert-model-parallel-size", 1),
        etp=value(args, "--expert-tensor-parallel-size", tp),
        sequence_parallel="--sequence-parallel" in args,
        microbatch_size=2,
        num_microbatches=value(args, "--global-batch-size", 4) // (2 * dp),
        virtual_stages=v,
        recomputed_layers=recomputed,
        dp_mode="distopt" if "--use-distributed-optimizer" in args else "ddp",
        fused_cross_entropy="--cross-entropy-loss-fusion" in args,
    )


def measured(table: list[dict]) -> dict[tuple[str, str, str], dict[float, int]]:
    """Calls by phase, operation, group and size; scalars and data left out."""
    found: dict[tuple[str, str, str], dict[float, int]] = defaultdict(lambda: defaultdict(int))
    for row in table:
        group = GROUPS.get(row["group"])
        if group is None or row["op"] not in OPS or row["in_bytes"] <= 8:
            continue
        phase = {"finalize_grads": "gradients", "p2p": "p2p"}.get(row["phase"], row["phase"])
        if group == "dp":
            phase = "parameters" if "gather" in row["op"] else "gradients"
        found[phase, OPS[row["op"]], group][max(row["in_bytes"], row["out_bytes"])] += row["count"]
    return found


@pytest.mark.skipif(not TRUTH.exists(), reason="the counted runs are not at hand")
@pytest.mark.parametrize("run", runs(), ids=lambda r: r["name"])
def test_counts_and_sizes_equal_what_megatron_issued(run: dict) -> None:
    for rank, table in run["ranks"].items():
        if isinstance(table, dict):
            continue
        args = run["args"] + (run.get("extra_args_of_rank") or {}).get(rank, [])
        predicted: dict[tuple[str, str, str], dict[float, int]] = defaultdict(lambda: defaultdict(int))
        for c in collective_counts(spec(args), shape_of(run, args, int(rank)), seq_length=32):
            phase = "p2p" if c.op == "send" else c.phase
            predicted[phase, c.op, c.group][c.size_bytes] += c.count
        truth = measured(table)
        moe = "--num-experts" in args
        for key in {*truth, *predicted}:
            if key[2] not in ("tp", "pp", "dp", "embedding"):
                continue
            if key[2] == "dp":
                # Buckets split and pad; the sum agrees to the padding of a few buckets.
                total = sum(size for size, n in truth[key].items() for _ in range(n))
                ours = sum(size * n for size, n in predicted[key].items())
                twice = moe and key[1] == "all_gather" and "--overlap-param-gather" not in args
                assert ours * (2 if twice else 1) == pytest.approx(total, rel=0.02), (rank, key)
            elif moe and key == ("forward", "all_reduce", "tp"):
                assert all(truth[key].get(size, 0) >= n for size, n in predicted[key].items()), (rank, key)
            else:
                assert dict(truth[key]) == dict(predicted[key]), (rank, key)
