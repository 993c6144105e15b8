"""A published planner's simulator, from its description: what it says of any plan.

The simulator is that of eth-easl/sailor (branch sosp25_ae, commit 16eebd4). It is a yardstick, not a
truth: its pipeline form overstates uneven 1F1B, and it is some 10% off on real mixed runs.

Plan       stages s = 0 .. S-1, D replicas of each, a replica on one chip type with a tensor degree of
           1, 2 or 4, never across nodes; micro-batch size b; m = ceil(1024 / (b D)).
Compute    C[s] = slowest replica's forward + backward of the layers of s; U = slowest update of a first
           layer. A point that was not measured is refused.
Sends      X[s] = slowest forward send to s+1 plus slowest gradient send to s-1. The last stage pays its
           gradient send twice, the first its forward send twice, once if S <= 3. Replica r talks to
           replica r. One stage sends nothing.
Pipeline   (m - 1) max (C + X) + sum C + sum X + U.
Sync       slowest stage and neighbouring replicas of a ring all-reduce of the stage's weights, cut by
           its smallest degree, in buckets of 5e8 bytes: 2 (D - 1) times the transfer of bucket / D
           from one chip to one chip.
Step       Pipeline + Sync.
Memory     24 bytes a parameter + 4 b (S - s) bytes an activation kept + 2e9 (degree 1) or 3e9 bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from benchmarks.opt350m.profile import FAST, FLOAT_BYTES, NUM_LAYERS, SLOW, Kind, Profile, profile
from planner.units import GIB

GLOBAL_BATCH_SIZE = 1024
LIMIT_BYTES = {FAST: 40 * GIB, SLOW: 16 * GIB}
STATE_BYTES = 24
"""Of a parameter: weight, gradient and Adam state in fp32, and copies."""
RUNTIME_BYTES = {1: 2e9, 2: 3e9, 4: 3e9}
BUCKET_BYTES = 5e8
CHIPS_PER_NODE = 4


@dataclass(frozen=True)
class Stage:
    """Layers of a stage and what runs each of its replicas."""

    num_layers: int
    replicas: tuple[Kind, ...]


@dataclass(frozen=True)
class JudgedPlan:
    """What the judge can score."""

    microbatch_size: int
    stages: tuple[Stage, ...]

    @property
    def data_parallel(self) -> int:
        """Replicas of every stage."""
        return len(self.stages[0].replicas)

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a replica; the last may be short."""
        return math.ceil(GLOBAL_BATCH_SIZE / (self.microbatch_size * self.data_parallel))

    @property
    def keeps_batch(self) -> bool:
        """Whether whole micro-batches make up the global batch, as launchers demand."""
        return GLOBAL_BATCH_SIZE % (self.microbatch_size * self.data_parallel) == 0

    def __str__(self) -> str:
        shown = (
            f"{stage.num_layers} x {' + '.join(map(str, Counter(stage.replicas)))}" for stage in self.stages
        )
        return f"dp {self.data_parallel}, mbs {self.microbatch_size}: " + ", ".join(shown)


@dataclass(frozen=True)
class Score:
    """What the judge says of a plan."""

    step_s: float
    pipeline_s: float
    sync_s: float
    violations: tuple[str, ...]


def plan_of(data_parallel: int, microbatch_size: int, *stages: tuple[int, Kind]) -> JudgedPlan:
    """A plan whose stages each run on one kind: (layers, kind) in order."""
    return JudgedPlan(microbatch_size, tuple(Stage(n, (kind,) * data_parallel) for n, kind in stages))


def score(plan: JudgedPlan, chips: dict[str, int] | None = None) -> Score:
    """Step time of a plan [s] with what speaks against it.

    Parameters
    ----------
    chips
        Chips of each type that the cluster has; None for as many as the plan wants.
    """
    data = profile()
    missing = missing_points(plan, data)
    if missing:
        return Score(math.inf, math.inf, math.inf, missing)
    ranges = layer_ranges(plan)
    compute = [
        max(
            float(data.times_s[kind, plan.microbatch_size][first:end, :2].sum())
            for kind in set(stage.replicas)
        )
        for stage, (first, end) in zip(plan.stages, ranges, strict=True)
    ]
    update = max(
        float(data.times_s[kind, plan.microbatch_size][first, 2])
        for stage, (first, _) in zip(plan.stages, ranges, strict=True)
        for kind in set(stage.replicas)
    )
    sends = sends_s(plan, ranges, data)
    slowest = max(c + x for c, x in zip(compute, sends, strict=True))
    pipeline = (plan.num_microbatches - 1) * slowest + sum(compute) + sum(sends) + update
    sync = max(
        sync_s(data, weight_bytes(data, stage, span), stage.replicas)
        for stage, span in zip(plan.stages, ranges, strict=True)
    )
    violations = memory_violations(plan, ranges, data) + chip_violations(plan, chips)
    return Score(pipeline + sync, pipeline, sync, violations)


