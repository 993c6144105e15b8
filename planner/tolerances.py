"""Every tolerance of the product, each with what it guards."""

from __future__ import annotations

INTEGRALITY_TOL = 1e-6
"""How far from a whole number a solver may leave an integer variable."""

BOUND_TOL = 1e-9
"""Relative excess of a bound over the referee's value that rounding may cause; more is our error."""

MEMORY_TOL_BYTES = 1024.0
"""Excess over a memory limit that is rounding, not a violation [bytes]."""

COUNT_TOL = 1e-9
"""What a division may take off or add to a number of layers, stages, micro-batches or ticks then rounded."""

NO_ZERO = 1e-12
"""Stands for 0 in a divisor whose quotient is not used."""

NEXT_TO_NOTHING = 1e-9
"""Stands for 0 in a divisor whose quotient is then too large to decide anything."""

GAP_TOL = 1e-9
"""A relative gap below this counts as proven optimal, a relative gain below it as none."""

INTERVAL_TOL = 1e-9
"""Relative width of an interval of step times whose ends are no longer told apart."""

ROUNDING_TOL = 1e-12
"""Relative difference that the same sum in another order, or a quotient times its divisor, may show."""
