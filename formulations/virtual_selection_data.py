"""Data and answer of `virtual_selection`: coefficients, recomputation that fits, and the exact objective.

Names as in the docstring of `virtual_selection`; times in ms, sizes in GiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_paths import Floats, stage_ends
from formulations.stage_selection_data import StageSelectionData, most_layers_in_step

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
    kept_gib: Floats
    """[stage] activations of a layer and micro-batch, nothing recomputed."""
    kept_selective_gib: Floats
    kept_full_gib: Floats
    lead_kept_gib: tuple[float, float, float]
    """The same three of a leading layer, which is on the first stage."""
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
    empty_ends: bool = False
    """Whether the embedding, and the head, may have the first and the last virtual stage to themselves."""

    @property
    def num_stages(self) -> int:
        """p."""
        return self.stage.num_stages

    @property
    def num_layers(self) -> int:
        """L."""
        return self.stage.num_layers

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Stage and chunk of the embedding, and of the head."""
        return (0, 0), (self.num_stages - 1, self.virtual_stages - 1)

    def may_be_empty(self, s: int) -> int | None:
        """The chunk of a stage that needs no layer; None where all do."""
        of_stage = [k for stage, k in self.ends if stage == s and self.empty_ends]
        return of_stage[0] if of_stage and not (s == 0 and self.stage.lead[0]) else None

    def base_ms(self) -> tuple[Floats, Floats]:
        """Forward and backward of each chunk beside its layers, [stage, chunk]."""
        forward, backward = self.blocked_forward_ms.copy(), self.blocked_backward_ms.copy()
        for s, k in self.ends:
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
    the fewest layers of every chunk that has any in full; one of the two is left out where it costs no chunk
    less.
    """
    v, times = data.virtual_stages, data.stage
    n = np.array(counts, dtype=np.float64)
    if n.sum() > most_layers_in_step(times)[s]:
        return []
    lead = int(times.lead[s])
    moments = data.moments[s].astype(np.float64)
    room = data.limit_gib[s] - data.base_gib[s] - data.state_gib * n.sum()

    def kept(which: int, main: float) -> Floats:
        total = main * n
        total[0] += lead * (data.lead_kept_gib[which] - main)
        held: Floats = moments @ total
        return held

    need = kept(0, data.kept_gib[s])
    if bool((need <= room).all()):
        return [Recomputation("none", 0, (0.0,) * v)]
    found = []
    if "selective" in data.kinds and bool(
        (kept(1, data.kept_selective_gib[s]) + data.selective_peak_gib[s] <= room).all()
    ):
        extra = times.selective_ms[s] * n
        extra[0] += lead * (times.lead_selective_ms[s] - times.selective_ms[s])
        extra[-1] += times.predictions_selective_ms[s]
        found.append(Recomputation("selective", 0, tuple(extra.tolist())))
    saves = data.kept_gib[s] - data.kept_full_gib[s]
    lead_saves = data.lead_kept_gib[0] - data.lead_kept_gib[2]
    has_layers = n > 0
    for r in range(1, int(n[has_layers].min()) + 1) if "full" in data.kinds else ():
        saved = saves * r * has_layers
        saved[0] += min(r, lead) * (lead_saves - saves)
        if bool((need - moments @ saved + data.full_peak_gib[s] <= room).all()):
            extra = times.full_ms[s] * r * has_layers
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


Ways = dict[tuple[int, tuple[int, ...]], list[Recomputation]]
"""Ways to make stages fit, by stage and layers of its chunks."""


def choices(
    data: VirtualSelectionData, layers: Sequence[Sequence[int]], known: Ways | None = None
) -> Iterator[VirtualChoice]:
    """The choices worth looking at for given layer counts [stage][chunk]; none where a stage does not fit.

    What is found out of single stages is kept in `known`.
    """
    known = {} if known is None else known
    dealt = tuple(tuple(int(n) for n in counts) for counts in layers)
    ways = []
    for s, counts in enumerate(dealt):
        if (s, counts) not in known:
            known[s, counts] = recomputations(data, s, counts)
        if not known[s, counts]:
            return
        ways.append(known[s, counts])
    if prod(len(way) for way in ways) > MAX_COMBINATIONS:
        ways = [[min(way, key=lambda one: sum(one.extra_ms))] for way in ways]
    for pick in product(*ways):
        yield VirtualChoice(dealt, tuple(one.kind for one in pick), tuple(one.layers for one in pick))


def lists_all_choices(data: VirtualSelectionData, layers: Sequence[Sequence[int]]) -> bool:
    """Whether `choices` leaves none out: stages may have more ways together than it tries."""
    if 2**data.num_stages <= MAX_COMBINATIONS:  # a stage has two ways at most
        return True
    number = prod(len(recomputations(data, s, counts)) for s, counts in enumerate(layers))
    return number <= MAX_COMBINATIONS


@dataclass(frozen=True)
class Pieces:
    """What choices make of a pipeline's work, for many of them at once."""

    forward: Floats
    """[choice, stage, chunk]"""
    backward: Floats
    """[choice, stage, chunk]"""
    reduction: Floats
    """[choice, stage] exposed reduction with its tail after the end of each stage."""
    follow: Floats
    """[choice] what follows all stages."""


