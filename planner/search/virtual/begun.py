"""Pairs with virtual stages that are opened before whole stages are, and beside them where these take long.

A good plan with virtual stages closes parts of whole stages, too. On 1,024 chips of two classes the best
plans of gpt-oss-120b have two stages with seven virtual ones each, whose pair is none of the first: whole
stages alone took nineteen twentieths of the search before it was met.
"""

from __future__ import annotations

from planner.search.bound_data import BoundData
from planner.search.clock import Clock
from planner.search.openings import Opener
from planner.search.virtual.dives import LIKELY
from planner.search.virtual.items import PAIRS_TURN, VirtualPair, turn_of
from planner.search.virtual.openings import FIRST_PAIRS, VirtualOpener

FIRST_AHEAD = 64
"""Parts opened with which as many pairs are opened beside whole stages, and again with each twice as many. A
guess: searches where whole stages are soon closed open fewer."""


class VirtualSearch(VirtualOpener):
    """Opens parts of one search in the order that it takes, and some pairs ahead of it."""

    def __init__(
        self, bounds: BoundData, clock: Clock, opener: Opener, beyond_s: float | None = None
    ) -> None:
        self.ahead_at = FIRST_AHEAD
        """Parts that the search has opened with which the next pairs are opened."""
        opener.frontier.queue.turn_of = turn_of
        super().__init__(bounds, clock, opener, beyond_s)

    def begin(self, *, is_cut: bool) -> None:
        """Open some pairs and queue the others; an interrupted one too, so that the bound counts it."""
        pairs, opened = self.waiting, 0
        if self.beyond_s is None and pairs:
            self.frontier.look_closer()
        most = 0 if is_cut else min(FIRST_PAIRS, len(pairs))
        try:
            while opened < most and not self.clock.is_up:
                self.open(*pairs[opened])
                opened += 1
        finally:
            for bound_s, pair in pairs[opened:]:
                self._push(bound_s, pair)

    def open_ahead(self, opened: int) -> None:
        """Open some pairs where whole stages take long, and try what is likely to hold a good plan.

        Parameters
        ----------
        opened
            Parts of all kinds that the search has opened.
        """
        queue, dives = self.frontier.queue, self.dives
        whole_s = queue.least_ready_s
        is_closed = whole_s is None or whole_s >= self.frontier.cutoff_s
        if opened < self.ahead_at or is_closed:
            return
        if self.clock.is_late:  # the least bound decides
            self.clock.was_felt = True
            return
        self.ahead_at = 2 * opened
        for _ in range(opened):
            head = None if self.clock.is_up else queue.pop_of(PAIRS_TURN)
            if head is None:
                break
            bound_s, pair = head
            if bound_s >= self.cutoff_s or not isinstance(pair, VirtualPair):
                queue.push(bound_s, pair)
                break
            try:
                self.open(bound_s, pair)
            except KeyboardInterrupt:
                queue.push(bound_s, pair)
                raise
        self.dives = 0
        self._try_likely(LIKELY)
        self.dives = dives
