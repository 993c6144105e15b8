"""Tables of a plan and of what the referee says of it: pure functions from data to rich renderables.

Nothing here writes to a screen. Tables have two forms, for narrow and for wide screens.
"""

from __future__ import annotations

import math

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation, Result
from planner.report import words
from planner.report.facts import decision_grid, problem_grid, two_columns
from planner.tolerances import GAP_TOL
from planner.units import DAY_S, TRILLION, format_percent, format_seconds

WIDE = 118
"""Columns from which the wide form of a table fits."""

NEARLY_FULL = 0.9
"""Share of a stage's memory limit from which it is coloured as nearly full; a matter of taste."""

_PARTS = {
    "compute": ("compute", "computation on the chips"),
    "tp": ("exposed TP", "tensor-parallel communication that nothing hides"),
    "cp": ("exposed CP", "context-parallel communication that nothing hides"),
    "ep": ("exposed EP", "expert-parallel communication that nothing hides"),
    "pp": ("exposed PP", "sends between stages that nothing hides"),
    "dp": ("exposed DP", "gradient and parameter exchange that nothing hides"),
    "host": ("host", "chips waiting for the host to launch their work"),
    "bubble": ("bubble", "idle while the pipeline fills, drains or waits"),
    "optimizer": ("optimizer", "update of the weights"),
    "other": ("other", "gradient norm and host work, once a step"),
}
"""Name and meaning of the parts of a step."""


def stage_table(plan: Plan, evaluation: Evaluation, *, wide: bool) -> Table:
    """The stages in pipeline order: where they run, what they hold, how long they take, how full they are."""
    table = Table(
        box=box.SIMPLE_HEAD, title="Stages", title_justify="left", title_style="bold", pad_edge=False
    )
    table.add_column("stage", justify="right")
    if wide:
        table.add_column("chips")
        table.add_column("hosts", overflow="fold")
    else:
        table.add_column("chips and hosts", overflow="fold")
    table.add_column("layers", overflow="fold")
    table.add_column("recompute")
    if wide:
        table.add_column("forward ms", justify="right")
        table.add_column("backward ms", justify="right")
    else:
        table.add_column("fwd, bwd\nms", justify="right")
    table.add_column("memory GiB" if wide else "memory\nGiB", justify="right")
    for number, (stage, seen) in enumerate(zip(plan.stages, evaluation.stages, strict=True)):
        chips, hosts = words.chips_of(plan, stage), words.compact_hosts(stage.hosts)
        forward, backward = words.milliseconds(seen.forward_s), words.milliseconds(seen.backward_s)
        table.add_row(
            str(number),
            *([chips, hosts] if wide else [f"{chips}\n{hosts}"]),
            words.layers_of(stage),
            words.recompute_of(stage),
            *([forward, backward] if wide else [f"{forward}\n{backward}"]),
            _memory(seen.peak_memory_gib, seen.limit_gib, wide=wide),
        )
    return table


def _memory(peak_gib: float, limit_gib: float, *, wide: bool) -> Text:
    """Peak of limit and the percentage, in the colour of how full it is."""
    share = peak_gib / limit_gib
    style = "red" if share > 1 else "yellow" if share > NEARLY_FULL else "green"
    percent = Text(f"{100 * share:.0f}%".rjust(4), style=style)
    return Text.assemble(f"{peak_gib:.1f} of {limit_gib:.1f}", " " if wide else "\n", percent)


MOST_STAGES = (6, 14)
"""Stages whose memory a narrow and a wide screen list."""

_TERMS = {
    "optimizer": "optimizer state",
    "recompute": "made anew",
    "logits": "logits and loss",
    "working": "passing buffers",
    "buffers": "receive buffers",
    "context": "context, NCCL",
}
"""Terms of memory in words, where their name does not say it."""


