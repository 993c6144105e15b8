"""Tables of an explanation: what binds, what more would bring, what lies idle, what gives a plan."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.data.explanation import Economy, Explanation, Robustness, SplitComparison
from planner.report.facts import two_columns
from planner.search.infeasible import ASK_FOR_CHANGES
from planner.tolerances import GAP_TOL
from planner.units import format_percent, format_seconds

_OF_RANGES = (
    "the lower number is proven, the higher one found; below 0 one may be faster, within the proof's gap"
)
_BINDINGS = {"pace": "sets the pace", "memory": "memory", "layers": "whole layers", "unknown": "-"}


def explanation_report(explanation: Explanation) -> RenderableType:
    """All of an explanation."""
    if explanation.step_s is None:
        return _without_plan(explanation)
    grid = two_columns()
    grid.add_row("problem", explanation.problem)
    grid.add_row("step time", format_seconds(explanation.step_s))
    if explanation.best_step_s is not None and explanation.best_step_s < explanation.step_s * (1 - GAP_TOL):
        faster = format_percent(1 - explanation.best_step_s / explanation.step_s)
        best = f"{format_seconds(explanation.best_step_s)}: {faster} faster than this plan"
        grid.add_row("best plan", f"{best}; all below is compared with the best")
    if explanation.bound_s is not None:
        least = max(0.0, 1 - explanation.bound_s / explanation.step_s)
        grid.add_row("proof", f"no plan can be more than {format_percent(least)} faster")
    grid.add_row("slowest", f"stage {explanation.critical_stage}")
    grid.add_row(
        "bubble", f"{format_percent(explanation.bubble_fraction or 0.0)} of the step, in which it waits"
    )
    parts: list[RenderableType] = [grid, "", _stages(explanation), "", _gains(explanation)]
    note = "each found by searching again; that no plan gains more than `at most` is proven"
    parts.append(Text(note, style="dim"))
    if explanation.alternatives:
        parts += ["", _alternatives(explanation), Text(_OF_RANGES, style="dim")]
    if explanation.idle:
        parts += ["", _idle(explanation)]
    return Group(*parts)


def _table(title: str) -> Table:
    return Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)


def _stages(explanation: Explanation) -> Table:
    table = _table("What keeps each stage from holding more")
    table.add_column("stage", justify="right")
    table.add_column("bound by", no_wrap=True)
    table.add_column("slack", justify="right", no_wrap=True)
    table.add_column("free GiB", justify="right")
    table.add_column("why", overflow="fold")
    for stage in explanation.stages:
        table.add_row(
            str(stage.stage),
            _BINDINGS[stage.binds],
            format_seconds(stage.slack_s) if stage.slack_s else "-",
            f"{stage.headroom_gib:.1f}",
            stage.words,
        )
    return table


def _gains(explanation: Explanation) -> Table:
    table = _table("What more would bring")
    table.add_column("change", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("faster", justify="right")
    table.add_column("at most", justify="right")
    for gain in explanation.gains:
        table.add_row(
            gain.change,
            "-" if gain.step_s is None else format_seconds(gain.step_s),
            "-" if gain.gain is None else format_percent(gain.gain),
            "-" if gain.gain_at_most is None else format_percent(gain.gain_at_most),
        )
    return table


def _alternatives(explanation: Explanation) -> Table:
    table = _table("Best plans of another kind")
    table.add_column("with", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("slower by", justify="right", no_wrap=True)
    table.add_column("what differs", overflow="fold")
    for other in explanation.alternatives:
        table.add_row(
            other.kind,
            "-" if other.step_s is None else format_seconds(other.step_s),
            format_slower(other.slower_at_least, other.slower),
            other.words,
        )
    return table


def format_slower(least: float | None, most: float | None) -> str:
    """A proven range of shares: `0.5 to 1.2%`; `0.4% faster` where it beats the plan in hand in its gap.

    The range begins below 0 where that has not been ruled out.
    """
    if most is None:
        return "-"
    if most <= -0.0005:
        return f"{-100 * most:.1f}% faster"
    shown = f"{100 * max(most, 0.0):.1f}%"
    return f"at most {shown}" if least is None else f"{100 * least:z.1f} to {shown}"


def _idle(explanation: Explanation) -> Table:
    table = _table("What lies idle")
    table.add_column("class")
    table.add_column("idle", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for idle in explanation.idle:
        table.add_row(idle.node_class, f"{idle.idle_nodes} of {idle.num_nodes}", idle.words)
    return table


def _without_plan(explanation: Explanation) -> RenderableType:
    grid = two_columns()
    grid.add_row("problem", explanation.problem)
    reason = (explanation.reason or "the search gives no reason").removesuffix(ASK_FOR_CHANGES).rstrip()
    grid.add_row("no plan", reason)
    if not explanation.relaxations:
        if not explanation.interrupted:
            grid.add_row("way out", "no single change that was tried gives one")
        elif explanation.infeasible:
            grid.add_row("way out", "the search for one was cut; give it more time")
        return grid
    table = _table("Any one of these gives a plan")
    table.add_column("change", overflow="fold")
    table.add_column("least", justify="right", no_wrap=True)
    table.add_column("first plan found", justify="right", no_wrap=True)
    for relaxation in explanation.relaxations:
        amount = "" if relaxation.amount is None else f"{relaxation.amount:,g} {relaxation.unit}"
        if amount and not relaxation.least and relaxation.unit != "tokens":
            amount = f"at most {amount}"
        table.add_row(relaxation.change, amount, format_seconds(relaxation.step_s))
    return Group(grid, "", table)


def split_report(split: SplitComparison) -> RenderableType:
    """One job on all classes against one job a class."""
    table = _table("Together or apart")
    table.add_column("trains on")
    table.add_column("tokens/s", justify="right", no_wrap=True)
    table.add_column("at most", justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    for alone in split.alone:
        table.add_row(
            f"{alone.node_class} alone",
            f"{alone.tokens_per_s:,.0f}" if alone.tokens_per_s else "-",
            _at_most(alone.tokens_per_s_at_most),
            alone.words,
        )
    table.add_section()
    total = sum(alone.tokens_per_s for alone in split.alone)
    bounds = [alone.tokens_per_s_at_most for alone in split.alone]
    most = None if None in bounds else sum(bound or 0.0 for bound in bounds)
    table.add_row("all apart", f"{total:,.0f}", _at_most(most), "each with the whole batch")
    table.add_row("together", f"{split.tokens_per_s:,.0f}", "", "the plan above")
    grid = two_columns()
    if split.mixing_gain is not None:
        proven = ""
        if split.mixing_gain_at_least is not None and split.mixing_gain_at_most is not None:
            proven = f" (proven: {split.mixing_gain_at_least:.3f} to {split.mixing_gain_at_most:.3f})"
        grid.add_row("mixing gain", f"{split.mixing_gain:.3f}{proven}")
    grid.add_row("verdict", split.words)
    return Group(table, grid)


def _at_most(tokens_per_s: float | None) -> str:
    """A bound on a throughput."""
    if tokens_per_s is None:
        return "not known"
    return f"{tokens_per_s:,.0f}" if tokens_per_s else "-"


def robustness_report(robustness: Robustness) -> RenderableType:
    """How the candidates fared on all draws."""
    table = _table(f"Plans under {robustness.draws} draws of chip, link and memory numbers")
    table.add_column("plan", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("worst", justify="right", no_wrap=True)
    table.add_column("fits", justify="right")
    table.add_column("best in", justify="right")
    table.add_column("loses", justify="right")
    for plan in robustness.plans:
        table.add_row(
            plan.words,
            format_seconds(plan.step_s),
            "-" if plan.worst_step_s is None else format_seconds(plan.worst_step_s),
            f"{100 * plan.fits_fraction:.0f}%",
            f"{100 * plan.best_fraction:.0f}%",
            "-" if plan.worst_loss is None else f"up to {format_percent(plan.worst_loss)}",
            style="bold" if plan.chosen else "",
        )
    note = "loses: against the fastest of these in the same draw; in bold the plan with the least worst case"
    return Group(table, Text(note, style="dim"))


def economy_report(economy: Economy) -> RenderableType:
    """Which nodes, what they cost, and how far from the cheapest choice that can be."""
    grid = two_columns()
    if economy.value is None:
        grid.add_row("nodes", economy.words)
        return grid
    grid.add_row("nodes", economy.words)
    what = "price" if economy.objective == "cost" else "energy" if economy.reach_step_s is None else "power"
    grid.add_row(what, f"{economy.value:,.4g} {economy.unit}")
    if economy.gap is not None and economy.bound is not None:
        more = "" if economy.gap <= 0 else f"more than {format_percent(economy.gap)} "
        least = f"be {more}cheaper" if economy.objective == "cost" else f"take {more}less {what}"
        grid.add_row(
            "proof",
            f"no choice of nodes can {least} (bound {economy.bound:,.4g} {economy.unit}); "
            f"{economy.searches} subsets searched",
        )
    return grid
