"""The least that rows of the pipeline say of every split of all orders, by labels on the cuts.

Sets, data and costs are those of `layer_partition`, the class of each stage open but for how many stages of
each class there are at most. Rows are those of `layer_partition_prices`, up to the end of stage 0, but for
(flush), which says less than (work) of a single stage. A row of stage s counts each stage before s once, s by
factors of its own, and each stage behind s by one number j of the row, sends there and back with them:

    row = sum_{i<s} (t[i] + 2 c[i]) + phi f[s] + beta b[s] + 2 j c[s] + j sum_{i>s} (t[i] + 2 c[i])

So of the first stages with their runs of layers, a *label*, nothing counts but the cut behind them, how many
stages of each class they have used up, and

    U      z[0] + sum of t[i] + 2 c[i]
    M[j]   the largest row with this j of their stages, as far as it is known
    O      the largest o[i]

One stage more adds j (t + 2 c) to M[j], which its own rows may raise, and t + 2 c to U. At the end the
largest M[j] and O are what all rows together say of the split: with sends at their least, and no waits, no
more than its step.

Bound      Labels are left out where one of M[j] + j V + O, U + V + O, V the shortest path from the cut on by
           t + 2 c, reaches the limit: no split that goes on from there stays below. And where another label
           of the same cut and stages used up exceeds none of its numbers by more than a step e. Proof.
           The other can go on in the same way, and ends with numbers that are larger by e at most: every row
           adds what lies behind to its M, or to U. If it is left out in its turn for a third one, that
           happens at most once a stage, so that rows and O exceed those of the split by p e each at most.
           A split below limit - 2 p e therefore leaves a label to the end, of its group, and the least of
           those at the end exceeds it by 2 p e at most.
Size       at most so many labels as are asked for; beyond them nothing is said.
Exact      for these rows, within the share LOSS of the limit.
Source     labels of shortest paths with resources: Desrochers, Soumis 1988, INFOR 26; Irnich, Desaulniers
           2005, "Shortest Path Problems with Resource Constraints".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.layer_partition_groups import GroupCosts, ways_to_use
from formulations.layer_partition_prices import Path, all_rows, row_names
from formulations.pipeline_rows import Floats, Ints

LOSS = 2.5e-4
"""Part of the limit by which the bound may fall short. A guess: a fortieth of a gap of 1%."""
MOST_LABELS = 30_000
"""Labels of all stages beyond which nothing is said: about half a second. A guess."""
MOST_OF_STAGE = 100_000
"""The same of one stage before any is left out for another. A guess."""


@dataclass(frozen=True)
class Labels:
    """Labels of one number of stages, arrays [label]."""

    state: Ints
    """Stages of each class used up, an index into `ways_to_use`."""
    cut: Ints
    numbers: Floats
    """[label, number] U, every M[j], O."""
    before: Ints
    """Which label of a stage fewer it goes on from."""
    of_class: Ints
    """Class of its last stage."""

    def only(self, which: Ints | NDArray[np.bool_]) -> Labels:
        """Some of them."""
        return Labels(**{name: values[which] for name, values in vars(self).items()})


@dataclass(frozen=True)
class LabelsFound:
    """What labels say of all splits."""

    least_ms: Floats
    """By groups: at most the limit."""
    path: Path
    """The split that has the least of all; none where all reach the limit."""


class GroupLabels:
    """Labels of one set of costs."""

    def __init__(self, costs: GroupCosts) -> None:
        self.costs, p, m = costs, costs.num_stages, costs.num_microbatches
        self.sources, self.counts = ways_to_use(costs.most, p)
        """Behind them the numbers of stages of each class at the end, by state."""
        self.fits = np.isfinite(costs.forward) & np.isfinite(costs.backward) & np.isfinite(costs.follow)
        sends = np.zeros((p, len(costs.most))) if costs.sends is None else costs.sends
        self.sends: Floats = np.where(self.fits.any(axis=(2, 3)), sends, 0.0)
        self.times = np.where(
            self.fits, costs.forward + costs.backward + self.sends[:, :, None, None], np.inf
        )
        forward, backward = all_rows(p, m)
        of_stage: list[list[tuple[float, float, int]]] = [[] for _ in range(p)]
        for name, phi, beta in zip(row_names(p, m), forward, backward, strict=True):
            s = name.stage
            if name.family == "flush":
                continue
            behind = int(phi[s + 1]) if s + 1 < p else 0
            of_stage[s].append((float(phi[s]), float(beta[s]), behind))
        self.rows = of_stage
        """[stage] factors phi, beta and j of its rows."""
        self.turns = np.array(sorted({j for rows in of_stage for *_, j in rows}))
        """All j."""
        self.rest = self._shortest_rests()
        """[stages placed][state, cut] V."""

    def least_ms(self, limit_ms: float, most_labels: int = MOST_LABELS) -> LabelsFound | None:
        """What no split below a finite limit undercuts; None where labels are too many [ms]."""
        p, reach_ms = self.costs.num_stages, limit_ms * (1 + LOSS)
        step_ms, left = LOSS * limit_ms / (2 * p), most_labels
        numbers = np.full((1, len(self.turns) + 2), -np.inf)
        numbers[0, [0, -1]] = 0.0
        nothing = np.zeros(1, dtype=np.int64)
        placed = [Labels(nothing, nothing, numbers, nothing, nothing)]
        for s in range(p):
            grown = self._grown(s, placed[-1], reach_ms)
            if grown is None:
                return LabelsFound(np.full(len(self.counts), limit_ms), [])
            if len(grown.cut) > MOST_OF_STAGE:
                return None
            place = grown.state * self.times.shape[-1] + grown.cut
            placed.append(grown.only(_undominated(np.floor(grown.numbers / step_ms), place)))
            left -= len(placed[-1].cut)
            if left < 0:
                return None
        last = placed[-1]
        values = last.numbers[:, 1:-1].max(axis=1) + last.numbers[:, -1]
        least = np.full(len(self.counts), reach_ms)
        np.minimum.at(least, last.state, values)
        return LabelsFound(
            np.minimum(least - LOSS * limit_ms, limit_ms), self._path(placed, int(values.argmin()))
        )

    def _shortest_rests(self) -> list[Floats]:
        """V by stages placed, [state, cut]; inf where the rest does not fit."""
        p, cuts = self.costs.num_stages, self.times.shape[-1]
        rest = np.full((len(self.counts), cuts), np.inf)
        rest[:, -1] = 0.0
        rests = [rest]
        for s in reversed(range(p)):
            before = np.full((self._num_states(s), cuts), np.inf)
            for c, source in enumerate(self.sources[s]):
                to = np.flatnonzero(source >= 0)
                for length in np.flatnonzero(self.fits[s, c].any(axis=-1)).tolist():
                    found = (rests[-1][to] + self.times[s, c, length])[:, length:]
                    at = source[to]
                    before[at, : cuts - length] = np.minimum(before[at, : cuts - length], found)
            rests.append(before)
        return rests[::-1]

    def _num_states(self, s: int) -> int:
        return 1 if s == 0 else int(self.sources[s - 1].shape[1])

    def _grown(self, s: int, labels: Labels, reach_ms: float) -> Labels | None:
        """Labels with one stage more that stay below a limit; None where none does."""
        costs, cuts, grown = self.costs, self.times.shape[-1], []
        for c, source in enumerate(self.sources[s]):
            into = np.full(self._num_states(s), -1)
            into[source[source >= 0]] = np.flatnonzero(source >= 0)
            states = into[labels.state]
            for length in np.flatnonzero(self.fits[s, c].any(axis=-1)).tolist():
                ends = np.minimum(labels.cut + length, cuts - 1)
                fit = (states >= 0) & (labels.cut + length < cuts) & self.fits[s, c, length, ends]
                at = np.flatnonzero(fit & np.isfinite(self.rest[s + 1][states, ends]))
                if not len(at):
                    continue
                end, state = ends[at], states[at]
                numbers = labels.numbers[at]
                if s == 0:
                    numbers[:, 0] += costs.reduction[c, length, end]
                self._add_stage(numbers, s, c, length, end)
                rest = self.rest[s + 1][state, end]
                low = np.maximum(
                    (numbers[:, 1:-1] + self.turns * rest[:, None]).max(axis=1), numbers[:, 0] + rest
                )
                keep = low + numbers[:, -1] < reach_ms
                one = Labels(state, end, numbers, at, np.full(len(at), c))
                grown.append(one.only(keep))
        if not any(len(one.cut) for one in grown):
            return None
        return Labels(*(np.concatenate([vars(one)[name] for one in grown]) for name in vars(labels)))

    def _add_stage(self, numbers: Floats, s: int, c: int, length: int, end: Ints) -> None:
        """Add a run of layers on the next stage to the numbers of labels, in place."""
        forward, backward = (of[s, c, length, end] for of in (self.costs.forward, self.costs.backward))
        time, send = self.times[s, c, length, end], float(self.sends[s, c])
        numbers[:, 1:-1] += self.turns * time[:, None]
        for phi, beta, j in self.rows[s]:
            of_turn = numbers[:, 1 + int(np.searchsorted(self.turns, j))]
            np.maximum(of_turn, numbers[:, 0] + phi * forward + beta * backward + j * send, out=of_turn)
        numbers[:, 0] += time
        np.maximum(numbers[:, -1], self.costs.follow[s, c, length, end], out=numbers[:, -1])

    def _path(self, placed: list[Labels], which: int) -> Path:
        """Stage, class, length and end of every run of a label at the end."""
        path: Path = []
        for s in reversed(range(self.costs.num_stages)):
            label, before = placed[s + 1], placed[s]
            came, end = int(label.before[which]), int(label.cut[which])
            path.append((s, int(label.of_class[which]), end - int(before.cut[came]), end))
            which = came
        return path[::-1]


def _undominated(numbers: Floats, place: Ints) -> Ints:
    """Labels of which no other at the same place has all numbers as small, those of least sum first.

    Parameters
    ----------
    numbers
        [label, number] in whole steps.
    """
    order = np.lexsort((np.maximum(numbers, 0.0).sum(axis=1), place))
    # A column a label: so many are compared much faster than so few numbers of each.
    place, columns = place[order], np.ascontiguousarray(numbers[order].T)
    kept, left = [], np.arange(len(order))
    while len(left):
        # The first that is left at each place is kept; the others there stay that it does not rule out.
        is_first = np.diff(place[left], prepend=-1) != 0
        first = left[is_first]
        kept.append(first)
        by = first[np.cumsum(is_first) - 1][~is_first]
        left = left[~is_first]
        left = left[(columns[:, left] < columns[:, by]).any(axis=0)]
    undominated: Ints = order[np.sort(np.concatenate([*kept, left]))]
    return undominated
