"""Count node classes of the same nodes as one, such as two racks that a cluster names apart.

Stages that fill whole nodes take as many of them wherever in the pipeline they sit, no two share a node, and
nothing of a plan's time and memory depends on their classes but by the prices of these. Let two classes have
equal prices, the sends between them and to all others included, and hold a and b stages of a row of degrees.
Exchange one for the other on any stages of a plan: its time and memory stay, and it stays legal as long as
neither gives more stages than it holds. So the plans with i stages of the one and j of the other, i <= a and
j <= b, take as long as those with i + j stages of one class that holds a + b, order for order; and each of
these comes from one of those: the first a of its stages are dealt to the one class, the rest to the other.
The search counts the stages of such a class alone, and its bounds hold for the classes as they are named.

Rows of degrees with stages that leave a part of a node to others are searched with all classes apart: where
a class follows another, a stage begins on another node, so that sends inside nodes and the nodes needed
depend on the names. So are wishes that name classes or their order. What mixes classes within a stage is
searched apart, too, as it is priced by rings.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable

WITHOUT_CLASSES = frozenset(
    {
        *(f"{piece}_state_bytes" for piece in ("layer", "embedding", "head", "head_beside_embedding")),
        *("layer_placeholder_bytes", "layer_waiting_bytes", "pipeline_buffer_bytes"),
        *("embedding_activation_bytes", "embedding_peak_bytes", "head_peak_bytes"),
    }
)
"""Prices that are the same for all classes."""
_OF_PAIRS = ("send_s", "tied_sync_s")
"""Prices of two classes: axes 1 and 2."""


def class_axis(name: str) -> int:
    """Axis of the node class in a price that has one, the first of two in one of pairs."""
    if name == "limit_bytes":
        return 0
    return 2 if name.startswith("layer_") or name == "end_shown_s" else 1


def counted_as_one(problem: Problem, table: DegreeTable, prices: Prices) -> DegreeTable:
    """The rows of degrees with the stages of the same nodes counted under the first of their classes."""
    groups = same_nodes(problem, prices)
    if not groups:
        return table
    chips = np.array([node_class.chips_per_node for node_class in problem.cluster.classes])
    own = table.max_stages
    fills = ((table.stage_size[:, None] % chips == 0) | (own == 0)).all(axis=1)
    counted = own.copy()
    for first, *others in groups:
        counted[fills, first] = own[fills][:, [first, *others]].sum(axis=1)
        counted[np.ix_(fills, others)] = 0
    return replace(table, max_stages=counted, own_stages=own, same_nodes=groups)


def same_nodes(problem: Problem, prices: Prices) -> tuple[tuple[int, ...], ...]:
    """Sets of classes, two or more each, of the same nodes, as far as any plan can tell."""
    options, classes = problem.options, problem.cluster.classes
    if options.keep_class_order or len(classes) == 1:
        return ()
    named = {*options.use, *options.spare}
    groups: list[list[int]] = []
    for c, one in enumerate(classes):
        if one.name in named:
            continue
        for group in groups:
            other = classes[group[0]]
            if (one.chip, one.chips_per_node) == (other.chip, other.chips_per_node) and all(
                _cost_alike(prices, c, member) for member in group
            ):
                group.append(c)
                break
        else:
            groups.append([c])
    return tuple(tuple(group) for group in groups if len(group) > 1)


def _cost_alike(prices: Prices, a: int, b: int) -> bool:
    """Whether exchanging one class for another on any stages changes no price."""
    for field in fields(Prices):
        value = getattr(prices, field.name)
        if not isinstance(value, np.ndarray) or field.name in WITHOUT_CLASSES:
            continue
        axis = class_axis(field.name)
        if field.name in _OF_PAIRS:
            if not _pairs_are_alike(value, a, b):
                return False
        elif not np.array_equal(value.take(a, axis), value.take(b, axis), equal_nan=True):
            return False
    return True


def _pairs_are_alike(value: NDArray[np.float64], a: int, b: int) -> bool:
    """The same for prices of pairs, [choice, node_class, node_class]: also among the two themselves."""
    among = value[:, [a, a, b, b], [a, b, a, b]]
    return (
        np.array_equal(value[:, a], value[:, b], equal_nan=True)
        and np.array_equal(value[:, :, a], value[:, :, b], equal_nan=True)
        and np.array_equal(among, np.broadcast_to(among[:, :1], among.shape), equal_nan=True)
    )
