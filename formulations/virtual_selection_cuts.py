"""Variables of `virtual_selection` and the cuts that only strengthen it, each with its proof.

`solve` adds those that it is asked for; any of them may be left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pulp

from formulations.interleaved_constraints import Grid
from formulations.stage_selection_cuts import lower_hull
from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import DealtTable, step_by_layers

TIGHTENINGS = ("recompute", "capacity", "cutoff")
"""The functions `tighten_*`, each of which may be left out."""


@dataclass(frozen=True)
class Variables:
    """The solver's variables, by stage, or by stage and chunk."""

    n: Grid
    u: list[pulp.LpVariable]
    u1: dict[int, pulp.LpVariable]
    x1: dict[int, pulp.LpVariable]
    k1: Grid
    x: list[pulp.LpVariable]
    y: list[pulp.LpVariable]
    forward: Grid
    backward: Grid
    reduction: list[pulp.LpVariable]
    gathering: list[pulp.LpVariable]
    before: list[pulp.LpVariable]
    behind: list[pulp.LpVariable]
    end: pulp.LpVariable
    follow: pulp.LpVariable


def tighten_recompute(
    model: pulp.LpProblem, data: VirtualSelectionData, table: DealtTable, var: Variables
) -> None:
    """Cut: the backward of s lies above the lower hull of the best backward for each number of layers.

    No dealing of n layers recomputes less than the table says, so every solution lies on or above each line
    of the hull of those points.
    """
    for s, counts in enumerate(var.n):
        fits = np.flatnonzero(np.isfinite(table.backward_ms[s]))
        points = [(int(n), float(table.backward_ms[s, n])) for n in fits]
        for line, (slope, offset) in enumerate(lower_hull(points)):
            total = slope * pulp.lpSum(counts) + offset
            model += pulp.lpSum(var.backward[s]) >= total, f"tighten_recompute_{s}_{line}"


def tighten_capacity(
    model: pulp.LpProblem, data: VirtualSelectionData, table: DealtTable, cutoff_ms: float, var: Variables
) -> None:
    """Cut: no stage holds more layers, or fewer, than a step below the cutoff lets it.

    By the row (wait, k = 0): m t[s] for the least time of n layers, the first chunks of the stages before at
    their fewest layers, and what s adds after the pipeline. Only solutions at or above the cutoff are cut
    off.
    """
    values = step_by_layers(data, table)
    for s, counts in enumerate(var.n):
        fits = np.flatnonzero(values[s] <= cutoff_ms)
        least, most = (int(fits[0]), int(fits[-1])) if len(fits) else (1, 0)
        model += pulp.lpSum(counts) >= least, f"tighten_capacity_least_{s}"
        model += pulp.lpSum(counts) <= most, f"tighten_capacity_most_{s}"


def tighten_cutoff(
    model: pulp.LpProblem, data: VirtualSelectionData, cutoff_ms: float, var: Variables
) -> None:
    """Cut: the objective lies below the cutoff.

    Only solutions above it are cut off. Without the cut a solver goes on to the best of them: one of 8 stages
    with 4 chunks took 2.4 s and a thousand nodes, and is closed at once with it.
    """
    model += var.end + var.follow <= cutoff_ms - float(data.stage.constant_ms), "tighten_cutoff"
