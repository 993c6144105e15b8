"""Flags that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

ProblemName = Annotated[
    str | None,
    typer.Argument(help="Name of a shipped problem, or a YAML or JSON file.", show_default=False),
]
Cluster = Annotated[
    str | None, typer.Option(help="Shipped cluster, file, or nodes such as '4x8 h100-sxm-80gb, ...'.")
]
Model = Annotated[
    str | None, typer.Option(help="Shipped model, or a file: ours, or a config.json of transformers.")
]
SeqLength = Annotated[int | None, typer.Option(help="Tokens of a sequence.")]
GlobalBatchSize = Annotated[int | None, typer.Option(help="Sequences of a training step.")]
Precision = Annotated[str | None, typer.Option(help="bf16, fp16, fp8, ...")]
ExpertImbalance = Annotated[
    float | None,
    typer.Option(
        help="Tokens that come to the busiest rank's experts, over an even share; memory and time are those "
        "of that rank. [default: 1]",
        show_default=False,
    ),
]
Stack = Annotated[str | None, typer.Option(help="Training software: see `hetplan list stacks`.")]
Gap = Annotated[
    float | None,
    typer.Option(help="Stop at this proven gap to the best plan, as a fraction. [default: 0.01]"),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes of the search; the plan does not depend on it. Two also spare some time on "
        "100,000 chips without virtual stages. [default: a second one where it is sure to pay]"
    ),
]
Solver = Annotated[str | None, typer.Option(help="highs, cp_sat, scip or cbc. [default: highs]")]
MemoryReserve = Annotated[
    float | None, typer.Option(help="Share of usable memory left free, as a fraction. [default: 0.04]")
]
Pin = Annotated[
    list[str] | None,
    typer.Option(
        help="Fix a value, such as tp=8; also cp, pp, dp, ep, etp, mbs, sp (0 or 1), vp. Repeatable."
    ),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(help="Rule a value out: tp=8, recompute=full, stages=mixed, ... Repeatable."),
]
Spare = Annotated[list[str] | None, typer.Option(help="Keep a node class of the cluster idle. Repeatable.")]
Use = Annotated[
    list[str] | None, typer.Option(help="Keep a node class of the cluster from idling. Repeatable.")
]
MaxPp = Annotated[int | None, typer.Option(help="Most pipeline stages.")]
MaxVp = Annotated[int | None, typer.Option(help="Most virtual stages of a pipeline rank; 1 for none.")]
KeepClassOrder = Annotated[
    bool, typer.Option("--keep-class-order", help="Stages follow the order of the cluster's classes.")
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output directory where it exists.")]
Target = Annotated[
    str | None,
    typer.Option(help="Launcher that must be able to run the plan: see `hetplan list targets`."),
]
