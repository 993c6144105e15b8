"""Choose class and whole layers of every interleaved stage, chunks in fractions: a bound on all orders.

The outer choice has fixed the degrees, the micro-batch, the numbers of stages and of virtual stages. Only
plans whose step lies below a cutoff count: `interleaved_rows` (wait, k = 0) then says which numbers of
layers each stage may hold. Times in ms.

Sets       s in S                         stages 0 .. p-1, in pipeline order
           k in K                         chunks 0 .. v-1 of every stage
           c in C[s]                      node classes that s may have
           n in N[s,c]                    numbers of layers with which s, on c, may keep below the cutoff
           W[s]                           rows (wait) of either side, of `interleaved_rows`
Data       L, m                           layers of the model; micro-batches, a multiple of p
           k1[c], k2[c]                   fewest and most stages of class c
           f[c], b[c]                     forward, backward of one layer on c, one micro-batch
           f0[s,c,k], b0[s,c,k]           the same of embedding and head
           l0[s,k]                        fewest layers of a chunk: one, the leading ones, or none where it
                                          has embedding or head
           g[s,c,n]                       backward that the least recomputation of n layers adds
           d, a0                          weights, gradients and optimizer state of a layer; its activations
           e[s,h,k]                       micro-batches in flight on chunk k at moment h
           M[s,c,h]                       memory that is left beside the layers
           ru[s,c,h]                      most memory at moment h that a unit of recomputation time saves
           o[s,c,n]                       what n layers add after the pipeline
           h[c,c']                        least send from a stage on c to one on c'
           r[s,c,n]                       reduction of n layers, less what hides it with nothing recomputed
           rt[s,c], eta                   its tail; share of the last backward that hides it
           g1[s,c,n]                      the most that recomputation adds to the backward
           o0                             what the slowest stage adds after the pipeline, at least
           const                          least that an order adds (tied embeddings, by its ends)
Variables  z[s,c]    binary               s is of class c
           a[s,c]    whole                its layers there
           n[s,c,k]  >= 0                 those of chunk k, in fractions
           y[s,c,c'] >= 0                 s is of class c and the next one of class c'
           G[s,c], E[s,k]                 backward of s that recomputation adds on c, and its share of chunk k
           P[s,c]                         what follows s on c
           F[s,k], B[s,k], S[s]           forward and backward of a chunk, send behind a stage
           I[s], J[s]                     what s waits before its work, and what follows it on stage 0
           Q[s]                           reduction of s that is left when its backwards have ended
           T, O                           end of all stages with their reductions; what follows
           From 8 stages on also the sums of F and of B over the stages up to each, by chunk, in which (wait)
           is written: the same rows with fewer factors (`interleaved_constraints`).
Model      min  T + O + const
           s.t. sum_c z[s,c] = 1                                                (class)
                k1[c] <= sum_s z[s,c] <= k2[c]                                  (count)
                sum_sc a[s,c] = L                                               (assign)
                min N[s,c] z[s,c] <= a[s,c] <= max N[s,c] z[s,c]                (capacity)
                sum_k n[s,c,k] = a[s,c],  n[s,c,k] >= l0[s,k] z[s,c]            (chunk)
                sum_c' y[s,c,c'] = z[s,c],  sum_c y[s,c,c'] = z[s+1,c']         (neighbour)
                sum_s,c'!=c y[s,c,c'] >= 1,  sum_s,c'!=c y[s,c',c] >= 1 where 0 < k1[c]
                     and k2[c] < p;  sum_s,c!=c' y[s,c,c'] >= 2 where all k2[c] < p  (change)
                G[s,c] >= line(a[s,c], z[s,c]) of the lower hull of g on N[s,c],
                sum_k E[s,k] = sum_c G[s,c]                                     (recompute)
                sum_k (d + e[s,h,k] a0) n[s,c,k] <= M[s,c,h] z[s,c] + ru[s,c,h] G[s,c]
                     for moments h                                              (memory)
                P[s,c] >= line(a[s,c], z[s,c]) of the lower hull of o on N[s,c],
                O >= sum_c P[s,c],  O >= o0                                     (follow_up)
                S[s] = sum_cc' h[c,c'] y[s,c,c']                                (send)
                F[s,k] = sum_c (f[c] n[s,c,k] + f0[s,c,k] z[s,c])               (forward_time)
                B[s,k] = sum_c (b[c] n[s,c,k] + b0[s,c,k] z[s,c]) + E[s,k]      (backward_time)
                Q[s] >= sum_c (line(a[s,c], z[s,c]) of the lower hull of r on N[s,c] + rt[s,c] z[s,c])
                     - eta sum_k E[s,k],  Q[s] >= sum_c rt[s,c] z[s,c],
                sum_c G[s,c] <= sum_c line(a[s,c], z[s,c]) over g1 on N[s,c]    (reduction)
                I[s] >= row(F, B, S) and J[s] >= row(F, B, S) for the rows of W[s],
                T >= m sum_k (F[s,k] + B[s,k]) + I[s] + J[s] + Q[0]             (wait)
                T >= m sum_k (F[s,k] + B[s,k]) + I[s] + Q[s]                    (own)
                T + O + const <= cutoff                                            (cutoff)
                T >= row (dealt) of `interleaved_rows` + Q[0]                      (dealt)
                T >= row (hop) of `interleaved_rows` + Q[0]
                     for s < p-1 and both of its stages, where sends may be slow   (hop)
                T >= row (detour) of `interleaved_detours` + Q[0]
                     where chunks are whole and stages few, D[j] >= 0 a variable a block
                                                                                (detour)
                T >= row(F, B, S) + Q[0] for rows (path) to the end of
                     stage 0 of `interleaved_paths`, added when violated           (path)
           Where sends block, S[s] is in F[s,k] and S[s-1] in B[s,k] instead, but for the two ends.
Size       2 p C integers for C classes, p C (v + 2) + p C^2 more variables, p (2 C v + 4 v) rows.
Exact      a relaxation: chunks may be in fractions, their memory is what no dealing undercuts, rows
           are those that bound the end of stage 0. Every plan below the cutoff
           satisfies all rows with its own values, so that the objective, or the cutoff, bounds the step of
           every plan.
Source     rows: proved in `interleaved_rows` and `interleaved_paths`; tables: `virtual_selection_tables`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pulp

from formulations import solvers
from formulations.class_constraints import (
    Variables,
    add_assign,
    add_capacity,
    add_change,
    add_chunk,
    add_class,
    add_count,
    add_follow_up,
    add_memory,
    add_neighbour,
    add_recompute,
    add_reduction,
)
from formulations.class_path_search import ClassPathSearch
from formulations.interleaved_constraints import (
    Passes,
    add_dealt,
    add_detour,
    add_hop,
    add_own,
    add_path,
    add_wait,
)
from formulations.interleaved_paths import PathRow
from formulations.interleaved_rows import wait_rows
from formulations.options import SolveOptions
from formulations.row_search import relaxed
from formulations.virtual_classes_data import Key, VirtualClassesData, VirtualClassesResult

MAX_ROUNDS = 12
"""Rounds of rows (path) after which the bound at hand is taken. A guess."""
MAX_TERMS = 20_000
"""Terms of the rows (wait) beyond which only the first chunk and the first backward are waited for."""

MOST_STAGES_WITH_DETOURS = 8
"""Stages up to which the rows (detour) are written. A guess: with 16 the program took three times as long."""


def build(data: VirtualClassesData, *, whole_chunks: bool = False) -> tuple[pulp.LpProblem, Variables]:
    """The whole program."""
    model = pulp.LpProblem("virtual_classes", pulp.LpMinimize)
    var = _variables(data, "Integer" if whole_chunks else "Continuous")
    model += var.end + var.follow + data.sample.stage.constant_ms
    add_cutoff(model, data, var)
    add_class(model, data, var)
    add_count(model, data, var)
    add_assign(model, data, var)
    add_capacity(model, data, var)
    add_chunk(model, data, var)
    add_neighbour(model, data, var)
    add_recompute(model, data, var)
    add_memory(model, data, var)
    add_follow_up(model, data, var)
    add_change(model, data, var)
    add_send(model, data, var)
    add_forward_time(model, data, var)
    add_backward_time(model, data, var)
    add_reduction(model, data, var)
    passes = passes_of(data, var)
    add_wait(model, passes, _most_terms(data))
    add_own(model, passes, var.reduction)
    add_dealt(model, passes)
    if _sends_are_slow(data):
        add_hop(model, passes)
    if whole_chunks and data.sample.num_stages <= MOST_STAGES_WITH_DETOURS:
        add_detour(model, passes)
    return model, var


def _variables(data: VirtualClassesData, of_chunks: str) -> Variables:
    stages, chunks = range(data.sample.num_stages), range(data.sample.virtual_stages)
    keys = data.keys

    def by_chunk(name: str) -> list[list[pulp.LpVariable]]:
        return [[pulp.LpVariable(f"{name}_{s}_{k}", 0) for k in chunks] for s in stages]

    def by_stage(name: str) -> list[pulp.LpVariable]:
        return [pulp.LpVariable(f"{name}_{s}", 0) for s in stages]

    def by_key(name: str, cat: str = "Continuous") -> dict[Key, pulp.LpVariable]:
        return {(s, c): pulp.LpVariable(f"{name}_{s}_{c}", 0, cat=cat) for s, c in keys}

    return Variables(
        z={(s, c): pulp.LpVariable(f"z_{s}_{c}", 0, 1, cat="Integer") for s, c in keys},
        a=by_key("a", "Integer"),
        n={(s, c): [pulp.LpVariable(f"n_{s}_{c}_{k}", 0, cat=of_chunks) for k in chunks] for s, c in keys},
        y={
            (s, c, to): pulp.LpVariable(f"y_{s}_{c}_{to}", 0)
            for s, c in keys
            for other, to in keys
            if other == (s + 1) % len(stages)
        },
        more=by_key("G"),
        more_of_chunk=by_chunk("E"),
        behind=by_key("P"),
        forward=by_chunk("F"),
        backward=by_chunk("B"),
        send=by_stage("S"),
        reduction=by_stage("Q"),
        wait_before=by_stage("I"),
        wait_after=by_stage("J"),
        end=pulp.LpVariable("T", 0),
        follow=pulp.LpVariable("O", data.least_follow_ms),
    )


def add_cutoff(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """Slower plans do not count."""
    limit = float(data.cutoff_ms - data.sample.stage.constant_ms)
    model += var.end + var.follow <= limit, "cutoff"


def add_send(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """A send takes what the two classes make of it."""
    for s, send in enumerate(var.send):
        terms = [(y, float(data.hop_ms[c, to])) for (at, c, to), y in var.y.items() if at == s]
        model += send == pulp.LpAffineExpression(terms), f"send_{s}"


def add_forward_time(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """Forward of a chunk: its layers, embedding or head, and a send that blocks."""
    last = data.sample.num_stages - 1, data.sample.virtual_stages - 1
    for s, k in np.ndindex(last[0] + 1, last[1] + 1):
        time = _work(data, var, s, k, 0)
        if data.sends_block and (s, k) != last:
            time += var.send[s]
        model += var.forward[s][k] == time, f"forward_time_{s}_{k}"


def add_backward_time(model: pulp.LpProblem, data: VirtualClassesData, var: Variables) -> None:
    """Backward of a chunk: its layers, what they recompute, embedding or head, and a send that blocks."""
    for s, k in np.ndindex(data.sample.num_stages, data.sample.virtual_stages):
        time = _work(data, var, s, k, 1) + var.more_of_chunk[s][k]
        if data.sends_block and (s, k) != (0, 0):
            time += var.send[s - 1]
        model += var.backward[s][k] == time, f"backward_time_{s}_{k}"


def passes_of(data: VirtualClassesData, var: Variables) -> Passes:
    """What the rows of `interleaved_rows` speak of; its reduction follows stage 0."""
    return Passes(
        forward=var.forward,
        backward=var.backward,
        sends=[0.0] * len(var.send) if data.sends_block else var.send,
        before=var.wait_before,
        behind=var.wait_after,
        end=var.end,
        after=pulp.LpAffineExpression(var.reduction[0]),
        num_microbatches=data.sample.stage.num_microbatches,
    )


def _most_terms(data: VirtualClassesData) -> int | None:
    """Factors of a row (wait) beyond which it is left out, where all together would be too many."""
    p, v = data.sample.num_stages, data.sample.virtual_stages
    rows = len(wait_rows(p, data.sample.stage.num_microbatches, v))
    return 2 * p if rows * p * v > MAX_TERMS else None


def _sends_are_slow(data: VirtualClassesData) -> bool:
    """Whether (hop) may say more than (wait): not while two sends take less than any chunk."""
    used = list(data.classes)
    chunks = [(one.stage.forward_ms + one.stage.backward_ms).min() for one in data.classes.values()]
    return not data.sends_block and 2 * float(data.hop_ms[np.ix_(used, used)].max()) > float(min(chunks))


def _work(data: VirtualClassesData, var: Variables, s: int, k: int, which: int) -> pulp.LpAffineExpression:
    """Forward or backward of the layers of a chunk and of what lies beside them."""
    terms = []
    for (stage, c), z in var.z.items():
        if stage == s:
            one = data.classes[c]
            layer = (one.stage.forward_ms, one.stage.backward_ms)[which]
            terms += [(var.n[s, c][k], float(layer[s])), (z, float(one.base_ms()[which][s, k]))]
    return pulp.LpAffineExpression(terms)


def extract(data: VirtualClassesData, solution: solvers.Solution) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Class and layers of every stage."""
    keys = data.keys
    order = [
        max((c for s, c in keys if s == stage), key=lambda c: solution.values[f"z_{stage}_{c}"])
        for stage in range(data.sample.num_stages)
    ]
    layers = [solution.values[f"a_{s}_{c}"] for s, c in enumerate(order)]
    return tuple(order), tuple(round(n) for n in layers)


