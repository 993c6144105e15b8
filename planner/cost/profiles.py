"""Prices of classes whose layer times were measured: the profile's times in the place of the operators'.

Times of layers, embedding and head hold the tensor-parallel collectives, so that all of them stand under
computation. Synchronisation, sends and states stay with the cost model; activations follow the profile
where it holds memory. A point that no profile covers costs `NOT_MEASURED_S`, so that no search takes it,
and the referee refuses it by name.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from planner.cost.kernels.operators import HALF
from planner.cost.prices import ENDS, Degrees, Floats, Prices
from planner.cost.sizes import Sizes
from planner.data.layer_profile import PIECES, LayerProfile
from planner.data.problem import Problem
from planner.errors import InstanceError

NOT_MEASURED_S = 1e6
"""Time of a layer that was not measured: no plan can be worth it, and sums of it stay finite."""

PROFILED_BAND = 0.1
"""Relative error of step times from measured layers: published simulators on such profiles are 6.3%
(uniform) and 10.2% (mixed) off (runs of eth-easl/sailor)."""

MEASURED = (
    "layer_forward_s",
    "layer_backward_s",
    "layer_selective_s",
    "layer_full_s",
    "embedding_forward_s",
    "embedding_backward_s",
    "head_forward_s",
    "head_backward_s",
    "layer_optimizer_s",
    "embedding_optimizer_s",
    "head_optimizer_s",
    "head_beside_embedding_optimizer_s",
    "layer_activation_bytes",
    "layer_activation_selective_bytes",
    "embedding_activation_bytes",
    "head_activation_bytes",
)
"""Prices that a profile may replace."""

Times = dict[str, Floats]


def value_bytes(problem: Problem) -> float:
    """Bytes of an activation value on its way between stages: the profile's where there is one."""
    return max((profile.value_bytes for profile in problem.profiles), default=HALF)


def with_profiles(problem: Problem, degrees: Degrees, prices: Prices) -> Prices:
    """Prices with the times of profiled classes in the place of the operator model's."""
    if not problem.profiles:
        return prices
    changed: Times = {name: getattr(prices, name).copy() for name in MEASURED}
    notes: list[str] = []
    profiled = [problem.profile_of(c) for c in range(len(problem.cluster.classes))]
    for c, profile in enumerate(profiled):
        if profile is not None:
            _put_times(changed, prices, profile, degrees, c, Sizes.of(problem, degrees))
            notes += _notes(profile)
    _put_activations(changed, [p for p in profiled if p is not None], degrees)
    band = PROFILED_BAND if None not in profiled else prices.error_band
    assumptions = tuple(dict.fromkeys((*prices.assumptions, *notes)))
    values = {field.name: getattr(prices, field.name) for field in fields(Prices)} | changed
    return Prices(**(values | {"error_band": band, "assumptions": assumptions}))


def refuse_unmeasured(problem: Problem, class_index: int, tp: int, mbs: int, cp: int, where: str) -> None:
    """Raise InstanceError where a class has a profile that lacks a point."""
    profile = problem.profile_of(class_index)
    if profile is None:
        return
    if cp > 1:
        raise InstanceError(
            f"the profile of chip {profile.chip} holds whole sequences, not context_parallel {cp}; use 1",
            where,
        )
    if not profile.covers(tp, mbs):
        raise InstanceError(profile.gap(tp, mbs), where)


def is_measured(problem: Problem, class_index: int, tp: int, mbs: int) -> bool:
    """Whether a class can be priced at a point: it has no profile, or one that covers it."""
    profile = problem.profile_of(class_index)
    return profile is None or profile.covers(tp, mbs)


def _put_times(
    changed: Times, prices: Prices, profile: LayerProfile, degrees: Degrees, c: int, sizes: Sizes
) -> None:
    """Replace the times of one class in every row of degrees."""
    shard = np.asarray(sizes.gradient_ranks) if degrees.dp_mode != "ddp" else np.asarray(sizes.ones)
    points = zip(
        degrees.tensor_parallel.tolist(),
        degrees.microbatch_size.tolist(),
        degrees.context_parallel.tolist(),
        strict=True,
    )
    for row, (tp, mbs, cp) in enumerate(points):
        if cp > 1 or not profile.covers(tp, mbs):
            for name in ("layer_forward_s", "layer_backward_s"):
                changed[name][row, :, c, 0] = NOT_MEASURED_S
            continue
        times = profile.curves[tp].times_at(mbs)
        embedding, layer, head = (times[PIECES.index(piece)] for piece in PIECES)
        # Of what a profile does not part, the core attention, the operator model knows the share.
        modelled = prices.layer_forward_s[row, :, c].sum(axis=-1)
        share = prices.layer_selective_s[row, :, c].sum(axis=-1) / np.maximum(modelled, 1e-12)
        for name, value in (
            ("layer_forward_s", layer[0]),
            ("layer_backward_s", layer[1]),
            ("layer_full_s", layer[0]),
            ("layer_selective_s", np.minimum(share, 1.0) * layer[0]),
        ):
            changed[name][row, :, c] = 0.0
            changed[name][row, :, c, 0] = value
        for piece, found in (("embedding", embedding), ("head", head)):
            for i, direction in enumerate(("forward", "backward")):
                changed[f"{piece}_{direction}_s"][row, c] = 0.0
                changed[f"{piece}_{direction}_s"][row, c, 0] = found[i]
        for piece, found in (
            ("embedding", embedding),
            ("layer", layer),
            ("head", head),
            ("head_beside_embedding", head),
        ):
            if np.isfinite(found[2]):
                sync = getattr(prices, f"{piece}_reduce_s") + getattr(prices, f"{piece}_gather_s")
                beside = prices.slowed_fraction * sync[row, ..., c]
                if piece in ENDS and prices.end_shown_s is not None:
                    beside = beside + prices.end_shown_s[row, ENDS.index(piece), c]
                changed[f"{piece}_optimizer_s"][row, ..., c] = found[2] / shard[row] + beside


def _put_activations(changed: Times, profiles: list[LayerProfile], degrees: Degrees) -> None:
    """Replace activations where every profile holds memory at a point; the largest counts."""
    points = zip(degrees.tensor_parallel.tolist(), degrees.microbatch_size.tolist(), strict=True)
    for row, (tp, mbs) in enumerate(points):
        slopes = [p.curves[tp].activation_bytes if p.covers(tp, mbs) else None for p in profiles]
        if not slopes or any(slope is None for slope in slopes):
            continue
        embedding, layer, head = mbs * np.max([slope for slope in slopes if slope is not None], axis=0)
        core = (
            changed["layer_activation_selective_bytes"][row] / (changed["layer_activation_bytes"][row])
        ).copy()
        changed["layer_activation_bytes"][row] = layer
        changed["layer_activation_selective_bytes"][row] = core * layer
        changed["embedding_activation_bytes"][row] = embedding
        changed["head_activation_bytes"][row] = head


def _notes(profile: LayerProfile) -> list[str]:
    name = f" of {profile.model}" if profile.model else ""
    source = f" ({profile.source})" if profile.source else ""
    return [
        f"chip {profile.chip}: layer times from a profile{name}{source}, interpolated along the micro-batch",
        *(f"chip {profile.chip}: {note}" for note in profile.assumptions),
    ]


assert {field.name for field in fields(Prices)} >= set(MEASURED), "profiles replace prices that exist"
