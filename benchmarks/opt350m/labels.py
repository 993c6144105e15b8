"""Partial plans of the search, many at once: arrays with one entry a label."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from benchmarks.opt350m.space import Floats, Ints

DOMINANCE_TOL_S = 1e-12
"""Sums of the same times in another order differ by less [s]."""
LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""How far behind a label, in sorted order, those lie that it is compared with."""


@dataclass(frozen=True)
class Labels:
    """The last stages of pipelines, from layer `first` on; the foremost of them awaits its gradient send."""

    config: Ints
    """Micro-batch size and data-parallel degree."""
    first: Ints
    """First layer placed."""
    group: Ints
    """Set of kinds of the foremost stage."""
    open_s: Floats
    """Its computation and, unless it is the last, its forward send."""
    slowest_s: Floats
    """Slowest of the stages behind it."""
    sum_s: Floats
    """Their sum."""
    sync_s: Floats
    """Slowest all-reduce of all."""
    update_s: Floats
    """Slowest update of all."""
    used: Ints
    """[label, weight] weighted chips that a replica takes."""
    parent: Ints
    """Label one stage behind; -1 for the last stage."""

    def __len__(self) -> int:
        return len(self.first)

    def take(self, chosen: Ints | np.ndarray) -> Labels:
        """Some of the labels."""
        return Labels(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


def joined(parts: list[Labels]) -> Labels:
    """Labels one after the other."""
    return Labels(
        **{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Labels)}
    )


def undominated(labels: Labels, bound_s: Floats, num_sets: int) -> Ints:
    """Indices of labels after some that another makes needless are dropped.

    A label with the same configuration, layers and set that is at least as good in every time and takes
    no more chips reaches with each continuation no worse a plan. Each is compared with a few behind it
    in three orders, so some needless ones stay: that costs time, not the answer.
    """
    kept = np.arange(len(labels))
    for order in range(3):
        some = labels.take(kept)
        if len(some) < 2:
            break
        key = (some.config * 27 + some.first) * num_sets + some.group
        by = (some.sum_s + some.open_s, bound_s[kept], some.slowest_s)[order]
        kept = kept[_survivors(some, key, np.lexsort((by, key)))]
    return kept


def _survivors(labels: Labels, key: Ints, order: Ints) -> Ints:
    """Sorted indices of labels that none a few places before them in an order dominates."""
    times = np.column_stack([labels.open_s, labels.slowest_s, labels.sum_s, labels.sync_s, labels.update_s])[
        order
    ]
    used, key = labels.used[order], key[order]
    dead = np.zeros(len(order), dtype=bool)
    for lag in LAGS:
        at = np.flatnonzero(key[lag:] == key[:-lag]) if lag < len(order) else np.array([], dtype=np.int64)
        if not len(at):
            break
        better = (times[at] <= times[at + lag] + DOMINANCE_TOL_S).all(axis=1)
        better &= (used[at] <= used[at + lag]).all(axis=1) & ~dead[at]
        dead[at[better] + lag] = True
    return np.sort(order[~dead])


def narrowed(labels: Labels, bound_s: Floats, width: int) -> Ints:
    """Indices of the few most promising labels of every configuration."""
    order = np.lexsort((bound_s, labels.config))
    config = labels.config[order]
    position = np.arange(len(order))
    start = np.concatenate([[True], config[1:] != config[:-1]])
    rank = position - np.maximum.accumulate(np.where(start, position, 0))
    return np.sort(order[rank < width])
