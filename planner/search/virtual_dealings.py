"""Whether whole layers of all chunks leave a step below a limit, stage by stage along the pipeline.

`formulations.virtual_classes` deals layers to chunks in fractions, so that all chunks of a stage are alike.
Whole layers seldom let them be, and where stages have their long chunks at different times neighbours wait
for each other, turn after turn. Here every stage has a list of ways: a class, whole layers of each chunk, and
what is recomputed (`planner.search.virtual_ways`). Two ways go together on neighbours if their step, by
`formulations.interleaved_windows` (pair) with the other stages at the least of their lists, lies below the
limit. A plan below it is a path through the lists, on which neighbours go together, with no more stages of a
class than there are and all the layers. With g the numbers of stages of each class up to s,

    A(s, g, i) = layers(i) + max A(s-1, g - one of the class of i, j)   over ways j of s-1 that go with i

is the most layers of stages 0 .. s with s dealt in way i: where no path holds all layers there is no plan.
Ways on no path that does are struck off, and so are they before any pair is looked at, with all that the
stages behind may hold. Of what is left the least is more, with which it is looked again.

Leaves out what stages that are further apart cost each other, and what others take beyond their least.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from formulations.interleaved_windows import Others, pair_ends
from formulations.virtual_classes_data import VirtualClassesData
from planner.cost.prices import Bools, Floats, Ints
from planner.search.virtual_ways import Ways

ROUNDING = 1e-9
"""Part of the limit by which a step may exceed it, as sums of times are rounded."""
ROUNDS = 3
"""Times that the lists are gone through. A guess: any number leaves a bound."""
MOST_OF_STAGE = 5_000
"""Forwards and backwards of a stage beyond which they are not followed one by one. A guess."""
MOST_COUNTS = 5_000
"""Numbers of stages by class beyond which no path is looked for. A guess."""
NOWHERE = -1e9
"""Layers where no path leads."""


class TooMuch(Exception):
    """There are more pairs of ways than may be looked at."""


class DealtPaths:
    """Paths through the ways of the stages of one part; `hold` says whether any plan may be among them.

    Parameters
    ----------
    most_pieces
        Pieces of work, of all pairs of ways, that may be looked at.
    """

    def __init__(self, data: VirtualClassesData, ways: list[Ways], most_pieces: int) -> None:
        self.data, self.ways, self.most_pieces = data, ways, most_pieces
        self.num_stages, self.num_layers = data.sample.num_stages, data.sample.num_layers
        self.pieces = 0
        """Pieces of work looked at."""
        most = np.minimum(data.most, self.num_stages)
        of_stage = 2 * data.sample.stage.num_microbatches * data.sample.virtual_stages
        self._is_small = int(np.prod(most + 1)) <= MOST_COUNTS and of_stage <= MOST_OF_STAGE
        if not self._is_small:
            return
        self._counts = np.array(list(product(*(range(k + 1) for k in most.tolist()))), dtype=np.int64)
        self._stride = np.append(np.cumprod((most + 1)[::-1])[-2::-1], 1).astype(np.int64)
        total = self._counts.sum(axis=1)
        self._is_end = (total == self.num_stages) & (self._counts >= data.fewest).all(axis=1)
        self._before = [
            [np.flatnonzero((total == s) & (self._counts[:, c] < k)) for c, k in enumerate(most.tolist())]
            for s in range(self.num_stages)
        ]
        """[stage][class] numbers of stages before it, as places in a list."""

    def hold(self) -> bool:
        """Whether some path may hold all layers below the limit; never wrongly no.

        Raises
        ------
        TooMuch
            Where that takes more than may be looked at.
        """
        if not self._is_small:
            raise TooMuch
        for _ in range(ROUNDS):
            before = sum(map(len, self.ways))
            if not all(map(len, self.ways)) or not self._narrow():
                return False
            if sum(map(len, self.ways)) == before:
                break
        return True

    @property
    def fits(self) -> Bools:
        """Numbers of layers of the ways that are left, [class, stage, n]: those of plans below the limit."""
        fits: Bools = np.zeros_like(self.data.fits)
        for s, one in enumerate(self.ways):
            fits[one.of_class, s, one.layers] = True
        return fits

    def _narrow(self) -> bool:
        """Strike off what is on no path that holds all layers; whether any is."""
        behind, others = self._behind(), self._others()
        reached: list[Floats] = []
        goes: list[Bools] = []
        reach = self._starts()
        for s in range(self.num_stages):
            enough = reach + behind[s + 1][:, None] >= self.num_layers
            keep = np.asarray(enough.any(axis=0))
            if not keep.any():
                return False
            self.ways[s] = self.ways[s].only(keep)
            reached.append(np.where(enough, reach, NOWHERE)[:, keep])
            if s > 0:
                goes[-1] = goes[-1][:, keep]
            if s + 1 < self.num_stages:
                self.ways[s + 1] = self.ways[s + 1].only(self._may_follow(s, reached[s], behind[s + 2]))
                goes.append(self._go_together(s, others))
                reach = self._moved(s, reached[s], goes[s])
        self._strike(reached, goes)
        return True

    def _classes_of(self, s: int) -> list[tuple[int, Ints, Ints]]:
        """Classes of a stage with their ways and with the numbers of stages that may come before."""
        of_class = self.ways[s].of_class
        return [(c, np.flatnonzero(of_class == c), self._before[s][c]) for c in np.unique(of_class).tolist()]

    def _behind(self) -> list[Floats]:
        """Most layers of stages from s on, whatever goes together, by the stages before it, [s][numbers]."""
        found = [np.where(self._is_end, 0.0, NOWHERE)]
        for s in range(self.num_stages - 1, -1, -1):
            behind = np.full(len(self._counts), NOWHERE)
            for c, of, at in self._classes_of(s):
                held = self.ways[s].layers[of].max() + found[-1][at + self._stride[c]]
                behind[at] = np.maximum(behind[at], held)
            found.append(behind)
        return found[::-1]

    def _others(self) -> Others:
        """The least of every list."""
        forward, backward = (
            np.array([getattr(one, name).min(axis=0) for one in self.ways])
            for name in ("forward_ms", "backward_ms")
        )
        used = [np.unique(one.of_class) for one in self.ways]
        hops = [
            float(self.data.hop_ms[np.ix_(here, there)].min())
            for here, there in zip(used, [*used[1:], used[0]], strict=True)
        ]
        return Others(forward, backward, np.array(hops))

    def _starts(self) -> Floats:
        """A of stage 0, [numbers, way]."""
        reach = np.full((len(self._counts), len(self.ways[0])), NOWHERE)
        for c, of, _ in self._classes_of(0):
            reach[self._stride[c], of] = self.ways[0].layers[of]
        return reach

    def _may_follow(self, s: int, reach: Floats, behind: Floats) -> Bools:
        """Ways of s+1 that may be on a path with all layers, if they went with all of s [way]."""
        best, ways = reach.max(axis=1), self.ways[s + 1]
        may = np.zeros(len(ways), dtype=np.bool_)
        for c, of, at in self._classes_of(s + 1):
            most = (best[at] + behind[at + self._stride[c]]).max(initial=NOWHERE)
            may[of] = ways.layers[of] + most >= self.num_layers
        return may

    def _go_together(self, s: int, others: Others) -> Bools:
        """Whether ways of s and of s+1 keep below the limit together, [way, way]."""
        one, other, data = self.ways[s], self.ways[s + 1], self.data
        shape, stage = (len(one), len(other)), data.sample.stage
        pieces = 4 * stage.num_microbatches * data.sample.virtual_stages * len(one) * len(other)
        if self.pieces + pieces > self.most_pieces:
            raise TooMuch
        self.pieces += pieces
        i, j = (index.ravel() for index in np.indices(shape))
        hop = data.hop_ms[one.of_class[i], other.of_class[j]]
        first, second = one.dealings(i), other.dealings(j)
        end = pair_ends(s, first, second, hop, others, stage.num_microbatches)
        tails = np.zeros(len(data.most))
        for c, of_class in data.classes.items():
            tails[c] = of_class.stage.reduce_tail_ms[0]
        tail = tails[one.of_class[i]] if s == 0 else tails[self.ways[0].of_class].min()
        follow = np.maximum(one.follow_ms[i], other.follow_ms[j])
        step = end + tail + follow + stage.constant_ms
        below: Bools = (step <= data.cutoff_ms * (1 + ROUNDING)).reshape(shape)
        return below

    def _moved(self, s: int, reach: Floats, goes: Bools) -> Floats:
        """A of stage s+1 from that of s, [numbers, way]."""
        ways = self.ways[s + 1]
        moved = np.full((len(reach), len(ways)), NOWHERE)
        for c, of, at in self._classes_of(s + 1):
            some = at[reach[at].max(axis=1) > NOWHERE]
            best = np.where(goes[None][:, :, of], reach[some][:, :, None], NOWHERE).max(axis=1)
            moved[np.ix_(some + self._stride[c], of)] = best + ways.layers[of]
        return moved

    def _strike(self, reached: list[Floats], goes: list[Bools]) -> None:
        """Leave the ways on paths with all layers: the same from the last stage to the first."""
        ahead = np.where(self._is_end[:, None], 0.0, NOWHERE).repeat(len(self.ways[-1]), axis=1)
        for s in range(self.num_stages - 1, -1, -1):
            keep = np.asarray((reached[s] + ahead >= self.num_layers).any(axis=0))
            self.ways[s] = self.ways[s].only(keep)
            if s == 0:
                return
            then, goes_on = ahead[:, keep], goes[s - 1][:, keep]
            ahead = np.full((len(then), len(goes_on)), NOWHERE)
            for c, of, at in self._classes_of(s):
                held = then[np.ix_(at + self._stride[c], of)] + self.ways[s].layers[of]
                some = at[held.max(axis=1, initial=NOWHERE) > 0]
                held = held[held.max(axis=1, initial=NOWHERE) > 0]
                best = np.where(goes_on[None][:, :, of], held[:, None, :], NOWHERE).max(axis=2)
                ahead[some] = np.maximum(ahead[some], best)
