"""Data and answer of `stage_selection`, shared by its linear and its integer form.

Names as in the docstring of `stage_selection`; times in ms, sizes in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.options import Status
from formulations.pipeline_rows import Floats, core_values, row_name, step_bound, through_name
from formulations.written_rows import RowName
from planner.tolerances import COUNT_TOL, NO_ZERO

ROW_TOL = 1e-7
"""Relative violation of a row below which it is not added."""


@dataclass(frozen=True)
class StageSelectionData:
    """Coefficients of one outer choice; all arrays are [stage].

    In the docstring of `stage_selection` these are, in order: L, m, f, f0, b, b0, g1, g2, c (the last entry
    is not used), w, a, a0, v1, v2, w2, w1, M, r, r0, rt, rb, rb0, h, h0, ht, o, o0 (without ht), e, K; then
    l and what it costs, of which l1 and lv are made; A and A'. Base terms are of embedding and head.
    """

    num_layers: int
    num_microbatches: int
    forward_ms: Floats
    base_forward_ms: Floats
    backward_ms: Floats
    base_backward_ms: Floats
    selective_ms: Floats
    full_ms: Floats
    send_ms: Floats
    wait_ms: Floats
    layer_gib: Floats
    base_gib: Floats
    selective_saves_gib: Floats
    full_saves_gib: Floats
    full_peak_gib: Floats
    selective_peak_gib: Floats
    limit_gib: Floats
    step_layer_gib: Floats
    """Memory of a layer in the optimizer's step, where no activations are left; 0 where it needs no more."""
    step_base_gib: Floats
    """The same of all else."""
    reduce_ms: Floats
    base_reduce_ms: Floats
    reduce_tail_ms: Floats
    bucket_ms: Floats
    """Reduction of a layer where the stage reduces in one bucket, which nothing of its own hides; else 0."""
    base_bucket_ms: Floats
    """The same of embedding and head."""
    gather_ms: Floats
    base_gather_ms: Floats
    gather_tail_ms: Floats
    optimizer_ms: Floats
    base_optimizer_ms: Floats
    hidden_fraction: float
    constant_ms: float
    """What every plan of the choice adds to the step (tied embeddings)."""
    lead: NDArray[np.int64]
    """Layers of another kind that the stage begins with; the base terms hold how they differ."""
    lead_full_ms: Floats
    """More backward of one such layer recomputed in full."""
    lead_full_saves_gib: Floats
    """Memory that this saves."""
    lead_full_peak_gib: Floats
    """In the place of `full_peak_gib` where no layer but these is recomputed; no larger."""
    lead_selective_ms: Floats
    """More backward of one such layer with core attention recomputed."""
    lead_selective_saves_gib: Floats
    """Memory that this saves."""
    predictions_selective_ms: Floats
    """More backward of the layers that predict further tokens, beside the head, with core attention
    recomputed."""
    alone_gib: Floats | None = None
    """[mode, stage] how much less passes where the stage holds its leading layers alone, or none (n = l), by
    what it recomputes: nothing, core attention, whole layers; the last row is of the optimizer's step. None
    where no stage begins with such layers or may be without any; negative where more passes."""
    may_be_empty: NDArray[np.bool_] | None = None
    """Stages that may be without a layer, with embedding or head alone, if l = 0; None where all have one."""
    must_be_empty: NDArray[np.bool_] | None = None
    """Stages of them that have none; None where any may."""
    alike: tuple[int, int] | None = None
    """Where one number of layers is recomputed in full on all stages: the least and the most it may be."""

    @property
    def selective_more_ms(self) -> Floats:
        """More backward with core attention recomputed than if all layers were alike, [stage] [ms]: l1."""
        lead: Floats = self.lead * (self.lead_selective_ms - self.selective_ms)
        return lead + self.predictions_selective_ms

    @property
    def num_stages(self) -> int:
        """p."""
        return len(self.forward_ms)


@dataclass(frozen=True)
class StageChoice:
    """Answer: layers of every stage and what it recomputes."""

    layers: tuple[int, ...]
    recompute: tuple[str, ...]
    recompute_layers: tuple[int, ...]


def most_layers(data: StageSelectionData) -> NDArray[np.int64]:
    """N[s]: every other stage keeps the layer it needs, and all fit with all recomputed, and in the step.

    Valid as a big-M: no feasible n[s] exceeds it.
    """
    saved = np.maximum(np.maximum(most_full_saves_gib(data), most_selective_saves_gib(data)), 0.0)
    least = data.layer_gib - saved
    room = data.limit_gib - data.base_gib
    by_memory = np.where(least > 0, np.floor(room / np.maximum(least, NO_ZERO) + COUNT_TOL), data.num_layers)
    by_memory = np.minimum(by_memory, most_layers_in_step(data))
    if data.alone_gib is not None:
        by_memory = np.maximum(by_memory, np.where(data.alone_gib.max(axis=0) > 0, data.lead, 0))
    needed = np.minimum(least_layers(data), 1)
    most = np.clip(by_memory, 0, data.num_layers - needed.sum() + needed)
    if data.must_be_empty is not None:
        most = np.where(data.must_be_empty, 0, most)
    return most.astype(np.int64)


def most_layers_in_step(data: StageSelectionData) -> Floats:
    """Most layers with which the optimizer's step of every stage fits, whatever is recomputed."""
    layer, room = data.step_layer_gib, data.limit_gib - data.step_base_gib
    most: Floats = np.where(
        layer > 0, np.floor(room / np.maximum(layer, NO_ZERO) + COUNT_TOL), data.num_layers
    )
    if data.alone_gib is None:
        return most
    alone = layer * data.lead - data.alone_gib[-1] <= room
    return np.where(alone, np.maximum(most, data.lead), most)


