"""Factors that carry a measured level over to a prediction: measured over predicted time.

A factor is the median over *other* runs, never of the same model and layout, so that no run's own
time, nor a repetition of it, helps to predict it (leave one out).

Dense models and mixtures of experts have factors of their own where both were measured: what the model of
costs misses on experts (imbalance, dispatch) says nothing of matrix products, and the other way round. So
have runs that wait for the host's launches. The median of one or two runs is their noise: fewer than
`ENOUGH_RUNS` give way to more runs of the same stack and kind on other chips, where there are. Of hundreds of
runs the `NEAREST_RUNS` most alike count, by width, tokens of a micro-batch, parallel degree and release.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Anchorable:
    """A run with both times."""

    chips: tuple[str, ...]
    """Chips that it ran on; several for a mixed run."""
    vendors: tuple[str, ...]
    """Maker of each."""
    stack: str
    """Family of its software, and how its step was timed."""
    layout: Hashable
    """Model and layout: runs that share it never anchor each other."""
    ratio: float
    """Measured over predicted step time."""
    kind: str = "dense"
    """`dense` or `moe`."""
    launch_bound: bool = False
    """Whether the prediction waits for the host's launches."""
    place: tuple[float, ...] = ()
    """Where it lies among runs: coordinates whose differences, added up, say how unlike two runs are; all
    runs have equally many, and one that is unknown (NaN) sets nobody apart."""


@dataclass(frozen=True)
class Anchor:
    """Factor of one chip in one run."""

    factor: float
    """Measured over predicted, the median of the runs it rests on."""
    basis: str
    """What those runs share: `chip and stack`, `chip`, `stack` or `vendor`, perhaps `of this kind`."""
    num_runs: int
    """How many."""


ENOUGH_RUNS = 3
"""Runs whose median says more than their noise (guess)."""

NEAREST_RUNS = 30
"""Most runs that a factor rests on (guess: enough that none of them decides)."""

Key = Callable[[Anchorable, int], Hashable]

_UNIFORM: tuple[tuple[str, Key], ...] = (
    ("chip and stack, of this kind and pace", lambda run, i: (run.chips[i], *_like(run), run.launch_bound)),
    ("chip and stack, of this kind", lambda run, i: (run.chips[i], run.stack, run.kind)),
    ("stack, of this kind", lambda run, i: (run.stack, run.kind)),
    ("chip and stack", lambda run, i: (run.chips[i], run.stack)),
    ("stack", lambda run, i: run.stack),
    ("vendor", lambda run, i: run.vendors[i]),
)
"""Where a uniform run looks for others, in this order."""

_OF_THIS_KIND = 3
"""How many of these ask for the same stack and kind: among them, the first with enough runs wins."""

_MIXED: tuple[tuple[str, Key], ...] = (
    _UNIFORM[1],
    _UNIFORM[3],
    ("chip", lambda run, i: run.chips[i]),
    *_UNIFORM[4:],
)
"""A mixed run takes each chip's own factor, if need be from other software."""


def _like(run: Anchorable) -> tuple[str, str]:
    return run.stack, run.kind


def leave_one_out(runs: Sequence[Anchorable]) -> list[tuple[Anchor | None, ...]]:
    """Anchor of every chip of every run, None where no other run says anything.

    Mixed runs anchor nothing: their time belongs to no chip alone.
    """
    pools: dict[tuple[str, Hashable], list[Anchorable]] = defaultdict(list)
    every = dict((*_UNIFORM, *_MIXED))
    for run in runs:
        if len(run.chips) == 1:
            for basis, key in every.items():
                pools[basis, key(run, 0)].append(run)
    found: dict[tuple[str, Hashable, Hashable, tuple[float, ...]], Anchor | None] = {}
    places: dict[tuple[str, Hashable], NDArray[np.float64]] = {}

    def look_up(basis: str, key: Hashable, run: Anchorable) -> Anchor | None:
        at = (basis, key, run.layout, run.place)
        if at not in found:
            pool = pools.get((basis, key), [])
            others = [i for i, other in enumerate(pool) if other.layout != run.layout]
            if len(others) > NEAREST_RUNS:
                if (basis, key) not in places:
                    places[basis, key] = np.array([other.place for other in pool])
                unlike = np.nansum(np.abs(places[basis, key][others] - np.array(run.place)), axis=1)
                others = [others[i] for i in np.argsort(unlike, kind="stable")[:NEAREST_RUNS]]
            ratios = [pool[i].ratio for i in others]
            found[at] = Anchor(median(ratios), basis, len(ratios)) if ratios else None
        return found[at]

    def anchor_of(run: Anchorable, chip: int) -> Anchor | None:
        uniform = len(run.chips) == 1
        nearest: Anchor | None = None
        for place, (basis, key) in enumerate(_UNIFORM if uniform else _MIXED):
            anchor = look_up(basis, key(run, chip), run)
            nearest = nearest or anchor
            if uniform and place < _OF_THIS_KIND:
                if anchor is not None and anchor.num_runs >= ENOUGH_RUNS:
                    return anchor
            elif nearest is not None:
                return nearest
        return None

    return [tuple(anchor_of(run, chip) for chip in range(len(run.chips))) for run in runs]
