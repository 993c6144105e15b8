"""Tables of stages that are made for several kinds together against those of each kind by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.cost.pricing import price
from planner.data.load import build_problem
from planner.search.replicas import chains as chains_module
from planner.search.replicas.chains import FEW_HELD, Chains, Kind
from planner.search.replicas.paths import Paths
from planner.search.replicas.space import replica_degrees
from planner.search.replicas.stage_tables import stage_tables


@pytest.mark.parametrize("together", (2, 1000))
def test_tables_of_several_kinds_are_those_of_each(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds with one number of replicas and with several, whose micro-batches take as long or do not."""
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb",
        model="mixtral-8x7b",
        seq_length=2048,
        global_batch_size=12,
        target="unrestricted",
    )
    table = replica_degrees(problem)
    prices = price(problem, table.degrees)
    # Micro-batches take as long with any number of replicas; here they do not with a few.
    slow = np.where(np.random.default_rng(0).random((len(table), 1, 1, 1)) < 0.03, 1.1, 1.0)
    prices = replace(prices, layer_forward_s=prices.layer_forward_s * slow)
    every, alone = Chains(problem, table, prices), Chains(problem, table, prices)
    kinds = {
        Kind(size, first, end)
        for size, degrees in every.replicas.items()
        for first in range(0, len(degrees), 2)
        for end in (first + 1, len(degrees))
    }
    numbers = [every.number(kind) for kind in kinds]
    paths = Paths(every)
    made = list[int]()
    monkeypatch.setattr(chains_module, "TOGETHER", together)

    def counted(*args: Any, **asked: Any) -> Any:
        made.append(len(args[1]))
        return stage_tables(*args, **asked)

    monkeypatch.setattr(chains_module, "stage_tables", counted)
    # The tables of all kinds that are known are made when one of them is asked for.
    paths.least(numbers[0])
    assert sum(made) == 2 * len(kinds) and max(made) == min(together, len(kinds))
    for number in numbers:
        paths.least(number)
    assert sum(made) == 2 * len(kinds)
    for kind, number in zip(kinds, numbers, strict=True):
        own = alone.number(kind)
        for behind, held in ((0, 1), (1, 1), (4, 3), (FEW_HELD, 2 * FEW_HELD)):
            for ours, theirs in zip(
                every.stages(number, behind, held), alone.stages(own, behind, held), strict=True
            ):
                for name in ("times", "after", "forward", "most_forward"):
                    assert np.array_equal(getattr(ours, name), getattr(theirs, name))
