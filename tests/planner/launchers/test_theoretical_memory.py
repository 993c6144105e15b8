"""Bytes of weights, gradients and optimizer state against Megatron-LM's own count of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.api import predict
from planner.cost.parameters import padded_vocab
from planner.data.load import load_model, names
from planner.data.model_spec import ModelSpec
from planner.launchers.megatron.model import inexpressible
from planner.units import GIB
from tests.planner.launchers import plans
from tests.planner.launchers.test_megatron_accepts import run_check, write

pytestmark = pytest.mark.slow

EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b")
"""Models with experts that are looked at beside all dense ones: neither is large."""


def on_one_stage(model: ModelSpec) -> plans.Case:
    """All layers on every rank, where Megatron-LM's estimate counts what there is."""
    tp = 1 if model.num_attention_heads % 2 else 2
    sketch = plans.Sketch(
        [[model.num_layers]],
        [0],
        tensor_parallel=tp,
        data_parallel=16 // tp,
        expert_parallel=8 if model.moe is not None else 1,
        num_microbatches=1,
        sequence_parallel=tp > 1,
    )
    return plans.case(model, "2x8 h100-sxm-80gb", 16 // tp, 1024, sketch)


def counted_by_megatron_alone(model: ModelSpec, tp: int) -> int:
    """Parameters that the model has and the estimate (core 0.19.2) leaves out: biases, norms of queries and
    keys, learned positions."""
    h, f, queries = model.hidden_size, model.ffn_hidden_size, model.num_attention_heads * model.head_dim
    qkv = queries + 2 * model.num_query_groups * model.head_dim
    gates = 2 if model.gated_mlp else 1
    in_layer = 2 * model.head_dim if model.qk_norm else 0
    if model.linear_bias in ("qkv", "all"):
        in_layer += qkv // tp
    if model.linear_bias == "all":
        in_layer += gates * f // tp + 2 * h
    positions = model.max_position_embeddings * h if model.position_embedding == "learned" else 0
    return model.num_layers * in_layer + positions


def test_models_take_the_bytes_that_megatron_counts(megatron_python: str, tmp_path: Path) -> None:
    models = [m for name in names("models") if not inexpressible(m := load_model(name))]
    models = [model for model in models if model.moe is None or model.id in EXPERTS]
    options: list[str] = []
    cases = {model.id: on_one_stage(model) for model in models}
    for name, (problem, plan) in cases.items():
        out = write(tmp_path / name, problem, plan)
        options += ["--script", str(out / "launch.sh"), "--nodes", "2"]
        options += ["--json", str(tmp_path / name / "report.json")]
    done = run_check(megatron_python, *options)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    for name, (problem, plan) in cases.items():
        report = json.loads((tmp_path / name / "report.json").read_text())
        (parameters,), dp = report["params_per_stage"], plan.data_parallel
        terms = {term: gib * GIB for term, gib in predict(problem, plan).stages[0].memory_gib.items()}
        estimate, model = report["weight_and_optimizer_bytes"], problem.model
        # At the peak one more gradient in 16 bits may be about to be added, the embedding's at most.
        entries = padded_vocab(model.vocab_size, plan.tensor_parallel) // plan.tensor_parallel
        added = terms["gradients"] - 2 * terms["weights"]
        assert -1 <= added <= 2 * entries * model.hidden_size + 1, name
        states = terms["weights"] + 2 * terms["weights"] + terms["optimizer"]
        assert terms["weights"] == pytest.approx(2 * parameters, rel=1e-9), name
        if model.moe is None:
            assert terms["optimizer"] == pytest.approx(12 / dp * parameters, rel=1e-9), name
            left_out = counted_by_megatron_alone(model, plan.tensor_parallel)
            assert states == pytest.approx(estimate + left_out * (6 + 12 / dp), rel=1e-9), name
        else:
            assert states == pytest.approx(estimate, rel=1e-4), name
