"""Take classes of stages together that differ little: a smaller program of `virtual_classes` that bounds it.

A class that stands for several has of each coefficient the best of theirs: of forwards, backwards, sends,
recomputation and what follows the least, of memory the most. Orders that differ by swaps among these classes
become one, where a search through whole numbers would bound each anew. How much is lost by that is known
beforehand, as the stages together work through so many more layers in a unit of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from formulations.interleaved_paths import Floats
from formulations.virtual_classes_data import VirtualClassesData
from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import DealtTable
from planner.tolerances import ROUNDING_TOL

Group = tuple[int, ...]
"""Classes."""


def alike(data: VirtualClassesData, most_rise: float) -> list[Group]:
    """Classes to take together, so that the layers in a unit of time rise by no more than this part.

    Two groups at a time, those first of which it rises least. Classes whose layers need other memory stay
    alone, as do all where `most_rise` is negative.
    """
    groups: list[Group] = [(c,) for c in data.classes]
    before = sum(_rate(data, group) for group in groups)
    room = (most_rise + ROUNDING_TOL) * before
    while True:
        pairs = [(one, other) for one, other in combinations(groups, 2) if _same_layers(data, one + other)]
        rises = [_rate(data, one + other) - _rate(data, one) - _rate(data, other) for one, other in pairs]
        if not pairs or min(rises) > room:
            return [group for group in groups if len(group) > 1]
        room -= min(rises)
        one, other = pairs[int(np.argmin(rises))]
        rest = [group for group in groups if group not in (one, other)]
        groups = sorted([*rest, (*one, *other)])


def _rate(data: VirtualClassesData, group: Group) -> float:
    """Layers a millisecond of all the stages that a group may have, each as fast as the best of them."""
    stages = [data.classes[c].stage for c in group]
    layer_ms = min(float(one.forward_ms.mean()) for one in stages)
    layer_ms += min(float(one.backward_ms.mean()) for one in stages)
    return float(data.most[list(group)].sum()) / layer_ms


def _same_layers(data: VirtualClassesData, group: Group) -> bool:
    """Whether a layer needs the same memory on all of them."""
    ones = [data.classes[c] for c in group]
    layers = {
        (one.state_gib, *one.kept_gib, *one.kept_selective_gib, *one.kept_full_gib, *one.lead_kept_gib)
        for one in ones
    }
    return len(layers) == 1 and len({one.kinds for one in ones}) == 1


def merged(data: VirtualClassesData, groups: Sequence[Group]) -> VirtualClassesData:
    """The program in which each of `groups` is one class, under the number of its first.

    Its objective bounds that of `data`. Proof: take a solution of `data`, and give each stage the class that
    stands for its own, with the same layers and added backward. No coefficient is worse, so that rows of
    memory, recomputation and what follows hold as they did; counts and hops are sums of those of the members,
    and a ring that leaves the group leaves one of them; forwards, backwards and sends are no longer. The rows
    that bound the end have no negative factors but those of (wait) and (detour), whose sums with m t[s] are
    paths: by `interleaved_paths` the schedule of shorter pieces keeps them all, and ends no later.
    """
    fits, hop = data.fits.copy(), data.hop_ms.copy()
    fewest, most = data.fewest.copy(), data.most.copy()
    classes, tables = dict(data.classes), dict(data.tables)
    for group in groups:
        first, others = group[0], list(group[1:])
        fits[first] = data.fits[list(group)].any(axis=0)
        fits[others] = False
        fewest[first], most[first] = data.fewest[list(group)].sum(), data.most[list(group)].sum()
        fewest[others] = most[others] = 0
        hop[first] = hop[list(group)].min(axis=0)
        hop[:, first] = hop[:, list(group)].min(axis=1)
        classes[first], tables[first] = _best([(data.classes[c], data.tables[c]) for c in group])
        for c in others:
            del classes[c], tables[c]
    most = np.minimum(most, data.sample.num_stages)
    return replace(data, classes=classes, tables=tables, fits=fits, fewest=fewest, most=most, hop_ms=hop)


def _best(
    members: Sequence[tuple[VirtualSelectionData, DealtTable]],
) -> tuple[VirtualSelectionData, DealtTable]:
    """The best of every coefficient that `virtual_classes` reads."""
    ones = [one for one, _ in members]
    stages = [one.stage for one in ones]
    sample = ones[0]

    def least(name: str, of: Sequence[object]) -> Floats:
        values: Floats = np.min([getattr(one, name) for one in of], axis=0)
        return values

    rooms = [
        np.max([one.limit_gib[s] - one.base_gib[s] for one in ones], axis=0) for s in range(sample.num_stages)
    ]
    best = replace(
        sample,
        stage=replace(
            sample.stage,
            forward_ms=least("forward_ms", stages),
            base_forward_ms=least("base_forward_ms", stages),
            backward_ms=least("backward_ms", stages),
            base_backward_ms=least("base_backward_ms", stages),
            selective_ms=least("selective_ms", stages),
            full_ms=least("full_ms", stages),
            lead_selective_ms=least("lead_selective_ms", stages),
            lead_full_ms=least("lead_full_ms", stages),
            reduce_tail_ms=least("reduce_tail_ms", stages),
        ),
        blocked_forward_ms=least("blocked_forward_ms", ones),
        blocked_backward_ms=least("blocked_backward_ms", ones),
        limit_gib=np.zeros(sample.num_stages),
        base_gib=tuple(-room for room in rooms),
    )
    more = np.min([table.backward_ms - _plain_ms(one) for one, table in members], axis=0)
    forward = np.min([table.forward_ms for _, table in members], axis=0)
    follow = np.min([table.follow_ms for _, table in members], axis=0)
    unhidden = np.min([table.unhidden_ms for _, table in members], axis=0)
    most_extra = np.max([table.most_extra_ms for _, table in members], axis=0)
    return best, DealtTable(forward, _plain_ms(best) + more, follow, unhidden, most_extra)


def _plain_ms(one: VirtualSelectionData) -> Floats:
    """Backward with nothing recomputed, [stage, n]."""
    n = np.arange(one.num_layers + 1)
    plain: Floats = one.stage.backward_ms[:, None] * n + one.base_ms()[1].sum(axis=1)[:, None]
    return plain
