"""What shortest walks know of stages, and the weights with which they count what follows the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.walks.chain import Chain

LATE = 0.5
"""Share of the latest end of a reduction from which others count as well."""


@dataclass(frozen=True)
class StageTables:
    """Times of the classes of a walk, [class, stage, n] in ms; inf where n layers do not fit."""

    times: Floats
    longer: Floats
    """The longer of forward and backward."""
    backward: Floats
    follow: Floats
    reduce: Floats
    """Exposed reduction with its tail."""


def least_times(chain: Chain, tables: StageTables) -> Floats:
    """Times of the classes with the least hops that a stage of each can have beside it, [class, stage, n]."""
    times: Floats = tables.times + _blocked_ms(chain, len(tables.times))[0][:, None, None]
    return times


def longest_times(chain: Chain, tables: StageTables) -> Floats:
    """The same with the most hops [class, stage, n] [ms]."""
    times: Floats = tables.times + _blocked_ms(chain, len(tables.times))[1][:, None, None]
    return times


def _blocked_ms(chain: Chain, num_classes: int) -> tuple[Floats, Floats]:
    """Least and most that the hops beside a stage of each class block it, [class]."""
    least, most = np.full(num_classes, np.inf), np.zeros(num_classes)
    np.minimum.at(least, chain.kind_class, chain.kind_blocked_ms)
    np.maximum.at(most, chain.kind_class, chain.kind_blocked_ms)
    return least, most


def heaviest_class(tables: StageTables, widest_ms: float) -> int:
    """The class whose stages, as full as they may be, add most to what follows."""
    middle = tables.times.shape[1] // 2
    follow = np.where(tables.times[:, middle] <= widest_ms, tables.follow[:, middle], 0.0)
    return int(np.argmax(np.where(np.isfinite(follow), follow, 0.0).max(axis=1)))


def reduction_weights(tables: StageTables, num_layers: int, *, over_all: bool = True) -> Floats:
    """Weights theta of the stages whose reductions count, [stage]; any that add up to 1 are valid.

    Stage 0 if its reduction would end last were the layers dealt evenly, or unless `over_all`; else those of
    `late_weights`.
    """
    first: Floats = np.eye(tables.times.shape[1])[0]
    if not over_all:
        return first
    shown = shown_reductions_ms(tables, num_layers)
    return first if shown[0] >= shown.max() else late_weights(shown)


def late_weights(shown_ms: Floats) -> Floats:
    """Alike for all stages whose reductions would end late, so that no walk evades them by few layers on one.

    Parameters
    ----------
    shown_ms
        As of `shown_reductions_ms`.
    """
    late = shown_ms >= LATE * shown_ms.max()
    weights: Floats = late / late.sum()
    return weights


def shown_reductions_ms(tables: StageTables, num_layers: int) -> Floats:
    """How long after the pipeline the reduction of each stage ends were the layers dealt evenly, [stage]."""
    usual = int(np.clip(round(num_layers / tables.times.shape[1]), 1, num_layers))
    reduce, backward = tables.reduce[:, :, usual], tables.backward[:, :, usual]
    fits = np.isfinite(backward)
    count = np.maximum(fits.sum(axis=0), 1)
    reduce, backward = (np.where(fits, of, 0.0).sum(axis=0) / count for of in (reduce, backward))
    shown: Floats = reduce - np.cumsum(backward) + backward
    return shown
