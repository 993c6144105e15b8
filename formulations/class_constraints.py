"""Which class every interleaved stage is of, what it holds and what that costs beside its passes.

`virtual_classes` states these groups in its docstring, from (class) to (follow_up). Times in ms, sizes in
GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pulp
from numpy.typing import NDArray

from formulations.interleaved_constraints import Grid
from formulations.interleaved_paths import Floats
from formulations.virtual_classes_data import Key, VirtualClassesData, hull_lines, most_saved
from formulations.virtual_selection_tables import fewest_layers

MAX_MOMENTS = 6
"""Moments of a stage at which its memory is looked at. A guess."""


@dataclass(frozen=True)
class Variables:
    """The solver's variables."""

    z: dict[Key, pulp.LpVariable]
    a: dict[Key, pulp.LpVariable]
    n: dict[Key, list[pulp.LpVariable]]
    y: dict[tuple[int, int, int], pulp.LpVariable]
    more: dict[Key, pulp.LpVariable]
    more_of_chunk: Grid
    behind: dict[Key, pulp.LpVariable]
    forward: Grid
    backward: Grid
    send: list[pulp.LpVariable]
    reduction: list[pulp.LpVariable]
    wait_before: list[pulp.LpVariable]
    wait_after: list[pulp.LpVariable]
    end: pulp.LpVariable
    follow: pulp.LpVariable


