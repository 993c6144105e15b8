"""Tables that searches share: the same answers to the last digit, whatever was searched before."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from planner import api
from planner.data.changes import with_named_hosts
from planner.data.problem import Problem
from planner.search import shared
from planner.search.shared import Shared, table_key


@pytest.fixture
def tables() -> Iterator[Shared]:
    own = Shared()
    shared.share(own)
    yield own
    shared.share(None)


def problems() -> list[Problem]:
    """Two clusters, several batches and gaps each; virtual stages on the second."""
    found = []
    for name, virtual_stages in (("llama3-8b-h100-a100-16", 1), ("llama3-8b-h100-8", 4)):
        problem = api.load_problem(name)
        for batch, gap in ((16, 0.1), (24, 0.1), (64, 0.1), (64, 0.03)):
            options = {"gap": gap, "virtual_gap": 0.1, "max_virtual_stages": virtual_stages}
            update = {
                "workload": problem.workload.model_copy(update={"global_batch_size": batch}),
                "options": problem.options.model_copy(update=options),
            }
            found.append(problem.model_copy(update=update))
    return found


def answers(asked: list[Problem]) -> dict[str, str]:
    """Each problem with its whole answer, the time aside."""
    return {
        problem.model_dump_json(): api.plan(problem).model_copy(update={"seconds": 0.0}).model_dump_json()
        for problem in asked
    }


@pytest.mark.slow
def test_answers_are_the_same_with_and_without_and_in_any_order(tables: Shared) -> None:
    asked = problems()
    first = answers(asked)
    assert tables.hits > 0
    warm = answers(asked[::-1])
    shuffled = random.Random(1).sample(asked, len(asked))
    again = answers(shuffled)
    shared.share(None)
    alone = answers(asked)
    assert alone == first == warm == again


def test_problems_share_where_only_batch_name_degrees_and_search_limits_differ() -> None:
    problem = api.load_problem("llama3-8b-h100-a100-16")
    workload, options = problem.workload, problem.options
    same = problem.model_copy(
        update={
            "name": "other",
            "workload": workload.model_copy(update={"global_batch_size": 8}),
            "options": options.model_copy(
                update={"gap": 0.5, "pin": {"tp": 2}, "top": 1, "forbid": ("tp=4",), "use": ("a100",)}
            ),
        }
    )
    assert table_key(same) == table_key(problem)
    for update in (
        {"workload": workload.model_copy(update={"seq_length": 2048})},
        {"workload": workload.model_copy(update={"precision": "fp8"})},
        {"options": options.model_copy(update={"forbid": ("recompute=full",)})},
        {"options": options.model_copy(update={"memory_reserve_fraction": 0.2})},
        {"model": api.load_problem("llama3-70b-h100-a100-128").model},
        {"cluster": api.load_problem("llama3-70b-h100-a100-128").cluster},
        {"stack": problem.stack.model_copy(update={"p2p_overlap": not problem.stack.p2p_overlap})},
    ):
        assert table_key(problem.model_copy(update=update)) != table_key(problem)


def test_oldest_values_go_where_memory_is_short() -> None:
    kept = Shared(most_bytes=3000)
    for key in range(5):
        kept.value(key, lambda key=key: np.full(100, float(key)))  # 800 bytes each
    assert kept.num_bytes <= 3000
    kept.value(4, lambda: pytest.fail("the last one is there"))
    made = kept.value(0, lambda: np.zeros(1))
    assert made.size == 1


def test_shared_values_cannot_be_changed() -> None:
    array = Shared().value("a", lambda: np.zeros(3))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0


def test_mixed_stages_over_named_hosts_are_searched_where_tables_are_shared(tables: Shared) -> None:
    result = api.plan(with_named_hosts(api.load_problem("llama3-8b-h100-a100-16")))
    assert result.plan is not None and tables.hits + tables.num_bytes > 0
