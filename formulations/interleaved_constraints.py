"""Rows of interleaved pipelines as constraints of a program, once for every formulation that has them.

The program has a variable for the forward and the backward of every chunk, for what each stage waits before
its work and after it, and for the end of stage 0; with many stages also for the sums of forwards and of
backwards over the stages up to each, with which the rows (wait) have far fewer factors. Sends are variables
or numbers. Proofs stand in `formulations.interleaved_rows` and `formulations.interleaved_paths`. Times in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from formulations.interleaved_detours import detour_rows
from formulations.interleaved_paths import Floats, PathRow
from formulations.interleaved_rows import WaitRow, dealt_factors, hop_factors, wait_rows

Grid = list[list[pulp.LpVariable]]
Terms = list[tuple[pulp.LpVariable, float]]

SUMMED_STAGES = 8
"""Stages from which on rows (wait) are written with sums over the stages up to each. A guess."""


@dataclass(frozen=True)
class Passes:
    """The pieces of work of an interleaved pipeline, as the program has them."""

    forward: Grid
    """[stage][chunk]"""
    backward: Grid
    """[stage][chunk]"""
    sends: Sequence[pulp.LpVariable | float]
    """[stage] what delays the next stage; the last leads from the last stage to the first."""
    before: list[pulp.LpVariable]
    """[stage] what it waits before its work."""
    behind: list[pulp.LpVariable]
    """[stage] what follows its work on stage 0."""
    end: pulp.LpVariable
    """End of stage 0, with `after`."""
    after: pulp.LpAffineExpression
    """What stage 0 still does when its last backward has ended."""
    num_microbatches: int

    @property
    def shape(self) -> tuple[int, int]:
        """p, v."""
        return len(self.forward), len(self.forward[0])

    def work(self, s: int) -> list[pulp.LpVariable]:
        """Forward and backward of all chunks of a stage."""
        return [*self.forward[s], *self.backward[s]]

    def terms(self, forward: Floats, backward: Floats) -> Terms:
        """Factors [stage, chunk] with their variables, without those that are 0."""
        return [
            (grid[s][k], float(factors[s, k]))
            for grid, factors in ((self.forward, forward), (self.backward, backward))
            for s, k in np.argwhere(factors)
        ]

    def sent(self, factors: Floats) -> tuple[Terms, float]:
        """Factors [stage] with the variables among the sends, and the sum of those that are numbers."""
        pairs = list(zip(self.sends, factors.tolist(), strict=True))
        terms = [(send, factor) for send, factor in pairs if isinstance(send, pulp.LpVariable) and factor]
        numbers = [float(send) * factor for send, factor in pairs if not isinstance(send, pulp.LpVariable)]
        return terms, sum(numbers)


def add_wait(model: pulp.LpProblem, passes: Passes, most_terms: int | None = None) -> None:
    """A stage waits for the first micro-batch, does all its work, and the last one goes on without it.

    Rows of more than `most_terms` factors are left out. With many stages rows are written with sums, which
    say the same in a fraction of the factors: programs of 20 stages are solved in two thirds of the time.
    """
    p, v = passes.shape
    m = passes.num_microbatches
    sums = _Sums(model, passes) if p >= SUMMED_STAGES else None
    for index, row in enumerate(wait_rows(p, m, v)):
        terms = passes.terms(row.forward, row.backward)
        if most_terms is not None and len(terms) > most_terms:
            continue
        if sums is not None:
            terms = sums.terms(row)
        waits = (passes.behind if row.after else passes.before)[row.stage]
        sends, constant = passes.sent(row.sends)
        model += waits >= pulp.LpAffineExpression([*terms, *sends], constant), f"wait_row_{index}"
    for s in range(p):
        work = [(time, float(m)) for time in passes.work(s)]
        waits = [(passes.before[s], 1.0), (passes.behind[s], 1.0)]
        model += passes.end >= pulp.LpAffineExpression([*work, *waits]) + passes.after, f"wait_{s}"


def add_own(model: pulp.LpProblem, passes: Passes, reductions: Sequence[pulp.LpVariable]) -> None:
    """A stage waits for the first micro-batch, does all its work, and reduces its own gradients."""
    for s, reduction in enumerate(reductions):
        work = [(time, float(passes.num_microbatches)) for time in passes.work(s)]
        own = pulp.LpAffineExpression([*work, (passes.before[s], 1.0), (reduction, 1.0)])
        model += passes.end >= own, f"own_{s}"


class _Sums:
    """Sums of forwards and backwards over the stages up to each, as variables of their own."""

    def __init__(self, model: pulp.LpProblem, passes: Passes) -> None:
        self.passes = passes
        self.forward = self._summed(model, "forward", passes.forward)
        self.backward = self._summed(model, "backward", passes.backward)

    @staticmethod
    def _summed(model: pulp.LpProblem, name: str, times: Grid) -> Grid:
        """[stage][chunk] the sum over that stage and those before."""
        sums = [times[0]]
        for s, of_stage in enumerate(times[1:], 1):
            sums.append([pulp.LpVariable(f"sum_{name}_{s}_{k}", 0) for k in range(len(of_stage))])
            for k, (total, time) in enumerate(zip(sums[-1], of_stage, strict=True)):
                model += total == sums[-2][k] + time, f"wait_{name}_{s}_{k}"
        return sums

    def terms(self, row: WaitRow) -> Terms:
        """Factors of a row: its own stage's apart, a sum wherever those of the others change."""
        own, last = row.stage, len(self.forward) - 1
        terms: dict[pulp.LpVariable, float] = {}
        for grid, sums, factors in (
            (self.passes.forward, self.forward, row.forward),
            (self.passes.backward, self.backward, row.backward),
        ):
            others = factors.copy()
            others[own] = others[own - 1] if own > 0 else others[min(1, last)]
            apart = factors[own] - others[own]
            changes = others - np.append(others[1:], np.zeros((1, others.shape[1])), axis=0)
            found = [(grid[own][k], float(apart[k])) for k in np.flatnonzero(apart)]
            found += [(sums[s][k], float(changes[s, k])) for s, k in np.argwhere(changes)]
            for variable, factor in found:  # the first sum is its stage's own time
                terms[variable] = terms.get(variable, 0.0) + factor
        return list(terms.items())


