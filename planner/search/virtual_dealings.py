"""Whether whole layers of all chunks leave a step below a limit, stage by stage along the pipeline.

`formulations.virtual_classes` deals layers to chunks in fractions, so that all chunks of a stage are alike.
Whole layers seldom let them be, and where stages have their long chunks at different times neighbours wait
for each other, turn after turn. Here every stage has a list of ways: a class, whole layers of each chunk, and
what is recomputed (`planner.search.virtual_ways`). Ways of stages that follow each other, a *window*, go
together if their step, by `formulations.interleaved_windows` (window) with the other stages at the least of
their lists, lies below the limit. A plan below it is a path through windows that overlap in all but a stage,
with no more stages of a class than there are and the layers of the model. With g the numbers of stages of
each class up to the end of a window w,

    A(w, g) = layers(end of w) + union of A(w', g - one of its class)   over the windows w' that w follows

are the sums of layers of paths to it, and likewise those from which the rest of the pipeline leads to all
layers: a window for which the two have none in common is in no plan, and is struck off; where none is left
there is no plan. Windows grow a stage at a time, from single ways. Of what is left of the lists the least is
more, with which wider ones are looked at.

Leaves out what stages outside a window take beyond their least.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from formulations.interleaved_windows import Others, window_ends
from formulations.virtual_classes_data import VirtualClassesData
from planner.cost.prices import Bools, Ints
from planner.search.virtual_sums import LayerSums, Sums, joined, meet
from planner.search.virtual_ways import Ways

ROUNDING = 1e-9
"""Part of the limit by which a step may exceed it, as sums of times are rounded."""
MOST_OF_STAGE = 5_000
"""Forwards and backwards of a stage beyond which they are not followed one by one. A guess."""
MOST_COUNTS = 5_000
"""Numbers of stages by class beyond which no path is looked for. A guess."""
MOST_WINDOWS = 200_000
"""Windows of one width beyond which none are looked at. A guess."""
MOST_PAIRS = 3_000_000
"""Windows of one width that may overlap beyond which they do not grow. A guess."""
PAIRS_AT_ONCE = 50_000
"""Windows that are held against the sums of layers together. A guess."""


@dataclass(frozen=True)
class Windows:
    """Windows that begin at one stage."""

    ways: Ints
    """[window, stage] ways of their stages."""
    head: Ints
    """[window] which one of the windows that were grown, and begin here, it is without its last stage."""
    tail: Ints
    """[window] the same without the first stage, of those that begin a stage later."""

    def __len__(self) -> int:
        return len(self.ways)

    def only(self, keep: Bools) -> Windows:
        """Some of them, [window]."""
        return Windows(self.ways[keep], self.head[keep], self.tail[keep])


class DealtPaths:
    """Paths through the ways of the stages of one part; `hold` says whether any plan may be among them.

    Parameters
    ----------
    most_pieces
        Pieces of work, of all windows, that may be looked at.
    """

    def __init__(self, data: VirtualClassesData, ways: list[Ways], most_pieces: int) -> None:
        self.data, self.ways, self.most_pieces = data, ways, most_pieces
        self.num_stages = data.sample.num_stages
        self.pieces = 0
        """Pieces of work looked at."""
        self.width = 0
        """Stages of the windows that were looked at."""
        self._of_stage = 2 * data.sample.stage.num_microbatches * data.sample.virtual_stages
        most = np.minimum(data.most, self.num_stages)
        self.is_small = int(np.prod(most + 1)) <= MOST_COUNTS and self._of_stage <= MOST_OF_STAGE
        if not self.is_small:
            return
        self._sums = LayerSums(data.fewest, data.most, self.num_stages, data.sample.num_layers)
        self.windows: list[Windows] = []
        """[first stage]"""
        self._first = self._sums.nothing[None]
        """Sums behind the first windows, [window, numbers]."""
        self._ahead: list[Sums] = []
        """[first stage] sums before the last stage from which all layers are reached [window, numbers]."""
        self._tails_ms = np.zeros(len(data.most))
        for c, one in data.classes.items():
            self._tails_ms[c] = one.stage.reduce_tail_ms[0]

    def hold(self) -> bool:
        """Whether some path may hold all layers below the limit; never wrongly no.

        Windows grow as long as no more has to be looked at than may be.
        """
        if not self.is_small:
            return True
        while self.width < self.num_stages and self._may_grow():
            if not self._grow():
                return False
        return True

    @property
    def fits(self) -> Bools:
        """Numbers of layers of the ways that are left, [class, stage, n]: those of plans below the limit."""
        fits: Bools = np.zeros_like(self.data.fits)
        for s, one in enumerate(self.ways):
            used = self._used(s)
            fits[one.of_class[used], s, one.layers[used]] = True
        return fits

    def _used(self, s: int) -> Ints:
        """Ways of a stage that are left."""
        if not self.width:
            return np.arange(len(self.ways[s]))
        first = min(s, len(self.windows) - 1)
        found: Ints = np.unique(self.windows[first].ways[:, s - first])
        return found

    def _may_grow(self) -> bool:
        """Whether windows of a stage more are few enough, and what is left to look at is enough for them."""
        if not self.width:
            return True
        number = 0
        for one, other in pairwise(self.windows):
            size = int(max(one.tail.max(), other.head.max())) + 1
            followed = np.bincount(other.head, minlength=size)
            number += int(followed[one.tail].sum())
        left = self.most_pieces - self.pieces
        return number <= MOST_PAIRS and number * (self.width + 1) * self._of_stage <= left

    def _grow(self) -> bool:
        """Look at windows of a stage more; whether any path is left."""
        others = self._others()
        grown: list[Windows] = []
        reached: list[Sums] = []
        sums = self._first
        for s in range(self.num_stages - self.width):
            windows = self._overlapping(s, sums) if self.width else self._single(s)
            if self.width:
                windows = windows.only(self._below(s, windows, others))
            behind = self._sums.behind(s + self.width, sums[windows.head], *self._last(s, windows))
            grown.append(windows)
            reached.append(behind)
            sums = joined(behind, windows.tail, self._number(s + 1))
        return self._strike(grown, reached)

    def _number(self, s: int) -> int:
        """Windows that begin at a stage; before there are any all have an empty one in common."""
        return len(self.windows[s]) if self.windows and s < len(self.windows) else 1

    def _single(self, s: int) -> Windows:
        """Every way of a stage as a window."""
        number = len(self.ways[s])
        nothing = np.zeros(number, dtype=np.int64)
        return Windows(np.arange(number)[:, None], nothing, nothing)

    def _last(self, s: int, windows: Windows) -> tuple[Ints, Ints]:
        """Class and layers of the last stage of windows."""
        one, last = self.ways[s + windows.ways.shape[1] - 1], windows.ways[:, -1]
        return one.of_class[last], one.layers[last]

    def _overlapping(self, s: int, sums: Sums) -> Windows:
        """Pairs of windows that overlap, of which the first begins at a stage, if all layers lead through.

        Parameters
        ----------
        sums
            Those behind the first ones, [window, numbers].
        """
        one, other, ahead = self.windows[s], self.windows[s + 1], self._ahead[s + 1]
        order = np.argsort(other.head, kind="stable")
        first, end = (np.searchsorted(other.head[order], one.tail, side) for side in ("left", "right"))
        counts = end - first
        i = np.repeat(np.arange(len(one)), counts)
        j = order[np.arange(len(i)) + np.repeat(end - np.cumsum(counts), counts)]
        pieces = [slice(at, at + PAIRS_AT_ONCE) for at in range(0, len(i), PAIRS_AT_ONCE)]
        lead: Bools = np.zeros(len(i), dtype=np.bool_)
        for some in pieces:
            lead[some] = meet(sums[i[some]], ahead[j[some]])
        i, j = i[lead], j[lead]
        return Windows(np.concatenate([one.ways[i], other.ways[j][:, -1:]], axis=1), i, j)

    def _strike(self, grown: list[Windows], reached: list[Sums]) -> bool:
        """Leave the windows on paths with all layers, from the last to the first; whether any is."""
        behind = self._sums.all[None].repeat(len(grown[-1]), axis=0)
        found: list[Windows] = []
        ahead: list[Sums] = []
        for s in range(len(grown) - 1, -1, -1):
            keep = meet(reached[s], behind)
            windows = grown[s].only(keep)
            found.append(windows)
            ahead.append(self._sums.before(s + self.width, behind[keep], *self._last(s, windows)))
            if s > 0:
                behind = joined(ahead[-1], windows.head, self._number(s))[grown[s - 1].tail]
        self._first = reached[0][keep]
        self.windows, self._ahead, self.width = found[::-1], ahead[::-1], self.width + 1
        return all(map(len, found))

    def _others(self) -> Others:
        """The least of what is left of every list."""
        used = [self._used(s) for s in range(self.num_stages)]
        forward, backward = (
            np.array([getattr(one, name)[at].min(axis=0) for one, at in zip(self.ways, used, strict=True)])
            for name in ("forward_ms", "backward_ms")
        )
        classes = [np.unique(one.of_class[at]) for one, at in zip(self.ways, used, strict=True)]
        hops = [
            float(self.data.hop_ms[np.ix_(here, there)].min())
            for here, there in zip(classes, [*classes[1:], classes[0]], strict=True)
        ]
        return Others(forward, backward, np.array(hops))

    def _below(self, s: int, windows: Windows, others: Others) -> Bools:
        """Whether windows that begin at a stage keep below the limit, [window]."""
        data, ways = self.data, self.ways[s : s + windows.ways.shape[1]]
        self.pieces += len(windows) * len(ways) * self._of_stage
        classes = [one.of_class[at] for one, at in zip(ways, windows.ways.T, strict=True)]
        dealings = [one.dealings(at) for one, at in zip(ways, windows.ways.T, strict=True)]
        hops = [data.hop_ms[here, there] for here, there in pairwise(classes)]
        end = window_ends(s, dealings, hops, others, data.sample.stage.num_microbatches)
        tail = self._tails_ms[classes[0]] if s == 0 else self._tails_ms[self._first_classes()].min()
        follow = np.max([one.follow_ms[at] for one, at in zip(ways, windows.ways.T, strict=True)], axis=0)
        step = end + tail + follow + data.sample.stage.constant_ms
        below: Bools = step <= data.cutoff_ms * (1 + ROUNDING)
        return below

    def _first_classes(self) -> Ints:
        """Classes of the first stage."""
        return self.ways[0].of_class[self._used(0)]
