"""`hetplan explain`: what binds a plan, what more would bring, or what it takes to have one."""

from __future__ import annotations

from pathlib import Path

from planner.commands import clock, screen
from planner.commands.interrupts import announcing, noticing_ctrl_c
from planner.commands.plan import PlanRequest, load
from planner.commands.predict import problem_of
from planner.commands.screen import ExitCode
from planner.data import load as files
from planner.errors import InstanceError


def run(
    request: PlanRequest, plan_path: Path | None, question_s: float, workers: int | None = None
) -> ExitCode:
    """Explain the plan of a problem, or a given one; exit code 3 where there is none."""
    from planner.explain.explain import explain

    plan = None if plan_path is None else files.load_plan(plan_path)
    if plan is not None and request.problem is None and request.cluster is None:
        problem = load(request, problem_of(None, plan, str(plan_path)))
    else:
        problem = load(request)
    if question_s <= 0:
        raise InstanceError("must be above 0", "--question-s")
    if workers is not None and workers < 1:
        raise InstanceError(f"must be at least 1, got {workers}", "--workers")

    with noticing_ctrl_c() as interrupts:
        found = explain(
            problem,
            plan,
            question_s=question_s,
            workers=workers,
            spent_s=clock.since_process_start_s(),
            on_question=announcing(interrupts, "asking:", quiet=request.quiet),
        )
    if request.as_json:
        screen.show_json({"schema": "hetplan/explanation/v1", **found.model_dump(mode="json")})
    else:
        from planner.report.explanation import explanation_report

        screen.show(explanation_report(found))
    if interrupts:
        screen.note("interrupted; the questions left are not answered")
        return ExitCode.INTERRUPTED
    if found.interrupted and not request.quiet:
        screen.note("the time is up; the questions left are not answered")
    if found.step_s is not None:
        return ExitCode.PLAN
    return ExitCode.INFEASIBLE if found.infeasible else ExitCode.NOT_FOUND
