"""The split of nodes among trainings, by hand and against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from formulations.fleet_split import FleetSplitData, Objective, Option, solve
from formulations.options import SolveOptions

TWO_ON_THREE_NODES = (
    (Option(0.3, 0.3, (1,)), Option(0.5, 0.5, (2,)), Option(0.9, 0.9, (3,))),
    (Option(0.4, 0.2, (1,)), Option(0.6, 0.4, (2,))),
)


def solved(data: FleetSplitData) -> tuple[tuple[int, ...], float] | None:
    found = solve(data, SolveOptions())
    return None if found is None else (found.chosen, found.value)


def test_greatest_sum_of_two_trainings_on_three_nodes() -> None:
    """1 + 2 nodes give 0.3 + 0.6 = 0.9 and 2 + 1 give 0.5 + 0.4 = 0.9 as well; 3 + 1 would be 1.3 on four."""
    data = FleetSplitData(TWO_ON_THREE_NODES, (3,))
    found = solved(data)
    assert found is not None and found[1] == pytest.approx(0.9)
    assert solved(FleetSplitData(TWO_ON_THREE_NODES, (4,))) == ((2, 0), pytest.approx(1.3))


def test_slowest_training_is_as_fast_as_it_can_be() -> None:
    """1 + 2 nodes: the slower makes 0.3; 2 + 1: only 0.2, though its faster one makes 0.5."""
    assert solved(FleetSplitData(TWO_ON_THREE_NODES, (3,), "slowest")) == ((0, 1), 0.3)


def test_among_equal_slowest_the_greatest_sum_is_taken() -> None:
    options = ((Option(0.2, 0.2, (1,)),), (Option(0.5, 0.5, (1,)), Option(0.8, 0.8, (1,))))
    assert solved(FleetSplitData(options, (2,), "slowest")) == ((0, 1), 0.2)


def test_no_split_where_the_nodes_do_not_go_round() -> None:
    assert solved(FleetSplitData(TWO_ON_THREE_NODES, (1,))) is None
    assert solved(FleetSplitData((TWO_ON_THREE_NODES[0], ()), (9,))) is None


@pytest.mark.parametrize("objective", ["sum", "slowest"])
@pytest.mark.parametrize("seed", range(6))
def test_split_equals_enumeration(seed: int, objective: Objective) -> None:
    random = np.random.default_rng(seed)
    options = tuple(
        tuple(
            Option(rate, rate * scale, tuple(int(n) for n in random.integers(0, 4, 2)))
            for rate in random.uniform(0.05, 1.0, 6)
        )
        for scale in random.uniform(0.3, 1.0, 3)
    )
    data = FleetSplitData(options, (4, 5), objective)
    values = []
    for chosen in itertools.product(*options):
        if all(sum(o.nodes[c] for o in chosen) <= data.available[c] for c in range(2)):
            rates, progress = [o.rate for o in chosen], [o.progress for o in chosen]
            values.append((min(progress), sum(rates)) if objective == "slowest" else (sum(rates), 0.0))
    found = solve(data, SolveOptions())
    if not values:
        assert found is None
        return
    best = max(values)
    assert found is not None and found.value == pytest.approx(best[0])
    if objective == "slowest":
        rate = sum(options[j][o].rate for j, o in enumerate(found.chosen))
        assert rate == pytest.approx(best[1])
