"""Cut layers that differ into contiguous stages of a fixed pipeline, in the least step time.

For models whose layers are of several kinds in any order (dense and experts in turn, Mamba between
attention). The outer choice has fixed the degrees and the class of every stage. What stage s costs with
the layers from a to e - 1 is a table, its recomputation the least that fits, so a split is a path
through the cuts and needs no big-M. Times in ms.

Sets       s, i, j in S                   stages 0 .. p-1, in pipeline order
           a, e in 0 .. L                 cuts; before layer a, before layer e
           E                              (s, a, e) that fit; a < e, or a = e for a stage that may be without
                                          a layer; as many layers before and behind as other stages need
Data       L, m                           layers, micro-batches
           f[s,a,e], b[s,a,e]             forward, backward of the layers on s, one micro-batch
           z[s,a,e]                       gradient reduction that stays exposed, with its tail
           o[s,a,e]                       optimizer and exposed gathering, with what follows all stages
           c[s]                           send to the next stage
           x[s]                           wait of s between a backward and a forward: w of `pipeline_rows`
           K                              what every split adds (tied embeddings)
           q[s] = p - 1 - s               stages behind s
           k[s], r[s]                     m - 1 = k (q + 1) + r
           J[s,i], rj[s,i]                m - 2 - q = J (i - s + 1) + rj, where m >= q + 2
Variables  w[s,a,e]  binary               stage s holds layers a .. e - 1
           F[s], B[s], Z[s]               forward, backward, reduction of s
           A[s], Y[s], C[s], R[s]         as in `joint`: first and last round trip, core, reach
           U1[s], U2[s], P1[s], P2[s]     as in `joint`: longest passes, ways through the pipeline
           T, O                           end of the last stage with its reduction; what follows
Model      min  T + O + K
           s.t. sum_{a,e} w[s,a,e] = 1                                     (placed)
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
                sum over the cuts of s of w <= p - 1 for excluded cuts     (exclude)
Cuts       `tighten_cutoff`: proof with the function.
Size       at most p L^2 / 2 binaries, of which `tighten_cutoff` leaves those of stages that a better plan
           may hold; at most p L + p^2 + 24 p rows.
Exact      for whole layers and a fixed class of every stage; the objective is a lower bound on the
           referee's step time (see `pipeline_rows`).
Leaves out virtual stages.
Source     rows: proved in `pipeline_rows`; costs: `planner.cost`. A path in an acyclic graph of cuts, as
           Bokhari (1988, IEEE Transactions on Computers 37, pp. 48-57) draws chain partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from formulations import solvers
from formulations.layer_partition_data import (
    Cuts,
    LayerPartitionData,
    LayerPartitionResult,
    objective_ms,
    stages_of,
)
from formulations.layer_partition_paths import least_ms, least_through_ms
from formulations.options import SolveOptions
from formulations.pipeline_constraints import (
    PipelineTimes,
    add_end,
    add_partial,
    add_through,
    add_window,
    to_linear,
)
from formulations.pipeline_rows import Floats

TIGHTENINGS = ("cutoff",)
"""The functions `tighten_*`, each of which may be left out."""


@dataclass(frozen=True)
class Variables:
    """The solver's variables."""

    w: dict[tuple[int, int, int], pulp.LpVariable]
    times: PipelineTimes
    follow: pulp.LpVariable


def build(data: LayerPartitionData) -> tuple[pulp.LpProblem, Variables]:
    """The whole program but for exclusions and cuts that only strengthen."""
    model = pulp.LpProblem("layer_partition", pulp.LpMinimize)
    var = _variables(data)
    model += var.times.end + var.follow + data.constant_ms
    add_placed(model, data, var)
    add_contiguous(model, data, var)
    add_stage_time(model, data, var)
    add_follow_up(model, data, var)
    add_window(to_linear(model), var.times)
    add_partial(to_linear(model), var.times)
    add_through(to_linear(model), var.times)
    add_end(to_linear(model), var.times)
    return model, var


def _variables(data: LayerPartitionData) -> Variables:
    def times(name: str) -> list[pulp.LpVariable]:
        return [pulp.LpVariable(f"{name}_{s}", 0) for s in range(data.num_stages)]

    chosen = [tuple(int(i) for i in at) for at in np.argwhere(data.allowed())]
    return Variables(
        w={(s, a, e): pulp.LpVariable(f"w_{s}_{a}_{e}", cat="Binary") for s, a, e in chosen},
        times=PipelineTimes(
            num_microbatches=data.num_microbatches,
            forward=times("F"),
            backward=times("B"),
            send=data.send_ms.tolist(),
            wait=data.wait_ms.tolist(),
            after=times("Z"),
            first=times("A"),
            last=times("Y"),
            core=times("C"),
            reach=times("R"),
            longest=(times("U1"), times("U2")),
            through=(times("P1"), times("P2")),
            end=pulp.LpVariable("T", 0),
        ),
        follow=pulp.LpVariable("O", 0),
    )


