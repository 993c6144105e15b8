"""List the legal degrees: tensor, context, expert and data parallel, micro-batch, sequence parallelism.

Context parallelism in powers of two only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Degrees
from planner.cost.profiles import is_measured
from planner.data.attention_kernels import keeps_scores
from planner.data.options import Options
from planner.data.problem import Problem
from planner.rules.chips import chip_supports, tp_fits_node
from planner.rules.experts import (
    biased_experts_stay_whole,
    expert_ranks_divide_stage,
    expert_replicas_match,
    expert_width_splits,
    experts_split,
)
from planner.rules.narrow import expert_widths_fill_blocks, tensor_widths_fill_blocks
from planner.rules.sequence import (
    attention_runs_in_parts,
    context_splits,
    exchanged_heads_split,
    fp8_tokens_fill_rows,
    linear_heads_split_twice,
    sequence_parallel_is_legal,
    sequence_parallel_is_required,
)
from planner.rules.tensor import tp_is_legal
from planner.search.kinds import layer_kinds

MAX_VIRTUAL_STAGES = 12
"""Most virtual stages of a rank where the user says nothing."""
MOST_INTERLEAVED_CHIPS = 20_000
"""Chips of a cluster of several classes up to which virtual stages are looked at without being asked for."""
LEAST_APART = 3
"""Stages of a pipeline with predictions before its last stage: none of them are on the first one."""


@dataclass(frozen=True)
class DegreeTable:
    """All legal rows of degrees, with what follows from them."""

    degrees: Degrees
    num_microbatches: NDArray[np.int64]
    """[choice] micro-batches of a step on one replica."""
    stage_size: NDArray[np.int64]
    """[choice] chips of a stage."""
    max_stages: NDArray[np.int64]
    """[choice, node_class] stages that a class can hold; 0 where it cannot take part."""
    ranks: NDArray[np.int64]
    """[choice, node_class] data-parallel ranks that a class can hold; 0 where it cannot take part."""
    busy: tuple[int, ...] = ()
    """Node classes that must not stay idle."""
    num_plain: int | None = None
    """Rows of plans whose last stage holds all predictions of further tokens; behind them stand the same rows
    with predictions on the stage before (`planner.search.apart`). None where all rows are such."""
    own_stages: NDArray[np.int64] | None = None
    """[choice, node_class] `max_stages` where `planner.search.same_nodes` counts no classes as one."""
    same_nodes: tuple[tuple[int, ...], ...] = ()
    """Sets of node classes that it counts as one, under the first of each."""

    def __len__(self) -> int:
        return len(self.num_microbatches)

    def is_apart(self, choice: int) -> bool:
        """Whether predictions of further tokens are on the stage before the last."""
        return self.num_plain is not None and choice >= self.num_plain

    def rows_apart(self, choice: int) -> tuple[int, int] | None:
        """Rows of the prices of the last stage and of that before it; None where all stages have one."""
        if self.num_plain is None or choice < self.num_plain:
            return None
        return choice + self.num_plain, choice + 2 * self.num_plain

    def taken(self, rows: NDArray[np.int64]) -> DegreeTable:
        """Some rows, in the order asked for."""
        degrees: dict[str, Any] = {
            field.name: value[rows] if isinstance(value, np.ndarray) else value
            for field in fields(Degrees)
            for value in [getattr(self.degrees, field.name)]
        }
        return DegreeTable(
            Degrees(**degrees),
            self.num_microbatches[rows],
            self.stage_size[rows],
            self.max_stages[rows],
            self.ranks[rows],
            self.busy,
            own_stages=None if self.own_stages is None else self.own_stages[rows],
            same_nodes=self.same_nodes,
        )


def divisors(value: int) -> list[int]:
    """Divisors of a positive number, ascending."""
    small = [d for d in range(1, int(value**0.5) + 1) if value % d == 0]
    return sorted({*small, *(value // d for d in small)})


def list_degrees(problem: Problem, *, mixes: bool = False, odd: bool = False) -> DegreeTable:
    """Every row of degrees that the rules and the user's wishes allow, and some class can hold.

    Where stages may mix classes (`mixes`) also the rows whose stages only several together can hold. Where
    pipelines side by side may share the batch unevenly (`odd`) also powers of two that do not divide it.
    """
    rows = [row for row in _rows(problem, mixes=mixes, odd=odd) if allows(problem.options, row)]
    tp, cp, ep, etp, dp, mbs, sp, count = (
        np.array(rows, dtype=np.int64).reshape(len(rows), len(Row._fields)).T
    )
    stage_size = tp * cp * dp
    ranks = np.zeros((len(rows), len(problem.cluster.classes)), dtype=np.int64)
    for c, node_class in enumerate(problem.cluster.classes):
        if not chip_supports(problem.chip_of(c), problem.workload.precision):
            continue
        if node_class.name in problem.options.spare:
            continue
        fits = np.array(
            [
                tp_fits_node(int(degree), node_class.chips_per_node) and is_measured(problem, c, degree, size)
                for degree, size in zip(tp.tolist(), mbs.tolist(), strict=True)
            ],
            dtype=np.bool_,
        )
        if keeps_scores(problem, c):
            fits &= cp == 1
        ranks[:, c] = np.where(fits, node_class.num_chips // (tp * cp), 0)
    busy = tuple(
        c for c, node_class in enumerate(problem.cluster.classes) if node_class.name in problem.options.use
    )
    max_stages = ranks // dp[:, None]
    held = ranks.sum(axis=1) // dp if mixes else max_stages.sum(axis=1)
    kept = np.flatnonzero((held > 0) & (max_stages[:, list(busy)] > 0).all(axis=1))
    degrees = Degrees(tp[kept], cp[kept], ep[kept], etp[kept], dp[kept], mbs[kept], sp[kept].astype(np.bool_))
    return DegreeTable(degrees, count[kept], stage_size[kept], max_stages[kept], ranks[kept], busy)


MOST_MIXED_CHIPS = 20_000
"""Chips of a cluster up to which stages that mix node classes are looked at."""


def may_mix_stages(problem: Problem) -> bool:
    """Whether plans are looked at whose stages mix node classes (`planner.search.mixed`).

    Not where the user names classes that must work or keeps their order, not for layers of several kinds
    in any order, and not on very large clusters: what whole stages leave over is a small part of them.
    """
    options = problem.options
    return (
        problem.target == "megatron-lm"
        and len(problem.cluster.classes) > 1
        and problem.cluster.num_chips <= MOST_MIXED_CHIPS
        and "stages=mixed" not in options.forbid
        and not options.use
        and not options.keep_class_order
        and one_virtual_stage_is_allowed(options)
        and layer_kinds(problem.model) is not None
    )


class Row(NamedTuple):
    """One choice of degrees."""

    tp: int
    cp: int
    ep: int
    etp: int
    dp: int
    mbs: int
    sp: int
    num_microbatches: int


def allows(options: Options, row: Row) -> bool:
    """Whether the user's pins and prohibitions let a row of degrees be."""
    values = row._asdict()
    if any(values[name] != value for name, value in options.pin.items() if name in values):
        return False
    forbidden = (wish.partition("=") for wish in options.forbid)
    return all(str(values[name]) != value for name, _, value in forbidden if name in values)


