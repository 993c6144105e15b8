"""The page that goes with a launch directory: what it is, how to start it, what runs where."""

from __future__ import annotations

from math import log

import planner
from planner.cost.parameters import padded_vocab
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.launchers.forms.environments import mixed_platforms
from planner.launchers.megatron.linear_attention import PACKAGE
from planner.launchers.megatron.plan_arguments import recompute_modules
from planner.launchers.model_constants import left_out
from planner.launchers.placement import HostPlace, stage_of_rank
from planner.launchers.stated_software import told_of_software
from planner.launchers.template_text import fill
from planner.units import format_percent, format_seconds

LOGS = "What each rank says is in `logs/` on its host, too."
"""Where the ranks of our own start script write."""


def readme_text(
    problem: Problem,
    plan: Plan,
    places: tuple[HostPlace, ...],
    evaluation: Evaluation | None,
    core_version: str,
) -> str:
    """Text of `README.md`."""
    return fill(
        "README.md",
        {
            "version": planner.__version__,
            "core_version": core_version,
            "problem_name": " ".join(problem.name.split()),
            "summary": summary(problem, plan, places, evaluation),
            "hosts_step": hosts_step(problem, places),
            "vocabulary": padded_vocab(problem.model.vocab_size, plan.tensor_parallel),
            "signs": signs_of_life(problem, plan, evaluation, LOGS),
            "stage_table": stage_table(problem, plan, places, evaluation),
            "notes": notes_text(problem, plan, evaluation, left_out(problem.model, core_version)),
        },
    )


def summary(
    problem: Problem, plan: Plan, places: tuple[HostPlace, ...], evaluation: Evaluation | None
) -> str:
    """The plan in a sentence, and what is expected of it."""
    degrees = [("tensor", plan.tensor_parallel), ("context", plan.context_parallel)]
    if problem.model.moe is not None:
        degrees.append(("expert", plan.expert_parallel))
    degrees += [("data", plan.data_parallel), ("pipeline", plan.pipeline_parallel)]
    of_stage = " on the first stage" if plan.degrees_differ else ""
    listed = ", ".join(f"{name} {degree}" for name, degree in degrees)
    text = (
        f"{problem.model.id}, sequence {problem.workload.seq_length}, global batch "
        f"{problem.workload.global_batch_size}, {problem.workload.precision}, on {plan.world_size} chips of "
        f"{len(places)} hosts: {listed} parallel{of_stage}; "
        f"{plan.num_microbatches} micro-batches of {plan.microbatch_size} a step{of_stage}"
    )
    if plan.virtual_stages > 1:
        text += f"; {plan.virtual_stages} virtual stages"
    if plan.microbatch_group_size is not None:
        text += f", in groups of {plan.microbatch_group_size} micro-batches"
    if evaluation is None:
        return text + "."
    return (
        f"{text}.\n\nExpected: {format_seconds(evaluation.step_s)} a step "
        f"(+-{format_percent(evaluation.error_band)}), {evaluation.tokens_per_s:,.0f} tokens/s, "
        f"MFU {format_percent(evaluation.mfu)}."
    )


def signs_of_life(problem: Problem, plan: Plan, evaluation: Evaluation | None, logs: str) -> str:
    """How to tell that the run does what the plan says, and what usually keeps it from that.

    Parameters
    ----------
    logs
        Where the ranks write, in words.
    """
    last = plan.world_size - 1
    lines = [
        "## How to know that it works",
        "",
        f"- {logs} A line a step comes from the last rank ({last}).",
        f"- The loss of the first step is about {log(problem.model.vocab_size):.1f}, the logarithm of the "
        "vocabulary, and falls.",
    ]
    if evaluation is not None:
        milliseconds = 1e3 * evaluation.step_s
        lines.append(
            f"- From the third step or so, a step takes about {milliseconds:,.0f} ms "
            f"(+-{format_percent(evaluation.error_band)}), and no chip holds more than the table below says. "
            "Twice that time points to the network: are the fast adapters in use (`NCCL_DEBUG=INFO`)?"
        )
    lines += [
        "- Nothing after the first lines of every host: the ranks do not find each other. Look at "
        "`MASTER_ADDR`, the port, and `NCCL_SOCKET_IFNAME`.",
        "- Out of memory: plan again with a larger `--memory-reserve`.",
        "",
    ]
    return "\n".join(lines)


