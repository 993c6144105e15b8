"""Pipelines side by side where a launcher's limits cost most: no pipeline may span two classes."""

from __future__ import annotations

import io
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from planner import api
from planner.data.load import build_problem, load_problem
from planner.data.options import Options
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.data.result import Evaluation, Result
from planner.report.targets import targets_report
from planner.search.beside import Beside
from planner.search.driver import Search
from planner.search.meshes.driver import MeshSearch
from planner.search.replicas import launchers_beside, rooms_beside
from planner.search.replicas.choosing import Chosen, _mix_classes
from planner.search.replicas.driver import ReplicaSearch
from planner.search.replicas.launchers_beside import megatron_beside
from planner.search.replicas.mixing import Mixing, close_before
from planner.search.replicas.rooms_beside import RoomsBeside
from planner.search.replicas.space import replica_degrees
from planner.search.replicas.templates import list_candidates, uniform_chains
from planner.search.replicas.whole_rooms import WholeRooms
from planner.search.replicas.work import work_bound_s
from planner.simulate.evaluate import evaluate
from planner.units import MS
from tests.random_problems import random_problem


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Eight fast chips and eight slow ones, a model that fits one stage."""
    return build_problem(
        cluster="1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=192,
    )


@pytest.fixture(scope="module")
def results(problem: Problem) -> dict[str, Result]:
    return dict(
        api.plan_all(
            problem, Options(gap=0.05, max_pipeline_parallel=1, time_limit_s=30, pin={"sp": 1, "mbs": 1})
        )
    )


def test_both_classes_work_side_by_side_with_shares_by_their_speed(
    problem: Problem, results: dict[str, Result]
) -> None:
    narrow, wide = results["flagscale"], results["unrestricted"]
    assert narrow.evaluation is not None and wide.evaluation is not None and wide.plan is not None
    assert narrow.plan is not None and len(narrow.plan.stages) == 1
    # One stage lies on one class under every launcher; side by side the slow class adds its share.
    assert wide.evaluation.step_s < 0.9 * narrow.evaluation.step_s
    assert wide.plan.pipelines is not None
    sequences = [p.data_parallel * p.microbatch_size * p.num_microbatches for p in wide.plan.pipeline_plans]
    assert sum(sequences) == 192
    by_class = {
        part.stages[0].node_class: count
        for part, count in zip(wide.plan.pipeline_plans, sequences, strict=True)
    }
    assert by_class["h100-sxm-80gb"] > by_class["a100-sxm-80gb"] > 0


def without_room() -> Problem:
    """A small problem whose chips have too little memory for any plan."""
    problem = random_problem(3000004, most_layers=3, gap=0.5)
    model = problem.model.model_copy(update={"activation": "gelu"})
    options = problem.options.model_copy(update={"pin": {"mbs": 1}, "max_pipeline_parallel": 2})
    return problem.model_copy(update={"model": model, "options": options})


def test_every_launcher_says_why_there_is_no_plan() -> None:
    """The last one took batches of shapes for rows of degrees, and broke off or gave another's reason."""
    infeasible = without_room()
    found = api.plan_all(infeasible)
    assert len(found) == 4 and {result.termination for result in found.values()} == {"infeasible"}
    (reason,) = {result.reason for result in found.values()}
    assert reason is not None and "GiB short on each chip" in reason
    printed = io.StringIO()
    Console(file=printed, width=200).print(targets_report(found))
    assert printed.getvalue().startswith("no plan for any launcher: random does not fit")
    assert printed.getvalue().count("closest layout") == 1


def test_plans_at_hand_that_do_not_fit_leave_a_reason() -> None:
    """With plans to begin with the search for equal degrees was left out, and with it the reason."""
    infeasible = without_room().model_copy(update={"target": "flagscale"})
    roomy = [c.model_copy(update={"memory_gib": 80.0}) for c in infeasible.cluster.classes]
    cluster = infeasible.cluster.model_copy(update={"classes": tuple(roomy)})
    large = api.plan(infeasible.model_copy(update={"cluster": cluster}))
    assert large.plan is not None
    assert api.plan(infeasible, seeds=[large.plan]).reason == api.plan(infeasible).reason


def test_no_launcher_beats_a_wider_one(results: dict[str, Result]) -> None:
    steps = [r.evaluation.step_s for r in results.values() if r.evaluation is not None]
    assert len(steps) == 4
    assert steps == sorted(steps, reverse=True)


