"""Cut layers that differ into contiguous stages of a fixed pipeline, in the least step time.

For models whose layers are of several kinds in any order (dense and experts in turn, Mamba between
attention). The outer choice has fixed the degrees and the class of every stage. What stage s costs with
the layers from a to e - 1 is a table, its recomputation the least that fits, so a split is a path
through the cuts and needs no big-M. Times in ms.

Sets       s, i, j in S                   stages 0 .. p-1, in pipeline order
           a, e in 0 .. L                 cuts; before layer a, before layer e
           E                              (s, a, e), a < e, that fit; a = 0 only for s = 0, e = L only for
                                          s = p-1
Data       L, m                           layers, micro-batches
           f[s,a,e], b[s,a,e]             forward, backward of the layers on s, one micro-batch
           z[s,a,e]                       gradient reduction that stays exposed, with its tail
           o[s,a,e]                       optimizer and exposed gathering, with what follows all stages
           c[s]                           send to the next stage
           q[s] = p - 1 - s               stages behind s
           k[s], r[s]                     m - 1 = k (q + 1) + r
           J[s,i], rj[s,i]                m - 2 - q = J (i - s + 1) + rj, where m >= q + 2
Variables  w[s,a,e]  binary               stage s holds layers a .. e - 1
           F[s], B[s], Z[s]               forward, backward, reduction of s
           A[s], Y[s], C[s], R[s]         as in `joint`: first and last round trip, core, reach
           T, O                           end of the last stage with its reduction; what follows
Model      min  T + O
           s.t. sum_{a,e} w[s,a,e] = 1                                     (placed)
                sum_a w[s,a,l] = sum_e w[s+1,l,e]        for s < p-1, l    (contiguous)
                F[s] = sum f w,  B[s] = sum b w,  Z[s] = sum z w           (stage_time)
                O >= sum_{a,e} o[s,a,e] w[s,a,e]                           (follow_up)
           with t = F + B, D[s] = t[s] + sum_{i>s} t[i] + 2 sum_{i>=s} c[i]
                C[s] >= m t[s],  C[s] >= r F[s] + (k+1) D[s],
                C[s] >= r B[s] + (k+1) D[s]                                (window)
                A[s] >= D[s],  A[s] >= (q+1) F[s] + B[s],
                Y[s] >= D[s],  Y[s] >= (q+1) B[s] + F[s],
                C[s] >= A[s] + Y[s] + rj t[s]
                        + J (sum_{j=s..i} t[j] + 2 sum_{j=s..i-1} c[j])    (partial)
                R[s] >= R[s+1],  R[s] >= C[s] + sum_{i<s} (t[i] + 2 c[i]),
                T >= R[j] - sum_{i<j} (B[i] + c[i]) + Z[j]                 (end)
                sum over the cuts of s of w <= p - 1 for excluded cuts     (exclude)
Size       at most p L^2 / 2 binaries, of which `tighten_cutoff` leaves those of stages that a better plan
           may hold; p L + p^2 / 2 + 12 p rows.
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
from numpy.typing import NDArray

from formulations import solvers
from formulations.options import SolveOptions, Status
from formulations.pipeline_rows import Floats, step_bound

TIGHTENINGS = ("cutoff",)
"""The functions `tighten_*`, each of which may be left out."""

Cuts = tuple[int, ...]
"""First layer of every stage but the first."""


@dataclass(frozen=True)
class LayerPartitionData:
    """Costs by stage, first layer and end; names as in the module docstring; inf where layers do not fit."""

    num_microbatches: int
    forward_ms: Floats
    """[stage, first, end]"""
    backward_ms: Floats
    """[stage, first, end]"""
    reduction_ms: Floats
    """[stage, first, end]"""
    follow_ms: Floats
    """[stage, first, end]"""
    send_ms: Floats
    """[stage] the last is 0."""
    constant_ms: float
    """What every plan adds to the step."""

    @property
    def num_stages(self) -> int:
        """p."""
        return len(self.forward_ms)

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.forward_ms.shape[1]) - 1

    def allowed(self) -> NDArray[np.bool_]:
        """[stage, first, end] whether a stage may hold layers first .. end - 1: the set E."""
        p, cut = self.num_stages, np.arange(self.num_layers + 1)
        stage = np.arange(p)[:, None, None]
        first, end = cut[None, :, None], cut[None, None, :]
        fits = np.isfinite(self.forward_ms) & np.isfinite(self.backward_ms) & (first < end)
        begins = np.where(stage == 0, first == 0, first >= stage)
        closes = np.where(stage == p - 1, end == self.num_layers, end <= self.num_layers - (p - 1 - stage))
        chosen: NDArray[np.bool_] = fits & begins & closes
        return chosen


@dataclass(frozen=True)
class LayerPartitionResult:
    """Cuts, objective and bound [ms]; cuts None where there are none (or none found in time)."""

    status: Status
    cuts: Cuts | None
    objective_ms: float | None
    bound_ms: float | None


@dataclass(frozen=True)
class Variables:
    """The solver's variables."""

    w: dict[tuple[int, int, int], pulp.LpVariable]
    forward: list[pulp.LpVariable]
    backward: list[pulp.LpVariable]
    reduction: list[pulp.LpVariable]
    first: list[pulp.LpVariable]
    last: list[pulp.LpVariable]
    core: list[pulp.LpVariable]
    reach: list[pulp.LpVariable]
    end: pulp.LpVariable
    follow: pulp.LpVariable

    def both(self, first: int, last: int) -> pulp.LpAffineExpression:
        """Sum of F + B over stages first .. last."""
        return pulp.lpSum(self.forward[first : last + 1] + self.backward[first : last + 1])


