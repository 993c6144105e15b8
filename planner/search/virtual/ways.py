"""Ways to deal the layers of an interleaved stage to its chunks, with what is recomputed for it to fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np

from formulations.interleaved_windows import Dealings
from formulations.virtual_classes_data import VirtualClassesData
from formulations.virtual_classes_merged import Group
from formulations.virtual_selection_data import recomputations
from formulations.virtual_selection_tables import fewest_layers
from planner.cost.prices import Bools, Floats, Ints

MOST_WAYS = 12_000
"""Ways of one stage beyond which none are listed. A guess."""
MOST_COMPARED = 1_500
"""Ways of a stage with as many layers beyond which they are not compared, as pairs take memory. A guess."""
MOST_LISTS = 8
"""Parts whose ways are kept. A guess."""
PartKey = tuple[int, int, int]
"""Row of degrees, stages and virtual stages."""


@dataclass(frozen=True)
class Ways:
    """Ways of one stage, arrays [way]."""

    of_class: Ints
    layers: Ints
    """Of all chunks."""
    forward_ms: Floats
    """[way, chunk]"""
    backward_ms: Floats
    """[way, chunk] with what is recomputed."""
    follow_ms: Floats
    """What the stage adds after all have met."""
    reduction_ms: Floats
    """What it reduces at least when its backwards have ended, more of which may be recomputed."""

    def __len__(self) -> int:
        return len(self.layers)

    def only(self, which: Bools | Ints) -> Ways:
        """Some of them, by whether they are or by their places."""
        return Ways(**{name: values[which] for name, values in vars(self).items()})

    @property
    def pieces(self) -> Dealings:
        """Their forwards and backwards."""
        return Dealings(self.forward_ms, self.backward_ms)


class Spare:
    """Ways with their layers counted beyond the fewest of their stage, or those short of its most.

    All stages together hold the layers of the model if and only if they hold so many beyond the sum of their
    fewest, or are so many short of that of their most. The smaller number is taken, which makes sums short.
    """

    def __init__(self, ways: Sequence[Ways], num_layers: int) -> None:
        fewest, most = (np.array([end(one.layers) for one in ways]) for end in (np.min, np.max))
        beyond, short = num_layers - int(fewest.sum()), int(most.sum()) - num_layers
        self._start, self._sign = (most, -1) if short < beyond else (fewest, 1)
        self.num_layers = min(beyond, short)
        """Of all stages, counted so."""
        counted = [
            replace(one, layers=self._sign * (one.layers - start))
            for one, start in zip(ways, self._start.tolist(), strict=True)
        ]
        self.ways = [one.only(one.layers <= self.num_layers) for one in counted]
        """Those that some plan may have, counted so."""
        self.fit = all(map(len, self.ways))
        """Whether any stage has one."""

    def layers(self, s: int, counted: Ints) -> Ints:
        """Layers of ways of a stage that are counted so."""
        found: Ints = self._start[s] + self._sign * counted
        return found


def taken_together(ways: Sequence[Ways], groups: Sequence[Group]) -> list[Ways]:
    """Ways with every class of a group called by the first of them, without those that cannot be needed.

    Of two ways of one class with as many layers of which one is nowhere shorter the other is enough. Proof.
    A plan with the longer one has become one with the other, which holds as many layers and stages of each
    class, and by `formulations.interleaved_paths` ends no later.
    """
    classes = [int(one.of_class.max(initial=0)) for one in ways] + [c for group in groups for c in group]
    first: Ints = np.arange(1 + max(classes))
    for group in groups:
        first[list(group)] = group[0]
    renamed = [replace(one, of_class=first[one.of_class]) for one in ways]
    return [one.only(~_is_longer(one)) for one in renamed]


def _is_longer(one: Ways) -> Bools:
    """Whether some other way of the same class and layers is nowhere longer, [way]; of equals all but one."""
    single = one.follow_ms[:, None], one.reduction_ms[:, None]
    times = np.concatenate([one.forward_ms, one.backward_ms, *single], axis=1)
    longer: Bools = np.zeros(len(one), dtype=np.bool_)
    for c, n in np.unique(np.stack([one.of_class, one.layers], axis=1), axis=0).tolist():
        at = np.flatnonzero((one.of_class == c) & (one.layers == n))
        if len(at) > MOST_COMPARED:
            continue
        no_longer: Bools = np.ones((len(at), len(at)), dtype=np.bool_)
        """[way, other] whether the other is nowhere longer."""
        for column in times[at].T:
            no_longer &= column[None, :] <= column[:, None]
        equal = no_longer & no_longer.T
        no_longer &= ~equal | (np.arange(len(at))[None, :] < np.arange(len(at))[:, None])
        longer[at] = no_longer.any(axis=1)
    return longer


def compositions(total: int, fewest: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All ways to deal so many layers to chunks that hold at least their fewest."""
    if len(fewest) == 1:
        if total >= fewest[0]:
            yield (total,)
        return
    for first in range(fewest[0], total - sum(fewest[1:]) + 1):
        for rest in compositions(total - first, fewest[1:]):
            yield first, *rest


