"""What no mix undercuts, by deadlines by which no chain runs what its chips are worth.

At prices of chips at which all of them are worth the batch, some pipeline of every mix runs at least what its
chips are worth. Where no chain does by a deadline, no mix is done by then. So for each micro-batch size and
number m of micro-batches, chains that run m by the deadline are to be worth more than m of them
(`planner.search.replicas.holding`). What they are worth only rises with m, so that several
numbers of micro-batches are closed at once where they are worth more than the last of these. Numbers that
stay open are split, then by replicas; what is open then asks for other prices, or an earlier deadline.

A chain that is worth so much that no other pipeline finds room beside it is part of no mix
(`planner.search.replicas.remainder`): it is enough that chains are worth more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Boxes, Column, Picked
from planner.search.replicas.columns import found_chain
from planner.search.replicas.holding import LeastWorth
from planner.search.replicas.holding_walk import Chain
from planner.search.replicas.paths import Paths
from planner.search.replicas.remainder import most_worth
from planner.tolerances import COUNT_TOL

MOST_OPEN, MOST_FIRST = 4, 4
"""Numbers of micro-batches that stay open at a deadline before a look ends, and of those looked at first."""
HALVINGS, MORE_HALVINGS = 2, 5
"""How often brackets are cut for several numbers of micro-batches, and for one."""
WIDEST, WIDE, WIDER, LESS_WIDE = 2.0, 1.1, 1.5, 0.5
"""Ratio of the ends of several numbers at most and at first; what its excess is multiplied by as they
close or not.
All of these are guesses: they say what is looked at, never what is proven."""


@dataclass(frozen=True)
class Span:
    """Chains of a kind that run some numbers of micro-batches."""

    kind: int
    least_m: int
    most_m: int


@dataclass(frozen=True)
class OpenChain:
    """A chain that may run what its chips are worth by a deadline; its layers need not be all."""

    span: Span
    stages: Chain
    chips: Floats | None
    """By class, of a mean of pipelines that hold all layers in it; None where none came up."""


class Deadlines:
    """Deadlines at one price of chips."""

    def __init__(self, paths: Paths, price: Floats, is_up: Callable[[], bool] = lambda: False) -> None:
        self.paths, self.chains, self.price, self.is_up = paths, paths.chains, price, is_up
        self.holding = LeastWorth(paths, price)
        self.most_worth = most_worth(paths, price)
        """Most that a pipeline is worth that has another one beside it [sequences]."""
        self.found: list[OpenChain] = []
        """Chains that came up where numbers of micro-batches stayed open."""
        self._excess = WIDE - 1
        self.deadline_ms = 0.0
        """The one looked at last."""
        self._spans: list[Span] = []
        """What it left open."""
        self.is_nearly = False
        """Whether all but a few chains were closed by it."""
        self._ended_early = False
        """Whether so many stayed open that the others were not looked at."""

    def closes(self, deadline_ms: float, first: Sequence[Span] = ()) -> bool:
        """Whether no chain runs what its chips are worth by a deadline, without the least exchange.

        What was closed for a later deadline, before time was up, is not looked at again. Where some of the
        chains that are looked at `first` may, the others are not looked at.
        """
        if deadline_ms > self.deadline_ms:
            self._spans = self._all_spans()
        self.found, self.deadline_ms, self.is_nearly = [], deadline_ms, False
        for span in first:
            if self.is_up() or len(self.open_ones) >= MOST_FIRST:
                break
            self._pieces(span, deadline_ms)
        if self.open_ones:
            return False
        self._spans = self._left(self._spans, deadline_ms)
        few = len(self.open_ones) < MOST_OPEN and not self._ended_early
        self.is_nearly = few and not self.is_up()
        return not self._spans

    @property
    def open_ones(self) -> list[OpenChain]:
        """Those of the chains found whose micro-batches and replicas are decided."""
        return [one for one in self.found if self._is_decided(one.span)]

    def _is_decided(self, span: Span) -> bool:
        return span.least_m == span.most_m and self.chains.kinds[span.kind].is_single

    def _chips(self, taken: Floats | None) -> Floats | None:
        """Chips of stages, by class."""
        if taken is None:
            return None
        chips = np.zeros(len(self.chains.available))
        np.add.at(chips, self.chains.node_class, taken * self.chains.tensor_parallel)
        return chips

    def sequences(self, span: Span) -> int:
        """What chains of some numbers of micro-batches run at most."""
        return span.most_m * self.chains.kinds[span.kind].microbatch_size

    def _all_spans(self) -> list[Span]:
        """All chains, by micro-batch size."""
        spans = []
        for size in sorted(self.chains.replicas, reverse=True):
            kind = self.chains.kind_of(size, 1)
            if kind is not None:
                spans.append(Span(kind, 1, self.chains.batch // size))
        return spans

    def _left(self, spans: list[Span], deadline_ms: float) -> list[Span]:
        """What a deadline does not close of some spans, or has not come to once enough stay open.

        Of numbers of replicas that run as many micro-batches one is enough: others tell much the same of
        prices, as rows of four different numbers tell more than four of one.
        """
        todo: list[Span] = list(spans)
        left: list[Span] = []
        later: list[Span] = []
        while todo and len(left) < MOST_OPEN and not self.is_up():
            span = todo.pop()
            first, rest = self._next(span, deadline_ms)
            todo += rest
            if first is None:
                continue
            pieces = self._pieces(first, deadline_ms)
            if self.is_up():
                todo.append(first)
            elif pieces is None:
                left.append(first)
                # Other replicas tell much the same: other numbers of micro-batches are looked at first.
                later += [one for one in todo if self._are_alike(one, first)]
                todo = [one for one in todo if not self._are_alike(one, first)]
            else:
                todo += pieces
        self._ended_early = bool(todo)
        return later + todo + left

    def _are_alike(self, one: Span, other: Span) -> bool:
        """Whether two run as many micro-batches of one size, of the first one number alone."""
        sizes = [self.chains.kinds[span.kind].microbatch_size for span in (one, other)]
        return one.least_m == one.most_m == other.most_m and sizes[0] == sizes[1]

    def _next(self, span: Span, deadline_ms: float) -> tuple[Span | None, list[Span]]:
        """The numbers of a span that are looked at next, None where all are closed, and those after them."""
        m, size = span.least_m, self.chains.kinds[span.kind].microbatch_size
        kind = self.chains.with_more(span.kind, m)
        if kind is None:
            return None, []
        worth = self._quick(kind, m, deadline_ms)
        if worth * size > self._room(kind) * (1 + COUNT_TOL):
            return None, []
        if worth > m * (1 + COUNT_TOL):
            closed = min(worth / (1 + COUNT_TOL), float(span.most_m))
            after = max(int(np.ceil(closed)), m + 1) if closed < span.most_m else span.most_m + 1
            return None, [replace(span, kind=kind, least_m=after)] if after <= span.most_m else []
        last = min(int(m * (1 + self._excess)), span.most_m, self.chains.batch // size)
        rest = [replace(span, kind=kind, least_m=last + 1)] if last < span.most_m else []
        return Span(kind, m, last), rest

    def _room(self, kind: int) -> float:
        """Most that a chain of a kind is worth beside another pipeline, one of its replicas [sequences]."""
        return self.most_worth / self.chains.replicas_of(kind)[0]

    def _quick(self, kind: int, least_m: int, deadline_ms: float) -> float:
        """What a chain is worth at least as no stage takes longer than its micro-batches leave time for."""
        least = self.paths.least(kind)
        price = self.price / self.chains.kinds[kind].microbatch_size
        most_ms = np.array([(deadline_ms - least.after_ms) / least_m * (1 + COUNT_TOL)])
        return float(least.worth_of_chain(price, self.chains.num_layers, most_ms)[0])

    def _pieces(self, span: Span, deadline_ms: float) -> list[Span] | None:
        """Pieces of a span that stays open, nothing where it is closed; None where it cannot be cut."""
        kind = self.chains.kinds[span.kind]
        is_one = span.least_m == span.most_m
        # Where more halvings close all replicas of a number at once, none of them is looked at alone.
        halvings = MORE_HALVINGS if is_one else HALVINGS
        need = min(span.most_m * kind.microbatch_size, self._room(span.kind)) * (1 + COUNT_TOL)
        if need <= 0:
            return []
        found = self.holding.least(span.kind, span.least_m, deadline_ms, need, halvings, self.is_up)
        if found.worth >= need:
            if not is_one:
                self._excess = min(self._excess * WIDER, WIDEST - 1)
            return []
        if not is_one:
            self._excess *= LESS_WIDE
            middle = (span.least_m + span.most_m) // 2
            return [replace(span, least_m=middle + 1), replace(span, most_m=middle)]
        if found.chain is not None:
            self.found.append(OpenChain(span, found.chain, self._chips(found.taken)))
        if kind.is_single:
            return None
        return [replace(span, kind=half) for half in self.chains.halves(span.kind)]

    def columns(self) -> list[Column]:
        """The chains that came up, with all layers, as they are done."""
        found: dict[tuple[object, ...], Column] = {}
        for open_chain in self.found:
            column = self._whole(open_chain)
            if column is not None:
                found.setdefault(column.key, column)
        return list(found.values())

    def _whole(self, found: OpenChain) -> Column | None:
        """A chain with all layers on the stages of one that came up; None where they have no room."""
        span, items = found.span, [item for item, _ in found.stages]
        layers, times = [n for _, n in found.stages], self.chains.least_times(found.span.kind)
        missing = self.chains.num_layers - sum(layers)
        step = 1 if missing > 0 else -1
        for _ in range(abs(missing)):
            # Layers join the stages that are fastest with them, and leave the slowest.
            if step > 0:
                taken = [
                    times[i, n + 1] if n + 1 < times.shape[1] else np.inf
                    for i, n in zip(items, layers, strict=True)
                ]
                layers[int(np.argmin(taken))] += 1
            else:
                taken = [times[i, n] if n > 1 else -np.inf for i, n in zip(items, layers, strict=True)]
                layers[int(np.argmax(taken))] -= 1
        if sum(layers) != self.chains.num_layers or min(layers) < 1 or max(layers) >= times.shape[1]:
            return None
        box = Boxes.single(span.kind, span.least_m, span.most_m)
        picked = [Picked(item, n) for item, n in zip(items, layers, strict=True)]
        worth = self.paths.worth(self.price)
        return found_chain(self.chains, box, 0, picked, worth, 0, 0.0, by_partial=False).column
