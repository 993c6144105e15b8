"""Pipelines to choose stages for, made up."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from formulations.stage_selection_data import StageSelectionData


def random_data(
    rng: np.random.Generator,
    num_stages: int,
    num_layers: int,
    num_microbatches: int,
    *,
    memory: float | None = None,
) -> StageSelectionData:
    """Every term present, stages up to three times as fast as others, memory from ample to too little.

    Parameters
    ----------
    memory
        Room of a stage over what its even share of the layers needs; None draws it.
    """
    p, (waits,) = num_stages, rng.spawn(1)
    speed = rng.uniform(0.5, 1.5, p)
    forward = rng.uniform(0.5, 2.0) / speed
    activation = rng.uniform(0.2, 1.0) * np.minimum(num_microbatches, p - np.arange(p))
    state = rng.uniform(0.2, 1.0)
    layer = np.full(p, state) + activation
    base = rng.uniform(0.0, 1.0, p)
    room = rng.uniform(0.4, 1.8) if memory is None else memory
    return StageSelectionData(
        num_layers=num_layers,
        num_microbatches=num_microbatches,
        forward_ms=forward,
        base_forward_ms=np.where(np.isin(np.arange(p), (0, p - 1)), rng.uniform(0, 1, p), 0.0),
        backward_ms=forward * rng.uniform(1.5, 2.5),
        base_backward_ms=np.where(np.isin(np.arange(p), (0, p - 1)), rng.uniform(0, 2, p), 0.0),
        selective_ms=forward * rng.uniform(0.05, 0.4),
        full_ms=forward * rng.uniform(0.9, 1.1),
        send_ms=rng.choice([0.0, 0.05, 0.5]) * rng.random(p),
        layer_gib=layer,
        base_gib=base,
        selective_saves_gib=activation * rng.uniform(0.1, 0.6),
        full_saves_gib=activation * rng.uniform(0.7, 0.95),
        full_peak_gib=np.full(p, rng.uniform(0.0, 0.5)),
        selective_peak_gib=activation * 0.1,
        limit_gib=base + layer * num_layers / p * room * rng.uniform(0.8, 1.2, p),
        step_layer_gib=np.full(p, rng.uniform(1.0, 1.6) * state),
        step_base_gib=base,
        reduce_ms=rng.uniform(0.0, 1.0, p),
        base_reduce_ms=rng.uniform(0.0, 1.0, p),
        reduce_tail_ms=rng.uniform(0.0, 0.5, p),
        gather_ms=rng.uniform(0.0, 1.0, p),
        base_gather_ms=rng.uniform(0.0, 1.0, p),
        gather_tail_ms=rng.uniform(0.0, 0.5, p),
        optimizer_ms=rng.uniform(0.0, 1.0, p),
        base_optimizer_ms=rng.uniform(0.0, 1.0, p),
        hidden_fraction=float(rng.choice([0.0, 0.9])),
        constant_ms=float(rng.uniform(0.0, 2.0)),
        bucket_ms=np.where(np.arange(p) > 0, rng.uniform(0.0, 2.0), 0.0),
        base_bucket_ms=np.where(np.arange(p) > 0, rng.uniform(0.0, 2.0), 0.0),
        **leading_layers(p, 0, forward, activation),
        wait_ms=waits.choice([0.0, 0.0, 0.5]) * waits.random(p),
    )


def leading_layers(p: int, count: int, full_ms: np.ndarray, activation: np.ndarray) -> dict[str, np.ndarray]:
    """`count` layers of another kind at the start of stage 0, recomputed at other prices."""
    return {
        "lead": np.where(np.arange(p) == 0, count, 0),
        "lead_full_ms": full_ms * 0.6,
        "lead_full_saves_gib": activation * 0.5,
        "lead_full_peak_gib": np.zeros(p),
        "lead_selective_ms": full_ms * 0.2,
        "lead_selective_saves_gib": activation * 0.3,
        "predictions_selective_ms": np.where(np.arange(p) == p - 1, full_ms * 0.3, 0.0),
    }


def by_hand(p: int, num_layers: int, num_microbatches: int, **terms: object) -> StageSelectionData:
    """Stages of f = 1, b = 2 a layer, 1 GiB a layer of 100 GiB, and nothing else, but for what is named."""
    zero = np.zeros(p)
    plain: dict[str, object] = {field.name: zero for field in fields(StageSelectionData)}
    plain |= {
        "num_layers": num_layers,
        "num_microbatches": num_microbatches,
        "forward_ms": np.ones(p),
        "backward_ms": np.full(p, 2.0),
        "full_ms": np.ones(p),
        "selective_ms": np.full(p, 0.25),
        "layer_gib": np.ones(p),
        "limit_gib": np.full(p, 100.0),
        "hidden_fraction": 0.0,
        "constant_ms": 0.0,
        "lead": np.zeros(p, dtype=np.int64),
        "alone_gib": None,
        "may_be_empty": None,
        "must_be_empty": None,
        "alike": None,
    }
    given = {
        name: np.array(value, dtype=float) if isinstance(value, list) else value
        for name, value in terms.items()
    }
    return StageSelectionData(**(plain | given))  # type: ignore[arg-type]
