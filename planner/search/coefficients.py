"""Turn prices into the coefficients of `stage_selection`, for one choice and one order of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from formulations.stage_selection_data import StageSelectionData
from planner.cost.pipelines import in_pipeline_of, outside_bytes
from planner.cost.prices import STATES, Floats, Prices
from planner.cost.stage import in_flight_1f1b
from planner.cost.stage_memory import kept_of_layers
from planner.data.problem import Problem
from planner.search.entries import Entries, entries_of, order_hops_s
from planner.search.kinds import LayerKinds, layer_kinds
from planner.tolerances import MEMORY_TOL_BYTES
from planner.units import GIB, MS


def stage_coefficients(
    problem: Problem,
    prices: Prices,
    choice: int,
    stage_size: int,
    num_microbatches: int,
    class_of_stage: Sequence[int],
    *,
    with_sends: bool = True,
    whole: bool = True,
    rows_apart: tuple[int, int] | None = None,
) -> StageSelectionData:
    """Coefficients of a pipeline whose stage s runs on class `class_of_stage[s]` [ms, GiB].

    The model's layers are of one kind, or begin with some of another, which all lie on stage 0: n counts
    both there, and the base terms hold how the leading ones differ. The memory limit is raised by half
    of what the referee takes for rounding, so that the solver's own tolerance never hides a plan.
    Without sends the times are those of the stages alone, which no neighbour changes. `whole` tells whether
    these are stages as they are, which may be without a layer, or the sums of virtual ones. `rows_apart` are
    the rows of the prices of the last stage and the one before, where that has predictions of further tokens.
    """
    p = len(class_of_stage)
    hops = order_hops_s(problem, prices, choice, stage_size, class_of_stage, rows_apart)
    hops[-1] = 0.0
    if not with_sends:
        hops = np.zeros(p)
    entries = entries_of(problem, choice, p, class_of_stage, rows_apart)
    if not whole:
        entries = replace(entries, may_be_empty=None, must_be_empty=None)
    returning = np.concatenate([[0.0], hops[:-1]])
    return entry_coefficients(problem, prices, entries, num_microbatches, hops, returning)


def entry_coefficients(
    problem: Problem,
    prices: Prices,
    entries: Entries,
    num_microbatches: int,
    hops: Floats,
    returning: Floats,
) -> StageSelectionData:
    """Coefficients of stages at any position, each with its own row of the prices [ms, GiB].

    Parameters
    ----------
    hops, returning
        [entry] sends to the next stage and back to the one before [s].
    """
    classes, c = entries.node_class, entries.choice
    first_stage, last_stage = entries.position == 0, entries.has_head
    only_stage = first_stage & last_stage

    kinds = layer_kinds(problem.model)
    assert kinds is not None
    lead = np.where(first_stage, kinds.num_lead, 0)

    def of_layers(array: Floats) -> tuple[Floats, Floats]:
        """Values [row, entry] of a layer, and of one of the leading kind, both in ms."""
        main = array[:, c, kinds.main, classes] / MS
        return main, array[:, c, kinds.lead, classes] / MS if kinds.num_lead else main

    def ends(embedding: Floats, head: Floats) -> Floats:
        """What stages with embedding or head pay beside their layers, [row, entry]."""
        total: Floats = np.where(first_stage, embedding, 0.0) + np.where(last_stage, head, 0.0)
        return total

    layer, leading = of_layers(prices.layer_times_s)
    pieces = prices.end_times_s[:, :, c, classes] / MS
    base = ends(pieces[0], pieces[1])
    once, leading_once = of_layers(prices.layer_tasks_s)
    pieces = prices.end_tasks_s[:, :, c, classes] / MS
    base_once = ends(pieces[0], np.where(only_stage, pieces[2], pieces[1]))
    if kinds.num_lead:
        base, base_once = base + lead * (leading[:2] - layer[:2]), base_once + lead * (leading_once - once)
    # Where sends block the sender they lengthen its passes, but hide no part of the synchronisation.
    hops, blocked, wait = hops / MS, np.zeros((2, len(c))), np.zeros(len(c))
    if not problem.stack.p2p_overlap:
        hops, blocked = np.zeros(len(c)), np.array([hops, returning / MS])
        wait = blocked[1] if problem.stack.p2p_after_gradient else wait
    hidden, again = prices.hidden_fraction, prices.predictions_selective_s.sum(axis=-1)[c, classes]
    one_bucket = ~first_stage & prices.later_stages_have_one_bucket
    memory = _memory(prices, entries, kinds, num_microbatches, problem.options.forbid)
    return StageSelectionData(
        num_layers=problem.model.num_layers,
        num_microbatches=num_microbatches,
        forward_ms=layer[0],
        base_forward_ms=base[0] + blocked[0],
        backward_ms=layer[1],
        base_backward_ms=base[1] + blocked[1],
        selective_ms=layer[2],
        full_ms=layer[3],
        send_ms=hops,
        wait_ms=wait,
        reduce_ms=once[0],
        base_reduce_ms=base_once[0] + hidden * blocked[1],
        reduce_tail_ms=prices.reduce_tail_s[c, classes] / MS,
        bucket_ms=np.where(one_bucket, once[0], 0.0),
        base_bucket_ms=np.where(one_bucket, base_once[0], 0.0),
        gather_ms=once[1],
        base_gather_ms=base_once[1] + hidden * blocked[0],
        gather_tail_ms=prices.gather_tail_s[c, classes] / MS,
        optimizer_ms=once[2],
        base_optimizer_ms=base_once[2] + prices.step_fixed_s[c, classes] / MS,
        hidden_fraction=hidden,
        lead=lead,
        lead_full_ms=leading[3],
        lead_selective_ms=leading[2],
        predictions_selective_ms=np.where(entries.has_predictions, again / MS, 0.0),
        constant_ms=_least_tied_ms(prices, entries, tied_embeddings=problem.model.tied_embeddings),
        alike=None,
        may_be_empty=entries.may_be_empty,
        must_be_empty=entries.must_be_empty,
        **memory,
    )


def _least_tied_ms(prices: Prices, entries: Entries, *, tied_embeddings: bool) -> float:
    """What an embedding that both ends hold adds: to one pipeline, or at least to any of these ends [ms].

    The rows of the prices are those of its last holders; 0 where the entries hold no ends of a pipeline.
    Beside predictions on a stage of their own that is one of two holders, or of three with a tied head.
    """
    if entries.num_stages == 1:
        return 0.0
    holders = [0, entries.num_stages - 1]
    if entries.predicts is not None:
        holders = [0, entries.num_stages - 2, *(holders[1:] if tied_embeddings else [])]
    longest = 0.0
    for one, other in combinations(holders, 2):
        here, there = (entries.position == s for s in (one, other))
        for row in entries.choice[there][:1]:
            pairs = prices.tied_sync_s[row][np.ix_(entries.node_class[here], entries.node_class[there])]
            longest = max(longest, float(pairs.min(initial=np.inf)) if pairs.size else 0.0)
    return longest / MS


def _memory(
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
    first_stage, last_stage = entries.position == 0, entries.has_head
    lead = np.where(first_stage, kinds.num_lead, 0)
    held = [in_flight_1f1b(p, s, num_microbatches, planned=prices.plans_memory) for s in range(p)]
    in_flight = np.array(held, dtype=np.float64)[entries.position]
    if entries.in_flight is not None:
        in_flight = entries.in_flight
    scale = 1 / prices.allocated_fraction / GIB

    def of_class(sizes: Floats) -> Floats:
        """Sizes of a layer [choice, kind, node_class] on each entry's class, [entry, kind]."""
        return np.asarray(sizes[c, :, n])

    activations = of_class(prices.layer_activation_bytes)
    kept = prices.layer_state_bytes[c].sum(axis=-1) + in_flight[:, None] * activations

    def saved(recompute: str, kept_bytes: Floats) -> Floats:
        """What a layer of each kind saves in [entry, kind]: nothing where that is forbidden."""
        less: Floats = in_flight[:, None] * (activations - of_class(kept_bytes)) * scale
        return np.zeros_like(less) if f"recompute={recompute}" in forbid else less

    def most(peaks: Floats) -> Floats:
        """The larger of the kinds that a stage holds, of sizes [entry, kind]."""
        main = peaks[:, kinds.main]
        return np.where(lead > 0, np.maximum(main, peaks[:, kinds.lead]), main) if kinds.num_lead else main

    def embedding(recompute: str) -> Floats:
        """What the embedding's backward makes beyond what is gone by then, as `stage_memory` has it."""
        gone = -most(-of_class(kept_of_layers(prices, recompute)))
        return np.where(first_stage, prices.embedding_peak_bytes[c] - gone, 0.0)

    working_of_kind = of_class(prices.layer_working_bytes)
    working = np.maximum(most(working_of_kind), embedding("none"))
    base_working = np.where(last_stage, np.maximum(working, prices.head_peak_bytes[c]), working)
    of_kind = working_of_kind + of_class(prices.layer_recompute_peak_bytes)
    peaks = np.maximum(of_kind, embedding("full")[:, None])
    peak = most(peaks)
    again = activations - of_class(prices.layer_activation_selective_bytes)
    selective_peak = np.maximum(most(working_of_kind + again), embedding("selective"))
    embedding_state = prices.embedding_state_bytes[c].sum(axis=-1)
    base = np.where(first_stage, embedding_state + in_flight * prices.embedding_activation_bytes[c], 0.0)
    head_state = prices.head_state_bytes[c].sum(axis=-1)
    beside = prices.head_beside_embedding_state_bytes[c].sum(axis=-1)
    head_state = np.where(first_stage, beside, head_state)
    base = base + np.where(last_stage, head_state + in_flight * prices.head_activation_bytes[c, n], 0.0)
    buffers = prices.pipeline_buffer_bytes[c] if p > 1 else np.zeros(len(c))
    base = base + base_working + buffers
    if kinds.num_lead:
        base = base + lead * (kept[:, kinds.lead] - kept[:, kinds.main])
    stepping, ends = in_step(prices, entries, kinds)
    ends, alone = ends + most(prices.layer_placeholder_bytes[c]) + buffers, None
    if kinds.num_lead:
        passing = _passing_of_leading_layers(prices, entries, kinds)
        whole = [base_working, np.maximum(base_working, selective_peak)]
        whole += [np.maximum(base_working, peaks[:, kinds.lead]), most(prices.layer_placeholder_bytes[c])]
        alone = np.where(first_stage & ~last_stage, np.array(whole) - passing, 0.0) * scale
    if entries.may_be_empty is not None and entries.may_be_empty.any():
        # Beside no layer only the embedding or the head passes, whatever would be recomputed.
        passing = np.where(first_stage, prices.embedding_peak_bytes[c], 0.0)
        passing = np.maximum(passing, np.where(last_stage, prices.head_peak_bytes[c], 0.0))
        whole = [base_working, np.maximum(base_working, selective_peak), np.maximum(base_working, peak)]
        less = np.array([*(of - passing for of in whole), most(prices.layer_placeholder_bytes[c])]) * scale
        alone = np.where(entries.may_be_empty & (lead == 0), less, 0.0 if alone is None else alone)
    selective = saved("selective", prices.layer_activation_selective_bytes)
    full = saved("full", prices.layer_activation_full_bytes)
    lengths = np.full(len(c), p) if entries.fewest_stages is None else entries.fewest_stages
    whole, at_least = first_stage | last_stage, entries.fewest_stages is not None
    fixed_gib = outside_bytes(prices, c, n, whole, lengths, at_least=at_least) / GIB
    return {
        "layer_gib": kept[:, kinds.main] * scale,
        "selective_saves_gib": selective[:, kinds.main],
        "full_saves_gib": full[:, kinds.main],
        "lead_selective_saves_gib": selective[:, kinds.lead],
        "lead_full_saves_gib": full[:, kinds.lead],
        "full_peak_gib": (np.maximum(base_working, peak) - base_working) * scale,
        "lead_full_peak_gib": (np.maximum(base_working, peaks[:, kinds.lead]) - base_working) * scale,
        "selective_peak_gib": (np.maximum(base_working, selective_peak) - base_working) * scale,
        "base_gib": base * scale + fixed_gib,
        "step_layer_gib": stepping * scale,
        "step_base_gib": ends * scale + fixed_gib,
        "limit_gib": (prices.limit_bytes[n] + MEMORY_TOL_BYTES / 2) / GIB,
        "alone_gib": alone,
    }