def stages_of(cuts: Cuts, num_layers: int) -> list[tuple[int, int]]:
    """First layer and end of every stage."""
    return list(zip((0, *cuts), (*cuts, num_layers), strict=True))


def objective_ms(data: LayerPartitionData, cuts: Cuts) -> float:
    """The objective of one split; inf where some stage does not fit."""
    at = tuple(np.array([(s, a, e) for s, (a, e) in enumerate(stages_of(cuts, data.num_layers))]).T)
    if not data.allowed()[at].all():
        return float("inf")
    end = step_bound(
        data.forward_ms[at], data.backward_ms[at], data.send_ms, data.num_microbatches, data.reduction_ms[at]
    )
    return float(end) + float(data.follow_ms[at].max()) + data.constant_ms


def least_bottleneck(data: LayerPartitionData) -> tuple[float, Cuts | None]:
    """Least time of the slowest stage [ms], and cuts that reach it; inf and None where nothing fits."""
    times = np.where(data.allowed(), data.forward_ms + data.backward_ms, np.inf)
    least, from_cut = np.full((data.num_stages + 1, data.num_layers + 1), np.inf), []
    least[0, 0] = 0.0
    for s in range(data.num_stages):
        slowest = np.maximum(least[s][:, None], times[s])
        from_cut.append(slowest.argmin(axis=0))
        least[s + 1] = slowest.min(axis=0)
    if not np.isfinite(least[-1, -1]):
        return float("inf"), None
    cuts, at = [], data.num_layers
    for s in reversed(range(1, data.num_stages)):
        at = int(from_cut[s][at])
        cuts.append(at)
    return float(least[-1, -1]), tuple(reversed(cuts))


def build(data: LayerPartitionData) -> tuple[pulp.LpProblem, Variables]:
    """The whole program but for exclusions and cuts that only strengthen."""
    model = pulp.LpProblem("layer_partition", pulp.LpMinimize)
    var = _variables(data)
    model += var.end + var.follow + data.constant_ms
    add_placed(model, data, var)
    add_contiguous(model, data, var)
    add_stage_time(model, data, var)
    add_follow_up(model, data, var)
    add_window(model, data, var)
    add_partial(model, data, var)
    add_end(model, data, var)
    return model, var


