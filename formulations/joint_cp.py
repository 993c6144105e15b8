"""Integer twin of `joint`: the same choice, found by CP-SAT over whole ticks of time.

It shares data and answer with the linear program. What a stage recomputes is no variable here but the
least that makes its layers fit, by table, so that there is no big-M and no tolerance on feasibility.

Sets       s, i, j, e in S                stages 0 .. p-1, in pipeline order
           k, l in K                      classes of nodes
Data       L, m, most[k], c[k,l], q       as in `joint`
           kw, rw, J, rj                  as in `joint`
           tick                           unit of time, a power of two [ms]
           D[s,k]                         counts n >= 1 that fit s on k with some recomputation
           f, b, f0, b0                   forward, backward of a layer; of embedding and head, [s,k]
           X(s,k,n)                       what the least recomputation of n layers adds to the backward
           V(s,k,n), P(s,k,n)             exposed reduction with its tail; optimizer, exposed gathering with
                                          its tail; all three are 0 for n = 0
Variables  z[s,k]    binary               s runs on k
           n[s,k]    in D[s,k] or 0       layers of s, if it is on k
           H[s,k,l]  binary               s is on k and s+1 on l
           x[s,k], v[s,k]                 ticks of recomputation and of reduction
           c[s], A[s], Y[s], C[s], R[s],
           U1[s], U2[s], P1[s], P2[s]     as in `joint`, in ticks
           T, O                           end of the last stage with its reduction; what follows
Model      min  T + O
           s.t. sum_k z[s,k] = 1                                           (placed)
                sum_s z[s,k] <= most[k]                                    (available)
                sum_l H[s,k,l] = z[s,k],  sum_k H[s,k,l] = z[s+1,l]        (hop)
                sum_{s,k} n[s,k] = L                                       (assign)
                n[s,k] >= 1 if z[s,k], else n[s,k] = 0                     (held)
                x[s,k] = X(s,k,n[s,k])                                     (recompute)
                v[s,k] = V(s,k,n[s,k])                                     (reduction)
                O >= P(s,k,n[s,k])                                         (follow_up)
                c[s] = sum_{k,l} c[k,l] H[s,k,l]                           (send_time)
           with F = sum_k (f n + f0 z), B = sum_k (b n + b0 z + x), t = F + B,
           Z = sum_k v, D[s] = t[s] + sum_{i>s} t[i] + 2 sum_{i>=s} c[i]
                C[s] >= m t[s],  C[s] >= rw F[s] + (kw+1) D[s],
                C[s] >= rw B[s] + (kw+1) D[s]                              (window)
                A[s] >= D[s],  A[s] >= (q+1) F[s] + B[s],
                Y[s] >= D[s],  Y[s] >= (q+1) B[s] + F[s],
                C[s] >= A[s] + Y[s] + rj t[s]
                        + J (sum_{i=s..e} t[i] + 2 sum_{i=s..e-1} c[i])    (partial)
                U1[s] >= F[s],  U1[s] >= U1[s-1],
                P1[s] >= sum_{i<=s} F[i] + sum_{i<s} c[i] + q U1[s] + B[s],
                P1[s] >= P1[s+1] + c[s] + B[s], and U2, P2 with F and B swapped,
                T >= P1[s] + P2[s] + rj t[s] + J (as in (partial)) + Z[0],
                with m - 1 for q, no B[s] and no J where m <= q + 1        (through)
                R[s] >= R[s+1],  R[s] >= C[s] + sum_{i<s} (t[i] + 2 c[i]),
                T >= R[j] - sum_{i<j} (B[i] + c[i]) + Z[j]                 (end)
Size       p |K| integers of at most L + 1 values, p |K| + (p-1) |K|^2 binaries, 3 p |K| tables; with these at
           most p^2 + 8 p |K| + 21 p rows.
Exact      as `joint`, within 1e-7 of the objective: every time is computed in floats and rounded *down* to
           ticks, memory not at all; the proof in `stage_selection_cp` (Rounding) holds word for word, with
           the least bottleneck over all orders, that of stages each of which takes its fastest class for
           every number of layers. So the bound is a true one, and the choice that comes back fits.
Leaves out what `joint` leaves out.
Source     as `joint`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from formulations import solvers
from formulations.interrupts import ctrl_c_waits
from formulations.joint_data import JointData, JointResult, Pair, check_what_is_left_out, order_data
from formulations.joint_ticks import JointTicks, joint_ticks
from formulations.options import SolveOptions
from formulations.pipeline_constraints import (
    PipelineTimes,
    add_end,
    add_partial,
    add_through,
    add_window,
    to_integer,
)
from formulations.stage_selection_data import objective_ms
from formulations.stage_selection_tables import least_recompute, with_least_recompute


@dataclass(frozen=True)
class Variables:
    """The solver's variables: by (stage, class), by hop, or for the pipeline."""

    z: dict[Pair, Any]
    n: dict[Pair, Any]
    hop: dict[tuple[int, int, int], Any]
    extra: dict[Pair, Any]
    reduction: dict[Pair, Any]
    times: PipelineTimes
    follow: Any