class WayLists:
    """Lists the ways of stages, each once: lower limits leave fewer numbers of layers, with the same ways."""

    def __init__(self) -> None:
        self._known: dict[PartKey, dict[tuple[int, int, int], Ways]] = {}
        """By part: those of a stage on a class with so many layers."""

    def of_part(self, key: PartKey, data: VirtualClassesData) -> list[Ways] | None:
        """Ways of every stage of a part; None where they are too many, or a stage has none."""
        fewest, v = fewest_layers(data.sample), data.sample.virtual_stages
        for s in range(data.sample.num_stages):
            spare = np.nonzero(data.fits[:, s])[1] - int(fewest[s].sum())
            if not 0 < sum(comb(n + v - 1, v - 1) for n in spare.tolist() if n >= 0) <= MOST_WAYS:
                return None
        known = self._known.pop(key, {})
        self._known[key] = known
        for other in list(self._known)[:-MOST_LISTS]:
            del self._known[other]
        found = []
        for s in range(data.sample.num_stages):
            some = []
            for c, n in np.argwhere(data.fits[:, s]).tolist():
                if (s, c, n) not in known:
                    known[s, c, n] = _ways(data, s, c, n, tuple(fewest[s].tolist()))
                some.append(known[s, c, n])
            names = vars(some[0])
            found.append(Ways(**{name: np.concatenate([vars(one)[name] for one in some]) for name in names}))
        return found


def _ways(data: VirtualClassesData, s: int, c: int, n: int, fewest: tuple[int, ...]) -> Ways:
    """Ways of a stage on a class with n layers."""
    one = data.classes[c]
    pairs = [
        (dealt, way.extra_ms) for dealt in compositions(n, fewest) for way in recomputations(one, s, dealt)
    ]
    shape = (len(pairs), one.virtual_stages)
    layers = np.array([dealt for dealt, _ in pairs], dtype=np.float64).reshape(shape)
    extra = np.array([extra_ms for _, extra_ms in pairs], dtype=np.float64).reshape(shape)
    forward, backward = (base[s] for base in one.base_ms())
    return Ways(
        of_class=np.full(len(pairs), c, dtype=np.int64),
        layers=np.full(len(pairs), n, dtype=np.int64),
        forward_ms=forward + one.stage.forward_ms[s] * layers,
        backward_ms=backward + one.stage.backward_ms[s] * layers + extra,
        follow_ms=np.full(len(pairs), float(data.tables[c].follow_ms[s, n])),
        reduction_ms=_reduction_ms(data, s, c, layers, extra),
    )


def _reduction_ms(data: VirtualClassesData, s: int, c: int, layers: Floats, extra_ms: Floats) -> Floats:
    """What a stage reduces at least behind its last backward on ways with these layers and recomputation.

    A plan may recompute more than it needs, which hides more of the reduction. That is core attention of all
    its layers at most, or as many layers of every chunk that has any as the shortest one holds. Where the way
    recomputes nothing the latter makes the last backward of chunk 0, which is on every path to the end of the
    stage, so much longer; both are linear in their number.
    """
    one, table = data.classes[c], data.tables[c]
    stage, hidden = one.stage, one.stage.hidden_fraction
    total, count = layers.sum(axis=1), (layers > 0).sum(axis=1)
    extra = extra_ms.sum(axis=1)
    more = np.zeros(len(layers))
    if "selective" in one.kinds:
        most = stage.selective_ms[s] * total + stage.selective_more_ms[s]
        more = np.maximum(more, hidden * (most - extra))
    if "full" in one.kinds:
        most_of_chunk = np.where(layers > 0, layers, np.inf).min(axis=1) * stage.full_ms[s]
        in_first = np.where((layers[:, 0] > 0) & (extra == 0), most_of_chunk, 0.0)
        more = np.maximum(more, hidden * (most_of_chunk * count - extra) - in_first)
    if stage.lead[s]:
        more = hidden * (table.most_extra_ms[s, total.astype(np.int64)] - extra)
    unhidden = table.unhidden_ms[s, total.astype(np.int64)] - hidden * extra
    reduction: Floats = np.maximum(unhidden - np.maximum(more, 0.0), 0.0) + stage.reduce_tail_ms[s]
    return reduction