def _variables(data: LayerPartitionData) -> Variables:
    def times(name: str) -> list[pulp.LpVariable]:
        return [pulp.LpVariable(f"{name}_{s}", 0) for s in range(data.num_stages)]

    chosen = [tuple(int(i) for i in at) for at in np.argwhere(data.allowed())]
    return Variables(
        w={(s, a, e): pulp.LpVariable(f"w_{s}_{a}_{e}", cat="Binary") for s, a, e in chosen},
        forward=times("F"),
        backward=times("B"),
        reduction=times("Z"),
        first=times("A"),
        last=times("Y"),
        core=times("C"),
        reach=times("R"),
        end=pulp.LpVariable("T", 0),
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
        for cut in range(1, data.num_layers):
            before, after = ends.get((s, cut), []), begins.get((s + 1, cut), [])
            if before or after:
                model += pulp.lpSum(before) == pulp.lpSum(after), f"contiguous_{s}_{cut}"


def add_stage_time(model: pulp.LpProblem, data: LayerPartitionData, var: Variables) -> None:
    """Times of a stage are those of its layers."""
    for s in range(data.num_stages):
        model += var.forward[s] == _sum(var, s, data.forward_ms), f"stage_time_forward_{s}"
        model += var.backward[s] == _sum(var, s, data.backward_ms), f"stage_time_backward_{s}"
        model += var.reduction[s] == _sum(var, s, data.reduction_ms), f"stage_time_reduction_{s}"


def add_follow_up(model: pulp.LpProblem, data: LayerPartitionData, var: Variables) -> None:
    """After all stages have met, the slowest optimizer and gathering end the step."""
    for s in range(data.num_stages):
        model += var.follow >= _sum(var, s, data.follow_ms), f"follow_up_{s}"


def _round_trip(data: LayerPartitionData, var: Variables, s: int) -> pulp.LpAffineExpression:
    """D[s]: from the start of a forward of s down to the last stage and back."""
    return var.both(s, data.num_stages - 1) + 2 * float(data.send_ms[s:-1].sum())


def add_window(model: pulp.LpProblem, data: LayerPartitionData, var: Variables) -> None:
    """A stage does one thing at a time and holds at most q + 1 micro-batches."""
    p, m = data.num_stages, data.num_microbatches
    for s in range(p):
        k, r = divmod(m - 1, p - s)
        windows = (k + 1) * _round_trip(data, var, s)
        model += var.core[s] >= m * var.both(s, s), f"window_work_{s}"
        model += var.core[s] >= r * var.forward[s] + windows, f"window_forward_{s}"
        model += var.core[s] >= r * var.backward[s] + windows, f"window_backward_{s}"


def add_partial(model: pulp.LpProblem, data: LayerPartitionData, var: Variables) -> None:
    """Warm-up and wind-down of a stage, with windows down to a later stage in between."""
    p, m = data.num_stages, data.num_microbatches
    for s in range(max(p + 1 - m, 0), p):
        q = p - 1 - s
        trip = _round_trip(data, var, s)
        model += var.first[s] >= trip, f"partial_first_wait_{s}"
        model += var.first[s] >= (q + 1) * var.forward[s] + var.backward[s], f"partial_first_work_{s}"
        model += var.last[s] >= trip, f"partial_last_wait_{s}"
        model += var.last[s] >= (q + 1) * var.backward[s] + var.forward[s], f"partial_last_work_{s}"
        for i in range(s, p):
            windows, rest = divmod(m - 2 - q, i - s + 1)
            span = var.both(s, i) + 2 * float(data.send_ms[s:i].sum())
            steady = windows * span + rest * var.both(s, s)
            model += var.core[s] >= var.first[s] + steady + var.last[s], f"partial_{s}_{i}"


def add_end(model: pulp.LpProblem, data: LayerPartitionData, var: Variables) -> None:
    """Every stage delays the stages before it, each of which still reduces its gradients."""
    for s in range(data.num_stages):
        sends = float(data.send_ms[:s].sum())
        around = var.both(0, s - 1) + 2 * sends if s else 0.0
        model += var.reach[s] >= var.core[s] + around, f"end_reach_{s}"
        if s + 1 < data.num_stages:
            model += var.reach[s] >= var.reach[s + 1], f"end_later_{s}"
        drain = pulp.lpSum(var.backward[:s]) + sends
        model += var.end >= var.reach[s] - drain + var.reduction[s], f"end_{s}"


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
    """Cut: a stage so slow that m of its passes alone exceed what is still of use is not taken.

    Row (window) with R, T and O at their least gives T + O >= m t[s] for every stage.
    """
    spare_ms = cutoff_ms - data.constant_ms
    slow = [
        w
        for at, w in var.w.items()
        if data.num_microbatches * float(data.forward_ms[at] + data.backward_ms[at]) > spare_ms
    ]
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
    bottleneck_ms, _ = least_bottleneck(data)
    if not np.isfinite(bottleneck_ms):
        return LayerPartitionResult("infeasible", None, None, None)
    floor_ms = data.num_microbatches * bottleneck_ms + data.constant_ms
    if cutoff_ms is not None and floor_ms >= cutoff_ms:
        return LayerPartitionResult("unknown", None, None, floor_ms)
    model, var = build(data)
    add_exclude(model, data, var, exclude)
    if cutoff_ms is not None and "cutoff" in tighten:
        tighten_cutoff(model, data, var, cutoff_ms)
    solution = solvers.solve(model, options)
    if solution.status == "infeasible" and cutoff_ms is not None and "cutoff" in tighten:
        return LayerPartitionResult("unknown", None, None, cutoff_ms)
    if solution.status in ("infeasible", "unknown"):
        return LayerPartitionResult(solution.status, None, None, solution.bound)
    cuts = extract(data, solution)
    value = objective_ms(data, cuts)
    bound = None if solution.bound is None else min(solution.bound, value)
    return LayerPartitionResult(solution.status, cuts, value, bound)
