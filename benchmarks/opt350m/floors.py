"""What the layers in front of a stage must still cost: the lower bounds of the search.

A label (see `search`) has placed the layers from `first` on; `need` blocks are in front of it, with the
embedding, and `left` chips. Let B be a time that no stage may exceed.

- Pools. Under one weighting of the chips a mixed stage costs at least what its cheapest kind alone
  does, and takes no less time, so stages of one kind suffice: table[n, u] is the least bottleneck of n
  blocks on u weighted chips per replica, by dynamic programming over the last stage. Where no stage
  mixes, both chip types have their own pool and the blocks are split between them in every way.
- Sends. A pipeline of four or more stages pays two sends a stage; in a shorter one the first pays one.
- Sum. Blocks on fast stages are no more than their chips hold within B, and each block costs at least
  its time and its share of the sends of the fullest stage that B allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.opt350m.profile import CHIPS, FAST, SIZES, SLOW, Kind, profile
from benchmarks.opt350m.space import NUM_BLOCKS, WEIGHTS, Floats, Ints, Space, weighted

POOLED = range(2, len(WEIGHTS))
"""Weights that count both chip types."""
NEVER_S = 1e9
"""More than any plan takes, and finite: zero blocks at this rate cost nothing [s]."""


@dataclass(frozen=True)
class Floor:
    """Least costs for one micro-batch size."""

    mixed: bool
    kinds: tuple[Kind, ...]
    block_s: dict[Kind, float]
    """Least time of a block, forward and backward."""
    send_s: dict[Kind, float]
    """Least time of one send of a stage that has the kind."""

    @cached_property
    def pools(self) -> dict[tuple[int, int], Floats]:
        """By sends a stage and weight: [blocks, weighted chips per replica] least bottleneck."""
        return {
            (sends, w): self.bottlenecks(sends, w, several=True)
            for sends in (1, 2)
            for w in (POOLED if self.mixed else range(2))
        }

    @cached_property
    def singles(self) -> dict[int, Floats]:
        """By weight: the same of one stage that pays one send."""
        return {w: self.bottlenecks(1, w, several=False) for w in (POOLED if self.mixed else range(2))}

    @cached_property
    def pairs(self) -> Floats:
        """[blocks] the same of two stages on any chips, the first paying one send, the other two."""
        first, second = (
            np.min([self.stage_s(kind, sends) for kind in self.kinds], axis=0) for sends in (1, 2)
        )
        least = np.full(NUM_BLOCKS + 1, np.inf)
        for n in range(NUM_BLOCKS + 1):
            least[n] = min(max(second[k], first[n - k]) for k in range(n + 1))
        return least

    def stage_s(self, kind: Kind, sends: int) -> Floats:
        """Least time of a stage of 0, 1, 2 ... blocks."""
        times: Floats = np.arange(NUM_BLOCKS + 1) * self.block_s[kind] + sends * self.send_s[kind]
        return times

    def bottlenecks(self, sends: int, weight: int, *, several: bool) -> Floats:
        """Table [blocks, weighted chips] of the least bottleneck of one or several stages."""
        weights = WEIGHTS[weight]
        units = 4 * int(weights.max()) * NUM_BLOCKS + 1
        table = np.full((NUM_BLOCKS + 1, units), np.inf)
        table[0] = 0.0
        for n in range(1, NUM_BLOCKS + 1):
            for kind in self.kinds:
                take = weighted(kind, weights)
                if take == 0:
                    continue
                last = self.stage_s(kind, sends)[1 : n + 1]
                before = table[n - 1 :: -1][:n, : units - take]
                best = np.maximum(last[:, None], before).min(axis=0) if several else last[-1]
                table[n, take:] = np.minimum(table[n, take:], best)
        return table


def floors(space: Space) -> tuple[Floor, ...]:
    """One floor a micro-batch size."""
    times = profile().times_s
    found = []
    for index, size in enumerate(SIZES):
        usable = [g for g, group in enumerate(space.sets) if all((kind, size) in times for kind in group)]
        kinds = tuple(sorted({kind for g in usable for kind in space.sets[g]}))
        least_send = space.send_s[index][:, usable].min(axis=1)
        found.append(
            Floor(
                mixed=space.mixed,
                kinds=kinds,
                block_s={kind: float(times[kind, size][1:-1, :2].sum(axis=1).min()) for kind in kinds},
                send_s={
                    kind: float(min(least_send[g] for g in usable if kind in space.sets[g])) for kind in kinds
                },
            )
        )
    return tuple(found)


def bottleneck_s(floor: Floor, need: Ints, left: Floats, depth: int) -> Floats:
    """Least bottleneck of what is in front, array [label, blocks on fast stages], or [label, 1] for any.

    Parameters
    ----------
    need
        [label] blocks to place.
    left
        [label, weight] weighted chips per replica that are left.
    depth
        Stages that the labels have.
    """
    units = np.floor(left).astype(np.int64)
    on_fast = np.arange(NUM_BLOCKS + 1)[None, :]

    def pooled(sends: int) -> Floats:
        if floor.mixed:
            tables = [look_up(floor.pools[sends, w], need, units[:, w]) for w in POOLED]
            return np.max(tables, axis=0)[:, None]
        fast = look_up(floor.pools[sends, 0], on_fast, units[:, :1])
        slow = look_up(floor.pools[sends, 1], np.maximum(need[:, None] - on_fast, 0), units[:, 1:2])
        return np.maximum(fast, slow)

    def single() -> Floats:
        of_weight = [look_up(table, need, units[:, w]) for w, table in floor.singles.items()]
        chosen: Floats = (np.max if floor.mixed else np.min)(of_weight, axis=0)
        return chosen

    if depth >= 3:
        return pooled(2)
    if depth == 2:
        return np.minimum(pooled(2), single()[:, None])
    short = np.minimum(single(), floor.pairs[need])[:, None]
    return np.maximum(pooled(1), np.minimum(pooled(2), short))


def look_up(table: Floats, blocks: Ints, units: Ints) -> Floats:
    """Entries of a table; more chips than its last column do no better."""
    found: Floats = table[blocks, np.clip(units, 0, table.shape[1] - 1)]
    return found


def remaining_s(floor: Floor, need: Ints, left: Floats, limit_s: Floats, depth: int) -> Floats:
    """Least sum of what is in front when no stage exceeds a limit, array [label, blocks on fast stages].

    Parameters
    ----------
    limit_s
        [label] time that no stage may exceed [s].
    """
    sends = 2 if depth >= 3 else 1
    rate = {chip: np.full(len(need), NEVER_S) for chip in CHIPS}
    fullest = np.zeros(len(need))
    for kind in floor.kinds:
        room = np.maximum(limit_s - sends * floor.send_s[kind], 0.0) / floor.block_s[kind]
        held = np.floor(np.minimum(room, NUM_BLOCKS) + 1e-9)
        share = np.where(held > 0, sends * floor.send_s[kind] / np.maximum(held, 1), NEVER_S)
        rate[kind.chip] = np.minimum(rate[kind.chip], floor.block_s[kind] + share)
        if kind.chip == FAST:
            fullest = np.maximum(fullest, held / kind.tensor_parallel)
    on_fast = np.arange(NUM_BLOCKS + 1)[None, :]
    on_slow = need[:, None] - on_fast
    total = on_fast * rate[FAST][:, None] + np.maximum(on_slow, 0) * rate[SLOW][:, None]
    allowed = (on_slow >= 0) & (on_fast <= (np.maximum(left[:, 0], 0) * fullest)[:, None] + 1e-9)
    return np.where(allowed, total, np.inf)
