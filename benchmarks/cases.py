"""What the benchmarks plan: shipped problems, with the limits that each is given."""

from __future__ import annotations

from dataclasses import dataclass

from planner.data.load import names


@dataclass(frozen=True)
class Case:
    """One shipped problem and how long it may take."""

    problem: str
    gap: float = 0.01
    time_limit_s: float = 120.0


QUICK = ("llama3-8b-h100-8", "llama3-8b-h100-a100-16", "llama3-70b-h100-a100-128")
"""A node, a mixed pair of nodes, and the problem of the README."""

PREDICTED = "llama3-70b-h100-a100-128"
"""The problem whose best plan is predicted again and again for the speed of one prediction."""


def cases(*, quick: bool) -> tuple[Case, ...]:
    """The quick cases, or every shipped problem."""
    return tuple(Case(name) for name in (QUICK if quick else names("problems")))
