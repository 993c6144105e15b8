"""Brute force over all plans of a small problem, scored by the referee's own pieces.

For every row of degrees, every order of classes and every split of the layers, all combinations of
recomputation are run through the referee's simulation at once. The enumeration of degrees, orders and
splits is written here anew: it shares nothing with the search but the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planner.cost.communication.hops import block_on_sends, hop_send_s
from planner.cost.memory.stage import memory_bytes
from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.cost.stage import (
    StageContent,
    chunk_times,
    exposed_gather_s,
    exposed_reduce_s,
    optimizer_s,
)
from planner.data.problem import Problem
from planner.rules.chips import chip_supports, tp_fits_node
from planner.rules.experts import (
    biased_experts_stay_whole,
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
from planner.simulate.predictions import prices_of_kinds
from planner.tolerances import MEMORY_TOL_BYTES

MAX_PLANS = 2_000_000


@dataclass
class Best:
    """The best plan of the enumeration, and how many there are that fit."""

    step_s: float = float("inf")
    num_plans: int = 0
    what: tuple[object, ...] = ()
    is_apart: bool = False
    """Whether predictions of further tokens are on the stage before the last."""


@dataclass(frozen=True)
class Apart:
    """What is other with such a stage: the hop behind it, and what sharing the embedding takes."""

    last_hop_s: float
    tied_s: float


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
    room_bytes: float
    """What is left of the memory, as far as rounding counts; below 0 where it does not fit."""

    @property
    def fits(self) -> bool:
        return self.room_bytes >= 0


Known = dict[tuple[object, ...], tuple[float, ...]]
"""What the referee has said of the passes of a run, and of its memory, under one row of prices: stages of
many places and of pipelines of many lengths ask the same."""


@dataclass
class _Row:
    """What the stages of one row of degrees may hold, found once: of its order a stage knows its own class
    and place, and how many stages there are."""

    problem: Problem
    degrees: Degrees
    prices: Prices
    num_microbatches: int
    of_stages: dict[tuple[int, int, int], list[Option]] = field(default_factory=dict)
    of_runs: dict[tuple[int, int, int, tuple[int, ...]], list[Option]] = field(default_factory=dict)
    of_apart: dict[tuple[int, int, int], list[Option]] = field(default_factory=dict)
    known: Known = field(default_factory=dict)
    known_apart: list[Known] = field(default_factory=lambda: [{}, {}, {}])

    def of_order(self, order: tuple[int, ...]) -> list[list[Option]]:
        """Options of every stage of an order that fit its memory."""
        p = len(order)
        most = self.problem.model.num_layers - p + 1 + sum(ends_may_be_bare(self.problem, p))
        for s, own in enumerate(order):
            if (own, s, p) not in self.of_stages:
                options = options_of_stage(
                    self.problem, self.prices, (own,) * p, s, most, self.num_microbatches, self.known
                )
                self.of_stages[own, s, p] = [option for option in options if option.fits]
        return [self.of_stages[own, s, p] for s, own in enumerate(order)]

    def of_cut(self, order: tuple[int, ...], runs: list[tuple[int, ...]]) -> list[list[Option]]:
        """The same for an order whose stages hold these runs of layers, given by kind."""
        p = len(order)
        for s, (own, run) in enumerate(zip(order, runs, strict=True)):
            if (own, s, p, run) not in self.of_runs:
                options = _options_of_run(
                    self.problem, self.prices, (own,) * p, s, run, self.num_microbatches, known=self.known
                )
                self.of_runs[own, s, p, run] = [option for option in options if option.fits]
        return [self.of_runs[own, s, p, run] for s, (own, run) in enumerate(zip(order, runs, strict=True))]

    @cached_property
    def apart(self) -> tuple[Prices, Prices, Prices]:
        """Prices of stages before that with the predictions alone, of it, and of the last."""
        ordinary, last, own = prices_of_kinds(self.problem, self.degrees, self.prices)
        return ordinary, own, replace(last, num_predictions=0)

    def of_order_apart(self, order: tuple[int, ...]) -> list[list[Option]]:
        """Options of every stage of an order whose stage before the last predicts, and has no layer."""
        p = len(order)
        for s, own in enumerate(order):
            if (own, s, p) not in self.of_apart:
                self.of_apart[own, s, p] = [o for o in self._options_apart(own, s, p) if o.fits]
        return [self.of_apart[own, s, p] for s, own in enumerate(order)]

    def _options_apart(self, own: int, s: int, p: int) -> Iterator[Option]:
        model, which = self.problem.model, max(s - (p - 3), 0)
        kind_of_layer = [self.prices.kinds.index(kind) for kind in model.kind_of_layer]
        num_lead = kind_of_layer.count(0) if len(self.prices.kinds) > 1 else 0
        beside = int(model.predictions_need_a_layer) if s == p - 2 else 0
        fewest = num_lead if s == 0 else beside if s >= p - 2 else 1
        most = model.num_layers
        runs = [kind_of_layer[:n] if s == 0 else kind_of_layer[most - n :] for n in range(fewest, most + 1)]
        for run in runs[:1] if s == p - 1 else runs:
            yield from _options_of_run(
                self.problem,
                self.apart[which],
                (own,) * p,
                s,
                tuple(run),
                self.num_microbatches,
                has_head=s >= p - 2,
                known=self.known_apart[which],
            )


def brute_force(problem: Problem) -> Best:
    """The least step time over all plans of target megatron-lm or megatron-bridge without virtual stages.

    Beside predictions before the stage with the loss, leading layers of another kind all lie on the first
    stage, as in the search.
    """
    found = brute_force_by_hosts(problem)
    best = min(found.values(), key=lambda of_hosts: of_hosts.step_s, default=Best())
    return Best(best.step_s, sum(of_hosts.num_plans for of_hosts in found.values()), best.what)


def brute_force_by_hosts(problem: Problem) -> dict[tuple[int, ...], Best]:
    """The same for each number of hosts of every class."""
    found: dict[tuple[int, ...], Best] = {}
    for degrees, num_microbatches in degrees_of(problem):
        prices = price(problem, degrees)
        row = _Row(problem, degrees, prices, num_microbatches)
        size = int(degrees.tensor_parallel[0] * degrees.context_parallel[0] * degrees.data_parallel[0])
        for order in orders_of(problem, degrees):
            best = found.setdefault(hosts_taken(problem, order, size), Best())
            options = row.of_order(order)
            _score_order(problem, prices, degrees, num_microbatches, size, order, best, options)
            for runs in _runs_beyond(problem, prices, order):
                cut = row.of_cut(order, runs)
                _score_order(problem, prices, degrees, num_microbatches, size, order, best, cut)
            _score_apart(row, degrees, size, order, best)
            assert sum(of_hosts.num_plans for of_hosts in found.values()) <= MAX_PLANS
    return found


def brute_force_by_cut(problem: Problem) -> Best:
    """The same for layers of several kinds in any order: every cut of every order for itself."""
    best = Best()
    for degrees, num_microbatches in degrees_of(problem):
        prices = price(problem, degrees)
        row = _Row(problem, degrees, prices, num_microbatches)
        kinds = tuple(prices.kinds.index(kind) for kind in problem.model.kind_of_layer)
        size = int(degrees.tensor_parallel[0] * degrees.context_parallel[0] * degrees.data_parallel[0])
        for order in orders_of(problem, degrees):
            for runs in _cuts(problem, kinds, len(order)):
                options = row.of_cut(order, runs)
                _score_order(problem, prices, degrees, num_microbatches, size, order, best, options)
            assert best.num_plans <= MAX_PLANS
    return best


def _cuts(problem: Problem, kinds: tuple[int, ...], num_stages: int) -> Iterator[list[tuple[int, ...]]]:
    """The layers of every stage, given by kind, for every cut."""
    first, last = ends_may_be_bare(problem, num_stages)
    for cuts in itertools.combinations_with_replacement(range(len(kinds) + 1), num_stages - 1):
        counts = [e - a for a, e in itertools.pairwise((0, *cuts, len(kinds)))]
        if min(counts[0] + first, counts[-1] + last, *counts[1:-1], 1) >= 1:
            yield [kinds[a:e] for a, e in itertools.pairwise((0, *cuts, len(kinds)))]


def _runs_beyond(problem: Problem, prices: Prices, order: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """The same where leading layers of another kind go on beyond the first stage."""
    kinds = tuple(prices.kinds.index(kind) for kind in problem.model.kind_of_layer)
    lead = kinds.count(0) if len(prices.kinds) > 1 else 0
    if lead:
        yield from (runs for runs in _cuts(problem, kinds, len(order)) if len(runs[0]) < lead)


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
        if mbs > problem.most_microbatch_size:
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
        biased_experts_stay_whole(problem.model, etp),
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
    bare = sum(ends_may_be_bare(problem, 2)) + may_be_apart(problem)
    for p in range(1, problem.model.num_layers + 1 + bare):
        for order in itertools.product(allowed, repeat=p):
            hosts = hosts_taken(problem, order, size)
            if all(used <= classes[c].num_nodes for c, used in enumerate(hosts)):
                yield order


def ends_may_be_bare(problem: Problem, num_stages: int) -> tuple[bool, bool]:
    """Whether the first and the last of so many stages may have the embedding, and the loss, alone."""
    may = TARGETS[problem.target].empty_ends and "stages=empty" not in problem.options.forbid
    may = may and num_stages > 1
    return may, may and not problem.model.predictions_need_a_layer


def _may_be_bare(problem: Problem, s: int, num_stages: int) -> bool:
    first, last = ends_may_be_bare(problem, num_stages)
    return (s == 0 and first) or (s == num_stages - 1 and last)


def hosts_taken(problem: Problem, order: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Hosts of each class that an order takes: each run of a class begins on a host of its own."""
    hosts = [0] * len(problem.cluster.classes)
    for c, run in itertools.groupby(order):
        hosts[c] += -(-len(list(run)) * size // problem.cluster.classes[c].chips_per_node)
    return tuple(hosts)


def options_of_stage(
    problem: Problem,
    prices: Prices,
    order: tuple[int, ...],
    s: int,
    most: int,
    num_microbatches: int,
    known: Known | None = None,
) -> list[Option]:
    kind_of_layer = [prices.kinds.index(kind) for kind in problem.model.kind_of_layer]
    num_lead = kind_of_layer.count(0) if len(prices.kinds) > 1 and s == 0 else 0
    fewest = 1 - _may_be_bare(problem, s, len(order))
    runs = [
        tuple(kind_of_layer[:n] if s == 0 else kind_of_layer[len(kind_of_layer) - n :])
        for n in range(max(fewest, num_lead), most + 1)
    ]
    return [
        option
        for run in runs
        for option in _options_of_run(problem, prices, order, s, run, num_microbatches, known=known)
    ]


def _options_of_run(
    problem: Problem,
    prices: Prices,
    order: tuple[int, ...],
    s: int,
    layers: tuple[int, ...],
    num_microbatches: int,
    *,
    has_head: bool | None = None,
    known: Known | None = None,
) -> list[Option]:
    """Every recomputation of one run of layers, given by kind, on stage s; the last has the head."""
    has_head = s == len(order) - 1 if has_head is None else has_head
    known = {} if known is None else known
    p, n, found = len(order), len(layers), []
    in_flight = min(num_microbatches, p - s)
    if problem.stack.plans_memory and num_microbatches > 1 and s < p - 1:
        in_flight = 2 * p + 1  # places planned ahead, taken or not
    limit = problem.memory_limit_bytes(order[s]) + MEMORY_TOL_BYTES
    kinds = [("none", 0), ("selective", 0), *(("full", r) for r in range(1, n + 1))]
    if not layers and not (prices.num_predictions and has_head):
        kinds = kinds[:1]
    for recompute, count in kinds:
        content = StageContent(order[s], (layers,), s == 0, has_head, recompute, count)
        stage = (order[s], layers, s == 0, has_head, recompute, count)
        if stage not in known:
            known[stage] = _passes(prices, content)
        if (*stage, in_flight, p) not in known:
            known[*stage, in_flight, p] = (sum(memory_bytes(prices, 0, content, [in_flight], p).values()),)
        (memory,) = known[*stage, in_flight, p]
        found.append(Option(n, recompute, count, *known[stage], limit - memory))
    return found


def _passes(prices: Prices, content: StageContent) -> tuple[float, float, float, float]:
    """Forward and backward of one micro-batch, and what the stage reduces and does behind them [s]."""
    forward, backward = (float(part.sum()) for part in chunk_times(prices, 0, content))
    follow = float(prices.step_fixed_s[0, content.node_class]) + optimizer_s(prices, 0, content)
    return (
        forward,
        backward,
        exposed_reduce_s(prices, 0, content, backward),
        follow + exposed_gather_s(prices, 0, content, forward),
    )


def _picks(options: list[list[Option]], layers: int) -> np.ndarray:
    """Every pick of one option a stage whose layers add up, [pick, stage]."""
    picks, held = np.zeros((1, 0), dtype=np.int64), np.zeros(1, dtype=np.int64)
    for s, stage in enumerate(options):
        counts = np.array([o.layers for o in stage])
        rest = [[o.layers for o in one] for one in options[s + 1 :]]
        least, most = sum(map(min, rest)), sum(map(max, rest))
        row, index = np.divmod(np.arange(len(picks) * len(stage)), len(stage))
        total = held[row] + counts[index]
        kept = (total + least <= layers) & (total + most >= layers)
        picks, held = np.column_stack([picks[row], index])[kept], total[kept]
    return picks


def may_be_apart(problem: Problem) -> bool:
    """Whether predictions of further tokens may be on the stage before the last."""
    forbid = set(problem.options.forbid)
    is_target = problem.target == "megatron-lm" and problem.model.mtp_num_layers > 0
    return is_target and not forbid & {"stages=empty", "stages=predictions"}


def _score_apart(row: _Row, degrees: Degrees, size: int, order: tuple[int, ...], best: Best) -> None:
    """Plans with predictions of further tokens on the stage before the last, which has no layer."""
    problem, p = row.problem, len(order)
    if p < 3 or not may_be_apart(problem):
        return
    _, own, last = row.apart
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]
    hops = hop_send_s(last.send_s[0], last.send_inside_s[0], order, size, per_node)
    holders = [order[0], order[-2], *([order[-1]] if problem.model.tied_embeddings else [])]
    pairs = itertools.combinations(holders, 2)
    tied_s = max(float(own.tied_sync_s[0, one, other]) for one, other in pairs)
    apart, options = Apart(float(hops[-2]), tied_s), row.of_order_apart(order)
    _score_order(problem, row.prices, degrees, row.num_microbatches, size, order, best, options, apart)