def _sum(var: Variables, stage: int, table: Floats) -> pulp.LpAffineExpression:
    """A table entry of the layers that a stage holds."""
    terms = [(w, float(table[at])) for at, w in var.w.items() if at[0] == stage]
    return pulp.LpAffineExpression(terms)


def add_placed(model: pulp.LpProblem, data: LayerPartitionData, var: Variables) -> None:
    """Every stage holds one run of layers."""
    for s in range(data.num_stages):
        model += pulp.lpSum(w for at, w in var.w.items() if at[0] == s) == 1, f"placed_{s}"


def add_contiguous(model: pulp.LpProblem, data: LayerPartitionData, var: Variables) -> None:
    """A stage begins where the one before it ends."""
    ends: dict[tuple[int, int], list[pulp.LpVariable]] = {}
    begins: dict[tuple[int, int], list[pulp.LpVariable]] = {}
    for (s, a, e), w in var.w.items():
        ends.setdefault((s, e), []).append(w)
        begins.setdefault((s, a), []).append(w)
    for s in range(data.num_stages - 1):
        for cut in range(data.num_layers + 1):
            before, after = ends.get((s, cut), []), begins.get((s + 1, cut), [])
            if before or after:
                model += pulp.lpSum(before) == pulp.lpSum(after), f"contiguous_{s}_{cut}"


def add_stage_time(model: pulp.LpProblem, data: LayerPartitionData, var: Variables) -> None:
    """Times of a stage are those of its layers."""
    for s in range(data.num_stages):
        model += var.times.forward[s] == _sum(var, s, data.forward_ms), f"stage_time_forward_{s}"
        model += var.times.backward[s] == _sum(var, s, data.backward_ms), f"stage_time_backward_{s}"
        model += var.times.after[s] == _sum(var, s, data.reduction_ms), f"stage_time_reduction_{s}"


def add_follow_up(model: pulp.LpProblem, data: LayerPartitionData, var: Variables) -> None:
    """After all stages have met, the slowest optimizer and gathering end the step."""
    for s in range(data.num_stages):
        model += var.follow >= _sum(var, s, data.follow_ms), f"follow_up_{s}"


def add_exclude(
    model: pulp.LpProblem, data: LayerPartitionData, var: Variables, exclude: Sequence[Cuts]
) -> None:
    """Splits already judged: not all of their stages again."""
    for index, cuts in enumerate(exclude):
        used = [(s, a, e) for s, (a, e) in enumerate(stages_of(cuts, data.num_layers))]
        if all(at in var.w for at in used):
            again = pulp.lpSum(var.w[at] for at in used)
            model += again <= data.num_stages - 1, f"exclude_{index}"


def tighten_cutoff(model: pulp.LpProblem, data: LayerPartitionData, var: Variables, cutoff_ms: float) -> None:
    """Cut: nothing above what is still of use, nor a run of layers with which every split is.

    What such splits exceed is proved in `layer_partition_paths`. All splits taken away lie above the cutoff,
    of which a bound may then say no more.
    """
    model += var.times.end + var.follow <= cutoff_ms - data.constant_ms, "tighten_cutoff_objective"
    least_ms = least_through_ms(data)
    slow = [w for at, w in var.w.items() if least_ms[at] > cutoff_ms]
    model += pulp.lpSum(slow) <= 0, "tighten_cutoff"


def extract(data: LayerPartitionData, solution: solvers.Solution) -> Cuts:
    """Read the cuts out of a solution."""
    chosen = sorted(
        tuple(int(part) for part in name.split("_")[1:])
        for name in solution.values
        if name.startswith("w_") and solution.integer(name) == 1
    )
    return tuple(first for _, first, _ in chosen[1:])


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
        Only splits below this are of use: where it is clear that there is none, the result is `unknown`
        with a bound; else it may hold a split above it.
    tighten
        Which of the cuts that only strengthen to add.
    """
    floor_ms = least_ms(data)
    if not np.isfinite(floor_ms):
        return LayerPartitionResult("infeasible", None, None, None)
    if cutoff_ms is not None and floor_ms >= cutoff_ms:
        return LayerPartitionResult("unknown", None, None, floor_ms)
    model, var = build(data)
    add_exclude(model, data, var, exclude)
    if cutoff_ms is not None and "cutoff" in tighten:
        tighten_cutoff(model, data, var, cutoff_ms)
    solution = solvers.solve(model, options)
    most_ms = cutoff_ms if cutoff_ms is not None and "cutoff" in tighten else np.inf
    if solution.status == "infeasible" and np.isfinite(most_ms):
        return LayerPartitionResult("unknown", None, None, most_ms)
    if solution.status in ("infeasible", "unknown"):
        bound = None if solution.bound is None else min(solution.bound, most_ms)
        return LayerPartitionResult(solution.status, None, None, bound)
    cuts = extract(data, solution)
    value = objective_ms(data, cuts)
    bound = None if solution.bound is None else min(solution.bound, value, most_ms)
    return LayerPartitionResult(solution.status, cuts, value, bound)
