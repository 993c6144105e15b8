"""Data and answer of `virtual_selection`: coefficients, recomputation that fits, and the exact objective.

Names as in the docstring of `virtual_selection`; times in ms, sizes in GiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_rows import Floats, stage_ends
from formulations.stage_selection_data import StageSelectionData

MAX_COMBINATIONS = 64
"""Ways to recompute the stages of one split that are tried; beyond it each stage takes its quickest."""


@dataclass(frozen=True)
class VirtualSelectionData:
    """Coefficients of one outer choice with v > 1 virtual stages a rank."""

    stage: StageSelectionData
    """Times of whole stages; its base times belong to the first chunk of the first stage and to the last of
    the last one, its memory is not used."""
    virtual_stages: int
    blocked_forward_ms: Floats
    """[stage, chunk] forward during which a send blocks the stage."""
    blocked_backward_ms: Floats
    """[stage, chunk] the same of the backward."""
    send_ms: Floats
    """[stage] send that delays the next stage; the last entry leads from the last stage to the first."""
    moments: tuple[NDArray[np.int64], ...]
    """[stage][moment, chunk] micro-batches in flight at the moments that can be the peak."""
    state_gib: float
    """Weights, gradients and optimizer state of a layer."""
    kept_gib: float
    """Activations of a layer and micro-batch, nothing recomputed."""
    kept_selective_gib: float
    kept_full_gib: float
    lead_kept_gib: tuple[float, float, float]
    """The same three of a leading layer."""
    base_gib: tuple[Floats, ...]
    """[stage][moment] all else."""
    full_peak_gib: Floats
    """[stage] more passing memory where any layer is recomputed in full."""
    selective_peak_gib: Floats
    """[stage] the same where core attention is recomputed."""
    limit_gib: Floats
    """[stage]"""
    kinds: tuple[str, ...]
    """Kinds of recomputation that may be chosen."""

    @property
    def num_stages(self) -> int:
        """p."""
        return self.stage.num_stages

    @property
    def num_layers(self) -> int:
        """L."""
        return self.stage.num_layers

    def base_ms(self) -> tuple[Floats, Floats]:
        """Forward and backward of each chunk beside its layers, [stage, chunk]."""
        forward, backward = self.blocked_forward_ms.copy(), self.blocked_backward_ms.copy()
        for s, k in ((0, 0), (self.num_stages - 1, self.virtual_stages - 1)):
            forward[s, k] += self.stage.base_forward_ms[s]
            backward[s, k] += self.stage.base_backward_ms[s]
        return forward, backward


@dataclass(frozen=True)
class VirtualChoice:
    """Answer: layers of every chunk, and what each stage recomputes (layers of each chunk)."""

    layers: tuple[tuple[int, ...], ...]
    recompute: tuple[str, ...]
    recompute_layers: tuple[int, ...]


@dataclass(frozen=True)
class Recomputation:
    """One way to make a stage fit, and what it adds to the backward of each chunk."""

    kind: str
    layers: int
    extra_ms: tuple[float, ...]


def recomputations(data: VirtualSelectionData, s: int, counts: Sequence[int]) -> list[Recomputation]:
    """Ways to make chunks of so many layers fit on a stage; empty where none does.

    Nothing where all fits, as less recomputation ends no piece later. Else core attention of all layers, and
    the fewest layers of every chunk in full; one of the two is left out where it costs no chunk less.
    """
    v, times = data.virtual_stages, data.stage
    n = np.array(counts, dtype=np.float64)
    lead = int(times.lead[s])
    moments = data.moments[s].astype(np.float64)
    room = data.limit_gib[s] - data.base_gib[s] - data.state_gib * n.sum()

    def kept(which: int, main: float) -> Floats:
        total = main * n
        total[0] += lead * (data.lead_kept_gib[which] - main)
        held: Floats = moments @ total
        return held

    need = kept(0, data.kept_gib)
    if bool((need <= room).all()):
        return [Recomputation("none", 0, (0.0,) * v)]
    found = []
    if "selective" in data.kinds and bool(
        (kept(1, data.kept_selective_gib) + data.selective_peak_gib[s] <= room).all()
    ):
        extra = times.selective_ms[s] * n
        extra[0] += lead * (times.lead_selective_ms[s] - times.selective_ms[s])
        extra[-1] += times.predictions_selective_ms[s]
        found.append(Recomputation("selective", 0, tuple(extra.tolist())))
    saves, lead_saves = data.kept_gib - data.kept_full_gib, data.lead_kept_gib[0] - data.lead_kept_gib[2]
    for r in range(1, min(counts) + 1) if "full" in data.kinds else ():
        saved = np.full(v, saves * r)
        saved[0] += min(r, lead) * (lead_saves - saves)
        if bool((need - moments @ saved + data.full_peak_gib[s] <= room).all()):
            extra = np.full(v, times.full_ms[s] * r)
            extra[0] += min(r, lead) * (times.lead_full_ms[s] - times.full_ms[s])
            found.append(Recomputation("full", r, tuple(extra.tolist())))
            break
    if len(found) == 2:
        first, second = (np.array(one.extra_ms) for one in found)
        if (first <= second).all():
            return found[:1]
        if (second <= first).all():
            return found[1:]
    return found


def choices(data: VirtualSelectionData, layers: Sequence[Sequence[int]]) -> Iterator[VirtualChoice]:
    """The choices worth looking at for given layer counts [stage][chunk]; none where a stage does not fit."""
    ways = [recomputations(data, s, counts) for s, counts in enumerate(layers)]
    if int(np.prod([len(way) for way in ways])) > MAX_COMBINATIONS:
        ways = [[min(way, key=lambda one: sum(one.extra_ms))] for way in ways]
    picks: list[tuple[Recomputation, ...]] = [()]
    for way in ways:
        picks = [(*pick, one) for pick in picks for one in way]
    for pick in picks:
        yield VirtualChoice(
            tuple(tuple(int(n) for n in counts) for counts in layers),
            tuple(one.kind for one in pick),
            tuple(one.layers for one in pick),
        )


def extra_ms(data: VirtualSelectionData, choice: VirtualChoice) -> Floats:
    """What recomputation adds to the backward of every chunk, [stage, chunk]."""
    times = data.stage
    n = np.array(choice.layers, dtype=np.float64)
    extra = np.zeros_like(n)
    for s, (kind, r) in enumerate(zip(choice.recompute, choice.recompute_layers, strict=True)):
        lead = int(times.lead[s])
        if kind == "selective":
            extra[s] = times.selective_ms[s] * n[s]
            extra[s, 0] += lead * (times.lead_selective_ms[s] - times.selective_ms[s])
            extra[s, -1] += times.predictions_selective_ms[s]
        elif kind == "full":
            extra[s] = times.full_ms[s] * r
            extra[s, 0] += min(r, lead) * (times.lead_full_ms[s] - times.full_ms[s])
    return extra


def times_ms(data: VirtualSelectionData, choice: VirtualChoice) -> tuple[Floats, Floats]:
    """Forward and backward of every chunk for a choice, [stage, chunk]."""
    n = np.array(choice.layers, dtype=np.float64)
    forward, backward = data.base_ms()
    forward = forward + data.stage.forward_ms[:, None] * n
    backward = backward + data.stage.backward_ms[:, None] * n + extra_ms(data, choice)
    return forward, backward


def after_ms(data: VirtualSelectionData, choice: VirtualChoice) -> tuple[Floats, float]:
    """Exposed reduction with its tail after the end of each stage [stage], and what follows all stages."""
    times = data.stage
    chunks = np.array(choice.layers, dtype=np.float64)
    n = chunks.sum(axis=1)
    forward, backward = times_ms(data, choice)
    reduction = times.reduce_ms * n + times.base_reduce_ms - times.hidden_fraction * backward.sum(axis=1)
    gathering = times.gather_ms * n + times.base_gather_ms - times.hidden_fraction * forward.sum(axis=1)
    follow = times.optimizer_ms * n + times.base_optimizer_ms + times.gather_tail_ms
    follow = follow + np.maximum(gathering, 0.0)
    in_one = times.bucket_ms * chunks[:, 0]
    return np.maximum(np.maximum(reduction, 0.0) + times.reduce_tail_ms, in_one), float(follow.max())


def objectives_ms(data: VirtualSelectionData, found: Sequence[VirtualChoice]) -> Floats:
    """The objective with every row in place, [choice]: the referee's step time, but for rounding."""
    forward, backward = (np.stack(parts) for parts in zip(*[times_ms(data, c) for c in found], strict=True))
    send = np.broadcast_to(data.send_ms, forward.shape[:2])
    ends = stage_ends(forward, backward, send, data.stage.num_microbatches)
    after = [after_ms(data, choice) for choice in found]
    last = (ends + np.stack([reduction for reduction, _ in after])).max(axis=1)
    values: Floats = last + np.array([follow for _, follow in after]) + data.stage.constant_ms
    return values


def objective_ms(data: VirtualSelectionData, choice: VirtualChoice) -> float:
    """The objective of one choice."""
    return float(objectives_ms(data, [choice])[0])
