"""Choose the class of every stage, its layers and its recomputation at once, in the least step time.

The search fixes the class of every stage in an outer choice and solves `stage_selection` for the rest.
This program decides both together. It closes small instances only, and there shows that the
decomposition loses nothing. All layers are of one kind. Times in ms, sizes in GiB.

Sets       s, i, j, e in S                stages 0 .. p-1, in pipeline order
           k, l in K                      classes of nodes
Data       L, m                           layers, micro-batches
           K[k]                           most stages that class k has chips for
           c[k,l]                         send from a stage on k to the next one on l
           q[s] = p - 1 - s               stages behind s
           kw[s], rw[s]                   m - 1 = kw (q + 1) + rw
           J[s,e], rj[s,e]                m - 2 - q = J (e - s + 1) + rj, where m >= q + 2
           f, b, f0, b0, g1, g2, l1, a, a0, v1, v2, w1, w2, M, r, r0, rt, rb, rb0, o, o0, h,
           h0, ht, N
                                          those of `stage_selection`, here [s,k]: of stage s if it is on k
           eta                            share of the last backward (first forward) that hides sync
Variables  z[s,k]    binary               s runs on k
           n[s,k]    whole, 0 .. N        layers of s, if it is on k
           u[s,k]    whole, 0 .. N        those recomputed in full
           d[s,k]    whole, 0 .. N        those whose core attention is recomputed: none or all of s
           x[s,k]    binary               some layer is recomputed in full
           y[s,k]    binary               core attention is recomputed
           H[s,k,l]  >= 0                 1 if s is on k and s+1 on l
           F[s], B[s], c[s]               forward, backward, send of s
           A[s], Y[s]                     from start of the first forward of s to the end of its first
                                          backward; from start of its last forward to end of its last
           C[s]                           from its first forward to its last backward
           R[s]                           from start to end of the step, as far as stages >= s force it
           U1[s], U2[s]                   longest forward, and backward, of stages 0 .. s
           P1[s], P2[s]                   from the start of the step to the end of the first backward of s;
                                          from the start of its last forward to the end of stage 0
           Z[s], G[s]                     reduction and gathering that stay exposed
           T, O                           end of the last stage with its reduction; what follows
Model      min  T + O
           s.t. sum_k z[s,k] = 1                                           (placed)
                sum_s z[s,k] <= K[k]                                       (available)
                sum_l H[s,k,l] = z[s,k],  sum_k H[s,k,l] = z[s+1,l]        (hop)
                sum_{s,k} n[s,k] = L                                       (assign)
                z[s,k] <= n[s,k] <= N[s,k] z[s,k]                          (held)
                x[s,k] <= u[s,k] <= N[s,k] x[s,k],  u[s,k] <= n[s,k]       (recomputed)
                d[s,k] <= N[s,k] y[s,k],  d[s,k] <= n[s,k],
                d[s,k] >= n[s,k] - N[s,k] (1 - y[s,k])                     (selective)
                x[s,k] + y[s,k] <= z[s,k]                                  (one_kind)
                a n - v2 u - v1 d + w2 x + w1 y + a0 z <= M z   for s, k   (memory)
                F[s] = sum_k (f n + f0 z)                                  (forward_time)
                B[s] = sum_k (b n + b0 z + g2 u + g1 d + l1 y)             (backward_time)
                c[s] = sum_{k,l} c[k,l] H[s,k,l]                           (send_time)
                Z[s] >= sum_k (r n + r0 z) - eta B[s],
                Z[s] >= sum_k (rb n + (rb0 - rt) z),  Z[s] >= 0            (reduction)
                G[s] >= sum_k (h n + h0 z) - eta F[s],  G[s] >= 0          (gathering)
                O >= sum_k (o n + (o0 + ht) z) + G[s]                      (follow_up)
           with t = F + B, D[s] = t[s] + sum_{i>s} t[i] + 2 sum_{i>=s} c[i]
                C[s] >= m t[s],  C[s] >= rw F[s] + (kw+1) D[s],
                C[s] >= rw B[s] + (kw+1) D[s]                              (window)
                A[s] >= D[s],  A[s] >= (q+1) F[s] + B[s],
                Y[s] >= D[s],  Y[s] >= (q+1) B[s] + F[s],
                C[s] >= A[s] + Y[s] + rj t[s]
                        + J (sum_{i=s..e} t[i] + 2 sum_{i=s..e-1} c[i])    (partial)
                U1[s] >= F[s],  U1[s] >= U1[s-1],
                P1[s] >= sum_{i<=s} F[i] + sum_{i<s} c[i] + q U1[s] + B[s],
                P1[s] >= P1[s+1] + c[s] + B[s], and U2, P2 with F and B swapped,
                T >= P1[s] + P2[s] + rj t[s] + J (as in (partial)) + Z[0]
                     + sum_k rt[0,k] z[0,k],
                with m - 1 for q, no B[s] and no J where m <= q + 1        (through)
                R[s] >= R[s+1],  R[s] >= C[s] + sum_{i<s} (t[i] + 2 c[i]),
                T >= R[j] - sum_{i<j} (B[i] + c[i]) + Z[j]
                     + sum_k rt[j,k] z[j,k]                                (end)
Size       6 p |K| integers, 2 p |K| of them binaries of recomputation; p^2 + 13 p |K| + 12 p rows.
Exact      for the rows of `pipeline_rows`: its optimum is the least of `stage_selection` over all orders
           of the classes. H needs no integrality: two whole z fix it.
Leaves out layers of several kinds, virtual stages, sends that block the sender, and stages that share a
           host, whose send depends on more than the two classes.
Source     rows: proved in `pipeline_rows`; the rest as in `stage_selection`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pulp

from formulations import solvers
from formulations.joint_data import JointData, JointResult, Pair, check_one_kind, order_data
from formulations.options import SolveOptions
from formulations.pipeline_constraints import (
    PipelineTimes,
    add_end,
    add_partial,
    add_through,
    add_window,
    to_linear,
)
from formulations.stage_selection_data import StageChoice, objective_ms


@dataclass(frozen=True)
class Variables:
    """The solver's variables: by (stage, class), by stage, or one."""

    z: dict[Pair, pulp.LpVariable]
    n: dict[Pair, pulp.LpVariable]
    u: dict[Pair, pulp.LpVariable]
    d: dict[Pair, pulp.LpVariable]
    x: dict[Pair, pulp.LpVariable]
    y: dict[Pair, pulp.LpVariable]
    hop: dict[tuple[int, int, int], pulp.LpVariable]
    reduction: list[pulp.LpVariable]
    gathering: list[pulp.LpVariable]
    times: PipelineTimes
    follow: pulp.LpVariable


