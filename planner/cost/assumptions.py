"""What a prediction takes for granted, in sentences: tables, scaled chips, guessed links, software."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from planner.cost.kernels.relatives import Relative, has_own_tables
from planner.data.attention_kernels import keeps_scores, why_scores_are_kept
from planner.data.expert_kernels import chips_without_grouped_products
from planner.data.precision import chip_supports
from planner.data.problem import Problem
from planner.units import BYTES_PER_GBIT, format_percent


def assumptions(problem: Problem, relatives: Sequence[Relative]) -> tuple[str, ...]:
    """Everything, each once: of the chips, the network, the network's layers, the software.

    Parameters
    ----------
    relatives
        The measured chip behind each node class.
    """
    found = [*_of_chips(problem, relatives), *_of_links(problem), *_of_model(problem), *_of_stack(problem)]
    return tuple(dict.fromkeys(found))


def _of_chips(problem: Problem, relatives: Sequence[Relative]) -> Iterator[str]:
    for i, relative in enumerate(relatives):
        chip, table = problem.chip_of(i), relative.measured.table
        inside = relative.collective_table if problem.cluster.num_chips > 1 else ""
        profiled = problem.profile_of(i) is not None  # says so itself; no operator is looked up
        own = has_own_tables(chip) and not profiled
        if not profiled:
            yield from relative.assumptions
        if own:
            both = ", collectives inside a node" if inside == table else ""
            yield f"{chip.id}: products and attention{both} as measured on {table}"
        if relative.precision_scale != 1.0 and not profiled:
            yield (
                f"{chip.id}: no {problem.workload.precision} product was measured; {relative.gemm_precision} "
                f"ones taken at {relative.precision_scale:g} of their time"
            )
        if inside and not (own and inside == table):
            yield f"{chip.id}: collectives inside a node as measured on {inside}"
        factor = problem.stack.time_factor.get(chip.id)
        if factor is not None and not profiled:
            yield f"{chip.id}: computation takes {factor:g} of what tables say (time_factor of the stack)"
        if keeps_scores(problem, i) and not profiled and chip_supports(chip, problem.workload.precision):
            yield (
                f"{chip.id}: attention keeps its scores in memory, as Transformer Engine has no kernel "
                f"for it ({why_scores_are_kept(problem, i)})"
            )
        slower = chip.host_launch_factor
        if slower != 1.0 and problem.stack.host_layer_floor_ms > 0 and not profiled:
            yield f"{chip.id}: its host takes {slower:g} times as long to launch as an x86 one"


def _of_links(problem: Problem) -> Iterator[str]:
    cluster = problem.cluster
    yield from cluster.assumptions
    for i, node_class in enumerate(cluster.classes):
        if cluster.num_nodes > 1 and cluster.link_between(i, i)[0] <= 0:
            yield f"{node_class.name}: no adapters stated; 1 Gbit/s between its nodes"
        if node_class.num_nodes > 1 and node_class.transport != "rdma":
            yield f"{node_class.name}: what {node_class.transport} leaves of the adapters' rate is a guess"
    listed = [set(link.between) for link in cluster.links]
    for (a, first), (b, second) in combinations(enumerate(cluster.classes), 2):
        if {first.name, second.name} not in listed:
            rate = cluster.link_between(a, b)[0] / BYTES_PER_GBIT
            yield (
                f"{first.name} to {second.name}: no link stated; {rate:g} Gbit/s a node, "
                "the slower side's adapters"
            )
        if first.nic_make and second.nic_make and first.nic_make != second.nic_make:
            yield (
                f"{first.name} to {second.name}: adapters of two makers ({first.nic_make}, "
                f"{second.nic_make}) at their full rate, though groups across such have stalled for others "
                "(NVIDIA/nccl#1526); measure it, and state a slower link where it is"
            )
    for link in cluster.links:
        if link.transport != "rdma" and link.rate_basis == "rated":
            yield f"{' to '.join(link.between)}: what {link.transport} leaves of the link's rate is a guess"
    if any(c.num_nodes > 1 and c.nodes_per_switch is None for c in cluster.classes):
        yield "network: all nodes of a class reach each other at full rate (no nodes_per_switch stated)"


def _of_model(problem: Problem) -> Iterator[str]:
    model, workload = problem.model, problem.workload
    if "mamba" in model.layer_kinds:
        yield "Mamba layers: an estimate from their FLOP and bytes; no operator was measured"
    if model.linear_attention is not None:
        yield (
            "linear attention: an estimate from the bytes and FLOP of its kernels, and how fast they were on "
            "H200 and GB200; no layer was measured"
        )
    window = model.sliding_window or workload.seq_length
    if window < workload.seq_length and model.global_layer_every > 1:
        yield "layers with and without a sliding window: each priced as their mean"
    if model.moe is None:
        return
    lacking = chips_without_grouped_products(problem)
    if lacking and not problem.stack.experts_apart:
        yield (
            f"experts: one by one as modules of their own on all chips, as {', '.join(lacking)} has no "
            "grouped products; without it (--spare) they run grouped"
        )
    if model.moe.capacity_factor is not None:
        padded = ", padded to it" if model.moe.pad_to_capacity else ""
        yield f"experts: up to {model.moe.capacity_factor:g} of an even share of the tokens{padded}"
    elif workload.expert_imbalance == 1.0:
        yield "experts: evenly loaded (expert_imbalance of the workload is 1)"
    else:
        yield f"experts: the busiest rank gets {workload.expert_imbalance:g} of an even share of the tokens"


def _of_stack(problem: Problem) -> Iterator[str]:
    stack = problem.stack
    measured = all(problem.profile_of(i) is not None for i in range(len(problem.cluster.classes)))
    if stack.host_layer_floor_ms > 0 and not measured:
        yield (
            f"{stack.id}: the host needs {stack.host_layer_floor_ms:g} ms or more to launch a layer's "
            "forward (none with CUDA graphs)"
        )
    if stack.tp_userbuffers:
        yield f"{stack.id}: tensor-parallel communication beside pieces of the products (user buffers)"
    elif stack.tp_overlap_fraction > 0:
        share = format_percent(stack.tp_overlap_fraction)
        yield f"{stack.id}: {share} of tensor-parallel communication hidden behind products"
    if stack.has_dropout(problem.model):
        yield f"{stack.id}: dropout is on"
