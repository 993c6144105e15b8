"""1F1B where a stage receives a gradient before it sends the activation that it made last.

DeepSpeed's pipeline engine walks a grid of slots in which neighbours take turns: behind a forward, a
stage first waits for the gradient of its next backward, then sends the activation, then runs the
backward; behind a backward it sends the gradient at once (deepspeed/runtime/pipe/schedule.py,
`TrainSchedule.steps`, Apache-2.0). Where no backward follows, the activation leaves at once. The sender
is busy for as long as a send takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEW = 3
"""Candidates up to which plain numbers are quicker than arrays, one by one (timed on one machine)."""


def deferred_stage_ends_s(
    forward_s: Floats, backward_s: Floats, send_s: Floats, num_microbatches: int
) -> Floats:
    """End of every stage's last backward, array [candidate, stage] in seconds.

    Parameters
    ----------
    forward_s, backward_s
        [candidate, stage] one micro-batch, sends left out [s].
    send_s
        [candidate, stage] hop from the stage to the next; the last entry counts for nothing [s].
    """
    m = num_microbatches
    if len(forward_s) > FEW:
        together = _ends(list(forward_s.T), list(backward_s.T), list(send_s.T), m, np.maximum)
        return np.stack(together, axis=1)
    candidates = zip(forward_s.tolist(), backward_s.tolist(), send_s.tolist(), strict=True)
    return np.array([_ends(forward, backward, send, m, max) for forward, backward, send in candidates])


def _ends(
    forward: list[Any], backward: list[Any], send: list[Any], m: int, larger: Callable[[Any, Any], Any]
) -> list[Any]:
    """End of the last backward of every stage [s], of one candidate or with an array of many in every place.

    Forward k of stage s has slot s + 2 k, its backward slot 2 p - 1 - s + 2 k: in a slot, neighbours take
    turns, and the forward of a stage may wait for what the backward of the stage before it sends first.
    """
    p = len(forward)
    free, activation, gradient = [0.0] * p, [0.0] * p, [0.0] * p
    for slot in range(2 * (m + p - 1)):
        for s in range(min(p, slot + 1, 2 * (p + m - 1) - slot)):
            k, is_backward = divmod(slot - s, 2)
            if not is_backward:
                if k < m:
                    free[s] = larger(free[s], activation[s]) + forward[s]
                    if k < p - 1 - s:  # no backward follows: the activation leaves at once
                        free[s] = free[s] + send[s]
                        activation[s + 1] = free[s]
                continue
            j = k - (p - 1 - s)
            if not 0 <= j < m:
                continue
            start = larger(free[s], gradient[s])
            if k < m and s < p - 1:  # the activation made in the slot before
                start = start + send[s]
                activation[s + 1] = start
            free[s] = start + backward[s]
            if s > 0:
                free[s] = free[s] + send[s - 1]
                gradient[s - 1] = free[s]
    return free
