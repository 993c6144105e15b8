"""Arguments of `hetplan plan` and `hetplan explain`, which take the same problems and wishes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.commands import flags


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(plan)
    app.command()(explain)


def plan(
    problem: flags.ProblemName = None,
    cluster: flags.Cluster = None,
    model: flags.Model = None,
    seq_length: flags.SeqLength = None,
    global_batch_size: flags.GlobalBatchSize = None,
    precision: flags.Precision = None,
    stack: flags.Stack = None,
    target: flags.Target = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option(help="Stop after this time, counted from process start [s]."),
    ] = None,
    gap: flags.Gap = None,
    top: Annotated[int | None, typer.Option(help="How many plans to show. [default: 3]")] = None,
    workers: flags.Workers = None,
    solver: flags.Solver = None,
    memory_reserve: flags.MemoryReserve = None,
    pin: flags.Pin = None,
    forbid: flags.Forbid = None,
    spare: flags.Spare = None,
    use: flags.Use = None,
    max_pp: flags.MaxPp = None,
    max_vp: flags.MaxVp = None,
    keep_class_order: flags.KeepClassOrder = False,
    objective: Annotated[
        str | None,
        typer.Option(help="cost or energy: the nodes on which a token costs least, not the fastest plan."),
    ] = None,
    reach_step_s: Annotated[
        float | None, typer.Option(help="The cheapest nodes that reach this step time [s].")
    ] = None,
    robust: Annotated[
        int | None,
        typer.Option(help="Choose the plan with the least worst case over so many draws of the numbers."),
    ] = None,
    compare_split: Annotated[
        bool, typer.Option("--compare-split", help="Compare with one job on each class of chips.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the launch directory here.")] = None,
    force: flags.Force = False,
    as_json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> int:
    """Find the fastest plan that fits, prove how far from the best it can be, write its launch files."""
    given = dict(locals())
    from planner.commands.plan import PlanRequest, run

    return run(PlanRequest(**given | {"keep_class_order": keep_class_order or None}))


def explain(
    problem: flags.ProblemName = None,
    plan: Annotated[Path | None, typer.Option(help="Plan file to explain; else the best is sought.")] = None,
    cluster: flags.Cluster = None,
    model: flags.Model = None,
    seq_length: flags.SeqLength = None,
    global_batch_size: flags.GlobalBatchSize = None,
    precision: flags.Precision = None,
    stack: flags.Stack = None,
    target: flags.Target = None,
    gap: flags.Gap = None,
    workers: flags.Workers = None,
    solver: flags.Solver = None,
    memory_reserve: flags.MemoryReserve = None,
    pin: flags.Pin = None,
    forbid: flags.Forbid = None,
    spare: flags.Spare = None,
    use: flags.Use = None,
    max_pp: flags.MaxPp = None,
    max_vp: flags.MaxVp = None,
    keep_class_order: flags.KeepClassOrder = False,
    question_s: Annotated[float, typer.Option(help="Time limit of each question [s].")] = 20.0,
    as_json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> int:
    """Say what binds a plan and what more of anything would bring, or what it takes to have a plan."""
    given = dict(locals())
    from planner.commands.explain import run
    from planner.commands.plan import PlanRequest

    del given["plan"], given["question_s"]
    return run(PlanRequest(**given | {"keep_class_order": keep_class_order or None}), plan, question_s)
