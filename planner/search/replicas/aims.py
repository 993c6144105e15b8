"""Which deadlines are looked at in turn, and at what prices of chips.

At one price `planner.search.replicas.deadlines` tells whether a deadline is closed. Where it stays open, some
pipelines that keep the rows with the m micro-batches that stand open hold all layers in a mean, and the chips
of that mean are worth no more than m. What is proven of m at other prices is no more than what these chips
are worth there: the worth of a pipeline is that of its chips, whatever a layer costs. So where their adapters
leave the same time, no prices close the deadline at which they are worth less than m, and they are a row of
`formulations.chip_prices`: a cutting plane of the relaxation itself, for this deadline and all later ones, as
what is done by one is done by a later one. Where all rows together ask for more than the batch, no such
prices are left. The next prices are in the midst of those that all rows leave (`planner.search.replicas.
centres`). Once some prices leave but a few chains open, the next ones lie on the way from these to that
midst, as near as the rows allow: further off others would open that took long to close. The chains that
stayed open are looked at first there, those first whose rows leave least, which mostly shows at once that
these do not suffice. Rows only say what prices are tried; proven is that a deadline is closed at some.

Deadlines rise, so that rows stay valid: the last one is tried at once, in case the first prices close it,
then shares of it; between one that is closed and one that is not, the middle. Prices that do not close a
deadline after some tries may close one before it: now and then the middle between it and the last one closed
is looked at with them, of which all is closed that is for the later one. The constants are guesses.

References
----------
J. E. Kelley, "The cutting-plane method for solving convex programs", Journal of SIAM 8(4), 1960.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Column
from planner.search.replicas.deadlines import Deadlines, Span
from planner.search.replicas.paths import Paths

PRICES = 60
"""Prices that are tried for one deadline."""
SHARES = 0.9, 0.96, 1.0
"""Deadlines that are looked at in turn, as shares of the last one."""
TRIES = 6
"""Prices of a deadline between two looks at one before it."""
NEAR = 2e-3
"""Relative distance between two deadlines below which no third one is looked at between them."""
APART = 0.01
"""The same between one that is closed and one that no prices close."""
SLACK = 5e-3
"""Share by which chips of a row are to be worth more than asked for between those prices and the midst."""
SAME = 2e-3
"""Relative distance between prices below which nothing new would come of them."""


@dataclass(frozen=True)
class Row:
    """Chips that may do so many sequences by a deadline: no prices close it at which they are worth less."""

    chips: tuple[float, ...]
    """By class."""
    sequences: float
    deadline_ms: float = 0.0
    span: Span | None = None
    """The chains that stayed open."""


class Aims:
    """Deadlines of one problem; prices and rows are kept from each to the next."""

    def __init__(
        self,
        paths: Paths,
        price: Floats,
        program: Callable[[float, list[Row]], tuple[Floats, float]],
        keep: Callable[[list[Column]], None],
        is_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin at a price, all chips together worth the batch.

        Parameters
        ----------
        program
            Prices amid those that keep all rows by a deadline, worth the batch, and what all chips are
            worth at least, the batch or more where no prices keep them.
        keep
            Takes chains that came up.
        """
        self.paths, self.price, self.program, self.keep, self.is_up = paths, price, program, keep, is_up
        self.batch = paths.chains.batch
        self.closed_ms = 0.0
        """The last deadline that was closed."""
        self.missed_ms = np.inf
        """The first one that no prices close that were tried."""
        self.looks = 0
        self._rows: list[Row] = []
        self._first: dict[Span, None] = {}
        """Chains that stayed open at some deadline and price, those of the last one last."""
        self._look: Deadlines | None = None
        """A look that was cut."""
        self._prices_left = PRICES
        """Prices that its deadline was to be tried with, from that look on."""
        self._nearly: Floats | None = None
        """The last prices that left but a few chains open."""

    def improve(self, least_ms: float, most_ms: float, most_aims: int | None = None) -> float:
        """The latest deadline up to a last one that was closed, or what is known already [ms].

        Parameters
        ----------
        most_aims
            Deadlines that are looked at, by default all that may tell anything.
        """
        self.closed_ms = max(self.closed_ms, least_ms)
        for aim_ms, prices in itertools.islice(self._aims(most_ms), most_aims):
            if self.is_up() or self.closed_ms >= most_ms * (1 - NEAR):
                break
            if not self.closed_ms * (1 + NEAR) < aim_ms < self.missed_ms:
                continue
            if self._closes(aim_ms, prices):
                self.closed_ms = aim_ms
            elif prices > 1 and not self.is_up():
                self.missed_ms = aim_ms
        return self.closed_ms

    def _aims(self, most_ms: float) -> Iterator[tuple[float, int]]:
        """Deadlines in turn, with the prices that are tried for each."""
        if self._look is not None:
            yield min(self._look.deadline_ms, most_ms), self._prices_left
        elif not self._rows:
            yield most_ms, 1
        for share in SHARES:
            yield share * most_ms, PRICES
        while self.missed_ms > self.closed_ms * (1 + APART):
            yield (self.closed_ms + min(self.missed_ms, most_ms)) / 2, PRICES

    def _closes(self, deadline_ms: float, most_prices: int) -> bool:
        """Whether some prices close a deadline."""
        for tried in range(1, most_prices + 1):
            self._prices_left = most_prices - tried + 1
            if self._look is None or deadline_ms > self._look.deadline_ms:
                self._look = Deadlines(self.paths, self.price, self.is_up)
                self.looks += 1
            if self._look.closes(deadline_ms, self._in_turn()):
                self._look = None
                return True
            if self.is_up():
                return False
            self._learn(self._look)
            if self._look.is_nearly:
                self._nearly = self.price
            if tried % TRIES == 0:
                self._close_before(deadline_ms, self._look)
                if self.is_up():
                    return False
            rows = [row for row in self._rows if row.deadline_ms <= deadline_ms]
            before, (midst, worth) = self.price, self.program(deadline_ms, rows)
            self.price, self._look = self._towards(midst, rows), None
            if np.allclose(self.price, before, rtol=SAME):
                self.price = midst
            if worth >= self.batch or np.allclose(self.price, before, rtol=SAME):
                return False
        return False

    def _towards(self, midst: Floats, rows: list[Row]) -> Floats:
        """Prices amid those that keep all rows, or on the way to them from such as nearly did."""
        if self._nearly is None:
            return midst
        way = 0.0
        for row in rows:
            chips, asked = np.array(row.chips), row.sequences * (1 + SLACK)
            have, there = float(chips @ self._nearly), float(chips @ midst)
            if have < asked:
                way = max(way, (asked - have) / (there - have) if there > asked else 1.0)
        return (1 - way) * self._nearly + way * midst

    def _close_before(self, deadline_ms: float, look: Deadlines) -> None:
        """Try a deadline before one that the prices of a look did not close."""
        before_ms = (self.closed_ms + deadline_ms) / 2
        if before_ms <= self.closed_ms * (1 + NEAR):
            return
        if look.closes(before_ms, self._in_turn()):
            self.closed_ms = before_ms
        elif not self.is_up():
            self._learn(look)

    def _learn(self, look: Deadlines) -> None:
        """Take what stayed open at a deadline."""
        self.keep(look.columns())
        for one in look.open_ones:
            self._first.pop(one.span, None)
            self._first[one.span] = None
            if one.chips is not None:
                chips, sequences = tuple(one.chips.tolist()), float(look.sequences(one.span))
                self._rows.append(Row(chips, sequences, look.deadline_ms, one.span))

    def _in_turn(self) -> list[Span]:
        """What stayed open at some price, those first whose chips are worth least now for what they run."""
        worth = dict.fromkeys(self._first, 1.0)
        for row in self._rows:
            if row.span in worth:
                now = float(np.dot(row.chips, self.price)) / row.sequences
                worth[row.span] = min(worth[row.span], now)
        return sorted(worth, key=worth.__getitem__)
