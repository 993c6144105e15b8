"""What is shipped: key facts in a table, and below it what needs more room, the sources above all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.data.chip import Chip
from planner.data.cluster import Cluster
from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack
from planner.report import words
from planner.rules.target import TARGETS
from planner.units import BILLION

_FEATURES = {
    "has_launcher": "has a launcher",
    "tensor_parallel_per_stage": "TP per stage",
    "data_parallel_per_stage": "DP per stage",
    "recompute_per_stage": "recompute p. stage",
    "virtual_stages": "virtual stages",
    "context_parallel": "context parallel",
    "unequal_microbatches": "unequal m.-batches",
    "mixed_stages": "mixed stages",
    "tensor_parallel_per_replica": "TP per replica",
}
"""Heading of each feature of a target."""


def listing(kind: str, records: Sequence[Any]) -> RenderableType:
    """Table and details of a kind: chips, models, clusters, problems or stacks."""
    headings, facts, details = _KINDS[kind]
    table = _table(*headings)
    below = Table.grid(padding=(0, 2))
    below.add_column(style="bold", no_wrap=True)
    below.add_column(overflow="fold")
    for record in records:
        name = record.name if isinstance(record, Problem) else record.id
        table.add_row(name, *facts(record))
        below.add_row(name, details(record))
    title = Text("What runs where" if kind == "problems" else "Sources", style="bold underline")
    return Group(table, title, below)


def _chip_facts(chip: Chip) -> list[str]:
    return [
        f"{chip.memory_gib:g}",
        "-" if chip.bf16_tflop_per_s is None else f"{chip.bf16_tflop_per_s:g}",
        "-" if chip.fp8_tflop_per_s is None else f"{chip.fp8_tflop_per_s:g}",
        f"{chip.memory_bandwidth_gb_per_s:g}",
        f"{chip.intra_node_bandwidth_gb_per_s:g}",
        str(chip.chips_per_node),
    ]


def _chip_details(chip: Chip) -> str:
    return f"{chip.confidence}: {chip.source}"


def _model_facts(model: ModelSpec) -> list[str]:
    from planner.cost.parameters import total_parameters

    heads = str(model.num_attention_heads)
    if model.mla is None and model.num_query_groups != model.num_attention_heads:
        heads += f"/{model.num_query_groups}"
    return [
        f"{total_parameters(model) / BILLION:,.1f}",
        str(model.num_layers),
        str(model.hidden_size),
        heads,
        _kind_of(model),
    ]


def _kind_of(model: ModelSpec) -> str:
    """Dense, or what makes it special: `MoE 8 of 256, MLA`."""
    parts = []
    if model.hybrid is not None:
        parts.append("hybrid")
    if model.linear_attention is not None:
        parts.append(f"linear {model.linear_attention.pattern.count('L')} of {model.num_layers}")
    if model.moe is not None:
        parts.append(f"MoE {model.moe.top_k} of {model.moe.num_experts}")
    if model.mla is not None:
        parts.append("MLA")
    return ", ".join(parts) or "dense"


def _cluster_facts(cluster: Cluster) -> list[str]:
    return [f"{cluster.num_chips:,}", f"{cluster.num_nodes:,}", str(len(cluster.classes)), cluster.basis]


def _cluster_details(cluster: Cluster) -> str:
    networks = dict.fromkeys(
        f"{c.nics_per_node} x {c.nic_gbit_per_s:g} Gbit/s {c.transport}" for c in cluster.classes
    )
    return f"{words.nodes_of(cluster)}; {' + '.join(networks)} a node; {cluster.source or 'no source given'}"


def _problem_facts(problem: Problem) -> list[str]:
    work = problem.workload
    return [
        f"{problem.cluster.num_chips:,}",
        f"{work.seq_length:,}",
        f"{work.global_batch_size:,}",
        work.precision,
    ]


def _problem_details(problem: Problem) -> str:
    return f"{problem.model.id} on {words.nodes_of(problem.cluster)}"


def _stack_facts(stack: SoftwareStack) -> list[str]:
    fraction = f"TP {100 * stack.tp_overlap_fraction:.0f}%" if stack.tp_overlap_fraction else ""
    overlaps = [
        "TP by pieces" if stack.tp_userbuffers else fraction,
        "DP" if stack.dp_overlap else "",
        "PP" if stack.p2p_overlap else "PP with virtual stages" if stack.overlaps_sends(2) else "",
    ]
    return [
        ", ".join(filter(None, overlaps)) or "none",
        f"{stack.context_gib:g}",
        f"{stack.host_layer_floor_ms:g}",
    ]


def _source(record: ModelSpec | SoftwareStack) -> str:
    return record.source or "no source given"


_Words = Callable[[Any], str]
_KINDS: dict[str, tuple[tuple[str, ...], Callable[[Any], list[str]], _Words]] = {
    "chips": (
        (
            "chip",
            ">memory\nGiB",
            ">bf16\nTFLOP/s",
            ">fp8\nTFLOP/s",
            ">memory\nGB/s",
            ">link\nGB/s",
            ">a node",
        ),
        _chip_facts,
        _chip_details,
    ),
    "models": (
        ("model", ">billion\nparameters", ">layers", ">hidden", ">heads", "kind"),
        _model_facts,
        _source,
    ),
    "clusters": (
        ("cluster", ">chips", ">nodes", ">classes", "figures are"),
        _cluster_facts,
        _cluster_details,
    ),
    "problems": (
        ("problem", ">chips", ">sequence", ">batch", "format"),
        _problem_facts,
        _problem_details,
    ),
    "stacks": (
        ("stack", "overlaps", ">context\nGiB", ">host floor\nms a layer"),
        _stack_facts,
        _source,
    ),
}
"""Headings, facts of a record, and what stands below the table."""


def target_records() -> list[dict[str, Any]]:
    """What each launcher can express."""
    return [asdict(target) for target in TARGETS.values()]


def targets_table(records: Sequence[dict[str, Any]]) -> Table:
    """What each launcher can express, a column a launcher."""
    made = _table("", *(record["name"] for record in records))
    for feature, heading in _FEATURES.items():
        made.add_row(heading, *("yes" if record[feature] else "-" for record in records))
    return made


def _table(*headings: str) -> Table:
    """An empty table; a heading that begins with > is of a column of numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        made.add_column(
            heading.removeprefix(">"),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=i == 0,
            overflow="fold",
        )
    return made
