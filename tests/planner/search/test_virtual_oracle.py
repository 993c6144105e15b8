"""The search with virtual stages against brute force over all plans, judged by the referee."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from formulations import virtual_selection
from formulations.options import SolveOptions
from formulations.path_search import VirtualSelectionResult
from formulations.virtual_classes_data import VirtualClassesResult
from formulations.virtual_selection_data import VirtualSelectionData
from planner.cost.prices import Degrees
from planner.data.load import load_problem
from planner.data.problem import Problem
from planner.search import driver, empty
from planner.search.openings import Opener
from planner.search.virtual import items as virtual_items
from planner.search.virtual import openings as virtual
from planner.search.virtual import programs as virtual_programs
from planner.search.virtual import relaxer as virtual_relaxer
from planner.search.virtual.begun import VirtualSearch
from planner.search.virtual.items import VirtualPart, VirtualProgram
from planner.search.virtual.openings import VirtualOpener
from planner.simulate.evaluate import evaluate
from planner.units import MS
from tests import oracle_plans, oracle_virtual
from tests.oracle_plans import brute_force
from tests.oracle_virtual import brute_force_virtual
from tests.random_problems import (
    random_interleaved_problem,
    with_an_old_class,
    with_communicators_of,
    with_unlike_adapters,
)

REL = 1e-9
MANY = (516, 584, 691)
"""Problems that have more plans than are enumerated where whole stages may be without a layer."""


def assert_search_finds_the_best(
    seed: int,
    *,
    most_virtual: int = 3,
    only: bool = False,
    experts: bool = False,
    keep_class_order: bool = False,
    unlike_adapters: bool = False,
    communicators: bool = False,
    old_class: bool = False,
) -> int:
    """Hold one problem against brute force; the virtual stages of its plan, 0 without any plan."""
    problem = random_interleaved_problem(seed, most_virtual=most_virtual, experts=experts)
    problem = with_unlike_adapters(problem) if unlike_adapters else problem
    problem = with_communicators_of(problem, seed) if communicators else problem
    problem = with_an_old_class(problem, seed) if old_class else problem
    unwanted = [*(["vp=1"] if only else []), *(["stages=empty"] if seed in MANY else [])]
    forbidden = (*problem.options.forbid, *unwanted)
    wishes = {"forbid": forbidden, "keep_class_order": keep_class_order}
    problem = problem.model_copy(update={"options": problem.options.model_copy(update=wishes)})
    candidates = [brute_force_virtual(problem, most_virtual)] + ([] if only else [brute_force(problem)])
    best = min(candidates, key=lambda one: one.step_s)
    result = driver.search(problem)
    if best.what == ():
        assert result.termination == "infeasible", f"seed {seed}"
        return 0
    assert result.plan is not None and result.evaluation is not None, f"seed {seed}: {best}"
    judged = evaluate(problem, result.plan)
    assert judged.violations == ()
    assert judged.step_s == pytest.approx(best.step_s, rel=REL), f"seed {seed}: {best.what}"
    assert result.termination == "optimal"
    assert result.bound_s is not None and result.bound_s <= best.step_s * (1 + REL)
    return result.plan.virtual_stages


@pytest.mark.parametrize("seed", [500, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (501, 502))])
def test_search_equals_brute_force_on_a_few_problems(seed: int) -> None:
    assert_search_finds_the_best(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(90000, 90005))
def test_an_embedding_at_both_ends_is_shared_over_their_own_adapters(seed: int) -> None:
    assert assert_search_finds_the_best(seed, only=seed % 2 == 0, unlike_adapters=True) >= 0


@pytest.mark.slow
def test_search_equals_brute_force_where_whole_and_virtual_stages_compete() -> None:
    # Whole stages mostly win at this size, but for the last; the tests below forbid them.
    found = [assert_search_finds_the_best(seed) for seed in (*range(510, 525), 584)]
    assert any(stages > 1 for stages in found) and any(stages == 1 for stages in found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(560, 580))
def test_best_interleaved_plan_equals_brute_force(seed: int) -> None:
    """Where whole stages are forbidden every answer comes from the parts with virtual stages."""
    assert_search_finds_the_best(seed, only=True, experts=seed % 3 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(560, 575))
def test_programs_alone_equal_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no dealing tried by enumeration every order goes through the mixed-integer program."""
    monkeypatch.setattr(virtual_programs, "MAX_SPLITS", 0)
    assert_search_finds_the_best(seed, most_virtual=2, only=True, experts=seed % 3 == 0)


