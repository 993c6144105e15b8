"""Which choices pipelines with all layers may still have at each place, and with how much time behind them.

At any prices on chips let V[w] be the most layers, less prices, of all pipelines of the open lengths of a row
that take the way w: what lies behind it holds the most that `planner.search.meshes.holding` finds, and what
lies before it the most that a run from the first stage to the last finds in the same manner. A plan of L
layers on chips that are there has ways of

    V[w] + sum_c lambda[c] N[c] >= L

alone, as it is one of these pipelines. So ways that fall short are left out, at whatever prices that was
seen: no plan is lost, and what is held at other prices only falls (reduced costs fix variables in the same
manner). Of what is left the choices at each place and the ticks behind them hold for all parts of the row
too. Where these count in other ticks, u for v, and q stages lie behind, a plan with d ticks of v has no fewer
than d v / u - q and less than (d + q) v / u of u, as each stage is rounded down by less than a tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.choices import Choices
from planner.search.meshes.places import Ints
from planner.search.meshes.ways import Bools, most_covering, most_within
from planner.tolerances import COUNT_TOL

if TYPE_CHECKING:
    from planner.search.meshes.holding import Holding

NONE_BEHIND = 2**31 - 1
"""Ticks beyond any: fewest where there are none."""


@dataclass(frozen=True)
class Window:
    """What is left of the choices of one place."""

    number: Ints
    """[shape, layers] of each choice; -1 where there is none."""
    fewest: Ints
    """[choice, row] ticks behind it."""
    most: Ints
    """[choice, row]; less than the fewest where it is left out."""

    def usable(self) -> Bools:
        """[shape, layers] what any row has."""
        left = np.append((self.fewest <= self.most).any(axis=1), False)
        return np.asarray(left[self.number])

    def of_groups(self, shape: Ints, layers: Ints, starts: Ints) -> tuple[Ints, Ints]:
        """Fewest and most ticks behind groups of stages that count as one, [group, row]."""
        number = self.number[shape, layers]
        if not len(number):
            none = np.zeros((0, self.fewest.shape[1]), dtype=np.int64)
            return none, none
        return (
            np.minimum.reduceat(self.fewest[number], starts, axis=0),
            np.maximum.reduceat(self.most[number], starts, axis=0),
        )

    def repeated(self, parts: int) -> Window:
        """With each row in so many parts."""
        return Window(self.number, self.fewest.repeat(parts, axis=1), self.most.repeat(parts, axis=1))


@dataclass(frozen=True)
class Windows:
    """What is left of all choices."""

    tick_ms: float
    inner: tuple[Window, ...]
    """[place]"""
    first: dict[int, Window]
    """By place."""

    def repeated(self, parts: int) -> Windows:
        """With each row in so many parts."""
        first = {q: window.repeated(parts) for q, window in self.first.items()}
        return Windows(self.tick_ms, tuple(window.repeated(parts) for window in self.inner), first)

    def behind(self, choices: Choices, q: int, tick_ms: float) -> tuple[Ints, Ints]:
        """Fewest and most ticks behind each choice, in other ticks, [choice, row]."""
        assert choices.behind is not None
        fewest, most = choices.behind
        if tick_ms == self.tick_ms:
            return fewest, most
        ratio, is_left = self.tick_ms / tick_ms, fewest <= most
        low = np.ceil(np.where(is_left, fewest, 1) * ratio - q - COUNT_TOL)
        high = np.floor((np.where(is_left, most, -q - 1) + q) * ratio + COUNT_TOL)
        return np.maximum(low, 0.0).astype(np.int64), high.astype(np.int64)


def leave_out(
    holding: Holding, price: Floats, is_open: Bools, enough: float, asked: Bools | None = None
) -> None:
    """Forget ways and first stages that no plan has; `holding.held` was asked with these prices last.

    Parameters
    ----------
    price
        [row, kind] of a share.
    is_open
        [number of stages, row] lengths that are not closed.
    enough
        Layers, less what rounding may take.
    asked
        [row] what `held` was asked of; the others are left alone.
    """
    shares, number = holding.walks.shares, len(holding.brackets)
    asked = np.ones(number, dtype=np.bool_) if asked is None else asked
    rows = np.flatnonzero(asked).tolist()
    paid, room = price @ shares.taken.T, price @ shares.room
    points = len(holding.layers) * holding.width
    before = np.full((number, points), -np.inf)
    for q in range(holding.walks.longest - 1, -1, -1):
        here = np.full((number, points), -np.inf)
        if q in holding.ends:
            here[:, -2 * holding.width :] = _leave_out_ends(
                holding, q, paid, is_open | ~asked, np.where(asked, enough - room, -np.inf)
            )
        if q < len(holding.ways):
            worth = holding.inner[q].worth(paid)
            for row in rows:
                ways = holding.ways[q][row]
                value = ways.ahead(before[row])
                value += worth[row].take(ways.choice)
                kept = holding.held_at(q)[row].take(ways.behind) + value >= enough - room[row]
                np.maximum.at(here[row], ways.behind[kept], value[kept])
                holding.ways[q][row] = ways.some(kept)
        before = here


def _leave_out_ends(holding: Holding, q: int, paid: Floats, is_open: Bools, enough: Floats) -> Floats:
    """Forget first stages that no plan has; the most that those left hold before each point, [row, point]."""
    (low, high), held = holding.ends[q], holding.held_at(q)[:, -2 * holding.width :]
    worth = np.tile(holding.first[q].worth(paid).T, (2, 1))
    kept = (worth + most_within(held, low, high) >= enough) & is_open[holding.length_at[q]]
    holding.ends[q] = np.where(kept, low, 1), np.where(kept, high, 0)
    return most_covering(worth, *holding.ends[q], 2 * holding.width)


def windows_of(holding: Holding) -> Windows:
    """What is left of all choices, [row] as the holding has them."""
    width, rows = holding.width, len(holding.brackets)
    inner = []
    for q, choices in enumerate(holding.inner):
        fewest = np.full((len(choices.shape), rows), NONE_BEHIND)
        most = np.full((len(choices.shape), rows), -1)
        for row, ways in enumerate(holding.ways[q]):
            ticks = ways.behind.astype(np.int64) % width
            np.minimum.at(fewest[:, row], ways.choice, ticks)
            np.maximum.at(most[:, row], ways.choice, ticks)
        inner.append(Window(choices.number, fewest, most))
    first = {}
    for q, (low, high) in holding.ends.items():
        is_left = low <= high
        fewest = np.where(is_left, low % width, NONE_BEHIND).reshape(2, -1, rows).min(axis=0)
        # A span lies within one layer of points.
        most = np.where(is_left, high % width, -1).reshape(2, -1, rows).max(axis=0)
        first[q] = Window(holding.first[q].number, fewest, most)
    return Windows(holding.tick, tuple(inner), first)