def build(data: JointData, ticks: JointTicks) -> tuple[Any, Variables]:
    """The whole program."""
    with ctrl_c_waits():
        from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    var = _variables(model, data, ticks)
    model.minimize(var.times.end + var.follow)
    add_placed(model, data, var)
    add_available(model, data, var)
    add_hop(model, data, var)
    add_assign(model, data, var)
    add_held(model, var)
    add_recompute(model, ticks, var)
    add_reduction(model, ticks, var)
    add_follow_up(model, ticks, var)
    add_send_time(model, ticks, var)
    add_window(to_integer(model), var.times)
    add_partial(to_integer(model), var.times)
    add_through(to_integer(model), var.times)
    add_end(to_integer(model), var.times)
    return model, var


def _variables(model: Any, data: JointData, ticks: JointTicks) -> Variables:
    with ctrl_c_waits():
        from ortools.sat.python import cp_model

    stages, classes = range(data.num_stages), range(data.num_classes)
    # Rows bound a pipeline from below, and one that runs a piece at a time is no faster than 1F1B.
    longest = np.max([of_class.longest() for of_class in ticks.of_class], axis=0)
    horizon = data.of_class[0].num_microbatches * int(
        longest.sum() + 2 * ticks.send.max() * (data.num_stages - 1)
    )
    most_after, most_follow = (
        max(int(ticks.table(name, at).max()) for at in data.pairs) for name in ("reduction", "follow")
    )

    def counts(s: int, k: int) -> Any:
        return cp_model.Domain.from_values([0, *np.flatnonzero(ticks.of_class[k].fits[s]).tolist()])

    def ticked(name: str, table: str) -> dict[Pair, Any]:
        most = {at: int(ticks.table(table, at).max()) for at in data.pairs}
        return {(s, k): model.new_int_var(0, most[s, k], f"{name}_{s}_{k}") for s, k in data.pairs}

    def times(name: str, most: int) -> list[Any]:
        return [model.new_int_var(0, most, f"{name}_{s}") for s in stages]

    z = {(s, k): model.new_bool_var(f"z_{s}_{k}") for s, k in data.pairs}
    n = {(s, k): model.new_int_var_from_domain(counts(s, k), f"n_{s}_{k}") for s, k in data.pairs}
    extra, reduction = ticked("x", "extra"), ticked("v", "reduction")

    def line(layer: str, base: str, s: int) -> Any:
        own = [(getattr(of, layer), getattr(of, base)) for of in ticks.of_class]
        return sum(int(own[k][0][s]) * n[s, k] + int(own[k][1][s]) * z[s, k] for k in classes)

    return Variables(
        z=z,
        n=n,
        hop={
            (s, k, after): model.new_bool_var(f"H_{s}_{k}_{after}")
            for s in stages[:-1]
            for k in classes
            for after in classes
        },
        extra=extra,
        reduction=reduction,
        times=PipelineTimes(
            num_microbatches=data.of_class[0].num_microbatches,
            forward=[line("layer_forward", "base_forward", s) for s in stages],
            backward=[
                line("layer_backward", "base_backward", s) + sum(extra[s, k] for k in classes) for s in stages
            ],
            send=times("c", int(ticks.send.max())),
            wait=[0] * data.num_stages,
            after=[sum(reduction[s, k] for k in classes) for s in stages],
            first=times("A", horizon),
            last=times("Y", horizon),
            core=times("C", horizon),
            reach=times("R", horizon + most_after),
            longest=(times("U1", horizon), times("U2", horizon)),
            through=(times("P1", horizon), times("P2", horizon)),
            end=model.new_int_var(0, horizon + most_after, "T"),
        ),
        follow=model.new_int_var(0, most_follow, "O"),
    )


def add_placed(model: Any, data: JointData, var: Variables) -> None:
    """Every stage runs on one class."""
    for s in range(data.num_stages):
        model.add_exactly_one(var.z[s, k] for k in range(data.num_classes)).with_name(f"placed_{s}")