def _passing_of_leading_layers(prices: Prices, entries: Entries, kinds: LayerKinds) -> Floats:
    """What passes in a first stage of leading layers alone, [mode, entry] in bytes.

    Modes: nothing recomputed, core attention, whole layers; then what the optimizer's step makes.
    """
    c, kind, n = entries.choice, kinds.lead, entries.node_class
    working, kept = prices.layer_working_bytes[c, kind, n], prices.layer_activation_bytes[c, kind, n]
    again = [
        np.zeros(len(c)),
        kept - prices.layer_activation_selective_bytes[c, kind, n],
        prices.layer_recompute_peak_bytes[c, kind, n],
    ]
    embedding = [
        prices.embedding_peak_bytes[c] - kept_of_layers(prices, recompute)[c, kind, n]
        for recompute in ("none", "selective", "full")
    ]
    passing = np.maximum(working + np.array(again), embedding)
    return np.array([*passing, prices.layer_placeholder_bytes[c, kind]])


def in_step(prices: Prices, entries: Entries, kinds: LayerKinds) -> tuple[Floats, Floats]:
    """What a layer, and all else, holds in the optimizer's step, [entry] in bytes.

    Zeros where the step makes nothing of its own, as a backward then holds more.
    """
    c, share = entries.choice, prices.step_copy_share
    if not share:
        return np.zeros(len(c)), np.zeros(len(c))
    first, last = entries.position == 0, entries.has_head

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
