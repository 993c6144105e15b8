"""Turn prices into the coefficients of `stage_selection`, for one choice and one order of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from formulations.stage_selection_data import StageSelectionData
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.entries import Entries, entries_of, order_hops_s
from planner.search.kinds import kinds_of
from planner.search.memory_coefficients import memory_coefficients
from planner.units import MS


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
    first_stage, last_stage = entries.is_first, entries.has_head
    kinds = kinds_of(problem)
    assert kinds is not None
    lead = np.where(first_stage, kinds.num_lead, 0) if kinds.num_lead else np.zeros(len(c), dtype=np.int64)
    # Rows of flat tables: taking them is several times faster than by an index for every axis.
    num_kinds, num_classes = prices.layer_rows_s.shape[2:]
    layer_rows = prices.layer_rows_s.reshape(len(prices.layer_rows_s), -1)
    place = c * num_classes + classes

    def of_layers(kind: int) -> Floats:
        """Times and tasks [row, entry] of a layer of a kind [ms]."""
        rows: Floats = layer_rows.take((c * num_kinds + kind) * num_classes + classes, axis=1) / MS
        return rows

    layer = of_layers(kinds.main)
    leading = of_layers(kinds.lead) if kinds.num_lead else layer
    of_ends = prices.end_rows_s.reshape(*prices.end_rows_s.shape[:2], -1).take(place, axis=2) / MS
    embedding, head, beside = of_ends
    of_stages = prices.stage_rows_s.reshape(len(prices.stage_rows_s), -1).take(place, axis=1) / MS
    reduce_tail, gather_tail, step_fixed, again = of_stages
    if entries.num_stages <= 2:  # else no stage has both ends
        head[2:] = np.where(first_stage & last_stage, beside[2:], head[2:])
    # What stages with embedding or head pay beside their layers.
    base: Floats = np.where(first_stage, embedding, 0.0) + np.where(last_stage, head, 0.0)
    if kinds.num_lead:
        base = base + lead * (leading - layer)[[0, 1, 4, 5, 6]]
    hidden = prices.hidden_fraction
    in_bucket = np.zeros((2, len(c)))
    if prices.later_stages_have_one_bucket:
        in_bucket = np.where(first_stage, 0.0, (layer[4], base[2]))
    # Where sends block the sender they lengthen its passes, but hide no part of the synchronisation.
    hops, wait = hops / MS, np.zeros(len(c))
    if not problem.stack.p2p_overlap:
        blocked = np.array([hops, returning / MS])
        hops = np.zeros(len(c))
        wait = blocked[1] if problem.stack.p2p_after_gradient else wait
        base[:2] += blocked
        base[2:4] += hidden * blocked[::-1]
    return StageSelectionData(
        num_layers=problem.model.num_layers,
        num_microbatches=num_microbatches,
        forward_ms=layer[0],
        base_forward_ms=base[0],
        backward_ms=layer[1],
        base_backward_ms=base[1],
        selective_ms=layer[2],
        full_ms=layer[3],
        send_ms=hops,
        wait_ms=wait,
        reduce_ms=layer[4],
        base_reduce_ms=base[2],
        reduce_tail_ms=reduce_tail,
        bucket_ms=in_bucket[0],
        base_bucket_ms=in_bucket[1],
        gather_ms=layer[5],
        base_gather_ms=base[3],
        gather_tail_ms=gather_tail,
        optimizer_ms=layer[6],
        base_optimizer_ms=base[4] + step_fixed,
        hidden_fraction=hidden,
        lead=lead,
        lead_full_ms=leading[3],
        lead_selective_ms=leading[2],
        predictions_selective_ms=np.where(entries.has_predictions, again, 0.0),
        constant_ms=_least_tied_ms(prices, entries, tied_embeddings=problem.model.tied_embeddings),
        alike=None,
        may_be_empty=entries.may_be_empty,
        must_be_empty=entries.must_be_empty,
        **memory_coefficients(prices, entries, kinds, num_microbatches, problem.options.forbid),
    )


def _least_tied_ms(prices: Prices, entries: Entries, *, tied_embeddings: bool) -> float:
    """What an embedding that both ends hold adds: to one pipeline, or at least to any of these ends [ms].

    The rows of the prices are those of its last holders; 0 where the entries hold no ends of a pipeline.
    Beside predictions on a stage of their own that is one of two holders, or of three with a tied head.
    """
    if entries.num_stages == 1 or not np.count_nonzero(prices.tied_sync_s):
        return 0.0
    holders = [0, entries.num_stages - 1]
    if entries.predicts is not None:
        holders = [0, entries.num_stages - 2, *(holders[1:] if tied_embeddings else [])]
    longest = 0.0
    for one, other in combinations(holders, 2):
        here, there = (entries.position == s for s in (one, other))
        for row in entries.choice[there][:1]:
            pairs = prices.tied_sync_s[row][entries.node_class[here]][:, entries.node_class[there]]
            longest = max(longest, float(pairs.min(initial=np.inf)) if pairs.size else 0.0)
    return longest / MS
