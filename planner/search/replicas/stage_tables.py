"""Times of the stages of chains, by kind, item and layers, made for several kinds together.

What a kind's numbers are is said in `planner.search.replicas.chains`. The tables of one are small, so that
making each by itself would take many times as long as making all that are asked for together; they are the
same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from formulations.stage_selection_data import StageSelectionData, exposed_reduction_ms
from formulations.stage_selection_tables import least_recompute, stage_times_ms
from planner.cost.prices import Floats, Prices
from planner.search.coefficients import entry_coefficients
from planner.search.entries import Entries
from planner.search.meshes.places import following_ms
from planner.search.replicas.boxes import Bools
from planner.search.replicas.items import StageTimes, least_prices, least_tied_ms
from planner.search.replicas.space import Ints

if TYPE_CHECKING:
    from planner.search.replicas.chains import Chains


@dataclass(frozen=True)
class _Items:
    """Items that the prices of some kinds tell apart, kind by kind."""

    prices: Prices
    """One row an item."""
    at: Ints
    """[item] the item of each, those of the first kind first, then those of the second."""
    node_class: Ints
    """[item]"""
    inside_ms: Floats
    """[sides, item] least of the hops within the time of each, to one side and to both."""
    is_exact: Bools
    """[item] whether the prices are those of one number of replicas."""
    is_alike: Bools
    """[item] whether a micro-batch takes as long with any of the numbers, for all items of its kind."""


def stage_tables(
    chains: Chains, numbers: Sequence[int], levels: Ints, *, has_behind: bool
) -> list[tuple[StageTimes, StageTimes]]:
    """A stage that a pipeline begins with, and one that others come before, by kind, [level, item, n].

    Parameters
    ----------
    levels
        Micro-batches that it holds at once.
    has_behind
        Whether others come behind it.
    """
    of, more = _items_of(chains, numbers), int(has_behind)
    first = _table(chains, of, len(numbers), (0, 1 + more), levels)
    inner = _table(chains, of, len(numbers), (1, 2 + more), levels)
    return list(zip(first, inner, strict=True))


def _items_of(chains: Chains, numbers: Sequence[int]) -> _Items:
    """The items of some kinds with the least of their prices over the degrees of each."""
    groups: list[Ints] = []
    items, kinds = list[Ints](), list[Ints]()
    for place, number in enumerate(numbers):
        kind = chains.kinds[number]
        rows = chains.rows[kind.microbatch_size][kind.first : kind.end]
        item = np.flatnonzero((rows >= 0).any(axis=0))
        groups += [rows[rows[:, i] >= 0, i] for i in item.tolist()]
        items.append(chains.item_of[item])
        kinds.append(np.full(len(item), place))
    item, kind_of = np.concatenate(items), np.concatenate(kinds)
    prices, is_alike = least_prices(chains.prices, groups)
    of_kind = np.ones(len(numbers), dtype=np.bool_)
    np.logical_and.at(of_kind, kind_of, is_alike)
    blocks = not chains.problem.stack.p2p_overlap
    none = np.zeros((2, len(chains.node_class)))
    hops = np.array([chains.least_hops_ms(number) if blocks else none for number in numbers])
    is_single = np.array([chains.kinds[number].is_single for number in numbers])
    return _Items(
        prices,
        kind_of * len(chains.node_class) + item,
        chains.node_class[item],
        hops[kind_of, :, item].T,
        is_single[kind_of],
        of_kind[kind_of],
    )


def _table(chains: Chains, of: _Items, num_kinds: int, at: tuple[int, int], levels: Ints) -> list[StageTimes]:
    """Stages at a position of so many, by kind; they hold so many micro-batches, [level, item, n]."""
    num, num_items, (position, num_stages) = len(of.at), len(chains.node_class), at
    slots, starts = np.unique(of.at, return_index=True)
    held = np.repeat(levels, num)
    entries = Entries(
        choice=np.tile(np.arange(num), len(levels)),
        node_class=np.tile(of.node_class, len(levels)),
        position=np.full(len(held), position),
        num_stages=num_stages,
        in_flight=held.astype(np.float64),
        fewest_stages=np.full(len(held), num_stages),
    )
    none = np.zeros(len(held))
    data = entry_coefficients(chains.problem, of.prices, entries, 1, none, none)
    times = stage_times_ms(data, least_recompute(data))
    n = np.arange(chains.num_layers + 1, dtype=np.float64)
    forward = data.forward_ms[:, None] * n + data.base_forward_ms[:, None]
    after = _after_ms(data, times, forward, of, len(levels))
    if num_stages > 1:
        after = after + least_tied_ms(of.prices, entries)[:, None]
    sides = int(position > 0) + int(position < num_stages - 1)
    inside = np.vstack([np.zeros_like(of.inside_ms[:1]), of.inside_ms])
    hops = np.tile(inside[sides], len(levels))
    tables = np.full((2, len(levels), num_kinds * num_items, len(n)), np.inf)
    fitting = times + hops[:, None], np.where(np.isfinite(times), after, np.inf)
    for table, found in zip(tables, fitting, strict=True):
        each = found.reshape(len(levels), num, -1)
        table[:, slots] = np.minimum.reduceat(each, starts, axis=1)
    ends = np.zeros((2, *tables.shape[2:]))
    ends[0, slots] = np.minimum.reduceat(forward[:num], starts, axis=0)
    # The forward ends with the hop to one side, which may be the longer one.
    longer = inside[sides] - inside[max(sides - 1, 0)]
    ends[1, slots] = np.maximum.reduceat(forward[:num] + longer[:, None], starts, axis=0)
    own = [slice(k * num_items, (k + 1) * num_items) for k in range(num_kinds)]
    return [StageTimes(tables[0, :, k].copy(), tables[1, :, k].copy(), *ends[:, k].copy()) for k in own]


def _after_ms(data: StageSelectionData, times: Floats, forward: Floats, of: _Items, num: int) -> Floats:
    """Least that follows the last backward of stages, tied embeddings apart, [entry, n].

    Entries are those of the items, `num` times.
    """
    n = np.arange(times.shape[1], dtype=np.float64)
    exact, alike = (np.tile(known, num)[:, None] for known in (of.is_exact, of.is_alike))
    # The number of replicas that reduces least may recompute most, which hides most.
    layer = data.backward_ms + np.maximum(data.full_ms, data.selective_ms)
    base = data.base_backward_ms + np.maximum(data.selective_more_ms, 0.0) + data.lead * data.lead_full_ms
    longest = layer[:, None] * n + base[:, None]
    fits = np.isfinite(times)
    backward = np.where(exact, np.where(fits, np.where(fits, times, 0.0) - forward, 0.0), longest)
    exposed = exposed_reduction_ms(data, n[:, None], backward.T).T + data.reduce_tail_ms[:, None]
    least = data.optimizer_ms[:, None] * n + (data.base_optimizer_ms + data.gather_tail_ms)[:, None]
    after: Floats = np.where(
        alike, exposed + following_ms(data, len(n)), least + data.reduce_tail_ms[:, None]
    )
    return after