def memory_table(evaluation: Evaluation, *, wide: bool) -> Table:
    """What the memory of each stage holds [GiB]; of many stages the fullest."""
    most = MOST_STAGES[wide]
    fullest = sorted(
        range(len(evaluation.stages)),
        key=lambda s: evaluation.stages[s].peak_memory_gib / evaluation.stages[s].limit_gib,
    )[-most:]
    shown = sorted(fullest)
    what = f", the {most} fullest stages" if len(shown) < len(evaluation.stages) else " by stage"
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Memory{what} [GiB]",
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    table.add_column("")
    for s in shown:
        table.add_column(str(s), justify="right")
    stages = [evaluation.stages[s] for s in shown]
    for term in stages[0].memory_gib:
        values = [stage.memory_gib.get(term, 0.0) for stage in stages]
        if any(values):
            table.add_row(_TERMS.get(term, term), *(f"{value:.2f}" for value in values))
    table.add_section()
    if all(stage.allocated_memory_gib is not None for stage in stages):
        table.add_row("allocated", *(f"{stage.allocated_memory_gib:.2f}" for stage in stages))
    table.add_row("reserved", *(f"{stage.peak_memory_gib:.2f}" for stage in stages), style="bold")
    table.add_row("limit", *(f"{stage.limit_gib:.2f}" for stage in stages))
    return table


STAGE_NOTE = (
    "forward and backward are of one micro-batch; memory is the peak on the fullest chip of the stage, "
    "of what the plan may reserve there"
)
"""How to read the table of stages."""


