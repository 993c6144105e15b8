"""The software as each node class runs it: attention in one kernel where its chip has one, experts in
grouped products where all chips have them."""

from __future__ import annotations

from planner.cost.identity import remembered
from planner.data.attention_kernels import keeps_scores
from planner.data.expert_kernels import experts_run_apart
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack


@remembered
def stacks_of(problem: Problem) -> tuple[SoftwareStack, ...]:
    """That of every class; only `flash_attention` may differ between them."""
    stack = problem.stack
    if experts_run_apart(problem) and not stack.experts_apart:
        stack = stack.model_copy(update={"experts_apart": True, "experts_as_single_products": False})
    without = stack.model_copy(update={"flash_attention": False})
    classes = range(len(problem.cluster.classes))
    return tuple(without if keeps_scores(problem, i) else stack for i in classes)


@remembered
def stacks_by_kernel(problem: Problem) -> dict[bool, SoftwareStack]:
    """Those of all classes, each once, by whether attention is one kernel."""
    return {stack.flash_attention: stack for stack in stacks_of(problem)}
