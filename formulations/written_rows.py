"""The rows of `pipeline_rows` by name, each written out over the passes of the stages.

Their names, symbols and proofs are those of `pipeline_rows`, which finds the best of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RowName:
    """Which row: the family, its stages, and which side of the two maxima it takes."""

    family: str
    """window, mirror, work, partial, through or flush."""
    stage: int
    """s."""
    last: int
    """e of a partial row or one through all stages, else s."""
    wait_first: bool = True
    """Whether A takes t + d (else (q + 1) f + b)."""
    wait_last: bool = True
    """Whether Z takes t + d (else (q + 1) b + f)."""
    turns: tuple[int, int] = (0, 0)
    """k of P and of Q."""
    pacers: tuple[int, int] = (0, 0)
    """Stages up to them (up to s for a flush) whose forward, and whose backward, is the longest."""


@dataclass(frozen=True)
class RowCoefficients:
    """Core of one stage as a linear function of f and b, with the sends put in."""

    forward: Floats
    """[stage] factor of f."""
    backward: Floats
    """[stage] factor of b."""
    constant: float
    """What the sends add."""


def row_coefficients(
    name: RowName, num_stages: int, num_microbatches: int, send: Floats, wait: Floats | None = None
) -> RowCoefficients:
    """Core of `name.stage` written out over f and b."""
    p, m, s = num_stages, num_microbatches, name.stage
    waits = 0.0 if wait is None else float(wait[s])
    q = p - 1 - s
    forward, backward = np.zeros(p), np.zeros(p)
    constant = 0.0
    down_constant = 2 * float(send[s : p - 1].sum())

    def add_round_trips(count: int) -> None:
        nonlocal constant
        forward[s:] += count
        backward[s:] += count
        constant += count * down_constant

    def add_steady() -> None:
        """Windows down to e and plain pairs between the first backward and the last forward."""
        nonlocal constant
        windows, rest = divmod(m - 2 - q, name.last - s + 1)
        for passes in (forward, backward):
            passes[s : name.last + 1] += windows
            passes[s] += rest
        constant += 2 * windows * float(send[s : name.last].sum()) + (windows + rest + 1) * waits

    if name.family in ("window", "mirror"):
        k, r = divmod(m - 1, q + 1)
        add_round_trips(k + 1)
        (forward if name.family == "window" else backward)[s] += r
        constant += k * waits
    elif name.family == "work":
        forward[s] += m
        backward[s] += m
        constant += max(m - 1 - q, 0) * waits
    elif name.family in ("through", "flush"):
        # Without the way down to s and up from it, as all rows are written.
        paced = min(q, m - 1)
        for there, back, turn, pacer in (
            (forward, backward, name.turns[0], name.pacers[0]),
            (backward, forward, name.turns[1], name.pacers[1]),
        ):
            if name.family == "through":
                paced = p - 1 - turn
                back[s : turn + 1] += 1
                constant += float(send[s:turn].sum())
            there[s : turn + 1] += 1
            there[pacer] += paced
            constant += float(send[s:turn].sum())
        if name.family == "through":
            add_steady()
    else:
        add_round_trips(int(name.wait_first) + int(name.wait_last))
        if not name.wait_first:
            forward[s] += q + 1
            backward[s] += 1
        if not name.wait_last:
            backward[s] += q + 1
            forward[s] += 1
        add_steady()
    return RowCoefficients(forward, backward, constant)