def step_table(evaluation: Evaluation, *, wide: bool) -> Table:
    """Where the time of a step goes; the parts add up to the step."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title="One training step",
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    table.add_column("part")
    table.add_column("ms", justify="right")
    table.add_column("%", justify="right")
    table.add_column("what it is")
    for key, seconds in evaluation.breakdown_s.items():
        if seconds == 0 and key in ("cp", "ep"):  # most plans have neither; a zero would only ask why
            continue
        name, meaning = _PARTS.get(key, (key, ""))
        share = seconds / evaluation.step_s
        table.add_row(name, words.milliseconds(seconds), f"{100 * share:.1f}", meaning)
    table.add_section()
    table.add_row("step", words.milliseconds(evaluation.step_s), "100.0", "", style="bold")
    return table


def speed_grid(problem: Problem, plan: Plan, evaluation: Evaluation) -> Table:
    """Step time with its error band, throughput, utilisation."""
    grid = two_columns()
    band = format_percent(evaluation.error_band)
    grid.add_row(
        "step time",
        Text.assemble((format_seconds(evaluation.step_s), "bold"), f" (predicted, within about {band})"),
    )
    per_chip = evaluation.tokens_per_s / plan.world_size
    grid.add_row("throughput", f"{evaluation.tokens_per_s:,.0f} tokens/s, {per_chip:,.0f} a chip")
    days = TRILLION / evaluation.tokens_per_s / DAY_S
    grid.add_row("", f"{days:,.{1 if days < 100 else 0}f} days for a trillion tokens")
    grid.add_row("MFU", f"{format_percent(evaluation.mfu)} of the peak of the chips used")
    if evaluation.most_expert_imbalance is not None:
        grid.add_row("experts", words.uneven_experts(problem, evaluation.most_expert_imbalance))
    return grid


def proof_grid(problem: Problem, result: Result) -> Table:
    """How far from the best the plan can be, in words, and what it took to know."""
    grid = two_columns()
    if result.bound_s is not None and result.gap is not None:
        if result.gap <= GAP_TOL:
            claim = f"proven best: no plan that the search covers for {problem.target} is predicted faster"
        else:
            claim = (
                f"no plan that the search covers for {problem.target} can be predicted more than "
                f"{_gap(result.gap)} faster (bound {format_seconds(result.bound_s)}){_whole_claim(result)}"
            )
        grid.add_row("proof", claim)
    elif result.plan is not None:
        grid.add_row("proof", "none yet: the search was cut before it had a bound")
    how = _ending(problem, result)
    grid.add_row("search", f"{result.seconds:.1f} s{how}; solver {result.solver}; hetplan {result.version}")
    return grid


def _whole_claim(result: Result) -> str:
    """The sharper claim on plans without virtual stages, whose bounds are closer."""
    if result.whole_bound_s is None or result.evaluation is None or result.gap is None:
        return ""
    step_s = result.evaluation.step_s
    gap = max(0.0, (step_s - result.whole_bound_s) / step_s)
    if gap <= GAP_TOL:
        return ", none without virtual stages faster at all"
    return f", none without virtual stages more than {_gap(gap)}" if gap < result.gap * 0.95 else ""


def _ending(problem: Problem, result: Result) -> str:
    """Whether the search ended before the wanted gap, and by whose hand."""
    wanted = problem.options.gap
    if result.interrupted:
        return f", cut before the wanted gap of {format_percent(wanted)}"
    if result.plan is not None and result.termination != "optimal":
        return f", ended above the wanted gap of {format_percent(wanted)}"
    if result.hurried:
        return ", hurried by the time limit: another run may find another plan as near to the best"
    return ""


def _gap(fraction: float) -> str:
    """A gap in percent, small ones with enough digits to be told from zero; never rounded down."""
    digits = 1 if fraction >= 0.001 else 3
    # The inner rounding takes off what binary fractions add: 0.7% must not become 0.8%.
    steps = math.ceil(round(fraction * 100 * 10**digits, 6))
    return f"{steps / 10**digits:.{digits}f}%"


def runner_up_table(best: Plan, best_s: float, result: Result) -> Table:
    """The next-best plans: how much slower, and what they decide differently."""
    table = Table(
        box=box.SIMPLE_HEAD, title="Next-best plans", title_justify="left", title_style="bold", pad_edge=False
    )
    table.add_column("#", justify="right")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("slower", justify="right")
    table.add_column("what differs", overflow="fold")
    for number, other in enumerate(result.runners_up, start=2):
        slower = other.evaluation.step_s / best_s - 1
        table.add_row(
            str(number),
            words.predicted(other.evaluation.step_s, other.evaluation.error_band),
            f"{100 * slower:.1f}%",
            words.differences(best, other.plan),
        )
    return table


def assumption_list(evaluation: Evaluation) -> RenderableType:
    """What was taken for granted, one line each."""
    lines = [Text("Assumptions", style="bold")]
    lines += [Text(f"- {line}") for line in evaluation.assumptions]
    return Group(*lines)


def violation_list(evaluation: Evaluation) -> RenderableType:
    """The rules that a plan breaks, one line each."""
    rules = "a rule" if len(evaluation.violations) == 1 else f"{len(evaluation.violations)} rules"
    lines = [Text(f"This plan breaks {rules}", style="bold red")]
    lines += [Text(f"- {line}") for line in evaluation.violations]
    return Group(*lines)


def prediction_report(problem: Problem, plan: Plan, evaluation: Evaluation, *, width: int) -> RenderableType:
    """All that the referee says of a plan."""
    wide = width >= WIDE
    parts: list[RenderableType] = [problem_grid(problem), "", decision_grid(problem, plan, evaluation), ""]
    parts += [stage_table(plan, evaluation, wide=wide), Text(STAGE_NOTE, style="dim"), ""]
    parts += [step_table(evaluation, wide=wide), speed_grid(problem, plan, evaluation)]
    parts += ["", memory_table(evaluation, wide=wide)]
    if evaluation.violations:
        parts += ["", violation_list(evaluation)]
    if evaluation.assumptions:
        parts += ["", assumption_list(evaluation)]
    return Group(*parts)


def plan_report(problem: Problem, result: Result, *, width: int) -> RenderableType:
    """The answer of a search: plan, proof and next-best plans, or why there is no plan."""
    if result.plan is None or result.evaluation is None:
        words_for = {"infeasible": "No plan exists", "no_solution_found": "No plan found in time"}
        headline = Text(words_for.get(result.termination, "No plan"), style="bold red")
        reason = Text(result.reason or "the search gives no reason")
        return Group(problem_grid(problem), "", headline, reason, "", proof_grid(problem, result))
    plan, evaluation, wide = result.plan, result.evaluation, width >= WIDE
    parts: list[RenderableType] = [problem_grid(problem), "", decision_grid(problem, plan, evaluation), ""]
    parts += [stage_table(plan, evaluation, wide=wide), Text(STAGE_NOTE, style="dim"), ""]
    parts += [step_table(evaluation, wide=wide), speed_grid(problem, plan, evaluation)]
    parts += [proof_grid(problem, result)]
    if result.runners_up:
        parts += ["", runner_up_table(plan, evaluation.step_s, result)]
    if evaluation.assumptions:
        parts += ["", assumption_list(evaluation)]
    return Group(*parts)
