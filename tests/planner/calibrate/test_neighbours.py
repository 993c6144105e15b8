"""Predictions of runs that nobody measured: neighbours of measured ones, changed at random.

A predictor that is right on its list may still fall off a cliff beside it. Runs of every suite get other
models and layouts (fixed seed); each is predicted beside a neighbour, of which it is known what it must cost.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.calibrate.convert import convert
from planner.calibrate.patterns import SkipRun
from planner.calibrate.predictions import Prediction, predict_runs
from planner.calibrate.runs import Run
from planner.calibrate.stacks import memory_kind

MEASURED = Path(__file__).parents[4] / "shared/measured/runs.jsonl"

Row = dict[str, Any]

CHANGES: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "hidden": (("model", "hidden_size"), (512, 1024, 2560, 5120, 8192, 12288)),
    "ffn": (("model", "ffn_hidden_size"), (2048, 11008, 28672)),
    "vocabulary": (("model", "vocab_size"), (32000, 128256, 256000)),
    "sequence": (("workload", "seq_length"), (512, 2048, 8192, 32768)),
    "precision": (("workload", "precision"), ("bf16", "fp16", "fp8", "nvfp4", None)),
    "microbatch": (("plan", "microbatch_size"), (1, 2, 3, 8)),
    "tensor": (("plan", "tensor_parallel"), (1, 2, 4, 8)),
    "context": (("plan", "context_parallel"), (1, 2, 4)),
    "pipeline": (("plan", "pipeline_parallel"), (1, 2, 4)),
    "sharding": (("plan", "dp_mode"), ("ddp", "distopt", "zero2", "zero3")),
    "chip": (("chip",), ("a100-sxm-80gb", "h100-sxm-80gb", "gb200-186gb", "mi300x-192gb")),
}
"""Values that a changed run may take, by place."""


def put(row: Row, path: tuple[str, ...], value: Any) -> None:
    *parents, last = ("cluster", "groups", 0, "chip") if path == ("chip",) else path
    part: Any = row
    for parent in parents:
        part = part[parent]
    part[last] = value


def consistent(row: Row) -> Row:
    """The row with the data-parallel degree and the batch that its chips make, 8 micro-batches or more."""
    plan = row["plan"]
    if plan["recompute"] is None:  # the fastest that fits jumps where another one begins to fit
        plan["recompute"] = "none"
    elif row["source"] == "fms-fsdp":  # so does the share of layers
        plan["recompute"] = "full"
    model_chips = plan["tensor_parallel"] * plan["pipeline_parallel"] * plan["context_parallel"]
    chips = row["cluster"]["groups"][0]["num_chips"]
    plan["data_parallel"] = dp = max(1, chips // model_chips)
    row["cluster"]["groups"][0]["num_chips"] = dp * model_chips
    row["workload"]["global_batch_size"] = dp * plan["microbatch_size"] * 8 * plan["pipeline_parallel"]
    chunks = plan["pipeline_parallel"] * (plan["virtual_stages"] or 1)
    row["model"]["num_layers"] = chunks * max(1, row["model"]["num_layers"] // chunks)
    return row


def rows(number: int) -> Iterator[Row]:
    """Changed runs of uniform clusters, every suite as often."""
    by_suite: dict[str, list[Row]] = {}
    for line in MEASURED.read_text().splitlines():
        row = json.loads(line)
        plan = row["plan"]
        usable = row["quality"] != "low" and len(row["cluster"]["groups"]) == 1 and plan["microbatch_size"]
        # One chip that stands for others has no neighbours, a profile none on its edge.
        if usable and not plan.get("shard_of_one_rank_only") and not row["source"].startswith("sailor"):
            by_suite.setdefault(row["source"], []).append(row)
    draw = random.Random(0)
    for i in range(number):
        row = copy.deepcopy(draw.choice(by_suite[sorted(by_suite)[i % len(by_suite)]]))
        for name in draw.sample(sorted(CHANGES), draw.choice([0, 1, 2, 3])):
            path, values = CHANGES[name]
            put(row, path, draw.choice(values))
        yield consistent(row)


def predicted(row: Row) -> Prediction | None:
    """None where the run is skipped, with a reason."""
    run = Run.model_validate(row)
    try:
        candidate = convert(run)
    except SkipRun as skip:
        assert skip.reason
        return None
    (prediction,) = predict_runs([candidate], [memory_kind(run)])
    return prediction


@functools.cache
def rows_that_are_predicted(number: int) -> list[tuple[Row, Prediction]]:
    """Changed runs with their predictions, the same for every neighbour."""
    found = ((row, predicted(row)) for row in rows(number))
    return [(row, prediction) for row, prediction in found if prediction is not None]


def longer(row: Row) -> None:
    row["workload"]["seq_length"] *= 2


def more(row: Row) -> None:
    row["workload"]["global_batch_size"] *= 2


def deeper(row: Row) -> None:
    row["model"]["num_layers"] += row["plan"]["pipeline_parallel"] * (row["plan"]["virtual_stages"] or 1)


def wider(row: Row) -> None:
    model = row["model"]
    model["head_dim"] = model["head_dim"] or model["hidden_size"] // model["num_attention_heads"]
    model["hidden_size"] += 64


def larger_vocabulary(row: Row) -> None:
    if row["model"]["vocab_size"] is not None:
        row["model"]["vocab_size"] += 128


Bounds = tuple[float, float]

NEIGHBOURS: list[tuple[Callable[[Row], None], Bounds, Bounds]] = [
    # Four times for the scores, and more where no kernel fuses the softmax of so many (`longest_softmax`).
    (longer, (1.0, 6.0), (0.999, 5.0)),
    (more, (1.0, 2.001), (0.999, 1.001)),
    (deeper, (1.0, 2.001), (1.0, 2.001)),
    (wider, (0.95, 1.25), (0.99, 1.25)),
    (larger_vocabulary, (0.99, 1.02), (0.99, 1.02)),
]
"""What changes, and the ratios of step time and of memory that it may make."""


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.exists(), reason="the measured runs are not at hand")
@pytest.mark.parametrize(("change", "time", "memory"), NEIGHBOURS, ids=lambda x: getattr(x, "__name__", ""))
def test_neighbours_of_changed_runs_cost_what_they_must(
    change: Callable[[Row], None], time: Bounds, memory: Bounds
) -> None:
    pairs, wrong = 0, []
    for row, a in rows_that_are_predicted(800):
        neighbour = copy.deepcopy(row)
        change(neighbour)
        b = predicted(neighbour)
        if b is None:
            continue
        pairs += 1
        for prediction in (a, b):
            parts = (*prediction.breakdown_s.values(), *prediction.memory_terms_gib.values())
            assert all(math.isfinite(part) and part >= -1e-12 for part in parts), row["id"]
            assert prediction.step_s > 0 and prediction.memory_gib > 0, row["id"]
        ratios = b.step_s / a.step_s, b.memory_gib / a.memory_gib
        if not (time[0] <= ratios[0] <= time[1] and memory[0] <= ratios[1] <= memory[1]):
            wrong.append((row["id"], *ratios))
    assert pairs > 500
    assert not wrong
