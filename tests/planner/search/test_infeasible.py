"""The closest layout that a reason names, with every layout's shortage worked out by itself or not."""

from __future__ import annotations

import pytest

from planner.data.load import build_problem
from planner.data.options import Options
from planner.search import infeasible
from planner.search.driver import Search


@pytest.mark.parametrize("seq_length", [4096, 16384])
def test_layouts_left_out_are_no_closer_than_the_one_named(
    seq_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = build_problem(
        cluster="1x4 h100-sxm-80gb, 1x4 a100-sxm-40gb, 1x2 v100-sxm2-16gb",
        model="llama3-70b",
        seq_length=seq_length,
        global_batch_size=16,
        options=Options(max_virtual_stages=1, workers=1),
    )
    shortage = infeasible._shortage_gib
    asked: list[bool] = []

    def counted(*args: object) -> tuple[float, int] | None:
        found = shortage(*args)  # type: ignore[arg-type]
        asked.append(found is not None)
        return found

    monkeypatch.setattr(infeasible, "_shortage_gib", counted)
    reason = Search(problem, None).run().reason
    monkeypatch.setattr(infeasible, "_shortage_gib", lambda *args: shortage(*args[:3]))
    assert reason is not None and "short on each chip" in reason
    assert Search(problem, None).run().reason == reason
    assert 0 < sum(asked) < len(asked) / 2
