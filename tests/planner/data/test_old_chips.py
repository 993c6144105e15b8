"""Chips without attention in one kernel: what is planned and written where they take part."""

from __future__ import annotations

import pytest

from planner.data.chip import Precision
from planner.data.load import build_problem, load_problem
from planner.data.options import Options
from planner.data.problem import Problem
from planner.launchers.read_megatron import read_arguments
from planner.simulate.evaluate import evaluate
from tests.planner.launchers import plans


def of(cluster: str, precision: Precision = "fp16", spare: tuple[str, ...] = ()) -> Problem:
    return build_problem(
        cluster=cluster, model="llama2-7b", seq_length=4096, global_batch_size=32, precision=precision,
        options=Options(spare=spare),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "precision", "spare", "fused"),
    [
        ("1x8 v100-sxm-32gb", "fp16", (), False),
        ("1x8 a100-sxm-80gb, 1x8 t4-16gb", "fp16", (), False),
        ("1x8 a100-sxm-80gb, 1x8 t4-16gb", "fp16", ("t4-16gb",), True),
        ("1x8 a100-sxm-80gb, 1x8 v100-sxm-32gb", "bf16", (), True),  # V100 has no bf16 and stays idle
        ("1x8 mi300x-192gb", "fp16", (), True),
        ("1x8 rtx-3090-24gb", "fp16", (), True),
    ],
)
def test_scores_are_kept_where_a_chip_has_no_fused_attention(
    cluster: str, precision: Precision, spare: tuple[str, ...], fused: bool
) -> None:
    problem = of(cluster, precision, spare)
    assert problem.stack.flash_attention == fused
    assert any("keep their scores" in note for note in problem.cluster.assumptions) != fused


@pytest.mark.parametrize(("chip", "fused"), [("a100-sxm-80gb", False), ("h100-sxm-80gb", True)])
def test_wide_latent_attention_keeps_its_scores_before_hopper(chip: str, fused: bool) -> None:
    problem = build_problem(
        cluster=f"1x8 {chip}", model="deepseek-v2-lite", seq_length=4096, global_batch_size=32
    )
    assert problem.stack.flash_attention == fused


def test_software_with_kernels_of_its_own_is_left_alone() -> None:
    assert not load_problem("opt-350m-a100-v100-16").stack.flash_attention  # as its file says
    problem = build_problem(
        cluster="1x8 v100-sxm-32gb", model="llama2-7b", seq_length=4096, global_batch_size=32,
        precision="fp16", stack="internevo",
    )  # fmt: skip
    assert problem.stack.flash_attention


def test_a_plan_on_v100_is_given_the_memory_of_its_scores() -> None:
    """Two bytes a score: 32 heads of 4,096 x 4,096 on 8 ranks are 128 MiB a layer and sequence."""
    sketch = plans.Sketch(
        [[32]], [0], tensor_parallel=8, data_parallel=1, num_microbatches=32, sequence_parallel=True
    )
    kept = [
        evaluate(problem, sketch.plan(problem)).stages[0].memory_gib["activations"]
        for problem in (of("1x8 v100-sxm-32gb"), of("1x8 a100-sxm-80gb"))
    ]
    assert kept[0] - kept[1] == pytest.approx(32 * 128 / 1024, rel=0.02)


def test_a_script_on_v100_keeps_its_scores_whatever_it_asks_for() -> None:
    text = (
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --fp16 "
        "--vocab-size 32000 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8 "
        "--attention-backend flash"
    )
    assert not read_arguments(text, "1x8 v100-sxm-32gb", where="args").problem.stack.flash_attention
    assert read_arguments(text, "1x8 a100-sxm-40gb", where="args").problem.stack.flash_attention
