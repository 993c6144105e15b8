"""What each launcher costs: the best plan of each, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.data.problem import TargetName
from planner.data.result import Evaluation, Result
from planner.report import words
from planner.tolerances import GAP_TOL
from planner.units import format_percent

NAMES = {
    "megatron-bridge": "Megatron-Bridge",
    "megatron-lm": "stock Megatron",
    "flagscale": "FlagScale with its meshes",
    "unrestricted": "unrestricted",
}
"""Each target in the words of a sentence."""


def best_target(results: Mapping[TargetName, Result]) -> TargetName | None:
    """The launcher with the fastest plan, of equals stock Megatron; None where there is no plan."""
    found = _evaluated(results)
    return min(found, key=lambda name: (found[name].step_s, name != "megatron-lm"), default=None)


def _evaluated(results: Mapping[TargetName, Result]) -> dict[TargetName, Evaluation]:
    return {name: r.evaluation for name, r in results.items() if r.evaluation is not None}


def targets_report(results: Mapping[TargetName, Result]) -> RenderableType:
    """A line a launcher, and in sentences how much slower the narrower ones are; why there is no plan."""
    found, best = _evaluated(results), best_target(results)
    if best is None:
        return Text("\n".join(_reasons(results)))
    table = Table(
        box=box.SIMPLE_HEAD, title="Targets", title_justify="left", title_style="bold", pad_edge=False
    )
    table.add_column("target", no_wrap=True)
    for heading in ("step", "slower", "proven gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    for name, result in results.items():
        if result.plan is None or name not in found:
            table.add_row(name, "-", "-", "-", result.reason or "no plan")
            continue
        slower = found[name].step_s / found[best].step_s - 1
        table.add_row(
            name,
            words.predicted(found[name].step_s, found[name].error_band),
            format_percent(slower) if slower > GAP_TOL else "-",
            "-" if result.gap is None else format_percent(result.gap),
            words.degrees_of(result.plan),
        )
    sentence = cost_in_words(results)
    return Group(table, *([Text(sentence)] if sentence else []))


def _reasons(results: Mapping[TargetName, Result]) -> list[str]:
    """Why there is no plan, each reason once."""
    names: dict[str, list[str]] = {}
    for name, result in results.items():
        names.setdefault(result.reason or "no plan", []).append(name)
    if len(names) == 1:
        return [f"no plan for any launcher: {reason}" for reason in names]
    return [f"no plan for {', '.join(those)}: {reason}" for reason, those in names.items()]


def cost_in_words(results: Mapping[TargetName, Result]) -> str:
    """`stock Megatron is 2.1% slower than FlagScale with its meshes, 3.4% than unrestricted`."""
    found = _evaluated(results)
    sentences = []
    for name in found:
        slower = [
            (f"{format_percent(found[name].step_s / found[other].step_s - 1)}", NAMES.get(other, other))
            for other in found
            if found[name].step_s > found[other].step_s * (1 + GAP_TOL)
        ]
        if slower:
            (share, than), *more = slower
            rest = "".join(f", {share} than {than}" for share, than in more)
            sentences.append(f"{NAMES.get(name, name)} is {share} slower than {than}{rest}")
    if not sentences and len(found) > 1:
        return "No launcher is faster than another here."
    return "; ".join(sentences)
