"""Turn prices into the coefficients of `virtual_selection`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from formulations.virtual_selection_data import VirtualSelectionData
from planner.cost.communication.hops import block_on_sends, hop_send_s
from planner.cost.memory.pipelines import outside_bytes
from planner.cost.prices import Floats, Prices
from planner.data.options import RECOMPUTE_KINDS
from planner.data.problem import Problem
from planner.search.coefficients import stage_coefficients
from planner.search.degrees import DegreeTable
from planner.search.empty import ends_may_be_empty
from planner.search.kinds import layer_kinds
from planner.simulate.schedules import in_flight_peaks
from planner.tolerances import MEMORY_TOL_BYTES
from planner.units import GIB, MS


def virtual_coefficients(
    problem: Problem,
    prices: Prices,
    table: DegreeTable,
    choice: int,
    virtual_stages: int,
    class_of_stage: Sequence[int],
    *,
    with_sends: bool = True,
) -> VirtualSelectionData:
    """Coefficients of a pipeline whose stage s runs v chunks on class `class_of_stage[s]` [ms, GiB].

    Without sends the times are those of the stages alone, which no neighbour changes.
    """
    classes = np.array(class_of_stage)
    p, v, c = len(classes), virtual_stages, choice
    m, size = int(table.num_microbatches[c]), int(table.stage_size[c])
    stage = stage_coefficients(problem, prices, c, size, m, class_of_stage, with_sends=False, whole=False)
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]
    hops = hop_send_s(prices.send_s[c], prices.send_inside_s[c], class_of_stage, size, per_node) / MS
    if not with_sends:
        hops = np.zeros(p)
    nothing = np.zeros((p, v))
    overlaps = problem.stack.overlaps_sends(v)
    forward, backward, delays = block_on_sends(nothing, nothing, hops, p2p_overlap=overlaps)
    # Blocked sends hide no part of the synchronisation.
    hidden = stage.hidden_fraction
    stage = replace(
        stage,
        base_reduce_ms=stage.base_reduce_ms + hidden * backward.sum(axis=1),
        base_gather_ms=stage.base_gather_ms + hidden * forward.sum(axis=1),
    )
    moments = tuple(np.array(in_flight_peaks(p, s, m, v), dtype=np.int64) for s in range(p))
    return VirtualSelectionData(
        stage=stage,
        virtual_stages=v,
        blocked_forward_ms=forward,
        blocked_backward_ms=backward,
        send_ms=delays,
        moments=moments,
        limit_gib=(prices.limit_bytes[classes] + MEMORY_TOL_BYTES / 2) / GIB,
        kinds=tuple(k for k in RECOMPUTE_KINDS if f"recompute={k}" not in problem.options.forbid),
        empty_ends=ends_may_be_empty(problem, p * v),
        **_memory(problem, prices, c, classes, moments),  # type: ignore[arg-type]
    )


def _memory(
    problem: Problem, prices: Prices, c: int, classes: np.ndarray, moments: Sequence[np.ndarray]
) -> dict[str, object]:
    """Memory coefficients: the terms of `planner.cost.stage.memory_bytes`, with the chunks apart."""
    kinds = layer_kinds(problem.model)
    assert kinds is not None
    scale = 1 / prices.allocated_fraction / GIB
    # Of every stage, [stage, kind].
    whole, selective, full, working, again = (
        sizes[c, :, classes]
        for sizes in (
            prices.layer_activation_bytes,
            prices.layer_activation_selective_bytes,
            prices.layer_activation_full_bytes,
            prices.layer_working_bytes,
            prices.layer_recompute_peak_bytes,
        )
    )
    state = prices.layer_state_bytes[c].sum(axis=-1) * scale
    peaks, selective_peaks, p = working + again, working + whole - selective, len(classes)
    base, more, more_selective = [], np.zeros(p), np.zeros(p)

    def most(of_layer: Floats, kept_bytes: Floats, present: list[int], s: int) -> float:
        """The most that passes: in a layer, or in the embedding, where what a layer kept is gone."""
        largest = max(float(of_layer[s, kind]) for kind in present)
        if s > 0:
            return largest
        gone = min(float(kept_bytes[s, kind]) for kind in present)
        return max(largest, float(prices.embedding_peak_bytes[c]) - gone)

    for s in range(p):
        lead = kinds.num_lead if s == 0 else 0
        present = [kinds.main, kinds.lead] if lead else [kinds.main]
        passing = most(working, whole, present, s)
        held = moments[s]
        total = np.zeros(len(held))
        if s == 0:
            total += float(prices.embedding_state_bytes[c].sum())
            total += held[:, 0] * float(prices.embedding_activation_bytes[c])
        if s == p - 1:
            total += float(prices.head_state_bytes[c].sum())
            total += held[:, -1] * float(prices.head_activation_bytes[c, classes[s]])
            passing = max(passing, float(prices.head_peak_bytes[c]))
        total += passing + float(prices.pipeline_buffer_bytes[c])
        more[s] = (max(passing, most(peaks, full, present, s)) - passing) * scale
        more_selective[s] = (max(passing, most(selective_peaks, selective, present, s)) - passing) * scale
        fixed = float(outside_bytes(prices, c, classes[s], s in (0, p - 1), p)) / GIB
        base.append(total * scale + fixed + lead * float(state[kinds.lead] - state[kinds.main]))
    return {
        "state_gib": float(state[kinds.main]),
        "kept_gib": whole[:, kinds.main] * scale,
        "kept_selective_gib": selective[:, kinds.main] * scale,
        "kept_full_gib": full[:, kinds.main] * scale,
        "lead_kept_gib": tuple(float(one[0, kinds.lead]) * scale for one in (whole, selective, full)),
        "base_gib": tuple(base),
        "full_peak_gib": more,
        "selective_peak_gib": more_selective,
    }