def test_a_plan_beyond_what_flagscale_may_use_is_begun_with(problem: Problem) -> None:
    """Stage-by-stage plans have no context parallelism; Megatron-LM's have, and are legal here."""
    options = Options(gap=0.5, max_pipeline_parallel=1, pin={"cp": 2, "mbs": 1}, least_context_tokens=1024)
    plan = api.plan(problem, options).plan
    assert plan is not None and plan.context_parallel == 2
    wide = {"target": "unrestricted", "options": Options(least_context_tokens=1024)}
    search = ReplicaSearch(problem.model_copy(update=wide), None, [plan])
    assert search.seeds == [plan]
    search.offer_seeds()
    assert search.incumbent.ranked()[0].plan.context_parallel == 2


@pytest.mark.parametrize("wish", [{"pin": {"cp": 2, "mbs": 1}}, {"pin": {"mbs": 1}, "forbid": ("cp=1",)}])
def test_what_only_megatron_lm_keeps_is_found_there(problem: Problem, wish: dict[str, Any]) -> None:
    """No degrees without context parallelism were left, and no plan was said to exist."""
    options = Options(gap=0.5, max_pipeline_parallel=1, least_context_tokens=1024, **wish)
    found = api.plan(problem.model_copy(update={"target": "unrestricted"}), options)
    assert found.plan is not None and found.plan.context_parallel >= 2
    narrow = api.plan(problem, options)
    assert found.bound_s is not None and narrow.evaluation is not None
    assert found.bound_s <= narrow.evaluation.step_s * (1 + 1e-9)


