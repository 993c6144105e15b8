"""Whether a plan at hand keeps what the user asks for: pins, prohibitions, limits, classes, their order.

The search lists only what is asked for; plans that come from elsewhere, such as those of another launcher or
of a problem nearly the same, are held against the wishes here. Classes that must not stay idle are the
search's own business.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.data.plan import Plan
from planner.data.problem import Problem


def keeps_wishes(problem: Problem, plan: Plan) -> bool:
    """Whether nothing that a plan decides is against the options of a problem."""
    options = problem.options
    parts = plan.pipeline_plans
    decided = [(name, value) for part in parts for name, value in _decisions(part)]
    if any(name in options.pin and options.pin[name] != value for name, value in decided):
        return False
    if any(f"{name}={value}" in options.forbid for name, value in decided):
        return False
    most = {
        "tp": options.max_tensor_parallel,
        "pp": options.max_pipeline_parallel,
        "vp": options.max_virtual_stages,
        "mbs": problem.most_microbatch_size,
        "cp": options.max_context_parallel,
    }
    if any(value > limit for name, value in decided if (limit := most.get(name)) is not None):
        return False
    tokens = problem.workload.seq_length // plan.context_parallel
    if plan.context_parallel > 1 and tokens < options.least_context_tokens:
        return False
    stages = plan.stages
    if any(f"recompute={stage.recompute}" in options.forbid for stage in stages):
        return False
    one_class_each = "stages=mixed" in options.forbid or options.keep_class_order
    if one_class_each and any(len({p[0] for p in s.places}) > 1 for s in stages):
        return False
    if "stages=empty" in options.forbid and any(last < first for s in stages for first, last in s.chunks):
        return False
    if "stages=predictions" in options.forbid and plan.prediction_stage is not None:
        return False
    names = [node_class.name for node_class in problem.cluster.classes]
    busy = {place[0] for stage in stages for place in stage.places}
    if not busy <= set(names) - set(options.spare):
        return False
    orders = [[names.index(stage.node_class) for stage in part.stages] for part in parts]
    return not options.keep_class_order or all(order == sorted(order) for order in orders)


def _decisions(plan: Plan) -> Iterator[tuple[str, int]]:
    """Degrees of a plan by their short names; those that stages may differ in, of every stage."""
    yield "cp", plan.context_parallel
    yield "ep", plan.expert_parallel
    yield "etp", plan.expert_tensor_parallel
    yield "pp", plan.pipeline_parallel
    yield "vp", plan.virtual_stages
    yield "mbs", plan.microbatch_size
    yield "sp", int(plan.sequence_parallel)
    for stage in plan.stages:
        yield "tp", stage.tensor_parallel
        yield "dp", stage.data_parallel
