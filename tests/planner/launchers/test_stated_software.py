"""Plans that are priced for what their launch files cannot run are refused, or told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner import api
from planner.data.load import load_stack, names
from planner.data.problem import Problem, TargetName
from planner.errors import InstanceError, PlanRefusedError
from planner.launchers.directory import export_plan
from planner.launchers.expressible import buildable, check_expressible
from planner.launchers.megatron.plan_arguments import refusals
from planner.launchers.stated_software import _OTHER_SOFTWARE, other_software, told_of_software
from tests.planner.launchers import plans


@pytest.mark.parametrize("target", ["megatron-lm", "flagscale"])
def test_a_loss_that_megatron_lm_refuses_is_refused(target: TargetName, tmp_path: Path) -> None:
    """Files of a plan priced with Transformer Engine's loss ran Megatron-LM's, of three times its memory."""
    problem, plan = plans.uniform()
    problem = problem.model_copy(update={"stack": load_stack("megatron-bridge"), "target": target})
    with pytest.raises(PlanRefusedError, match="loss of 2 bytes a logit"):
        export_plan(problem, plan, target, tmp_path / "launch")
    with pytest.raises(InstanceError, match="take target megatron-bridge, or stack megatron-core"):
        api.plan(problem)
    export_plan(problem, plan, "megatron-bridge", tmp_path / "launch")


def test_a_loss_priced_as_megatrons_own_is_that_with_megatron_bridge_too() -> None:
    """Files of a fused loss of 6 bytes a logit asked Megatron-Bridge for Transformer Engine's."""
    problem, plan = plans.uniform()
    for priced, kernel in ((6.0, "native"), (2.0, "te"), (None, "te")):
        loss = {"fused_cross_entropy": True, "loss_bytes_per_logit": priced}
        stack = problem.stack.model_copy(update=loss)
        of = problem.model_copy(update={"stack": stack})
        text = api.export_texts(plan, "megatron-bridge", problem=of)["overrides.txt"]
        assert f"model.cross_entropy_fusion_impl={kernel}\n" in text


def test_sharded_parameters_keep_the_usual_order_of_ranks_with_megatron_bridge() -> None:
    """Its own check stopped the start ("use_tp_pp_dp_mapping is not supported with Megatron FSDP")."""
    problem, plan = plans.replicas_outermost()
    sharded = plan.model_copy(update={"dp_mode": "fsdp"})
    assert refusals(problem, sharded) == ()
    assert refusals(problem, plan.model_copy(update={"target": "megatron-bridge"})) == ()
    (reason,) = refusals(problem, sharded.model_copy(update={"target": "megatron-bridge"}))
    assert "Megatron-Bridge refuses it; use tp-cp-ep-dp-pp" in reason


def test_flagscale_is_not_planned_with_several_instances_of_the_optimizer() -> None:
    """Its files said nothing of them, so that other state was exchanged, and less kept, than was planned."""
    problem, plan = plans.uniform()
    stack = problem.stack.model_copy(update={"optimizer_shard_size": 2})
    problem = problem.model_copy(update={"stack": stack, "target": "flagscale"})
    with pytest.raises(InstanceError, match="FlagScale among all replicas of a stage"):
        api.plan(problem)
    assert api.export_texts(plan, "megatron-lm", problem=problem)


def test_learned_positions_that_megatron_bridge_does_not_make_are_refused(tmp_path: Path) -> None:
    """It makes as many as a sequence has tokens: GPT-2 trained on 1,000 tokens lost 24 of its positions."""
    problem, plan = plans.biases_and_learned_positions()
    export_plan(problem, plan, "megatron-bridge", tmp_path / "whole")
    shorter = problem.workload.model_copy(update={"seq_length": 1000})
    problem = problem.model_copy(update={"workload": shorter})
    with pytest.raises(PlanRefusedError, match=r"seq_length 1000: .* has 2048"):
        export_plan(problem, plan, "megatron-bridge", tmp_path / "launch")
    with pytest.raises(InstanceError, match="or target megatron-lm"):
        api.plan(problem.model_copy(update={"target": "megatron-bridge"}))
    export_plan(problem, plan, "megatron-lm", tmp_path / "launch")