def are_alike(stages: list[Option], *, predicts: bool) -> bool:
    """Whether one setting gives all stages what they recompute; its number may exceed the layers of one.

    Of a last stage without a layer it recomputes what predicts further tokens, if anything does.
    """
    number = max(stage.recompute_layers for stage in stages)
    (setting, *others) = {stage.recompute for stage in stages if stage.layers}
    without = ["none"] * len(stages)
    if predicts and setting == "selective":
        without[-1] = setting
    return not others and all(
        stage.recompute == (setting if stage.layers else bare)
        and stage.recompute_layers == min(number, stage.layers)
        for stage, bare in zip(stages, without, strict=True)
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
    apart: Apart | None = None,
) -> None:
    p, layers = len(order), problem.model.num_layers
    if not all(options):
        return
    per_node = [node_class.chips_per_node for node_class in problem.cluster.classes]
    hops = hop_send_s(prices.send_s[0], prices.send_inside_s[0], order, size, per_node)
    if apart is not None:
        hops[-2] = apart.last_hop_s
    picks = _picks(options, layers)
    best.num_plans += len(picks)
    if not TARGETS[problem.target].recompute_per_stage:
        predicts = problem.model.mtp_num_layers > 0
        chosen = [[options[s][i] for s, i in enumerate(pick)] for pick in picks]
        picks = picks[[are_alike(stages, predicts=predicts) for stages in chosen]]
    if len(picks) == 0:
        return

    def table(name: str) -> np.ndarray:
        return np.stack(
            [np.array([getattr(o, name) for o in options[s]])[picks[:, s]] for s in range(p)], axis=1
        )

    forward, backward = table("forward_s"), table("backward_s")
    ends = ends_of_stages_s(problem, forward, backward, hops, num_microbatches)
    tied = float(prices.tied_sync_s[0, order[0], order[-1]]) if p > 1 else 0.0
    tied = tied if apart is None else apart.tied_s
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
        best.is_apart = apart is not None


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
