"""Stages whose coefficients are asked for: their places, classes and rows of prices, and the hops between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.hops import hop_send_s
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
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]

    def of_row(row: int) -> Floats:
        send, inside = prices.send_s[row], prices.send_inside_s[row]
        return hop_send_s(send, inside, class_of_stage, stage_size, per_node)

    hops = of_row(choice)
    if rows_apart is not None:
        hops[-2:] = of_row(rows_apart[0])[-2:]
    return hops


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
    rows, is_apart = np.full(num_stages, choice, dtype=np.int64), rows_apart is not None
    last, before = (np.arange(num_stages) == num_stages - 1 - back for back in (0, 1))
    if rows_apart is not None:
        rows[last], rows[before] = rows_apart
    may_be_empty = ends_without_layers(problem, num_stages, predictions_apart=is_apart)
    count = len(node_class) // num_stages
    return Entries(
        choice=np.tile(rows, count),
        node_class=np.array(node_class),
        position=np.tile(np.arange(num_stages), count),
        num_stages=num_stages,
        may_be_empty=np.tile(may_be_empty, count),
        must_be_empty=np.tile(last, count) if is_apart else None,
        predicts=np.tile(before, count) if is_apart else None,
    )


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

    @property
    def has_head(self) -> NDArray[np.bool_]:
        """[entry] whether the prices of the head of its row belong to it."""
        last: NDArray[np.bool_] = self.position == self.num_stages - 1
        return last if self.predicts is None else last | self.predicts

    @property
    def has_predictions(self) -> NDArray[np.bool_]:
        """[entry] whether it has those of a model that predicts further tokens."""
        last: NDArray[np.bool_] = self.position == self.num_stages - 1
        return last if self.predicts is None else self.predicts
