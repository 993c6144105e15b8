"""What each target can say of the judge's plans, and the best plan of each, proven."""

from __future__ import annotations

import time
from dataclasses import replace

from benchmarks.opt350m.profile import DEGREES, KINDS, Kind
from benchmarks.opt350m.search import Proven, Search
from benchmarks.opt350m.space import space

TARGETS = {
    "megatron-lm": "one tensor degree everywhere; replicas of one stage may lie on both chip types",
    "flagscale": "a tensor degree and a chip type of its own for every stage",
    "unrestricted": "a tensor degree and a chip type of its own for every replica of every stage",
}
"""Target and what it lets the judge's plans choose."""


def best_plan(chips: tuple[int, int], target: str, *, whole_batches: bool = False) -> Proven:
    """The best plan of a cluster of (fast, slow) chips for a target, by the judge, with its proof.

    Stages of one kind are searched first; where they may mix, the wider space then starts from that
    plan, and mostly has only to be closed. The judge rounds the micro-batches up; with `whole_batches`
    nothing is rounded, so that a launcher can run the plan.
    """
    start_s, start_core_s = time.perf_counter(), time.process_time()
    menus = [of_degree(degree) for degree in DEGREES] if target == "megatron-lm" else [KINDS]
    found: Proven | None = None
    bound_s, labels = float("inf"), 0
    for mixed in (False,) if target == "flagscale" else (False, True):
        bound_s = float("inf")
        for kinds in menus:
            where = space(chips, kinds, mixed=mixed)
            found = Search(where, found, whole_batches=whole_batches).run()
            bound_s, labels = min(bound_s, found.bound_s), labels + found.labels
    assert found is not None
    return replace(
        found,
        bound_s=min(bound_s, found.step_s),
        labels=labels,
        seconds=time.perf_counter() - start_s,
        core_seconds=time.process_time() - start_core_s,
    )


def of_degree(degree: int) -> tuple[Kind, ...]:
    """The kinds with one tensor degree."""
    return tuple(kind for kind in KINDS if kind.tensor_parallel == degree)
