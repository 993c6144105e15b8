"""Turn prices into the coefficients of `stage_selection`, for one choice and one order of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.stage_selection_data import StageSelectionData
from planner.cost.hops import hop_send_s
from planner.cost.prices import Floats, Prices
from planner.cost.stage import in_flight_1f1b
from planner.data.problem import Problem
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
) -> StageSelectionData:
    """Coefficients of a pipeline whose stage s runs on class `class_of_stage[s]` [ms, GiB].

    The model's layers are of one kind, or begin with some of another, which all lie on stage 0: n counts
    both there, and the base terms hold how the leading ones differ. The memory limit is raised by half
    of what the referee takes for rounding, so that the solver's own tolerance never hides a plan.
    Without sends the times are those of the stages alone, which no neighbour changes.
    """
    p, last = len(class_of_stage), len(class_of_stage) - 1
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]
    send, inside = prices.send_s[choice], prices.send_inside_s[choice]
    hops = hop_send_s(send, inside, class_of_stage, stage_size, per_node)
    hops[last] = 0.0
    if not with_sends:
        hops = np.zeros(p)
    entries = Entries(
        choice=np.full(p, choice, dtype=np.int64),
        node_class=np.array(class_of_stage),
        position=np.arange(p),
        num_stages=p,
    )
    returning = np.concatenate([[0.0], hops[:-1]])
    return entry_coefficients(problem, prices, entries, num_microbatches, hops, returning)


@dataclass(frozen=True)
class Entries:
    """Stages of pipelines of one length, one an entry: they need not belong to one pipeline."""

    choice: NDArray[np.int64]
    """[entry] row of the prices."""
    node_class: NDArray[np.int64]
    """[entry]"""
    position: NDArray[np.int64]
    """[entry] place of the stage in its pipeline."""
    num_stages: int
    """Stages of the pipelines."""


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
    classes, c, p = entries.node_class, entries.choice, entries.num_stages
    first_stage, last_stage = entries.position == 0, entries.position == p - 1
    only_stage = first_stage & last_stage

    def by_class(array: Floats) -> Floats:
        chosen: Floats = array[c, classes]
        return chosen

    kinds = layer_kinds(problem.model)
    assert kinds is not None
    lead = np.where(first_stage, kinds.num_lead, 0)

    def layer(array: Floats) -> Floats:
        chosen: Floats = array[c, kinds.main, classes]
        return chosen

    def leading(array: Floats) -> Floats:
        chosen: Floats = array[c, kinds.lead, classes]
        return chosen

    def difference(array: Floats) -> Floats:
        """What the leading layers of a stage cost beyond as many others, once a step."""
        return lead * (leading(array) - layer(array))

    def seconds(array: Floats) -> Floats:
        """Sum over the parts of a time."""
        total: Floats = array.sum(axis=-1)
        return total

    def ends(embedding: Floats, head: Floats, beside: Floats | None = None) -> Floats:
        """What the first and the last stage pay beside their layers; `beside`: a head with the embedding."""
        if beside is not None:
            head = np.where(only_stage, beside, head)
        total: Floats = np.where(first_stage, embedding, 0.0) + np.where(last_stage, head, 0.0)
        return total

    def ends_once(task: str) -> Floats:
        """The same, once a step."""
        names = (f"{piece}_{task}_s" for piece in ("embedding", "head", "head_beside_embedding"))
        return ends(*(by_class(getattr(prices, name)) for name in names))

    forward = seconds(layer(prices.layer_forward_s))
    backward = seconds(layer(prices.layer_backward_s))
    base_forward = ends(
        seconds(by_class(prices.embedding_forward_s)), seconds(by_class(prices.head_forward_s))
    ) + lead * (seconds(leading(prices.layer_forward_s)) - forward)
    base_backward = ends(
        seconds(by_class(prices.embedding_backward_s)), seconds(by_class(prices.head_backward_s))
    ) + lead * (seconds(leading(prices.layer_backward_s)) - backward)
    # Where sends block the sender they lengthen its passes, but hide no part of the synchronisation.
    blocked_forward, blocked_backward = np.zeros(len(c)), np.zeros(len(c))
    if not problem.stack.p2p_overlap:
        blocked_forward, blocked_backward = hops, returning
        hops = np.zeros(len(c))
    base_reduce = ends_once("reduce") + difference(prices.layer_reduce_s)
    base_gather = ends_once("gather") + difference(prices.layer_gather_s)
    memory = _memory(prices, entries, kinds, num_microbatches, problem.options.forbid)
    return StageSelectionData(
        num_layers=problem.model.num_layers,
        num_microbatches=num_microbatches,
        forward_ms=forward / MS,
        base_forward_ms=(base_forward + blocked_forward) / MS,
        backward_ms=backward / MS,
        base_backward_ms=(base_backward + blocked_backward) / MS,
        selective_ms=seconds(layer(prices.layer_selective_s)) / MS,
        full_ms=seconds(layer(prices.layer_full_s)) / MS,
        send_ms=hops / MS,
        reduce_ms=layer(prices.layer_reduce_s) / MS,
        base_reduce_ms=(base_reduce + prices.hidden_fraction * blocked_backward) / MS,
        reduce_tail_ms=by_class(prices.reduce_tail_s) / MS,
        gather_ms=layer(prices.layer_gather_s) / MS,
        base_gather_ms=(base_gather + prices.hidden_fraction * blocked_forward) / MS,
        gather_tail_ms=by_class(prices.gather_tail_s) / MS,
        optimizer_ms=layer(prices.layer_optimizer_s) / MS,
        base_optimizer_ms=(
            ends_once("optimizer") + by_class(prices.step_fixed_s) + difference(prices.layer_optimizer_s)
        )
        / MS,
        hidden_fraction=prices.hidden_fraction,
        lead=lead,
        lead_full_ms=seconds(leading(prices.layer_full_s)) / MS,
        lead_selective_ms=seconds(leading(prices.layer_selective_s)) / MS,
        constant_ms=float(prices.tied_sync_s[c[0]]) / MS if p > 1 else 0.0,
        **memory,
    )


def _memory(
    prices: Prices,
    entries: Entries,
    kinds: LayerKinds,
    num_microbatches: int,
    forbid: Sequence[str],
) -> dict[str, Floats]:
    """Memory coefficients: the terms of `planner.cost.stage.memory_bytes`, linear in the layers.

    A forbidden kind of recomputation saves nothing, so that it is never chosen.
    """
    c, p = entries.choice, entries.num_stages
    first_stage, last_stage = entries.position == 0, entries.position == p - 1
    lead = np.where(first_stage, kinds.num_lead, 0)
    held = [in_flight_1f1b(p, s, num_microbatches) for s in range(p)]
    in_flight = np.array(held, dtype=np.float64)[entries.position]
    scale = 1 / prices.allocated_fraction / GIB

    def kept(kind: int) -> Floats:
        states = prices.layer_state_bytes[c, kind].sum(axis=-1)
        total: Floats = states + in_flight * prices.layer_activation_bytes[c, kind]
        return total

    def saved(kept_bytes: Floats, kind: int) -> Floats:
        less: Floats = in_flight * (prices.layer_activation_bytes[c, kind] - kept_bytes[c, kind]) * scale
        return less

    present = [kinds.main] + ([kinds.lead] if kinds.num_lead else [])
    working = np.where(
        lead > 0,
        np.max([prices.layer_working_bytes[c, kind] for kind in present], axis=0),
        prices.layer_working_bytes[c, kinds.main],
    )
    base_working = np.where(last_stage, np.maximum(working, prices.head_peak_bytes[c]), working)
    peaks = prices.layer_working_bytes[c] + prices.layer_recompute_peak_bytes[c]
    peak = np.where(lead > 0, np.max([peaks[:, kind] for kind in present], axis=0), peaks[:, kinds.main])
    again = prices.layer_activation_bytes[c] - prices.layer_activation_selective_bytes[c]
    peaks = prices.layer_working_bytes[c] + again
    selective_peak = np.where(
        lead > 0, np.max([peaks[:, kind] for kind in present], axis=0), peaks[:, kinds.main]
    )
    embedding_state = prices.embedding_state_bytes[c].sum(axis=-1)
    base = np.where(first_stage, embedding_state + in_flight * prices.embedding_activation_bytes[c], 0.0)
    head_state = prices.head_state_bytes[c].sum(axis=-1)
    beside = prices.head_beside_embedding_state_bytes[c].sum(axis=-1)
    head_state = np.where(first_stage, beside, head_state)
    base = base + np.where(last_stage, head_state + in_flight * prices.head_activation_bytes[c], 0.0)
    base = base + base_working + (prices.pipeline_buffer_bytes[c] if p > 1 else 0.0)
    base = base + lead * (kept(kinds.lead) - kept(kinds.main))
    selective, full = prices.layer_activation_selective_bytes, prices.layer_activation_full_bytes
    if "recompute=selective" in forbid:
        selective = prices.layer_activation_bytes
    if "recompute=full" in forbid:
        full = prices.layer_activation_bytes
    return {
        "layer_gib": kept(kinds.main) * scale,
        "selective_saves_gib": saved(selective, kinds.main),
        "full_saves_gib": saved(full, kinds.main),
        "lead_selective_saves_gib": saved(selective, kinds.lead),
        "lead_full_saves_gib": saved(full, kinds.lead),
        "full_peak_gib": (np.maximum(base_working, peak) - base_working) * scale,
        "selective_peak_gib": (np.maximum(base_working, selective_peak) - base_working) * scale,
        "base_gib": base * scale + prices.fixed_bytes[c, entries.node_class] / GIB,
        "limit_gib": (prices.limit_bytes[entries.node_class] + MEMORY_TOL_BYTES / 2) / GIB,
    }
