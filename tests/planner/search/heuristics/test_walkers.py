"""The loop that all annealing shares, with chance taken out of it; steps of pipelines by hand."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from planner.cost.prices import Floats
from planner.search.heuristics import walkers
from planner.search.heuristics.walkers import Cooling, anneal_walkers, for_all, new_places, step_ms, walk
from planner.search.walks.cheapest import Ints


class Draws:
    """Random numbers that are all the same."""

    def __init__(self, draw: float) -> None:
        self.draw = draw

    def random(self, size: int) -> Floats:
        return np.full(size, self.draw)


def walked(
    values: list[float],
    loss: float,
    cooling: Cooling,
    draw: float = 1 - np.exp(-1.0),
    clock: list[bool] | None = None,
) -> list[list[int]]:
    """Places of the walkers before each step; each step leads one place on, which costs `loss` [walker]."""
    seen: list[list[int]] = []
    start = np.array(values)

    def change(order: Ints, layers: Ints) -> tuple[Ints, Ints, Floats]:
        seen.append(layers[:, 0].tolist())
        return order, layers + 1, start[order[:, 0]] + loss * (layers[:, 0] + 1)

    order, layers = np.arange(len(values))[:, None], np.zeros((len(values), 1), dtype=np.int64)
    random = cast(np.random.Generator, cast(Any, Draws(draw)))
    up = iter(clock or [])
    walk(order, layers, start, change, cooling, random, lambda: next(up, False))
    return seen


def test_losses_are_kept_until_it_is_too_cold() -> None:
    """A draw of 1 - 1/e keeps a loss up to the warmth: 1 of 1000 while 1.5 (1 - step / 100)^2 >= 1."""
    cooling = Cooling(steps=100, warmth=1.5e-3, follow_every=1000)
    seen = walked([1000.0], 1.0, cooling)
    assert [places[0] for places in seen[:20]] == list(range(20)) and seen[-1] == [19]
    assert walked([1000.0], 1.0, cooling, draw=0.0)[-1] == [0], "no loss without luck"
    assert walked([1000.0], -1.0, cooling, draw=0.0)[-1] == [99], "every gain"
    # What is warm is measured by the best plan of all: the first walker may lose no more beside a better one.
    assert [places[0] for places in walked([1000.0, 500.0], 1.0, cooling)][-1] == 0


def test_the_worst_walkers_go_on_from_the_best_now_and_then() -> None:
    seen: list[list[int]] = []

    def change(order: Ints, layers: Ints) -> tuple[Ints, Ints, Floats]:
        seen.append(order[:, 0].tolist())
        return order, layers, np.full(len(order), np.inf)

    order = np.arange(8)[:, None]
    value = np.array([5.0, 1.0, 8.0, 4.0, 2.0, 7.0, 3.0, 6.0])
    random = np.random.default_rng(0)
    found = walk(order, order, value, change, Cooling(7, 1e-3, 3), random, lambda: False)
    assert seen[0] == seen[1] == seen[2] == list(range(8))
    assert seen[3] == seen[5] == [0, 1, 4, 3, 4, 1, 6, 7], "the seventh and eighth from the first and second"
    assert found[0][[1, 4], 0].tolist() == [1, 4] and (found[2] <= value).all(), "none loses its best"


def test_the_clock_is_looked_at_now_and_then() -> None:
    cooling = Cooling(steps=3 * walkers.LOOK_AT_CLOCK, warmth=1e-3, follow_every=1000)
    assert len(walked([1.0], 1.0, cooling, clock=[False, True])) == walkers.LOOK_AT_CLOCK
    assert not walked([1.0], 1.0, cooling, clock=[True])


def test_the_best_orders_come_once_each_and_none_that_may_not_be() -> None:
    def values_ms(order: Ints, layers: Ints) -> Floats:
        values: Floats = layers.sum(axis=(1, 2)) + np.where(order[:, 0] == 3, np.inf, 0.0)
        return values

    def change(order: Ints, layers: Ints) -> tuple[Ints, Ints, Any]:
        return order, layers - 1, order[:, 0] != 2

    order = np.array([[1], [2], [1], [3]])
    layers = np.array([[[4, 4]], [[1, 1]], [[3, 3]], [[0, 0]]])
    random = np.random.default_rng(0)
    found = anneal_walkers(order, layers, values_ms, change, Cooling(1, 0.0, 10), random, lambda: False)
    assert [(order.tolist(), layers.tolist()) for order, layers in found] == [
        ([2], [[1, 1]]),
        ([1], [[2, 2]]),
    ]


def test_changes_that_may_not_be_are_not_valued() -> None:
    valued: list[list[int]] = []

    def values_ms(order: Ints, layers: Ints) -> Floats:
        valued.append(order[:, 0].tolist())
        return order[:, 0].astype(np.float64)

    def change(order: Ints, layers: Ints) -> tuple[Ints, Ints, walkers.Bools]:
        return order - 1, layers, order[:, 0] % 2 == 0

    order, layers = np.array([[3], [4], [5]]), np.zeros((3, 1, 1), dtype=np.int64)
    found = anneal_walkers(
        order, layers, values_ms, change, Cooling(2, 0.0, 10), np.random.default_rng(0), lambda: False
    )
    assert valued == [[3, 4, 5], [3]], "then none is even"
    assert [order.tolist() for order, _ in found] == [[3], [5]]


def test_every_walker_begins_somewhere() -> None:
    starts = for_all(["a", "b", "c"])
    assert len(starts) == walkers.WALKERS and starts[:4] == ["a", "b", "c", "a"]


def test_stages_change_places_or_one_moves() -> None:
    no, yes = np.array([False, False, False]), np.array([True, False, False])
    one, other = np.array([0, 1, 3]), np.array([2, 3, 1])
    moves = np.array([False, True, True])
    order = np.argsort(new_places(4, one, other, yes, moves), axis=1, kind="stable")
    assert order.tolist() == [[2, 1, 0, 3], [0, 2, 3, 1], [0, 3, 1, 2]]
    assert new_places(4, one, other, no, no).tolist() == [[0.0, 1.0, 2.0, 3.0]] * 3


@pytest.mark.parametrize("most_waves", [0, 100])
@pytest.mark.parametrize("blocks", [False, True])
def test_steps_of_short_pipelines_by_hand(most_waves: int, blocks: bool) -> None:
    """One micro-batch runs through all: 1 + 2 + 3 + 5 and two sends of 0.5; the first stage reduces for 4."""
    forward, backward = np.array([[1.0, 2.0]]), np.array([[5.0, 3.0]])
    hops, reduction, follow = np.array([[0.5, 0.0]]), np.array([[4.0, 1.0]]), np.array([[0.25, 0.125]])
    arguments = forward, backward, hops, reduction, follow
    step = step_ms(*arguments, 1, most_waves, sends_block=blocks)
    assert step.tolist() == [1 + 2 + 3 + 5 + 2 * 0.5 + 4 + 0.25]
    # The last stage reduces so long that it ends last; a send that blocks is part of its backward.
    late = step_ms(
        forward, backward, hops, np.array([[0.0, 20.0]]), follow, 1, most_waves, sends_block=blocks
    )
    assert late.tolist() == [1 + 0.5 + 2 + 3 + 0.5 * blocks + 20 + 0.25]
    alone = step_ms(
        *(one[:, :1] for one in arguments[:2]),
        0 * hops[:, :1],
        *(one[:, :1] for one in arguments[3:]),
        7,
        most_waves,
        sends_block=blocks,
    )
    assert alone.tolist() == [7 * 6.0 + 4 + 0.25]


def test_steps_come_from_events_up_to_some_waves_and_from_the_rows_beyond() -> None:
    """On uneven stages with slow sends the rows lie below the events, which are exact."""
    random = np.random.default_rng(4)
    forward, backward = random.uniform(1, 3, size=(2, 200, 4))
    hops = np.concatenate([random.uniform(0, 2, size=(200, 3)), np.zeros((200, 1))], axis=1)
    nothing = np.zeros((200, 4))
    arguments = forward, backward, hops, nothing, nothing, 6
    events = step_ms(*arguments, 10, sends_block=False)
    rows = step_ms(*arguments, 9, sends_block=False)
    assert (rows <= events * (1 + 1e-9)).all() and (rows < events * (1 - 1e-6)).any()
    # Where stages wait for their sends only the rows say so.
    blocked, waiting = (step_ms(*arguments, 10, sends_block=True, waits=waits) for waits in (False, True))
    assert (waiting > blocked * (1 + 1e-6)).any()
    even = np.ones((1, 4))
    one = 0.5 * np.array([[1.0, 1.0, 1.0, 0.0]])
    pace = [
        step_ms(even, even, one, nothing[:1], nothing[:1], m, 0, sends_block=True, waits=True)[0]
        for m in (20, 21)
    ]
    assert pace[1] - pace[0] == pytest.approx(2.0 + 2 * 0.5 + 0.5), "work, a send each way, and the wait"
