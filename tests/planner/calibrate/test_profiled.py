"""Runs of software that was profiled layer by layer."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from planner.calibrate import profiled
from planner.calibrate.convert import Candidate, convert
from planner.cost.pricing import price
from planner.data.profiles import profiled_models, shipped_profiles
from planner.simulate.evaluate import degrees_of
from tests.planner.calibrate.rows import MOE, run

OPT = {"name": "OPT-350M", "num_layers": 24, "hidden_size": 1024, "ffn_hidden_size": 4096}
CHANGES: dict[str, Any] = {
    "software": "Sailor runtime on Megatron-DeepSpeed",
    "cluster": {"groups": [{"chip": "gh200-96gb", "num_chips": 4, "chips_per_node": 4}]},
    "model": {**OPT, "num_attention_heads": 16, "vocab_size": 50272, "moe": None},
    "workload": {"seq_length": 2048, "global_batch_size": 32, "precision": "fp16"},
    "plan__tensor_parallel": 4,
    "plan__pipeline_parallel": 1,
    "plan__data_parallel": 1,
    "plan__microbatch_size": 2,
    "plan__recompute": None,
    "plan__sequence_parallel": False,
}


def converted(**changes: Any) -> Candidate:
    return convert(run(**copy.deepcopy({**CHANGES, **changes})))


def layer_s(candidate: Candidate) -> float:
    """Forward and backward of a layer."""
    prices = price(candidate.problem, degrees_of(candidate.plans[0]))
    return float((prices.layer_forward_s + prices.layer_backward_s)[0, 0, 0].sum())


def test_run_of_the_profiled_software_takes_its_measured_layers() -> None:
    candidate = converted()
    assert [profile.chip for profile in candidate.problem.profiles] == ["gh200-96gb"]
    assert "layer times from a profile" in candidate.assumptions
    # Other software has other layers, and a sequence length that nobody measured has none.
    assert converted(software="NeMo").problem.profiles == ()
    assert converted(workload__seq_length=4096).problem.profiles == ()


@pytest.mark.parametrize("model", [{"hidden_size": 2048}, {"moe": MOE}])
def test_a_profile_is_not_that_of_another_network_of_the_same_name(model: dict[str, Any]) -> None:
    assert converted(model={**CHANGES["model"], **model}).problem.profiles == ()


def test_layers_that_were_not_profiled_are_as_slow_as_those_that_were() -> None:
    """A little longer or wider than what was profiled takes about what that takes, not a third of it."""
    exact = layer_s(converted(plan__microbatch_size=32))
    longer = converted(plan__microbatch_size=32, workload__seq_length=2176)
    assert any("layers take 2.98 of" in note and "opt-350m" in note for note in longer.assumptions)
    assert 0.75 < layer_s(longer) / exact < 1.25
    wider = converted(plan__microbatch_size=32, model={**CHANGES["model"], "hidden_size": 1088})
    assert 0.75 < layer_s(wider) / exact < 1.25
    # Launches are as slow as ever: a layer of few tokens waits for them alone.
    few = converted(plan__microbatch_size=1, workload__seq_length=1024)
    stack = few.problem.stack
    assert stack.host_layer_floor_ms * stack.time_factor["gh200-96gb"] == pytest.approx(0.9)


def test_a_chip_on_which_nothing_was_profiled_is_left_to_the_operators() -> None:
    cluster = {"groups": [{"chip": "h100-sxm-80gb", "num_chips": 4, "chips_per_node": 4}]}
    assert converted(cluster=cluster).problem.stack.time_factor == {}


SHAPES = {
    "opt-350m": {"hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16},
    "gpt-neo-2.7b": {"hidden_size": 2560, "ffn_hidden_size": 10240, "num_attention_heads": 32},
    "opt-30b": {"hidden_size": 7168, "ffn_hidden_size": 28672, "num_attention_heads": 56},
    "llama3-8b": {
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "num_query_groups": 8,
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_profiled_layers_over_the_operator_model_are_what_the_table_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiled, "PROFILED_STACKS", ())
    (model,) = (model for model in profiled_models() if model.name == name)
    assert SHAPES[name]["hidden_size"] == model.hidden_size
    shape = {**SHAPES[name], "name": name, "num_layers": model.num_layers, "vocab_size": 50272, "moe": None}
    found = {}
    for profile in shipped_profiles(name):
        ratios = []
        for point in profile.points:
            tp = point.tensor_parallel
            candidate = converted(
                cluster={"groups": [{"chip": profile.chip, "num_chips": tp, "chips_per_node": tp}]},
                model=shape,
                workload={"seq_length": model.seq_length, "global_batch_size": 128, "precision": "fp16"},
                plan__tensor_parallel=tp,
                plan__microbatch_size=point.microbatch_size,
            )
            measured_ms = point.layer.forward_ms + point.layer.backward_ms
            ratios.append(measured_ms / 1e3 / layer_s(candidate))
        found[profile.chip] = float(np.median(ratios))
    assert model.over_operators == pytest.approx(found, rel=0.03)
