"""What single stages of interleaved pipelines take and hold by layers, for many of them at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.stage_selection_data import most_layers_in_step
from formulations.virtual_selection_data import VirtualSelectionData
from planner.cost.prices import Floats
from planner.search.walks.cheapest import Ints


@dataclass(frozen=True)
class StageTerms:
    """Coefficients of stages, arrays [class, stage], or [...] of some of them; times in ms, sizes in GiB."""

    forward_ms: Floats
    backward_ms: Floats
    base_forward_ms: Floats
    """[..., chunk]"""
    base_backward_ms: Floats
    reduce_ms: Floats
    base_reduce_ms: Floats
    reduce_tail_ms: Floats
    bucket_ms: Floats
    gather_ms: Floats
    base_gather_ms: Floats
    optimizer_ms: Floats
    after_ms: Floats
    """Optimizer of all else, and tail of the gathering."""
    selective_ms: Floats
    predictions_selective_ms: Floats
    full_ms: Floats
    room_gib: Floats
    """[..., moment] memory beside all but the layers."""
    selective_peak_gib: Floats
    full_peak_gib: Floats
    kept_gib: Floats
    kept_selective_gib: Floats
    kept_full_gib: Floats
    most_layers: Floats
    """With which the optimizer's step fits."""
    lead: Floats
    """Leading layers of another kind."""
    lead_kept_gib: Floats
    """By how much one of them keeps more than another layer."""
    lead_kept_selective_gib: Floats
    lead_kept_full_gib: Floats
    lead_selective_ms: Floats
    """By how much one of them takes longer to recompute."""
    lead_full_ms: Floats

    def of(self, classes: Ints, stages: Ints) -> StageTerms:
        """Those of some classes on some stages, [...]."""
        return StageTerms(**{name: values[classes, stages] for name, values in vars(self).items()})


def stage_terms(data: VirtualSelectionData, num_moments: int) -> dict[str, Floats]:
    """The same of all stages of one order by name, with so many moments of each."""
    stage = data.stage
    forward, backward = data.base_ms()
    base = np.stack([padded(one, num_moments) for one in data.base_gib])
    lead_kept, lead_selective, lead_full = data.lead_kept_gib
    return {
        "forward_ms": stage.forward_ms,
        "backward_ms": stage.backward_ms,
        "base_forward_ms": forward,
        "base_backward_ms": backward,
        "reduce_ms": stage.reduce_ms,
        "base_reduce_ms": stage.base_reduce_ms,
        "reduce_tail_ms": stage.reduce_tail_ms,
        "bucket_ms": stage.bucket_ms,
        "gather_ms": stage.gather_ms,
        "base_gather_ms": stage.base_gather_ms,
        "optimizer_ms": stage.optimizer_ms,
        "after_ms": stage.base_optimizer_ms + stage.gather_tail_ms,
        "selective_ms": stage.selective_ms,
        "predictions_selective_ms": stage.predictions_selective_ms,
        "full_ms": stage.full_ms,
        "room_gib": data.limit_gib[:, None] - base,
        "selective_peak_gib": data.selective_peak_gib,
        "full_peak_gib": data.full_peak_gib,
        "kept_gib": data.kept_gib,
        "kept_selective_gib": data.kept_selective_gib,
        "kept_full_gib": data.kept_full_gib,
        "most_layers": most_layers_in_step(stage),
        "lead": stage.lead.astype(np.float64),
        "lead_kept_gib": lead_kept - data.kept_gib,
        "lead_kept_selective_gib": lead_selective - data.kept_selective_gib,
        "lead_kept_full_gib": lead_full - data.kept_full_gib,
        "lead_selective_ms": stage.lead_selective_ms - stage.selective_ms,
        "lead_full_ms": stage.lead_full_ms - stage.full_ms,
    }


def padded(values: NDArray[np.generic], length: int) -> Floats:
    """Values with the last one repeated."""
    longer: Floats = np.concatenate([values, np.repeat(values[-1:], length - len(values), axis=0)])
    return longer.astype(np.float64)
