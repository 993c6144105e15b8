"""Both exports of a plan before the real code: Megatron-Bridge builds what Megatron-LM builds.

Needs the environment of `tests/setup_bridge.sh`; without it, these tests are skipped.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from planner.data.chip import Precision
from planner.data.load import load_model, names
from planner.data.model_spec import KIND_OF_LETTER
from planner.errors import PlanRefusedError
from planner.launchers.directory import export_plan
from planner.launchers.megatron.model import inexpressible
from planner.launchers.nearest import is_legal
from tests.planner.launchers import plans
from tests.planner.launchers.conftest import ROOT
from tests.planner.launchers.random_plans import random_case
from tests.planner.launchers.test_round_trip import recomputing_alike

pytestmark = pytest.mark.slow


def halved(name: str) -> plans.Case:
    """A shipped model on two stages, of two tensor-parallel ranks where its heads divide by them."""
    model = load_model(name)
    half, tp = model.num_layers // 2, 1 if model.num_attention_heads % 2 else 2
    sketch = plans.Sketch(
        [[half], [model.num_layers - half]],
        [0, 0],
        tensor_parallel=tp,
        data_parallel=16 // tp,
        expert_parallel=8 if model.moe is not None else 1,
        num_microbatches=2,
        sequence_parallel=tp > 1,
    )
    learned = model.position_embedding == "learned"  # of which Megatron-Bridge makes one for each token
    length = model.max_position_embeddings if learned else min(1024, model.max_position_embeddings)
    return plans.case(model, "4x8 h100-sxm-80gb", 32 // tp, length, sketch)


PRECISIONS: tuple[Precision, ...] = ("bf16", "bf16", "fp8", "fp8_block", "mxfp8", "nvfp4", "fp16")


def varied(seed: int) -> plans.Case:
    """A random plan under random software and in a random number format, all stages recomputing alike."""
    rng = random.Random(seed)
    while True:
        problem, plan = random_case(rng.randrange(10**9))
        stack = {
            "dp_overlap": rng.random() < 0.7,
            "gradient_bytes": rng.choice([2.0, 4.0, 4.0]),
            "gradient_accumulation_fusion": rng.random() < 0.7,
            "flash_attention": plan.context_parallel > 1 or rng.random() < 0.8,
            "moe_permute_fusion": rng.random() < 0.7,
            "moe_router_fusion": rng.random() < 0.3,
            "moe_dispatcher": rng.choice(["alltoall", "deduplicating"]),
            "dispatcher_library": rng.choice(["deepep", "hybridep"]),
            "narrow_parameters": rng.random() < 0.3,
            "current_scaling": rng.random() < 0.3,
            "tp_userbuffers": rng.random() < 0.2,
            "bucket_parameters": rng.choice([None, 5e7]),
        }
        problem = problem.model_copy(
            update={
                "stack": problem.stack.model_copy(update=stack),
                "workload": problem.workload.model_copy(update={"precision": rng.choice(PRECISIONS)}),
            }
        )
        plan = recomputing_alike(plan)
        if is_legal(problem, plan):
            return problem, plan


def compare(python: str, cases: Iterable[tuple[str, plans.Case]], folder: Path) -> dict[str, dict[str, Any]]:
    """Write both directories of every case and compare them; what Megatron-Bridge built, by name."""
    words = []
    for name, (problem, plan) in cases:
        try:
            both = [
                export_plan(
                    problem, plan.model_copy(update={"target": target}), target, folder / name / target
                )
                for target in ("megatron-lm", "megatron-bridge")
            ]
        except PlanRefusedError:
            continue
        words += ["--lm", str(both[0]), "--bridge", str(both[1])]
    command = [python, "-m", "tests.bridge_check", *words, "--json", str(folder / "built.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    built = json.loads((folder / "built.json").read_text())
    return {Path(path).parent.name: table for path, table in built.items()}


def test_every_shipped_model_is_built_alike(bridge_python: str, tmp_path: Path) -> None:
    """Found by it: Kimi K2 trained with Muon, of which plans count no state; routers in 16 bits."""
    models = [n for n in names("models") if not inexpressible(load_model(n), builds_plain_hybrids=True)]
    assert {"nemotron-h-8b", "nemotron-3-nano-30b-a3b"} <= {*models}
    built = compare(bridge_python, ((name, halved(name)) for name in models), tmp_path)
    assert set(built) == set(models)
    for name, table in built.items():
        model, half = load_model(name), load_model(name).num_layers // 2
        kinds = [
            [sum(kind in ("decoder", *KIND_OF_LETTER) for kind in chunk) for chunk in rank]
            for rank in table["model.layers"]
        ]
        assert kinds == [[half], [model.num_layers - half]]
        sizes = {"num_layers": model.num_layers, "hidden_size": model.hidden_size}
        sizes |= {"num_moe_experts": model.moe.num_experts if model.moe is not None else None}
        assert {field: table[f"model.{field}"] for field in sizes} == sizes
        assert table["model.layernorm_epsilon"] == (model.constants.norm_epsilon or 1e-5)
        assert (table["train.micro_batch_size"], table["optimizer.optimizer"]) == (1, "adam")


def test_random_plans_are_built_alike(bridge_python: str, tmp_path: Path) -> None:
    # New plans every time; HETPLAN_SEED repeats a run.
    first = int(os.environ.get("HETPLAN_SEED", random.randrange(10**9)))
    print(f"seeds {first} to {first + 39}")
    built = compare(bridge_python, ((f"seed-{s}", varied(s)) for s in range(first, first + 40)), tmp_path)
    assert len(built) >= 10
