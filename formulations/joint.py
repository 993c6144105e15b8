"""Choose the class of every stage, its layers and its recomputation at once, in the least step time.

The search fixes the class of every stage in an outer choice and solves `stage_selection` for the rest.
This program decides both together. It closes small instances only, and there shows that the
decomposition loses nothing. All layers are of one kind. Times in ms, sizes in GiB.

Sets       s, i, j, e in S                stages 0 .. p-1, in pipeline order
           k, l in K                      classes of nodes
Data       L, m                           layers, micro-batches
           most[k]                        most stages that class k has chips for
           c[k,l]                         send from a stage on k to the next one on l
           q[s] = p - 1 - s               stages behind s
           kw[s], rw[s]                   m - 1 = kw (q + 1) + rw
           J[s,e], rj[s,e]                m - 2 - q = J (e - s + 1) + rj, where m >= q + 2
           f, b, f0, b0, g1, g2, l1, a, a0, v1, v2, w1, w2, M, r, r0, rt, rb, rb0, o, o0, h, h0, ht, N
                                          those of `stage_selection`, here [s,k]: of stage s if it is on k
           const                          what every choice adds (tied embeddings), alike for all orders
           eta                            share of the last backward (first forward) that hides sync
Variables  z[s,k]    binary               s runs on k
           n[s,k]    whole, 0 .. N        layers of s, if it is on k
           u[s,k]    whole, 0 .. N        those recomputed in full
           k1[s,k]   whole, 0 .. N        those whose core attention is recomputed: none or all of s
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
Model      min  T + O + const
           s.t. sum_k z[s,k] = 1                                           (placed)
                sum_s z[s,k] <= most[k]                                    (available)
                sum_l H[s,k,l] = z[s,k],  sum_k H[s,k,l] = z[s+1,l]        (hop)
                sum_{s,k} n[s,k] = L                                       (assign)
                z[s,k] <= n[s,k] <= N[s,k] z[s,k]                          (held)
                x[s,k] <= u[s,k] <= N[s,k] x[s,k],  u[s,k] <= n[s,k]       (recomputed)
                k1[s,k] <= N[s,k] y[s,k],  k1[s,k] <= n[s,k],
                k1[s,k] >= n[s,k] - N[s,k] (1 - y[s,k])                    (selective)
                x[s,k] + y[s,k] <= z[s,k]                                  (one_kind)
                a n - v2 u - v1 k1 + w2 x + w1 y + a0 z <= M z  for s, k   (memory)
                F[s] = sum_k (f n + f0 z)                                  (forward_time)
                B[s] = sum_k (b n + b0 z + g2 u + g1 k1 + l1 y)            (backward_time)
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
Size       6 p |K| integers, 3 p |K| of them binaries; at most p^2 + 12 p |K| + 27 p rows.
Exact      for the rows of `pipeline_rows`: its optimum is the least of `stage_selection` over all orders
           of the classes. H needs no integrality: two whole z fix it.
Leaves out layers of several kinds, virtual stages, stages without a layer, sends that block the sender,
           stages that share a host, whose send depends on more than the two classes, and tied embeddings
           whose exchange depends on the classes of both ends.
Source     rows: proved in `pipeline_rows`; the rest as in `stage_selection`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pulp

from formulations import solvers
from formulations.joint_data import JointData, JointResult, Pair, check_what_is_left_out, order_data
from formulations.options import SolveOptions
from formulations.pipeline_constraints import (
    PipelineTimes,
    add_end,
    add_partial,
    add_through,
    add_window,
    to_linear,
)
from formulations.stage_constraints import (
    Places,
    add_backward_time,
    add_follow_up,
    add_forward_time,
    add_gathering,
    add_memory,
    add_one_kind,
    add_recomputed,
    add_reduction,
    add_selective,
    make_place,
    read_place,
)
from formulations.stage_selection_data import StageChoice, objective_ms


@dataclass(frozen=True)
class Variables:
    """The solver's variables: by place, by hop, by stage, or one."""

    z: dict[Pair, pulp.LpVariable]
    places: Places
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
    add_held(model, var)
    add_recomputed(model, var.places)
    add_selective(model, var.places)
    add_one_kind(model, var.places)
    add_memory(model, var.places)
    add_forward_time(model, var.places, var.times.forward)
    add_backward_time(model, var.places, var.times.backward)
    add_send_time(model, data, var)
    add_reduction(model, var.places, var.times.backward, var.reduction)
    add_gathering(model, var.places, var.times.forward, var.gathering)
    add_follow_up(model, var.places, var.gathering, var.follow)
    add_window(to_linear(model), var.times)
    add_partial(to_linear(model), var.times)
    add_through(to_linear(model), var.times)
    add_end(to_linear(model), var.times)
    return model, var