@pytest.mark.parametrize("seed", [17, *(pytest.param(s, marks=pytest.mark.slow) for s in (27, 62, 75, 153))])
def test_a_class_that_must_not_idle_does_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that a relaxation brought up was judged without a look at it, and won."""
    problem = random_interleaved_problem(seed, most_virtual=2)
    forbid = (*problem.options.forbid, "stages=empty", "vp=1")
    options = problem.options.model_copy(update={"use": ("class1",), "forbid": forbid})
    problem = problem.model_copy(update={"options": options})

    def using(problem: Problem, degrees: Degrees) -> Iterator[tuple[int, ...]]:
        return (order for order in oracle_plans.orders_of(problem, degrees) if 1 in order)

    monkeypatch.setattr(oracle_virtual, "orders_of", using)
    best, result = brute_force_virtual(problem, 2), driver.search(problem)
    if not best.what:
        assert result.termination == "infeasible"
        return
    assert result.plan is not None and result.bound_s is not None
    assert "class1" in {stage.node_class for stage in result.plan.stages}
    assert evaluate(problem, result.plan).step_s == pytest.approx(best.step_s, rel=REL)
    assert result.bound_s <= best.step_s * (1 + REL)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(560, 575))
def test_a_given_order_of_classes_is_kept_and_proven(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one order are bounded as that order, from the first relaxation on."""
    monkeypatch.setattr(virtual_programs, "MAX_SPLITS", 0)
    assert_search_finds_the_best(seed, most_virtual=2, only=True, keep_class_order=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(680, 692))
def test_search_equals_brute_force_whatever_communicators_take(seed: int) -> None:
    assert_search_finds_the_best(seed, most_virtual=2, only=seed % 2 == 0, communicators=True)


@pytest.mark.slow
@pytest.mark.parametrize("splits", [0, 400])
@pytest.mark.parametrize("seed", range(940, 955))
def test_search_equals_brute_force_where_one_class_keeps_its_scores(
    seed: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_programs, "MAX_SPLITS", splits)
    assert_search_finds_the_best(seed, most_virtual=2, only=True, experts=seed % 3 == 0, old_class=True)


@pytest.mark.slow
@pytest.mark.parametrize("splits", [0, 400])
@pytest.mark.parametrize("seed", range(700, 706))
def test_ends_without_a_layer_equal_brute_force_however_long_the_others_are(
    seed: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(empty, "MOST_BESIDE_EMPTY", 9.0)
    monkeypatch.setattr(virtual_programs, "MAX_SPLITS", splits)
    assert_search_finds_the_best(seed, most_virtual=2, only=True, experts=seed % 3 == 0)


@pytest.mark.slow
def test_embedding_and_head_of_llama_3_have_a_virtual_stage_to_themselves() -> None:
    """126 layers in 128 virtual stages, as the model was trained on 16 pipeline ranks.

    Source: Llama Team, "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2.
    """
    problem = load_problem("llama3-405b-h100-1024")
    result = driver.search(problem)
    assert result.plan is not None and result.evaluation is not None and result.gap is not None
    lengths = [[last - first + 1 for first, last in stage.chunks] for stage in result.plan.stages]
    assert (len(lengths), result.plan.virtual_stages) == (16, 8)
    assert lengths == [[0] + [1] * 7, *([[1] * 8] * 14), [1] * 7 + [0]]
    assert result.gap <= 0.01
    options = problem.options.model_copy(update={"forbid": ("stages=empty",)})
    without = driver.search(problem.model_copy(update={"options": options}))
    assert without.plan is not None and without.evaluation is not None
    assert all(last >= first for stage in without.plan.stages for first, last in stage.chunks)
    assert without.evaluation.step_s > result.evaluation.step_s * 1.004


def check_virtual(seed: int) -> None:
    """Plan and bound of a random problem with two virtual stages against brute force."""
    problem = random_interleaved_problem(seed, most_virtual=2, experts=seed % 3 == 0)
    wishes = {"forbid": (*problem.options.forbid, "vp=1"), "gap": 1e-3, "virtual_gap": 1e-3}
    problem = problem.model_copy(update={"options": problem.options.model_copy(update=wishes)})
    best_s, result = brute_force_virtual(problem, 2).step_s, driver.search(problem)
    assert result.bound_s is not None and result.evaluation is not None
    assert result.bound_s <= best_s * (1 + REL)
    assert result.evaluation.step_s * (1 - 1e-3) <= best_s * (1 + REL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "level"),
    [(569, 2e-3), (600, 5e-4), (606, 2e-3), (637, 1e-2), (647, 1e-2), (664, 4e-3)],  # some dozen steps each
)
def test_whole_numbers_at_rising_cutoffs_never_bound_above_the_best(
    seed: int, level: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step, as with many classes: what is below a step that holds no plan is given up for good."""
    monkeypatch.setattr(virtual_items, "FEW_CLASSES", 1)
    monkeypatch.setattr(virtual, "HALVINGS", 0)
    for limit in ("MOST_PIECES_OF_MANY", "MOST_PIECES_OF_STEP"):  # whole layers along the pipeline come first
        monkeypatch.setattr(virtual_relaxer, limit, 0)
    monkeypatch.setattr(virtual_relaxer, "LEVEL", level)
    found: list[bool] = []
    relaxed = VirtualOpener._relaxed

    def counted(self: VirtualOpener, part: VirtualPart, cutoff_s: float, **how: Any) -> VirtualClassesResult:
        result = relaxed(self, part, cutoff_s, **how)
        if how["integral"] and part.rises and cutoff_s < self.cutoff_s * (1 - 1e-12):
            found.append(result.bound_ms * MS >= cutoff_s)
        return result

    monkeypatch.setattr(VirtualOpener, "_relaxed", counted)
    check_virtual(seed)
    assert sum(found) >= 10, "few steps held no plan: the seed says nothing"


@pytest.mark.slow
@pytest.mark.parametrize("most_rise", [-1.0, 10.0])
@pytest.mark.parametrize("seed", [564, 573])
def test_classes_taken_together_never_bound_above_the_best(
    seed: int, most_rise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where they differ much; and with the switch off no classes are."""
    monkeypatch.setattr(virtual_items, "FEW_CLASSES", 1)
    monkeypatch.setattr(virtual, "HALVINGS", 0)
    monkeypatch.setattr(virtual_relaxer, "MOST_PIECES_OF_MANY", 0)
    monkeypatch.setattr(virtual_relaxer, "MOST_RISE", most_rise)
    found: list[bool] = []
    relaxed = VirtualOpener._relaxed

    def counted(self: VirtualOpener, part: VirtualPart, cutoff_s: float, **how: Any) -> VirtualClassesResult:
        result = relaxed(self, part, cutoff_s, **how)
        found.extend([result.bound_ms * MS >= cutoff_s] if how.get("groups") else [])
        return result

    monkeypatch.setattr(VirtualOpener, "_relaxed", counted)
    check_virtual(seed)
    assert any(found) == (most_rise > 0), "no part was closed: the seed says nothing"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [569, 664])
