"""Pairs with virtual stages that are opened beside whole stages."""

from __future__ import annotations

import pytest

from planner.data.load import build_problem, load_problem
from planner.data.options import Options
from planner.data.problem import Problem
from planner.search.driver import Search
from planner.search.openings import Opener
from planner.search.virtual import begun as virtual_begun
from planner.search.virtual.begun import VirtualSearch
from planner.search.virtual.items import VirtualPair
from planner.search.virtual.openings import VirtualOpener
from planner.search.virtual.space import VirtualSpace


def small() -> Problem:
    problem = load_problem("llama3-8b-h100-8")
    changes = {"gap": 0.0, "forbid": ("stages=mixed",)}
    return problem.model_copy(update={"options": problem.options.model_copy(update=changes)})


def test_pairs_opened_ahead_change_nothing_that_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Search(small(), None).run()
    ahead: list[int] = []
    open_ahead = VirtualSearch.open_ahead

    def counted(self: VirtualSearch, opened: int) -> None:
        before = self.ahead_at
        open_ahead(self, opened)
        ahead.extend([opened] * (self.ahead_at > before))

    monkeypatch.setattr(virtual_begun, "FIRST_AHEAD", 1)
    monkeypatch.setattr(virtual_begun, "FIRST_PAIRS", 0)
    monkeypatch.setattr(VirtualSearch, "open_ahead", counted)
    early = Search(small(), None).run()
    assert ahead
    assert early.evaluation is not None and late.evaluation is not None
    assert early.bound_s is not None and late.bound_s is not None
    assert max(early.bound_s, late.bound_s) <= min(early.evaluation.step_s, late.evaluation.step_s)
    assert early.termination == late.termination == "optimal"


def test_an_interrupt_of_a_pair_opened_ahead_keeps_it_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(opener: VirtualOpener, bound_s: float, pair: VirtualPair) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(virtual_begun, "FIRST_AHEAD", 1)
    monkeypatch.setattr(virtual_begun, "FIRST_PAIRS", 0)
    monkeypatch.setattr(VirtualOpener, "_open_pair", stop)
    search = Search(small(), None)
    result = search.run()
    assert result.interrupted and result.bound_s is not None and search.virtual is not None
    assert search.virtual.ahead_at > 1
    opener = search.opener
    assert isinstance(opener, Opener)
    space = VirtualSpace(small(), opener.prices, search.table, search.bounds)
    assert result.bound_s <= min(bound_s for bound_s, _ in space.pairs())


@pytest.mark.slow
def test_a_plan_with_virtual_stages_spares_whole_ones() -> None:
    """Whole stages alone took 3,598 parts, of 4,026 in all, before the best pair of stages was looked at."""
    problem = build_problem(
        cluster="64x8 h100-sxm-80gb, 64x8 a100-sxm-80gb",
        model="gpt-oss-120b",
        seq_length=8192,
        global_batch_size=1024,
    )
    result = Search(problem.model_copy(update={"options": Options(gap=0.01)}), None).run()
    assert result.termination == "optimal" and result.plan is not None
    assert result.plan.virtual_stages > 1
    assert result.statistics["opened"] < 1000
