"""What the way back from a launch script finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.data.plan import Plan
from planner.data.problem import Problem


@dataclass(frozen=True)
class ReadBack:
    """What a script turned out to be."""

    problem: Problem
    """Model, batch, precision and software of the script, on the cluster."""
    plan: Plan
    """Its decisions."""
    unknown_flags: tuple[str, ...] = ()
    """Flags that we know nothing of, so that the prediction leaves them out."""
    notes: tuple[str, ...] = field(default=())
    """What the script does not say, and what was taken in its place."""
    warnings: tuple[str, ...] = field(default=())
    """Traps that it walks into, and that no number of the prediction shows."""
    refusals: tuple[str, ...] = field(default=())
    """Flags that contradict one another, so that Megatron-LM stops at them."""
    other_network: tuple[str, ...] = field(default=())
    """What makes it another network than any model file describes, at the same cost."""
