"""Integer twin of `layer_partition`: the same cuts, found by CP-SAT over whole ticks of time.

Sets       s, i, j in S                   stages 0 .. p-1, in pipeline order
           a, e in 0 .. L                 cuts; before layer a, before layer e
           E                              (s, a, e) that fit, as in `layer_partition`
Data       L, m, c[s], q[s], k[s], r[s], J[s,i], rj[s,i]     as in `layer_partition`
           tick                           unit of time, a power of two [ms]
           f, b, z, o [s,a,e]             forward, backward, reduction with its tail, what follows: in ticks
Variables  w[s,a,e]  binary               stage s holds layers a .. e - 1
           F[s], B[s], Z[s], A[s], Y[s], C[s], R[s],
           U1[s], U2[s], P1[s], P2[s], T, O                  as in `layer_partition`, in ticks
Model      min  T + O
           s.t. exactly one of w[s,a,e] for every s                        (placed)
                sum_a w[s,a,l] = sum_e w[s+1,l,e]        for s < p-1, l    (contiguous)
                F[s] = sum f w,  B[s] = sum b w,  Z[s] = sum z w           (stage_time)
                O >= sum_{a,e} o[s,a,e] w[s,a,e]                           (follow_up)
           with t = F + B, D[s] = t[s] + sum_{i>s} t[i] + 2 sum_{i>=s} c[i]
                C[s] >= m t[s] + max(0, m-1-q) x[s],
                C[s] >= r F[s] + (k+1) D[s] + k x[s],
                C[s] >= r B[s] + (k+1) D[s] + k x[s]                       (window)
                A[s] >= D[s],  A[s] >= (q+1) F[s] + B[s],
                Y[s] >= D[s],  Y[s] >= (q+1) B[s] + F[s],
                C[s] >= A[s] + Y[s] + rj t[s] + (J+rj+1) x[s]
                        + J (sum_{j=s..i} t[j] + 2 sum_{j=s..i-1} c[j])    (partial)
                U1[s] >= F[s],  U1[s] >= U1[s-1],
                P1[s] >= sum_{i<=s} F[i] + sum_{i<s} c[i] + q U1[s] + B[s],
                P1[s] >= P1[s+1] + c[s] + B[s], and U2, P2 with F and B swapped,
                T >= P1[s] + P2[s] + Z[0] + what stands beside A, Y in (partial),
                with m - 1 for q, no B[s] and none of that where m <= q + 1    (through)
                R[s] >= R[s+1],  R[s] >= C[s] + sum_{i<s} (t[i] + 2 c[i]),
                T >= R[j] - sum_{i<j} (B[i] + c[i]) + Z[j]                 (end)
                not all of the w of excluded cuts                          (exclude)
                T + O <= what the caller can still use                     (cutoff)
Cuts       `tighten_cutoff`, `tighten_incumbent`: proofs with the functions.
Size       at most p L^2 / 2 binaries, p L + p^2 + 24 p rows.
Exact      as `layer_partition`, within 1e-7 of the objective: f, b, z, o, c, x are rounded *down* to ticks,
           each losing less than one. Every row, written out over the times, has factors that are whole and
           not negative (the drain that (end) takes off is part of R), so the objective of each split in
           ticks is at most the true one, and the bound that CP-SAT proves is a true lower bound. It lies
           below by less than the largest sum of the factors of a row and one tick for O; `tick_ms` makes
           this at most 1e-7 of m times the least bottleneck, which no split undercuts. The objective of
           the split is evaluated in floats.
Leaves out what `layer_partition` leaves out; its constant is added to objective and bound afterwards.
Source     as `layer_partition`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from formulations import solvers
from formulations.interrupts import ctrl_c_waits
from formulations.layer_partition_data import (
    Cuts,
    LayerPartitionData,
    LayerPartitionResult,
    least_bottleneck,
    objective_ms,
    stages_of,
)
from formulations.layer_partition_paths import least_ms, least_through_ms
from formulations.layer_partition_ticks import PartitionTicks, partition_ticks
from formulations.options import SolveOptions
from formulations.pipeline_constraints import (
    PipelineTimes,
    add_end,
    add_partial,
    add_through,
    add_window,
    to_integer,
)
from formulations.stage_selection_ticks import Ints

TIGHTENINGS = ("cutoff", "incumbent")
"""The functions `tighten_*`, each of which may be left out."""


@dataclass(frozen=True)
class Variables:
    """The solver's variables."""

    w: dict[tuple[int, int, int], Any]
    times: PipelineTimes
    follow: Any


