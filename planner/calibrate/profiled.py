"""Measured runs whose software was profiled layer by layer: the profile's times, or how far off they lie."""

from __future__ import annotations

import math

from planner.calibrate.runs import Run
from planner.calibrate.stacks import stack_id
from planner.data.layer_profile import LayerProfile
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.profiles import ProfiledModel, profiled_model, profiled_models, shipped_profiles

PROFILED_STACKS = ("sailor",)
"""Stacks on which the shipped layer times were measured."""


def with_measured_layers(run: Run, problem: Problem, plan: Plan) -> tuple[Problem, tuple[str, ...]]:
    """The problem with the shipped layer times of its software, and what was assumed.

    Where they do not hold for the run (another model, sequence, degree or micro-batch), the operator model's
    are as much longer as those of the profiled model of the nearest width are on the same chip: that software
    multiplies in fp32, without tensor cores before A100.
    """
    if stack_id(run) not in PROFILED_STACKS:
        return problem, ()
    profiles = _profiles(run, problem, plan)
    if profiles:
        return problem.model_copy(update={"profiles": profiles}), ("layer times from a profile",)
    stack = problem.stack
    nearest = {chip: _nearest(chip, problem.model.hidden_size) for chip in problem.chips}
    factors = {chip: model.over_operators[chip] for chip, model in nearest.items() if model is not None}
    if len(factors) < len(nearest):
        return problem, ()
    update = {
        "time_factor": factors,
        # Launches take as long in any number format.
        "host_layer_floor_ms": stack.host_layer_floor_ms / min(factors.values()),
    }
    notes = tuple(
        f"{chip}: layers take {factors[chip]:g} of the operator model, as those of {model.name} do"
        for chip, model in nearest.items()
        if model is not None
    )
    return problem.model_copy(update={"stack": stack.model_copy(update=update)}), notes


def _profiles(run: Run, problem: Problem, plan: Plan) -> tuple[LayerProfile, ...]:
    """Shipped layer times of the run's model, where every point of the plan is there."""
    model = profiled_model(run.model.name)
    if model is None or run.model.moe is not None or run.model.hidden_size != model.hidden_size:
        return ()
    if model.seq_length != run.workload.seq_length or plan.context_parallel > 1:
        return ()
    shipped = {profile.chip: profile for profile in shipped_profiles(model.name)}
    found: dict[str, LayerProfile] = {}
    for stage in plan.stages:
        chips = [chip for _, chip, _ in stage.places]
        for chip, tp in zip(chips, stage.tensor_parallel_degrees, strict=False):
            profile = shipped.get(chip)
            if profile is None or not profile.covers(tp, plan.microbatch_size):
                return ()
            found[chip] = profile
    return tuple(found.values())


def _nearest(chip: str, hidden_size: int) -> ProfiledModel | None:
    """Of the models that were profiled on a chip, that of the nearest width; None where none was."""
    known = [model for model in profiled_models() if chip in model.over_operators]
    return min(known, key=lambda m: abs(math.log(m.hidden_size / hidden_size)), default=None)
