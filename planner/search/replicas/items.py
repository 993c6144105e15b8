"""What chains are made of: items with prices and hops, and numbers of micro-batches that stages hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable
from planner.search.entries import Entries
from planner.search.replicas.boxes import Bools
from planner.search.replicas.space import Ints
from planner.units import MS

EVERY_HELD = 16
"""Micro-batches held up to which each number has its own times; beyond it eight to a doubling. A guess."""
Item = tuple[int, ...]
"""Tensor parallelism, class, split of the sequence, experts' degrees of a stage."""


def list_items(
    problem: Problem, table: DegreeTable, among: Sequence[int]
) -> tuple[list[Item], dict[int, dict[int, Sequence[int]]]]:
    """All items of some rows, and by micro-batch size and degree of data the row of each, -1 without one."""
    d, has_experts = table.degrees, problem.model.moe is not None
    found: dict[int, dict[int, dict[Item, int]]] = {}
    for row in among:
        experts = (int(d.expert_parallel[row]), int(d.expert_tensor_parallel[row]) if has_experts else 0)
        by_degree = found.setdefault(int(d.microbatch_size[row]), {})
        of_degree = by_degree.setdefault(int(d.data_parallel[row]), {})
        for c in np.flatnonzero(table.max_stages[row]).tolist():
            of_degree[int(d.tensor_parallel[row]), c, int(d.sequence_parallel[row]), *experts] = row
    items = sorted({item for by_degree in found.values() for of in by_degree.values() for item in of})
    rows: dict[int, dict[int, Sequence[int]]] = {
        size: {dp: [of.get(item, -1) for item in items] for dp, of in sorted(by_degree.items()) if of}
        for size, by_degree in found.items()
    }
    return items, {size: by_degree for size, by_degree in rows.items() if by_degree}


PASSES = (
    *("layer_forward_s", "layer_backward_s", "layer_selective_s", "layer_full_s"),
    *("embedding_forward_s", "embedding_backward_s", "head_forward_s", "head_backward_s"),
)
"""Prices of a micro-batch, beside which reductions and gathering hide."""


def least_prices(prices: Prices, groups: Sequence[Ints]) -> tuple[Prices, Bools]:
    """Prices with one row a group: the least of every number over the rows of the group.

    Beside them stands which groups' rows all price a micro-batch alike, [group].
    """
    starts = np.cumsum([0, *[len(group) for group in groups[:-1]]])
    rows, values, is_alike = prices.rows(np.concatenate(groups)), {}, np.ones(len(groups), dtype=np.bool_)
    for field in fields(rows):
        value = getattr(rows, field.name)
        if isinstance(value, np.ndarray) and field.name != "limit_bytes":
            least = np.minimum.reduceat(value, starts, axis=0)
            if field.name in PASSES:
                is_same = least == np.maximum.reduceat(value, starts, axis=0)
                is_alike &= is_same.reshape(len(groups), -1).all(axis=1)
            value = least
        values[field.name] = value
    return Prices(**values), is_alike


def least_hops_s(
    problem: Problem, prices: Prices, row: Ints, node_class: Ints, degree: Ints, chips: Ints
) -> Floats:
    """Least of the hops that stages take part in [s], [sides, stage].

    The first row is of a stage with a neighbour to one side, the second of one with two. A hop is inside a
    host only where all replicas of both stages lie in it, and both hops of a stage are only where those of
    three do: a stage needs room for as many chips as the least stage of its class and degree has, to every
    side that is.

    Parameters
    ----------
    row, node_class, degree, chips
        [stage] row of the prices, class, number of the data-parallel degree, and chips of all replicas.
    """
    c = node_class
    # Either end's own prices are no more than those of the hop.
    through = np.minimum(prices.send_s[row, c].min(axis=1), prices.send_s[row, :, c].min(axis=1))
    inside = np.minimum(through, prices.send_inside_s[row, c])
    least = np.full((degree.max(initial=0) + 1, len(problem.cluster.classes)), np.inf)
    np.minimum.at(least, (degree, c), chips)
    per_node = np.array([k.chips_per_node for k in problem.cluster.classes])[c]
    room = (per_node - chips) / least[degree, c]
    one = np.where(room >= 1, inside, through)
    both = one + np.where(room >= 2, inside, through)
    return np.stack([one, both])


def least_tied_ms(prices: Prices, entries: Entries) -> Floats:
    """Least that sharing an embedding adds to a pipeline with a stage of each entry at its place, [entry].

    Both ends see the same link, so that either is told by its row alone; a stage between them tells neither.
    """
    is_end = (entries.position == 0) | (entries.position == entries.num_stages - 1)
    of_end = prices.tied_sync_s[entries.choice, entries.node_class].min(axis=1)
    least: Floats = np.where(is_end, of_end, prices.tied_sync_s.min()) / MS
    return least


def held_levels(most: int) -> list[int]:
    """Every number up to `EVERY_HELD`, beyond it eight to each doubling."""
    levels, level, step = [], 1, 1
    while level <= most:
        levels.append(level)
        step = step if level < EVERY_HELD * step else 2 * step
        level += step
    return levels


@dataclass(frozen=True)
class StageTimes:
    """Stages of one place, arrays [..., item, n] in ms; inf where n layers do not fit."""

    times: Floats
    """Forward and backward of a micro-batch."""
    after: Floats
    """Least of what follows its last backward: exposed reduction, tied embeddings, update, gathering."""
    forward: Floats
    """[item, n] of a micro-batch; 0 where there is no such item."""
    most_forward: Floats
    """[item, n] the same at most, with a send to one side."""

    def at(self, level: int) -> StageTimes:
        """Of [level, item, n] those of one number of micro-batches held, numbered from 1."""
        return replace(self, times=self.times[level - 1], after=self.after[level - 1])

    def and_more(self, levels: StageTimes) -> StageTimes:
        """Of [level, item, n] these levels and more."""
        times, after = np.concatenate([self.times, levels.times]), np.concatenate([self.after, levels.after])
        return replace(self, times=times, after=after)

    def of(self, item: int, layers: int) -> tuple[float, float, float]:
        """Time, what follows it, and forward of one stage."""
        return tuple(float(v[item, layers]) for v in (self.times, self.after, self.forward))  # type: ignore
