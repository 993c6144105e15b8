"""Variables of `stage_selection_cp` and the cuts that only strengthen it, each with its proof.

`solve` adds those that it is asked for; any of them may be left out. Times in whole ticks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from formulations.pipeline_constraints import PipelineTimes
from formulations.stage_selection_data import StageSelectionData, objective_ms
from formulations.stage_selection_tables import (
    RecomputeTable,
    bottleneck_layers,
    least_bottleneck_ms,
    with_least_recompute,
)
from formulations.stage_selection_ticks import Ticks


@dataclass(frozen=True)
class Variables:
    """The solver's variables, lists over the stages."""

    n: list[Any]
    extra: list[Any]
    times: PipelineTimes
    follow: Any


def tighten_bottleneck(
    model: Any, data: StageSelectionData, ticks: Ticks, table: RecomputeTable, var: Variables
) -> None:
    """Cut: the slowest stage paces the pipeline; proof in `stage_selection_cuts.tighten_bottleneck`.

    That proof uses the rows alone, which stand here over rounded times. Forward and backward of a stage
    lose less than two ticks for each layer and three more, and so does the least bottleneck.
    """
    p, m = data.num_stages, data.num_microbatches
    largest = int(ticks.longest().max())
    least = int(least_bottleneck_ms(data, table) / ticks.tick_ms) - 2 * data.num_layers - 3
    slowest = model.new_int_var(min(max(least, 0), largest), largest, "M")
    for s in range(p):
        model.add(slowest >= var.times.passes(s, s)).with_name(f"tighten_bottleneck_{s}")
    total = var.times.passes(0, p - 1)
    after = 2 * int(ticks.send.sum()) + var.times.after[0]
    any_count = 2 * total + (m - 1) * slowest + 2 * after
    model.add(2 * var.times.end >= any_count).with_name("tighten_bottleneck_any")
    if m >= p + 1:
        paced = (m - p - 1) * slowest + 2 * total + after
        model.add(var.times.end >= paced).with_name("tighten_bottleneck_paced")


def tighten_incumbent(
    model: Any,
    data: StageSelectionData,
    ticks: Ticks,
    table: RecomputeTable,
    var: Variables,
    exclude: Sequence[Sequence[int]],
) -> None:
    """Cut: nothing worse than a choice in hand; it confines the layers of every stage to a few counts.

    The choice itself stays: rounded down, its objective exceeds its ticks; one more tick covers floats.
    """
    layers = bottleneck_layers(data, table)
    choice = (
        None if layers is None or layers in set(map(tuple, exclude)) else with_least_recompute(table, layers)
    )
    if layers is None or choice is None:
        return
    most = math.floor((objective_ms(data, choice) - data.constant_ms) / ticks.tick_ms) + 1
    model.add(var.times.end + var.follow <= most).with_name("tighten_incumbent")
    for n, count in zip(var.n, layers, strict=True):
        model.add_hint(n, count)
