"""Turn sizes into the memory coefficients of `stage_selection`: the terms of `planner.cost.memory.stage`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.cost.memory.pipelines import in_pipeline_of, outside_bytes
from planner.cost.prices import STATES, Floats, Prices
from planner.cost.stage import in_flight_of_stages
from planner.search.entries import Entries
from planner.search.kinds import LayerKinds
from planner.tolerances import MEMORY_TOL_BYTES
from planner.units import GIB

NONE, SELECTIVE, FULL = range(3)
"""Modes: nothing recomputed, core attention, whole layers."""


def memory_coefficients(
    prices: Prices,
    entries: Entries,
    kinds: LayerKinds,
    num_microbatches: int,
    forbid: Sequence[str],
) -> dict[str, Any]:
    """Memory coefficients: the terms of `planner.cost.stage.memory_bytes`, linear in the layers.

    A forbidden kind of recomputation saves nothing, so that it is never chosen.
    """
    c, n, p = entries.choice, entries.node_class, entries.num_stages
    prices = in_pipeline_of(prices, p)
    first_stage, last_stage = entries.is_first, entries.has_head
    in_flight = entries.in_flight
    if in_flight is None:
        held = in_flight_of_stages(p, num_microbatches, planned=prices.plans_memory)
        in_flight = held[entries.position]
    scale = 1 / prices.allocated_fraction / GIB
    ends = prices.end_rows_bytes.take(c, axis=1)
    embedding_state, head_state, beside_state, embedding_kept, _, _, buffers = ends
    layer = prices.layer_rows_bytes[:, c, :, n].transpose(1, 0, 2)
    passing = _Passing(entries, kinds, layer, ends)
    kept = layer[:3]
    of_layer = prices.layer_held_bytes.take(c, axis=0) + in_flight[:, None] * kept[NONE]
    saved = in_flight[:, None] * (kept[NONE] - kept[1:]) * scale
    for less, recompute in zip(saved, ("selective", "full"), strict=True):
        if f"recompute={recompute}" in forbid:
            less[:] = 0.0
    if p <= 2:  # else no stage has both ends
        head_state = np.where(first_stage, beside_state, head_state)
    base = np.where(first_stage, embedding_state + in_flight * embedding_kept, 0.0)
    base = base + np.where(last_stage, head_state + in_flight * prices.head_activation_bytes[c, n], 0.0)
    base = base + passing.base
    if p > 1:
        base = base + buffers
    if kinds.num_lead:
        base = base + passing.lead * (of_layer[:, kinds.lead] - of_layer[:, kinds.main])
    stepping, in_step_ends = in_step(prices, entries, kinds)
    placeholders = passing.most(prices.layer_placeholder_bytes[c])
    in_step_ends = in_step_ends + placeholders
    if p > 1:
        in_step_ends = in_step_ends + buffers
    more = (passing.over - passing.base) * scale
    lengths, at_least = entries.fewest_stages, entries.fewest_stages is not None
    is_end = first_stage | last_stage
    fixed = outside_bytes(prices, c, n, is_end, p if lengths is None else lengths, at_least=at_least)
    fixed_gib = fixed / GIB
    main, lead = saved[..., kinds.main], saved[..., kinds.lead]
    return {
        "layer_gib": of_layer[:, kinds.main] * scale,
        "selective_saves_gib": main[0],
        "full_saves_gib": main[1],
        "lead_selective_saves_gib": lead[0],
        "lead_full_saves_gib": lead[1],
        "full_peak_gib": more[1],
        "lead_full_peak_gib": more[2],
        "selective_peak_gib": more[0],
        "base_gib": base * scale + fixed_gib,
        "step_layer_gib": stepping * scale,
        "step_base_gib": in_step_ends * scale + fixed_gib,
        "limit_gib": (prices.limit_bytes[n] + MEMORY_TOL_BYTES / 2) / GIB,
        "alone_gib": _alone_gib(prices, entries, passing, placeholders, scale),
    }


class _Passing:
    """What passes in the backward of stages, in bytes.

    Parameters
    ----------
    layer
        [row, entry, kind] `Prices.layer_rows_bytes` on each entry's class.
    ends
        [row, entry] `Prices.end_rows_bytes`.
    """

    def __init__(self, entries: Entries, kinds: LayerKinds, layer: Floats, ends: Floats) -> None:
        self.kinds, self.layer = kinds, layer
        self.embedding_peak, self.head_peak = ends[4], ends[5]
        first = entries.is_first
        self.lead = np.where(first, kinds.num_lead, 0) if kinds.num_lead else np.zeros(len(first), np.int64)
        kept, working = layer[:3], layer[3]
        modes = np.array((working, working + (kept[NONE] - kept[SELECTIVE]), working + layer[4]))
        # The embedding's backward makes what is beyond what is gone by then, as `stage_memory` has it.
        embedding = np.where(first, self.embedding_peak + self.most(-kept), 0.0)
        peaks = np.maximum(self.most(modes), embedding)
        base = np.where(entries.has_head, np.maximum(peaks[NONE], self.head_peak), peaks[NONE])
        self.base = base
        """[entry] what passes with nothing recomputed."""
        of_lead = peaks[FULL]
        if kinds.num_lead:
            of_lead = np.maximum(modes[FULL, :, kinds.lead], embedding[FULL])
        self.over = np.maximum(base, np.array((peaks[SELECTIVE], peaks[FULL], of_lead)))
        """[mode, entry] with core attention recomputed, whole layers, and none but leading ones."""

    def most(self, sizes: Floats) -> Floats:
        """The larger of the kinds that a stage holds, of sizes [..., entry, kind]."""
        main = sizes[..., self.kinds.main]
        if not self.kinds.num_lead:
            return main
        return np.where(self.lead > 0, np.maximum(main, sizes[..., self.kinds.lead]), main)


def _alone_gib(
    prices: Prices, entries: Entries, passing: _Passing, placeholders: Floats, scale: float
) -> Floats | None:
    """How much less passes in stages of leading layers alone, or without any layer, [mode, entry] in GiB.

    As `StageSelectionData.alone_gib`; None where there is no such stage.
    """
    kinds, first, last = passing.kinds, entries.is_first, entries.has_head
    selective, full, of_lead = passing.over
    alone: Floats | None = None
    if kinds.num_lead:
        whole = np.array((passing.base, selective, of_lead, placeholders))
        less = whole - _of_leading_layers(prices, entries, passing)
        alone = np.where(first & ~last, less, 0.0) * scale
    if entries.may_be_empty is not None and entries.may_be_empty.any():
        # Beside no layer only the embedding or the head passes, whatever would be recomputed.
        of_ends = np.where(first, passing.embedding_peak, 0.0)
        of_ends = np.maximum(of_ends, np.where(last, passing.head_peak, 0.0))
        whole = np.array((passing.base, selective, full, placeholders))
        whole[:3] -= of_ends
        without = entries.may_be_empty & (passing.lead == 0)
        alone = np.where(without, whole * scale, 0.0 if alone is None else alone)
    return alone


def _of_leading_layers(prices: Prices, entries: Entries, passing: _Passing) -> Floats:
    """What passes in a first stage of leading layers alone, [mode, entry] in bytes.

    Modes: nothing recomputed, core attention, whole layers; then what the optimizer's step makes.
    """
    kept, selective, full, working, again = passing.layer[..., passing.kinds.lead]
    layers = working + np.array((np.zeros(len(kept)), kept - selective, again))
    passes = np.maximum(layers, passing.embedding_peak - np.array((kept, selective, full)))
    return np.array([*passes, prices.layer_placeholder_bytes[entries.choice, passing.kinds.lead]])


def in_step(prices: Prices, entries: Entries, kinds: LayerKinds) -> tuple[Floats, Floats]:
    """What a layer, and all else, holds in the optimizer's step, [entry] in bytes.

    Zeros where the step makes nothing of its own, as a backward then holds more.
    """
    c, share = entries.choice, prices.step_copy_share
    if not share:
        return np.zeros(len(c)), np.zeros(len(c))
    first, last = entries.is_first, entries.has_head

    def stepping(states: Floats) -> Floats:
        held: Floats = states.sum(axis=-1) + share * states[..., STATES.index("optimizer")]
        return held

    layer = stepping(prices.layer_state_bytes[c])
    head = np.where(
        first, stepping(prices.head_beside_embedding_state_bytes[c]), stepping(prices.head_state_bytes[c])
    )
    ends = np.where(first, stepping(prices.embedding_state_bytes[c]), 0.0) + np.where(last, head, 0.0)
    more = layer[:, kinds.lead] - layer[:, kinds.main]
    return layer[:, kinds.main], ends + np.where(first, kinds.num_lead, 0) * more
