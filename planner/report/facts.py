"""What is asked and what is decided, as two columns: a name and what it is."""

from __future__ import annotations

from rich.table import Table

from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.report import words
from planner.report.slow_links import slow_links


def two_columns() -> Table:
    """Two columns without lines: a name and what it is."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True, min_width=11)
    grid.add_column(overflow="fold")
    return grid


def problem_grid(problem: Problem) -> Table:
    """What is asked: model, cluster, batch, target."""
    from planner.cost.parameters import total_parameters

    model, work = problem.model, problem.workload
    grid = two_columns()
    grid.add_row("problem", problem.name)
    without = f", without its {' and '.join(model.left_out)} part" if model.left_out else ""
    size = f"{words.count(total_parameters(model))} parameters, {model.num_layers} layers"
    grid.add_row("model", f"{model.id}: {size}{without}")
    cluster = problem.cluster
    # A cluster given as nodes in short form bears that form as its id; it would be said twice.
    name = "" if " " in cluster.id else f"{cluster.id}: "
    grid.add_row("cluster", f"{name}{words.nodes_of(cluster)} = {cluster.num_chips:,} chips")
    grid.add_row(
        "batch",
        f"{work.global_batch_size:,} sequences of {work.seq_length:,} tokens "
        f"({words.count(work.tokens_per_step)} tokens a step), {work.precision}",
    )
    grid.add_row("target", problem.target)
    return grid


def decision_grid(problem: Problem, plan: Plan, evaluation: Evaluation | None = None) -> Table:
    """Degrees and micro-batches of a plan, and what crosses slow links between classes."""
    grid = two_columns()
    used = f"{plan.world_size:,} of {problem.cluster.num_chips:,} chips"
    grid.add_row("degrees", f"{words.degrees_of(plan)} = {used}")
    if plan.pipelines is None:
        grid.add_row("", _spelled_out(plan))
    if idle := words.idle_chips(problem, plan):
        grid.add_row("left idle", idle)
    for part in plan.pipeline_plans if plan.pipelines is not None else ():
        sequences = part.data_parallel * part.microbatch_size * part.num_microbatches
        grid.add_row("", f"{words.chip_runs(part)}: {sequences} sequences a step")
    where = "" if plan.data_parallel == 1 else f" on each of {plan.data_parallel} replicas"
    grid.add_row(
        "micro-batch",
        f"{plan.microbatch_size} {'sequence' if plan.microbatch_size == 1 else 'sequences'}, "
        f"{plan.num_microbatches:,} of them a step{where}",
    )
    grid.add_row(
        "sharding",
        f"sequence parallel {'on' if plan.sequence_parallel else 'off'}, "
        f"data parallel as {_DP_MODES.get(plan.dp_mode, plan.dp_mode)}",
    )
    for i, link in enumerate(slow_links(problem, plan, evaluation) if evaluation is not None else ()):
        grid.add_row("slow links" if i == 0 else "", link)
    return grid


_DP_MODES = {
    "ddp": "plain replicas",
    "distopt": "replicas with a distributed optimizer",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp": "fully sharded replicas",
}


def _spelled_out(plan: Plan) -> str:
    """The degrees in words, for a reader who meets the short forms for the first time."""
    shared = (
        (plan.tensor_parallel, "a layer"),
        (plan.context_parallel, "a sequence"),
        (plan.expert_parallel, "the experts"),
    )
    parts = [f"{count} share {what}" for count, what in shared if count > 1]
    if parts:
        parts[0] = parts[0].replace(" share", " chips share")
    if plan.tensor_parallel == 1:
        parts = ["each layer whole on a chip", *parts]
    replicas = "one replica" if plan.data_parallel == 1 else f"{plan.data_parallel} replicas"
    stages = "one stage" if plan.pipeline_parallel == 1 else f"{plan.pipeline_parallel} stages in a pipeline"
    return ", ".join([*parts, replicas, stages])