def allowed_stages(options: Options, most: int) -> list[int]:
    """Numbers of stages up to `most` that the user's wishes let be."""
    pinned, ruled_out = options.pin.get("pp"), {wish for wish in options.forbid if wish.startswith("pp=")}
    stages = list(range(1, most + 1)) if pinned is None else [pinned] if pinned <= most else []
    return [count for count in stages if f"pp={count}" not in ruled_out] if ruled_out else stages


def length_is_allowed(options: Options, stages: int) -> bool:
    """Whether the user's pin and prohibitions let a number of stages be."""
    return options.pin.get("pp", stages) == stages and f"pp={stages}" not in options.forbid


def allowed_virtual_stages(problem: Problem, most: int) -> list[int]:
    """Numbers of virtual stages beyond one, up to `most`, that the user's wishes let be."""
    options = problem.options
    pinned, wished = options.pin.get("vp"), options.max_virtual_stages
    if wished is None and pinned is None:
        cluster = problem.cluster
        small = len(cluster.classes) == 1 or cluster.num_chips <= MOST_INTERLEAVED_CHIPS
        wished = MAX_VIRTUAL_STAGES if small else 1
    most = most if wished is None else min(most, wished)
    counts = range(2, most + 1) if pinned is None else [pinned] if 1 < pinned <= most else []
    return [count for count in counts if f"vp={count}" not in options.forbid]


