"""Without legal degrees the rule that is to blame is named, with what would be legal."""

from __future__ import annotations

from typing import Any

import pytest

from planner import api
from planner.data.load import build_problem
from planner.data.options import Options

LLAMA = {"model": "llama3-8b", "cluster": "1x8 h100-sxm-80gb"}


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        (
            {"model": "llama-30b", "cluster": "2x8 h100-sxm-80gb"},
            {"pin": {"tp": 8}},
            "tensor_parallel 8: 52 attention heads do not split evenly; legal below it: 1, 2, 4",
        ),
        (
            {"model": "llama3-8b", "cluster": "1x2 h100-sxm-80gb"},
            {"pin": {"tp": 4}},
            "tp=4 is pinned, but no node can hold such groups: its chips must be a multiple of 4, nodes have "
            "2 (h100-sxm-80gb); the cluster has 2 devices in all",
        ),
        (
            {"model": "llama3-8b", "cluster": "1x7 a100-sxm-80gb", "global_batch_size": 256},
            {"pin": {"mbs": 2, "dp": 7}},
            "global_batch_size 256: is no multiple of microbatch_size 2 x data_parallel 7 = 14; nearest "
            "legal: 252 or 266",
        ),
        (LLAMA, {"pin": {"ep": 2}}, "expert_parallel 2: llama3-8b has no experts; set it to 1"),
        (
            LLAMA,
            {"pin": {"tp": 8, "dp": 2}},
            "a stage of tp=8 x dp=2 needs 16 chips, the largest class has 8",
        ),
        (  # a plan came out here that no launch file could state and Megatron-LM would refuse
            {"model": "gpt-oss-20b", "cluster": "1x8 a100-sxm-80gb", "seq_length": 4096},
            {"pin": {"etp": 2}},
            "expert_tensor_parallel 2: experts with biases need expert_tensor_parallel 1; set it to 1",
        ),
        (  # Megatron-LM runs that: to give up one of them was asked for, as if no launcher did
            {"model": "mixtral-8x7b", "cluster": "1x8 h100-sxm-80gb"},
            {"pin": {"tp": 4, "etp": 2}},
            "etp=2 is pinned, but the search takes 1 or tp=4, which is pinned",
        ),
        (LLAMA, {"pin": {"cp": 3}}, "context_parallel 3: seq_length 8192 is no multiple of 6"),
        (LLAMA, {"pin": {"tp": 1, "sp": 1}}, "sequence_parallel: needs tensor_parallel above 1"),
        (LLAMA, {"pin": {"mbs": 16}}, "mbs=16 is pinned, but at most 8 is allowed (max_microbatch_size)"),
        (LLAMA, {"pin": {"pp": 40}}, "pp=40 is pinned, but llama3-8b has 32 layers"),
        (
            LLAMA,
            {"pin": {"pp": 4, "tp": 4}},
            "pp=4 is pinned, but the cluster holds at most 2 stages of the degrees that are allowed: the "
            "smallest stage takes 4 of its 8 chips",
        ),
        (LLAMA, {"pin": {"pp": 4}, "forbid": ("pp=4",)}, "pp=4 is pinned and forbidden"),
        (
            {**LLAMA, "global_batch_size": 3},
            {"pin": {"dp": 3}, "forbid": ("mbs=1",)},
            "no degrees are legal with dp=3 pinned and mbs=1 forbidden; give up one of them",
        ),
    ],
)
def test_the_rule_that_rules_all_out_is_named(
    given: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    problem = build_problem(
        **{"seq_length": 8192, "global_batch_size": 32, **given}, options=Options(**options)
    )
    result = api.plan(problem)
    assert result.termination == "infeasible" and result.reason is not None
    assert reason in result.reason


def test_memory_is_to_blame_only_with_the_stages_that_are_wished_for() -> None:
    # One stage of tensor degree 8 does not hold 70 billion parameters; the reason names one stage, not 8.
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb",
        model="llama3-70b",
        seq_length=2048,
        global_batch_size=8,
        options=Options(pin={"pp": 1}),
    )
    result = api.plan(problem)
    assert result.termination == "infeasible" and result.reason is not None
    assert "tensor parallel 8, 1 stage, data parallel 1" in result.reason
