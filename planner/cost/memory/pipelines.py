"""Memory that a stage owes to its pipeline: communicators by length and place, places planned ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.prices import ENDS, STATES, Bools, Floats, Ints, Prices

PLANNED_PLACES = 2
"""Places of a gradient of a pipeline whose memory is planned ahead."""


def outside_bytes(
    prices: Prices,
    choice: int | Ints,
    node_class: int | Ints,
    is_end: bool | Bools,
    num_stages: int | Ints,
    *,
    at_least: bool = False,
) -> Floats:
    """Device context and communicators of stages, arrays or numbers of one shape [bytes].

    Parameters
    ----------
    is_end
        Whether a stage is the first or the last of its pipeline.
    num_stages
        Stages of its pipeline; `at_least`: or any more, of which the least counts.
    """
    table = least_fixed_bytes(prices) if at_least else prices.fixed_bytes
    most = table.shape[2]
    length = (min(num_stages, most) if isinstance(num_stages, int) else np.minimum(num_stages, most)) - 1
    role = int(is_end) if isinstance(is_end, bool) else np.asarray(is_end, dtype=np.int64)
    found: Floats = table[choice, node_class, length, role]
    return found


def least_fixed_bytes(prices: Prices) -> Floats:
    """As `Prices.fixed_bytes`, the least of all pipelines that are as long or longer."""
    least: Floats = np.minimum.accumulate(prices.fixed_bytes[:, :, ::-1], axis=2)[:, :, ::-1]
    return least


def in_pipeline_of(prices: Prices, num_stages: int) -> Prices:
    """The prices of a stage in a pipeline of so many: these, or those of a stage alone.

    Memory that is planned ahead is shared within a stretch of the graph, and what leaves one stays until its
    end: all gradients of a micro-batch, which are then added to their sum. In a pipeline buffers part the
    forwards from the backwards, so that the layer that passes has a place in either
    (oneflow/core/job/intra_job_mem_sharing_util.cpp: FindLastFreeIndexInSortedTasks, meta_shape). The last
    stage has no such buffers but is given the place too; a single stage is taken to sum nothing.
    """
    if not prices.plans_memory or num_stages > 1:
        return prices
    gradients, changed = STATES.index("gradients"), {}
    for piece in ("layer", *ENDS):
        states = getattr(prices, f"{piece}_state_bytes").copy()
        states[..., gradients] /= PLANNED_PLACES
        changed[f"{piece}_state_bytes"] = states
    working = prices.layer_working_bytes - prices.layer_recompute_peak_bytes
    return replace(prices, layer_working_bytes=working, **changed)
