"""Whole replicas for stages that mix chips: how many on each, in which order."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.opt350m.judge import JudgedPlan, Stage
from benchmarks.opt350m.profile import FAST, SLOW, Kind


def realised(
    chips: tuple[int, int],
    data_parallel: int,
    microbatch_size: int,
    layers: Sequence[int],
    sets: Sequence[tuple[Kind, ...]],
) -> JudgedPlan | None:
    """A plan whose stages use every kind of their sets, or None where the counts do not come out.

    Slow chips take what they can, where a fast chip would save the fewest of them; replicas of one chip
    type stand together and at the same places in all stages, so that most talk to their own type.
    """
    fast, slow = (
        left - sum(group[0].tensor_parallel for group in sets if len(group) == 1 and group[0].chip == chip)
        * data_parallel
        for left, chip in zip(chips, (FAST, SLOW), strict=True)
    )  # fmt: skip
    mixed = [s for s, group in enumerate(sets) if len(group) > 1]
    if fast < 0 or slow < 0 or (mixed and data_parallel < 2):
        return None
    on_fast = dict.fromkeys(mixed, 1)
    fast -= sum(degree(sets[s], FAST) for s in mixed)
    slow -= sum((data_parallel - 1) * degree(sets[s], SLOW) for s in mixed)
    for s in sorted(mixed, key=lambda s: -degree(sets[s], SLOW) / degree(sets[s], FAST)):
        while slow < 0 and fast >= degree(sets[s], FAST) and on_fast[s] < data_parallel - 1:
            on_fast[s] += 1
            fast -= degree(sets[s], FAST)
            slow += degree(sets[s], SLOW)
    if fast < 0 or slow < 0:
        return None
    stages = []
    for s, (count, group) in enumerate(zip(layers, sets, strict=True)):
        split = on_fast.get(s, data_parallel)
        replicas = (group[0],) * split + (group[-1],) * (data_parallel - split)
        stages.append(Stage(count, replicas))
    return JudgedPlan(microbatch_size, tuple(stages))


def degree(group: tuple[Kind, ...], chip: str) -> int:
    """Tensor degree of a set's replicas on a chip type."""
    return next(kind.tensor_parallel for kind in group if kind.chip == chip)