def test_nothing_is_begun_once_the_time_is_up(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    options = problem.options.model_copy(update={"time_limit_s": 1e-9})
    search = ReplicaSearch(problem.model_copy(update={"target": "unrestricted", "options": options}), None)
    begun: list[str] = []
    monkeypatch.setattr("planner.search.replicas.driver.MeshSearch", lambda *_: begun.append("flagscale"))
    monkeypatch.setattr(ReplicaSearch, "make_opener", lambda search: begun.append("mixes"))
    result = search.run()
    assert begun == []
    assert result.bound_s is None or result.bound_s >= search.work_s


def test_work_alone_bounds_every_plan(problem: Problem, results: dict[str, Result]) -> None:
    bound = work_bound_s(problem)
    assert bound is not None
    for result in results.values():
        assert result.plan is not None
        assert bound <= evaluate(problem, result.plan).step_s
    wide = results["unrestricted"]
    assert wide.bound_s is not None and wide.bound_s >= bound * (1 - 1e-12)


def test_no_pipelines_are_listed_once_the_time_is_up(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = ReplicaSearch(problem.model_copy(update={"target": "unrestricted"}), None)
    search.table = replica_degrees(search.problem)
    opener = search.make_opener()
    shared = opener.batches[0].shared
    chains = uniform_chains(opener, shared)
    assert list_candidates(opener, chains, shared)
    monkeypatch.setattr(opener.clock, "limit_s", 0.0)

    def never(*args: object) -> None:
        raise AssertionError("a pipeline was looked at after the time was up")

    monkeypatch.setattr(opener.meshes, "data", never)
    assert list_candidates(opener, chains, shared) == []


def test_the_bound_holds_for_all_parts_of_the_space(problem: Problem, results: dict[str, Result]) -> None:
    """The least bound of the parts is more than work alone, and no more than the plan found."""
    wide, work_s = results["unrestricted"], work_bound_s(problem)
    assert wide.evaluation is not None and wide.bound_s is not None and wide.gap is not None
    assert work_s is not None and work_s < wide.bound_s <= wide.evaluation.step_s


def test_where_no_chain_holds_the_model_there_is_no_mix_and_the_search_ends() -> None:
    asked = build_problem(
        cluster="1x2 v100-sxm-32gb",
        model="llama3-70b",
        seq_length=4096,
        global_batch_size=4,
        precision="fp16",
        target="unrestricted",
    )
    search = ReplicaSearch(asked, None)
    result = search.run()
    assert result.termination == "infeasible" and result.plan is None
    assert search.opener is not None and search.opener.programs == 0


def test_a_search_without_any_plan_ends_though_chips_in_fractions_would_do() -> None:
    """It asked which time rooms and prices close where no plan tells one: it broke off, or never ended."""
    problem = build_problem(
        cluster="1x4 gb200-186gb",
        model="aquila2-34b",
        seq_length=4096,
        global_batch_size=32,
        target="unrestricted",
        options=Options(forbid=("recompute=full", "stages=empty"), gap=0.1, max_virtual_stages=1),
    )
    classes = tuple(c.model_copy(update={"memory_gib": 16.0}) for c in problem.cluster.classes)
    changed = {
        "cluster": problem.cluster.model_copy(update={"classes": classes}),
        "model": problem.model.model_copy(update={"num_layers": 3}),
    }
    result = api.plan(problem.model_copy(update=changed))
    assert result.plan is None and result.termination == "no_solution_found"


@pytest.mark.slow
def test_mixes_and_rooms_beside_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another process, without, and with one that dies."""
    problem = load_problem("llama3-8b-h100-a100-16").model_copy(update={"target": "unrestricted"})
    monkeypatch.setattr(rooms_beside, "LEAST_ROOMS", 1)
    monkeypatch.setattr("planner.search.beside.threading.active_count", lambda: 1)  # one a test runner has
    taken: list[bool] = []
    take = RoomsBeside.take

    def watched(rooms: RoomsBeside[Chosen], most_s: float, is_up: Callable[[], bool]) -> None:
        take(rooms, most_s, is_up)
        taken.append(min(part.bound_ms for part in rooms.mixes.that_share()) > 0)

    monkeypatch.setattr(RoomsBeside, "take", watched)
    answers = []
    for workers in (1, 2):
        options = problem.options.model_copy(update={"workers": workers, "max_virtual_stages": 1})
        answers.append(api.plan(problem, options).model_dump(exclude={"seconds"}))
    assert len(taken) == 1
    monkeypatch.setattr(RoomsBeside, "_answer", lambda *_: os._exit(1))
    answers.append(api.plan(problem, options).model_dump(exclude={"seconds"}))
    assert len(taken) == 2
    assert answers[0] == answers[1] == answers[2]


def tiny_of_two(batch: int, *, is_slow_apart: bool = True) -> Problem:
    """Three fast chips and a slow one, perhaps behind a slow link, two layers, one stage a pipeline."""
    small = build_problem(
        cluster="1x3 h100-sxm-80gb, 1x1 a100-sxm-80gb",
        model="sailor-opt-350m",
        seq_length=1024,
        global_batch_size=batch,
        target="unrestricted",
    )
    fast, slow = small.cluster.classes
    if is_slow_apart:
        slow = slow.model_copy(update={"nics_per_node": 1, "nic_gbit_per_s": 1.0})
    changes = {
        "cluster": small.cluster.model_copy(update={"classes": (fast, slow)}),
        "model": small.model.model_copy(update={"num_layers": 2}),
        "options": Options(pin={"tp": 1, "mbs": 1}, max_pipeline_parallel=1),
    }
    return small.model_copy(update=changes)


@pytest.mark.slow
@pytest.mark.parametrize("mixes_help", [True, False])
def test_flagscale_beside_mixes_changes_no_answer(
    monkeypatch: pytest.MonkeyPatch, *, mixes_help: bool
) -> None:
    """In another process and in none, in one that dies, and where mixes bring a better plan meanwhile."""
    problem = tiny_of_two(7 if mixes_help else 6, is_slow_apart=not mixes_help)
    monkeypatch.setattr("planner.search.replicas.whole_rooms.MOST_ROOMS", 0)  # chips are many
    monkeypatch.setattr("planner.search.beside.threading.active_count", lambda: 1)  # one a test runner has
    begun = launchers_beside.flagscale_beside
    take = ReplicaSearch._taken
    taken: list[bool | None] = []

    def watched(search: ReplicaSearch, target: TargetName, beside: Beside[Result]) -> bool | None:
        taken.append(take(search, target, beside))
        return taken[-1]

    def dies(search: ReplicaSearch, mixing: Mixing) -> Beside[Result] | None:
        monkeypatch.setattr(MeshSearch, "run", lambda _: os._exit(1))
        beside = begun(search, mixing)
        monkeypatch.setattr(MeshSearch, "run", run)
        return beside

    run = MeshSearch.run
    monkeypatch.setattr(ReplicaSearch, "_taken", watched)
    answers = []
    for workers, begin in ((1, begun), (2, begun), (2, dies)):
        monkeypatch.setattr("planner.search.replicas.driver.flagscale_beside", begin)
        options = problem.options.model_copy(update={"workers": workers})
        answers.append(api.plan(problem, options).model_dump(exclude={"seconds"}))
    assert answers[0] == answers[1] == answers[2]
    assert taken == ([] if mixes_help else [False, None]) and not multiprocessing.active_children()


@pytest.mark.slow
def test_the_search_for_a_launcher_says_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """On many chips nothing was said for minutes; and rooms are asked anew for what a better plan leaves."""
    monkeypatch.setattr(rooms_beside, "LEAST_ROOMS", 1)
    monkeypatch.setattr("planner.search.beside.threading.active_count", lambda: 1)  # one a test runner has
    asked: list[float] = []
    monkeypatch.setattr(RoomsBeside, "ask", lambda _, most_s: asked.append(most_s))
    monkeypatch.setattr("planner.search.progress.PROGRESS_EVERY_S", 0.0)
    problem = load_problem("llama3-8b-h100-a100-16").model_copy(update={"target": "unrestricted"})
    options = problem.options.model_copy(update={"workers": 2, "max_virtual_stages": 1})
    told: list[str] = []
    result = api.plan(problem, options, on_progress=lambda progress: told.append(progress.phase))
    assert any(phase.startswith("plans of flagscale: ") for phase in told)
    assert result.bound_s is not None and asked[-1] == pytest.approx(result.bound_s, rel=1e-6)


def test_prices_close_mixes_of_one_class_without_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class leaves prices no choice; rooms were asked first, and left 39% open on 1,024 chips."""
    problem = build_problem(
        cluster="1x4 h100-sxm-80gb",
        model="sailor-opt-350m",
        seq_length=1024,
        global_batch_size=16,
        target="unrestricted",
    )
    asked: list[float] = []
    monkeypatch.setattr(WholeRooms, "excludes", lambda _, deadline_ms: bool(asked.append(deadline_ms)))
    result = api.plan(problem, Options(max_virtual_stages=1))
    assert result.termination == "optimal" and result.gap is not None and result.gap <= 0.0101
    assert not asked


def test_what_a_limit_cut_of_megatron_lm_goes_on_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its search had 40% of the time alone, and a plan 2% worse than that of Megatron-LM by itself."""
    monkeypatch.setattr("planner.search.beside.threading.active_count", lambda: 1)  # one a test runner has
    tiny = tiny_of_two(6)
    narrow = tiny.model_copy(update={"target": "megatron-lm"})
    cut = Search(narrow, None)
    found = cut.run()
    assert found.evaluation is not None and found.bound_s is not None
    for workers in (1, 2):
        options = tiny.options.model_copy(update={"workers": workers, "time_limit_s": 60.0})
        search = ReplicaSearch(tiny.model_copy(update={"options": options}), None)
        assert megatron_beside(search) is None  # nothing was cut
        search.cut_search = cut
        beside = megatron_beside(search)
        assert (beside is None) == (workers == 1)
        if beside is not None:
            assert search._taken("megatron-lm", beside) is False
            beside.end()
            assert search.incumbent.step_s == found.evaluation.step_s
            assert search.proven_s["megatron-lm"] == pytest.approx(found.bound_s)


def test_rooms_that_do_not_close_a_time_close_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They left nothing but what the chips compute: 57% open of a model with experts after 15 s."""
    search = ReplicaSearch(tiny_of_two(7), None)
    search.table = replica_degrees(search.problem)
    mixes = Mixing(search, 0.0).mixes
    assert mixes is not None and mixes.begin_with_rooms
    asked: list[float] = []

    def excludes(_: WholeRooms, deadline_ms: float) -> bool:
        asked.append((deadline_ms + mixes.exchange_ms) * MS)
        return asked[-1] < 0.85

    monkeypatch.setattr(WholeRooms, "excludes", excludes)
    assert not mixes.close_by_rooms(1.0) and close_before(mixes, 1.0) == pytest.approx(0.8)
    assert sorted(set(np.round(asked, 9))) == [0.6, 0.8, 0.9, 1.0]


def test_mixes_are_bounded_no_further_than_what_others_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit left one of 22 choices no time, as another one was bounded beyond a cut search of FlagScale."""
    search = ReplicaSearch(tiny_of_two(7), None)
    search.table = replica_degrees(search.problem)
    mixing, asked = Mixing(search, 0.0), list[float]()
    assert mixing.mixes is not None
    monkeypatch.setattr(type(search.frontier), "cutoff_s", 1.0)
    monkeypatch.setattr(type(mixing.mixes), "begin_with_rooms", False)
    monkeypatch.setattr(mixing.mixes, "improve_further", lambda most_s: asked.append(most_s) or most_s)
    mixing.improve(0.5, 0.7)
    assert mixing.bound_s == pytest.approx(0.7)
    # Nothing is left to tell; once the others go beyond it there is.
    mixing.improve(0.6, 0.7)
    mixing.improve(2.0, 3.0)
    assert asked == pytest.approx([0.7, 1.0])


def test_a_class_behind_a_slow_link_is_left_out_of_mixes() -> None:
    """Choices leave out what pipelines exchange, and took a chip along whose link made them useless."""
    small = tiny_of_two(7)
    fast, _ = small.cluster.classes
    search = ReplicaSearch(small, None)
    search.table = replica_degrees(search.problem)
    opener = search.make_opener()
    (shared,) = dict.fromkeys(batch.shared for batch in opener.batches)
    judged: list[tuple[Plan, Evaluation]] = []
    assert _mix_classes(
        search, opener, list_candidates(opener, uniform_chains(opener, shared), shared), judged
    )
    best, _ = min(judged, key=lambda one: one[1].step_s)
    assert {stage.node_class for stage in best.stages} == {fast.name}
    assert sum(stage.data_parallel for stage in best.stages) == 3
