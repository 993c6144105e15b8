"""Ctrl-C among several searches ends them, and what was found before is still returned."""

from __future__ import annotations

import pytest

from planner.commands.interrupts import announcing
from planner.data.load import build_problem
from planner.data.options import Options
from planner.explain.economy import cheapest
from planner.explain.explain import explain
from tests.planner.explain.test_economy import priced


def interrupting(after: int) -> object:
    """A call before each search that stands for Ctrl-C pressed during the one numbered `after`."""
    seen: list[int] = []
    asked: list[object] = []
    announce = announcing(seen, "planning", quiet=True)

    def before(subject: object) -> None:
        announce(subject)
        asked.append(subject)
        if len(asked) == after:
            seen.append(2)

    return before


def test_explain_returns_the_answers_so_far() -> None:
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=16,
        options=Options(gap=0.5),
    )
    # The best plan, what binds each stage, one more node of the first class; then Ctrl-C.
    found = explain(problem, on_question=interrupting(3))  # type: ignore[arg-type]
    assert found.interrupted and found.step_s is not None
    assert [gain.change for gain in found.gains] == ["one more node of h100-sxm-80gb"]


def test_the_cheapest_nodes_so_far_keep_a_true_bound() -> None:
    problem = priced(1).model_copy(update={"options": Options(gap=0.0)})
    result, economy = cheapest(problem, "cost", on_search=interrupting(1))  # type: ignore[arg-type]
    assert economy.interrupted and economy.searches == 1 and result is not None
    assert economy.value is not None and economy.bound is not None and economy.bound <= economy.value


def test_before_ctrl_c_nothing_is_ended() -> None:
    announcing([], "planning", quiet=True)("a draw")
    with pytest.raises(KeyboardInterrupt):
        announcing([2], "planning", quiet=True)("a draw")