def build(data: LayerPartitionData, ticks: PartitionTicks) -> tuple[Any, Variables]:
    """The whole program but for exclusions, cutoff and cuts that only strengthen."""
    with ctrl_c_waits():
        from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    var = _variables(model, data, ticks)
    model.minimize(var.times.end + var.follow)
    add_placed(model, data, var)
    add_contiguous(model, data, var)
    add_stage_time(model, ticks, var)
    add_follow_up(model, ticks, var)
    add_window(to_integer(model), var.times)
    add_partial(to_integer(model), var.times)
    add_through(to_integer(model), var.times)
    add_end(to_integer(model), var.times)
    return model, var


def _variables(model: Any, data: LayerPartitionData, ticks: PartitionTicks) -> Variables:
    stages = range(data.num_stages)
    longest = (ticks.forward + ticks.backward).max(axis=(1, 2))
    # Rows bound a pipeline from below, and one that runs a piece at a time is no faster than 1F1B.
    horizon = data.num_microbatches * int(longest.sum() + 2 * ticks.send.sum() + ticks.wait.sum())
    end = horizon + int(ticks.reduction.max())

    def times(name: str, most: int) -> list[Any]:
        return [model.new_int_var(0, most, f"{name}_{s}") for s in stages]

    chosen = [tuple(int(i) for i in at) for at in np.argwhere(data.allowed())]
    return Variables(
        w={(s, a, e): model.new_bool_var(f"w_{s}_{a}_{e}") for s, a, e in chosen},
        times=PipelineTimes(
            num_microbatches=data.num_microbatches,
            forward=times("F", int(ticks.forward.max())),
            backward=times("B", int(ticks.backward.max())),
            send=ticks.send.tolist(),
            wait=ticks.wait.tolist(),
            after=times("Z", int(ticks.reduction.max())),
            first=times("A", horizon),
            last=times("Y", horizon),
            core=times("C", horizon),
            reach=times("R", horizon),
            longest=(times("U1", horizon), times("U2", horizon)),
            through=(times("P1", horizon), times("P2", horizon)),
            end=model.new_int_var(0, end, "T"),
        ),
        follow=model.new_int_var(0, int(ticks.follow.max()), "O"),
    )


def add_placed(model: Any, data: LayerPartitionData, var: Variables) -> None:
    """Every stage holds one run of layers."""
    for s in range(data.num_stages):
        held = [w for at, w in var.w.items() if at[0] == s]
        model.add_exactly_one(held).with_name(f"placed_{s}")


def add_contiguous(model: Any, data: LayerPartitionData, var: Variables) -> None:
    """A stage begins where the one before it ends."""
    ends: dict[tuple[int, int], list[Any]] = {}
    begins: dict[tuple[int, int], list[Any]] = {}
    for (s, a, e), w in var.w.items():
        ends.setdefault((s, e), []).append(w)
        begins.setdefault((s, a), []).append(w)
    for s in range(data.num_stages - 1):
        for cut in range(data.num_layers + 1):
            before, after = ends.get((s, cut), []), begins.get((s + 1, cut), [])
            if before or after:
                model.add(sum(before) == sum(after)).with_name(f"contiguous_{s}_{cut}")


def add_stage_time(model: Any, ticks: PartitionTicks, var: Variables) -> None:
    """Times of a stage are those of its layers."""
    for s in range(var.times.num_stages):
        model.add(var.times.forward[s] == _sum(var, s, ticks.forward)).with_name(f"stage_time_forward_{s}")
        model.add(var.times.backward[s] == _sum(var, s, ticks.backward)).with_name(f"stage_time_backward_{s}")
        model.add(var.times.after[s] == _sum(var, s, ticks.reduction)).with_name(f"stage_time_reduction_{s}")


def add_follow_up(model: Any, ticks: PartitionTicks, var: Variables) -> None:
    """After all stages have met, the slowest optimizer and gathering end the step."""
    for s in range(var.times.num_stages):
        model.add(var.follow >= _sum(var, s, ticks.follow)).with_name(f"follow_up_{s}")


