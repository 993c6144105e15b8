"""Steps of many orders and dealings of the layers to chunks at once, stage by stage, for annealing.

What a stage does depends on its class, its layers and where it sends: its *pieces*, an array [stage, piece]
of every plan with

    forward of each chunk, backward of each chunk, send, reduction, what follows all stages,

the last one infinite where the stage does not fit. Of a plan that comes of another one by a change only the
stages that changed are looked at again. Every stage recomputes what takes it least time where not everything
fits. Leading layers of another kind, which chunk 0 of stage 0 holds, count in its base times; what they keep,
and take to recompute, is added there. Long steps are read off two short ones, as in
`planner.search.virtual.local`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from formulations.interleaved_paths import PathRow, Schedules
from formulations.interleaved_rows import largest_wait, largest_waits
from planner.cost.communication.hops import block_on_sends
from planner.cost.prices import Floats
from planner.search.heuristics.walkers import Bools
from planner.search.virtual.local import MOST_GROUPS, SHORT_GROUPS
from planner.search.virtual.stage_terms import StageTerms, padded, stage_terms
from planner.search.virtual.tables import VirtualClassTables
from planner.search.walks.cheapest import Ints


@dataclass
class Dealt:
    """Plans of all walkers."""

    order: Ints
    """[walker, stage]"""
    layers: Ints
    """[walker, stage, chunk]"""
    pieces: Floats
    """[walker, stage, piece]"""
    value_ms: Floats
    """[walker] steps; infinite where a stage does not fit."""

    def put(self, at: Ints | Bools, other: Dealt, of: Ints | Bools) -> None:
        """Plans of other walkers in place of some."""
        for name, values in vars(self).items():
            values[at] = getattr(other, name)[of]


@dataclass(frozen=True)
class Run:
    """What becomes of plans."""

    values_ms: Floats
    """[walker] steps; infinite where a stage does not fit."""
    parts: tuple[tuple[float, Schedules], ...]
    """Schedules whose ends add up to the steps with these weights."""
    reduction_ms: Floats
    """[walker, stage]"""
    waiting: Callable[[int], PathRow | None]
    """The row (wait) of a walker, where its step is read off that."""

    def paths(self, walker: int) -> list[tuple[float, PathRow]]:
        """The longest paths of a plan, with their weights."""
        if row := self.waiting(walker):
            return [(1.0, row)]
        reduction = self.reduction_ms[walker]
        return [
            (weight, one.path(walker, int(np.argmax(one.ends[walker] + reduction))))
            for weight, one in self.parts
        ]


class DealingTimes:
    """Values orders and dealings of one row of degrees, of stages and of virtual stages, many at once."""

    def __init__(self, tables: VirtualClassTables, num_classes: int, *, sends_block: bool) -> None:
        self.one = next(iter(tables.data.values()))
        self.num_microbatches = self.one.stage.num_microbatches
        self.hop_ms, self.tied_ms, self.sends_block = tables.times.hop_ms, tables.times.tied_ms, sends_block
        num_moments = max(len(held) for held in self.one.moments)
        self.moments = np.stack([padded(held, num_moments) for held in self.one.moments])
        by_class = {c: stage_terms(one, num_moments) for c, one in tables.data.items()}
        sample = next(iter(by_class.values()))
        nothing = {name: np.zeros_like(values) for name, values in sample.items()}
        gathered = [by_class.get(c, nothing) for c in range(num_classes)]
        self.stages = StageTerms(**{name: np.stack([one[name] for one in gathered]) for name in sample})

    def values_ms(self, order: Ints, layers: Ints) -> Floats:
        """Steps [walker] of orders [walker, stage], layers [walker, stage, chunk]; inf where not fitting."""
        return self.run(self.pieces(order, layers), order).values_ms

    def pieces(self, order: Ints, layers: Ints, like: Dealt | None = None, of: Ints | None = None) -> Floats:
        """Pieces [walker, stage, piece] of orders and layers.

        Parameters
        ----------
        like, of
            Walkers whose pieces are known, and which one of them each is like.
        """
        p, v = layers.shape[1:]
        send = self.hop_ms[order, np.roll(order, -1, axis=1)]
        nothing = np.zeros(layers.shape)
        *sent, send = block_on_sends(nothing, nothing, send, p2p_overlap=not self.sends_block)
        if like is None or of is None:
            pieces, is_new = np.empty((len(order), p, 2 * v + 3)), np.ones(order.shape, dtype=np.bool_)
        else:
            old = like.order.take(of, axis=0)
            is_new = order != old
            if self.sends_block:  # a stage sends both ways
                is_new = is_new | np.roll(is_new, -1, axis=1) | np.roll(is_new, 1, axis=1)
            is_new = is_new | (layers != like.layers.take(of, axis=0)).any(axis=2)
            pieces = like.pieces.take(of, axis=0)
        at = np.nonzero(is_new)
        pieces[at] = self._of_stages(order[at], at[1], layers[at], sent[0][at], sent[1][at])
        pieces[:, :, 2 * v] = send
        return pieces

    def run(self, pieces: Floats, order: Ints) -> Run:
        """Steps of plans by their pieces."""
        v = pieces.shape[2] // 2 - 1
        forward, backward, send = pieces[..., :v], pieces[..., v : 2 * v], pieces[..., 2 * v]
        p, m, reduction = forward.shape[1], self.num_microbatches, pieces[..., 2 * v + 1]
        after = self.after_ms(pieces, order)
        parts: list[tuple[float, int]] = [(1.0, m)]
        if (groups := m // p) > MOST_GROUPS:
            more = (groups - SHORT_GROUPS[1]) / (SHORT_GROUPS[1] - SHORT_GROUPS[0])
            parts = [(-more, SHORT_GROUPS[0] * p), (1.0 + more, SHORT_GROUPS[1] * p)]
        found = tuple((weight, Schedules(forward, backward, send, count)) for weight, count in parts)
        ends = np.sum([weight * (one.ends + reduction).max(axis=1) for weight, one in found], axis=0)
        is_waiting = np.zeros(len(ends), dtype=np.bool_)
        if len(found) > 1:
            waits = largest_waits(forward, backward, send, m) + reduction[:, 0]
            is_waiting = waits > ends
            ends = np.maximum(ends, waits)

        def waiting(walker: int) -> PathRow | None:
            times = forward[walker], backward[walker], send[walker]
            return largest_wait(*times, m) if is_waiting[walker] else None

        return Run(ends + after, found, reduction, waiting)

    def after_ms(self, pieces: Floats, order: Ints) -> Floats:
        """What follows the reductions, [walker]; infinite where a stage does not fit."""
        after: Floats = pieces[..., -1].max(axis=1) + self.tied_ms[order[:, 0], order[:, -1]]
        return after

    def _of_stages(
        self, classes: Ints, stages: Ints, layers: Ints, leaving: Floats, returning: Floats
    ) -> Floats:
        """Pieces [stage, piece] of single stages with layers and times of blocking sends [stage, chunk]."""
        one, n = self.stages.of(classes, stages), layers.astype(np.float64)
        extra, fits = self._recomputed(one, self.moments[stages], n)
        total, v = n.sum(axis=1), n.shape[1]
        found: Floats = np.empty((len(n), 2 * v + 3))
        forward, backward = found[:, :v], found[:, v : 2 * v]
        forward[:] = one.base_forward_ms + one.forward_ms[:, None] * n + leaving
        backward[:] = one.base_backward_ms + one.backward_ms[:, None] * n + extra + returning
        hidden = self.one.stage.hidden_fraction
        reduction = one.reduce_ms * total + one.base_reduce_ms
        reduction = np.maximum(reduction - hidden * backward.sum(axis=1), 0.0) + one.reduce_tail_ms
        found[:, -2] = np.maximum(reduction, one.bucket_ms * n[:, 0])
        gathering = one.gather_ms * total + one.base_gather_ms
        gathering = np.maximum(gathering - hidden * forward.sum(axis=1), 0.0)
        follow = one.optimizer_ms * total + one.after_ms + gathering
        found[:, -1] = np.where(fits & (total <= one.most_layers), follow, np.inf)
        return found

    def _recomputed(self, stages: StageTerms, moments: Floats, n: Floats) -> tuple[Floats, Bools]:
        """What recomputation adds to each backward, [stage, chunk], and whether a stage fits, [stage].

        Parameters
        ----------
        moments
            [stage, moment, chunk] micro-batches held.
        n
            [stage, chunk] layers.
        """
        one = self.one
        room = stages.room_gib - one.state_gib * n.sum(axis=1)[:, None]
        held = np.einsum("shk,sk->sh", moments, n)
        of_lead = stages.lead[:, None] * moments[:, :, 0]
        kept = stages.kept_gib[:, None] * held + stages.lead_kept_gib[:, None] * of_lead
        none: Bools = (kept <= room).all(axis=1)
        extra = np.zeros_like(n)
        if none.all():
            return extra, none
        time = np.where(none, 0.0, np.inf)
        if "selective" in one.kinds:
            need = stages.kept_selective_gib[:, None] * held + stages.selective_peak_gib[:, None]
            need += stages.lead_kept_selective_gib[:, None] * of_lead
            some = stages.selective_ms[:, None] * n
            some[:, 0] += stages.lead * stages.lead_selective_ms
            some[:, -1] += stages.predictions_selective_ms
            can = ~none & (need <= room).all(axis=1)
            extra = np.where(can[:, None], some, extra)
            time = np.where(can, some.sum(axis=1), time)
        if "full" in one.kinds:
            has_layers = n > 0
            count = self._fewest_in_full(
                stages, moments, has_layers, kept + stages.full_peak_gib[:, None] - room
            )
            whole = (stages.full_ms * count)[:, None] * has_layers
            whole[:, 0] += stages.lead_full_ms * np.minimum(count, stages.lead)
            shortest = np.where(has_layers, n, np.inf).min(axis=1)
            can = ~none & (count <= shortest) & (whole.sum(axis=1) < time)
            extra = np.where(can[:, None], whole, extra)
            time = np.where(can, whole.sum(axis=1), time)
        return extra, np.isfinite(time)

    @staticmethod
    def _fewest_in_full(stages: StageTerms, moments: Floats, has_layers: Bools, short: Floats) -> Floats:
        """Fewest layers of every chunk that has any to recompute in full, [stage]; one at least.

        The leading layers come first: what is saved is linear in the number up to theirs, and beyond it.

        Parameters
        ----------
        short
            [stage, moment] by how much all does not fit.
        """
        saves = stages.kept_gib - stages.kept_full_gib
        more = (stages.lead_kept_gib - stages.lead_kept_full_gib)[:, None] * moments[:, :, 0]
        saved = saves[:, None] * np.einsum("shk,sk->sh", moments, has_layers)
        lead = stages.lead[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            least = np.where(short > 0, (short - lead * more) / saved, 0.0)
            if lead.any():
                within = np.where(short > 0, short / (saved + more), 0.0)
                least = np.where(within <= lead, within, least)
        count: Floats = np.maximum(np.ceil(least.max(axis=1)), 1.0)
        return count
