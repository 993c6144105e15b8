"""Ends of 1F1B without virtual stages, for many candidates at once, in four numpy calls a wave.

Under 1F1B forward k of stage s falls on wave s + 2 k and its backward on wave 2 p - 1 - s + 2 k
(`pipeline.py`), so that a stage's forwards and backwards alternate. A forward waits for the stage before
it, a backward for the stage after it, and what they wait for always ran one wave earlier. Hence only the
last end of each stage matters, and a wave is, over a vector of all stages,

    end = max(end of the producer + hop, end) + time of the piece

A stage without a piece waits for nothing and takes no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def alternating_stage_ends_s(
    forward_s: Floats, backward_s: Floats, send_s: Floats, num_microbatches: int
) -> Floats:
    """End of every stage's last backward, array [candidate, stage] in seconds.

    Parameters
    ----------
    forward_s, backward_s
        [candidate, stage] one micro-batch [s].
    send_s
        [candidate, stage] hop from the stage to the next; the last entry counts for nothing [s].
    """
    num_candidates, p = forward_s.shape
    waves = _waves(p, num_microbatches)
    # The first stage's forwards have no producer; the last stage's backwards follow its own forwards.
    nothing = np.full((num_candidates, 1), -np.inf)
    hop_s = (np.hstack([send_s[:, :-1], nothing]), np.hstack([nothing, send_s[:, :-1]]))
    rows = p * np.arange(num_candidates)[:, None]
    producers, pieces = [], []
    for parity in (0, 1):
        is_forward = waves.is_forward[parity]
        producers.append((rows + waves.producer[parity]).ravel())
        hop = np.where(is_forward, hop_s[1], hop_s[0])
        took = np.where(is_forward, forward_s, backward_s)
        pieces.append(_pieces(hop, took, waves, parity))
    end, start = np.zeros(num_candidates * p), np.empty(num_candidates * p)
    for wave in range(2 * (num_microbatches + p - 1)):
        hop, took = next(pieces[wave % 2])
        end.take(producers[wave % 2], out=start, mode="clip")
        np.add(start, hop, out=start)
        np.maximum(start, end, out=start)
        np.add(start, took, out=end)
    return end.reshape(num_candidates, p)


@dataclass(frozen=True)
class _Waves:
    """What each stage does in waves of a parity (first axis of each field)."""

    is_forward: NDArray[np.bool_]
    """[parity, stage]"""
    producer: NDArray[np.intp]
    """[parity, stage] stage whose last piece feeds its own; itself where none does."""
    filling: tuple[NDArray[np.bool_], ...]
    """[wave, 1, stage] whether it has a piece while the pipeline fills."""
    steady: tuple[int, ...]
    """Number of waves in which all stages have one."""
    draining: tuple[NDArray[np.bool_], ...]
    """[wave, 1, stage] whether it has a piece while the pipeline drains."""


@lru_cache(maxsize=64)
def _waves(p: int, m: int) -> _Waves:
    """Waves of p stages and m micro-batches; few micro-batches never fill the pipeline."""
    stage, wave = np.arange(p), np.arange(2 * (m + p - 1))[:, None]
    is_forward = (wave - stage) % 2 == 0
    microbatch = np.where(is_forward, wave - stage, wave - (2 * p - 1 - stage)) // 2
    active = ((microbatch >= 0) & (microbatch < m))[:, None]
    full, drained = (2 * p - 1, 2 * m - 1) if m > p else (len(wave), len(wave))
    return _Waves(
        is_forward=is_forward[:2],
        producer=np.clip(np.where(is_forward[:2], stage - 1, stage + 1), 0, p - 1),
        filling=tuple(active[parity:full:2] for parity in (0, 1)),
        steady=tuple(len(range(full + (full + parity) % 2, drained, 2)) for parity in (0, 1)),
        draining=tuple(active[drained + (drained + parity) % 2 :: 2] for parity in (0, 1)),
    )


def _pieces(hop: Floats, took: Floats, waves: _Waves, parity: int) -> Iterator[tuple[Floats, Floats]]:
    """Hop of the input and time of the piece [candidate x stage] in each wave of a parity [s]."""
    filling, draining = (
        [
            np.where(active, values, idle).reshape(len(active), hop.size)
            for values, idle in ((hop, -np.inf), (took, 0.0))
        ]
        for active in (waves.filling[parity], waves.draining[parity])
    )
    steady = repeat((hop.ravel(), took.ravel()), waves.steady[parity])
    return chain(zip(*filling, strict=True), steady, zip(*draining, strict=True))