def solve(
    data: VirtualClassesData,
    options: SolveOptions,
    *,
    integral: bool,
    whole_chunks: bool = False,
    rows: Sequence[PathRow] = (),
    rounds: int = MAX_ROUNDS,
) -> VirtualClassesResult:
    """Bound all orders that may keep below the cutoff.

    Parameters
    ----------
    integral
        Whether to ask for whole classes and layers, beyond the relaxation.
    whole_chunks
        Whether to ask for whole layers of every chunk as well: as chunks of plans have.
    rows
        Rows (path) found before for as many stages, micro-batches and chunks, to start from.
    rounds
        Rounds of rows (path) that are looked for: by relaxations, and where chunks are whole.
    """
    if not data.fits.any(axis=(0, 2)).all():
        return VirtualClassesResult(np.inf, None, ())
    model, var = build(data, whole_chunks=whole_chunks)
    passes = passes_of(data, var)
    search = ClassPathSearch(model, passes, lambda row, index: add_path(model, passes, row, index), options)
    search.add(rows)
    if integral:
        solution = search.run_whole(rounds if whole_chunks else 0)
    else:
        with relaxed(model):
            solution = search.run(rounds)
    found = tuple(search.near)
    if solution.status == "infeasible":
        return VirtualClassesResult(np.inf, None, (), search.work, found)
    bound = -np.inf if solution.bound is None else solution.bound
    if search.bound is not None:
        bound = max(bound, search.bound)
    if solution.status == "unknown":
        return VirtualClassesResult(bound, None, (), search.work, found)
    return VirtualClassesResult(bound, *extract(data, solution), search.work, found)
