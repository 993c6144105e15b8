"""What is left of communication that runs beside computation.

Hidden communication slows the computation that hides it by 13% (Galvatron, arXiv 2211.13878, the
published overlap coefficient 1.13).
"""

from __future__ import annotations

from planner.cost.elementwise import Values, minimum

OVERLAP_SLOWDOWN = 0.13
"""Time that computation loses per second of communication hidden behind it."""


def exposed_behind(communication_s: Values, computation_s: Values, share: Values = 1.0) -> Values:
    """What is left of communication behind computation, with what the computation loses by it [s].

    Parameters
    ----------
    share
        Of the communication, what the schedule lets run beside computation at all.
    """
    hidden = minimum(share * communication_s, computation_s)
    return communication_s - hidden + OVERLAP_SLOWDOWN * hidden


def partly_hidden(communication_s: Values, fraction: float) -> Values:
    """What is left of communication of which the stack hides a fraction [s]."""
    return communication_s * (1 - fraction + OVERLAP_SLOWDOWN * fraction)
