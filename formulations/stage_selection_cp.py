"""Integer twin of `stage_selection`: the same choice, found by CP-SAT over whole ticks of time.

It shares the data and the answer with the linear program, and nothing of how that one is built: no
big-M, no tolerance on feasibility, every row from the start.

Sets       s in S                         stages 0 .. p-1, in pipeline order
           e in S, e >= s                 last stage of a partial row of s
           j in S, j <= s                 stage whose end s delays
Data       L, m, c[s], w[s]               layers, micro-batches, sends, waits: as in `stage_selection`
           q[s] = p - 1 - s               stages behind s
           k[s], r[s]                     m - 1 = k (q + 1) + r
           J[s,e], r[s,e]                 m - 2 - q = J (e - s + 1) + r, where m >= q + 2
           tick                           unit of time, a power of two [ms]
           D[s]                           counts n that fit s with some recomputation (`least_recompute`)
           f[s], b[s], f0[s], b0[s]       forward and backward of a layer; of embedding and head
           X(s,n)                         what the least recomputation of n layers adds to the backward
           Z(s,n), O(s,n)                 exposed reduction with its tail; optimizer with exposed gathering
Variables  n[s]      in D[s]              layers
           x[s], z[s]                     ticks of recomputation and of reduction
           A[s], Y[s]                     ticks from start of the first forward of s to end of its first
                                          backward; from start of its last forward to end of its last one
           C[s]                           ticks from its first forward to its last backward
           R[s]                           ticks from the start of the step to the end of stage 0, as far as
                                          stages >= s force it
           U1[s], U2[s], P1[s], P2[s]     longest passes and ways through the pipeline, as in `joint`
           T, o                           end of the last stage with its reduction; what follows
           M                              ticks of the slowest stage
Model      min  T + o
           s.t. sum_s n[s] = L                                             (assign)
                x[s] = X(s,n[s])                                           (recompute)
                z[s] = Z(s,n[s])                                           (reduction)
                o >= O(s,n[s])                                             (follow_up)
                n not among the excluded n'                                (exclude)
                T + o <= what the caller can still use                     (cutoff)
           with F = f n + f0, B = b n + b0 + x, t = F + B, and d, W as in `pipeline_rows`
                C[s] >= m t[s] + max(0, m-1-q) w[s],
                C[s] >= r F[s] + (k+1) (t[s] + d[s]) + k w[s],
                C[s] >= r B[s] + (k+1) (t[s] + d[s]) + k w[s]              (window)
                A[s] >= t[s] + d[s],  A[s] >= (q+1) F[s] + B[s],
                Y[s] >= t[s] + d[s],  Y[s] >= (q+1) B[s] + F[s],
                C[s] >= A[s] + Y[s] + J W[s,e] + r t[s] + (J + r + 1) w[s]     (partial)
                U1[s] >= F[s],  U1[s] >= U1[s-1],
                P1[s] >= sum_{i<=s} F[i] + sum_{i<s} c[i] + q U1[s] + B[s],
                P1[s] >= P1[s+1] + c[s] + B[s], and U2, P2 with F and B swapped,
                T >= P1[s] + P2[s] + z[0] + what stands beside A, Y in (partial),
                with m - 1 for q, no B[s] and none of that where m <= q + 1    (through)
                R[s] >= R[s+1],  R[s] >= C[s] + sum_{i<s} (t[i] + 2 c[i]),
                T >= R[j] - sum_{i<j} (B[i] + c[i]) + z[j]                 (end)
Cuts       `tighten_bottleneck`, `tighten_incumbent`: proofs in `stage_selection_cp_cuts`; M stands there.
Size       p integers of at most L values each, 11p times, 3p tables; with these at most p^2 + 23p rows.
Exact      as `stage_selection` is, within 1e-7 of the objective (below).
Leaves out what `stage_selection` leaves out; its constant is added to objective and bound afterwards.
Source     as `stage_selection`.

Rounding   f, b, f0, b0, c, w and every X, Z, O are computed in floats and rounded *down* to ticks. Memory is
           not rounded: D and the least recomputation are found in floats, so the choice that comes back
           always fits. Every row, written out over the times, has factors that are whole and not negative
           (the drain that (end) takes off is part of R), so the program's objective of each choice is at
           most the true one, and the bound that CP-SAT proves, in ticks, is a true lower bound. It lies
           below by less than (layers of a stage + 2) x (largest sum of the factors of a row + 1) ticks;
           `tick_ms` makes this at most 1e-7 of m times the least bottleneck, which no choice undercuts.
           A tick is a power of two, so dividing by it is exact. The objective of the choice is evaluated
           in floats.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from formulations import solvers
from formulations.interrupts import ctrl_c_waits
from formulations.options import SolveOptions
from formulations.pipeline_constraints import (
    PipelineTimes,
    add_end,
    add_partial,
    add_through,
    add_window,
    to_integer,
)
from formulations.stage_selection_cp_cuts import Variables, tighten_bottleneck, tighten_incumbent
from formulations.stage_selection_data import (
    PipelineRow,
    StageChoice,
    StageSelectionData,
    StageSelectionResult,
    objective_ms,
)
from formulations.stage_selection_tables import (
    RecomputeTable,
    least_bottleneck_ms,
    least_recompute,
    with_least_recompute,
)
from formulations.stage_selection_ticks import Ints, Ticks, times_in_ticks

TIGHTENINGS = ("bottleneck", "incumbent")
"""The functions `tighten_*`, each of which may be left out."""


def build(data: StageSelectionData, ticks: Ticks) -> tuple[Any, Variables]:
    """The whole program but for exclusions, cutoff and cuts."""
    with ctrl_c_waits():
        from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    var = _variables(model, data, ticks)
    model.minimize(var.times.end + var.follow)
    add_assign(model, data, var)
    add_recompute(model, ticks, var)
    add_reduction(model, ticks, var)
    add_follow_up(model, ticks, var)
    add_window(to_integer(model), var.times)
    add_partial(to_integer(model), var.times)
    add_through(to_integer(model), var.times)
    add_end(to_integer(model), var.times)
    return model, var


def _variables(model: Any, data: StageSelectionData, ticks: Ticks) -> Variables:
    with ctrl_c_waits():
        from ortools.sat.python import cp_model

    stages = range(data.num_stages)
    # Rows bound a pipeline from below, and one that runs a piece at a time is no faster than 1F1B.
    horizon = data.num_microbatches * int(ticks.longest().sum() + 2 * ticks.send.sum() + ticks.wait.sum())
    longest = horizon + int(np.where(ticks.fits, ticks.reduction, 0).max())
    counts = [cp_model.Domain.from_values(np.flatnonzero(ticks.fits[s]).tolist()) for s in stages]
    n = [model.new_int_var_from_domain(counts[s], f"n_{s}") for s in stages]
    extra = [_from_table(model, ticks, s, ticks.extra, f"x_{s}") for s in stages]

    def times(name: str, most: int) -> list[Any]:
        return [model.new_int_var(0, most, f"{name}_{s}") for s in stages]

    return Variables(
        n=n,
        extra=extra,
        times=PipelineTimes(
            num_microbatches=data.num_microbatches,
            forward=[ticks.forward(s, n[s]) for s in stages],
            backward=[ticks.backward(s, n[s], extra[s]) for s in stages],
            send=ticks.send.tolist(),
            wait=ticks.wait.tolist(),
            after=[_from_table(model, ticks, s, ticks.reduction, f"z_{s}") for s in stages],
            first=times("A", horizon),
            last=times("Y", horizon),
            core=times("C", horizon),
            reach=times("R", longest),
            longest=(times("U1", horizon), times("U2", horizon)),
            through=(times("P1", horizon), times("P2", horizon)),
            end=model.new_int_var(0, longest, "T"),
        ),
        follow=model.new_int_var(0, int(np.where(ticks.fits, ticks.follow, 0).max()), "o"),
    )


def _from_table(model: Any, ticks: Ticks, s: int, table: Ints, name: str) -> Any:
    """A variable for a time of stage s that stands in a table [stage, n]."""
    times = table[s][ticks.fits[s]]
    return model.new_int_var(int(times.min()), int(times.max()), name)


def add_assign(model: Any, data: StageSelectionData, var: Variables) -> None:
    """Every layer runs on exactly one stage."""
    model.add(sum(var.n) == data.num_layers).with_name("assign")


def add_recompute(model: Any, ticks: Ticks, var: Variables) -> None:
    """The backward grows by the least recomputation that makes the layers of the stage fit."""
    for s, n in enumerate(var.n):
        _look_up(model, ticks, s, n, ticks.extra, var.extra[s], f"recompute_{s}")


def add_reduction(model: Any, ticks: Ticks, var: Variables) -> None:
    """Gradient reduction shows where the last backward does not hide it."""
    for s, n in enumerate(var.n):
        _look_up(model, ticks, s, n, ticks.reduction, var.times.after[s], f"reduction_{s}")


def add_follow_up(model: Any, ticks: Ticks, var: Variables) -> None:
    """After all stages have met, the slowest optimizer and gathering end the step."""
    for s, n in enumerate(var.n):
        own = _from_table(model, ticks, s, ticks.follow, f"o_{s}")
        _look_up(model, ticks, s, n, ticks.follow, own, f"follow_up_time_{s}")
        model.add(var.follow >= own).with_name(f"follow_up_{s}")


def _look_up(model: Any, ticks: Ticks, s: int, n: Any, table: Ints, target: Any, name: str) -> None:
    """`target == table[s, n]`; counts that do not fit are not in the domain of n."""
    values = table[s].tolist()
    low = int(np.flatnonzero(ticks.fits[s])[0])
    model.add_element(n - low, values[low:], target).with_name(name)


def add_exclude(model: Any, var: Variables, exclude: Sequence[Sequence[int]]) -> None:
    """Layer counts already judged."""
    if exclude:
        model.add_forbidden_assignments(var.n, [tuple(layers) for layers in exclude]).with_name("exclude")


def add_cutoff(model: Any, data: StageSelectionData, ticks: Ticks, var: Variables, cutoff_ms: float) -> None:
    """Only choices up to the cutoff: rounded down, each of them stays at or below the cutoff in ticks."""
    most = math.floor((cutoff_ms - data.constant_ms) / ticks.tick_ms)
    model.add(var.times.end + var.follow <= most).with_name("cutoff")


def extract(table: RecomputeTable, var: Variables, solver: Any) -> StageChoice:
    """Read the layers of every stage out of a solution; the table has their recomputation."""
    choice = with_least_recompute(table, tuple(int(solver.value(n)) for n in var.n))
    assert choice is not None, "a count outside the domain of n"
    return choice


def solve(
    data: StageSelectionData,
    options: SolveOptions,
    *,
    exclude: Sequence[Sequence[int]] = (),
    rows: Sequence[PipelineRow] = (),
    cutoff_ms: float | None = None,
    tighten: Collection[str] = TIGHTENINGS,
) -> StageSelectionResult:
    """Solve to the gap of `options`.

    Parameters
    ----------
    exclude
        Layer counts already judged.
    rows
        Taken so that both forms are called alike; every row is here from the start.
    cutoff_ms
        Look only for choices up to this; where there is none the result is `unknown` with this bound.
    tighten
        Which of the cuts that only strengthen to add.
    """
    table = least_recompute(data)
    if not math.isfinite(least_bottleneck_ms(data, table)):
        return StageSelectionResult("infeasible", None, None, None, ())
    ticks = times_in_ticks(data, table)
    model, var = build(data, ticks)
    if "bottleneck" in tighten:
        tighten_bottleneck(model, data, ticks, table, var)
    if "incumbent" in tighten:
        tighten_incumbent(model, data, ticks, table, var, exclude)
    add_exclude(model, var, exclude)
    if cutoff_ms is not None:
        add_cutoff(model, data, ticks, var, cutoff_ms)
    status, solver = solvers.solve_cp(model, options)
    if status == "infeasible":
        return StageSelectionResult(
            "infeasible" if cutoff_ms is None else "unknown", None, None, cutoff_ms, ()
        )
    bound = float(solver.best_objective_bound) * ticks.tick_ms + data.constant_ms
    if cutoff_ms is not None:
        bound = min(bound, cutoff_ms)
    if status == "unknown":
        return StageSelectionResult(status, None, None, bound, ())
    choice = extract(table, var, solver)
    value = objective_ms(data, choice)
    return StageSelectionResult(status, choice, value, min(bound, value), ())
