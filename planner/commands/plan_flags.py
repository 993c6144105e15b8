"""Arguments of `hetplan plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.commands.flags import Force, Json, Quiet, Target


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(plan)
    app.command()(explain)


def plan(
    problem: Annotated[
        str | None,
        typer.Argument(help="Name of a shipped problem, or a YAML or JSON file.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Shipped cluster, file, or nodes such as '4x8 h100-sxm-80gb, ...'.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Shipped model, or a file.")] = None,
    seq_length: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    global_batch_size: Annotated[int | None, typer.Option(help="Sequences of a training step.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, fp8, ...")] = None,
    stack: Annotated[str | None, typer.Option(help="Training software: see `hetplan list stacks`.")] = None,
    target: Target = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option(help="Stop after this time, counted from process start [s]."),
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(help="Stop at this proven gap to the best plan, as a fraction. [default: 0.01]"),
    ] = None,
    top: Annotated[int | None, typer.Option(help="How many plans to show. [default: 3]")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes; the plan does not depend on it (one is used so far).")
    ] = None,
    solver: Annotated[str | None, typer.Option(help="highs, cp_sat, scip or cbc. [default: highs]")] = None,
    memory_reserve: Annotated[
        float | None, typer.Option(help="Share of usable memory left free, as a fraction. [default: 0.04]")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            help="Fix a value, such as tp=8; also cp, pp, dp, ep, etp, mbs, sp (0 or 1). Repeatable."
        ),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(help="Rule a value out, such as recompute=full or tp=8. Repeatable."),
    ] = None,
    spare: Annotated[
        list[str] | None, typer.Option(help="Keep a node class of the cluster idle. Repeatable.")
    ] = None,
    use: Annotated[
        list[str] | None, typer.Option(help="Keep a node class of the cluster from idling. Repeatable.")
    ] = None,
    max_pp: Annotated[int | None, typer.Option(help="Most pipeline stages.")] = None,
    max_vp: Annotated[
        int | None, typer.Option(help="Most virtual stages of a pipeline rank; 1 for none.")
    ] = None,
    keep_class_order: Annotated[
        bool, typer.Option("--keep-class-order", help="Stages follow the order of the cluster's classes.")
    ] = False,
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
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Find the fastest plan that fits, prove how far from the best it can be, write its launch files."""
    from planner.commands.plan import PlanRequest, run

    return run(
        PlanRequest(
            problem=problem,
            cluster=cluster,
            model=model,
            seq_length=seq_length,
            global_batch_size=global_batch_size,
            precision=precision,
            stack=stack,
            target=target,
            time_limit_s=time_limit_s,
            gap=gap,
            top=top,
            workers=workers,
            solver=solver,
            memory_reserve=memory_reserve,
            pin=pin,
            forbid=forbid,
            spare=spare,
            use=use,
            max_pp=max_pp,
            max_vp=max_vp,
            keep_class_order=keep_class_order or None,
            objective=objective,
            reach_step_s=reach_step_s,
            robust=robust,
            compare_split=compare_split,
            out=out,
            force=force,
            as_json=as_json,
            quiet=quiet,
        )
    )


def explain(
    problem: Annotated[
        str | None,
        typer.Argument(help="Name of a shipped problem, or a YAML or JSON file.", show_default=False),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="Plan file to explain; else the best is sought.")] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Shipped cluster, file, or nodes such as '4x8 h100-sxm-80gb, ...'.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Shipped model, or a file.")] = None,
    seq_length: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    global_batch_size: Annotated[int | None, typer.Option(help="Sequences of a training step.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, fp8, ...")] = None,
    stack: Annotated[str | None, typer.Option(help="Training software: see `hetplan list stacks`.")] = None,
    target: Target = None,
    gap: Annotated[float | None, typer.Option(help="Gap at which each search stops.")] = None,
    pin: Annotated[list[str] | None, typer.Option(help="Fix a value, as for `plan`. Repeatable.")] = None,
    forbid: Annotated[
        list[str] | None, typer.Option(help="Rule a value out, as for `plan`. Repeatable.")
    ] = None,
    spare: Annotated[list[str] | None, typer.Option(help="Keep a node class idle. Repeatable.")] = None,
    question_s: Annotated[float, typer.Option(help="Time limit of each question [s].")] = 20.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Say what binds a plan and what more of anything would bring, or what it takes to have a plan."""
    from planner.commands.explain import run
    from planner.commands.plan import PlanRequest

    return run(
        PlanRequest(
            problem=problem,
            cluster=cluster,
            model=model,
            seq_length=seq_length,
            global_batch_size=global_batch_size,
            precision=precision,
            stack=stack,
            target=target,
            gap=gap,
            pin=pin,
            forbid=forbid,
            spare=spare,
            as_json=as_json,
            quiet=quiet,
        ),
        plan,
        question_s,
    )
