"""The least that the chips of a chain are worth that runs some micro-batches by a deadline.

Let S be the time of all stages of a chain together, with the sends on both of their sides and with what
follows the first of them, and D[s] the same of those behind s. Once S is given both are known while stages
are chosen from the last to the first, and with them all that the rows (work), (window), (mirror) and
(partial, e = s) of `formulations.pipeline_rows` ask of a stage: what lies before it is S - x - t[s]. So each
stage is held to rows of its own, not to a weighed sum of two. With h[s] the send at a stage, of one way,
x = D[s] + h[s] the way down to the last stage and back, q stages behind it, m - 1 = k (q + 1) + r, and
g = t - f the least that the longer of its passes may be, every stage of a chain that runs m micro-batches by
T keeps

    m >= q + 2    S - x - t + m t + max(0, x - q f) + max(0, x - q g) <= T           (partial)
                  S + k (t + x) + r g <= T                                           (window)
    m <= q + 1    S - x - t + m t <= T                                               (work)
                  S + (m - 1) g <= T                                                 (window)
                  core + o <= T                                                      (own)

where core is what any of these has on the left of a first stage, without what lies before, and o what follows
the end of the stage itself: from a stage on the others are a pipeline of their own, which those ahead only
hold up, and after its last backward the stage reduces and updates what it holds. Of the first stage (own) is
all of the rows. It is what keeps stages that hold many layers from a place behind one that holds few.

f is the most that the forward may be of t, as far as half of it: for any shorter f the left sides of
(partial) and (window) are no less, as max(0, x - q f) + max(0, x - q (t - f)) is convex in f and least in
the middle. They never fall where t grows with f or g alone, nor where x or what lies before the stage does,
so that a chain of a plan keeps them with the least times of its kind (`planner.search.replicas.chains`). It
keeps them with fewer micro-batches than it runs as well: without its last ones the order of the others is
that of a step of these alone, which is done no later. So what holds for m holds for all from m on.

S is cut into brackets, and within S1 <= S <= S2 the rows are asked with S1, of the first stage with what
follows it in the place of S - x - t. D is counted in whole ticks, each stage rounded down: D lies between its
count and q ticks above it. Stages of as many ticks count as one that is best in all: that only lets more
pipelines be. (partial), as a function of x, falls, then stands, then rises, (work) falls and (window) rises,
so that each stage may stand where D is in one interval.

At any price mu of a layer, with W the worth of the chips,

    W >= mu L - max over pipelines that keep the rows of sum_s (mu n[s] - w[s]),

where these need not have L layers. The most is found by dynamic programming over the stages placed and the
count of D. It is concave in mu, which is raised by where two lines meet.

A chain that is asked for is worth less than `need`. So stages whose chips are worth too much for it, and
states that the time that is left cannot bring up to mu L - need at the best rate of any stage ahead, are left
out; and its adapters are no more than `need` buys, so that its replicas exchange (`planner.search.replicas.
pricing`) no faster than with these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.replicas.holding_places import Places
from planner.search.replicas.holding_rows import ChainStages, SumBracket
from planner.search.replicas.holding_walk import Chain, Walk
from planner.search.replicas.paths import Paths
from planner.search.replicas.space import Ints
from planner.tolerances import BOUND_TOL, COUNT_TOL, NEXT_TO_NOTHING

BRACKETS, TICKS = 10, 600
"""Brackets of the sum of all stages, and ticks of the deadline, at first. Guesses."""
PARTS, FINER = 2, 1.6
"""Parts that an open bracket is cut into, and how many times more ticks it has. Guesses."""
MOST_PRICES = 8
"""Prices of a layer that are tried in a bracket. A guess."""
FIRST_PRICE = 1.1
"""The first of them, in times of what a layer may be worth. A guess."""
STEP = 1.4
"""Ratio of two prices before the best one is bracketed. A guess."""


@dataclass(frozen=True)
class Least:
    """What chains of some sums are worth at least, up to what was asked for, and one that may be."""

    worth: float
    chain: Chain | None = None
    taken: Floats | None = None
    """Stages of each item of pipelines that are worth that and have all layers in some mean, [item]."""


@dataclass(frozen=True)
class _Line:
    """What pipelines are worth by one price of a layer, how that grows with it, and the one that is least."""

    mu: float
    value: float
    slope: float
    chain: Chain | None


class LeastWorth:
    """Chains at one price of chips."""

    def __init__(self, paths: Paths, price: Floats) -> None:
        self.paths, self.chains = paths, paths.chains
        self.num_layers = paths.num_layers
        self.worth = paths.worth(price)
        """[item]"""
        self._known: dict[tuple[int, int, bool], ChainStages] = {}
        self.evaluated = 0
        self._first_price = [FIRST_PRICE] * BRACKETS
        """By bracket, in times of what a layer may be worth."""
        self._open = BRACKETS - 1
        """The bracket that stayed open last: where chains stay open once more, it is one of these mostly."""
        chips = np.maximum(self.worth, NEXT_TO_NOTHING)
        self._adapters_of_worth = float((self.chains.adapters / chips).max())
        by_class = np.zeros(len(price))
        np.maximum.at(by_class, self.chains.node_class, self.chains.adapters / self.chains.tensor_parallel)
        self._adapters_of_chip = by_class

    def least(
        self,
        kind: int,
        least_m: int,
        deadline_ms: float,
        need: float,
        halvings: int,
        is_up: Callable[[], bool] = lambda: False,
    ) -> Least:
        """Whether no chain that runs `least_m` micro-batches or more by a deadline is worth less than `need`.

        If none is that is the answer's worth, else it is less, and 0 where time was up.

        Parameters
        ----------
        deadline_ms
            Without what all pipelines of any mix exchange.
        need
            Worth of the chips of a chain [sequences].
        halvings
            How often brackets that stay open are cut.
        """
        deadline_ms = (deadline_ms - self._beyond_ms(kind, need)) * (1 + BOUND_TOL)
        least_ms = self._least_sum_ms(kind)
        if not least_ms < deadline_ms:
            return Least(need)
        edges = np.geomspace(least_ms, deadline_ms, BRACKETS + 1).tolist()
        open_ones = [
            (i, edges[i], edges[i + 1], 0, self._first_price[i] * need / self.num_layers)
            for i in sorted(range(BRACKETS), key=lambda i: i == self._open)
        ]
        places = self._places(kind, least_m, deadline_ms)
        while open_ones:
            if is_up():
                return Least(0.0)
            number, low, high, cuts, mu = open_ones.pop()
            tick_ms = deadline_ms / (TICKS * FINER**cuts)
            asked = SumBracket(kind, least_m, deadline_ms, low, high, tick_ms, need)
            own, mu = self._of_bracket(places, asked, mu)
            if cuts == 0:
                self._first_price[number] = mu * self.num_layers / need
            if own.worth >= need:
                continue
            if cuts < halvings:
                parts = np.geomspace(low, high, PARTS + 1)
                open_ones += [(number, a, b, cuts + 1, mu) for a, b in itertools.pairwise(parts.tolist())]
            else:
                self._open = number
                return own
        return Least(need)

    def _beyond_ms(self, kind: int, need: float) -> float:
        """What a pipeline exchanges at least beyond any mix, as its adapters are no more than these."""
        rate = min(need * self._adapters_of_worth, float(self._adapters_of_chip @ self.chains.room(kind)))
        return max(1 / (self.chains.most_replicas(kind) * rate) - self.chains.exchange_ms, 0.0)

    def _least_sum_ms(self, kind: int) -> float:
        """What all stages of a chain take together at least, and what follows the first of them."""
        least = self.paths.least(kind)
        of_layer = least.times_ms[:, 1:] / np.arange(1, self.num_layers + 1)
        return float(of_layer.min()) * self.num_layers + least.after_ms

    def _places(self, kind: int, least_m: int, deadline_ms: float) -> Places:
        """Stages at all places that a chain has by a deadline.

        An inner stage counts less than a tick below its time, so that so many of them fit beside another.
        """
        tick_ms = deadline_ms / TICKS
        beyond_ms = float(self.paths.least(kind).times_ms[:, 1:].min()) * (1 - COUNT_TOL) - tick_ms
        fit = self.chains.longest
        if beyond_ms * fit > deadline_ms:
            fit = int(deadline_ms / beyond_ms) + 2
        asked = SumBracket(kind, least_m, deadline_ms, 0.0, deadline_ms, tick_ms, 0.0)
        return Places(partial(self._choices, asked), asked, min(fit, self.chains.longest))

    def _of_bracket(self, places: Places, asked: SumBracket, mu: float) -> tuple[Least, float]:
        """Least worth of the chains of a bracket, and the price of a layer that tells most."""
        best, best_mu = Least(-np.inf), mu
        rising: _Line | None = None
        falling: _Line | None = None
        walk = Walk(places, asked, self.num_layers)
        for _ in range(MOST_PRICES):
            self.evaluated += 1
            most = walk.run(mu)
            # Where none gains more, rounding must not leave the value short of it.
            value = mu * self.num_layers - most.gain if most.chain else asked.need
            if value > best.worth:
                best, best_mu = Least(value, most.chain), mu
            line = _Line(mu, value, float(self.num_layers - most.layers), most.chain)
            if best.worth >= asked.need:
                break
            if line.slope >= 0:
                rising = line
            if line.slope <= 0:
                falling = line
            if rising is None or falling is None:
                mu = mu * STEP if falling is None else mu / STEP
                continue
            if line.slope == 0:
                break
            rise = falling.value - rising.value + rising.slope * rising.mu - falling.slope * falling.mu
            mu = rise / (rising.slope - falling.slope)
            if rising.value + rising.slope * (mu - rising.mu) < asked.need:
                # No price tells enough.
                break
        return replace(best, taken=self._taken(rising, falling)), best_mu

    def _taken(self, rising: _Line | None, falling: _Line | None) -> Floats | None:
        """Stages of each item where the layers of two pipelines weigh up; None without two."""
        if rising is None or falling is None or rising.chain is None or falling.chain is None:
            return None
        both = rising.slope - falling.slope
        share = -falling.slope / both if both > 0 else 1.0
        taken = np.zeros(len(self.worth))
        for chain, weight in ((rising.chain, share), (falling.chain, 1 - share)):
            np.add.at(taken, [item for item, _ in chain], weight)
        return taken

    def _choices(self, asked: SumBracket, behind: int, *, is_first: bool) -> ChainStages:
        """Stages with some others behind them."""
        held = min(asked.least_m, behind + 1)
        level = int(np.searchsorted(self.chains.held, held, side="right")) if behind else 0
        known = self._known.get((asked.kind, level, is_first))
        if known is None:
            known = self._list(asked.kind, behind, held, is_first=is_first)
            self._known[asked.kind, level, is_first] = known
        return known

    def _list(self, kind: int, behind: int, held: int, *, is_first: bool) -> ChainStages:
        stages = self.chains.stages(kind, behind, held)[0 if is_first else 1]
        item, layers = np.nonzero(np.isfinite(stages.times[:, 1:]))
        layers = layers + 1
        times = stages.times[item, layers]
        after = stages.after[item, layers]
        most = float((stages.most_forward[item, layers] / times).max(initial=0.0))
        hop, worth, pace = (
            self.chains.hops_ms(kind)[item],
            self.worth[item],
            np.full(len(item), min(most, 0.5)),
        )
        listed = ChainStages(item, layers.astype(np.float64), times, hop, after, worth, pace)
        return listed.at(_undominated(-layers, times, hop, after, worth))


def _undominated(*losses: Floats | Ints) -> NDArray[np.bool_]:
    """Which choices no other is as good as in all losses; of those alike in all the first stays."""
    num = len(losses[0])
    no_worse = np.ones((num, num), dtype=np.bool_)
    for loss in losses:
        no_worse &= loss[None, :] <= loss[:, None]
    alike = no_worse & no_worse.T
    later = np.arange(num)[None, :] >= np.arange(num)[:, None]
    beaten = (no_worse & ~(alike & later)).any(axis=1)
    return np.asarray(~beaten)
