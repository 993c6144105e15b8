"""Rows of interleaved pipelines as constraints of a program, once for every formulation that has them.

The program has a variable for the forward and the backward of every chunk, for what each stage waits before
its work and after it, and for the end of stage 0. Sends are variables or numbers. Proofs stand in
`formulations.interleaved_rows` and `formulations.interleaved_paths`. Times in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from formulations.interleaved_paths import Floats, PathRow
from formulations.interleaved_rows import dealt_factors, hop_factors, wait_rows

Grid = list[list[pulp.LpVariable]]


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

    def terms(self, forward: Floats, backward: Floats) -> list[tuple[pulp.LpVariable, float]]:
        """Factors [stage, chunk] with their variables, without those that are 0."""
        return [
            (grid[s][k], float(factors[s, k]))
            for grid, factors in ((self.forward, forward), (self.backward, backward))
            for s, k in np.argwhere(factors)
        ]

    def sent(self, factors: Floats) -> tuple[list[tuple[pulp.LpVariable, float]], float]:
        """Factors [stage] with the variables among the sends, and the sum of those that are numbers."""
        pairs = list(zip(self.sends, factors.tolist(), strict=True))
        terms = [(send, factor) for send, factor in pairs if isinstance(send, pulp.LpVariable) and factor]
        numbers = [float(send) * factor for send, factor in pairs if not isinstance(send, pulp.LpVariable)]
        return terms, sum(numbers)


def add_wait(model: pulp.LpProblem, passes: Passes, most_terms: int | None = None) -> None:
    """A stage waits for the first micro-batch, does all its work, and the last one goes on without it.

    Rows of more than `most_terms` factors are left out.
    """
    p, v = passes.shape
    m = passes.num_microbatches
    for index, row in enumerate(wait_rows(p, m, v)):
        terms = passes.terms(row.forward, row.backward)
        if most_terms is not None and len(terms) > most_terms:
            continue
        waits = (passes.behind if row.after else passes.before)[row.stage]
        sends, constant = passes.sent(row.sends)
        model += waits >= pulp.LpAffineExpression([*terms, *sends], constant), f"wait_row_{index}"
    for s in range(p):
        work = [(time, float(m)) for time in passes.work(s)]
        waits = [(passes.before[s], 1.0), (passes.behind[s], 1.0)]
        model += passes.end >= pulp.LpAffineExpression([*work, *waits]) + passes.after, f"wait_{s}"


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


def add_path(model: pulp.LpProblem, passes: Passes, row: PathRow, index: int) -> None:
    """One path through the schedule, to the end of stage 0."""
    terms = passes.terms(np.array(row.forward), np.array(row.backward))
    sends, constant = passes.sent(np.array(row.sends, dtype=np.float64))
    path = pulp.LpAffineExpression([*terms, *sends], constant)
    model += passes.end >= path + passes.after, f"path_{index}"