def interleaving_is_asked_for(problem: Problem) -> bool:
    """Whether virtual stages are searched with all effort: the user names them, or all chips are alike."""
    options = problem.options
    wishes = options.max_virtual_stages is not None or "vp" in options.pin or "vp=1" in options.forbid
    return wishes or len(problem.cluster.classes) == 1


def one_virtual_stage_is_allowed(options: Options) -> bool:
    """Whether the user's wishes let stages be whole."""
    return options.pin.get("vp", 1) == 1 and "vp=1" not in options.forbid


def _rows(problem: Problem, *, mixes: bool, odd: bool) -> Iterator[Row]:
    """All rows that the rules allow on the largest class, or on all together."""
    model, workload, options = problem.model, problem.workload, problem.options
    largest_node = max(c.chips_per_node for c in problem.cluster.classes)
    most_tp = min(largest_node, options.max_tensor_parallel or largest_node)
    domain_chips = problem.least_fast_domain_chips
    most_chips = (sum if mixes else max)(c.num_chips for c in problem.cluster.classes)
    for tp, cp, sp in product(range(1, most_tp + 1), _context_degrees(problem), (0, 1)):
        if not tp_is_legal(model, tp) or tensor_widths_fill_blocks(model, workload.precision, tp):
            continue
        if linear_heads_split_twice(model, tp, cp) is not None:
            continue
        shared = model, problem.stack, tp, cp, domain_chips
        if attention_runs_in_parts(*shared) is not None or exchanged_heads_split(*shared) is not None:
            continue
        if sp and not sequence_parallel_is_legal(model, workload, tp, cp):
            continue
        if not sp and sequence_parallel_is_required(model, tp):
            continue
        for mbs in range(1, problem.most_microbatch_size + 1):
            replicas, is_odd = workload.global_batch_size // mbs, odd and cp == 1
            if workload.global_batch_size % mbs and not (is_odd and mbs.bit_count() == 1):
                continue
            if fp8_tokens_fill_rows(workload, tp, cp, mbs, bool(sp)) is not None:
                continue
            powers = {1 << i for i in range(replicas.bit_length())} if is_odd else set()
            for dp in sorted(powers.union(divisors(replicas))):
                if tp * cp * dp > most_chips:
                    continue
                for ep, etp in _expert_degrees(problem, tp, cp, dp):
                    yield Row(tp, cp, ep, etp, dp, mbs, sp, replicas // dp)


def _context_degrees(problem: Problem) -> list[int]:
    """Context-parallel degrees: powers of two that deal the sequence evenly, in pieces not too short.

    1 without fused attention on any class, which the exchange of keys and values is made for.
    """
    classes = range(len(problem.cluster.classes))
    fuses = problem.stack.flash_attention and not all(keeps_scores(problem, c) for c in classes)
    if not fuses or problem.model.hybrid is not None:
        return [1]
    degrees, degree = [], 1
    while degree <= problem.options.max_context_parallel:
        tokens = problem.workload.seq_length // degree
        long_enough = degree == 1 or tokens >= problem.options.least_context_tokens
        if long_enough and context_splits(problem.workload, degree) is None:
            degrees.append(degree)
        degree *= 2
    return degrees


def _expert_degrees(problem: Problem, tp: int, cp: int, dp: int) -> Iterator[tuple[int, int]]:
    """Expert and expert-tensor parallel degrees; 1 and the tensor degree for a model without experts."""
    model, order = problem.model, "tp-cp-ep-dp-pp"
    if model.moe is None:
        yield 1, tp
        return
    for ep in divisors(model.moe.num_experts):
        for etp in sorted({1, tp}):
            refusals = (
                experts_split(model, ep),
                expert_width_splits(model, etp),
                biased_experts_stay_whole(model, etp),
                expert_widths_fill_blocks(model, problem.workload.precision, etp),
                expert_ranks_divide_stage(tp, cp, dp, etp, ep),
                expert_replicas_match(tp, cp, dp, etp, ep, order),
            )
            if all(refusal is None for refusal in refusals):
                yield ep, etp
