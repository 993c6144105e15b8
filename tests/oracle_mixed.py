"""Brute force over all plans whose stages mix node classes, each scored whole by the referee.

Degrees, the classes of every stage, the ranks that each gives, the split of the layers and all combinations
of recomputation are enumerated here anew; which ranks fit on the hosts is dealt here too, and the referee's
rules have the last word. Ranks lie slowest class first, as in the search. No plan is faster than one of its
stages is busy by the referee, nor does one fit of which a stage does not: plans with a stage that the referee
found to take too much beside others are passed over.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Degrees
from planner.cost.pricing import price
from planner.data.plan import Plan, Replica, Stage
from planner.data.problem import Problem
from planner.rules.chips import chip_supports, tp_fits_node
from planner.search.kinds import layer_kinds
from planner.simulate.evaluate import evaluate
from planner.tolerances import MEMORY_TOL_BYTES
from planner.units import GIB
from tests.oracle_plans import degrees_of, ends_may_be_bare
from tests.oracles import layer_counts

MAX_PLANS = 60_000


@dataclass
class BestMixed:
    """The best plan with mixed stages, and how many were scored."""

    step_s: float = float("inf")
    num_plans: int = 0
    plan: Plan | None = None
    other_step_s: float = float("inf")
    """The best of those whose mixed stages take more than what whole stages leave."""


def brute_force_mixed(problem: Problem) -> BestMixed:
    """The least step time over all plans of target megatron-lm with at least one mixed stage."""
    best = BestMixed()
    for degrees, num_microbatches in degrees_of(problem):
        dp, ep = int(degrees.data_parallel[0]), int(degrees.expert_parallel[0])
        if dp == 1 or ep > 1:
            continue
        speed = _speeds(problem, degrees)
        for stages in _ranks(problem, degrees, speed):
            takes_rest, known = _takes_what_is_left(problem, degrees, stages), dict[Content, float]()
            for plan in _plans(problem, degrees, num_microbatches, stages):
                best.num_plans += 1
                assert best.num_plans <= MAX_PLANS
                contents = _contents(plan)
                reached_s = best.step_s if takes_rest else best.other_step_s
                if any(known.get(content, 0.0) >= reached_s for content in contents):
                    continue
                evaluation = evaluate(problem, plan)
                for content, stage in zip(contents, evaluation.stages, strict=True):
                    fits = stage.peak_memory_gib <= stage.limit_gib + MEMORY_TOL_BYTES / GIB
                    known[content] = stage.busy_s if fits else np.inf
                if evaluation.violations:
                    assert all("needs" in message for message in evaluation.violations), evaluation.violations
                    continue
                assert max(stage.busy_s for stage in evaluation.stages) <= evaluation.step_s
                if takes_rest:
                    if evaluation.step_s < best.step_s:
                        best.step_s, best.plan = evaluation.step_s, plan
                else:
                    best.other_step_s = min(best.other_step_s, evaluation.step_s)
    return best


Content = tuple[int, tuple[int, int], str, int]
"""Number of a stage, its layers, and what it recomputes of them."""


def _contents(plan: Plan) -> list[Content]:
    """What tells a stage from those that lie on the same ranks in other plans."""
    return [
        (s, stage.chunks[0], stage.recompute, stage.recompute_layers) for s, stage in enumerate(plan.stages)
    ]


def _speeds(problem: Problem, degrees: Degrees) -> dict[int, float]:
    """Time of one layer on every class that can take part."""
    prices, kinds = price(problem, degrees), layer_kinds(problem.model)
    assert kinds is not None
    tp = int(degrees.tensor_parallel[0])
    return {
        c: float((prices.layer_forward_s + prices.layer_backward_s)[0, kinds.main, c].sum())
        for c, node_class in enumerate(problem.cluster.classes)
        if tp_fits_node(tp, node_class.chips_per_node)
        and chip_supports(problem.chip_of(c), problem.workload.precision)
    }


RanksOfStage = tuple[tuple[int, int], ...]


def _ranks(problem: Problem, degrees: Degrees, speed: dict[int, float]) -> Iterator[tuple[RanksOfStage, ...]]:
    """Ranks of each class in every stage, slowest class first, at least one stage mixed."""
    dp = int(degrees.data_parallel[0])
    slowest_first = sorted(speed, key=lambda c: (-speed[c], -c))
    one_stage = [
        tuple((c, n) for c, n in zip(slowest_first, counts, strict=True) if n)
        for counts in itertools.product(range(dp + 1), repeat=len(slowest_first))
        if sum(counts) == dp
    ]
    rank = int(degrees.tensor_parallel[0] * degrees.context_parallel[0])
    chips = sum(problem.cluster.classes[c].num_chips for c in speed)
    most = problem.model.num_layers + sum(ends_may_be_bare(problem, 2))
    for p in range(1, min(most, chips // (rank * dp)) + 1):
        for stages in itertools.product(one_stage, repeat=p):
            if any(len(stage) > 1 for stage in stages) and _hosts(problem, stages, rank) is not None:
                yield stages


def _takes_what_is_left(problem: Problem, degrees: Degrees, stages: tuple[RanksOfStage, ...]) -> bool:
    """Whether mixed stages take only ranks that whole stages leave, and those come first."""
    rank = int(degrees.tensor_parallel[0] * degrees.context_parallel[0])
    dp = int(degrees.data_parallel[0])
    ranks = [node_class.num_chips // rank for node_class in problem.cluster.classes]
    mixed = [stage for stage in stages if len(stage) > 1]
    given: Counter[int] = Counter()
    for stage in mixed:
        given.update(dict(stage))
    whole = Counter(stage[0][0] for stage in stages if len(stage) == 1)
    return all(n <= ranks[c] % dp for c, n in given.items()) and all(
        whole[stage[0][0]] == ranks[stage[0][0]] // dp for stage in mixed
    )


def _hosts(
    problem: Problem, stages: tuple[RanksOfStage, ...], rank: int
) -> list[list[tuple[str, ...]]] | None:
    """Hosts of each rank, chips taken one by one; None where they run out."""
    free = [
        [(host, i) for host in problem.cluster.hosts_of(c) for i in range(node_class.chips_per_node)]
        for c, node_class in enumerate(problem.cluster.classes)
    ]
    before, found = -1, []
    for stage in stages:
        own = []
        for c, n in stage:
            if c != before:  # what is left on the host begun before stays idle
                while free[c] and free[c][0][1]:
                    free[c].pop(0)
            before = c
            for _ in range(n):
                if len(free[c]) < rank:
                    return None
                own.append(tuple(dict.fromkeys(free[c].pop(0)[0] for _ in range(rank))))
        found.append(own)
    return found


def _plans(
    problem: Problem, degrees: Degrees, num_microbatches: int, stages: tuple[RanksOfStage, ...]
) -> Iterator[Plan]:
    tp, dp = int(degrees.tensor_parallel[0]), int(degrees.data_parallel[0])
    hosts = _hosts(problem, stages, tp * int(degrees.context_parallel[0]))
    assert hosts is not None
    more = np.zeros(len(stages), dtype=np.int64)
    more[[0, -1]] = ends_may_be_bare(problem, len(stages))
    for counts in layer_counts(problem.model.num_layers + int(more.sum()), len(stages)):
        layers = (np.array(counts) - more).tolist()
        edges = np.cumsum([0, *layers])
        kinds = [
            [("none", 0), *([("selective", 0)] if n else []), *(("full", u) for u in range(1, n + 1))]
            for n in layers
        ]
        for recompute in itertools.product(*kinds):
            yield Plan(
                target="megatron-lm",
                tensor_parallel=tp,
                context_parallel=int(degrees.context_parallel[0]),
                expert_parallel=int(degrees.expert_parallel[0]),
                expert_tensor_parallel=int(degrees.expert_tensor_parallel[0]),
                data_parallel=dp,
                microbatch_size=int(degrees.microbatch_size[0]),
                num_microbatches=num_microbatches,
                sequence_parallel=bool(degrees.sequence_parallel[0]),
                stages=tuple(
                    _stage(problem, ranks, own, (int(edges[s]), int(edges[s + 1]) - 1), recompute[s], tp)
                    for s, (ranks, own) in enumerate(zip(stages, hosts, strict=True))
                ),
            )


def _stage(
    problem: Problem,
    ranks: RanksOfStage,
    hosts: list[tuple[str, ...]],
    layers: tuple[int, int],
    recompute: tuple[str, int],
    tp: int,
) -> Stage:
    classes = [problem.cluster.classes[c] for c, n in ranks for _ in range(n)]
    replicas = tuple(
        Replica(node_class=c.name, chip=c.chip, hosts=own, tensor_parallel=tp)
        for c, own in zip(classes, hosts, strict=True)
    )
    return Stage(
        layers=layers,
        chip=classes[0].chip,
        node_class=classes[0].name,
        hosts=tuple(dict.fromkeys(host for own in hosts for host in own)),
        tensor_parallel=tp,
        data_parallel=len(classes),
        recompute=recompute[0],  # type: ignore[arg-type]
        recompute_layers=recompute[1],
        replicas=replicas if len(ranks) > 1 else None,
    )
