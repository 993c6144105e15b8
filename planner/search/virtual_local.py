"""Good layer counts of virtual stages without a solver: even stages, dealt evenly, then single moves.

Longest paths say what a layer costs on each chunk: moves lead from where it costs most to where it costs
least. With many micro-batches two short steps stand for the long one, as a step grows by the same time with
each group once it is steady.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_rows import longest_paths
from formulations.stage_selection_tables import least_recompute, stage_times_ms
from formulations.virtual_selection_data import (
    VirtualChoice,
    VirtualSelectionData,
    choices,
    objectives_ms,
    times_ms,
)
from planner.cost.prices import Floats
from planner.search.virtual_data import whole_stages

Ints = NDArray[np.int64]

SHORT_GROUPS = (3, 4)
"""Groups of micro-batches in the two steps that stand for a longer one."""
MAX_MOVES = 12
"""Moves of a layer after which the search is content."""
MOVES_LOOKED_AT = 16
"""Moves tried in one look around."""


class Dealer:
    """Deals the layers of one order to chunks; `values_ms` tells what a dealing is worth."""

    def __init__(self, data: VirtualSelectionData) -> None:
        self.data = data
        m, p = data.stage.num_microbatches, data.num_stages
        self.short = [
            replace(data, stage=replace(data.stage, num_microbatches=groups * p)) for groups in SHORT_GROUPS
        ]
        self.groups = m // p
        self.is_long = self.groups > SHORT_GROUPS[-1] + 1

    def values_ms(self, found: Sequence[VirtualChoice]) -> Floats:
        """Objectives, those of long steps read off two shorter ones."""
        if not self.is_long:
            return objectives_ms(self.data, found)
        less, more = (objectives_ms(short, found) for short in self.short)
        longer: Floats = more + (self.groups - SHORT_GROUPS[-1]) * (more - less)
        return longer

    def best(self, dealt: Sequence[Ints]) -> tuple[float, VirtualChoice] | None:
        """The best of some layer counts [stage, chunk], with its value [ms]."""
        found = [choice for layers in dealt for choice in choices(self.data, layers.tolist())]
        if not found:
            return None
        values = self.values_ms(found)
        at = int(np.argmin(values))
        return float(values[at]), found[at]

    def good_choice(self, give_up_ms: float) -> tuple[float, VirtualChoice] | None:
        """A good choice, improved where it comes near `give_up_ms`; None where nothing fits."""
        best = self.best(first_dealings(self.data))
        if best is None or best[0] > 1.1 * give_up_ms:
            return best
        for _ in range(MAX_MOVES):
            better = self.best(self._moves(best[1]))
            if better is None or not better[0] < best[0] * (1 - 1e-9):
                break
            best = better
        return best

    def _moves(self, choice: VirtualChoice) -> list[Ints]:
        """Layer counts one move away, the most promising first."""
        data = self.short[-1] if self.is_long else self.data
        forward, backward = times_ms(data, choice)
        path = longest_paths(forward, backward, data.send_ms, data.stage.num_microbatches, [0])[0]
        layer = np.array(path.forward) * data.stage.forward_ms[:, None]
        cost = layer + np.array(path.backward) * data.stage.backward_ms[:, None]
        layers = np.array(choice.layers)
        fewest = np.ones_like(layers)
        fewest[0, 0] = max(1, int(data.stage.lead[0]))
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


def first_dealings(data: VirtualSelectionData) -> list[Ints]:
    """Layer counts to begin with: stages as even as whole layers or multiples of v allow, dealt evenly."""
    whole = whole_stages(data)
    table = least_recompute(whole)
    times = stage_times_ms(whole, table)
    dealt = []
    for unit in dict.fromkeys((1, data.virtual_stages)):
        stages = _even_stages(data, times, unit)
        if stages is None:
            continue
        for first in (True, False):
            dealt.append(deal(data, stages, extra_first=first))
    return [layers for i, layers in enumerate(dealt) if not any((layers == one).all() for one in dealt[:i])]


def _even_stages(data: VirtualSelectionData, times: Floats, unit: int) -> Ints | None:
    """Layers of stages, the slowest as fast as possible, in multiples of `unit` but for what is left."""
    v, stages = data.virtual_stages, np.arange(data.num_stages)
    layers = np.full(data.num_stages, v, dtype=np.int64)
    layers[0] = max(v, int(data.stage.lead[0]) + v - 1)
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


def deal(data: VirtualSelectionData, stages: Ints, *, extra_first: bool) -> Ints:
    """Layers [stage, chunk] of stages dealt so that chunks take times as equal as whole layers allow."""
    v = data.virtual_stages
    layer = data.stage.forward_ms + data.stage.backward_ms
    base = np.add(*data.base_ms())
    dealt = np.ones((data.num_stages, v), dtype=np.int64)
    dealt[0, 0] = max(1, int(data.stage.lead[0]))
    tie = np.arange(v) if extra_first else np.arange(v)[::-1]
    for s in range(data.num_stages):
        for _ in range(int(stages[s] - dealt[s].sum())):
            taken = np.round((dealt[s] + 1) + base[s] / layer[s], 6)
            dealt[s, np.lexsort((tie, taken))[0]] += 1
    return dealt
