"""Stages whose coefficients are asked for: their places, classes and rows of prices, and the hops between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.communication.hops import hop_send_s
from planner.cost.identity import remembered
from planner.cost.lazy import lazy
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.empty import ends_without_layers


def order_hops_s(
    problem: Problem,
    prices: Prices,
    choice: int,
    stage_size: int,
    class_of_stage: Sequence[int],
    rows_apart: tuple[int, int] | None = None,
) -> Floats:
    """Time of each hop of an order, [stage]; the last is back to the first stage [s].

    To and from a last stage beside predictions those of its own row.
    """
    per_node = _chips_per_node(problem)

    def of_row(row: int) -> Floats:
        send, inside = prices.send_s[row], prices.send_inside_s[row]
        return hop_send_s(send, inside, class_of_stage, stage_size, per_node)

    hops = of_row(choice)
    if rows_apart is not None:
        hops[-2:] = of_row(rows_apart[0])[-2:]
    return hops


@remembered
def _chips_per_node(problem: Problem) -> tuple[int, ...]:
    """Chips of a node, by node class."""
    return tuple(node_class.chips_per_node for node_class in problem.cluster.classes)


def entries_of(
    problem: Problem,
    choice: int,
    num_stages: int,
    node_class: Sequence[int] | NDArray[np.int64],
    rows_apart: tuple[int, int] | None = None,
) -> Entries:
    """All stages of pipelines of one length, one pipeline after the other.

    Parameters
    ----------
    node_class
        Classes of the stages of all of them.
    """
    rows = np.full(num_stages, choice)
    position, may_be_empty = _places(problem, num_stages, rows_apart is not None)
    must_be_empty = predicts = None
    if rows_apart is not None:
        must_be_empty, predicts = (position == num_stages - back for back in (1, 2))
        rows[-2:] = rows_apart[::-1]
    count = len(node_class) // num_stages

    def of_all(values: NDArray[Any]) -> NDArray[Any]:
        return values if count == 1 else np.tile(values, count)

    return Entries(
        choice=of_all(rows),
        node_class=np.array(node_class),
        position=of_all(position),
        num_stages=num_stages,
        may_be_empty=of_all(may_be_empty),
        must_be_empty=None if must_be_empty is None else of_all(must_be_empty),
        predicts=None if predicts is None else of_all(predicts),
    )


@remembered
def _places(
    problem: Problem, num_stages: int, predictions_apart: bool
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Places of the stages of one pipeline, and which of them may be without a layer, [stage]."""
    may_be_empty = ends_without_layers(problem, num_stages, predictions_apart=predictions_apart)
    return np.arange(num_stages), may_be_empty


@dataclass(frozen=True)
class Entries:
    """Stages of pipelines of one length, one an entry: they need not belong to one pipeline."""

    choice: NDArray[np.int64]
    """[entry] row of the prices."""
    node_class: NDArray[np.int64]
    """[entry]"""
    position: NDArray[np.int64]
    """[entry] place of the stage in its pipeline."""
    num_stages: int
    """Stages of the pipelines."""
    in_flight: Floats | None = None
    """[entry] micro-batches that a stage holds at once; None where they follow from its position."""
    fewest_stages: NDArray[np.int64] | None = None
    """[entry] the fewest stages of pipelines that a stage stands for, all longer ones among them: it takes
    the least memory of all. None where it stands for those of `num_stages` alone."""
    may_be_empty: NDArray[np.bool_] | None = None
    """[entry] whether the stage may be without a layer; None where none may."""
    must_be_empty: NDArray[np.bool_] | None = None
    """[entry] whether it must; None where none must."""
    predicts: NDArray[np.bool_] | None = None
    """[entry] whether it has predictions of further tokens, apart from the head; None where none has."""

    @lazy
    def is_first(self) -> NDArray[np.bool_]:
        """[entry] whether it is the first of its pipeline."""
        first: NDArray[np.bool_] = self.position == 0
        return first

    @lazy
    def has_head(self) -> NDArray[np.bool_]:
        """[entry] whether the prices of the head of its row belong to it."""
        return self._is_last if self.predicts is None else self._is_last | self.predicts

    @property
    def has_predictions(self) -> NDArray[np.bool_]:
        """[entry] whether it has those of a model that predicts further tokens."""
        return self._is_last if self.predicts is None else self.predicts

    @lazy
    def _is_last(self) -> NDArray[np.bool_]:
        """[entry] whether it is the last of its pipeline."""
        last: NDArray[np.bool_] = self.position == self.num_stages - 1
        return last