def test_whole_layers_along_the_pipeline_never_bound_above_the_best(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the cutoff and below: what a limit leaves no way for is given up for good."""
    found: list[bool] = []
    may_deal = VirtualOpener._may_deal

    def counted(self: VirtualOpener, part: VirtualPart, cutoff_s: float, most_pieces: int) -> bool:
        found.append(may_deal(self, part, cutoff_s, most_pieces))
        return found[-1]

    monkeypatch.setattr(VirtualOpener, "_may_deal", counted)
    check_virtual(seed)
    assert not all(found), "no limit was found out: the seed says nothing"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [569, 664])
def test_whole_layers_at_rising_cutoffs_never_bound_above_the_best(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step, as with many classes, where no first look at the cutoff has closed the part."""
    monkeypatch.setattr(virtual_items, "FEW_CLASSES", 1)
    monkeypatch.setattr(virtual, "HALVINGS", 0)
    monkeypatch.setattr(virtual_relaxer, "MOST_PIECES_OF_MANY", 0)
    monkeypatch.setattr(virtual_relaxer, "LEVEL", 5e-4)
    found: list[bool] = []
    dealt_s = VirtualOpener._dealt_s

    def counted(self: VirtualOpener, bound_s: float, part: VirtualPart) -> float:
        risen_s = dealt_s(self, bound_s, part)
        found.append(risen_s > bound_s)
        return risen_s

    monkeypatch.setattr(VirtualOpener, "_dealt_s", counted)
    check_virtual(seed)
    assert any(found), "no step was closed: the seed says nothing"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nemotron-4-340b-two-sites-768", "opt-350m-a100-v100-512"])
def test_slow_links_and_sends_that_block_leave_no_gap_to_virtual_stages(name: str) -> None:
    """Once 34% and 6.5%: no bound knew that slow sends delay every round, or that they block."""
    problem = load_problem(name)
    options = problem.options.model_copy(update={"max_virtual_stages": 12, "gap": 0.01})
    result = driver.search(problem.model_copy(update={"options": options}))
    assert result.termination == "optimal"
    assert result.gap is not None and result.gap <= 0.02 + 1e-9


def test_a_program_that_its_nodes_have_stopped_goes_on_with_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that more nodes raise were kept with most of the time left; at last they are."""
    limits = list[int | None]()

    def stopped(data: VirtualSelectionData, options: SolveOptions, **_: Any) -> VirtualSelectionResult:
        limits.append(options.node_limit)
        return VirtualSelectionResult("feasible", None, 1000.0 + len(limits), ())

    monkeypatch.setattr(virtual_selection, "solve", stopped)
    search = driver.Search(load_problem("llama3-8b-h100-8"), None)
    search.list_parts()
    assert isinstance(search.opener, Opener)
    opener = VirtualSearch(search.bounds, search.clock, search.opener)
    pair, queue = opener.waiting[0][1], search.frontier.queue
    opener.open(0.5, VirtualProgram(pair.choice, 2, (0,) * pair.stages, (), ()))
    while (again := queue.pop_of(3)) is not None:
        opener.open(*again)
    assert limits == [1000, 4000, 16000, 64000]
    assert search.frontier.virtual_floor_s == pytest.approx(1.004)
