"""What pipelines side by side may be: any number of replicas, whether or not it divides the batch.

Their degrees are those of the narrower launchers without context parallelism. Only data parallelism and
micro-batch sizes are freer, as the shares of the batch need not be equal: sizes are the divisors of the batch
and all powers of two, of which each pipeline runs a whole number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.communication.exchange import exchange_link, exchanged_parameters
from planner.cost.communication.resharding import StageShape
from planner.cost.prices import Degrees, Floats
from planner.data.problem import Problem
from planner.rules.experts import expert_ranks_divide_stage, expert_replicas_match
from planner.search.degrees import DegreeTable, Row, allows, divisors, list_degrees
from planner.search.meshes.shapes import Batch

EVERY_DEGREE = 8
"""Data-parallel degrees up to which all are looked at; beyond it four to each doubling, and those that
divide the batch."""

Ints = NDArray[np.int64]
Shared = tuple[bool, int, int | None]
"""Split of the sequence and experts' degrees, as `Batch.shared`."""


def replica_degrees(problem: Problem) -> DegreeTable:
    """Rows without context parallelism, with every data-parallel degree and size that is looked at."""
    table, batch = list_degrees(problem, odd=True), problem.workload.global_batch_size
    d = table.degrees
    columns = (
        d.tensor_parallel,
        d.expert_parallel,
        d.expert_tensor_parallel,
        d.microbatch_size,
        d.sequence_parallel,
    )
    held_by: dict[tuple[int, ...], Ints] = {}
    for choice in np.flatnonzero(d.context_parallel == 1).tolist():
        held_by[tuple(int(values[choice]) for values in columns)] = table.ranks[choice]
    rows: list[Row] = []
    ranks: list[Ints] = []
    for (tp, ep, etp, mbs, split), held in held_by.items():
        for dp in data_parallel_degrees(min(batch // mbs, int(held.max())), batch // mbs):
            row = Row(tp, 1, ep, etp, dp, mbs, split, batch // (dp * mbs))
            if allows(problem.options, row) and _experts_fit(problem, row):
                rows.append(row)
                ranks.append(held)
    values = np.array(rows, dtype=np.int64).reshape(len(rows), len(Row._fields)).T
    together = np.array(ranks, dtype=np.int64).reshape(len(rows), len(problem.cluster.classes))
    degrees = Degrees(values[0], values[1], values[2], values[3], values[4], values[5], values[6] > 0)
    stage_size = values[0] * values[1] * values[4]
    return DegreeTable(degrees, values[7], stage_size, together // values[4][:, None], together)


def _experts_fit(problem: Problem, row: Row) -> bool:
    """Whether the experts' ranks divide a stage with these degrees."""
    if problem.model.moe is None:
        return True
    refusals = (
        expert_ranks_divide_stage(row.tp, row.cp, row.dp, row.etp, row.ep),
        expert_replicas_match(row.tp, row.cp, row.dp, row.etp, row.ep, "tp-cp-ep-dp-pp"),
    )
    return all(refusal is None for refusal in refusals)


def data_parallel_degrees(most: int, replicas: int) -> list[int]:
    """Degrees up to `most`: small ones, four to each doubling, divisors of `replicas`, and the most."""
    degrees = set(range(1, min(most, EVERY_DEGREE) + 1)) | {d for d in divisors(replicas) if d <= most}
    step = EVERY_DEGREE // 4
    degree = EVERY_DEGREE
    while degree <= most:
        degrees |= {n for n in range(degree, 2 * degree, step) if n <= most}
        degree, step = 2 * degree, 2 * step
    return sorted(degrees | ({most} if most else set()))


def shared_rows(problem: Problem, table: DegreeTable) -> dict[Shared, list[int]]:
    """The rows of a table by what all pipelines of a mix share; some stand in several of them."""
    found: dict[Shared, list[int]] = {}
    for row in range(len(table)):
        for shared in _shared(problem, table, row):
            found.setdefault(shared, []).append(row)
    widths = table.degrees.tensor_parallel
    return {shared: rows for shared, rows in found.items() if not (shared[0] and (widths[rows] == 1).all())}


def widest_shares(found: Mapping[Shared, Sequence[int]]) -> dict[Shared, list[int]]:
    """Those whose rows no other one has all of: what bounds the mixes of these bounds those of all.

    With experts no stage of several chips is without a split, and one of a single chip stands beside split
    ones as well.
    """
    sets = {shared: frozenset(rows) for shared, rows in found.items()}
    order = {shared: number for number, shared in enumerate(sets)}

    def is_within(one: Shared, other: Shared) -> bool:
        same = sets[one] == sets[other]
        return order[other] < order[one] if same else sets[one] < sets[other]

    return {
        shared: list(rows)
        for shared, rows in found.items()
        if not any(is_within(shared, other) for other in sets if other != shared)
    }


def _shared(problem: Problem, table: DegreeTable, row: int) -> list[Shared]:
    """What the pipelines beside a stage of a row may share."""
    d = table.degrees
    experts = int(d.expert_tensor_parallel[row]) if problem.model.moe is not None else None
    split, tp = bool(d.sequence_parallel[row]), int(d.tensor_parallel[row])
    # With tensor parallel 1 the whole sequence lies on each rank, whatever the others do with it.
    cuts = (True,) if split else (False, True) if tp == 1 else (False,)
    return [(cut, int(d.expert_parallel[row]), experts) for cut in cuts]


def replica_batches(problem: Problem, table: DegreeTable) -> tuple[Batch, ...]:
    """One batch for each number of replicas, micro-batch size and choice of what all pipelines share.

    Each stage recomputes what it likes, and all stages of a pipeline have equal data parallelism.
    """
    d = table.degrees
    shapes: dict[tuple[Shared, int, int], list[StageShape]] = {}
    for row in range(len(table)):
        tp, dp, mbs = int(d.tensor_parallel[row]), int(d.data_parallel[row]), int(d.microbatch_size[row])
        for shared in _shared(problem, table, row):
            found = shapes.setdefault((shared, mbs, dp), [])
            for c in np.flatnonzero(table.max_stages[row]).tolist():
                found.append(StageShape(row, int(c), tp, dp, tp * dp))
    return tuple(
        Batch(
            sequences=mbs * dp,
            num_microbatches=problem.workload.global_batch_size // (mbs * dp),
            sequence_parallel=cut,
            expert_parallel=ep,
            expert_tensor_parallel=experts,
            selective=None,
            shapes=tuple(listed),
        )
        for ((cut, ep, experts), mbs, dp), listed in shapes.items()
        if listed and not (cut and all(shape.tensor_parallel == 1 for shape in listed))
    )


def exchange_floor_s(problem: Problem, num_pipelines: int) -> float:
    """What no plan of so many pipelines undercuts for the sum of their gradients [s].

    Stage s of pipeline g sends at least 2 (G - 1) / G of what it holds through its share of the adapters, at
    most W[g,s] bytes a second; all its stages hold the model P once, so that the slowest of them takes
    2 (G - 1) / G P / sum_s W[g,s], and of G pipelines one has at most a G-th of the cluster's adapters:

        exchange >= 2 (G - 1) P / W
    """
    nodes = [node_class.num_nodes for node_class in problem.cluster.classes]
    adapters = float(np.dot(nodes, adapter_rates(problem)))
    return 2 * (num_pipelines - 1) * exchanged_bytes(problem) / adapters


def exchanged_bytes(problem: Problem) -> float:
    """P: gradients of the model [bytes]."""
    parameters = exchanged_parameters(problem, 0, problem.model.num_layers, copies=False)
    return problem.stack.gradient_bytes * parameters


def adapter_rates(problem: Problem) -> Floats:
    """Most that a host of each class sends a second, [class] in bytes."""
    classes = range(len(problem.cluster.classes))
    return np.array([max(exchange_link(problem, a, b)[0] for b in classes) for a in classes])
