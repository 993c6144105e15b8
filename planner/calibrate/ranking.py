"""Whether predictions put layouts in the right order, which is what a planner needs of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np

from planner.calibrate.runs import Run

MIN_LAYOUTS = 3
"""Smaller groups say nothing of an order."""


def ranking(runs: Iterable[tuple[Run, float]]) -> dict[str, Any]:
    """Regret and rank correlation by suite, from pairs of run and predicted step time.

    Runs of the same suite, software, cluster, model, sequence length, batch and precision form a
    group; only their layouts differ. Regret is how much slower the layout that is predicted best
    was measured than the best measured one, as a fraction of the latter; rho is Spearman's rank
    correlation. A suite reports the mean regret and the median rho of its groups.
    """
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = defaultdict(list)
    for run, predicted_s in runs:
        assert run.measured.step_s is not None
        groups[_key(run)].append((predicted_s, run.measured.step_s))
    suites: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for key, pairs in groups.items():
        if len(pairs) < MIN_LAYOUTS:
            continue
        predicted, measured = np.array(pairs).T
        rho = spearman(predicted, measured)
        if rho is not None:
            suites[str(key[0])].append((regret(predicted, measured), rho, len(pairs)))
    return {name: _summary(entries) for name, entries in suites.items()}


def _key(run: Run) -> tuple[object, ...]:
    return run.source, run.software, run.cluster, run.model, run.workload


def _summary(entries: Sequence[tuple[float, float, int]]) -> dict[str, Any]:
    return {
        "groups": len(entries),
        "n": sum(n for _, _, n in entries),
        "regret": float(np.mean([r for r, _, _ in entries])),
        "worst_regret": max(r for r, _, _ in entries),
        "rho": median(rho for _, rho, _ in entries),
    }


def regret(predicted: Sequence[float] | np.ndarray, measured: Sequence[float] | np.ndarray) -> float:
    """Measured time of the layout that is predicted best over the best measured, less one."""
    return float(np.asarray(measured)[int(np.argmin(predicted))] / np.min(measured) - 1)


def spearman(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None where one side does not vary."""
    a, b = _ranks(np.asarray(first)), _ranks(np.asarray(second))
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return None if norm == 0 else float(a @ b) / norm


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, ties at their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[inverse]