def build(data: JointData) -> tuple[pulp.LpProblem, Variables]:
    """The whole program."""
    model = pulp.LpProblem("joint", pulp.LpMinimize)
    var = _variables(data)
    model += var.times.end + var.follow + data.of_class[0].constant_ms
    add_placed(model, data, var)
    add_available(model, data, var)
    add_hop(model, data, var)
    add_assign(model, data, var)
    add_held(model, data, var)
    add_recomputed(model, data, var)
    add_selective(model, data, var)
    add_one_kind(model, data, var)
    add_memory(model, data, var)
    add_forward_time(model, data, var)
    add_backward_time(model, data, var)
    add_send_time(model, data, var)
    add_reduction(model, data, var)
    add_gathering(model, data, var)
    add_follow_up(model, data, var)
    add_window(to_linear(model), var.times)
    add_partial(to_linear(model), var.times)
    add_through(to_linear(model), var.times)
    add_end(to_linear(model), var.times)
    return model, var


def _variables(data: JointData) -> Variables:
    stages, classes = range(data.num_stages), range(data.num_classes)
    most = data.most()

    def whole(name: str) -> dict[Pair, pulp.LpVariable]:
        return {
            (s, k): pulp.LpVariable(f"{name}_{s}_{k}", 0, most[s, k], cat="Integer") for s, k in data.pairs
        }

    def binary(name: str) -> dict[Pair, pulp.LpVariable]:
        return {(s, k): pulp.LpVariable(f"{name}_{s}_{k}", cat="Binary") for s, k in data.pairs}

    def times(name: str) -> list[pulp.LpVariable]:
        return [pulp.LpVariable(f"{name}_{s}", 0) for s in stages]

    hops = product(range(data.num_stages - 1), classes, classes)
    z, reduction, tail = binary("z"), times("Z"), data.term("reduce_tail_ms")
    return Variables(
        z=z,
        n=whole("n"),
        u=whole("u"),
        d=whole("d"),
        x=binary("x"),
        y=binary("y"),
        hop={(s, k, after): pulp.LpVariable(f"H_{s}_{k}_{after}", 0, 1) for s, k, after in hops},
        reduction=reduction,
        gathering=times("G"),
        times=PipelineTimes(
            num_microbatches=data.of_class[0].num_microbatches,
            forward=times("F"),
            backward=times("B"),
            send=times("c"),
            after=[reduction[s] + _total(data, s, lambda at: tail[at] * z[at]) for s in stages],
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


def _total(
    data: JointData, stage: int, term: Callable[[Pair], pulp.LpAffineExpression]
) -> pulp.LpAffineExpression:
    """Sum over the classes of what a stage has there."""
    return pulp.lpSum(term((stage, k)) for k in range(data.num_classes))


def add_placed(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """Every stage runs on one class."""
    for s in range(data.num_stages):
        model += _total(data, s, lambda at: var.z[at]) == 1, f"placed_{s}"


def add_available(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """No class takes more stages than it has chips for."""
    for k, most in enumerate(data.most_stages):
        model += pulp.lpSum(var.z[s, k] for s in range(data.num_stages)) <= most, f"available_{k}"


def add_hop(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """The hop s -> s + 1 leads from the class of s to that of s + 1."""
    classes = range(data.num_classes)
    for s, k in product(range(data.num_stages - 1), classes):
        model += pulp.lpSum(var.hop[s, k, other] for other in classes) == var.z[s, k], f"hop_from_{s}_{k}"
        model += pulp.lpSum(var.hop[s, other, k] for other in classes) == var.z[s + 1, k], f"hop_to_{s}_{k}"


def add_assign(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """Every layer runs on exactly one stage."""
    model += pulp.lpSum(var.n.values()) == data.of_class[0].num_layers, "assign"


def add_held(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """A stage holds layers on its own class only, and at least one."""
    most = data.most()
    for s, k in data.pairs:
        model += var.n[s, k] >= var.z[s, k], f"held_least_{s}_{k}"
        model += var.n[s, k] <= most[s, k] * var.z[s, k], f"held_most_{s}_{k}"


def add_recomputed(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """Layers are recomputed in full only where the stage holds them and says so."""
    most = data.most()
    for s, k in data.pairs:
        model += var.u[s, k] <= var.n[s, k], f"recomputed_held_{s}_{k}"
        model += var.u[s, k] <= most[s, k] * var.x[s, k], f"recomputed_said_{s}_{k}"
        model += var.u[s, k] >= var.x[s, k], f"recomputed_some_{s}_{k}"


def add_selective(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """Core attention is recomputed in all layers of a stage or in none."""
    most = data.most()
    for s, k in data.pairs:
        model += var.d[s, k] <= var.n[s, k], f"selective_held_{s}_{k}"
        model += var.d[s, k] <= most[s, k] * var.y[s, k], f"selective_said_{s}_{k}"
        all_of_it = var.n[s, k] - most[s, k] + most[s, k] * var.y[s, k]
        model += var.d[s, k] >= all_of_it, f"selective_all_{s}_{k}"


def add_one_kind(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """A stage recomputes core attention or whole layers, not both, and on its own class."""
    for s, k in data.pairs:
        model += var.x[s, k] + var.y[s, k] <= var.z[s, k], f"one_kind_{s}_{k}"


def add_memory(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """What a stage holds fits the chips of its class."""
    layer, base, limit = (data.term(name) for name in ("layer_gib", "base_gib", "limit_gib"))
    full, selective = data.term("full_saves_gib"), data.term("selective_saves_gib")
    full_peak, selective_peak = data.term("full_peak_gib"), data.term("selective_peak_gib")
    for at in data.pairs:
        need = layer[at] * var.n[at] - full[at] * var.u[at] - selective[at] * var.d[at]
        need = need + full_peak[at] * var.x[at] + selective_peak[at] * var.y[at]
        model += need <= (limit[at] - base[at]) * var.z[at], f"memory_{at[0]}_{at[1]}"


def add_forward_time(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """Forward of a stage: its layers, and embedding or head."""
    layer, base = data.term("forward_ms"), data.term("base_forward_ms")
    for s in range(data.num_stages):
        time = _total(data, s, lambda at: layer[at] * var.n[at] + base[at] * var.z[at])
        model += var.times.forward[s] == time, f"forward_time_{s}"


def add_backward_time(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """Backward of a stage: its layers, what they recompute, and embedding or head."""
    layer, base = data.term("backward_ms"), data.term("base_backward_ms")
    full, selective = data.term("full_ms"), data.term("selective_ms")
    more = data.term("selective_more_ms")

    def on_class(at: Pair) -> pulp.LpAffineExpression:
        again = full[at] * var.u[at] + selective[at] * var.d[at] + more[at] * var.y[at]
        return layer[at] * var.n[at] + base[at] * var.z[at] + again

    for s in range(data.num_stages):
        model += var.times.backward[s] == _total(data, s, on_class), f"backward_time_{s}"


def add_send_time(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """The send of a stage depends on its class and the next one's; the last stage sends nothing."""
    for s in range(data.num_stages):
        time = [float(data.send_ms[k, after]) * hop for (i, k, after), hop in var.hop.items() if i == s]
        model += var.times.send[s] == pulp.lpSum(time), f"send_time_{s}"


def add_reduction(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """Gradient reduction shows where the last backward does not hide it, or all of it comes behind that."""
    layer, base = data.term("reduce_ms"), data.term("base_reduce_ms")
    bucket, base_bucket, tail = (data.term(n) for n in ("bucket_ms", "base_bucket_ms", "reduce_tail_ms"))
    hidden = data.of_class[0].hidden_fraction
    for s in range(data.num_stages):
        total = _total(data, s, lambda at: layer[at] * var.n[at] + base[at] * var.z[at])
        model += var.reduction[s] >= total - hidden * var.times.backward[s], f"reduction_{s}"
        in_one = _total(data, s, lambda at: bucket[at] * var.n[at] + (base_bucket[at] - tail[at]) * var.z[at])
        model += var.reduction[s] >= in_one, f"reduction_in_one_{s}"


def add_gathering(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """Parameter gathering shows where the first forward does not hide it."""
    layer, base = data.term("gather_ms"), data.term("base_gather_ms")
    hidden = data.of_class[0].hidden_fraction
    for s in range(data.num_stages):
        total = _total(data, s, lambda at: layer[at] * var.n[at] + base[at] * var.z[at])
        model += var.gathering[s] >= total - hidden * var.times.forward[s], f"gathering_{s}"


def add_follow_up(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """After all stages have met, the slowest optimizer and gathering end the step."""
    layer, base, tail = (data.term(n) for n in ("optimizer_ms", "base_optimizer_ms", "gather_tail_ms"))
    for s in range(data.num_stages):
        own = _total(data, s, lambda at: layer[at] * var.n[at] + (base[at] + tail[at]) * var.z[at])
        model += var.follow >= own + var.gathering[s], f"follow_up_{s}"


def extract(data: JointData, solution: solvers.Solution) -> tuple[tuple[int, ...], StageChoice]:
    """Read class, layers and recomputation of every stage out of a solution."""
    classes, layers, kinds, recomputed = [], [], [], []
    for s in range(data.num_stages):
        k = next(k for k in range(data.num_classes) if solution.integer(f"z_{s}_{k}") == 1)
        full = solution.integer(f"u_{s}_{k}")
        selective = solution.integer(f"y_{s}_{k}") == 1
        classes.append(k)
        layers.append(solution.integer(f"n_{s}_{k}"))
        kinds.append("selective" if selective else "full" if full else "none")
        recomputed.append(full)
    return tuple(classes), StageChoice(tuple(layers), tuple(kinds), tuple(recomputed))


def solve(data: JointData, options: SolveOptions) -> JointResult:
    """Solve to the gap of `options`.

    Raises
    ------
    SolverError
        Where the data holds layers of several kinds, which this form leaves out.
    """
    check_one_kind(data)
    model, _ = build(data)
    solution = solvers.solve(model, options)
    if solution.status in ("infeasible", "unknown"):
        return JointResult(solution.status, None, None, None, solution.bound)
    classes, choice = extract(data, solution)
    value = objective_ms(order_data(data, classes), choice)
    bound = None if solution.bound is None else min(solution.bound, value)
    return JointResult(solution.status, classes, choice, value, bound)
