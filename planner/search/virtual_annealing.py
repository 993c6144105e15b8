"""Better orders of classes and dealings of the layers to chunks, by changing many plans at once at random.

The walkers of `planner.search.walkers` on pipelines with virtual stages. Each step two stages change places,
one moves along the pipeline, one goes to another class that has room, or layers go to other chunks, of the
same stage or of another. Every stage recomputes what takes it least time where not everything fits. Long
steps are read off two short ones, as in `planner.search.virtual_local`. The random numbers come from the
user's seed, so that runs repeat; whatever comes of it the referee judges.

The constants are guesses: they say what is looked at, never what is proven.

Left out: models whose first layers are of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_paths import stage_ends
from formulations.stage_selection_data import most_layers_in_step
from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import fewest_layers
from planner.cost.hops import block_on_sends
from planner.cost.prices import Floats
from planner.search.virtual_local import SHORT_GROUPS
from planner.search.virtual_tables import VirtualClassTables
from planner.search.walkers import Bools, Cooling, anneal_walkers, for_all, new_places
from planner.search.walks import Ints

Order = tuple[int, ...]
Dealing = tuple[tuple[int, ...], ...]
"""Layers [stage][chunk]."""

WARMTH, FOLLOW_EVERY, FOLLOWS = 6e-3, 60, 12
"""As in `Cooling`; in long runs walkers follow so often in all, or they would soon be one. Guesses."""
MOST_PLANS = 3
"""Plans handed over at the end."""
SWAP, SHIFT, CLASS, TURN, DEAL, LAYER = range(6)
"""Two stages change places; one moves along; one goes to another class; a stage's chunks change places; a
layer goes to another chunk of its stage; one goes to another stage."""
SHARES = (0.2, 0.1, 0.05, 0.15, 0.2, 0.3)
"""How often a change is of each kind."""
AND_A_LAYER = 0.25
"""How often a layer goes to another stage beside a change of another kind."""


@dataclass(frozen=True)
class _Stages:
    """Coefficients of single stages, gathered for a class at every place, arrays [..., stage]."""

    forward_ms: Floats
    backward_ms: Floats
    base_forward_ms: Floats
    """[..., stage, chunk]"""
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
    """[..., stage, moment] memory beside all but the layers."""
    selective_peak_gib: Floats
    full_peak_gib: Floats
    kept_gib: Floats
    kept_selective_gib: Floats
    kept_full_gib: Floats
    most_layers: Floats
    """With which the optimizer's step fits."""

    def of(self, order: Ints) -> _Stages:
        """Those of the stages of each walker, [walker, stage]."""
        at = order, np.arange(order.shape[1])
        return _Stages(**{name: values[at] for name, values in vars(self).items()})


def _stages(data: VirtualSelectionData, num_moments: int) -> dict[str, Floats]:
    stage = data.stage
    forward, backward = data.base_ms()
    base = np.stack([_padded(one, num_moments) for one in data.base_gib])
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
    }


def _padded(values: NDArray[np.generic], length: int) -> Floats:
    """Values with the last one repeated."""
    longer: Floats = np.concatenate([values, np.repeat(values[-1:], length - len(values), axis=0)])
    return longer.astype(np.float64)