def add_dealt(model: pulp.LpProblem, passes: Passes) -> None:
    """The mean of the rows (wait), for where some of them are left out."""
    p, v = passes.shape
    of_stage, of_send = dealt_factors(p, passes.num_microbatches, v)
    terms = [(time, float(of_stage[s])) for s in range(p) for time in passes.work(s)]
    sends, constant = passes.sent(of_send)
    model += passes.end >= pulp.LpAffineExpression([*terms, *sends], constant) + passes.after, "dealt"


def add_hop(model: pulp.LpProblem, passes: Passes) -> None:
    """Two neighbours go in rounds of three passes and two sends, where links between them are slow."""
    p, v = passes.shape
    row = hop_factors(p, passes.num_microbatches, v)
    if row is None:
        return
    for s in range(p - 1):
        factors = np.zeros(p)
        factors[s] = row.send
        sends, constant = passes.sent(factors)
        both = [(time, row.both) for i in (s, s + 1) for time in passes.work(i)]
        for base in (s, s + 1):
            own = [(time, row.own) for time in passes.work(base)]
            waits = [(passes.before[base], 1.0), (passes.behind[base], 1.0)]
            rounds = pulp.LpAffineExpression([*both, *sends], constant)
            model += (
                passes.end >= rounds + pulp.LpAffineExpression([*own, *waits]) + passes.after,
                (f"hop_{s}_{base - s}"),
            )


def add_detour(model: pulp.LpProblem, passes: Passes) -> None:
    """A path that stays on a stage goes to a neighbour and back wherever that takes longer."""
    p, v = passes.shape
    for index, row in enumerate(detour_rows(p, passes.num_microbatches, v)):
        more = []
        for block, (count, found) in enumerate(row.blocks):
            longer = pulp.LpVariable(f"detour_{index}_{block}", 0)
            more.append((longer, float(count)))
            for i, one in enumerate(found):
                terms = passes.terms(one.forward, one.backward)
                sends, constant = passes.sent(one.sends)
                path = pulp.LpAffineExpression([*terms, *sends], constant)
                model += longer >= path, f"detour_{index}_{block}_{i}"
        work = [(time, float(passes.num_microbatches)) for time in passes.work(row.stage)]
        waits = [(passes.before[row.stage], 1.0), (passes.behind[row.stage], 1.0)]
        alone = pulp.LpAffineExpression([*work, *waits, *more])
        model += passes.end >= alone + passes.after, f"detour_{index}"


def add_path(model: pulp.LpProblem, passes: Passes, row: PathRow, index: int) -> None:
    """One path through the schedule, to the end of stage 0."""
    terms = passes.terms(np.array(row.forward), np.array(row.backward))
    sends, constant = passes.sent(np.array(row.sends, dtype=np.float64))
    path = pulp.LpAffineExpression([*terms, *sends], constant)
    model += passes.end >= path + passes.after, f"path_{index}"
