"""Whether whole layers of all chunks leave a step below a limit, stage by stage along the pipeline.

`formulations.virtual_classes` deals layers to chunks in fractions, so that all chunks of a stage are alike.
Whole layers seldom let them be, and where stages have their long chunks at different times neighbours wait
for each other, turn after turn. Here every stage has a list of ways: a class, whole layers of each chunk, and
what is recomputed (`planner.search.virtual.ways`). Ways of stages that follow each other, a *window*, go
together if their step, by `formulations.interleaved_windows` (window), lies below the limit, where the other
stages take the least that the classes and layers left for them do (`planner.search.virtual.passes`), and
either stage 0 or the first of the window still reduces its gradients behind its last backward. A plan
below it is a path through windows that overlap in all but a stage, with no more stages of a class than there
are and the layers of the model. With g the numbers of stages of each class up to the end of a window w,

    A(w, g) = layers(end of w) + union of A(w', g - one of its class)   over the windows w' that w follows

are the sums of layers of paths to it, and likewise those from which the rest of the pipeline leads to all
layers: a window for which the two have none in common is in no plan, and is struck off; where none is left
there is no plan. Windows grow a stage at a time, from single ways. Of what is left of the lists the least is
more, with which wider ones are looked at. Classes that are much alike may be one
(`planner.search.virtual.ways.taken_together`): far fewer windows are left, which grow wider in the same time.

Leaves out that stages outside a window take their least on other ways for each piece of work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from formulations.interleaved_windows import window_ends
from formulations.virtual_classes_data import VirtualClassesData
from planner.cost.prices import Bools, Ints
from planner.search.ahead import shared
from planner.search.virtual.passes import LeastPasses
from planner.search.virtual.sums import LayerSums, Sums, joined, meet, pairs_meet
from planner.search.virtual.ways import Spare, Ways

ROUNDING = 1e-9
"""Part of the limit by which a step may exceed it, as sums of times are rounded."""
MOST_OF_STAGE = 5_000
"""Forwards and backwards of a stage beyond which they are not followed one by one. A guess."""
MOST_COUNTS = 5_000
"""Numbers of stages by class beyond which no path is looked for. A guess."""
MOST_PAIRS = 4_000_000
"""Windows from one stage on that overlap with others beyond which they do not grow, as they take memory. A
guess."""
MOST_WORDS = 50_000_000
"""Words of sums of layers that windows of one width may take, 0.4 GB, and as many again. A guess."""
BLOCK = 50_000_000
"""Pieces of work between two looks at the clock: about 0.05 s."""
BLOCKS_SHARED = 6
"""Blocks of windows of which another process may look at half. A guess: to begin one takes some 0.03 s."""


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

    def only(self, keep: Bools | Ints) -> Windows:
        """Some of them: whether or which, [window]."""
        return Windows(self.ways[keep], self.head[keep], self.tail[keep])


class TooMuch(Exception):
    """There are more windows than may be looked at, or no time is left for them."""


class DealtPaths:
    """Paths through the ways of the stages of one part; `hold` says whether any plan may be among them.

    Parameters
    ----------
    most_pieces
        Pieces of work, of all windows, that may be looked at.
    is_up
        Whether the time is up.
    workers
        Processes of the search, None for as many as are worth it: another one may look at windows, too.
    """

    def __init__(
        self,
        data: VirtualClassesData,
        ways: list[Ways],
        most_pieces: int,
        is_up: Callable[[], bool] = lambda: False,
        workers: int | None = 1,
    ) -> None:
        self.data, self.most_pieces, self.is_up, self.workers = data, most_pieces, is_up, workers
        self.num_stages = data.sample.num_stages
        self.pieces = 0
        """Pieces of work looked at."""
        self.width = 0
        """Stages of the windows that were looked at."""
        self.holds = True
        """What `hold` has said."""
        self.is_too_much = False
        """Whether it gave up on wider windows."""
        self.windows: list[Windows] = []
        """[first stage]"""
        self._of_stage = 2 * data.sample.stage.num_microbatches * data.sample.virtual_stages
        most = np.minimum(data.most, self.num_stages)
        self.is_small = int(np.prod(most + 1)) <= MOST_COUNTS and self._of_stage <= MOST_OF_STAGE
        self._spare = Spare(ways, data.sample.num_layers)
        self.ways = self._spare.ways
        if not (self.is_small and self._spare.fit):
            return
        self._sums = LayerSums(data.fewest, data.most, self.num_stages, self._spare.num_layers)
        self._first = self._sums.nothing[None]
        """Sums behind the first windows, [window, numbers]."""
        self._ahead: list[Sums] = []
        """[first stage] sums before the last stage from which all layers are reached [window, numbers]."""

    def hold(self) -> bool:
        """Whether some path may hold all layers below the limit; never wrongly no.

        Windows grow as long as no more has to be looked at than may be.
        """
        self.holds = self._spare.fit
        if not (self.is_small and self._spare.fit):
            return self.holds
        try:
            while self.holds and self.width < self.num_stages:
                self.holds = self._grow()
        except TooMuch:
            self.is_too_much = True
        return self.holds

    @property
    def fits(self) -> Bools:
        """Numbers of layers of the ways that are left, [class, stage, n]: those of plans below the limit."""
        fits: Bools = np.zeros_like(self.data.fits)
        for s, one in enumerate(self.ways):
            used = self._used(s)
            fits[one.of_class[used], s, self._spare.layers(s, one.layers[used])] = True
        return fits

    def _used(self, s: int) -> Ints:
        """Ways of a stage that are left."""
        if not self.windows:
            return np.arange(len(self.ways[s]))
        first = min(s, len(self.windows) - 1)
        is_used = np.zeros(len(self.ways[s]), dtype=np.bool_)
        is_used[self.windows[first].ways[:, s - first]] = True
        return np.flatnonzero(is_used)

    def _grow(self) -> bool:
        """Look at windows of a stage more, from the first to the last, and back; whether any path is left."""
        if self.is_up():
            raise TooMuch
        used = [self._used(s) for s in range(self.num_stages)]
        left = [one.only(at) for one, at in zip(self.ways, used, strict=True)]
        least = LeastPasses(self._sums, left, self.data.hop_ms)
        sizes = [*map(len, self.windows)] if self.width else [1] * (self.num_stages + 1)
        grown: list[Windows] = []
        reached: list[Sums] = []
        width = self.width + 1
        sums, last, words = self._first, self.num_stages - width, 0
        for s in range(last + 1):
            windows = self._overlapping(s, sums) if self.width else self._single(s)
            self._spend(len(windows) * width * self._of_stage, last - s)
            windows = windows.only(self._below(s, windows, least))
            behind = self._sums.behind(s + width - 1, sums[windows.head], *self._last(s, windows))
            words += behind.size
            if words > MOST_WORDS:
                raise TooMuch
            grown.append(windows)
            reached.append(behind)
            sums = joined(behind, windows.tail, sizes[s + 1])
        self.width = width
        return self._strike(grown, reached, sizes)

    def _spend(self, pieces: int, to_come: int) -> None:
        """Take pieces out of what is left, where it seems to do for the stages to come as well."""
        if self.pieces + pieces * (1 + to_come / 2) > self.most_pieces:
            raise TooMuch
        self.pieces += pieces

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
        if int(counts.sum()) > MOST_PAIRS:
            raise TooMuch
        i = np.repeat(np.arange(len(one)), counts)
        j = order[np.arange(len(i)) + np.repeat(end - np.cumsum(counts), counts)]
        lead = pairs_meet(sums, i, ahead, j)
        i, j = i[lead], j[lead]
        return Windows(np.concatenate([one.ways[i], other.ways[j][:, -1:]], axis=1), i, j)

    def _strike(self, grown: list[Windows], reached: list[Sums], sizes: list[int]) -> bool:
        """Leave the windows on paths with all layers, from the last to the first; whether any is.

        Parameters
        ----------
        sizes
            [first stage] windows that heads and tails speak of.
        """
        behind = self._sums.all[None].repeat(len(grown[-1]), axis=0)
        found: list[Windows] = []
        ahead: list[Sums] = []
        for s in range(len(grown) - 1, -1, -1):
            keep = meet(reached[s], behind)
            windows = grown[s].only(keep)
            found.append(windows)
            ahead.append(self._sums.before(s + self.width - 1, behind[keep], *self._last(s, windows)))
            if s > 0:
                behind = joined(ahead[-1], windows.head, sizes[s])[grown[s - 1].tail]
        self._first = reached[0][keep]
        self.windows, self._ahead = found[::-1], ahead[::-1]
        return all(map(len, found))

    def _below(self, s: int, windows: Windows, least: LeastPasses) -> Bools:
        """Whether windows that begin at a stage keep below the limit, [window]; a block at a time.

        Raises
        ------
        TooMuch
            When the time is up.
        """
        size = max(1, BLOCK // (windows.ways.shape[1] * self._of_stage))
        firsts = range(0, len(windows), size)

        def looked_at(first: int, _: Callable[[], bool]) -> Bools | None:
            if self.is_up():
                return None
            block = np.arange(first, min(first + size, len(windows)))
            return self._block_below(s, windows.only(block), least)

        found: list[Bools] = []
        workers = self.workers if len(firsts) >= BLOCKS_SHARED else 1
        for one in shared(firsts, looked_at, workers, self.is_up):
            if one is None:
                raise TooMuch
            found.append(one)
        below: Bools = np.concatenate(found) if found else np.zeros(0, dtype=np.bool_)
        return below

    def _block_below(self, s: int, windows: Windows, least: LeastPasses) -> Bools:
        """The same of windows that are few."""
        data, m = self.data, self.data.sample.stage.num_microbatches
        chosen = [one.only(at) for one, at in zip(self.ways[s:], windows.ways.T, strict=False)]
        classes = np.stack([one.of_class for one in chosen])
        hops = [data.hop_ms[here, there] for here, there in pairwise(classes)]
        layers = np.sum([one.layers for one in chosen], axis=0)
        outside = least.of_windows(s, classes.T, layers)
        own = chosen[0].reduction_ms
        if s == 0:
            more = own - least.first_reduction_ms
            outside = replace(outside, after=own, last=outside.last + more, both=outside.both + more)
        else:
            both = outside.both.copy()
            both[0] = np.maximum(both[0], outside.first[-1] + own)
            outside = replace(outside, after=np.maximum(outside.after, own), both=both)
        follow = np.max([one.follow_ms for one in chosen], axis=0).clip(data.least_follow_ms)
        limit = data.cutoff_ms * (1 + ROUNDING) - data.sample.stage.constant_ms - follow
        pieces = [one.pieces for one in chosen]
        below: Bools = window_ends(s, self.num_stages, pieces, hops, outside, m, limit) <= limit
        return below
