"""Coefficients of one pipeline whose stages have shapes of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from formulations.stage_selection_data import StageSelectionData
from planner.cost.communication.mesh_groups import further_communicator_bytes
from planner.cost.communication.resharding import mesh_hops_s
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.coefficients import entry_coefficients
from planner.search.entries import Entries
from planner.search.meshes.shapes import Batch
from planner.search.tables import Start, start_of
from planner.units import GIB, MS


class MeshTables:
    """Coefficients of pipelines of one search."""

    def __init__(self, problem: Problem, prices: Prices, batches: Sequence[Batch]) -> None:
        self.problem, self.prices, self.batches = problem, prices, batches

    def data(self, choice: int, order: Sequence[int]) -> StageSelectionData:
        """Coefficients of one pipeline: batch number `choice`, the shape of every stage.

        Only here, where all shapes are known, do the communicators of all its pipeline groups count.
        """
        batch = self.batches[choice]
        shapes = [batch.shapes[k] for k in order]
        hops = mesh_hops_s(self.problem, self.prices, shapes)
        hops[-1] = 0.0
        entries = Entries(
            choice=batch.choice[list(order)],
            node_class=batch.node_class[list(order)],
            position=np.arange(len(order)),
            num_stages=len(order),
        )
        returning = np.concatenate([[0.0], hops[:-1]])
        data = entry_coefficients(self.problem, self.prices, entries, batch.num_microbatches, hops, returning)
        tied = float(tied_ms(self.prices, batch)[order[0], order[-1]]) if len(order) > 1 else 0.0
        degrees = [(shape.tensor_parallel, shape.data_parallel) for shape in shapes]
        further = np.array(further_communicator_bytes(self.problem, degrees)) / GIB
        data = replace(
            data,
            constant_ms=tied,
            base_gib=data.base_gib + further,
            step_base_gib=data.step_base_gib + further,
        )
        return with_mode(data, batch.selective)

    def start(self, choice: int, order: Sequence[int]) -> Start:
        """Coefficients of one pipeline, and what follows from them before any layer is placed."""
        return start_of(self.data(choice, order))


def tied_ms(prices: Prices, batch: Batch) -> Floats:
    """What sharing an embedding adds to a step with these at its ends, [shape, shape]: the longer side's."""
    row, c = batch.choice, batch.node_class
    one = prices.tied_sync_s[row[:, None], c[:, None], c]
    both: Floats = np.maximum(one, prices.tied_sync_s[row, c[:, None], c]) / MS
    return both


def least_hops_ms(problem: Problem, prices: Prices, batch: Batch) -> Floats:
    """Least time of a hop that a stage of each shape takes part in, [shape].

    Inside a host only where the stage leaves room for another one in it.
    """
    per_node = np.array([c.chips_per_node for c in problem.cluster.classes])
    out = prices.send_s[batch.choice, batch.node_class].min(axis=1)
    into = prices.send_s[batch.choice, :, batch.node_class].min(axis=1)
    inside = prices.send_inside_s[batch.choice, batch.node_class]
    through = np.minimum(out, into)
    hop: Floats = np.where(batch.num_chips < per_node[batch.node_class], np.minimum(through, inside), through)
    return hop / MS


def cross_hops_ms(prices: Prices, batch: Batch) -> Floats:
    """Least time of a hop between a stage of each shape and one of any other class, [shape, class].

    Such a hop leaves the host, and takes no less than what either of its stages must move.
    """
    out = prices.send_s[batch.choice, batch.node_class]
    hop: Floats = np.minimum(out, prices.send_s[batch.choice, :, batch.node_class]) / MS
    return hop


def with_mode(data: StageSelectionData, selective: bool | None) -> StageSelectionData:
    """Coefficients where core attention is recomputed on every stage, or on none."""
    if selective is None:
        return data
    none = np.zeros_like(data.selective_saves_gib)
    if not selective:
        return replace(data, selective_saves_gib=none, lead_selective_saves_gib=none)
    lead = data.lead
    return replace(
        data,
        backward_ms=data.backward_ms + data.selective_ms,
        base_backward_ms=data.base_backward_ms + data.selective_more_ms,
        layer_gib=data.layer_gib - data.selective_saves_gib,
        base_gib=data.base_gib
        + data.selective_peak_gib
        - lead * (data.lead_selective_saves_gib - data.selective_saves_gib),
        selective_peak_gib=none,
        selective_saves_gib=none,
        lead_selective_saves_gib=none,
        full_saves_gib=none,
        lead_full_saves_gib=none,
        lead_full_peak_gib=none,
        alone_gib=None if data.alone_gib is None else data.alone_gib[[1, 1, 1, 3]],
    )