def _sum(var: Variables, stage: int, table: Ints) -> Any:
    """A table entry of the layers that a stage holds."""
    return sum(int(table[at]) * w for at, w in var.w.items() if at[0] == stage)


def add_exclude(model: Any, data: LayerPartitionData, var: Variables, exclude: Sequence[Cuts]) -> None:
    """Splits already judged: not all of their stages again."""
    for index, cuts in enumerate(exclude):
        used = [(s, a, e) for s, (a, e) in enumerate(stages_of(cuts, data.num_layers))]
        if all(at in var.w for at in used):
            model.add_bool_or(~var.w[at] for at in used).with_name(f"exclude_{index}")


def add_cutoff(
    model: Any, data: LayerPartitionData, ticks: PartitionTicks, var: Variables, cutoff_ms: float
) -> None:
    """Only splits up to the cutoff: rounded down, each of them stays at or below the cutoff in ticks."""
    most = math.floor((cutoff_ms - data.constant_ms) / ticks.tick_ms)
    model.add(var.times.end + var.follow <= most).with_name("cutoff")


def tighten_cutoff(model: Any, data: LayerPartitionData, var: Variables, cutoff_ms: float) -> None:
    """Cut: a run of layers is not taken where every split with it exceeds what is of use.

    What they exceed is proved in `layer_partition_paths`.
    """
    least_ms = least_through_ms(data)
    slow = [w for at, w in var.w.items() if least_ms[at] > cutoff_ms]
    model.add(sum(slow) == 0).with_name("tighten_cutoff")


def tighten_incumbent(
    model: Any, data: LayerPartitionData, ticks: PartitionTicks, var: Variables, exclude: Sequence[Cuts]
) -> None:
    """Cut: nothing worse than a split in hand, that of the least bottleneck.

    The split itself stays: rounded down, its objective exceeds its ticks; one more tick covers floats.
    """
    _, cuts = least_bottleneck(data)
    if cuts is None or cuts in set(exclude):
        return
    most = math.floor((objective_ms(data, cuts) - data.constant_ms) / ticks.tick_ms) + 1
    model.add(var.times.end + var.follow <= most).with_name("tighten_incumbent")
    held = {(s, a, e) for s, (a, e) in enumerate(stages_of(cuts, data.num_layers))}
    for at, w in var.w.items():
        model.add_hint(w, at in held)


def extract(var: Variables, solver: Any) -> Cuts:
    """Read the cuts out of a solution."""
    return tuple(first for (s, first, _), w in sorted(var.w.items()) if s and solver.value(w))


def solve(
    data: LayerPartitionData,
    options: SolveOptions,
    *,
    exclude: Sequence[Cuts] = (),
    cutoff_ms: float | None = None,
    tighten: Collection[str] = TIGHTENINGS,
) -> LayerPartitionResult:
    """Solve to the gap of `options`.

    Parameters
    ----------
    exclude
        Splits already judged.
    cutoff_ms
        Look only for splits up to this; where there is none the result is `unknown` with this bound.
    tighten
        Which of the cuts that only strengthen to add.
    """
    floor_ms = least_ms(data)
    if not np.isfinite(floor_ms):
        return LayerPartitionResult("infeasible", None, None, None)
    if cutoff_ms is not None and floor_ms >= cutoff_ms:
        return LayerPartitionResult("unknown", None, None, floor_ms)
    ticks = partition_ticks(data)
    model, var = build(data, ticks)
    add_exclude(model, data, var, exclude)
    if "incumbent" in tighten:
        tighten_incumbent(model, data, ticks, var, exclude)
    if cutoff_ms is not None:
        add_cutoff(model, data, ticks, var, cutoff_ms)
        if "cutoff" in tighten:
            tighten_cutoff(model, data, var, cutoff_ms)
    status, solver = solvers.solve_cp(model, options)
    if status == "infeasible":
        return LayerPartitionResult("infeasible" if cutoff_ms is None else "unknown", None, None, cutoff_ms)
    bound = float(solver.best_objective_bound) * ticks.tick_ms + data.constant_ms
    if cutoff_ms is not None:
        bound = min(bound, cutoff_ms)
    if status == "unknown":
        return LayerPartitionResult(status, None, None, bound)
    cuts = extract(var, solver)
    value = objective_ms(data, cuts)
    return LayerPartitionResult(status, cuts, value, min(bound, value))
