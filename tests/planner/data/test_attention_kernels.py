"""Chips without attention in one kernel: what is priced, planned and written where they take part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.cost.prices import SIZES_BY_CLASS, Degrees, Prices
from planner.cost.pricing import price
from planner.data.attention_kernels import keeps_scores
from planner.data.chip import Precision
from planner.data.load import build_problem, load_problem
from planner.data.options import Options
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.launchers.read.megatron import read_arguments
from planner.rules.megatron import violations
from planner.search.degrees import list_degrees
from planner.search.driver import search
from planner.simulate.evaluate import evaluate
from tests.planner.launchers import plans
from tests.planner.launchers.test_round_trip import assert_reads_back

A100, V100 = "1x8 a100-sxm-80gb", "1x8 v100-sxm-32gb"
MIX = f"{A100}, {V100}"


def of(
    cluster: str, precision: Precision = "fp16", model: str = "llama2-7b", options: Options | None = None
) -> Problem:
    return build_problem(
        cluster=cluster, model=model, seq_length=4096, global_batch_size=32, precision=precision,
        options=options,
    )  # fmt: skip


def keeping(problem: Problem) -> list[bool]:
    return [keeps_scores(problem, c) for c in range(len(problem.cluster.classes))]


def without_fusion(problem: Problem) -> Problem:
    """The same with software that keeps scores on all chips."""
    stack = problem.stack.model_copy(update={"flash_attention": False})
    return problem.model_copy(update={"stack": stack})


def prices_of(problem: Problem, tensor_parallel: int = 8, data_parallel: int = 1) -> Prices:
    splits = tensor_parallel > 1
    degrees = Degrees.single(
        tensor_parallel=tensor_parallel, data_parallel=data_parallel, sequence_parallel=splits
    )
    return price(problem, degrees)


def two_stages(problem: Problem, data_parallel: int = 1) -> Plan:
    """Sixteen layers on each of two classes."""
    sketch = plans.Sketch(
        [[16], [16]], [0, 1], tensor_parallel=8 // data_parallel, data_parallel=data_parallel,
        num_microbatches=32 // data_parallel, sequence_parallel=True,
    )  # fmt: skip
    return sketch.plan(problem)


@pytest.mark.parametrize(
    ("cluster", "model", "expected"),
    [
        (V100, "llama2-7b", [True]),
        (f"{A100}, 1x8 t4-16gb", "llama2-7b", [False, True]),
        (f"1x8 mi300x-192gb, 1x8 rtx-3090-24gb, {V100}", "llama2-7b", [False, False, True]),
        (f"{A100}, 1x8 h100-sxm-80gb, 1x8 b200-180gb", "deepseek-v2-lite", [True, False, False]),
        ("1x8 rtx-5090-32gb", "deepseek-v2-lite", [True]),  # the only Blackwell without its wide heads
        (f"{A100}, 1x8 rtx-5090-32gb, 1x8 l40s-48gb", "gemma2-9b", [False, False, True]),  # heads of 256
        ("1x8 l40s-48gb", "nemotron-4-340b", [False]),  # heads of 192
    ],
)
def test_scores_are_kept_on_the_chips_that_have_no_fused_attention(
    cluster: str, model: str, expected: list[bool]
) -> None:
    problem = of(cluster, model=model)
    assert keeping(problem) == expected
    notes = [note for note in prices_of(problem).assumptions if "keeps its scores" in note]
    assert len(notes) == sum(expected)


def test_software_with_kernels_of_its_own_is_left_alone() -> None:
    assert keeping(load_problem("opt-350m-a100-v100-16")) == [False, False]  # scores on all, as its file says
    problem = build_problem(
        cluster=V100, model="llama2-7b", seq_length=4096, global_batch_size=32, precision="fp16",
        stack="internevo",
    )  # fmt: skip
    assert keeping(problem) == [False]


@pytest.mark.parametrize("model", ["llama2-7b", "deepseek-v2-lite"])
def test_each_class_of_a_mix_is_priced_as_if_it_were_alone(model: str) -> None:
    """The class that fuses attention neither waits for scores nor keeps them, whatever the other does."""
    own = (A100, V100) if model == "llama2-7b" else ("1x8 h100-sxm-80gb", A100)
    degrees = {"tensor_parallel": 1, "data_parallel": 8}
    mix = prices_of(of(", ".join(own), model=model), **degrees)
    for c, alone in enumerate(own):
        one = prices_of(of(alone, model=model), **degrees)
        names = [f"layer_{part}_s" for part in ("forward", "backward", "selective", "full", "optimizer")]
        names += [f"{end}_{part}_s" for end in ("embedding", "head") for part in ("forward", "backward")]
        for name in names:
            axis = 2 if name.startswith("layer_") else 1
            found, expected = np.take(getattr(mix, name), c, axis), np.take(getattr(one, name), 0, axis)
            np.testing.assert_array_equal(found, expected, err_msg=f"{alone} {name}")
        for name in SIZES_BY_CLASS:
            np.testing.assert_array_equal(
                getattr(mix, name)[..., c], getattr(one, name)[..., 0], err_msg=f"{alone} {name}"
            )


@pytest.mark.parametrize("c", [0, 1])
def test_software_without_fused_attention_is_priced_so_on_all_classes(c: int) -> None:
    mix, plain = prices_of(of(MIX)), prices_of(without_fusion(of(MIX)))
    for name in ("layer_forward_s", "layer_activation_bytes"):
        same = bool((getattr(mix, name)[:, :, c] == getattr(plain, name)[:, :, c]).all())
        assert same == (c == 1), name


def test_a_stage_on_v100_is_given_the_memory_of_its_scores_and_none_on_a100() -> None:
    """Two bytes a score: 32 heads of 4,096 x 4,096 on 8 ranks are 128 MiB a layer and sequence."""
    problem = of(MIX)
    kept = [
        [stage.memory_gib["activations"] for stage in evaluate(one, two_stages(one)).stages]
        for one in (problem, of(f"{A100}, 1x8 h100-sxm-80gb"))
    ]
    assert kept[0][0] == kept[1][0]
    assert kept[0][1] - kept[1][1] == pytest.approx(16 * 128 / 1024, rel=0.02)


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
@pytest.mark.parametrize("fuses", [True, False])
def test_each_process_chooses_its_attention_unless_the_software_has_none_in_one_kernel(
    target: TargetName, fuses: bool, tmp_path: Path
) -> None:
    problem = of(MIX) if fuses else without_fusion(of(MIX))
    assert_reads_back(problem, two_stages(problem), target, tmp_path / "launch")
    said = "".join(path.read_text() for path in (tmp_path / "launch").rglob("*") if path.is_file())
    assert ("unfused" in said) != fuses


def test_context_parallelism_is_kept_from_chips_without_fused_attention() -> None:
    table = list_degrees(of(MIX, options=Options(least_context_tokens=1024)))
    several = table.degrees.context_parallel > 1
    assert several.any() and (table.max_stages[several, 0] > 0).all()
    assert (table.max_stages[several, 1] == 0).all() and (table.max_stages[~several, 1] > 0).any()
    for c, cluster in enumerate((A100, V100)):
        sketch = plans.Sketch([[32]], [0], context_parallel=2, data_parallel=4, num_microbatches=8)
        alone = of(cluster)
        found = [one for one in violations(alone, sketch.plan(alone)) if "context_parallel 2" in one]
        assert len(found) == c, found
    pinned = search(of(V100, options=Options(pin={"cp": 2})))
    assert pinned.termination == "infeasible" and "no attention in one kernel" in (pinned.reason or "")


ARGUMENTS = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --fp16 "
    "--vocab-size 32000 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 8 "
)


@pytest.mark.parametrize("backend", ["auto", "unfused", "flash", "fused"])
def test_a_script_that_asks_for_one_kernel_only_stops_on_v100(backend: str) -> None:
    text = f"{ARGUMENTS} --attention-backend {backend}"
    old, new = (read_arguments(text, cluster, where="args") for cluster in (V100, A100))
    assert [one for one in new.refusals if "--attention-backend" in one] == []
    assert any("--attention-backend" in one for one in old.refusals) == (backend in ("flash", "fused"))
