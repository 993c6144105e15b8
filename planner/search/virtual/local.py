"""Good layer counts of virtual stages without a solver: even stages, dealt evenly, then single moves.

Longest paths say what a layer costs on each chunk: moves lead from where it costs most to where it costs
least. With many micro-batches two short steps stand for the long one, as a step grows by the same time with
each group once it is steady.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_paths import longest_paths
from formulations.interleaved_rows import largest_waits
from formulations.virtual_selection_data import (
    VirtualChoice,
    VirtualSelectionData,
    Ways,
    choices,
    objectives_ms,
    pieces_ms,
    steps_ms,
    times_ms,
)
from formulations.virtual_selection_tables import DealtTable, dealt_table, fewest_layers, step_by_layers
from planner.cost.prices import Floats
from planner.tolerances import GAP_TOL

Ints = NDArray[np.int64]

SHORT_GROUPS = (3, 5)
"""Groups of micro-batches in the two steps that stand for a longer one."""
MOST_GROUPS = sum(SHORT_GROUPS)
"""Groups up to which a step takes no longer than those two. A stage that is slowest only in longer steps is
missed by short ones: with (3, 4) for eight groups dealings were taken for 1.1% quicker than they are."""
MAX_MOVES = 12
"""Moves of a layer after which the search is content."""
MOST_COARSE = 4
"""Layers of a chunk from which on a rest of one hardly matters."""
ROUNDING = 1e-4
"""Part of a layer by which the layers that are dealt at once keep below their level."""
MOVES_LOOKED_AT = 16
"""Moves tried in one look around."""


class Dealer:
    """Deals the layers of one order to chunks; `values_ms` tells what a dealing is worth."""

    def __init__(self, data: VirtualSelectionData) -> None:
        self.data = data
        self.groups = data.stage.num_microbatches // data.num_stages
        self.is_long = self.groups > MOST_GROUPS
        self._ways: Ways = {}

    def values_ms(self, found: Sequence[VirtualChoice]) -> Floats:
        """Objectives, those of long steps read off two shorter ones."""
        if not self.is_long:
            return objectives_ms(self.data, found)
        pieces = pieces_ms(self.data, found)
        short = (groups * self.data.num_stages for groups in SHORT_GROUPS)
        less, more = (steps_ms(self.data, pieces, count) for count in short)
        of_group = (more - less) / (SHORT_GROUPS[1] - SHORT_GROUPS[0])
        longer: Floats = more + (self.groups - SHORT_GROUPS[1]) * of_group
        send = np.broadcast_to(self.data.send_ms, pieces.forward.shape[:2])
        waits = largest_waits(pieces.forward, pieces.backward, send, self.data.stage.num_microbatches)
        after = pieces.reduction[:, 0] + pieces.follow + self.data.stage.constant_ms
        return np.maximum(longer, waits + after)

    def best(self, dealt: Sequence[Ints]) -> tuple[float, VirtualChoice] | None:
        """The best of some layer counts [stage, chunk], with its value [ms]."""
        found = [choice for layers in dealt for choice in choices(self.data, layers.tolist(), self._ways)]
        if not found:
            return None
        values = self.values_ms(found)
        at = int(np.argmin(values))
        return float(values[at]), found[at]

    def good_choice(
        self, give_up_ms: float, totals: Sequence[Sequence[int]] = ()
    ) -> tuple[float, VirtualChoice] | None:
        """A good choice, improved where it comes near `give_up_ms`; None where nothing fits.

        `totals` are layers of the stages to begin with, beside those that are found here.
        """
        best = self.best(first_dealings(self.data, totals))
        if best is None or best[0] > 1.1 * give_up_ms:
            return best
        for _ in range(MAX_MOVES):
            better = self.best(self._moves(best[1]))
            if better is None or not better[0] < best[0] * (1 - GAP_TOL):
                break
            best = better
        return best

    def _moves(self, choice: VirtualChoice) -> list[Ints]:
        """Layer counts one move away, the most promising first."""
        data = self.data
        forward, backward = times_ms(data, choice)
        groups = SHORT_GROUPS[-1] if self.is_long else self.groups
        path = longest_paths(forward, backward, data.send_ms, groups * data.num_stages, [0])[0]
        layer = np.array(path.forward) * data.stage.forward_ms[:, None]
        cost = layer + np.array(path.backward) * data.stage.backward_ms[:, None]
        layers = np.array(choice.layers)
        fewest = fewest_layers(data)
        flat = np.argsort(-cost, axis=None, kind="stable")
        givers = [i for i in flat.tolist() if layers.flat[i] > fewest.flat[i]]
        takers = flat[::-1].tolist()
        pairs = [(a, b) for a in givers[:6] for b in takers[:6] if cost.flat[a] > cost.flat[b]]
        pairs.sort(key=lambda pair: cost.flat[pair[1]] - cost.flat[pair[0]])
        moved = []
        for giver, taker in pairs[:MOVES_LOOKED_AT]:
            other = layers.copy()
            other.flat[giver] -= 1
            other.flat[taker] += 1
            moved.append(other)
        return moved


def first_dealings(data: VirtualSelectionData, totals: Sequence[Sequence[int]] = ()) -> list[Ints]:
    """Layer counts to begin with: good totals of the stages, dealt evenly to their chunks.

    Totals are those given, as many as the stages hold below the least step for which they hold all layers,
    and as even as whole layers or multiples of v allow.
    """
    table = dealt_table(data)
    found: list[Ints | None] = [np.array(one) for one in totals]
    found.append(capacity_layers(data, table))
    found += [_even_stages(data, table.times_ms, unit) for unit in dict.fromkeys((1, data.virtual_stages))]
    distinct = {tuple(one.tolist()): one for one in found if one is not None}
    dealt = [deal(data, one, pattern) for one in distinct.values() for pattern in _patterns(data, one)]
    return list({layers.tobytes(): layers for layers in dealt}.values())


def _patterns(data: VirtualSelectionData, totals: Ints) -> list[Floats]:
    """Shares of the chunks in a stage, [pattern, chunk], that some stage can keep exactly.

    Stages wait for each other where one is on a long chunk and the others are not. Stages of few layers can
    deal them in few ways, so that the others do well to follow them: as even as may be, the longer ones
    first or last, for every number of layers that leaves a rest.
    """
    v = data.virtual_stages
    found = [np.full(v, 1.0 / v)]
    for total in sorted({int(n) for n in totals if n % v and v < n < MOST_COARSE * v}):
        counts = np.full(v, total // v, dtype=np.float64)
        for longer in (slice(0, total % v), slice(v - total % v, v)):
            pattern = counts.copy()
            pattern[longer] += 1
            found.append(pattern / total)
    return found


def capacity_layers(data: VirtualSelectionData, table: DealtTable) -> Ints | None:
    """Layers of stages by the least step for which they hold all; the slowest give back what is too many."""
    values = step_by_layers(data, table)
    layers = np.arange(values.shape[1])
    fewest = fewest_layers(data).sum(axis=1)
    steps = np.unique(values[np.isfinite(values)])

    def held(limit: float) -> Ints:
        most: Ints = np.where(values <= limit, layers, 0).max(axis=1)
        return most

    def holds(limit: float) -> bool:
        most = held(limit)
        return bool((most >= fewest).all() and most.sum() >= data.num_layers)

    if len(steps) == 0 or not holds(float(steps[-1])):
        return None
    low, high = 0, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(float(steps[middle])) else (middle + 1, high)
    taken, stages = held(float(steps[low])), np.arange(data.num_stages)
    while taken.sum() > data.num_layers:
        can_give = (taken > fewest) & np.isfinite(values[stages, taken - 1])
        if not can_give.any():
            return None
        taken[int(np.argmax(np.where(can_give, values[stages, taken], -np.inf)))] -= 1
    return taken


def _even_stages(data: VirtualSelectionData, times: Floats, unit: int) -> Ints | None:
    """Layers of stages, the slowest as fast as possible, in multiples of `unit` but for what is left."""
    stages = np.arange(data.num_stages)
    layers: Ints = fewest_layers(data).sum(axis=1)
    left = data.num_layers - int(layers.sum())
    if left < 0 or not np.isfinite(times[stages, layers]).all():
        return None
    while left > 0:
        step = min(unit, left)
        ahead = np.minimum(layers + step, data.num_layers)
        s = int(np.argmin(times[stages, ahead]))
        if not np.isfinite(times[s, ahead[s]]):
            if step == 1:
                return None
            unit = 1
            continue
        layers[s] += step
        left -= step
    return layers


def deal(data: VirtualSelectionData, stages: Ints, pattern: Floats) -> Ints:
    """Layers [stage, chunk] of stages dealt so that the times of chunks keep to a pattern [chunk] of shares.

    Each layer goes to the chunk that is then the least full; the last ones come first where all are equal, as
    fewer micro-batches are in flight there.
    """
    layer = data.stage.forward_ms + data.stage.backward_ms
    base = np.add(*data.base_ms()) / layer[:, None]
    dealt, rows = fewest_layers(data), np.arange(data.num_stages)
    # All but the last layers at once: as full as the level that uses them up, a little below.
    level = (stages + base.sum(axis=1)) / pattern.sum()
    ahead = np.maximum(dealt, np.floor(level[:, None] * pattern - base - ROUNDING).astype(np.int64))
    dealt = np.where((ahead.sum(axis=1) <= stages)[:, None], ahead, dealt)
    while (left := stages > dealt.sum(axis=1)).any():
        taken = np.round((dealt + 1 + base) / pattern, 6)
        dealt[rows, data.virtual_stages - 1 - np.argmin(taken[:, ::-1], axis=1)] += left
    return dealt
