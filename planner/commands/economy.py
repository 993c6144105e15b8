"""`hetplan plan --objective` and `--reach-step-s`: which nodes to use, rather than all of them."""

from __future__ import annotations

import math

from planner.commands import clock, screen
from planner.commands.interrupts import announcing, noticing_ctrl_c
from planner.commands.plan import PlanRequest, exit_code, result_json, write
from planner.commands.screen import ExitCode
from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.explain.economy import cheapest
from planner.explain.node_counts import Objective

OBJECTIVES: dict[str, Objective] = {"cost": "cost", "energy": "energy"}
"""What can be least instead of the step time."""


def run(request: PlanRequest, problem: Problem) -> ExitCode:
    """Print the cheapest plan and its nodes, write its launch directory."""
    objective = request.objective or "cost"
    if objective not in OBJECTIVES:
        raise InstanceError(
            f"{objective!r} is no objective; there are {', '.join(OBJECTIVES)}", "--objective"
        )
    if request.reach_step_s is not None and not 0 < request.reach_step_s < math.inf:
        raise InstanceError(f"must be a number above 0, got {request.reach_step_s:g}", "--reach-step-s")
    if request.robust is not None or request.compare_split or request.baseline is not None:
        asked = "--objective" if request.objective is not None else "--reach-step-s"
        raise InstanceError("goes with none of --robust, --compare-split and --baseline", asked)

    with noticing_ctrl_c() as interrupts:
        result, economy = cheapest(
            problem,
            OBJECTIVES[objective],
            reach_s=request.reach_step_s,
            spent_s=clock.since_process_start_s(),
            on_search=announcing(interrupts, "planning on", quiet=request.quiet),
        )
    if request.as_json:
        found = {"schema": "hetplan/result/v1", "plan": None} if result is None else result_json(result)
        screen.show_json({**found, "economy": economy.model_dump(mode="json")})
    else:
        from planner.report.explanation import economy_report
        from planner.report.tables import plan_report

        if result is not None:
            screen.show(plan_report(problem, result, width=screen.console().width), "")
        screen.show(economy_report(economy))
    if request.out is not None and result is not None and result.plan is not None:
        write(request, problem, result)
    if economy.interrupted:
        screen.note("cut before the wanted gap; this is the best so far")
    if interrupts:
        return ExitCode.INTERRUPTED
    if result is None:
        return ExitCode.INFEASIBLE if economy.bound is None else ExitCode.NOT_FOUND
    return exit_code(result)
