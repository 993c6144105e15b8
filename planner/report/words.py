"""Short wordings for tables: host ranges, layer ranges, what sets one plan apart from another."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from planner.data.cluster import Cluster
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.units import BILLION, MS, format_seconds

_NUMBERED = re.compile(r"^(.*?)(\d+)(\D*)$")


def compact_hosts(hosts: Sequence[str]) -> str:
    """Hosts as ranges of their numbers: `node000-node007, gpu12`."""
    runs: list[tuple[str, str]] = []
    for host in hosts:
        if runs and _follows(runs[-1][1], host):
            runs[-1] = (runs[-1][0], host)
        else:
            runs.append((host, host))
    return ", ".join(first if first == last else f"{first}-{last}" for first, last in runs)


def _follows(host: str, next_host: str) -> bool:
    """Whether two names differ only by a number that is one higher, written as wide."""
    a, b = _NUMBERED.match(host), _NUMBERED.match(next_host)
    if a is None or b is None:
        return False
    same = a.group(1) == b.group(1) and a.group(3) == b.group(3)
    as_wide = len(a.group(2)) == len(b.group(2)) or not b.group(2).startswith("0")
    return same and as_wide and int(b.group(2)) == int(a.group(2)) + 1


def predicted(step_s: float, error_band: float) -> str:
    """A predicted time with the error that it may have: `43.1 s ±10%`."""
    return f"{format_seconds(step_s)} ±{100 * error_band:.0f}%"


def layers_of(stage: Stage) -> str:
    """First and last layer of every chunk, and how many in all: `0-24 (25)`; a dash where one has none."""
    return f"{', '.join(map(_range_of, stage.chunks))} ({stage.num_layers})"


def _range_of(chunk: tuple[int, int]) -> str:
    first, last = chunk
    if last < first:
        return "-"
    return str(first) if first == last else f"{first}-{last}"


def recompute_of(stage: Stage) -> str:
    """What a stage recomputes: `none`, `selective`, `full 3/25` (layers of how many), `full 8/8 by 4`."""
    if stage.recompute != "full":
        return stage.recompute
    recomputed = sum(min(stage.recompute_layers, last - first + 1) for first, last in stage.chunks)
    pieces = f" by {stage.recompute_piece}" if stage.recompute_piece > 1 else ""
    return f"full {recomputed}/{stage.num_layers}{pieces}"


def chips_of(plan: Plan, stage: Stage) -> str:
    """How many chips of which kind a stage has: `64 x h100-sxm-80gb`, joined by + where it mixes them."""
    counts: dict[str, int] = {}
    for _, chip, size in _shares(plan, stage):
        counts[chip] = counts.get(chip, 0) + size
    return " + ".join(f"{number} x {chip}" for chip, number in counts.items())


def _shares(plan: Plan, stage: Stage) -> list[tuple[str, str, int]]:
    """Node class, chip and number of chips of each part of a stage."""
    degrees = stage.tensor_parallel_degrees
    sizes = [sum(degrees)] if stage.replicas is None else list(degrees)
    return [
        (node_class, chip, size * plan.context_parallel)
        for (node_class, chip, _), size in zip(stage.places, sizes, strict=True)
    ]


def nodes_of(cluster: Cluster) -> str:
    """What a cluster is made of: `8 nodes of 8 h100-sxm-80gb + 8 nodes of 8 a100-sxm-80gb`."""
    return " + ".join(
        f"{c.num_nodes} {'node' if c.num_nodes == 1 else 'nodes'} of {c.chips_per_node} {c.chip}"
        for c in cluster.classes
    )


def idle_chips(problem: Problem, plan: Plan) -> str:
    """Chips that a plan does not use, by node class: `16 x a100-sxm-80gb`; empty where it uses all."""
    used: dict[str, int] = {}
    for stage in plan.stages:
        for node_class, _, size in _shares(plan, stage):
            used[node_class] = used.get(node_class, 0) + size
    left = [(c.num_chips - used.get(c.name, 0), c.chip) for c in problem.cluster.classes]
    return ", ".join(f"{number:,} x {chip}" for number, chip in left if number > 0)


def milliseconds(seconds: float) -> str:
    """Milliseconds with three or four digits: `9.87`, `123.4`, `4567`."""
    value = seconds / MS
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def count(number: float) -> str:
    """A large count in words of a reader: `70.6 billion`, `4.19 million`, `8,192`."""
    if number >= BILLION:
        return f"{number / BILLION:,.1f} billion"
    if number >= BILLION / 1000:
        return f"{number / (BILLION / 1000):.2f} million"
    return f"{number:,.0f}"


def degrees_of(plan: Plan) -> str:
    """The degrees in the short form of the field: `tp 8, dp 2, pp 8`, with cp and ep where above one.

    Where stages differ, all values in the order in which they come: `tp 8/4, dp 2/4, pp 8`. Pipelines are
    told one by one, with the micro-batches of each.
    """
    if plan.pipelines is not None:
        return " + ".join(
            f"({degrees_of(p)}, {p.num_microbatches} micro-batches)" for p in plan.pipeline_plans
        )

    def values(own: int, of_stages: list[int]) -> str:
        return "/".join(map(str, dict.fromkeys(of_stages if plan.degrees_differ else [own])))

    parts = [f"tp {values(plan.tensor_parallel, [s.tensor_parallel for s in plan.stages])}"]
    if plan.context_parallel > 1:
        parts.append(f"cp {plan.context_parallel}")
    if plan.expert_parallel > 1:
        parts.append(f"ep {plan.expert_parallel}")
    parts.append(f"dp {values(plan.data_parallel, [s.data_parallel for s in plan.stages])}")
    parts.append(f"pp {plan.pipeline_parallel}")
    if plan.virtual_stages > 1:
        parts.append(f"{plan.virtual_stages} virtual stages")
    return ", ".join(parts)


def chip_runs(plan: Plan) -> str:
    """Chips of the stages as runs along the pipeline: `2 stages a100-sxm-80gb, 6 stages h100-sxm-80gb`."""
    runs = [(chip, len(list(run))) for chip, run in itertools.groupby(s.chip for s in plan.stages)]
    return ", ".join(f"{n} {'stage' if n == 1 else 'stages'} {chip}" for chip, n in runs)


def layer_runs(plan: Plan) -> str:
    """Layers of the stages as runs along the pipeline: `4 x 9, 2 x 11, 10`."""
    runs = [(n, len(list(run))) for n, run in itertools.groupby(s.num_layers for s in plan.stages)]
    return ", ".join(str(layers) if times == 1 else f"{times} x {layers}" for layers, times in runs)


def recompute_runs(plan: Plan) -> str:
    """Recompute of the stages as runs along the pipeline: `2 x full 3/9, 4 x none`."""
    runs = [(word, len(list(run))) for word, run in itertools.groupby(map(recompute_of, plan.stages))]
    return ", ".join(word if times == 1 else f"{times} x {word}" for word, times in runs)


def differences(best: Plan, other: Plan) -> str:
    """What `other` decides differently from `best`, the coarse choices first."""
    scalars = [
        ("tp", best.tensor_parallel, other.tensor_parallel),
        ("cp", best.context_parallel, other.context_parallel),
        ("ep", best.expert_parallel, other.expert_parallel),
        ("dp", best.data_parallel, other.data_parallel),
        ("pp", best.pipeline_parallel, other.pipeline_parallel),
        ("virtual stages", best.virtual_stages, other.virtual_stages),
        ("micro-batch size", best.microbatch_size, other.microbatch_size),
        ("chips", best.world_size, other.world_size),
    ]
    parts = [f"{name} {after} (not {before})" for name, before, after in scalars if before != after]
    if best.sequence_parallel != other.sequence_parallel:
        parts.append(f"sequence parallel {'on' if other.sequence_parallel else 'off'}")
    if best.dp_mode != other.dp_mode:
        parts.append(other.dp_mode)
    if [s.chip for s in best.stages] != [s.chip for s in other.stages]:
        parts.append(chip_runs(other))
    if layer_runs(best) != layer_runs(other):
        parts.append(f"layers {layer_runs(other)}")
    if recompute_runs(best) != recompute_runs(other):
        parts.append(f"recompute {recompute_runs(other)}")
    return "; ".join(parts) or "hosts or rank order only"


def uneven_experts(problem: Problem, most: float) -> str:
    """How unevenly tokens may come to the experts, and what to do where that is too little."""
    asked = problem.workload.expert_imbalance
    planned = "an even load" if asked == 1.0 else f"{asked:g} times an even share on the busiest rank"
    return (
        f"planned for {planned}; memory holds up to {most:.2f} times an even share of the tokens on one rank "
        "(--expert-imbalance plans for more)"
    )
