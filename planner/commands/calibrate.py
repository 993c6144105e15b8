"""`hetplan calibrate`: what measured steps say of the chips' pace, as a stack file for `--stack`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.calibrate.convert import Candidate, convert
from planner.calibrate.factors import Calibration, ChipFactor, MeasuredStep, calibrate
from planner.calibrate.patterns import SkipRun
from planner.calibrate.runs import read_runs
from planner.calibrate.stacks import stack_id
from planner.commands import screen
from planner.commands.predict import problem_of
from planner.commands.screen import ExitCode
from planner.data import load
from planner.data.save import to_yaml, write_atomic
from planner.data.stack import SoftwareStack
from planner.errors import InstanceError
from planner.units import format_percent, format_seconds

if TYPE_CHECKING:
    from rich.console import Group

MOST_SHOWN = 20
"""Runs of a table; of more the summary is enough."""


def run(
    measured: Sequence[str], *, stack: str | None, out: Path | None, force: bool, as_json: bool
) -> ExitCode:
    """Calibrate, show what is found, and write the stack file."""
    if out is not None and not force and out.exists():
        raise InstanceError("exists; choose another name, or --force to replace it", str(out))
    skipped: Counter[str] = Counter()
    steps: list[MeasuredStep] = []
    for word in measured:
        path, equals, seconds = word.rpartition("=")
        steps += [_step_of_plan(path, seconds, word)] if equals else _steps_of_runs(word, stack, skipped)
    steps, base = _of_one_stack(steps, stack, ", ".join(measured), skipped)
    found = calibrate(steps)
    written = _calibrated(base, found)
    if out is not None:
        write_atomic(out, to_yaml(written))
    if as_json:
        screen.show_json(_as_json(found, written, skipped))
    else:
        screen.show(_report(found, skipped))
        if out is not None:
            screen.note(f"wrote {out}; use it: hetplan plan PROBLEM --stack {out}")
    return ExitCode.PLAN


def _step_of_plan(path: str, seconds: str, word: str) -> MeasuredStep:
    """A plan file, which holds its problem, and the time that its step took."""
    try:
        measured_s = float(seconds)
    except ValueError:
        measured_s = math.nan
    if not 0 < measured_s < math.inf:
        raise InstanceError(
            f"{seconds!r} is no time of a step; write PLAN.yaml=SECONDS, such as plan.yaml=12.3", word
        )
    plan = load.load_plan(path)
    problem = problem_of(None, plan, path)
    return MeasuredStep(path, Candidate(problem, (plan,), problem.stack.id, False, ()), measured_s)


def _steps_of_runs(path: str, stack: str | None, skipped: Counter[str]) -> list[MeasuredStep]:
    """The runs of a file as `hetplan accuracy` reads it; those that cannot be predicted are counted."""
    if path.endswith((".yaml", ".yml")):
        raise InstanceError("is a plan without its time; write PLAN.yaml=SECONDS", path)
    steps = []
    for measured in read_runs(path):
        if stack is not None and stack_id(measured) != stack:
            skipped["other software"] += 1
            continue
        try:
            candidate = convert(measured)
        except SkipRun as skip:
            skipped[skip.reason] += 1
            continue
        if measured.quality == "low":
            skipped["quality low"] += 1
        elif measured.measured.step_s is None:
            skipped["no step time"] += 1
        else:
            steps.append(MeasuredStep(measured.id, candidate, measured.measured.step_s))
    return steps


def _of_one_stack(
    steps: Sequence[MeasuredStep], wanted: str | None, where: str, skipped: Counter[str]
) -> tuple[list[MeasuredStep], SoftwareStack]:
    """The steps of the software asked for, or of the only one, and that software without factors.

    Raises
    ------
    InstanceError
        Where no step is left, or several kinds of software ran and none is asked for.
    """
    count = Counter(step.candidate.stack for step in steps)
    if not count:
        reasons = "; ".join(f"{reason}: {number}" for reason, number in skipped.most_common(3))
        of_it = f" of {wanted}" if wanted is not None else ""
        raise InstanceError(f"no run{of_it} can be predicted ({reasons or 'there is none'})", where)
    if wanted is None and len(count) > 1:
        told = ", ".join(f"{name} ({number})" for name, number in count.most_common())
        raise InstanceError(f"runs of several kinds of software: {told}; choose one with --stack", where)
    name = wanted if wanted is not None else next(iter(count))
    kept = [step for step in steps if step.candidate.stack == name]
    if not kept:
        raise InstanceError(f"no run of {name}; there are runs of {', '.join(count)}", "--stack")
    if name in load.names("stacks"):
        return kept, load.load_stack(name)
    return kept, kept[0].candidate.problem.stack.model_copy(update={"time_factor": {}})


def _calibrated(base: SoftwareStack, found: Calibration) -> SoftwareStack:
    steps = f"{len(found.steps)} measured step{'s' if len(found.steps) > 1 else ''}"
    source = "; ".join(filter(None, (base.source, f"time_factor: hetplan calibrate, {steps}")))
    rounded = {chip: round(factor, 6) for chip, factor in found.factors.items()}
    return base.model_copy(update={"time_factor": rounded, "source": source})


def _as_json(found: Calibration, written: SoftwareStack, skipped: Counter[str]) -> dict[str, Any]:
    return {
        "stack": written.id,
        "chips": [
            {
                "chip": chip.chip,
                "factor": chip.factor,
                "runs": chip.num_runs,
                "least": chip.least,
                "most": chip.most,
                "from_mixed_runs": chip.is_shared,
            }
            for chip in found.chips
        ],
        "runs": [
            {
                "label": step.label,
                "measured_s": step.measured_s,
                "before_s": step.before_s,
                "after_s": step.after_s,
            }
            for step in found.steps
        ],
        "unexplained": list(found.unexplained),
        "skipped": dict(sorted(skipped.items())),
    }


def _report(found: Calibration, skipped: Counter[str]) -> Group:
    """Factors of the chips, then every run before and after."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    chips = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Computation: measured over tables")
    chips.add_column("chip")
    for heading in ("factor", "runs", "least to most"):
        chips.add_column(heading, justify="right", no_wrap=True)
    chips.add_column("", overflow="fold")
    for chip in found.chips:
        chips.add_row(*_row_of_chip(chip))
    runs = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Measured steps")
    runs.add_column("run", overflow="fold")
    for heading in ("measured", "predicted", "calibrated", "error left"):
        runs.add_column(heading, justify="right", no_wrap=True)
    for step in found.steps[:MOST_SHOWN]:
        runs.add_row(
            step.label,
            *(format_seconds(time_s) for time_s in (step.measured_s, step.before_s, step.after_s)),
            f"{100 * (step.after_s / step.measured_s - 1):+.1f}%",
        )
    return Group(chips, runs, *(Text(line) for line in _lines(found, skipped)))


def _row_of_chip(chip: ChipFactor) -> tuple[str, ...]:
    spread = f"{chip.least:.3f} to {chip.most:.3f}" if chip.num_runs > 1 else ""
    told = "from mixed runs" if chip.is_shared else ""
    return chip.chip, f"{chip.factor:.3f}", str(chip.num_runs), spread, told


def _lines(found: Calibration, skipped: Counter[str]) -> list[str]:
    before = [abs(step.before_s / step.measured_s - 1) for step in found.steps]
    after = [abs(step.after_s / step.measured_s - 1) for step in found.steps]
    lines = [
        f"mean error of these runs: {format_percent(sum(before) / len(before))} before, "
        f"{format_percent(sum(after) / len(after))} after; of others expect what `hetplan predict` states"
    ]
    if len(found.steps) > MOST_SHOWN:
        lines.append(f"{len(found.steps) - MOST_SHOWN} more runs are not shown; --json has all")
    lines += [f"counts for no chip: {sentence}" for sentence in found.unexplained]
    if skipped:
        lines.append(
            "left out: " + ", ".join(f"{reason} ({number})" for reason, number in sorted(skipped.items()))
        )
    return lines
