"""How one mathematical program is solved: solver, seed, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
"""How a solver, or a formulation, ended."""

SolverName = Literal["highs", "cp_sat", "scip", "cbc"]


@dataclass(frozen=True)
class SolveOptions:
    """Parameters that every formulation hands to `solvers.solve`.

    Parameters
    ----------
    solver
        Which solver runs the program.
    time_limit_s
        Wall-clock limit [s]; None for none.
    gap
        Relative gap at which the solver may stop.
    seed
        Random seed, where the solver has one.
    node_limit
        Nodes of the tree after which HiGHS or SCIP stops; None for none.
    """

    solver: SolverName = "highs"
    time_limit_s: float | None = None
    gap: float = 0.0
    seed: int = 0
    node_limit: int | None = None
