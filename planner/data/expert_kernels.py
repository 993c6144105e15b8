"""Chips that cannot run a rank's experts as grouped matrix products, so that the experts run one by one."""

from __future__ import annotations

from planner.data.chip import Chip
from planner.data.problem import Problem

MIN_GROUPED_GEMM_CAPABILITY = 8.0
"""Compute capability that `--moe-grouped-gemm` asks for (megatron-core 0.19.2, `validate_args`)."""


def experts_run_apart(problem: Problem) -> bool:
    """Whether a rank's experts are modules of their own: the software has them so, or a chip asks for it.

    One argument says it for all ranks of a job, so that a single class without grouped products that plans
    may use decides for all of them, in every plan of the problem.
    """
    return problem.model.moe is not None and (
        problem.stack.experts_apart or bool(chips_without_grouped_products(problem))
    )


def chips_without_grouped_products(problem: Problem) -> tuple[str, ...]:
    """Chips of the classes that plans may use whose compute capability is too low for them."""
    found = (
        node_class.chip
        for node_class in problem.cluster.classes
        if node_class.name not in problem.options.spare
        and not runs_grouped_products(problem.chips[node_class.chip])
    )
    return tuple(dict.fromkeys(found))


def runs_grouped_products(chip: Chip) -> bool:
    """Whether a chip has them; those of other platforms do."""
    return chip.compute_capability is None or chip.compute_capability >= MIN_GROUPED_GEMM_CAPABILITY
