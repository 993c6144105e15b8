"""Give every stage of a fixed pipeline its layers and its recomputation, in the least step time.

The outer choice has fixed the degrees, the micro-batch and the node class of every stage; all layers
are of one kind. Times in ms, sizes in GiB.

Sets       s in S                         stages 0 .. p-1, in pipeline order
           R                              rows of `pipeline_rows`: linear bounds on the core of a stage
Data       L                              layers of the model
           m                              micro-batches
           f[s], b[s]    layer times      forward, backward of one layer on s, one micro-batch
           f0[s], b0[s]                   the same of the embedding and the head, where s holds them
           g1[s], g2[s]                   more backward of a layer: core attention or all of it recomputed
           c[s]                           send to the next stage
           w[s]                           wait of s between a backward and a forward, part of the rows
           a[s], a0[s]                    memory of a layer with its micro-batches in flight; of all else
           v1[s], v2[s]                   memory that recomputing core attention, or all, of a layer saves
           w2[s], w1[s]                   more passing memory where any layer is recomputed in full; in part
           M[s]                           memory limit
           r[s], r0[s], rt[s]             gradient reduction a layer; of embedding and head; tail
           rb[s], rb0[s]                  the first two where s reduces in one bucket, which only hides behind
                                          the stages before it; else 0
           o[s], o0[s]                    optimizer a layer; of all else, with what follows all stages
           h[s], h0[s], ht[s]             parameter gathering a layer; of embedding and head; tail
           eta                            share of the last backward (first forward) that hides it
           N[s]                           most layers that s may hold, in the optimizer's step too
                                          (`most_layers`)
           l[s]                           layers of another kind that s begins with; the base terms hold how
                                          they differ, l1[s], lv[s] how their core attention does; l1[s] also
                                          holds that of the layers beside the head
           l0[s]                          fewest layers of s: one, none where s may hold embedding or head
                                          alone, or l[s]
           d[s]                           most by which less passes where s holds its l[s] layers alone
           d0[s]                          the same of a stage without a layer; else 0
           K                              what every choice adds (tied embeddings)
           A, A'                          where all stages recompute one number of layers in full (or all they
                                          have): the least and the most of it
Variables  n[s]      whole, l0 .. N       layers
           u[s]      whole, 0 .. N        layers recomputed in full
           k1[s]     whole, 0 .. N        layers whose core attention is recomputed: none or all of s
           e[s]      binary               s has no layer (where d0 > 0)
           x[s]      binary               some layer of s is recomputed in full
           y[s]      binary               core attention of s is recomputed
           all[s]    binary               s recomputes all its layers, which may be fewer than A
           F[s], B[s]                     forward and backward of s
           Z[s], G[s]                     reduction and gathering that stay exposed
           T, O                           end of the last stage with its reduction; what follows
           up[s], down[s] binary          s holds more, or fewer, layers than in an excluded choice n'
Model      min  T + O + K
           s.t. sum_s n[s] = L                                             (assign)
                u[s] <= n[s],  u[s] <= N[s] x[s],  u[s] >= x[s]            (recomputed)
                k1[s] <= n[s],  k1[s] <= N[s] y[s],
                k1[s] >= n[s] - N[s] (1 - y[s])                            (selective)
                x[s] + y[s] <= 1                                           (one_kind)
                with A:  x[s] = 1, or N[s] x[s] >= n[s] where l0[s] = 0,
                u[s] <= A',  u[s] >= A (1 - all[s]),
                u[s] >= n[s] - N[s] (1 - all[s])                           (alike)
                a[s] n[s] - v2[s] u[s] - v1[s] k1[s] - lv[s] y[s]
                     + w2[s] x[s] + w1[s] y[s] + a0[s] <= M[s] + d[s] + d0[s] e[s],
                n[s] <= N[s] (1 - e[s])                                    (memory)
                F[s] = f[s] n[s] + f0[s]                                   (forward_time)
                B[s] = b[s] n[s] + b0[s] + g2[s] u[s] + g1[s] k1[s] + l1[s] y[s],
                or B[s] >= the same where l[s] > 0                         (backward_time)
                Z[s] >= r[s] n[s] + r0[s] - eta B[s],
                Z[s] >= rb[s] n[s] + rb0[s] - rt[s],  Z[s] >= 0            (reduction)
                G[s] >= h[s] n[s] + h0[s] - eta F[s],  G[s] >= 0           (gathering)
                O >= o[s] n[s] + o0[s] + G[s] + ht[s]                      (follow_up)
                T >= sum_{i<s} (F[i] + c[i]) + row(F, B) + sum_{j<=i<s} (B[i] + c[i]) + Z[j] + rt[j]
                     for every j <= s and every row of s, added when violated; j = 0 alone for
                     (through) and (flush)                                 (pipeline)
                n[s] >= (n'[s] + 1) up[s],
                n[s] <= n'[s] - 1 + (N[s] - n'[s] + 1) (1 - down[s]),
                sum_s (up[s] + down[s]) >= 1  for every excluded n'        (exclude)
Cuts       `tighten_recompute`, `tighten_bottleneck`: proofs in `stage_selection_cuts`.
Size       5p integers, 14p + 1 rows, and some ten to thirty rows of (pipeline) added lazily, of O(p^2);
           with A p binaries and 4p rows more.
Exact      for whole layers and a fixed class of every stage; the objective is a lower bound on the
           referee's step time (see `pipeline_rows`). Among plans with one n the least recomputation
           that fits is best for the referee too: a shorter backward ends every piece of work no later,
           and what it no longer hides of the reduction is at most eta < 1 of what it is shorter by.
           A stage that reduces in one bucket begins when its last backward has ended, so that rb n + rb0
           shows in full behind it, of which rt is counted with T.
           With A the stages may still differ between A and A'; the search splits that range.
           Where l[s] > 0, g2 and w2 are the least and v2 the most of both kinds, and d lets more pass for
           every n: a relaxation that the cut `tighten_recompute` and the exact evaluation of every answer
           make good; so is that more may pass without a layer than beside one. B may then be longer than
           these least prices say, as the cut asks for what layers of both kinds cost: no answer gains by it.
Leaves out virtual stages, and layers of several kinds other than leading ones on one stage.
Source     rows: proved in `pipeline_rows`; memory and times: `planner.cost`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pulp

from formulations import solvers
from formulations.options import SolveOptions
from formulations.row_search import RowProgram, RowSearch, first_rows, relaxed
from formulations.stage_constraints import (
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
from formulations.stage_selection_cuts import Variables, tighten_bottleneck, tighten_recompute
from formulations.stage_selection_data import (
    PipelineRow,
    StageChoice,
    StageSelectionData,
    StageSelectionResult,
    least_layers,
    most_layers,
)
from formulations.stage_selection_tables import least_recompute, with_least_recompute
from formulations.written_rows import RowName, row_coefficients

TIGHTENINGS = ("recompute", "bottleneck")
"""The functions `tighten_*`, each of which may be left out."""


def build(data: StageSelectionData) -> tuple[pulp.LpProblem, Variables]:
    """The program without (pipeline) rows, which `solve` adds as they are violated."""
    model = pulp.LpProblem("stage_selection", pulp.LpMinimize)
    var = _variables(data)
    model += var.end + var.follow + data.constant_ms
    add_assign(model, data, var)
    add_recomputed(model, var.places)
    add_selective(model, var.places)
    add_one_kind(model, var.places)
    add_alike(model, data, var)
    add_memory(model, var.places)
    add_forward_time(model, var.places, var.forward)
    add_backward_time(model, var.places, var.backward)
    add_reduction(model, var.places, var.backward, var.reduction)
    add_gathering(model, var.places, var.forward, var.gathering)
    add_follow_up(model, var.places, var.gathering, var.follow)
    return model, var


def _variables(data: StageSelectionData) -> Variables:
    least, most = least_layers(data), most_layers(data)

    def positive(name: str) -> list[pulp.LpVariable]:
        return [pulp.LpVariable(f"{name}_{s}", 0) for s in range(data.num_stages)]

    return Variables(
        places=[
            [make_place(str(s), s, data, least=int(least[s]), most=int(most[s]), taken=1)]
            for s in range(data.num_stages)
        ],
        forward=positive("F"),
        backward=positive("B"),
        reduction=positive("Z"),
        gathering=positive("G"),
        end=pulp.LpVariable("T", 0),
        follow=pulp.LpVariable("O", 0),
    )


def add_assign(model: pulp.LpProblem, data: StageSelectionData, var: Variables) -> None:
    """Every layer runs on exactly one stage."""
    model += pulp.lpSum(var.n) == data.num_layers, "assign"


def add_alike(model: pulp.LpProblem, data: StageSelectionData, var: Variables) -> None:
    """One number for all stages: each with a layer recomputes at least the least of it, or all it has."""
    if data.alike is None:
        return
    least, limit = data.alike
    for (at,) in var.places:
        all_of_them = pulp.LpVariable(f"all_{at.label}", cat="Binary")
        some = at.x == 1 if least_layers(data)[at.stage] else at.n <= at.most * at.x
        model += some, f"alike_some_{at.label}"
        model += at.u <= limit, f"alike_most_{at.label}"
        model += at.u >= least - least * all_of_them, f"alike_least_{at.label}"
        model += at.u >= at.n - at.most * (1 - all_of_them), f"alike_all_{at.label}"


def add_pipeline(
    model: pulp.LpProblem, data: StageSelectionData, var: Variables, name: RowName, end_stage: int
) -> None:
    """One row of `pipeline_rows` for stage `name.stage`, followed down to the end of `end_stage`."""
    p, s, j = data.num_stages, name.stage, end_stage
    row = row_coefficients(name, p, data.num_microbatches, data.send_ms, data.wait_ms)
    forward, backward = row.forward.copy(), row.backward.copy()
    forward[:s] += 1
    backward[j:s] += 1
    constant = row.constant + float(data.send_ms[:s].sum() + data.send_ms[j:s].sum())
    terms = pulp.LpAffineExpression(
        [(var.forward[i], float(forward[i])) for i in range(p) if forward[i]]
        + [(var.backward[i], float(backward[i])) for i in range(p) if backward[i]]
    )
    label = f"{name.family}_{s}_{name.last}_{int(name.wait_first)}{int(name.wait_last)}_{j}"
    if name.family in ("through", "flush"):
        label = "_".join(str(part) for part in (label, *name.turns, *name.pacers))
    tail = float(data.reduce_tail_ms[j]) + constant
    model += var.end >= terms + var.reduction[j] + tail, f"pipeline_{label}"


def add_exclude(
    model: pulp.LpProblem, data: StageSelectionData, var: Variables, layers: Sequence[int], index: int
) -> None:
    """Some stage holds more or fewer layers than in a solution already judged."""
    moved = []
    for (at,), count in zip(var.places, layers, strict=True):
        up = pulp.LpVariable(f"up_{index}_{at.label}", cat="Binary")
        down = pulp.LpVariable(f"down_{index}_{at.label}", cat="Binary")
        model += at.n >= count + 1 - (count + 1) * (1 - up), f"exclude_{index}_up_{at.label}"
        room = at.most - count + 1
        model += at.n <= count - 1 + room * (1 - down), f"exclude_{index}_down_{at.label}"
        moved += [up, down]
    model += pulp.lpSum(moved) >= 1, f"exclude_{index}"


def extract(data: StageSelectionData, solution: solvers.Solution) -> StageChoice:
    """Read layers and recomputation of every stage out of a solution.

    With leading layers the program may recompute less than these layers need: the table knows.
    """
    stages = [read_place(solution, str(s)) for s in range(data.num_stages)]
    layers, kinds, recomputed = zip(*stages, strict=True)
    exact = with_least_recompute(least_recompute(data), layers) if data.lead.any() else None
    return exact or StageChoice(layers, kinds, recomputed)


def solve(
    data: StageSelectionData,
    options: SolveOptions,
    *,
    exclude: Sequence[Sequence[int]] = (),
    rows: Sequence[PipelineRow] = (),
    cutoff_ms: float | None = None,
    tighten: Collection[str] = TIGHTENINGS,
) -> StageSelectionResult:
    """Solve to the gap of `options`, adding violated (pipeline) rows until none is left.

    Rows are first added to the linear relaxation, which is cheap, then to the integer program.

    Parameters
    ----------
    exclude
        Layer counts already judged.
    rows
        Rows found before for this choice or one like it, to start from.
    cutoff_ms
        Stop as soon as the bound reaches this: the choice cannot win any more.
    tighten
        Which of the cuts that only strengthen to add.
    """
    most = most_layers(data)
    if (most < least_layers(data)).any() or int(most.sum()) < data.num_layers:
        return StageSelectionResult("infeasible", None, None, None, ())
    model, var = build(data)
    if "recompute" in tighten:
        tighten_recompute(model, data, var)
    if "bottleneck" in tighten:
        tighten_bottleneck(model, data, var)
    for index, layers in enumerate(exclude):
        add_exclude(model, data, var, layers, index)
    program = RowProgram(
        var.forward,
        var.backward,
        var.reduction,
        add_row=lambda name, end_stage: add_pipeline(model, data, var, name, end_stage),
        extract=lambda solution: extract(data, solution),
    )
    search = RowSearch(data, model, program, options, cutoff_ms)
    search.add([*rows, *first_rows(data)])
    with relaxed(model):
        relaxation = search.run_relaxed()
    if relaxation is not None:
        return relaxation
    return search.run()
