"""What every order and every dealing takes at least at given weights of the longest paths.

Sets, data and schedule are those of `formulations.interleaved_paths`. Let the rows (path) to the end of stage
0 have weights w >= 0 that add up to 1, and let F[s,k], B[s,k], C[s] be the means of their counts. With a
forward and backward f[s], b[s] of a layer on s, f0[s,k], b0[s,k] of chunk k with its fewest layers, r[s]
layers of s beyond these, and at least g[s] of recomputation in all of its backwards:

Bound      (price)    end of stage 0 >= sum_s (sum_k (F[s,k] f0[s,k] + B[s,k] b0[s,k])
                                              + r[s] min_k (F[s,k] f[s] + B[s,k] b[s])
                                              + g[s] min_k B[s,k] + C[s] c[s]).
           Proof. The end is no less than any row, so no less than their mean. There every layer beyond the
           fewest takes what it takes on its chunk, at least that on the cheapest; so does recomputation. Rows
           know no times: the weights that one order asks for bound every other order and number of layers.

Best weights of one order and the layers of its stages come from

Model      min  T
           s.t. sum_k x[s,k] >= r[s],  sum_k y[s,k] >= g[s]                                      (deal)
                T >= row(f0 + f x, b0 + b x + y, c) for rows (path), added when violated         (path)

as the prices of its rows; T is (price) with them. Known rows enter once violated, until none is. A new one
is looked for half way between the answer and the best dealing met, which takes far fewer than at the answer.
Where a dealing in fractions ends early enough no weights reach the limit.

Source     in-out separation: Ben-Ameur, Neto 2007, Networks 49.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from formulations.interleaved_paths import Floats, PathRow, longest_paths, row_value
from formulations.solvers import GrowingProgram

MOST_ROUNDS = 40
"""Rounds of rows after which the weights at hand are taken. A guess."""
BEYOND = 2e-3
"""Part of the limit by which weights go beyond it, so that they close others too. A guess."""
CLOSE = 1e-4
"""Part of the limit up to which a dealing counts as long as the program says. A guess."""
VIOLATED = CLOSE / 4
"""Part of the limit by which a new row must be longer than the answer: far more than the solver rounds."""

FIRST_ENTERED, MOST_ENTERING = 12, 6
"""Known rows that a program begins with, the last ones, and those that enter it at once. Guesses."""


@dataclass(frozen=True)
class OrderedLayers:
    """One order of the classes with whole layers of every stage, arrays [stage], in ms."""

    forward_ms: Floats
    """Of a layer."""
    backward_ms: Floats
    base_forward_ms: Floats
    """[stage, chunk] with the fewest layers."""
    base_backward_ms: Floats
    more: Floats
    """Layers beyond the fewest."""
    extra_ms: Floats
    """Recomputation."""
    send_ms: Floats
    """The last one from the last stage to the first."""

    def evenly(self) -> tuple[Floats, Floats]:
        """Forwards and backwards with what is more dealt in equal shares, [stage, chunk]."""
        v = self.base_forward_ms.shape[1]
        return self.dealt(*(np.repeat(one[:, None] / v, v, axis=1) for one in (self.more, self.extra_ms)))

    def dealt(self, layers: Floats, extra_ms: Floats) -> tuple[Floats, Floats]:
        """The same with so many layers more and so much recomputation on each chunk."""
        forward = self.base_forward_ms + self.forward_ms[:, None] * layers
        return forward, self.base_backward_ms + self.backward_ms[:, None] * layers + extra_ms


@dataclass(frozen=True)
class PathWeights:
    """Mean counts of rows (path) to the end of stage 0, of weights that add up to 1."""

    forward: Floats
    """[stage, chunk]"""
    backward: Floats
    """[stage, chunk]"""
    sends: Floats
    """[stage]"""

    def bound_ms(self, one: OrderedLayers) -> float:
        """The bound (price)."""
        price = self.forward * one.forward_ms[:, None] + self.backward * one.backward_ms[:, None]
        base = (self.forward * one.base_forward_ms + self.backward * one.base_backward_ms).sum()
        more = one.more @ price.min(axis=1) + one.extra_ms @ self.backward.min(axis=1)
        return float(base + more + self.sends @ one.send_ms)


def mean_weights(rows: Sequence[PathRow], weights: Sequence[float]) -> PathWeights:
    """The weighted mean of rows, of which some weight is positive."""
    used = [(row, weight) for row, weight in zip(rows, weights, strict=True) if weight > 0]
    total = sum(weight for _, weight in used)
    forward, backward, sends = (
        sum(np.array(getattr(row, name), dtype=np.float64) * (weight / total) for row, weight in used)
        for name in ("forward", "backward", "sends")
    )
    return PathWeights(np.asarray(forward), np.asarray(backward), np.asarray(sends))


@dataclass(frozen=True)
class Found:
    """Weights for an order, with the rounds that they took."""

    weights: PathWeights
    rounds: int


def best_weights(one: OrderedLayers, num_microbatches: int, rows: list[PathRow], limit_ms: float) -> Found:
    """Weights for which (price) of an order is large, or beyond a limit; `rows` gains those that it took.

    Rows that hold the answer come to stand last in it.
    """
    best, best_ms = one.evenly(), np.inf

    def learn(times: tuple[Floats, Floats]) -> tuple[PathRow, float]:
        (row,) = longest_paths(*times, one.send_ms, num_microbatches, [0])
        return row, row_value(row, *times, one.send_ms)

    first, best_ms = learn(best)
    rows.append(first)
    program = KnownPaths(one, rows, limit_ms)
    rounds = 0
    while (answer := program.solve()) is not None:
        rounds += 1
        time, dealt = answer
        if rounds == MOST_ROUNDS or time >= limit_ms * (1 + BEYOND) or best_ms < limit_ms:
            break
        if best_ms - time < CLOSE * limit_ms:
            break
        half = tuple((some + other) / 2 for some, other in zip(dealt, best, strict=True))
        for times in ((half[0], half[1]), dealt):
            row, end_ms = learn(times)
            if end_ms < best_ms:
                best, best_ms = times, end_ms
            if is_new := row_value(row, *dealt, one.send_ms) > time + VIOLATED * limit_ms:
                program.gain(row)
                break
        if not is_new:
            break
    prices = program.prices() if answer is not None else [0.0] * (len(rows) - 1) + [1.0]
    used = [price > 0 for price in prices]
    weights = mean_weights(rows, prices) if any(used) else mean_weights(rows[-1:], [1.0])
    rows[:] = [
        row for want in (False, True) for row, is_used in zip(rows, used, strict=True) if is_used == want
    ]
    return Found(weights, rounds)


class KnownPaths:
    """The model with known rows (path), which enter it once its answer violates them: few of many ever do."""

    def __init__(self, one: OrderedLayers, rows: list[PathRow], limit_ms: float) -> None:
        self._one, self._rows, self._limit_ms = one, rows, limit_ms
        self._program, self._entered = PathProgram(one), list[int]()
        number, send = len(rows), one.send_ms
        self._counts = [np.array([getattr(row, name) for row in rows]) for name in ("forward", "backward")]
        self._sent_ms: Floats = np.array([row.sends for row in rows]) @ send
        self._enter(range(max(0, number - FIRST_ENTERED), number))

    def _enter(self, which: Iterable[int]) -> None:
        for i in which:
            self._program.add(self._rows[i])
            self._entered.append(i)

    def gain(self, row: PathRow) -> None:
        """A row that is new, and violated."""
        self._rows.append(row)
        self._enter([len(self._rows) - 1])

    def solve(self) -> tuple[float, tuple[Floats, Floats]] | None:
        """T with all known rows, or beyond the limit, with the times of its dealing; None without an answer.

        Rows enter until the answer violates none by more than a new row must be: it is that with all of them
        but for so much. Beyond the limit fewer do.
        """
        while (answer := self._program.solve()) is not None:
            time, dealt = answer
            if time >= self._limit_ms * (1 + BEYOND):
                return answer
            lengths = self._lengths(*dealt)
            lengths[[i for i in self._entered if i < len(lengths)]] = 0.0
            worst = np.argsort(-lengths, kind="stable")[:MOST_ENTERING]
            worst = worst[lengths[worst] > time + VIOLATED * self._limit_ms]
            if not len(worst):
                return answer
            self._enter(worst.tolist())
        return None

    def _lengths(self, forward: Floats, backward: Floats) -> Floats:
        """Lengths of the rows that were known at first."""
        there, back = (
            count.reshape(len(count), -1) @ times.ravel()
            for count, times in zip(self._counts, (forward, backward), strict=True)
        )
        lengths: Floats = there + back + self._sent_ms
        return lengths

    def prices(self) -> list[float]:
        """Prices of all rows, in their order; 0 where a row is not in the program."""
        prices = [0.0] * len(self._rows)
        for i, price in zip(self._entered, self._program.path_prices(), strict=True):
            prices[i] = price
        return prices


def add_deal(program: GrowingProgram, one: OrderedLayers) -> None:
    """Chunks share the layers of their stage, and its recomputation."""
    p, v = one.base_forward_ms.shape
    for what, (least, begin) in enumerate(((one.more, 1), (one.extra_ms, 1 + p * v))):
        for s, value in enumerate(least.tolist()):
            chunks = range(begin + s * v, begin + (s + 1) * v)
            program.add_row(f"deal_{what}_{s}", dict.fromkeys(chunks, -1.0), -value)


def add_path(program: GrowingProgram, one: OrderedLayers, row: PathRow) -> None:
    """The end is no less than the length of a path."""
    forward, backward = (np.array(part, dtype=np.float64) for part in (row.forward, row.backward))
    price = forward * one.forward_ms[:, None] + backward * one.backward_ms[:, None]
    base = (forward * one.base_forward_ms + backward * one.base_backward_ms).sum()
    extra = backward * (one.extra_ms > 0)[:, None]
    each = np.concatenate([price.ravel(), extra.ravel()])
    coefficients = {0: -1.0} | {1 + i: value for i, value in enumerate(each.tolist()) if value}
    program.add_row("path", coefficients, -float(base + np.array(row.sends) @ one.send_ms))


class PathProgram:
    """The model; variables in order: T, then x and y of each stage and chunk."""

    def __init__(self, one: OrderedLayers) -> None:
        self._one = one
        number = one.base_forward_ms.size
        self.program = GrowingProgram([1.0] + [0.0] * (2 * number))
        for i in range(1, 2 * number + 1):
            self.program.set_bounds(i, 0.0, float("inf"))
        add_deal(self.program, one)

    def add(self, row: PathRow) -> None:
        """A row (path)."""
        add_path(self.program, self._one, row)

    def solve(self) -> tuple[float, tuple[Floats, Floats]] | None:
        """T with the forwards and backwards of its dealing; None where the solver finds none."""
        values = self.program.solve()
        if values is None:
            return None
        layers, extra = np.array(values[1:]).reshape(2, *self._one.base_forward_ms.shape)
        return values[0], self._one.dealt(layers, extra)

    def path_prices(self) -> list[float]:
        """Prices of the rows (path), in their order."""
        deals = 2 * len(self._one.more)
        return [max(-price, 0.0) for price in self.program.row_prices()[deals:]]