def add_available(model: Any, data: JointData, var: Variables) -> None:
    """No class takes more stages than it has chips for."""
    for k, most in enumerate(data.most_stages):
        taken = sum(var.z[s, k] for s in range(data.num_stages))
        model.add(taken <= most).with_name(f"available_{k}")


def add_hop(model: Any, data: JointData, var: Variables) -> None:
    """The hop s -> s + 1 leads from the class of s to that of s + 1."""
    classes = range(data.num_classes)
    for s in range(data.num_stages - 1):
        for k in classes:
            leaving = sum(var.hop[s, k, other] for other in classes)
            coming = sum(var.hop[s, other, k] for other in classes)
            model.add(leaving == var.z[s, k]).with_name(f"hop_from_{s}_{k}")
            model.add(coming == var.z[s + 1, k]).with_name(f"hop_to_{s}_{k}")


def add_assign(model: Any, data: JointData, var: Variables) -> None:
    """Every layer runs on exactly one stage."""
    model.add(sum(var.n.values()) == data.of_class[0].num_layers).with_name("assign")


def add_held(model: Any, var: Variables) -> None:
    """A stage holds layers on its own class only, and at least one."""
    for (s, k), n in var.n.items():
        model.add(n >= 1).only_enforce_if(var.z[s, k]).with_name(f"held_least_{s}_{k}")
        model.add(n == 0).only_enforce_if(~var.z[s, k]).with_name(f"held_most_{s}_{k}")


def add_recompute(model: Any, ticks: JointTicks, var: Variables) -> None:
    """The backward grows by the least recomputation that makes the layers of the stage fit."""
    for at, extra in var.extra.items():
        _look_up(model, ticks, "extra", at, var, extra, "recompute")


def add_reduction(model: Any, ticks: JointTicks, var: Variables) -> None:
    """Gradient reduction shows where the last backward does not hide it."""
    for at, reduction in var.reduction.items():
        _look_up(model, ticks, "reduction", at, var, reduction, "reduction")


def add_follow_up(model: Any, ticks: JointTicks, var: Variables) -> None:
    """After all stages have met, the slowest optimizer and gathering end the step."""
    for s, k in var.n:
        own = model.new_int_var(0, int(ticks.table("follow", (s, k)).max()), f"o_{s}_{k}")
        _look_up(model, ticks, "follow", (s, k), var, own, "follow_up_time")
        model.add(var.follow >= own).with_name(f"follow_up_{s}_{k}")


def _look_up(
    model: Any, ticks: JointTicks, table: str, at: Pair, var: Variables, target: Any, name: str
) -> None:
    """`target` equals the table's entry for the layers of a stage on a class."""
    row = ticks.table(table, at).tolist()
    model.add_element(var.n[at], row, target).with_name(f"{name}_{at[0]}_{at[1]}")


def add_send_time(model: Any, ticks: JointTicks, var: Variables) -> None:
    """The send of a stage depends on its class and the next one's; the last stage sends nothing."""
    for s, send in enumerate(var.times.send):
        time = sum(int(ticks.send[k, after]) * hop for (i, k, after), hop in var.hop.items() if i == s)
        model.add(send == time).with_name(f"send_time_{s}")


def solve(data: JointData, options: SolveOptions) -> JointResult:
    """Solve to the gap of `options`.

    Raises
    ------
    SolverError
        Where the data holds layers of several kinds, which this form leaves out.
    """
    check_what_is_left_out(data)
    tables = tuple(least_recompute(of_class) for of_class in data.of_class)
    ticks = joint_ticks(data, tables)
    model, var = build(data, ticks)
    status, solver = solvers.solve_cp(model, options)
    if status == "infeasible":
        return JointResult(status, None, None, None, None)
    bound = float(solver.best_objective_bound) * ticks.tick_ms + data.of_class[0].constant_ms
    if status == "unknown":
        return JointResult(status, None, None, None, bound if math.isfinite(bound) else None)
    classes, layers = extract(data, var, solver)
    fixed = order_data(data, classes)
    choice = with_least_recompute(least_recompute(fixed), layers)
    assert choice is not None, "a count outside the domain of n"
    value = objective_ms(fixed, choice)
    return JointResult(status, classes, choice, value, min(bound, value))


def extract(data: JointData, var: Variables, solver: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Read class and layers of every stage out of a solution; the tables have their recomputation."""
    stages, classes = range(data.num_stages), range(data.num_classes)
    chosen = tuple(next(k for k in classes if solver.value(var.z[s, k])) for s in stages)
    return chosen, tuple(int(solver.value(var.n[s, chosen[s]])) for s in stages)
