"""Arguments of `hetplan plan` and `hetplan explain`, which take the same problems and wishes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.commands import flags


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Find the fastest plan, prove it, write its launch files.")(plan)
    app.command(short_help="Say what binds a plan, and what more would bring.")(explain)


def _asked(
    problem: flags.ProblemName = None,
    cluster: flags.Cluster = None,
    model: flags.Model = None,
    seq_length: flags.SeqLength = None,
    global_batch_size: flags.GlobalBatchSize = None,
    precision: flags.Precision = None,
    expert_imbalance: flags.ExpertImbalance = None,
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
    as_json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """What is planned, how, and how the answer is shown: the flags of every command that searches."""


def _asking(command: Callable[..., int]) -> Callable[..., int]:
    """A command with the flags of `_asked` before its own; it takes the former together, as `**given`.

    A flag of its own stands in the place of a shared one of its name.
    """
    own = inspect.signature(command, eval_str=True).parameters.values()
    shared = inspect.signature(_asked, eval_str=True).parameters.values()
    named = {flag.name: flag for flag in own if flag.kind is not flag.VAR_KEYWORD}
    parameters = [*(flag for flag in shared if flag.name not in named), *named.values()]

    @wraps(command)
    def run(**given: Any) -> int:
        return command(**given | {"keep_class_order": given["keep_class_order"] or None})

    run.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    return run


@_asking
def plan(
    time_limit_s: Annotated[
        float | None,
        typer.Option(help="Stop after this time, counted from process start [s]."),
    ] = None,
    top: Annotated[int | None, typer.Option(help="How many plans to show. [default: 3]")] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="cost or energy: the nodes on which a token costs least, not the fastest plan."),
    ] = None,
    reach_step_s: Annotated[
        float | None, typer.Option(help="The cheapest nodes that reach this step time [s].")
    ] = None,
    robust: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Choose the plan with the least worst case over so many draws of the numbers.",
        ),
    ] = None,
    compare_split: Annotated[
        bool, typer.Option("--compare-split", help="Compare with one job on each class of chips.")
    ] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Plan file of today: the search begins there, the answer says what it gains."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the launch directory here.")] = None,
    force: flags.Force = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="Launcher that must be able to run the plan: see `hetplan list targets`; or all: a plan for "
            "each, and what each costs."
        ),
    ] = None,
    **given: Any,
) -> int:
    """Find the fastest plan that fits, prove how far from the best it can be, write its launch files."""
    own = dict(locals())
    from planner.commands.plan import PlanRequest, run

    return run(PlanRequest(**own.pop("given"), **own))


@_asking
def explain(
    plan: Annotated[Path | None, typer.Option(help="Plan file to explain; else the best is sought.")] = None,
    question_s: Annotated[float, typer.Option(help="Time limit of each question [s].")] = 20.0,
    time_limit_s: Annotated[
        float | None,
        typer.Option(help="Stop with the answers so far after this time, counted from process start [s]."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Questions at a time; the answer does not depend on it. [default: one a core, 2 at most]",
            show_default=False,
        ),
    ] = None,
    **given: Any,
) -> int:
    """Say what binds a plan and what more of anything would bring, or what it takes to have a plan."""
    from planner.commands.explain import run
    from planner.commands.plan import PlanRequest

    return run(PlanRequest(**given, time_limit_s=time_limit_s), plan, question_s, workers)