def test_software_that_the_files_do_not_start_is_told() -> None:
    problem, _ = plans.uniform()
    assert other_software(problem, "megatron-lm") is None
    assert set(names("stacks")) >= _OTHER_SOFTWARE
    problem = problem.model_copy(update={"stack": load_stack("torchtitan")})
    said = other_software(problem, "megatron-bridge")
    assert said is not None and "--stack megatron-bridge" in said
    assert other_software(problem, "unrestricted") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"captured_modules": ("attn", "moe_router")}, "graphs launch attn, moe_router (captured_modules)"),
        ({"host_layer_floor_ms": 0.0}, "no time for the host's launches (host_layer_floor_ms 0)"),
        ({"host_layer_floor_ms": 0.4}, None),
    ],
)
def test_graphs_that_the_files_do_not_capture_are_told(
    changes: dict[str, object], said: str | None, tmp_path: Path
) -> None:
    """They were launched without, and nothing said that the price was another's."""
    problem, plan = plans.uniform()
    stack = problem.stack.model_copy(update={"id": "ours", **changes})
    problem = problem.model_copy(update={"stack": stack})
    export_plan(problem, plan, "megatron-lm", tmp_path / "launch")
    text = (tmp_path / "launch/README.md").read_text()
    assert ("do not ask for CUDA graphs" in text) == (said is not None)
    assert said is None or said in text
    assert told_of_software(problem, "unrestricted") == []


def test_experts_that_deepep_does_not_pad_are_refused() -> None:
    """Megatron-LM stopped at files of such a plan ("does not support moe_pad_expert_input_to_capacity")."""
    problem, plan = plans.experts()
    assert problem.model.moe is not None
    moe = problem.model.moe.model_copy(update={"capacity_factor": 1.0, "pad_to_capacity": True})
    model = problem.model.model_copy(update={"moe": moe, "id": "padded"})

    def of(library: str) -> Problem:
        changes = {"moe_dispatcher": "deduplicating", "dispatcher_library": library}
        stack = problem.stack.model_copy(update=changes)
        return problem.model_copy(update={"stack": stack, "model": model})

    assert refusals(of("hybridep"), plan) == ()
    (reason,) = refusals(of("deepep"), plan)
    assert "DeepEP, which does not pad the experts of padded to their capacity" in reason
    check_expressible(of("deepep").model_copy(update={"target": "unrestricted"}))


@pytest.mark.parametrize(
    ("options", "predictions", "said"),
    [
        ({}, 0, "pin pp=1 or a vp above 1, or ep=1"),
        ({"pin": {"vp": 1}}, 0, "pin pp=1"),
        ({"pin": {"pp": 1}}, 2, "pin ep=1"),
        ({"pin": {"pp": 1}}, 1, None),
        ({"pin": {"vp": 2}}, 0, None),
        ({"forbid": ("vp=1",)}, 0, None),
        ({"pin": {"ep": 1}}, 2, None),
    ],
)
def test_no_plan_is_searched_whose_exchange_megatron_cannot_hide(
    options: dict[str, object], predictions: int, said: str | None
) -> None:
    """Of software with ep_overlap, plans were found that the export then refused."""
    problem, _ = plans.experts()
    stack = problem.stack.model_copy(update={"ep_overlap": True})
    changes = {
        "stack": stack,
        "model": problem.model.model_copy(update={"mtp_num_layers": predictions}),
        "options": problem.options.model_copy(update=options),
    }
    problem = problem.model_copy(update=changes)
    if said is None:
        check_expressible(problem)
        searched = buildable(problem).options.forbid
        assert ("recompute=full" in searched) == ("ep" not in problem.options.pin)
    else:
        with pytest.raises(InstanceError, match=re.escape(said)):
            check_expressible(problem)
    check_expressible(problem.model_copy(update={"target": "unrestricted"}))


@pytest.mark.parametrize(
    ("options", "predictions", "said"),
    [
        ({}, 0, "pin pp=1 or ep=1"),
        ({"pin": {"pp": 1}}, 0, None),
        ({"pin": {"pp": 1}}, 1, "pin ep=1"),
        ({"pin": {"ep": 1}}, 1, None),
    ],
)
def test_flagscale_hides_no_exchange_beside_predictions(
    options: dict[str, object], predictions: int, said: str | None
) -> None:
    """A plan on one stage was searched, whose export then refused it; stages need virtual ones there."""
    problem, _ = plans.experts()
    changes = {
        "target": "flagscale",
        "stack": problem.stack.model_copy(update={"ep_overlap": True}),
        "model": problem.model.model_copy(update={"mtp_num_layers": predictions}),
        "options": problem.options.model_copy(update=options),
    }
    problem = problem.model_copy(update=changes)
    if said is None:
        check_expressible(problem)
    else:
        with pytest.raises(InstanceError, match=re.escape(said)):
            check_expressible(problem)
