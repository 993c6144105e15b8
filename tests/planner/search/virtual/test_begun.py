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
from planner.search.virtual.items import VirtualOrder, VirtualPair, VirtualPart
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


@pytest.mark.parametrize("is_slow", [True, False])
def test_one_class_with_slow_hops_is_opened_as_its_only_order(is_slow: bool) -> None:
    """Relaxations take the hops within a node for all: a fifth of the step stayed open with slow adapters."""
    problem = build_problem(
        cluster="hexiscale-homo-a100-pcie",
        model="phi-3-mini",
        seq_length=2048,
        global_batch_size=256,
        options=Options(pin={"tp": 1, "dp": 4, "pp": 8, "mbs": 1}, max_virtual_stages=4),
    )
    if not is_slow:
        fast = {"nic_gbit_per_s": 400.0, "nics_per_node": 8, "transport": "rdma"}
        nodes = problem.cluster.classes[0].model_copy(update=fast)
        cluster = problem.cluster.model_copy(update={"classes": (nodes,)})
        problem = problem.model_copy(update={"cluster": cluster})
    search = Search(problem, None)
    search.list_parts()
    assert isinstance(search.opener, Opener)
    virtual = VirtualSearch(search.bounds, search.clock, search.opener)
    virtual.open(*virtual.waiting[0])
    kinds = {type(part) for _, part in search.frontier.queue.parts()}
    assert kinds == {VirtualOrder if is_slow else VirtualPart}
