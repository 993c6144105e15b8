"""Start and end of every piece of work of a pipeline, event by event.

A piece starts when its stage has finished the piece before it (`schedules.py` gives the order) and
its input has arrived: the end of its producer plus the time of the hop. A send delays the receiver
and occupies neither stage. Knows nothing of models, chips or prices.

The order being fixed, all times are sums and maxima along a graph that depends on the number of
stages, micro-batches and virtual stages alone. It is laid out once as *waves*: in each wave a stage
runs at most one piece, and every producer lies in an earlier wave. A simulation is then a few numpy
calls a wave, for all stages and any number of candidates at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.simulate.alternating import alternating_stage_ends_s
from planner.simulate.schedules import Ints, order_of_work, peak_in_flight

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedPipeline:
    """When every piece of work of one step starts and ends [s], from the start of the first forward."""

    makespan_s: float
    """End of the last backward."""
    stage_end_s: Floats
    """[stage] end of the stage's last backward."""
    forward_start_s: Floats
    """[stage, chunk, microbatch]"""
    forward_end_s: Floats
    """[stage, chunk, microbatch]"""
    backward_start_s: Floats
    """[stage, chunk, microbatch]"""
    backward_end_s: Floats
    """[stage, chunk, microbatch]"""
    in_flight: Ints
    """[stage, chunk] micro-batches held when most are held in all."""


@dataclass(frozen=True)
class _Waves:
    """The graph of a pipeline: arrays [wave, stage], and the wave of every piece."""

    duration: NDArray[np.intp]
    """Which entry of (0, all forwards, all backwards) the piece takes; 0 where the stage idles."""
    producer: NDArray[np.intp]
    """Where the end of its producer stands among the ends; in the row of time zero where it has none."""
    hop: NDArray[np.intp]
    """Which entry of (0, hops) its input travels; 0 where it comes from no other stage."""
    wave_of: NDArray[np.intp]
    """[backward?, stage, chunk, microbatch] wave in which the piece runs."""


def _waves_of_1f1b(num_stages: int, num_microbatches: int) -> NDArray[np.intp]:
    """Waves under 1F1B: forward k of stage s in wave s + 2 k, its backward in wave 2 p - 1 - s + 2 k.

    With pieces of one unit of time these are starting times: the forward of the next stage comes a
    wave later, the backward of the stage before it too, and a stage's forwards and backwards fall
    on waves of different parity.
    """
    stage = np.arange(num_stages)[:, None, None]
    microbatch = np.arange(num_microbatches)[None, None, :]
    forward = stage + 2 * microbatch
    backward = 2 * num_stages - 1 - stage + 2 * microbatch
    return np.stack([forward, backward]).astype(np.intp)


def _waves_of_interleaved(
    num_stages: int, num_microbatches: int, virtual_stages: int, group_size: int | None
) -> NDArray[np.intp]:
    """Earliest wave of every piece under the interleaved order, each stage advanced as far as it can go."""
    p, m, v = num_stages, num_microbatches, virtual_stages
    # Pieces are numbered as in an array [backward?, stage, chunk, microbatch]; -1 stands for no producer.
    first_piece = np.arange(2 * p * v).reshape(2, p, v) * m
    first_of_producer = np.full((2, p, v), -1, dtype=np.int64)
    for s, chunk, is_backward in np.ndindex(p, v, 2):
        source = _producer(p, v, s, chunk, bool(is_backward))
        if source is not None:
            first_of_producer[is_backward, s, chunk] = first_piece[is_backward, source[0], source[1]]
    pieces, producers = [], []
    for s in range(p):
        order = order_of_work(p, s, m, v, group_size)
        of = (order.is_backward.astype(np.int64), s, order.chunk)
        pieces.append((first_piece[of] + order.microbatch).tolist())
        producer = first_of_producer[of]
        producers.append(np.where(producer < 0, -1, producer + order.microbatch).tolist())
    wave_of = [-1] * (2 * p * v * m)
    position, next_wave = [0] * p, [0] * p
    while min(position) < 2 * v * m:
        before = sum(position)
        for s in range(p):
            at, wave = position[s], next_wave[s]
            pieces_of_stage, producers_of_stage = pieces[s], producers[s]
            while at < 2 * v * m:
                producer = producers_of_stage[at]
                if producer >= 0:
                    ready = wave_of[producer]
                    if ready < 0:
                        break
                    wave = max(wave, ready + 1)
                wave_of[pieces_of_stage[at]] = wave
                wave += 1
                at += 1
            position[s], next_wave[s] = at, wave
        assert sum(position) > before, "an order of work waits for itself"
    return np.array(wave_of, dtype=np.intp).reshape(2, p, v, m)


def _producer(p: int, v: int, stage: int, chunk: int, is_backward: bool) -> tuple[int, int] | None:
    """Stage and chunk whose same pass feeds a piece; None where its input is on the stage already."""
    if is_backward:
        if stage < p - 1:
            return stage + 1, chunk
        return (0, chunk + 1) if chunk < v - 1 else None
    if stage > 0:
        return stage - 1, chunk
    return (p - 1, chunk - 1) if chunk > 0 else None


