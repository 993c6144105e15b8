"""Tables of what is shipped: key facts and sources of chips, models, clusters, problems, stacks, targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from planner.data.chip import Chip
from planner.data.cluster import Cluster
from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack
from planner.report import words

TARGETS: list[dict[str, Any]] = [
    {
        "id": "megatron-lm",
        "supported": True,
        "can": "one TP, CP, EP, DP and micro-batch size for all stages; any layers per stage; "
        "recompute per stage; stages on different chips",
        "cannot": "TP or DP per stage; unequal micro-batches between replicas",
        "source": "Megatron-LM core_v0.19.0, megatron/training/arguments.py",
    },
    {
        "id": "megatron-bridge",
        "supported": False,
        "can": "as megatron-lm, as overrides of a recipe; recompute equal on all stages",
        "cannot": "the same",
        "source": "Megatron-Bridge 0.6.2, ConfigContainer",
    },
    {
        "id": "flagscale",
        "supported": False,
        "can": "TP and DP per stage, recompute per stage",
        "cannot": "context parallelism, virtual stages, unequal micro-batches",
        "source": "FlagScale 16a2dd5, hetero parallel arguments",
    },
    {
        "id": "unrestricted",
        "supported": False,
        "can": "also replicas of different shape with micro-batches of their own",
        "cannot": "be launched: the plan is written as JSON only",
        "source": "no launcher",
    },
]
"""Launchers, with what each can express."""


def table(kind: str, records: Sequence[Any]) -> Table:
    """The table of a kind: chips, models, clusters, problems or stacks."""
    makers = {
        "chips": chips_table,
        "models": models_table,
        "clusters": clusters_table,
        "problems": problems_table,
        "stacks": stacks_table,
    }
    made: Table = makers[kind](records)  # type: ignore[operator]
    return made


def chips_table(chips: Sequence[Chip]) -> Table:
    """Memory, peak rates and links of chips."""
    made = _table("chip", ">GiB", ">bf16 TFLOP/s", ">memory GB/s", ">link GB/s", ">a node", "source")
    for chip in chips:
        made.add_row(
            chip.id,
            f"{chip.memory_gib:g}",
            "-" if chip.bf16_tflop_per_s is None else f"{chip.bf16_tflop_per_s:g}",
            f"{chip.memory_bandwidth_gb_per_s:g}",
            f"{chip.intra_node_bandwidth_gb_per_s:g}",
            str(chip.chips_per_node),
            f"{chip.confidence}: {chip.source}",
        )
    return made


def models_table(models: Sequence[ModelSpec]) -> Table:
    """Size and shape of models."""
    from planner.cost.parameters import total_parameters

    made = _table("model", ">parameters", ">layers", ">hidden", ">heads", "kind", "source")
    for model in models:
        heads = str(model.num_attention_heads)
        if model.mla is None and model.num_query_groups != model.num_attention_heads:
            heads += f"/{model.num_query_groups}"
        made.add_row(
            model.id,
            words.count(total_parameters(model)),
            str(model.num_layers),
            str(model.hidden_size),
            heads,
            _kind(model),
            model.source,
        )
    return made


def _kind(model: ModelSpec) -> str:
    """Dense or what makes it special: `MoE 8 of 256, MLA`."""
    parts = []
    if model.hybrid is not None:
        parts.append("hybrid")
    if model.moe is not None:
        parts.append(f"MoE {model.moe.top_k} of {model.moe.num_experts}")
    if model.mla is not None:
        parts.append("MLA")
    return ", ".join(parts) or "dense"


def clusters_table(clusters: Sequence[Cluster]) -> Table:
    """Nodes and network of clusters."""
    made = _table("cluster", ">chips", "nodes", "network", "source")
    for cluster in clusters:
        networks = [f"{c.nics_per_node} x {c.nic_gbit_per_s:g} Gbit/s {c.transport}" for c in cluster.classes]
        made.add_row(
            cluster.id,
            f"{cluster.num_chips:,}",
            words.nodes_of(cluster),
            " + ".join(dict.fromkeys(networks)),
            f"{cluster.basis}: {cluster.source}" if cluster.source else cluster.basis,
        )
    return made


def problems_table(problems: Sequence[Problem]) -> Table:
    """Model, cluster and batch of problems."""
    made = _table("problem", "model", ">chips", "nodes", ">sequence", ">batch", "precision", "target")
    for problem in problems:
        made.add_row(
            problem.name,
            problem.model.id,
            f"{problem.cluster.num_chips:,}",
            words.nodes_of(problem.cluster),
            f"{problem.workload.seq_length:,}",
            f"{problem.workload.global_batch_size:,}",
            problem.workload.precision,
            problem.target,
        )
    return made


def stacks_table(stacks: Sequence[SoftwareStack]) -> Table:
    """Overlaps and overheads of software stacks."""
    made = _table("stack", "overlaps", ">context GiB", ">host floor ms", "source")
    for stack in stacks:
        overlaps = [
            f"TP {100 * stack.tp_overlap_fraction:.0f}%" if stack.tp_overlap_fraction else "",
            "DP" if stack.dp_overlap else "",
            "PP" if stack.p2p_overlap else "",
        ]
        made.add_row(
            stack.id,
            ", ".join(filter(None, overlaps)) or "none",
            f"{stack.context_gib:g}",
            f"{stack.host_layer_floor_ms:g}",
            stack.source,
        )
    return made


def targets_table() -> Table:
    """What each launcher can express."""
    made = _table("target", "supported", "can express", "cannot", "source")
    for target in TARGETS:
        made.add_row(
            target["id"],
            "yes" if target["supported"] else "not yet",
            target["can"],
            target["cannot"],
            target["source"],
        )
    return made


def _table(*headings: str) -> Table:
    """An empty table; a heading that begins with > is of a column of numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        numbers = heading.startswith(">")
        made.add_column(
            heading.removeprefix(">"),
            justify="right" if numbers else "left",
            no_wrap=i == 0,
            overflow="fold",
        )
    return made
