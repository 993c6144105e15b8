"""The four calls that a user needs: load a problem, plan it, predict a given plan, export one.

Holds the order of the work and the last check before a plan leaves; how each step is done is the
business of the packages below.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from planner.data import load
from planner.data.nearest import did_you_mean
from planner.data.options import Options
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.data.result import Evaluation, Result
from planner.errors import InstanceError, PlanRefusedError

if TYPE_CHECKING:
    from planner.search.floors import Floors
    from planner.search.progress import Progress

KNOWN_TARGETS: tuple[str, ...] = get_args(TargetName)
"""All launchers: plans are made and written for each."""


def load_problem(path_or_name: str | Path) -> Problem:
    """A problem from a YAML or JSON file, or a shipped one by its name.

    Raises
    ------
    InstanceError
        Where the file cannot be read, breaks the schema or contradicts itself.
    """
    return load.load_problem(path_or_name)


def check_target(target: str, where: str = "target", others: Sequence[str] = ()) -> None:
    """Refuse a target that is unknown; `others` are words that may stand in the place of one.

    Raises
    ------
    InstanceError
        With the nearest name.
    """
    if target not in KNOWN_TARGETS:
        known = (*KNOWN_TARGETS, *others)
        hint = did_you_mean(target, known) or f"; there are {', '.join(known)}"
        raise InstanceError(f"unknown target {target!r}{hint}", where)


def plan(
    problem: Problem | str | Path,
    options: Options | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    elapsed_s: float = 0.0,
    seeds: Sequence[Plan] = (),
    beyond_s: float | None = None,
    floors: Floors | None = None,
) -> Result:
    """The plan with the least predicted step time that fits every chip, with a proven gap.

    Parameters
    ----------
    problem
        A loaded problem, or what `load_problem` takes.
    options
        Limits and wishes; those of the problem where absent.
    on_progress
        Called now and then with the state of the search.
    elapsed_s
        Time already spent that counts against the time limit [s].
    seeds
        Plans at hand, such as those of a problem nearly the same. The search begins with those that are
        legal and as asked for, priced anew, so that it is shorter and its answer no worse; the proof owes
        nothing to them.
    beyond_s
        A step that the bound is asked to pass, where only that is of interest [s]: the search spares itself
        what can no longer raise the bound beyond it.
    floors
        Bounds that other searches have proven; takes those that this one proves (`planner.search.floors`).

    Returns
    -------
    Result
        With `plan` None and a `reason` where there is no plan or none was found in time.

    Raises
    ------
    InstanceError
        Where the target is unknown.
    SolverError
        Where the referee does not confirm the answer; the answer is then not given.
    """
    started_s = time.monotonic()
    if not isinstance(problem, Problem):
        problem = load_problem(problem)
    if options is not None:
        problem = problem.model_copy(update={"options": options})
    check_target(problem.target, f"{problem.name}: target")
    from planner.launchers.expressible import buildable, check_expressible
    from planner.leaving import check_again, with_problem_inside, with_remaining_time, with_room_for_experts
    from planner.search.targets import load_search, search_target

    check_expressible(problem)
    problem = buildable(problem)
    load_search(problem.target)

    elapsed_s += time.monotonic() - started_s
    result = search_target(
        with_remaining_time(problem, elapsed_s), on_progress, seeds, beyond_s=beyond_s, floors=floors
    )
    check_again(problem, result)
    return with_problem_inside(with_room_for_experts(result, problem), problem)


def plan_all(
    problem: Problem | str | Path,
    options: Options | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    elapsed_s: float = 0.0,
) -> dict[TargetName, Result]:
    """The best plan for each launcher that plans are made for, the target of the problem aside.

    A launcher that can run the plan of another never gets a worse one; one that cannot build the network says
    why. Parameters and errors as `plan`; a time limit holds for all of them together.
    """
    started_s = time.monotonic()
    if not isinstance(problem, Problem):
        problem = load_problem(problem)
    if options is not None:
        problem = problem.model_copy(update={"options": options})
    from planner.launchers.each_target import search_each
    from planner.leaving import check_again, with_problem_inside, with_remaining_time, with_room_for_experts
    from planner.search.targets import PLANNED_TARGETS, load_search

    for target in PLANNED_TARGETS:
        load_search(target)
    elapsed_s += time.monotonic() - started_s
    answers = {}
    for target, result in search_each(with_remaining_time(problem, elapsed_s), on_progress).items():
        asked = problem.model_copy(update={"target": target})
        check_again(asked, result)
        answers[target] = with_problem_inside(with_room_for_experts(result, asked), asked)
    return answers


def predict(problem: Problem | str | Path, plan: Plan | str | Path) -> Evaluation:
    """Time, memory and violations of a given plan, as the referee sees it.

    Parameters
    ----------
    problem
        A loaded problem, or what `load_problem` takes.
    plan
        A plan, or the file of one.

    Raises
    ------
    InstanceError
        Where a file is wrong, or the plan names what the problem does not have.
    """
    from planner.simulate.evaluate import evaluate

    if not isinstance(problem, Problem):
        problem = load_problem(problem)
    if not isinstance(plan, Plan):
        plan = load.load_plan(plan)
    return evaluate(problem, plan)


def export(
    result_or_plan: Result | Plan,
    target: str,
    out_dir: str | Path,
    *,
    problem: Problem | None = None,
    version: str | None = None,
    force: bool = False,
) -> Path:
    """Write the launch directory of a plan; nothing is written where the plan breaks a rule.

    Parameters
    ----------
    result_or_plan
        What `plan` returned, or a plan.
    target
        Launcher to write for.
    out_dir
        Directory to make; refused where it exists, unless `force`.
    problem
        The problem that the plan answers; the one inside the plan where absent.
    version
        Version of Megatron core, such as "0.17", with target megatron-lm; the newest that accepts the plan
        where absent.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    InstanceError
        Where the target is unknown or no problem is at hand.
    PlanRefusedError
        Where there is no plan, or the referee finds violations in it.
    """
    from planner.launchers.directory import export_plan

    problem, chosen, evaluation, version = _ready_for_export(result_or_plan, target, problem, version)
    return export_plan(
        problem, chosen, chosen.target, out_dir, evaluation=evaluation, version=version, force=force
    )


def export_texts(
    result_or_plan: Result | Plan,
    target: str,
    *,
    problem: Problem | None = None,
    version: str | None = None,
) -> dict[str, str]:
    """The files that `export` would write, text by path; nothing is written.

    Raises
    ------
    InstanceError, PlanRefusedError
        As `export`.
    """
    from planner.launchers.directory import files_of

    problem, chosen, evaluation, version = _ready_for_export(result_or_plan, target, problem, version)
    return files_of(problem, chosen, chosen.target, evaluation=evaluation, version=version)


def _ready_for_export(
    result_or_plan: Result | Plan, target: str, problem: Problem | None, version: str | None
) -> tuple[Problem, Plan, Evaluation | None, str | None]:
    """Problem and plan for a target, what the referee says of it, and the version of core to write for."""
    from planner.launchers.ready import core_version, problem_inside, ready_for_export
    from planner.leaving import portable
    from planner.report.words import differences

    check_target(target)
    chosen = result_or_plan.plan if isinstance(result_or_plan, Result) else result_or_plan
    if chosen is None:
        raise PlanRefusedError("there is no plan to export: the search found none")
    problem = problem if problem is not None else problem_inside(chosen)
    plan = chosen.model_copy(update={"target": target})
    evaluation = ready_for_export(problem, chosen, plan.target, version, in_words=differences)
    if plan.target == "megatron-lm":
        version = core_version(problem, plan, version)
    return portable(problem), plan, evaluation, version
