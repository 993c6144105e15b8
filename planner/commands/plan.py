"""`hetplan plan`: from flags to a printed plan and a launch directory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner import api
from planner.commands import baseline, clock, screen
from planner.commands.inputs import (
    checked_options,
    known_classes,
    pins,
    problem_from_flags,
    with_wishes_for_classes,
)
from planner.commands.interrupts import announcing, noticing_ctrl_c
from planner.commands.progress import reporter
from planner.commands.screen import ExitCode
from planner.data.explanation import Robustness, SplitComparison
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Result
from planner.errors import InstanceError
from planner.launchers.directory import check_replaceable, check_writable, unstated
from planner.launchers.stated_software import told_of_software
from planner.rules.versions import newest_buildable


@dataclass(frozen=True)
class PlanRequest:
    """The flags of `hetplan plan` as they were given; None where absent."""

    problem: str | None = None
    cluster: str | None = None
    model: str | None = None
    seq_length: int | None = None
    global_batch_size: int | None = None
    precision: str | None = None
    expert_imbalance: float | None = None
    stack: str | None = None
    target: str | None = None
    time_limit_s: float | None = None
    gap: float | None = None
    top: int | None = None
    workers: int | None = None
    solver: str | None = None
    memory_reserve: float | None = None
    pin: list[str] | None = None
    forbid: list[str] | None = None
    spare: list[str] | None = None
    max_pp: int | None = None
    max_vp: int | None = None
    keep_class_order: bool | None = None
    out: Path | None = None
    use: list[str] | None = None
    compare_split: bool = False
    robust: int | None = None
    baseline: Path | None = None
    objective: str | None = None
    reach_step_s: float | None = None
    force: bool = False
    as_json: bool = False
    quiet: bool = False


def run(request: PlanRequest) -> ExitCode:
    """Plan, print, write; the exit code says how it ended."""
    if request.target == "all":
        return _run_all(request)
    if request.target is not None:
        api.check_target(request.target, "--target", others=("all",))
    problem = load(request)
    if request.out is not None:
        check_out_dir(request.out, force=request.force)
    say_version(problem)
    today = baseline.read(request.baseline, problem)
    if request.objective is not None or request.reach_step_s is not None:
        from planner.commands import economy

        return economy.run(request, problem)
    with noticing_ctrl_c() as interrupts:
        with reporter(quiet=request.quiet) as on_progress:
            elapsed_s = clock.since_process_start_s()
            asked = _leaving_time(request, problem)
            seeds = () if today is None else (today.plan,)
            result = api.plan(asked, on_progress=on_progress, elapsed_s=elapsed_s, seeds=seeds)
        robustness = split = None
        with suppress(KeyboardInterrupt):
            result, robustness = _robust(request, problem, result, interrupts)
            split = _compare_split(request, problem, result, interrupts)
    changed = baseline.against(today, problem, result)
    # A second Ctrl-C from here on ends the program in the ordinary way.
    if request.as_json:
        more = {"robustness": robustness, "split": split}
        extra = {name: found.model_dump(mode="json") for name, found in more.items() if found is not None}
        if changed is not None:
            extra["baseline"] = changed.as_json()
        screen.show_json({**result_json(result), **extra})
    else:
        from planner.report.explanation import robustness_report, split_report
        from planner.report.tables import plan_report

        screen.show(plan_report(problem, result, width=screen.console().width))
        if robustness is not None:
            screen.show("", robustness_report(robustness))
        if split is not None:
            screen.show("", split_report(split))
        if changed is not None:
            from planner.commands.compare import report

            screen.show("", report(changed))
    if result.termination == "infeasible" and not request.quiet:
        screen.note("`hetplan explain` with the same arguments finds the least changes that give a plan")
    if request.out is not None and result.plan is not None:
        write(request, problem, result)
    if interrupts:
        screen.note("interrupted; this is the best plan so far" if result.plan else "interrupted")
        return ExitCode.INTERRUPTED
    return exit_code(result)


def _run_all(request: PlanRequest) -> ExitCode:
    """The same for every launcher that plans are made for."""
    from planner.commands import targets

    for given, flag in (
        (request.out, "--out"),
        (request.robust, "--robust"),
        (request.compare_split or None, "--compare-split"),
        (request.baseline, "--baseline"),
        (request.objective, "--objective"),
        (request.reach_step_s, "--reach-step-s"),
    ):
        if given is not None:
            raise InstanceError("goes with one target, such as flagscale, not with all", flag)
    problem = load(replace(request, target=None))
    with noticing_ctrl_c() as interrupts, reporter(quiet=request.quiet) as on_progress:
        results = targets.solve(problem, on_progress)
    targets.show(problem, results, result_json, as_json=request.as_json)
    if interrupts:
        screen.note("interrupted; these are the best plans so far")
        return ExitCode.INTERRUPTED
    return targets.exit_code(results)


def _leaving_time(request: PlanRequest, problem: Problem) -> Problem:
    """The problem with half of its time limit where further searches follow."""
    limit_s = problem.options.time_limit_s
    if limit_s is None or (request.robust is None and not request.compare_split):
        return problem
    options = problem.options.model_copy(update={"time_limit_s": limit_s / 2})
    return problem.model_copy(update={"options": options})


def _robust(
    request: PlanRequest, problem: Problem, result: Result, interrupts: list[int]
) -> tuple[Result, Robustness | None]:
    """The answer with its most robust plan first, where that is asked for and there is a plan."""
    if request.robust is None or result.plan is None:
        return result, None
    from planner.explain.robust import most_robust

    return most_robust(
        problem,
        result,
        request.robust,
        spent_s=clock.since_process_start_s(),
        on_draw=announcing(interrupts, "planning draw", quiet=request.quiet),
    )


def _compare_split(
    request: PlanRequest, problem: Problem, result: Result, interrupts: list[int]
) -> SplitComparison | None:
    """The answer against one job a class, where it is asked for and there is a plan."""
    if not request.compare_split or result.plan is None:
        return None
    from planner.explain.split import compare_split

    return compare_split(
        problem,
        result,
        spent_s=clock.since_process_start_s(),
        on_class=announcing(interrupts, "planning alone", quiet=request.quiet),
    )


def load(request: PlanRequest, inside: Problem | None = None) -> Problem:
    """The problem that the flags describe, with its options; one at hand where they name none."""
    problem = problem_from_flags(
        request.problem,
        inside=inside,
        cluster=request.cluster,
        model=request.model,
        seq_length=request.seq_length,
        global_batch_size=request.global_batch_size,
        precision=request.precision,
        expert_imbalance=request.expert_imbalance,
        target=request.target,
        stack=request.stack,
    )
    wishes = {
        "time_limit_s": request.time_limit_s,
        "gap": request.gap,
        "top": request.top,
        "workers": request.workers,
        "solver": request.solver,
        "memory_reserve_fraction": request.memory_reserve,
        "pin": pins(request.pin or []) or None,
        "forbid": tuple(request.forbid) if request.forbid else None,
        "spare": known_classes(problem, request.spare or []) or None,
        "use": known_classes(problem, request.use or [], "--use") or None,
        "max_pipeline_parallel": request.max_pp,
        "max_virtual_stages": request.max_vp,
        "keep_class_order": request.keep_class_order,
    }
    options = checked_options(problem.options, wishes)
    return with_wishes_for_classes(problem.model_copy(update={"options": options}))


def exit_code(result: Result) -> ExitCode:
    """Exit code of a search that nobody interrupted."""
    if result.plan is not None:
        return ExitCode.PLAN
    return ExitCode.INFEASIBLE if result.termination == "infeasible" else ExitCode.NOT_FOUND


def result_json(result: Result) -> dict[str, Any]:
    """A result for programs; only the best plan carries the problem, the next-best would repeat it."""
    data = {"schema": "hetplan/result/v1", **result.model_dump(mode="json")}
    for other in data["runners_up"]:
        del other["plan"]["problem"]
    return data


def check_out_dir(out: Path, *, force: bool) -> None:
    """Refuse a directory that cannot be written, before the search spends any time.

    Raises
    ------
    InstanceError
        Where it may not be replaced, or lies where nothing can be made.
    """
    check_replaceable(out, force)
    check_writable(out)


def write(request: PlanRequest, problem: Problem, result: Result) -> None:
    """Write the launch directory and say what is in it."""
    assert request.out is not None
    api.export(result, problem.target, request.out, problem=problem, force=request.force)
    say_unstated(problem, problem.target)
    if result.plan is not None:
        say_crowded(result.plan)
    say_written(request.out, to_stderr=request.as_json, quiet=request.quiet and request.as_json)


def say_version(problem: Problem) -> None:
    """Say, before any search, which version of Megatron-LM files will need, if not the newest."""
    found = newest_buildable(problem) if problem.target == "megatron-lm" else None
    if found is not None:
        screen.note(f"{found[1]}; launch files are written for core {found[0]}")


def say_crowded(plan: Plan) -> None:
    """Say where making the process groups of FlagScale takes long."""
    if plan.target == "flagscale":
        from planner.launchers.crowded_groups import crowded_groups

        for note in crowded_groups(plan):
            screen.note(f"warning: {note}")


def say_unstated(problem: Problem, target: str, version: str | None = None) -> None:
    """Say what the launch files lack of the network: trained as they are, it would be another one."""
    for note in unstated(problem.model, target, version):
        screen.note(f"the launch files lack something of the model: {note}")
    for told in told_of_software(problem, target):
        screen.note(told)


def say_written(directory: Path, *, to_stderr: bool = False, quiet: bool = False) -> None:
    """Name the files of a launch directory and the one to start with."""
    if quiet:
        return
    files = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
    start = f"; start {directory / 'launch.sh'} on every node" if "launch.sh" in files else ""
    message = f"written to {directory}: {', '.join(files)}{start}"
    if to_stderr:
        screen.note(message)
    else:
        from rich.text import Text

        screen.show(Text("\n" + message[0].upper() + message[1:]))
