"""Prices in the midst of those that rows leave.

Prices of chips are to be found at which no row is worth less than it asks (`planner.search.replicas.aims`).
With x[c] the share of the batch that all chips of class c are worth, and a[j] x what row j is worth, in times
of what it asks, they are the x >= 0 with sum x = 1 and a[j] x >= 1. Any of these may suffice. The next one
looked at is their analytic centre, the x with the greatest

    product over j of (a[j] x - 1) times product over c of x[c],

so that a row that the next look adds leaves no more than about half of them, wherever it passes. A corner of
them, as a linear program gives, leaves nearly all.

References
----------
J.-L. Goffin, J.-P. Vial, "Convex nondifferentiable optimization: a survey focused on the analytic center
cutting plane method", Optimization Methods and Software 17(5), 2002.
"""

from __future__ import annotations

import numpy as np

from planner.cost.prices import Floats

STEPS = 60
"""Newton steps at most."""
NEAR = 1e-9
"""Newton decrement at which a centre is near enough."""
INWARD = 0.5
"""Share of the way to the nearest row that the first point is moved by at most."""
LESS, DESCENT = 0.5, 0.1
"""By how much a step that goes too far is cut, and the least share of what it promises."""


def centre(rows: Floats, inside: Floats, middle: Floats) -> Floats:
    """The analytic centre of the x >= 0 with sum 1 and rows @ x >= 1.

    Parameters
    ----------
    rows
        a, [row, class].
    inside
        An x with rows @ x > 1, where numbers may be 0, [class].
    middle
        Any x without zeros, sum 1, towards which `inside` is moved, [class].
    """
    spare = float((rows @ inside).min(initial=np.inf)) - 1
    if spare <= 0:  # rounding of a solver: any prices bound
        return inside
    part = INWARD * min(spare / (1 + spare), 1.0) if np.isfinite(spare) else INWARD
    x = (1 - part) * inside + part * middle
    for _ in range(STEPS):
        slack = rows @ x - 1
        gradient = -(rows / slack[:, None]).sum(axis=0) - 1 / x
        hessian = (rows / slack[:, None] ** 2).T @ rows + np.diag(1 / x**2)
        # Newton's step among the x of the same sum.
        both = np.linalg.solve(hessian, np.stack([gradient, np.ones_like(x)], axis=1))
        step = both[:, 1] * (both[:, 0].sum() / both[:, 1].sum()) - both[:, 0]
        promised = -float(gradient @ step)
        if not promised >= NEAR:  # or no number, where rounding left no room
            break
        length, now = 1.0, _barrier(rows, x)
        while not _barrier(rows, x + length * step) <= now - DESCENT * length * promised:
            length *= LESS
        x = x + length * step
    return x


def _barrier(rows: Floats, x: Floats) -> float:
    """What the centre makes least, inf beyond a row."""
    slack = rows @ x - 1
    if slack.min(initial=np.inf) <= 0 or x.min() <= 0:
        return np.inf
    return -float(np.log(slack).sum() + np.log(x).sum())
