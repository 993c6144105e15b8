"""What no mix of pipelines undercuts: prices of chips against all pipelines.

Prices of chips at which all of them together are worth the batch bound every mix by the chain that is done
soonest (`planner.search.replicas.pricing`), whatever the prices are; the best so far stands whenever a limit
cuts the search. The prices come from `formulations.chip_prices` over the chains found, at the latest time at
which fractions of them do not yet run the batch, drawn towards the best prices so far: the program alone goes
far astray while chains are few. Where micro-batches are few, one look at prices takes long, and one deadline
by which no chain runs what its chips are worth (`planner.search.replicas.aims`) is told sooner than the time
of the first that does: prices then come from the chains that may. Several pipelines exchange their
gradients after that (`planner.search.replicas.space.exchange_floor_s`), which adds to the bound.

References
----------
Smoothed prices: P. Wentges, "Weighted Dantzig-Wolfe decomposition for linear mixed-integer programming",
International Transactions in Operational Research 4(2), 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.cost.prices import Floats
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.search.replicas.aims import Aims, Row
from planner.search.replicas.boxes import Column
from planner.search.replicas.chains import Chains
from planner.search.replicas.choices import are_many, improve_each
from planner.search.replicas.pricing import Pricing
from planner.search.replicas.reach import first_reach
from planner.search.replicas.row_prices import RowPrices
from planner.search.replicas.shares import Shares
from planner.search.replicas.space import Shared, shared_rows, widest_shares
from planner.search.replicas.whole_rooms import WholeRooms, are_few
from planner.search.replicas.work import speeds_of, work_of_chips
from planner.units import MS

ROUNDS = 60
"""Rounds of prices at most."""
SAME = 1e-4
"""Relative distance between prices below which nothing new would come of them."""
SMOOTHING = 0.5
"""Share of the best prices so far in the next ones."""
FAR = 0.02
"""Relative distance between bound and that time from which deadlines are worth it. A guess."""
FEW_BOXES, MOST_BOXES = 100, 1000
"""Boxes that are priced before deadlines are tried: where they tell little, and where more. Guesses."""
FAR_OFF = 0.8
"""Share of a time that these few must reach for more of them to be priced. A guess."""
NEAR = 2e-3
"""Relative distance between bound and that time at which prices are good enough."""


class Mixes:
    """Bounds on mixes, and the chains that the bounds were found with."""

    def __init__(self, problem: Problem, chains: Chains, is_up: Callable[[], bool] = lambda: False) -> None:
        self.problem, self.chains = problem, chains
        self.pricing = Pricing(chains, is_up)
        self.is_up = is_up
        self.available = np.array([node_class.num_chips for node_class in problem.cluster.classes])
        self.exchange_ms = chains.exchange_ms
        self.batch = problem.workload.global_batch_size
        self.columns: list[Column] = []
        self.speed = speeds_of(chains)
        self.row_prices = RowPrices(problem, self.speed)
        self.price = self.best_price = self._worth_the_batch(self.speed)
        """Prices to look at next, and those of the best bound so far."""
        self.bound_ms = 0.0
        """What chains bound, without the exchange."""
        self.reach_ms = np.inf
        """When fractions of the chains found first run the batch, without the exchange."""
        self.open_ms = np.inf
        """The earliest time that rooms were found not to close."""
        self.shares = Shares(self.pricing, is_up)
        self.parts: dict[Shared, Mixes] = {}
        """Mixes by what all pipelines of one share, once they are looked at apart."""
        self.looks = 0
        self._rooms: WholeRooms | None = None
        self.aims = Aims(self.pricing.paths, self.price, self._middle, self._keep, is_up)
        """Deadlines; they begin at the first prices."""

    @property
    def bound_s(self) -> float:
        """What no mix of two or more pipelines undercuts [s]."""
        return (self.bound_ms + self.exchange_ms) * MS

    def begin_at(self, plan: Plan) -> None:
        """Begin with prices at which chips are worth what they do in a plan.

        A good plan keeps its chips equally busy, with the memory that they have: the layers that a chip holds
        times the sequences that pass them say more than its speed. Classes that the plan leaves idle are
        worth their speed.
        """
        done, chips = work_of_chips(self.problem, plan)
        known = chips > 0
        price = np.where(known, done / np.maximum(chips, 1), 0.0)
        price[~known] = self.speed[~known] * price[known].sum() / self.speed[known].sum()
        self.price = self.best_price = self.aims.price = self._worth_the_batch(price)

    def improve(self, most_s: float, most_boxes: float = np.inf) -> float:
        """Raise the bound up to a time, as far as prices can, or until so many boxes are priced [s]."""
        most_ms = most_s / MS - self.exchange_ms
        for _ in range(ROUNDS):
            if self.is_up() or self.bound_ms >= min(most_ms, self.reach_ms * (1 - NEAR)):
                break
            limit_ms, price = min(most_ms, self.reach_ms), self.price
            self.looks += 1
            left = most_boxes - self.pricing.evaluated
            if left <= 0:
                break
            found = self.pricing.soonest(price, limit_ms, self.bound_ms, left)
            if found.bound_ms > self.bound_ms:
                self.bound_ms, self.best_price = found.bound_ms, price
            self._keep(found.columns)
            if not self.columns or self.is_up():
                break
            self.reach_ms, program = first_reach(self._program, self.batch, self.bound_ms, limit_ms, NEAR / 4)
            if self.pricing.evaluated >= most_boxes:
                break  # at the same prices the next look goes on where this one ended
            self.price = self._worth_the_batch(SMOOTHING * self.best_price + (1 - SMOOTHING) * program)
            if np.allclose(self.price, price, rtol=SAME):
                break
        return most_s if self.bound_ms >= most_ms else self.bound_s

    def improve_at_first(self, most_s: float) -> float:
        """The same, by few boxes alone where rooms tell more in less time [s]."""
        if self.begin_with_rooms:
            return self.improve(most_s, FEW_BOXES)
        return improve_each(self, most_s) if are_many(self) else self.improve_by_prices(most_s)

    @property
    def begin_with_rooms(self) -> bool:
        """Whether whole chips are so few that they are told apart, and tell more in less time than prices.

        One class leaves prices no choice: a few boxes tell all that fractions of pipelines say. Where choices
        are many rooms of each of them take longer than prices take to close most of them.
        """
        return are_few(self.chains) and len(self.available) > 1 and not are_many(self)

    def improve_by_prices(self, most_s: float) -> float:
        """Raise the bound up to a time, by some boxes and then by deadlines [s].

        Where a few boxes come nowhere near it, deadlines follow them at once, and once they do only these.
        """
        bound_s = self.bound_s
        if not self.is_reached(most_s) and not self.aims.looks:
            bound_s = self.improve(most_s, FEW_BOXES)
            if FAR_OFF * most_s <= bound_s < most_s:
                bound_s = self.improve(most_s, MOST_BOXES)
            if self.is_up():  # boxes that were cut do not say how near more of them would come
                return bound_s
        return bound_s if bound_s >= most_s else max(bound_s, self.improve_by_deadlines(most_s))

    def improve_by_deadlines(self, most_s: float, most_aims: int | None = None) -> float:
        """Raise the bound up to a time, by deadlines by which no chain runs what its chips are worth [s].

        Where fractions of all chains found run the batch by a deadline no prices close it. Near that time
        only whole pipelines tell more. `most_aims` is as in `Aims.improve`.
        """
        most_ms = most_s / MS - self.exchange_ms
        if self.reach_ms <= most_ms and self.bound_ms >= self.reach_ms * (1 - FAR):
            return self.bound_s
        before_ms, looks = self.bound_ms, self.aims.looks
        self.bound_ms = max(before_ms, self.aims.improve(before_ms, min(most_ms, self.reach_ms), most_aims))
        self.looks += self.aims.looks - looks
        if self.bound_ms > before_ms:
            self.best_price = self.aims.price
        return most_s if self.bound_ms >= most_ms else self.bound_s

    def is_closed(self, most_s: float) -> bool:
        """Whether the bound is known up to a time."""
        return self.bound_ms >= most_s / MS - self.exchange_ms

    def is_reached(self, most_s: float) -> bool:
        """Whether fractions of the chains found run the batch by a time: prices prove nothing beyond it."""
        return self.reach_ms <= most_s / MS - self.exchange_ms

    def improve_whole(self, most_s: float) -> float:
        """Raise the bound up to a time by pipelines that are whole [s]."""
        whole_s = self.improve_by_rooms(most_s)
        return whole_s if whole_s >= most_s else self.improve_by_shares(most_s)

    def improve_by_shares(self, most_s: float) -> float:
        """The same by the shares of the batch that they run alone [s]."""
        self.bound_ms = self.shares.improve(self.best_price, self.bound_ms, most_s / MS - self.exchange_ms)
        return most_s if self.is_closed(most_s) else self.bound_s

    def improve_by_rooms(self, most_s: float) -> float:
        """The same by the whole chips that they take, where these are few [s]."""
        if are_few(self.chains):
            most_ms = most_s / MS - self.exchange_ms
            self.bound_ms = self.rooms().improve(self.bound_ms, most_ms, self.open_ms)
        return most_s if self.is_closed(most_s) else self.bound_s

    def rooms(self) -> WholeRooms:
        """Rooms at the best prices, with the tables that were made for them."""
        if self._rooms is None or self._rooms.price is not self.best_price:
            self._rooms = WholeRooms(self.pricing, self.best_price, lambda: self.is_up())
        return self._rooms

    def improve_rooms_apart(self, most_s: float) -> float:
        """The same for each choice of what they share, all half of the way before a limit cuts any [s]."""
        hard = [part for part in self.that_share() if not part.is_closed(most_s)]
        least_s = min((part.bound_s for part in hard), default=most_s)
        for aim_s in (least_s + most_s) / 2, most_s:
            hard = [part for part in hard if part.improve_by_rooms(aim_s) < most_s]
        return self.least_of(hard, most_s)

    def close_by_rooms(self, most_s: float) -> bool:
        """Whether rooms close a time at once; else they are not asked for it again."""
        of_each = (part.keep(most_s, part.closes_by_rooms(most_s)) for part in self.that_share())
        return all(of_each) and self.keep(most_s, is_closed=True)

    def closes_by_rooms(self, most_s: float) -> bool:
        """Whether rooms of one choice close a time."""
        most_ms = most_s / MS - self.exchange_ms
        return self.bound_ms >= most_ms or (self.open_ms > most_ms and self.rooms().excludes(most_ms))

    def keep(self, most_s: float, is_closed: bool) -> bool:
        """Keep whether they do, and tell it."""
        most_ms = most_s / MS - self.exchange_ms
        self.bound_ms = max(self.bound_ms, most_ms if is_closed else 0.0)
        self.open_ms = min(self.open_ms, np.inf if is_closed else most_ms)
        return is_closed

    def least_of(self, hard: list[Mixes], most_s: float) -> float:
        """The least bound of choices that are not closed up to a time, that time where all are [s]."""
        bound_ms = min((part.bound_ms for part in hard), default=most_s / MS - self.exchange_ms)
        self.bound_ms = max(self.bound_ms, bound_ms)
        return self.bound_s if hard else most_s

    def improve_further(self, most_s: float) -> float:
        """Raise the bound up to a time by all that tells anything [s]."""
        bound_s = self.improve_rooms_apart(most_s) if self.begin_with_rooms else self.bound_s
        if bound_s < most_s and are_many(self):
            return max(bound_s, improve_each(self, most_s))
        if bound_s < most_s:
            bound_s = max(bound_s, self.improve_by_prices(most_s))
        if bound_s < most_s and not self.is_reached(most_s):
            bound_s = max(bound_s, self.improve(most_s))
        return bound_s if bound_s >= most_s else max(bound_s, self.improve_apart(most_s))

    def that_share(self) -> list[Mixes]:
        """Mixes by what all pipelines of one share, with the bound and the prices so far."""
        of = self.chains
        if not self.parts:
            shares = widest_shares(shared_rows(self.problem, of.table))
            for shared, rows in shares.items():
                chains = Chains(self.problem, of.table, of.prices, rows)
                self.parts[shared] = Mixes(self.problem, chains, self.is_up)
        for part in self.parts.values():
            if self.bound_ms >= part.bound_ms:
                part.price = part.best_price = self.best_price
                part.bound_ms = self.bound_ms
                if not part.aims.looks:
                    part.aims.price = self.best_price
        return list(self.parts.values())

    def improve_apart(self, most_s: float) -> float:
        """Raise the bound up to a time for each choice of what all pipelines share, at last by whole ones.

        The chains of all choices together may split the sequence on some stages and not on others, which no
        mix does: the least bound of the choices holds for all mixes [s].
        """
        parts = self.that_share()
        if len(parts) < 2:
            return self.improve_whole(most_s)
        hard = [part for part in parts if part.improve(most_s) < most_s]
        least_s = min((part.bound_s for part in hard), default=most_s)
        for aim_s in (most_s,) if len(hard) == 1 else ((least_s + most_s) / 2, most_s):
            hard = [part for part in hard if part.improve_whole(aim_s) < most_s]
        return self.least_of(hard, most_s)

    def _keep(self, columns: list[Column]) -> None:
        known = {column.key: k for k, column in enumerate(self.columns)}
        for column in columns:
            if (k := known.get(column.key)) is None:
                self.columns.append(column)
            elif column.most_m > self.columns[k].most_m:
                self.columns[k] = column

    def _program(self, deadline_ms: float) -> tuple[Floats, float]:
        """Prices over the chains found at a deadline, worth the batch, and what they were worth before."""
        return self.row_prices.raised(self._rows(deadline_ms))

    def _middle(self, deadline_ms: float, more: Sequence[Row] = ()) -> tuple[Floats, float]:
        """Prices amid those that keep what chains found do by a deadline, and more rows."""
        return self.row_prices.middle(self._rows(deadline_ms, more))

    def _rows(self, deadline_ms: float, more: Sequence[Row] = ()) -> list[Row]:
        """What the chains found do by a deadline, and more rows."""
        done = (Row(column.chips, float(column.sequences(deadline_ms))) for column in self.columns)
        return [*(row for row in done if row.sequences > 0), *more]

    def _worth_the_batch(self, prices: Floats) -> Floats:
        """The same prices in proportion, all chips together worth the batch."""
        return np.asarray(prices * self.batch / float(np.dot(prices, self.available)))