def add_class(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """Every stage is of one class."""
    for s in range(data.sample.num_stages):
        chosen = [z for (stage, _), z in var.z.items() if stage == s]
        model += pulp.lpSum(chosen) == 1, f"class_{s}"


def add_count(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """A class has as many stages as it may."""
    for c in data.classes:
        stages = pulp.lpSum(z for (_, of), z in var.z.items() if of == c)
        model += stages >= int(data.fewest[c]), f"count_least_{c}"
        model += stages <= int(data.most[c]), f"count_most_{c}"


def add_assign(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """Every layer runs on one stage."""
    model += pulp.lpSum(var.a.values()) == data.sample.num_layers, "assign"


def add_capacity(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """A stage holds no fewer and no more layers than its class may there."""
    for (s, c), a in var.a.items():
        layers = data.layers((s, c))
        model += a >= int(layers[0]) * var.z[s, c], f"capacity_least_{s}_{c}"
        model += a <= int(layers[-1]) * var.z[s, c], f"capacity_most_{s}_{c}"


def add_chunk(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """The chunks hold the layers of their stage, each its fewest."""
    fewest = fewest_layers(data.sample)
    for (s, c), chunks in var.n.items():
        model += pulp.lpSum(chunks) == var.a[s, c], f"chunk_{s}_{c}"
        for k, n in enumerate(chunks):
            model += n >= int(fewest[s, k]) * var.z[s, c], f"chunk_least_{s}_{c}_{k}"


def add_neighbour(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """Who is next to whom along the pipeline, the last stage before the first."""
    num_stages = data.sample.num_stages
    for (s, c), z in var.z.items():
        leaving = pulp.lpSum(y for (at, of, _), y in var.y.items() if (at, of) == (s, c))
        model += leaving == z, f"neighbour_next_{s}_{c}"
        before = (s - 1) % num_stages
        arriving = pulp.lpSum(y for (at, _, to), y in var.y.items() if (at, to) == (before, c))
        model += arriving == z, f"neighbour_before_{s}_{c}"


def add_change(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """The ring of stages enters and leaves every class that has a stage and may not have all of them."""
    num_stages = data.sample.num_stages
    apart = [c for c in data.classes if int(data.most[c]) < num_stages]
    for c in apart:
        if int(data.fewest[c]) >= 1:
            left = pulp.lpSum(y for (_, of, to), y in var.y.items() if of == c != to)
            entered = pulp.lpSum(y for (_, of, to), y in var.y.items() if of != c == to)
            model += left >= 1, f"change_from_{c}"
            model += entered >= 1, f"change_to_{c}"
    if len(apart) == len(data.classes):
        changes = [(y, 1.0) for (_, c, to), y in var.y.items() if c != to]
        model += pulp.LpAffineExpression(changes) >= 2, "change"


def add_recompute(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """Recomputation takes what the hull over the numbers of layers says, in whatever chunk."""
    for (s, c), more in var.more.items():
        one, layers = data.classes[c], data.layers((s, c))
        base = float(one.base_ms()[1][s].sum())
        extra = data.tables[c].backward_ms[s, layers] - one.stage.backward_ms[s] * layers - base
        for i, (slope, offset) in enumerate(hull_lines(layers, extra)):
            model += more >= slope * var.a[s, c] + offset * var.z[s, c], f"recompute_{s}_{c}_{i}"
    for s, chunks in enumerate(var.more_of_chunk):
        total = pulp.lpSum(more for (stage, _), more in var.more.items() if stage == s)
        model += pulp.lpSum(chunks) == total, f"recompute_dealt_{s}"


def add_memory(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """What chunks hold fits the stage at some moments; recomputation saves no more than at its best."""
    for (s, c), chunks in var.n.items():
        one = data.classes[c]
        lead_gib = float(one.stage.lead[s]) * (one.lead_kept_gib[0] - one.kept_gib[s])
        moments = one.moments[s]
        step = -(-len(moments) // MAX_MOMENTS)
        for h in range(0, len(moments), step):
            held = moments[h]
            each = [float(one.state_gib + e * one.kept_gib[s]) for e in held]
            need = list(zip(chunks, each, strict=True))
            room = float(one.limit_gib[s] - one.base_gib[s][h] - held[0] * lead_gib)
            given = [(var.z[s, c], -room), (var.more[s, c], -most_saved(one, s, held))]
            model += pulp.LpAffineExpression([*need, *given]) <= 0, f"memory_{s}_{c}_{h}"


def add_follow_up(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """After all stages have met, the slowest optimizer and gathering end the step."""
    for (s, c), behind in var.behind.items():
        layers = data.layers((s, c))
        for i, (slope, offset) in enumerate(hull_lines(layers, data.tables[c].follow_ms[s, layers])):
            model += behind >= slope * var.a[s, c] + offset * var.z[s, c], f"follow_up_{s}_{c}_{i}"
    for s in range(data.sample.num_stages):
        total = pulp.lpSum(behind for (stage, _), behind in var.behind.items() if stage == s)
        model += var.follow >= total, f"follow_up_{s}"


def add_reduction(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """Gradients of a stage that its last backward does not hide are reduced when its backwards have ended."""
    hidden = data.sample.stage.hidden_fraction
    for s, reduction in enumerate(var.reduction):
        tails, rest, most = [], [], []
        for c in (c for stage, c in var.z if stage == s):
            a, z, layers, table = var.a[s, c], var.z[s, c], data.layers((s, c)), data.tables[c]
            tails.append((z, float(data.classes[c].stage.reduce_tail_ms[s])))
            slope, offset = _line(layers, table.unhidden_ms[s, layers])
            rest += [(a, slope), (z, offset)]
            slope, offset = _line(layers, -table.most_extra_ms[s, layers])
            most += [(a, -slope), (z, -offset)]
        extra = pulp.lpSum(more for (stage, _), more in var.more.items() if stage == s)
        left = pulp.LpAffineExpression([*tails, *rest]) - hidden * extra
        model += reduction >= pulp.LpAffineExpression(tails), f"reduction_tail_{s}"
        model += reduction >= left, f"reduction_{s}"
        model += extra <= pulp.LpAffineExpression(most), f"reduction_most_{s}"


def _line(layers: NDArray[np.int64], values: Floats) -> tuple[float, float]:
    """Slope and offset of a line that lies below values at whole layers, as near as may be at the ends."""
    slope = float(values[-1] - values[0]) / max(int(layers[-1] - layers[0]), 1)
    offset = float((values - slope * layers).min())
    return slope, offset