def least_layers(data: StageSelectionData) -> NDArray[np.int64]:
    """l0[s], fewest layers of every stage: one, none where it may be empty, or all that it begins with."""
    one = 1 if data.may_be_empty is None else 1 - data.may_be_empty.astype(np.int64)
    least: NDArray[np.int64] = np.maximum(data.lead, one)
    return least


def most_full_saves_gib(data: StageSelectionData) -> Floats:
    """v2[s], most memory that recomputing one layer in full saves, of either kind on the stage [GiB]."""
    return np.where(
        data.lead > 0, np.maximum(data.full_saves_gib, data.lead_full_saves_gib), data.full_saves_gib
    )


def least_full_peak_gib(data: StageSelectionData) -> Floats:
    """Least passing memory that recomputing any layer in full adds on the stage."""
    return np.where(data.lead > 0, data.lead_full_peak_gib, data.full_peak_gib)


def least_full_ms(data: StageSelectionData) -> Floats:
    """g2[s], least that recomputing one layer in full adds to the backward, of either kind there [ms]."""
    return np.where(data.lead > 0, np.minimum(data.full_ms, data.lead_full_ms), data.full_ms)


def most_selective_saves_gib(data: StageSelectionData) -> Floats:
    """Most memory that recomputing core attention of one layer saves, of either kind, [stage] [GiB]."""
    most = np.maximum(data.selective_saves_gib, data.lead_selective_saves_gib)
    return np.where(data.lead > 0, most, data.selective_saves_gib)


def times_ms(data: StageSelectionData, choice: StageChoice) -> tuple[Floats, Floats]:
    """Forward and backward of every stage for a choice, arrays [stage]."""
    n = np.array(choice.layers, dtype=np.float64)
    forward = data.forward_ms * n + data.base_forward_ms
    backward = data.backward_ms * n + data.base_backward_ms
    if any(choice.recompute_layers):
        full = np.array(choice.recompute_layers, dtype=np.float64)
        leading = (data.lead_full_ms - data.full_ms) * np.minimum(full, data.lead)
        backward = backward + data.full_ms * full + leading
    if "selective" in choice.recompute:
        selective = np.array([kind == "selective" for kind in choice.recompute])
        backward = backward + np.where(selective, data.selective_ms * n + data.selective_more_ms, 0.0)
    return forward, backward


def objective_ms(data: StageSelectionData, choice: StageChoice) -> float:
    """The objective with every row in place: the tightest bound that the rows give for a choice."""
    n = np.array(choice.layers, dtype=np.float64)
    forward, backward = times_ms(data, choice)
    gathering = np.maximum(data.gather_ms * n + data.base_gather_ms - data.hidden_fraction * forward, 0.0)
    after = exposed_reduction_ms(data, n, backward) + data.reduce_tail_ms
    end = step_bound(forward, backward, data.send_ms, data.num_microbatches, after, data.wait_ms)
    follow = data.optimizer_ms * n + data.base_optimizer_ms + gathering + data.gather_tail_ms
    return float(end) + float(follow.max()) + data.constant_ms


def reductions_ms(data: StageSelectionData, choice: StageChoice) -> Floats:
    """Gradient reduction that stays exposed on every stage, tail apart, array [stage]."""
    _, backward = times_ms(data, choice)
    return exposed_reduction_ms(data, np.array(choice.layers, dtype=np.float64), backward)


def exposed_reduction_ms(data: StageSelectionData, layers: Floats, backward: Floats) -> Floats:
    """The same for layers and backward passes of many choices, arrays [..., stage]."""
    in_buckets = data.reduce_ms * layers + data.base_reduce_ms - data.hidden_fraction * backward
    in_one = data.bucket_ms * layers + data.base_bucket_ms - data.reduce_tail_ms
    exposed: Floats = np.maximum(np.maximum(in_buckets, in_one), 0.0)
    return exposed


def violated_rows(
    data: StageSelectionData,
    forward: Floats,
    backward: Floats,
    after: Floats,
    end_ms: float,
    limit: int = 6,
) -> list[tuple[RowName, int]]:
    """Rows that stage times break when they claim to end at `end_ms`, worst first.

    Parameters
    ----------
    forward, backward, after
        Arrays [stage]: passes of one micro-batch, and what follows the end of each stage [ms].
    """
    p = len(forward)
    values = core_values(forward, backward, data.send_ms, data.num_microbatches, data.wait_ms)
    reached = values.fill + values.core + values.drain
    claims = reached[:, None] - values.drain[None, :] + after[None, :]
    claims = np.where(np.arange(p)[None, :] <= np.arange(p)[:, None], claims, -np.inf)
    claims = np.concatenate([claims, (values.through + after[0])[None, :]])
    found = []
    for flat in np.argsort(-claims, axis=None, kind="stable")[:limit]:
        s, j = divmod(int(flat), p)
        if claims[s, j] <= end_ms + ROW_TOL * max(end_ms, 1.0):
            break
        if s < p:
            found.append((row_name(values, s, forward, backward, data.send_ms), j))
        else:
            whole = through_name(values, j, data.num_microbatches, forward, backward, data.send_ms)
            found.append((whole, 0))
    return found


PipelineRow = tuple[RowName, int]
"""A row of `pipeline_rows` and the stage whose end it is followed to."""


@dataclass(frozen=True)
class StageSelectionResult:
    """Choice, objective and bound [ms]; `choice` None where there is none (or none found in time)."""

    status: Status
    choice: StageChoice | None
    objective_ms: float | None
    bound_ms: float | None
    rows: tuple[PipelineRow, ...]