def layer_ranges(plan: JudgedPlan) -> list[tuple[int, int]]:
    """First layer and the one behind the last, of every stage."""
    ends = [sum(stage.num_layers for stage in plan.stages[: s + 1]) for s in range(len(plan.stages))]
    assert ends[-1] == NUM_LAYERS and all(len(s.replicas) == plan.data_parallel for s in plan.stages)
    return [(end - stage.num_layers, end) for stage, end in zip(plan.stages, ends, strict=True)]


def missing_points(plan: JudgedPlan, data: Profile) -> tuple[str, ...]:
    """Points of the plan that nobody measured."""
    kinds = sorted({kind for stage in plan.stages for kind in stage.replicas})
    return tuple(
        f"{kind}: micro-batches of {plan.microbatch_size} were not measured"
        for kind in kinds
        if (kind, plan.microbatch_size) not in data.times_s
    )


def sends_s(plan: JudgedPlan, ranges: list[tuple[int, int]], data: Profile) -> list[float]:
    """What every stage sends in one micro-batch [s]."""
    last = len(plan.stages) - 1
    if last == 0:
        return [0.0]
    times = []
    for s, (first, end) in enumerate(ranges):
        onward = back = 0.0
        if s < last:
            onward = slowest_s(data, data.output_bytes(end - 1, plan.microbatch_size), plan, s, s + 1)
        if s > 0:
            back = slowest_s(data, data.output_bytes(first, plan.microbatch_size), plan, s, s - 1)
        if s == last:
            times.append(2 * back)
        elif s == 0:
            times.append(onward if last < 3 else 2 * onward)
        else:
            times.append(onward + back)
    return times


def slowest_s(data: Profile, size_bytes: float, plan: JudgedPlan, sender: int, receiver: int) -> float:
    """The slowest of the messages that the replicas of two stages exchange [s]."""
    pairs = zip(plan.stages[sender].replicas, plan.stages[receiver].replicas, strict=True)
    return max(data.transfer_s(size_bytes, *pair) for pair in set(pairs))


def weight_bytes(data: Profile, stage: Stage, span: tuple[int, int]) -> float:
    """Weights that a replica of a stage reduces, cut by the smallest degree in it [bytes]."""
    least = min(kind.tensor_parallel for kind in stage.replicas)
    return float(data.floats[1][span[0] : span[1], 0].sum()) * FLOAT_BYTES / least


def sync_s(data: Profile, size_bytes: float, replicas: tuple[Kind, ...]) -> float:
    """Ring all-reduce between the slowest neighbours among replicas [s]."""
    ring = len(replicas)
    if ring == 1:
        return 0.0
    pairs = {
        (Kind(a.chip, 1), Kind(b.chip, 1)) for a, b in zip(replicas, replicas[1:] + replicas[:1], strict=True)
    }
    return max(ring_s(data, size_bytes, ring, pair) for pair in pairs)


def ring_s(data: Profile, size_bytes: float, ring: int, pair: tuple[Kind, Kind]) -> float:
    """Buckets one after the other, each 2 (ring - 1) transfers of a share [s]."""
    total, left = 0.0, size_bytes
    while left > 0:
        bucket = min(left, BUCKET_BYTES)
        total += 2 * (ring - 1) * data.transfer_s(bucket / ring, *pair)
        left -= bucket
    return total


def memory_violations(plan: JudgedPlan, ranges: list[tuple[int, int]], data: Profile) -> tuple[str, ...]:
    """Replicas that hold more than their chip does."""
    found = []
    for s, (stage, (first, end)) in enumerate(zip(plan.stages, ranges, strict=True)):
        for kind in sorted(set(stage.replicas)):
            need = replica_bytes(data, kind, plan.microbatch_size, first, end, len(plan.stages) - s)
            if need > LIMIT_BYTES[kind.chip]:
                found.append(f"stage {s} on {kind}: {need / GIB:.1f} GiB")
    return tuple(found)


def replica_bytes(
    data: Profile, kind: Kind, microbatch_size: int, first: int, end: int, in_flight: int
) -> float:
    """Memory of one replica by the judge's rule [bytes]."""
    floats = data.floats[kind.tensor_parallel][first:end].sum(axis=0)
    kept = FLOAT_BYTES * microbatch_size * in_flight * float(floats[2])
    return STATE_BYTES * float(floats[0]) + kept + RUNTIME_BYTES[kind.tensor_parallel]


def chip_violations(plan: JudgedPlan, chips: dict[str, int] | None) -> tuple[str, ...]:
    """Chips that the cluster lacks; degrees of 1, 2 and 4 always pack into nodes of four."""
    used: Counter[str] = Counter()
    for stage in plan.stages:
        for kind in stage.replicas:
            used[kind.chip] += kind.tensor_parallel
    return tuple(
        f"{used[chip]} {chip}, the cluster has {has}"
        for chip, has in sorted((chips or {}).items())
        if used[chip] > has
    )
