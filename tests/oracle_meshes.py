"""Brute force over all plans whose stages differ in degrees, scored by the referee's own pieces.

Every micro-batch over all replicas, every sequence of (class, tp, dp), every split of the layers and every
recomputation that FlagScale can state. The enumeration and the cuts between stages are written here anew.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache, partial

import numpy as np

from planner.cost.communication.resharding import message_latency_s
from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.data.problem import Problem
from planner.rules.chips import chip_supports
from planner.rules.tensor import tp_is_legal
from tests.oracle_plans import MAX_PLANS, Best, Option, ends_of_stages_s, options_of_stage

Shape = tuple[int, int, int]
"""Node class, tensor parallel, data parallel."""


def brute_force_meshes(problem: Problem) -> Best:
    """The least step time over all plans of target flagscale whose ranks hold all experts."""
    best = Best()
    batch, length = problem.workload.global_batch_size, problem.workload.seq_length
    for together, split in itertools.product(range(1, batch + 1), (False, True)):
        if batch % together:
            continue
        shapes = [
            (c, tp, dp)
            for c, node_class in enumerate(problem.cluster.classes)
            for tp, dp in itertools.product(range(1, 9), range(1, together + 1))
            if chip_supports(problem.chip_of(c), problem.workload.precision)
            and node_class.chips_per_node % tp == 0
            and tp_is_legal(problem.model, tp)
            and together % dp == 0
            and together // dp <= problem.most_microbatch_size
            and tp * dp <= node_class.num_chips
            and not (split and tp > 1 and length % tp)
        ]
        prices = {
            shape: price(
                problem,
                Degrees.single(
                    tensor_parallel=shape[1],
                    expert_tensor_parallel=shape[1],
                    data_parallel=shape[2],
                    microbatch_size=together // shape[2],
                    sequence_parallel=split and shape[1] > 1,
                ),
            )
            for shape in shapes
        }
        stage = lru_cache(maxsize=None)(_stage_options(problem, prices, batch // together))
        for sequence in _sequences(problem, shapes, split):
            _score(problem, prices, stage, batch // together, together, sequence, best)
            assert best.num_plans <= MAX_PLANS
    return best


def _sequences(problem: Problem, shapes: list[Shape], split: bool) -> Iterator[tuple[Shape, ...]]:
    for p in range(1, problem.model.num_layers + 1):
        for sequence in itertools.product(shapes, repeat=p):
            degrees = {tp for _, tp, _ in sequence}
            if (split and degrees == {1}) or (not split and len(degrees) > 1):
                continue
            if problem.model.moe is not None and not split and degrees != {1}:
                continue  # experts with tensor parallelism need the split
            first, last = sequence[0], sequence[-1]
            if problem.model.copies_embedding and (
                first[1] != last[1]
                or (first[2] % last[2] and last[2] % first[2])
                or any(tp % first[1] or dp % min(first[2], last[2]) for _, tp, dp in sequence)
            ):
                continue
            if _fits_hosts(problem, sequence):
                yield sequence


def _fits_hosts(problem: Problem, sequence: tuple[Shape, ...]) -> bool:
    hosts = [0] * len(problem.cluster.classes)
    for c, run in itertools.groupby(sequence, key=lambda shape: shape[0]):
        taken = 0
        for _, tp, dp in run:
            if taken % tp:
                return False
            taken += tp * dp
        hosts[c] += -(-taken // problem.cluster.classes[c].chips_per_node)
    return all(used <= problem.cluster.classes[c].num_nodes for c, used in enumerate(hosts))


def _stage_options(problem: Problem, prices: dict[Shape, Prices], num_microbatches: int):  # type: ignore[no-untyped-def]
    def of(shape: Shape, s: int, p: int) -> list[Option]:
        most = problem.model.num_layers - p + 1
        return options_of_stage(problem, prices[shape], (shape[0],) * p, s, most, num_microbatches)

    return of


def _messages(ours: tuple[int, int], theirs: tuple[int, int], together: int) -> int:
    """Overlaps of one rank's part with those of the other stage, counted on a fine grid."""
    grid = 840
    (tp, dp), (tp2, dp2) = ours, theirs
    pieces = max(
        len({mark * tp2 // grid for mark in range(i * grid // tp, (i + 1) * grid // tp)}) for i in range(tp)
    )
    blocks = max(
        len({seq * dp2 // together for seq in range(k * together // dp, (k + 1) * together // dp)})
        for k in range(dp)
    )
    return pieces * blocks


def _hops(
    problem: Problem, prices: dict[Shape, Prices], together: int, sequence: tuple[Shape, ...]
) -> np.ndarray:
    chips = [node_class.chips_per_node for node_class in problem.cluster.classes]
    hops = np.zeros(len(sequence))
    start = 0
    for s, (a, b) in enumerate(itertools.pairwise(sequence)):
        size, size_b = a[1] * a[2], b[1] * b[2]
        host, end = start // chips[a[0]], start + size
        messages = max(_messages(a[1:], b[1:], together), _messages(b[1:], a[1:], together))
        if a[0] == b[0] and (end + size_b - 1) // chips[a[0]] == host:
            hop = max(prices[a].send_inside_s[0, a[0]], prices[b].send_inside_s[0, b[0]])
            hops[s] = hop + (messages - 1) * 2e-6
        else:
            hop = max(prices[a].send_s[0, a[0], b[0]], prices[b].send_s[0, a[0], b[0]])
            hops[s] = hop + (messages - 1) * message_latency_s(problem, a[0], b[0])
        start = end if a[0] == b[0] else 0
    return hops


def _further_bytes(problem: Problem, sequence: tuple[Shape, ...]) -> list[float]:
    """Communicators of all pipelines, and pairs for a common embedding, beyond one on every rank, [stage]."""
    if len({shape[1:] for shape in sequence}) < 2:
        return [0.0] * len(sequence)
    lanes = [_pipelines(tuple(shape[i] for shape in sequence)) for i in (1, 2)]
    one = max(problem.stack.communicator_gib, problem.stack.far_communicator_gib or 0.0) * 2**30
    two = one * 544 / 688
    most = [
        math.prod(max(Counter(way[s] for way in ways).values()) for ways in lanes)
        for s in range(len(sequence))
    ]
    further = [(count - 1) * (one if len(sequence) > 2 else two) for count in most]
    if problem.model.copies_embedding:
        for here in (0, -1):
            pairs = [{(way[here], way[-1 - here]) for way in ways} for ways in lanes]
            met = math.prod(max(Counter(a for a, _ in of_lane).values()) for of_lane in pairs)
            further[here] += (met - 1) * two
    return further


@cache
def _pipelines(degrees: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every choice of one part a stage such that neighbours overlap, counted on a fine grid."""
    grid = 840
    parts = [[range(i * grid // n, (i + 1) * grid // n) for i in range(n)] for n in degrees]
    ways = [(i,) for i in range(degrees[0])]
    for s in range(1, len(degrees)):
        ways = [
            (*way, i)
            for way in ways
            for i, part in enumerate(parts[s])
            if max(part[0], parts[s - 1][way[-1]][0]) <= min(part[-1], parts[s - 1][way[-1]][-1])
        ]
    return ways


def _score(problem, prices, stage, num_microbatches, together, sequence, best) -> None:  # type: ignore[no-untyped-def]
    p, further = len(sequence), _further_bytes(problem, sequence)
    for selective in (False, True):
        options = [
            [
                o
                for o in stage(shape, s, p)
                if o.room_bytes >= more and (o.recompute == "selective") == selective
            ]
            for s, (shape, more) in enumerate(zip(sequence, further, strict=True))
        ]
        if not all(options):
            continue
        picks = np.stack(np.meshgrid(*[np.arange(len(o)) for o in options], indexing="ij"), -1).reshape(-1, p)
        counts = [np.array([option.layers for option in o]) for o in options]
        picks = picks[sum(counts[s][picks[:, s]] for s in range(p)) == problem.model.num_layers]
        best.num_plans += len(picks)
        if len(picks) == 0:
            continue

        table = partial(_table, options, picks)
        hops = _hops(problem, prices, together, sequence)
        ends = ends_of_stages_s(problem, table("forward_s"), table("backward_s"), hops, num_microbatches)
        classes = sequence[0][0], sequence[-1][0]
        tied = max(float(prices[sequence[i]].tied_sync_s[0][classes]) for i in (0, -1)) if p > 1 else 0.0
        step = (ends + table("reduce_s")).max(axis=1) + tied + table("follow_s").max(axis=1)
        i = int(np.argmin(step))
        if step[i] < best.step_s:
            chosen = [options[s][picks[i, s]] for s in range(p)]
            best.step_s = float(step[i])
            best.what = (together, sequence, [(o.layers, o.recompute, o.recompute_layers) for o in chosen])


def _table(options: list[list[Option]], picks: np.ndarray, name: str) -> np.ndarray:
    """A number of every option that was picked, [pick, stage]."""
    columns = [np.array([getattr(o, name) for o in stage])[picks[:, s]] for s, stage in enumerate(options)]
    return np.stack(columns, axis=1)