@lru_cache(maxsize=64)
def _waves(num_stages: int, num_microbatches: int, virtual_stages: int, group_size: int | None) -> _Waves:
    p, m, v = num_stages, num_microbatches, virtual_stages
    wave_of = _waves_of_1f1b(p, m) if v == 1 else _waves_of_interleaved(p, m, v, group_size)
    shape = (int(wave_of.max()) + 1, p)
    duration = np.zeros(shape, dtype=np.intp)
    producer = np.zeros(shape, dtype=np.intp)
    hop = np.zeros(shape, dtype=np.intp)
    for is_backward in (False, True):
        for s in range(p):
            for chunk in range(v):
                at = wave_of[int(is_backward), s, chunk]
                duration[at, s] = 1 + int(is_backward) * p * v + s * v + chunk
                source = _producer(p, v, s, chunk, is_backward)
                if source is not None and p > 1:
                    producer[at, s] = (wave_of[int(is_backward), source[0], source[1]] + 1) * p + source[0]
                    # The hop of stage s leads to s + 1 (from the last to the first), in both passes.
                    hop[at, s] = 1 + (s if is_backward else (s - 1) % p)
    return _Waves(duration, producer, hop, wave_of)


def _run(waves: _Waves, forward_s: Floats, backward_s: Floats, send_s: Floats) -> tuple[Floats, Floats]:
    """Starts [wave, stage, candidate] and ends [wave + 1, stage, candidate]; ends[0] is time zero."""
    num_waves, num_stages = waves.duration.shape
    num_candidates = forward_s.shape[-1]
    nothing = np.zeros((1, num_candidates))
    pieces = (-1, num_candidates)
    # One row a wave, all stages and candidates side by side: numpy is fastest on plain vectors.
    rows = (num_waves, num_stages * num_candidates)
    durations = np.concatenate([nothing, forward_s.reshape(pieces), backward_s.reshape(pieces)])
    duration_s = durations.take(waves.duration, axis=0).reshape(rows)
    delay_s = np.concatenate([nothing, send_s]).take(waves.hop, axis=0).reshape(rows)
    producer = (waves.producer[:, :, None] * num_candidates + np.arange(num_candidates)).reshape(rows)
    start = np.empty(rows)
    end = np.zeros((num_waves + 1, rows[1]))
    flat, arrival = end.ravel(), np.empty(rows[1])
    for source, delay, took, begins, free, ends in zip(
        producer, delay_s, duration_s, start, end[:-1], end[1:], strict=True
    ):
        flat.take(source, out=arrival, mode="clip")
        np.add(arrival, delay, out=arrival)
        np.maximum(arrival, free, out=begins)
        np.add(begins, took, out=ends)
    shape = (-1, num_stages, num_candidates)
    return start.reshape(shape), end.reshape(shape)


def stage_ends_s(
    forward_s: Floats,
    backward_s: Floats,
    send_s: Floats,
    num_microbatches: int,
    group_size: int | None = None,
) -> Floats:
    """End of every stage's last backward for many candidates at once, array [candidate, stage] in seconds.

    Parameters
    ----------
    forward_s, backward_s
        [candidate, stage, chunk] one micro-batch on one chunk [s].
    send_s
        [candidate, stage] hop from the stage to the next; the last entry leads back to the first [s].
    group_size
        Micro-batches that pass a chunk before the next takes its turn; as many as stages where absent.
    """
    p, v = forward_s.shape[1:]
    if p == v == 1:  # one stage is never idle
        return num_microbatches * (forward_s + backward_s)[:, :, 0]
    if v == 1:
        return alternating_stage_ends_s(forward_s[:, :, 0], backward_s[:, :, 0], send_s, num_microbatches)
    _, end = _run(
        _waves(p, num_microbatches, v, group_size),
        np.moveaxis(forward_s, 0, -1),
        np.moveaxis(backward_s, 0, -1),
        np.ascontiguousarray(np.moveaxis(send_s, 0, -1)),
    )
    ends: Floats = end[-1].T
    return ends


def simulate(
    forward_s: Floats,
    backward_s: Floats,
    send_s: Floats,
    num_microbatches: int,
    group_size: int | None = None,
) -> SimulatedPipeline:
    """Run one step of 1F1B, or of interleaved 1F1B where stages have several chunks.

    Parameters
    ----------
    forward_s, backward_s
        [stage, chunk] time of one micro-batch on one chunk [s].
    send_s
        [stage] time of a hop from the stage to the next, the same backwards [s]; the last entry
        leads from the last stage to the first and counts only with several chunks.
    num_microbatches
        Micro-batches of the step.
    group_size
        Micro-batches that pass a chunk before the next takes its turn; as many as stages where absent.
    """
    p, v = forward_s.shape
    waves = _waves(p, num_microbatches, v, group_size)
    start, end = _run(waves, forward_s[..., None], backward_s[..., None], send_s[:, None])
    stage = np.arange(p)[None, :, None, None]
    start_s = start[waves.wave_of, stage, 0]
    end_s = end[waves.wave_of + 1, stage, 0]
    in_flight = [peak_in_flight(p, s, num_microbatches, v, group_size=group_size) for s in range(p)]
    return SimulatedPipeline(
        makespan_s=float(end[-1].max()),
        stage_end_s=end[-1, :, 0].copy(),
        forward_start_s=start_s[0],
        forward_end_s=end_s[0],
        backward_start_s=start_s[1],
        backward_end_s=end_s[1],
        in_flight=np.array(in_flight, dtype=np.int64),
    )


def makespan_1f1b(forward_s: Floats, backward_s: Floats, send_s: Floats, num_microbatches: int) -> float:
    """End of the last backward under 1F1B without virtual stages [s]; all arrays [stage]."""
    p = len(forward_s)
    hops = np.zeros(p)
    hops[: p - 1] = send_s[: p - 1]
    ends = stage_ends_s(forward_s[None, :, None], backward_s[None, :, None], hops[None, :], num_microbatches)
    return float(ends.max())
