"""Brute force over all plans of a small problem, scored by the referee's own pieces.

For every row of degrees, every order of classes and every split of the layers, all combinations of
recomputation are run through the referee's simulation at once. The enumeration of degrees, orders and
splits is written here anew: it shares nothing with the search but the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.cost.hops import block_on_sends, hop_send_s
from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.cost.stage import (
    StageContent,
    chunk_times,
    exposed_gather_s,
    exposed_reduce_s,
    optimizer_s,
)
from planner.cost.stage_memory import memory_bytes
from planner.data.problem import Problem
from planner.rules.chips import chip_supports, tp_fits_node
from planner.rules.experts import (
    expert_ranks_divide_stage,
    expert_replicas_match,
    expert_width_splits,
    experts_split,
)
from planner.rules.sequence import (
    class_attends_in_parts,
    context_splits,
    experts_have_sequence_parallel,
)
from planner.rules.target import TARGETS
from planner.rules.tensor import tp_is_legal
from planner.simulate.deferred import deferred_stage_ends_s
from planner.simulate.pipeline import stage_ends_s
from planner.tolerances import MEMORY_TOL_BYTES

MAX_PLANS = 2_000_000


@dataclass
class Best:
    """The best plan of the enumeration, and how many were scored."""

    step_s: float = float("inf")
    num_plans: int = 0
    what: tuple[object, ...] = ()


@dataclass(frozen=True)
class Option:
    """What one stage may hold: layers and recomputation, with everything the referee says of it."""

    layers: int
    recompute: str
    recompute_layers: int
    forward_s: float
    backward_s: float
    reduce_s: float
    follow_s: float
    fits: bool


def brute_force(problem: Problem) -> Best:
    """The least step time over all plans of target megatron-lm or megatron-bridge without virtual stages.

    Leading layers of another kind all lie on the first stage, as in the search.
    """
    found = brute_force_by_hosts(problem)
    best = min(found.values(), key=lambda of_hosts: of_hosts.step_s, default=Best())
    return Best(best.step_s, sum(of_hosts.num_plans for of_hosts in found.values()), best.what)


def brute_force_by_hosts(problem: Problem) -> dict[tuple[int, ...], Best]:
    """The same for each number of hosts of every class."""
    found: dict[tuple[int, ...], Best] = {}
    for degrees, num_microbatches in degrees_of(problem):
        prices = price(problem, degrees)
        size = int(degrees.tensor_parallel[0] * degrees.context_parallel[0] * degrees.data_parallel[0])
        for order in orders_of(problem, degrees):
            best = found.setdefault(hosts_taken(problem, order, size), Best())
            most = problem.model.num_layers - len(order) + 1
            options = [
                options_of_stage(problem, prices, order, s, most, num_microbatches) for s in range(len(order))
            ]
            _score_order(problem, prices, degrees, num_microbatches, size, order, best, options)
            assert sum(of_hosts.num_plans for of_hosts in found.values()) <= MAX_PLANS
    return found


def brute_force_by_cut(problem: Problem) -> Best:
    """The same for layers of several kinds in any order: every cut of every order for itself."""
    best, layers = Best(), problem.model.num_layers
    for degrees, num_microbatches in degrees_of(problem):
        prices = price(problem, degrees)
        kinds = tuple(prices.kinds.index(kind) for kind in problem.model.kind_of_layer)
        size = int(degrees.tensor_parallel[0] * degrees.context_parallel[0] * degrees.data_parallel[0])
        for order in orders_of(problem, degrees):
            for cuts in itertools.combinations(range(1, layers), len(order) - 1):
                runs = [kinds[a:e] for a, e in itertools.pairwise((0, *cuts, layers))]
                options = [
                    _options_of_run(problem, prices, order, s, run, num_microbatches)
                    for s, run in enumerate(runs)
                ]
                _score_order(problem, prices, degrees, num_microbatches, size, order, best, options)
            assert best.num_plans <= MAX_PLANS
    return best


def degrees_of(problem: Problem) -> Iterator[tuple[Degrees, int]]:
    batch, length = problem.workload.global_batch_size, problem.workload.seq_length
    model = problem.model
    experts = model.moe.num_experts if model.moe else 1
    contexts = [cp for cp in (1, 2, 4, 8) if cp <= problem.options.max_context_parallel]
    if not problem.stack.flash_attention:
        contexts = [1]
    batches = range(1, batch + 1)
    for tp, cp, sp, mbs, dp, ep, etp in itertools.product(
        range(1, 9), contexts, (False, True), batches, batches, range(1, experts + 1), range(1, 9)
    ):
        if context_splits(problem.workload, cp) is not None:
            continue
        if etp not in (1, tp) or (model.moe is None and etp != tp):
            continue
        if model.moe is not None and not _experts_are_legal(problem, tp, cp, sp, dp, ep, etp):
            continue
        if (
            not tp_is_legal(problem.model, tp)
            or batch % (mbs * dp)
            or (sp and (tp == 1 or length % (cp * tp)))
        ):
            continue
        if mbs > problem.options.max_microbatch_size:
            continue
        yield (
            Degrees.single(
                tensor_parallel=tp,
                context_parallel=cp,
                data_parallel=dp,
                microbatch_size=mbs,
                sequence_parallel=sp,
                expert_parallel=ep,
                expert_tensor_parallel=etp,
            ),
            batch // (mbs * dp),
        )


def _experts_are_legal(problem: Problem, tp: int, cp: int, sp: bool, dp: int, ep: int, etp: int) -> bool:
    refusals = (
        experts_split(problem.model, ep),
        expert_width_splits(problem.model, etp),
        expert_ranks_divide_stage(tp, cp, dp, etp, ep),
        expert_replicas_match(tp, cp, dp, etp, ep, "tp-cp-ep-dp-pp"),
        experts_have_sequence_parallel(problem.model, tp, sp),
    )
    return all(refusal is None for refusal in refusals)


def orders_of(problem: Problem, degrees: Degrees) -> Iterator[tuple[int, ...]]:
    classes, tp = problem.cluster.classes, int(degrees.tensor_parallel[0])
    cp = int(degrees.context_parallel[0])
    size = tp * cp * int(degrees.data_parallel[0])
    allowed = [
        c
        for c, node_class in enumerate(classes)
        if tp_fits_node(tp, node_class.chips_per_node)
        and chip_supports(problem.chip_of(c), problem.workload.precision)
        and class_attends_in_parts(problem, c, cp) is None
    ]
    for p in range(1, problem.model.num_layers + 1):
        for order in itertools.product(allowed, repeat=p):
            hosts = hosts_taken(problem, order, size)
            if all(used <= classes[c].num_nodes for c, used in enumerate(hosts)):
                yield order


def hosts_taken(problem: Problem, order: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Hosts of each class that an order takes: each run of a class begins on a host of its own."""
    hosts = [0] * len(problem.cluster.classes)
    for c, run in itertools.groupby(order):
        hosts[c] += -(-len(list(run)) * size // problem.cluster.classes[c].chips_per_node)
    return tuple(hosts)


def options_of_stage(
    problem: Problem, prices: Prices, order: tuple[int, ...], s: int, most: int, num_microbatches: int
) -> list[Option]:
    kind_of_layer = [prices.kinds.index(kind) for kind in problem.model.kind_of_layer]
    num_lead = kind_of_layer.count(0) if len(prices.kinds) > 1 and s == 0 else 0
    runs = [
        tuple(kind_of_layer[:n] if s == 0 else kind_of_layer[-n:]) for n in range(max(1, num_lead), most + 1)
    ]
    return [
        option for run in runs for option in _options_of_run(problem, prices, order, s, run, num_microbatches)
    ]


def _options_of_run(
    problem: Problem,
    prices: Prices,
    order: tuple[int, ...],
    s: int,
    layers: tuple[int, ...],
    num_microbatches: int,
) -> list[Option]:
    """Every recomputation of one run of layers, given by kind, on stage s."""
    p, n, found = len(order), len(layers), []
    in_flight = min(num_microbatches, p - s)
    if problem.stack.plans_memory and num_microbatches > 1 and s < p - 1:
        in_flight = 2 * p + 1  # places planned ahead, taken or not
    kinds = [("none", 0), ("selective", 0), *(("full", r) for r in range(1, n + 1))]
    for recompute, count in kinds:
        content = StageContent(order[s], (layers,), s == 0, s == p - 1, recompute, count)
        forward, backward = (float(part.sum()) for part in chunk_times(prices, 0, content))
        memory = sum(memory_bytes(prices, 0, content, [in_flight], p).values())
        follow = float(prices.step_fixed_s[0, order[s]]) + optimizer_s(prices, 0, content)
        found.append(
            Option(
                n,
                recompute,
                count,
                forward,
                backward,
                exposed_reduce_s(prices, 0, content, backward),
                follow + exposed_gather_s(prices, 0, content, forward),
                memory <= problem.memory_limit_bytes(order[s]) + MEMORY_TOL_BYTES,
            )
        )
    return found


def are_alike(stages: list[Option]) -> bool:
    """Whether one setting gives all stages what they recompute; its number may exceed the layers of one."""
    number = max(stage.recompute_layers for stage in stages)
    return len({stage.recompute for stage in stages}) == 1 and all(
        stage.recompute_layers == min(number, stage.layers) for stage in stages
    )


def _score_order(
    problem: Problem,
    prices: Prices,
    degrees: Degrees,
    num_microbatches: int,
    size: int,
    order: tuple[int, ...],
    best: Best,
    options: list[list[Option]],
) -> None:
    p, layers = len(order), problem.model.num_layers
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]
    hops = hop_send_s(prices.send_s[0], prices.send_inside_s[0], order, size, per_node)
    counts = [np.array([option.layers for option in stage]) for stage in options]
    picks = np.stack(np.meshgrid(*[np.arange(len(stage)) for stage in options], indexing="ij"), -1).reshape(
        -1, p
    )
    picks = picks[sum(counts[s][picks[:, s]] for s in range(p)) == layers]
    best.num_plans += len(picks)
    fits = np.all([np.array([o.fits for o in options[s]])[picks[:, s]] for s in range(p)], axis=0)
    picks = picks[fits]
    if not TARGETS[problem.target].recompute_per_stage:
        picks = picks[[are_alike([options[s][i] for s, i in enumerate(pick)]) for pick in picks]]
    if len(picks) == 0:
        return

    def table(name: str) -> np.ndarray:
        return np.stack(
            [np.array([getattr(o, name) for o in options[s]])[picks[:, s]] for s in range(p)], axis=1
        )

    forward, backward = table("forward_s"), table("backward_s")
    ends = ends_of_stages_s(problem, forward, backward, hops, num_microbatches)
    tied = float(prices.tied_sync_s[0, order[0], order[-1]]) if p > 1 else 0.0
    step = (ends + table("reduce_s")).max(axis=1) + tied + table("follow_s").max(axis=1)
    i = int(np.argmin(step))
    if step[i] < best.step_s:
        chosen = [options[s][picks[i, s]] for s in range(p)]
        best.step_s = float(step[i])
        best.what = (
            int(degrees.tensor_parallel[0]),
            int(degrees.data_parallel[0]),
            int(degrees.microbatch_size[0]),
            bool(degrees.sequence_parallel[0]),
            int(degrees.expert_parallel[0]),
            int(degrees.context_parallel[0]),
            order,
            [(o.layers, o.recompute, o.recompute_layers) for o in chosen],
        )


def ends_of_stages_s(
    problem: Problem, forward_s: np.ndarray, backward_s: np.ndarray, hops_s: np.ndarray, num_microbatches: int
) -> np.ndarray:
    """End of every stage of many pipelines, [pipeline, stage], with the sends as the stack makes them."""
    stack, nothing = problem.stack, np.zeros((len(hops_s), 1))
    if stack.p2p_after_gradient and not stack.p2p_overlap:
        hops_s = np.broadcast_to(hops_s, forward_s.shape)
        return deferred_stage_ends_s(forward_s, backward_s, hops_s, num_microbatches)
    blocked = block_on_sends(nothing, nothing, hops_s, p2p_overlap=stack.p2p_overlap)
    return stage_ends_s(
        (forward_s + blocked[0][:, 0])[:, :, None],
        (backward_s + blocked[1][:, 0])[:, :, None],
        np.broadcast_to(blocked[2], forward_s.shape),
        num_microbatches,
    )
