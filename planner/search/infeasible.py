"""Why no plan exists, in a sentence: what is missing, and by how much."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from formulations.stage_selection_data import least_layers, most_layers
from planner.cost.memory.states import OPTIMIZER_BYTES, WEIGHT_BYTES
from planner.cost.parameters import mtp_parameters, total_parameters
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable
from planner.search.no_degrees import stages_of_rows, why_no_degrees, why_no_stages
from planner.search.orders import block_orders
from planner.search.tables import Tables
from planner.tolerances import COUNT_TOL
from planner.units import GIB, format_gib

MAX_LAYOUTS = 100
"""Layouts tried for the least shortage; of each tensor and context parallelism those on most chips first."""

CUT = "no plan was found before the search was cut; give it more time"
"""The reason where a limit ended a search without a plan."""
GIVEN_UP = "no plan was found among the many that were looked at; that there is none is not proven"
"""The reason where it gave up by itself."""
ASK_FOR_CHANGES = "(`hetplan explain` finds the least change)"
"""End of a reason, for those who did not ask."""


def why_infeasible(problem: Problem, table: DegreeTable, tables: Tables | None) -> str:
    """The shortest reason that there is no plan."""
    if len(table) == 0 or tables is None:
        return why_no_degrees(problem)
    if (reason := why_no_stages(problem, table)) is not None:
        return reason
    best: tuple[float, int, tuple[int, ...], int] | None = None
    for choice, counts in _layouts(problem, table):
        for order in block_orders(counts):
            found = _shortage_gib(tables, choice, order, np.inf if best is None else best[0])
            if found is not None and (best is None or found[0] < best[0]):
                best = (found[0], choice, order, found[1])
    if best is None:
        return "the model has fewer layers than any legal number of stages"
    short_gib, choice, order, stage = best
    degrees = table.degrees
    tp, dp, cp = (
        int(x[choice]) for x in (degrees.tensor_parallel, degrees.data_parallel, degrees.context_parallel)
    )
    mbs = degrees.microbatch_size[choice]
    chip = problem.cluster.classes[order[stage]].chip
    limit_gib = problem.memory_limit_bytes(order[stage]) / GIB
    stages = "1 stage" if len(order) == 1 else f"{len(order)} stages"
    stages = stages if cp == 1 else f"context parallel {cp}, {stages}"
    return (
        f"{problem.model.id} does not fit, even with every layer recomputed. {_too_few_chips(problem)}"
        f"The closest layout (tensor parallel {tp}, {stages}, data parallel {dp}, micro-batch size {mbs}) "
        f"is {format_gib(short_gib * GIB)} short on each chip: stage {stage} (chip {chip}) may use "
        f"{limit_gib:.1f} GiB. {_ways_out(problem)} {ASK_FOR_CHANGES}"
    )


def _ways_out(problem: Problem) -> str:
    """What may give a plan; wishes that rule plans out come first."""
    options = problem.options
    pinned = [f"{name}={value}" for name, value in options.pin.items()]
    ruled_out = [*pinned, *(wish for wish in options.forbid if wish.startswith("recompute="))]
    ways = "Add chips, or chips with more memory, or lower the memory reserve"
    return ways if not ruled_out else f"Lift {' or '.join(ruled_out)}. {ways}"


def _too_few_chips(problem: Problem) -> str:
    """A sentence where the states alone are more than all chips hold.

    However they are shared, each parameter is somewhere with its weight, gradient and optimizer state.
    """
    parameters = total_parameters(problem.model) + mtp_parameters(problem.model).total
    states_gib = parameters * (WEIGHT_BYTES + problem.stack.gradient_bytes + OPTIMIZER_BYTES) / GIB
    limits = [problem.memory_limit_bytes(c) / GIB for c in range(len(problem.cluster.classes))]
    chips = [node_class.num_chips for node_class in problem.cluster.classes]
    room_gib = sum(limit * count for limit, count in zip(limits, chips, strict=True))
    if states_gib <= room_gib:
        return ""
    least = ceil(states_gib / max(limits))
    return (
        f"Its weights, gradients and optimizer state alone take {states_gib:,.0f} GiB, all chips have "
        f"{room_gib:,.0f} GiB: it needs more than {least - 1} chips like these. "
    )


def _layouts(problem: Problem, table: DegreeTable) -> list[tuple[int, tuple[int, ...]]]:
    """Rows of degrees with the most stages that they may have, the smallest micro-batch first."""
    allowed = stages_of_rows(problem, table)
    degrees, found, known = table.degrees, [], Counter[tuple[int, ...]]()
    for choice in range(len(table)):
        if not allowed[choice]:
            continue
        left, counts = max(allowed[choice]), []
        for limit in table.max_stages[choice]:
            counts.append(min(int(limit), left))
            left -= counts[-1]
        chips = sum(counts) * int(table.stage_size[choice])
        found.append((int(degrees.microbatch_size[choice]), -chips, choice, tuple(counts)))
    ranked = []
    for _, _, choice, stages in sorted(found):
        group = int(degrees.tensor_parallel[choice]), int(degrees.context_parallel[choice])
        ranked.append((known[group], choice, stages))
        known[group] += 1
    return [(choice, stages) for _, choice, stages in sorted(ranked)[:MAX_LAYOUTS]]


def _shortage_gib(
    tables: Tables, choice: int, order: tuple[int, ...], known_gib: float = np.inf
) -> tuple[float, int] | None:
    """Least extra memory on every chip that lets an order hold all layers, and the stage that needs it.

    None where that is no less than what is known of another order: more memory never holds fewer layers.
    """
    data = tables.data(choice, order)

    def held(extra_gib: float) -> NDArray[np.int64]:
        """Most layers of every stage, [stage]."""
        return most_layers(replace(data, limit_gib=data.limit_gib + extra_gib))

    low, high = 0.0, 1.0
    least = np.minimum(least_layers(data), 1)

    def is_enough(extra_gib: float) -> bool:
        most = held(extra_gib)
        return bool((most >= least).all() and most.sum() >= data.num_layers)

    if np.isfinite(known_gib) and not is_enough(known_gib * (1 - COUNT_TOL)):
        return None
    while not is_enough(high):
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high, int(np.argmin(held(high)))
