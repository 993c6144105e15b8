"""How a plan is asked for: limits, gap, and what the user pins."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.data.base import Data

SolverName = Literal["highs", "cp_sat", "scip", "cbc"]


class Options(Data):
    """Limits and wishes of one call of `plan`."""

    time_limit_s: float | None = Field(default=None, gt=0)
    """Wall-clock limit of the search [s]; null for none."""
    gap: float = Field(default=0.01, ge=0, lt=1)
    """Relative gap between plan and bound at which the search may stop."""
    top: int = Field(default=3, ge=1, le=100)
    """How many plans to return, the best included."""
    workers: int = Field(default=1, ge=1)
    """Processes; the answer does not depend on it."""
    solver: SolverName = "highs"
    """Solver of the mixed-integer programs."""
    seed: int = Field(default=0, ge=0)
    """Seed of the solver."""
    memory_reserve_fraction: float = Field(default=0.04, ge=0, lt=1)
    """Share of usable memory that no plan may touch."""
    max_tensor_parallel: int | None = Field(default=None, ge=1)
    """Largest tensor-parallel degree; null for the node size."""
    max_pipeline_parallel: int | None = Field(default=None, ge=1)
    """Most stages; null for the number of layers."""
    max_microbatch_size: int = Field(default=8, ge=1)
    """Largest micro-batch [sequences]."""
