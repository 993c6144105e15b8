"""Give every chunk of an interleaved pipeline its layers and every stage its recomputation, in least time.

The outer choice has fixed the degrees, the micro-batch, the node class of every stage and the number of
virtual stages; layers are of one kind, or begin with some of another. Times in ms, sizes in GiB.

Sets       s in S                         stages 0 .. p-1, in pipeline order
           k in K                         chunks 0 .. v-1 of every stage; k of s is virtual stage k p + s
           H[s]                           moments of s at which most micro-batches may be in flight
           R, W[s]                        rows (path) of `interleaved_paths`, and (wait) of either side, of
                                          `interleaved_rows`
Data       L                              layers of the model
           m                              micro-batches, a multiple of p
           f[s], b[s]                     forward, backward of one layer on s, one micro-batch
           f0[s,k], b0[s,k]               the same of embedding and head, and of sends that block
           g1[s], g2[s]                   more backward of a layer: core attention or all of it recomputed
           c[s]                           send to the next stage, from the last one to the first
           e[s,h,k]                       micro-batches in flight on chunk k at moment h
           d                              weights, gradients and optimizer state of a layer
           a, v1, v2                      activations of a layer and micro-batch; what recomputing saves
           a0[s,h]                        memory of all else at moment h
           w[s], w1[s]                    more passing memory where any layer is recomputed in full, or where
                                          core attention is
           M[s]                           memory limit
           r[s], r0[s], rt[s]             gradient reduction a layer; of embedding and head; tail
           rb[s]                          r[s] where s reduces in one bucket, else 0
           o[s], o0[s]                    optimizer a layer; of all else, with what follows all stages
           h[s], h0[s], ht[s]             parameter gathering a layer; of embedding and head; tail
           eta                            share of the last backward (first forward) that hides it
           N                              most layers that a chunk may hold: every other one keeps its fewest
           N1[s]                          most layers with which the optimizer's step fits
           l                              layers of another kind that chunk 0 of stage 0 begins with; its base
                                          terms hold how they differ, l1[0,0], lv how their core attention
                                          does; l1 of the last chunk is that of the layers beside the head
           D                              chunks of embedding and head, if they need no layer (and l = 0)
           l0[s,k]                        fewest layers: one, l, or none in D
Variables  n[s,k]    whole, l0 .. N       layers
           u[s]      whole, 0 .. N        layers of every chunk with layers that are recomputed in full
           u1[s]     0 .. N               those of the chunk of s in D
           x1[s]     binary               that chunk has a layer
           k1[s,k]   whole, 0 .. N        layers whose core attention is recomputed: none or all of s
           x[s]      binary               some layer of s is recomputed in full
           y[s]      binary               core attention of s is recomputed
           F[s,k], B[s,k]                 forward and backward of a chunk
           Z[s], G[s]                     reduction and gathering that stay exposed
           I[s], J[s]                     what s waits before its work, and what follows it on stage 0
           T, O                           end of the last stage with its reduction; what follows
           From 8 stages on also the sums of F and of B over the stages up to each, by chunk, in which (wait)
           is written: the same rows with fewer factors (`interleaved_constraints`).
Model      min  T + O
           s.t. sum_sk n[s,k] = L                                               (assign)
                u[s] <= n[s,k] but in D,  u[s] <= N x[s],  u[s] >= x[s]          (recomputed)
                in D:  x1[s] <= n[s,k] <= N x1[s],  u[s] <= n[s,k] + N (1 - x1[s]),
                u1[s] <= n[s,k],  u[s] - N (1 - x1[s]) <= u1[s] <= u[s]         (empty)
                k1[s,k] <= n[s,k],  k1[s,k] <= N y[s],
                k1[s,k] >= n[s,k] - N (1 - y[s])                                (selective)
                x[s] + y[s] <= 1                                                (one_kind)
                sum_k (d n[s,k] + e[s,h,k] (a n[s,k] - v2 u[s] - v1 k1[s,k])),
                     with u1[s] for u[s] in D,
                     + (w1[s] - lv) y[s] + w[s] x[s] + a0[s,h] <= M[s]
                     for h in H[s]                                              (memory)
                sum_k n[s,k] <= N1[s]                                           (step)
                F[s,k] = f[s] n[s,k] + f0[s,k]                                  (forward_time)
                B[s,k] = b[s] n[s,k] + b0[s,k] + g2[s] u[s] + g1[s] k1[s,k]
                     + l1[s,k] y[s], with u1[s] for u[s] in D; >= for = on the chunk with the l layers
                                                                                (backward_time)
                Z[s] >= r[s] sum_k n[s,k] + r0[s] - eta sum_k B[s,k],
                Z[s] >= rb[s] n[s,0] - rt[s],  Z[s] >= 0                        (reduction)
                G[s] >= h[s] sum_k n[s,k] + h0[s] - eta sum_k F[s,k],  G[s] >= 0 (gathering)
                O >= o[s] sum_k n[s,k] + o0[s] + G[s] + ht[s]                   (follow_up)
                I[s] >= row(F, B, c) and J[s] >= row(F, B, c) for the rows of W[s]
                T >= m sum_k (F[s,k] + B[s,k]) + I[s] + J[s] + Z[0] + rt[0]     (wait)
                T >= row(F, B, c) + Z[j] + rt[j]
                     for every row of R, j its stage, added when violated       (path)
                n not equal to an excluded n'                                   (exclude)
Size       p v + 3p integers, p v more with core attention, 9 p v + 14p rows, two binaries and twelve rows for
           D, and some rows (path).
Exact      for whole layers and a fixed class of every stage: with all rows the objective is the step time of
           the referee. On the stage of leading layers g2 is the least and v2 the most of both kinds: a
           relaxation that the exact evaluation of every answer makes good. There B may be longer than these
           say, as `tighten_recompute` asks for what layers of both kinds cost.
Source     rows: proved in `interleaved_paths` and `interleaved_rows`; memory and times: `planner.cost`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pulp

from formulations import solvers
from formulations.chunk_constraints import (
    add_backward_time,
    add_empty,
    add_follow_up,
    add_forward_time,
    add_gathering,
    add_memory,
    add_one_kind,
    add_recomputed,
    add_reduction,
    add_selective,
    add_step,
)
from formulations.interleaved_constraints import Passes, add_wait
from formulations.interleaved_paths import PathRow
from formulations.options import SolveOptions
from formulations.path_search import Layers, PathProgram, PathSearch, VirtualSelectionResult
from formulations.row_search import relaxed
from formulations.virtual_selection_cuts import (
    TIGHTENINGS,
    Variables,
    tighten_capacity,
    tighten_cutoff,
    tighten_recompute,
)
from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import dealt_table, fewest_layers, most_layers


def build(data: VirtualSelectionData) -> tuple[pulp.LpProblem, Variables]:
    """The program without (path) rows, which `solve` adds as they are violated."""
    model = pulp.LpProblem("virtual_selection", pulp.LpMinimize)
    variables = _variables(data)
    model += variables.end + variables.follow + data.stage.constant_ms
    add_assign(model, data, variables)
    add_recomputed(model, data, variables)
    add_empty(model, data, variables)
    add_selective(model, data, variables)
    add_one_kind(model, data, variables)
    add_memory(model, data, variables)
    add_step(model, data, variables)
    add_forward_time(model, data, variables)
    add_backward_time(model, data, variables)
    add_reduction(model, data, variables)
    add_gathering(model, data, variables)
    add_follow_up(model, data, variables)
    add_wait(model, _passes(data, variables))
    return model, variables


def _variables(data: VirtualSelectionData) -> Variables:
    stages, chunks = range(data.num_stages), range(data.virtual_stages)
    most = most_layers(data)

    def whole(name: str, s: int, k: int, least: int) -> pulp.LpVariable:
        return pulp.LpVariable(f"{name}_{s}_{k}", least, most, cat="Integer")

    def binary(name: str) -> list[pulp.LpVariable]:
        return [pulp.LpVariable(f"{name}_{s}", cat="Binary") for s in stages]

    def positive(name: str) -> list[pulp.LpVariable]:
        return [pulp.LpVariable(f"{name}_{s}", 0) for s in stages]

    def times(name: str) -> list[list[pulp.LpVariable]]:
        return [[pulp.LpVariable(f"{name}_{s}_{k}", 0) for k in chunks] for s in stages]

    fewest = fewest_layers(data)
    may_select = "selective" in data.kinds
    ends = [s for s in stages if data.may_be_empty(s) is not None]
    return Variables(
        n=[[whole("n", s, k, int(fewest[s, k])) for k in chunks] for s in stages],
        u=[pulp.LpVariable(f"u_{s}", 0, most if "full" in data.kinds else 0, cat="Integer") for s in stages],
        u1={s: pulp.LpVariable(f"u1_{s}", 0, most) for s in ends},
        x1={s: pulp.LpVariable(f"x1_{s}", cat="Binary") for s in ends},
        k1=[[whole("k1", s, k, 0) for k in chunks] for s in stages] if may_select else [],
        x=binary("x"),
        y=binary("y") if may_select else [],
        forward=times("F"),
        backward=times("B"),
        reduction=positive("Z"),
        gathering=positive("G"),
        before=positive("I"),
        behind=positive("J"),
        end=pulp.LpVariable("T", 0),
        follow=pulp.LpVariable("O", 0),
    )


def add_assign(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """Every layer runs in exactly one chunk."""
    model += pulp.lpSum(n for counts in var.n for n in counts) == data.num_layers, "assign"


def _passes(data: VirtualSelectionData, var: Variables) -> Passes:
    """What the rows of `interleaved_rows` speak of; the reduction follows stage 0."""
    return Passes(
        forward=var.forward,
        backward=var.backward,
        sends=[float(send) for send in data.send_ms],
        before=var.before,
        behind=var.behind,
        end=var.end,
        after=var.reduction[0] + float(data.stage.reduce_tail_ms[0]),
        num_microbatches=data.stage.num_microbatches,
    )


def add_path(
    model: pulp.LpProblem, data: VirtualSelectionData, var: Variables, row: PathRow, index: int
) -> None:
    """One path through the schedule, to the end of its stage and what that still reduces."""
    terms = _passes(data, var).terms(np.array(row.forward), np.array(row.backward))
    constant = float(np.array(row.sends) @ data.send_ms + data.stage.reduce_tail_ms[row.end_stage])
    path = pulp.LpAffineExpression([*terms, (var.reduction[row.end_stage], 1.0)], constant)
    model += var.end >= path, f"path_{index}"


def add_exclude(
    model: pulp.LpProblem,
    data: VirtualSelectionData,
    var: Variables,
    layers: Sequence[Sequence[int]],
    index: int,
) -> None:
    """Some chunk holds more or fewer layers than in a solution already judged."""
    most, moved = most_layers(data), []
    for s, counts in enumerate(layers):
        for k, count in enumerate(counts):
            up = pulp.LpVariable(f"up_{index}_{s}_{k}", cat="Binary")
            down = pulp.LpVariable(f"down_{index}_{s}_{k}", cat="Binary")
            model += var.n[s][k] >= count + 1 - (count + 1) * (1 - up), f"exclude_{index}_up_{s}_{k}"
            room = most - count + 1
            model += var.n[s][k] <= count - 1 + room * (1 - down), f"exclude_{index}_down_{s}_{k}"
            moved += [up, down]
    model += pulp.lpSum(moved) >= 1, f"exclude_{index}"


def extract(data: VirtualSelectionData, solution: solvers.Solution) -> Layers:
    """Read the layers of every chunk out of a solution; what fits is recomputed by `choices`."""
    return tuple(
        tuple(solution.integer(f"n_{s}_{k}") for k in range(data.virtual_stages))
        for s in range(data.num_stages)
    )


def solve(
    data: VirtualSelectionData,
    options: SolveOptions,
    *,
    exclude: Sequence[Sequence[Sequence[int]]] = (),
    rows: Sequence[PathRow] = (),
    cutoff_ms: float | None = None,
    integral: bool = True,
    tighten: Collection[str] = TIGHTENINGS,
) -> VirtualSelectionResult:
    """Solve to the gap of `options`, adding violated (path) rows until none is left.

    Parameters
    ----------
    exclude
        Layer counts already judged.
    rows
        Rows found before for this choice or one like it, to start from.
    cutoff_ms
        Stop as soon as the bound reaches this: the choice cannot win any more.
    integral
        Whether to go on to the integer program; else the bound of the relaxation is the answer.
    tighten
        Which of the cuts that only strengthen to add.
    """
    if int(fewest_layers(data).sum()) > data.num_layers:
        return VirtualSelectionResult("infeasible", None, None, ())
    model, var = build(data)
    table = dealt_table(data)
    if "recompute" in tighten:
        tighten_recompute(model, data, table, var)
    if "capacity" in tighten and cutoff_ms is not None:
        tighten_capacity(model, data, table, cutoff_ms, var)
    if "cutoff" in tighten and cutoff_ms is not None:
        tighten_cutoff(model, data, cutoff_ms, var)
    for index, layers in enumerate(exclude):
        add_exclude(model, data, var, layers, index)
    program = PathProgram(
        var.forward,
        var.backward,
        var.reduction,
        add_row=lambda row, index: add_path(model, data, var, row, index),
        extract=lambda solution: extract(data, solution),
    )
    search = PathSearch(data, model, program, options, cutoff_ms)
    search.add(rows)
    with relaxed(model):
        relaxation = search.run_relaxed()
    if relaxation is not None or not integral:
        return relaxation or search.result("unknown", None)
    return search.run()
