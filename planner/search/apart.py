"""Plans whose last stage has the loss alone, beside predictions of further tokens on the stage before it.

Megatron-LM lets the layers that predict further tokens (DeepSeek-V3, GLM-4.5) leave the stage of the loss:
the two together are often longer than all that another stage holds. Each row of degrees then stands once
more, so that such plans are bounded, opened and solved as all others. Behind the prices of all rows follow
those of the last stage and of that of predictions (`planner.simulate.predictions`) of the rows that stand
twice; a stage takes those of its place (`DegreeTable.rows_apart`). The last stage then has no layer, the one
before it may be without.

Left out: virtual stages, stages on several classes, which the rules keep from it, and layers of several kinds
in any order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.rules.target import TARGETS
from planner.search.bound_data import BoundData, bound_data, with_hops_of_hosts
from planner.search.degrees import LEAST_APART, DegreeTable
from planner.search.empty import most_without_layers, stages_may_be_empty
from planner.search.kinds import layer_kinds
from planner.search.partition.units import partition_bound_data
from planner.simulate.predictions import prices_of_kinds, stacked


def predictions_may_be_apart(problem: Problem) -> bool:
    """Whether plans are looked at with predictions on the stage before the last."""
    return (
        TARGETS[problem.target].prediction_stage
        and problem.model.mtp_num_layers > 0
        and "stages=predictions" not in problem.options.forbid
        and stages_may_be_empty(problem)
        and problem.model.hybrid is None
        and layer_kinds(problem.model) is not None
    )


def with_predictions_apart(
    problem: Problem, table: DegreeTable, prices: Prices
) -> tuple[DegreeTable, Prices]:
    """Rows of degrees with those of such plans behind them, and the prices of all their stages."""
    if (
        not predictions_may_be_apart(problem)
        or int(table.max_stages.sum(axis=1).max(initial=0)) < LEAST_APART
    ):
        return table, prices
    num_plain = len(table)
    twice = table.taken(np.tile(np.arange(num_plain), 2))
    kinds = prices_of_kinds(problem, table.degrees, prices)
    return replace(twice, num_plain=num_plain), stacked((prices, *kinds))


def bounds_of(problem: Problem, table: DegreeTable, prices: Prices) -> BoundData:
    """What bounds of many outer choices need, for the rows of a table."""
    kinds = layer_kinds(problem.model)
    if kinds is None:
        data = partition_bound_data(problem, prices)
    else:
        layers, bare = problem.model.num_layers, most_without_layers(problem)
        sends_block = not problem.stack.p2p_overlap
        data = bound_data(layers, kinds, prices, sends_block=sends_block, num_empty=bare)
    return with_heads_apart(table, with_hops_of_hosts(data, problem, prices, table.stage_size))


def with_heads_apart(table: DegreeTable, data: BoundData) -> BoundData:
    """What bounds need of such rows: the head is no less than what its two stages do, each on any class.

    With l, p and h the times of a layer, of predictions and of the head that they leave behind on a class,
    the head is in layers no less than the least p / l and the least h / l, in time than the least p and h.
    The stage of predictions may be without a layer, as the last one is.
    """
    count = table.num_plain
    if count is None:
        return data
    apart, last, own = (slice(i * count, (i + 1) * count) for i in (1, 2, 3))
    layer = data.layer_s[apart]
    parts = data.head_s[last], data.head_s[own]
    shares = sum((part / layer).min(axis=1) for part in parts)
    times = sum(part.min(axis=1) for part in parts)
    head = data.head_s.copy()
    head[apart] = np.minimum(layer * np.asarray(shares)[:, None], np.asarray(times)[:, None])
    num_empty = data.num_empty.copy()
    num_empty[apart] += 1
    return replace(data, head_s=head, num_empty=num_empty)
