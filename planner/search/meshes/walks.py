"""The cheapest pipeline of free shapes, of any length at once, for prices on layers, chips and waits.

Let the slowest stage take between alpha and beta, s be the last stage that takes no less than alpha, so that
those behind it take less and those before it at most beta, q = p - 1 - s the stages behind it, t = f + b the
time of a stage, and d the time from s down to the last stage and back. For any v, w in [0, 1]

    (partial, e = s), m >= q + 2    T >= sum_{i<s} t[i] + m t[s] + v (d - q f[s]) + w (d - q b[s]) + sends

since either wait, max(0, d - q f) and max(0, d - q b), counts at least that much. Where m <= q + 1, the
rows (window), (mirror) with k = 0 and (work) of `formulations.pipeline_rows` weighed with w, v and 1 - v -
w read the same with m - 1 in the place of q, if v + w <= 1: walks that turn there have weights of their own.
So each stage adds a term of its own: before s t, behind it (v + w) t, and s itself the rest. Where one number
of stages is looked at by itself, the rows of all stages can be weighed as well, with weights x >= 0 that add
up to 1 (v = w = 1, or (m - 1) max(f, b) where m <= q + 1):

    (even)    T >= sum_i (x[i] (m - q[i]) + sum_{s>i} x[s] + 2 sum_{s<i} x[s]) t[i] + sends

and T is at least 1 - u of the row of s and u of this one, u in [0, 1]. The reduction of stage 0 adds to all
of it. Of what follows the pipeline the largest counts, which is no less than any sum with weights that add
up to 1: s adds z in [0, 1], and of the rest each stage 1 / (2 P), where P is the most stages looked at, the
first stage, which has the embedding to update, what is left. A hop takes at least what either of its stages
must pay for any; where sends block, that lengthens the passes of both. Between two classes it takes more
(`planner.search.meshes.changes`), which counts like its sends: 1 before s, v + w behind it, 1 in (even).
Where sends block, times count at least as much: on s m - q v and m - q w are no less than 1 nor, with
m >= q + 2 or v + w <= 1, than v + w, and in each row each stage counts once or more.

No term depends on the number of stages, only on q and on which stage is first. So walks go from the last
stage to the first, and what they reach after p stages bounds pipelines of p, for every p at once. With a
price mu on each layer and lambda[c] >= 0 on each chip of class c, N[c] chips there,

    T >= mu L - sum_c lambda[c] N[c] + shortest walk.

A walk also counts the chips that it takes in whole units u[c], a stage of g chips as floor(g / u[c]) of
them, and never takes more than floor(N[c] / u[c]): every pipeline that fits keeps that, and where u[c]
divides all g, no price on chips is needed.

For one shape and place the time of n layers is bounded below by two lines that meet where recomputation
begins, the second steeper, and what follows by a tangent, as it is convex: the least over n then lies at
the fewest layers, at the bend, or at the most that beta allows. First stages are looked at with every n where
lengths are few, else with their reduction bounded below by its least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.changes import list_changes
from planner.search.meshes.lines import Lines, Terms
from planner.search.meshes.path import Bracket, Least, Path, Walk
from planner.search.meshes.places import Ints, Places
from planner.search.meshes.shapes import Batch
from planner.search.meshes.shares import list_shares
from planner.search.meshes.units import Units
from planner.tolerances import BOUND_TOL

SPREAD = 0.5
"""Share of what follows the pipeline that all stages count for alike, of what is not taken from the slowest.
A guess."""
TINY = 1e-12
"""In the place of no share, so that what is barred stays infinite."""
FEW = 2
"""Numbers of stages up to which first stages are looked at with every number of layers."""
OF_A_STAGE = 20
"""How often a stage is gone through before walks begin, about."""
FEW_CANDIDATES = 4
"""Numbers of layers up to which they are held against each other one by one."""


class MeshWalks:
    """Shortest walks of one batch, of some numbers of stages."""

    def __init__(
        self,
        places: Places,
        batch: Batch,
        lengths: Sequence[int],
        chips_of_class: Sequence[int],
        units: Units,
        *,
        sends_block: bool,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        """Prepare walks; `allowed`, for one length alone, tells what shapes each stage may have."""
        self.places, self.batch, self.units = places, batch, units
        self.lengths, self.longest = np.array(lengths), int(max(lengths))
        self.chips_of_class = np.array(chips_of_class)
        self.shares = list_shares(batch, chips_of_class)
        self.num_microbatches = batch.num_microbatches
        self.num_layers = places.inner.times_ms.shape[2] - 1
        self.sends_block, self.allowed = sends_block, allowed
        self.constant_ms = places.constant_ms[int(min(lengths) > 1)]
        self.place = np.minimum(np.arange(self.longest), places.num_places - 1)
        self.even = None
        if len(lengths) == 1:
            longer = 0.5 if sends_block else least_longer(places)
            self.even = even_passes(self.longest, self.num_microbatches, longer)[::-1]
            if allowed is None:
                self.allowed = np.ones((self.longest, len(batch.shapes)), dtype=np.bool_)
        sides = np.where(np.arange(places.num_places) > 0, 2.0, 1.0)
        self.inner = Lines(places.inner, places.hop_ms[:, None], sides, sends_block=sends_block)
        one = (sides > 1).astype(np.float64)
        self.first = Lines(places.first, places.hop_ms[:, None], one, sends_block=sends_block)
        self.members = [np.flatnonzero(units.group == g) for g in range(int(units.group.max()) + 1)]
        self.by_group = np.concatenate(self.members)
        self.changes = list_changes(places, batch)
        self.class_of_group = np.array([self.changes.node_class[one[0]] for one in self.members])
        self.limit_ms = np.inf
        """Limit that hops between classes are barred by: pipelines that break it may be left out."""
        self.group_starts = np.cumsum([0, *(len(one) for one in self.members)])[:-1]
        self.work = 0
        """Numbers that were gone through, about: what a look took, the same on any machine."""

    @cached_property
    def _longer_passes(self) -> tuple[Floats, Floats]:
        """Times of all stages that there may be, ascending, and of the longer pass of each."""
        found = []
        for lines in (self.inner, self.first):
            n = np.arange(1, self.num_layers + 1)
            times = lines.times[:, :, 1:]
            forward = lines.forward[:, :, None] * n + lines.base_forward[:, :, None]
            fits = np.isfinite(times)
            found.append(np.stack([times[fits], np.maximum(forward[fits], times[fits] - forward[fits])]))
        times, longer = np.concatenate(found, axis=1)
        order = np.argsort(times, kind="stable")
        return times[order], longer[order]

    def least_slow_ms(self, time_ms: Floats, longer_ms: Floats) -> tuple[float, float]:
        """Least time, and least longer pass, of stages that have both between two edges; 0 for none."""
        times, longer = self._longer_passes
        begin, end = np.searchsorted(times, time_ms[0]), np.searchsorted(times, time_ms[1], side="right")
        times, longer = times[begin:end], longer[begin:end]
        kept = (longer >= longer_ms[0]) & (longer <= longer_ms[1])
        return (float(times[kept].min()), float(longer[kept].min())) if kept.any() else (0.0, 0.0)

    def bracket(self, low_ms: Floats, high_ms: Floats) -> Bracket:
        """Stages where the slowest one takes a time between two edges, arrays [row]."""
        low, high = low_ms * (1 - BOUND_TOL), high_ms * (1 + BOUND_TOL)
        all_places = np.arange(self.places.num_places)
        usual = self.num_layers / self.longest
        inner, turn = self.inner.terms(low, high, all_places, usual)
        behind, _ = self.inner.terms(low, low_ms * (1 + BOUND_TOL), all_places, usual)
        weight = np.full(len(all_places), SPREAD / self.longest)
        inner, behind, turn = (
            self._followed(terms, self.inner, all_places, weight, usual) for terms in (inner, behind, turn)
        )
        at = self.place[self.lengths - 1]
        rest = 1 - SPREAD * (self.lengths - 1) / self.longest
        if len(self.lengths) <= FEW:
            first, first_turn = self.first.every_term(low, high, at)
            after = self.first.reduce[:, at].swapaxes(0, 1)[None]
            follow = np.broadcast_to(self.first.follow[:, at].swapaxes(0, 1)[None], first.times.shape)
            share = rest[None, :, None, None]
            first, first_turn = (
                replace(terms, after=after, follow=follow, share=share) for terms in (first, first_turn)
            )
        else:
            first, first_turn = self.first.terms(low, high, at, usual)
            least = self.first.reduce[:, at, 1:].min(axis=2).T[None, :, :, None]
            first, first_turn = (
                self._followed(replace(terms, after=least), self.first, at, rest, usual)
                for terms in (first, first_turn)
            )
        if self.allowed is not None:
            barred = np.where(self.allowed[::-1], 0.0, np.inf)
            inner, behind, turn = (terms.at(self.place, barred) for terms in (inner, behind, turn))
            last = np.zeros(1, dtype=np.int64)
            first, first_turn = (terms.at(last, barred[-1:]) for terms in (first, first_turn))
        return Bracket(inner, behind, turn, first, first_turn)

    def _followed(self, terms: Terms, lines: Lines, places: Ints, share: Floats, usual: float) -> Terms:
        """With what follows the pipeline on the stage, by its tangent, and its share, [place]."""
        base, slope = lines.tangent(usual)
        follow = base[:, places].T[None, :, :, None] + slope[:, places].T[None, :, :, None] * terms.layers
        return replace(terms, follow=follow, share=share[None, :, None, None])

    def shortest(self, bracket: Bracket, mu: Floats, price: Floats, shares: Floats) -> Walk:
        """Shortest walks; `price` is [row, kind] of a share, `shares` [row, 6] as in `Walk`."""
        points, groups = self.units.source.shape
        self.work += len(mu) * (4 * points * groups * self.longest + OF_A_STAGE * bracket.turn.times[0].size)
        own = np.clip(shares[:, 5], 0.0, 1.0)[:, None, None, None]
        waits, short = shares[:, :2], shares[:, 2:4]
        other = np.clip(shares[:, 4], TINY, 1 - TINY)[:, None, None, None]
        paid = (price @ self.shares.taken.T)[:, None, :, None]
        m = self.num_microbatches
        short = short / np.maximum(short.sum(axis=1, keepdims=True), 1.0)
        long_factor, short_factor = waits.sum(axis=1), short.sum(axis=1)

        def least(cost: Floats, terms: Terms, behind: Ints, slowest: float = 0.0) -> Least:
            # In place: new arrays took as long as what is done to them.
            if self.even is not None:
                even = self.even[behind][None, :, None, None]
                cost *= 1 - other
                cost += other * (even * terms.times + terms.sends)
            cost += ((1 - own) * terms.share + slowest * own) * terms.follow
            if terms.after.size > 1:
                cost += terms.after
            cost -= mu[:, None, None, None] * terms.counts
            cost += paid
            return self._least(cost)

        def kept(terms: Terms, passes: Floats, behind: Ints) -> Least:
            return least(np.maximum(passes, TINY)[:, None, None, None] * terms.with_sends, terms, behind)

        def turned(terms: Terms, behind: Ints) -> Least:
            is_long = behind <= m - 2
            v, w = (np.where(is_long, waits[:, k, None], short[:, k, None])[:, :, None, None] for k in (0, 1))
            q = np.minimum(behind, m - 1)[None, :, None, None]
            # f and b of a stage: the second follows from the whole time.
            cost = (m - q * w) * terms.times
            cost += q * (w - v) * terms.forward
            if terms.has_sends:
                cost += np.minimum(v + w, 1.0) * terms.sends
            return least(cost, terms, behind, 1.0)

        places, at_first = np.arange(bracket.inner.times.shape[1]), self.lengths - 1
        ones = np.ones(len(mu))
        inner = [
            kept(bracket.inner, ones, places),
            kept(bracket.behind, short_factor, places) if self.longest >= m else None,
            kept(bracket.behind, long_factor, places),
            turned(bracket.turn, places),
        ]
        first = [kept(bracket.first, ones, at_first), turned(bracket.first_turn, at_first)]
        # In the order of the layers of a walk: what a hop counts behind a stage of each.
        counted = np.stack([ones, short_factor, long_factor])
        if self.even is not None:
            counted = (1 - other.ravel()) * counted + other.ravel()
        return Path(self, bracket, inner, first, shares, counted).walk()

    def _least(self, cost: Floats) -> Least:
        best = least_candidate(cost)[:, :, self.by_group]
        return Least(np.minimum.reduceat(best, self.group_starts, axis=2), cost, self.members)


def least_candidate(cost: Floats) -> Floats:
    """Least over the last axis; a few candidates are faster held against each other."""
    if cost.shape[-1] > FEW_CANDIDATES:
        return np.asarray(cost.min(axis=-1))
    least = cost[..., 0]
    for c in range(1, cost.shape[-1]):
        least = np.minimum(least, cost[..., c])
    return least


def even_passes(num_stages: int, num_microbatches: int, longer: float) -> Floats:
    """How often each stage counts in (even), [stage].

    Any weights of the rows that add up to 1 are valid. Here a second costs nearly the same on every stage;
    weights below zero are cut off.
    """
    p, m = num_stages, num_microbatches
    rows = np.empty((p, p))
    for s in range(p):
        q = p - 1 - s
        if m >= q + 2:
            rows[s, :s], rows[s, s], rows[s, s + 1 :] = 1.0, m - q, 2.0
        else:
            rows[s] = 1.0
            rows[s, s] += (m - 1) * longer
    weights = np.linalg.lstsq(rows.T, np.ones(p), rcond=None)[0]
    weights = np.maximum(weights, 0.0)
    weights = weights / weights.sum() if weights.sum() > 0 else np.full(p, 1 / p)
    cost: Floats = weights @ rows
    return cost


def least_longer(places: Places) -> float:
    """Least share of the longer of its two passes in the time of any stage."""
    found = 1.0
    for stages in (places.inner, places.first):
        n = np.arange(stages.times_ms.shape[2])
        forward = stages.forward_ms[:, :, None] * n + stages.base_forward_ms[:, :, None]
        fits = np.isfinite(stages.times_ms)
        both = np.where(fits, stages.times_ms, 1.0)
        longer = np.maximum(forward, both - forward) / both
        found = min(found, float(np.where(fits, longer, 1.0).min()))
    return found