def hosts_step(problem: Problem, places: tuple[HostPlace, ...], file: str = "hosts.txt") -> str:
    """What to do with the host names, which stand in a file."""
    named = {host for c in problem.cluster.classes for host in c.hosts or ()}
    if all(place.name in named for place in places):
        return f"The order of `{file}` is the rank order; leave it as it is."
    return (
        f"The host names in `{file}` are invented: write yours in their place, each on a line with its own "
        "chip. The order of the lines is the rank order."
    )


def stage_table(
    problem: Problem, plan: Plan, places: tuple[HostPlace, ...], evaluation: Evaluation | None
) -> str:
    """What runs where, a line a stage, as a Markdown table."""
    header = ["stage", "chip", "hosts", "ranks", "layers", "recompute"]
    if plan.degrees_differ:
        header[4:4] = ["tensor x data parallel"]
    if evaluation is not None:
        header.append("expected memory, GiB of limit")
    rows = [header, ["---"] * len(header)]
    for i, stage in enumerate(plan.stages):
        row = [
            str(i),
            stage.chip,
            _span([place.name for place in places if i in place.stages]),
            _ranks(plan, i),
            ", ".join(f"{first}-{last}" if first <= last else "none" for first, last in stage.chunks),
            _recompute(problem, plan, stage),
        ]
        if plan.degrees_differ:
            row[4:4] = [f"{stage.tensor_parallel} x {stage.data_parallel}"]
        if evaluation is not None:
            told = evaluation.stages[i]
            row.append(f"{told.peak_memory_gib:.1f} of {told.limit_gib:.1f}")
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)})"


def _ranks(plan: Plan, stage: int) -> str:
    ranks = [rank for rank in range(plan.world_size) if stage_of_rank(plan, rank) == stage]
    if ranks[-1] - ranks[0] + 1 == len(ranks):
        return f"{ranks[0]}-{ranks[-1]}"
    return f"{ranks[0]}, ... {ranks[-1]} ({len(ranks)})"


def _recompute(problem: Problem, plan: Plan, stage: Stage) -> str:
    if stage.recompute == "full" and stage.recompute_piece > 1:
        return f"all layers, by {stage.recompute_piece}"
    if stage.recompute == "full":
        each = " of each chunk" if len(stage.chunks) > 1 else ""
        return f"first {stage.recompute_layers} layers{each}"
    if stage.recompute == "none":
        return "none"
    modules = recompute_modules(problem, plan)
    return "core attention" if modules == ("core_attn",) else ", ".join(modules)


def notes_text(
    problem: Problem, plan: Plan, evaluation: Evaluation | None, of_network: tuple[str, ...]
) -> str:
    """What was taken for granted, with what these files cannot state of the network; empty for nothing."""
    notes = list(evaluation.assumptions) if evaluation is not None else []
    notes += of_network
    notes += [f"**Other software**: {told}." for told in told_of_software(problem, plan.target)]
    backends = sorted({problem.chips[stage.chip].backend for stage in plan.stages})
    for backend in backends:
        if backend != "cuda":
            notes.append(
                f"Chips of the platform {backend}: the environment follows its vendor's scripts where there "
                "are any, but is untried here."
            )
    if problem.model.hybrid is not None:
        notes.append("Mamba layers: the packages mamba-ssm and causal-conv1d are installed on every node.")
    if problem.model.linear_attention is not None:
        notes.append(PACKAGE)
    trouble = mixed_platforms(problem, plan)
    if trouble is not None:
        notes.append(f"**Mixed platforms**: {trouble}.")
    if not notes:
        return ""
    return "## Taken for granted\n\n" + "\n".join(f"- {note}" for note in notes)