def pieces_ms(data: VirtualSelectionData, found: Sequence[VirtualChoice]) -> Pieces:
    """Times of all pieces of work of some choices."""
    times = data.stage
    n = np.array([choice.layers for choice in found], dtype=np.float64)
    total = n.sum(axis=2)
    forward, backward = data.base_ms()
    forward = forward + times.forward_ms[:, None] * n
    backward = backward + times.backward_ms[:, None] * n + _extra_ms(data, found, n)
    reduction = times.reduce_ms * total + times.base_reduce_ms
    gathering = times.gather_ms * total + times.base_gather_ms
    reduction = np.maximum(reduction - times.hidden_fraction * backward.sum(axis=2), 0.0)
    gathering = np.maximum(gathering - times.hidden_fraction * forward.sum(axis=2), 0.0)
    follow = times.optimizer_ms * total + times.base_optimizer_ms + times.gather_tail_ms + gathering
    reduction = np.maximum(reduction + times.reduce_tail_ms, times.bucket_ms * n[:, :, 0])
    return Pieces(forward, backward, reduction, follow.max(axis=1))


def _extra_ms(data: VirtualSelectionData, found: Sequence[VirtualChoice], n: Floats) -> Floats:
    """What recomputation adds to the backward of every chunk, [choice, stage, chunk]."""
    times = data.stage
    kinds = [choice.recompute for choice in found]
    selective, full = ([[kind == name for kind in one] for one in kinds] for name in ("selective", "full"))
    some, whole = np.array(selective, dtype=np.float64), np.array(full, dtype=np.float64)
    r = whole * np.array([choice.recompute_layers for choice in found], dtype=np.float64)
    extra = (some * times.selective_ms)[:, :, None] * n + (times.full_ms * r)[:, :, None] * (n > 0)
    extra[:, :, 0] += some * times.lead * (times.lead_selective_ms - times.selective_ms)
    extra[:, :, -1] += some * times.predictions_selective_ms
    extra[:, :, 0] += np.minimum(r, times.lead) * (times.lead_full_ms - times.full_ms)
    return extra


def steps_ms(data: VirtualSelectionData, pieces: Pieces, num_microbatches: int) -> Floats:
    """The objective with every row in place, for a step of so many micro-batches, [choice]."""
    send = np.broadcast_to(data.send_ms, pieces.forward.shape[:2])
    ends = stage_ends(pieces.forward, pieces.backward, send, num_microbatches)
    steps: Floats = (ends + pieces.reduction).max(axis=1) + pieces.follow + data.stage.constant_ms
    return steps


def times_ms(data: VirtualSelectionData, choice: VirtualChoice) -> tuple[Floats, Floats]:
    """Forward and backward of every chunk for a choice, [stage, chunk]."""
    pieces = pieces_ms(data, [choice])
    return pieces.forward[0], pieces.backward[0]


def objectives_ms(data: VirtualSelectionData, found: Sequence[VirtualChoice]) -> Floats:
    """The objective with every row in place, [choice]: the referee's step time, but for rounding."""
    return steps_ms(data, pieces_ms(data, found), data.stage.num_microbatches)


def objective_ms(data: VirtualSelectionData, choice: VirtualChoice) -> float:
    """The objective of one choice."""
    return float(objectives_ms(data, [choice])[0])