def _variables(data: JointData) -> Variables:
    stages, classes = range(data.num_stages), range(data.num_classes)
    most = data.most()

    def times(name: str) -> list[pulp.LpVariable]:
        return [pulp.LpVariable(f"{name}_{s}", 0) for s in stages]

    hops = product(range(data.num_stages - 1), classes, classes)
    z = {(s, k): pulp.LpVariable(f"z_{s}_{k}", cat="Binary") for s, k in data.pairs}
    places = [
        [
            make_place(f"{s}_{k}", s, data.of_class[k], least=0, most=most[s, k], taken=z[s, k])
            for k in classes
        ]
        for s in stages
    ]
    reduction = times("Z")
    tails = [pulp.lpSum(at.term("reduce_tail_ms") * at.taken for at in own) for own in places]
    return Variables(
        z=z,
        places=places,
        hop={(s, k, after): pulp.LpVariable(f"H_{s}_{k}_{after}", 0, 1) for s, k, after in hops},
        reduction=reduction,
        gathering=times("G"),
        times=PipelineTimes(
            num_microbatches=data.of_class[0].num_microbatches,
            forward=times("F"),
            backward=times("B"),
            send=times("c"),
            wait=[0.0] * data.num_stages,
            after=[own + tail for own, tail in zip(reduction, tails, strict=True)],
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


def add_placed(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """Every stage runs on one class."""
    for s in range(data.num_stages):
        model += pulp.lpSum(at.taken for at in var.places[s]) == 1, f"placed_{s}"


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
    model += pulp.lpSum(at.n for own in var.places for at in own) == data.of_class[0].num_layers, "assign"


def add_held(model: pulp.LpProblem, var: Variables) -> None:
    """A stage holds layers on its own class only, and at least one."""
    for own in var.places:
        for at in own:
            model += at.n >= at.taken, f"held_least_{at.label}"
            model += at.n <= at.most * at.taken, f"held_most_{at.label}"


def add_send_time(model: pulp.LpProblem, data: JointData, var: Variables) -> None:
    """The send of a stage depends on its class and the next one's; the last stage sends nothing."""
    for s in range(data.num_stages):
        time = [float(data.send_ms[k, after]) * hop for (i, k, after), hop in var.hop.items() if i == s]
        model += var.times.send[s] == pulp.lpSum(time), f"send_time_{s}"


def extract(data: JointData, solution: solvers.Solution) -> tuple[tuple[int, ...], StageChoice]:
    """Read class, layers and recomputation of every stage out of a solution."""
    stages, classes = range(data.num_stages), range(data.num_classes)
    chosen = tuple(next(k for k in classes if solution.integer(f"z_{s}_{k}") == 1) for s in stages)
    read = [read_place(solution, f"{s}_{k}") for s, k in enumerate(chosen)]
    layers, kinds, recomputed = zip(*read, strict=True)
    return chosen, StageChoice(layers, kinds, recomputed)


def solve(data: JointData, options: SolveOptions) -> JointResult:
    """Solve to the gap of `options`.

    Raises
    ------
    SolverError
        Where the data holds layers of several kinds, which this form leaves out.
    """
    check_what_is_left_out(data)
    model, _ = build(data)
    solution = solvers.solve(model, options)
    if solution.status in ("infeasible", "unknown"):
        return JointResult(solution.status, None, None, None, solution.bound)
    classes, choice = extract(data, solution)
    value = objective_ms(order_data(data, classes), choice)
    bound = None if solution.bound is None else min(solution.bound, value)
    return JointResult(solution.status, classes, choice, value, bound)