class DealingTimes:
    """Values orders and dealings of one row of degrees, of stages and of virtual stages, many at once."""

    def __init__(self, tables: VirtualClassTables, num_classes: int, *, sends_block: bool) -> None:
        self.one = next(iter(tables.data.values()))
        self.num_microbatches = self.one.stage.num_microbatches
        self.hop_ms, self.tied_ms, self.sends_block = tables.times.hop_ms, tables.times.tied_ms, sends_block
        num_moments = max(len(held) for held in self.one.moments)
        self.moments = np.stack([_padded(held, num_moments) for held in self.one.moments])
        by_class = {c: _stages(one, num_moments) for c, one in tables.data.items()}
        sample = next(iter(by_class.values()))
        nothing = {name: np.zeros_like(values) for name, values in sample.items()}
        gathered = [by_class.get(c, nothing) for c in range(num_classes)]
        self.stages = _Stages(**{name: np.stack([one[name] for one in gathered]) for name in sample})

    def values_ms(self, order: Ints, layers: Ints) -> Floats:
        """Steps [walker] of orders [walker, stage], layers [walker, stage, chunk]; inf where not fitting."""
        stages, n = self.stages.of(order), layers.astype(np.float64)
        extra, fits = self._recomputed(stages, n)
        total = n.sum(axis=2)
        forward = stages.base_forward_ms + stages.forward_ms[:, :, None] * n
        backward = stages.base_backward_ms + stages.backward_ms[:, :, None] * n + extra
        send = self.hop_ms[order, np.roll(order, -1, axis=1)]
        forward, backward, send = block_on_sends(forward, backward, send, p2p_overlap=not self.sends_block)
        hidden = self.one.stage.hidden_fraction
        reduction = stages.reduce_ms * total + stages.base_reduce_ms
        reduction = np.maximum(reduction - hidden * backward.sum(axis=2), 0.0) + stages.reduce_tail_ms
        reduction = np.maximum(reduction, stages.bucket_ms * n[:, :, 0])
        gathering = stages.gather_ms * total + stages.base_gather_ms
        gathering = np.maximum(gathering - hidden * forward.sum(axis=2), 0.0)
        follow = (stages.optimizer_ms * total + stages.after_ms + gathering).max(axis=1)
        end = self._end_ms(forward, backward, send, reduction)
        fits &= np.asarray((total <= stages.most_layers).all(axis=1))
        values: Floats = np.where(fits, end + follow + self.tied_ms[order[:, 0], order[:, -1]], np.inf)
        return values

    def _end_ms(self, forward: Floats, backward: Floats, send: Floats, reduction: Floats) -> Floats:
        """End of the last stage with its reduction [walker], long steps read off two shorter ones."""
        p, m = forward.shape[1], self.num_microbatches

        def end(count: int) -> Floats:
            last: Floats = (stage_ends(forward, backward, send, count) + reduction).max(axis=1)
            return last

        if m // p <= SHORT_GROUPS[-1] + 1:
            return end(m)
        less, more = (end(groups * p) for groups in SHORT_GROUPS)
        longer: Floats = more + (m // p - SHORT_GROUPS[-1]) * (more - less)
        return longer

    def _recomputed(self, stages: _Stages, n: Floats) -> tuple[Floats, Bools]:
        """What recomputation adds to each backward, [walker, stage, chunk], and whether all stages fit."""
        one = self.one
        room = stages.room_gib - one.state_gib * n.sum(axis=2)[:, :, None]
        held = np.einsum("shk,wsk->wsh", self.moments, n)
        kept = stages.kept_gib[:, :, None]
        fits = (kept * held <= room).all(axis=2)
        extra = np.zeros_like(n)
        if fits.all():
            return extra, np.ones(len(n), dtype=np.bool_)
        none, time = fits, np.where(fits, 0.0, np.inf)
        if "selective" in one.kinds:
            need = stages.kept_selective_gib[:, :, None] * held + stages.selective_peak_gib[:, :, None]
            some = stages.selective_ms[:, :, None] * n
            some[:, :, -1] += stages.predictions_selective_ms
            can = ~none & (need <= room).all(axis=2)
            extra = np.where(can[:, :, None], some, extra)
            time = np.where(can, some.sum(axis=2), time)
        if "full" in one.kinds:
            short = kept * held + stages.full_peak_gib[:, :, None] - room
            has_layers = n > 0
            saves = kept - stages.kept_full_gib[:, :, None]
            saves = saves * np.einsum("shk,wsk->wsh", self.moments, has_layers)
            with np.errstate(divide="ignore", invalid="ignore"):
                least = np.where(short > 0, short / saves, 0.0).max(axis=2)
            count = np.maximum(np.ceil(least), 1.0)
            whole = (stages.full_ms * count)[:, :, None] * has_layers
            shortest = np.where(has_layers, n, np.inf).min(axis=2)
            can = ~none & (count <= shortest) & (whole.sum(axis=2) < time)
            extra = np.where(can[:, :, None], whole, extra)
            time = np.where(can, whole.sum(axis=2), time)
        return extra, np.asarray(np.isfinite(time).all(axis=1))


def anneal_dealings(
    times: DealingTimes,
    starts: Sequence[tuple[Order, Dealing]],
    fewest: Sequence[int],
    most: Sequence[int],
    steps: int,
    seed: int,
    is_up: Callable[[], bool],
) -> list[tuple[Order, Dealing]]:
    """The best orders met in so many steps with their dealings, the best first.

    Parameters
    ----------
    starts
        Orders with dealings, to begin with.
    fewest, most
        [class] stages between which the number of each class stays.
    """
    random = np.random.default_rng(seed)
    order, layers = (np.array(begun) for begun in zip(*for_all(starts), strict=True))
    change = partial(
        _changed,
        fewest=np.array(fewest),
        most=np.array(most),
        fewest_of_chunk=fewest_layers(times.one),
        random=random,
    )
    cooling = Cooling(steps, WARMTH, max(FOLLOW_EVERY, steps // FOLLOWS))
    found = anneal_walkers(order, layers, times.values_ms, change, cooling, random, is_up)
    return [(tuple(order.tolist()), tuple(map(tuple, dealt.tolist()))) for order, dealt in found[:MOST_PLANS]]


def _changed(
    order: Ints,
    layers: Ints,
    fewest: Ints,
    most: Ints,
    fewest_of_chunk: Ints,
    random: np.random.Generator,
) -> tuple[Ints, Ints, Bools]:
    """Every walker after one random change, and whether the change is one that may be and changes it."""
    walkers, p, v = layers.shape
    rows: Ints = np.arange(walkers)
    kind = random.choice(len(SHARES), size=walkers, p=SHARES)
    stage_picks: Ints = random.integers(p, size=(4, walkers))
    chunk_picks: Ints = random.integers(v, size=(4, walkers))
    one, other, from_stage, to_stage = stage_picks
    giver, taker, from_chunk, to_chunk = chunk_picks
    new_class = np.asarray(random.integers(len(most), size=walkers))
    swaps, shifts, turns, deals = (np.asarray(kind == which) for which in (SWAP, SHIFT, TURN, DEAL))
    place = new_places(p, one, other, swaps, shifts)
    source = np.argsort(place, axis=1, kind="stable")
    old_order, old_layers = order, layers
    order = np.take_along_axis(order, source, axis=1)
    layers = np.take_along_axis(layers, source[:, :, None], axis=1)
    classes = kind == CLASS
    order[rows[classes], one[classes]] = new_class[classes]
    at, stage = rows[turns], one[turns]
    first, second = layers[at, stage, giver[turns]], layers[at, stage, taker[turns]]
    layers[at, stage, giver[turns]], layers[at, stage, taker[turns]] = second, first
    layers[rows[deals], one[deals], giver[deals]] -= 1
    layers[rows[deals], one[deals], taker[deals]] += 1
    hands = (kind == LAYER) | (random.random(walkers) < AND_A_LAYER)
    layers[rows[hands], from_stage[hands], from_chunk[hands]] -= 1
    layers[rows[hands], to_stage[hands], to_chunk[hands]] += 1
    counts = (order[:, :, None] == np.arange(len(most))).sum(axis=1)
    legal = ((counts >= fewest) & (counts <= most)).all(axis=1) & (layers >= fewest_of_chunk).all(axis=(1, 2))
    legal &= (order != old_order).any(axis=1) | (layers != old_layers).any(axis=(1, 2))
    return order, np.maximum(layers, fewest_of_chunk), legal
