"""First good plans of a search: the likeliest pairs, the classes as blocks, the slow ones first or last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from planner.search.openings import Opener
from planner.search.partition.openings import PartitionOpener
from planner.search.space import Pairs, fill_fastest

LOOKS = 400
"""Pairs looked at for a first plan before the search begins."""
DIVES = 120
"""Orders tried in them that some split fits."""
DIVES_OF_A_KIND = 10
"""Those of them with the same tensor and context parallelism."""


def dive(opener: Opener | PartitionOpener, pairs: Pairs, report: Callable[[], None]) -> None:
    """Try orders of the pairs of least bound; what comes of it goes to the incumbent."""
    problem, table, bounds = opener.problem, opener.table, opener.bounds
    incumbent, degrees = opener.frontier.incumbent, table.degrees
    tried: Counter[tuple[int, int]] = Counter()
    looked = 0
    listed = zip(pairs.bound_s.tolist(), pairs.choice.tolist(), pairs.stages.tolist(), strict=True)
    for bound_s, choice, stages in listed:
        if bound_s >= incumbent.worth_judging_s:
            return
        kind = int(degrees.tensor_parallel[choice]), int(degrees.context_parallel[choice])
        if tried[kind] >= DIVES_OF_A_KIND:
            continue
        looked += 1
        if opener.clock.is_up or tried.total() > DIVES or looked > LOOKS:
            return
        counts = fill_fastest(table, bounds, choice, stages)
        if counts is None:
            continue
        blocks = [c for c, count in enumerate(counts) if count]
        blocks.sort(key=lambda c: (-bounds.layer_s[choice, c], c))
        sequences = [sorted(blocks)] if problem.options.keep_class_order else [blocks, blocks[::-1]]
        for sequence in sequences[: len(blocks)]:
            order = tuple(c for c in sequence for _ in range(counts[c]))
            if opener.is_allowed(choice, order) and opener.try_order(choice, order):
                tried[kind] += 1
        report()
