"""Write `instances/tables/error_bands.yaml`: how far predictions are from measured runs.

A band is what four of five runs stay within that had no part in it: a percentile of |predicted / measured -
1| over the runs of a chip, a family of software and a kind of model, unanchored and anchored by other runs
(leave one out). Chips that are scaled from another maker's, whose kernels differ, take bands of their like
alone. Runs of one source are alike, so that every source counts as much as another in a group, and
the percentile is the least whose bands hold for four of five runs of a source that is left out of them, on
average over the sources. Few runs say little of how far off the next will be: in the band of a group of n
runs its own count n / (n + WIDER_RUNS), those of wider groups (software alone, chip alone, all) the rest;
groups of fewer than FEWEST_RUNS are left to these. Figures of predictions, not inputs to them.

Usage: `python benchmarks/error_bands.py RUNS.jsonl [instances/tables/error_bands.yaml]`.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.calibrate.accuracy import score
from planner.calibrate.runs import read_runs
from planner.cost.bands import SCALED_BAND
from planner.cost.kernels.relatives import TablesOf, tables_of
from planner.cost.prices import Floats
from planner.data.load import load_chip

FEWEST_RUNS = 5
"""Runs from which a group has a line of its own."""

WIDER_RUNS = 80
"""Runs that a group needs to count as much as all wider ones together.

Of 0, 5, 10, 20, 40, 80, 160 and 320 the number whose bands are best for sources that are left out: mean
`loss` over sources and columns, each at the least percentile that covers enough: 18.0, 17.7, 17.6, 17.3,
17.1, 17.0, 17.0 and 17.1 thousandths on the runs of November 2026. With one model of a source left out at a
time it falls as well, from 20.9 to 17.1 (24.7 to 20.8 where groups of chip and software weigh the same).
"""

COVERAGE = 0.8
"""Share of the runs of a source, left out of the bands, that stay within them; mean over the sources."""

COLUMNS = ("unanchored", "anchored")

Group = tuple[str, str, str, TablesOf]
"""Chip, family of software, kind of model, whose tables price the chip; `*` stands for all."""

HEADER = """\
# What four of five measured runs of a source stay within that had no part in it, by chip, family of software
# and kind of model: percentile {unanchored} ({anchored} anchored) of |predicted / measured - 1|, every source
# of a group with the same weight, a group of few runs mixed with the wider ones. Written by
# benchmarks/error_bands.py from {runs} published runs of {sources} sources, quality high and medium;
# `anchored` is scaled by other runs of its chip and software (leave one out). The first line that matches
# in the order chip and stack, stack, chip, all (`*`) counts; `tables` tells chips with operators of their own
# from those scaled from a relative of the same maker or of another.
"""


@dataclass(frozen=True)
class Error:
    """How far the prediction of one run is off."""

    source: str
    group: Group
    relative: tuple[float, float]
    """Absolute relative error by column."""


def errors(path: Path) -> list[Error]:
    """Errors of every uniform run."""
    runs = {run.id: run for run in read_runs(path)}
    plain, anchored = (score(path, anchor=mode, rows=True)["rows"] for mode in ("none", "leave-one-out"))
    found = []
    for rows in zip(plain, anchored, strict=True):
        run = runs[rows[0]["id"]]
        if rows[0]["predicted_step_s"] is None or len(run.cluster.groups) != 1:
            continue
        chip = load_chip(run.cluster.groups[0].chip)
        group = chip.id, rows[0]["stack"], "dense" if run.model.moe is None else "moe", tables_of(chip)
        unanchored, with_anchor = (abs(row["predicted_step_s"] / row["measured_step_s"] - 1) for row in rows)
        found.append(Error(run.source, group, (unanchored, with_anchor)))
    return found


def views(group: Group) -> tuple[Group, ...]:
    """Groups that a run belongs to, the nearest first."""
    chip, stack, kind, tables = group
    return (
        (chip, stack, kind, tables),
        ("*", stack, kind, tables),
        (chip, "*", kind, tables),
        ("*", "*", kind, tables),
    )


def members_of(group: Group) -> tuple[Group, ...]:
    """Groups that a run counts in: scaled chips of one maker are trusted no more than those of all makers."""
    _, _, kind, tables = group
    wider: tuple[Group, ...] = (("*", "*", kind, "same_maker"),) if tables == "other_maker" else ()
    return (*views(group), *wider)


def bands(
    found: Sequence[Error], percentiles: tuple[float, float], wider_runs: float = WIDER_RUNS
) -> dict[Group, tuple[float, float]]:
    """Band of every group with enough runs, by column; the nearest groups first.

    Parameters
    ----------
    wider_runs
        Runs that a group needs to count as much as the wider ones.
    """
    pooled: list[dict[Group, list[Error]]] = [defaultdict(list) for _ in range(4)]
    for error in found:
        for i, group in enumerate(members_of(error.group)):
            pooled[min(i, len(pooled) - 1)][group].append(error)
    members = {group: runs for level in pooled for group, runs in sorted(level.items())}
    own = {group: _Errors.of(runs) for group, runs in members.items()}
    lines = {}
    for group in (group for group, runs in members.items() if len(runs) >= FEWEST_RUNS):
        # Behind the group itself only groups that hold all of its runs: of software on any chip, all.
        mixed = _Errors.mixed([own[view] for view in dict.fromkeys(views(group))], wider_runs)
        unanchored, anchored = (
            weighted_percentile(values, mixed.weights, percentile)
            for values, percentile in zip(mixed.values, percentiles, strict=True)
        )
        lines[group] = unanchored, anchored
    return lines


@dataclass(frozen=True)
class _Errors:
    """Errors of a group with their weights."""

    num_runs: int
    values: Floats
    """[column, run]"""
    weights: Floats
    """[run], of sum 1."""

    @classmethod
    def of(cls, members: Sequence[Error]) -> _Errors:
        """Every source with the same weight."""
        count = Counter(error.source for error in members)
        weights = np.array([1 / count[error.source] for error in members])
        values = np.array([error.relative for error in members]).T
        return cls(len(members), values, weights / weights.sum())

    @classmethod
    def mixed(cls, nearest_first: Sequence[_Errors], wider_runs: float) -> _Errors:
        """A group's errors with those of the wider ones, each group by its own number of runs."""
        parts, left = [], 1.0
        for errors_of_group in nearest_first:
            is_last = errors_of_group is nearest_first[-1]
            share = 1.0 if is_last else errors_of_group.num_runs / (errors_of_group.num_runs + wider_runs)
            parts.append(left * share * errors_of_group.weights)
            left *= 1 - share
        values = np.concatenate([part.values for part in nearest_first], axis=1)
        return cls(nearest_first[0].num_runs, values, np.concatenate(parts))


def weighted_percentile(values: Floats, weights: Floats, percentile: float) -> float:
    """Least value below or at which lies that much of the weight."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(share, percentile / 100 - 1e-12)])


def coverage(
    found: Sequence[Error], percentile: float, wider_runs: float = WIDER_RUNS
) -> dict[str, tuple[float, float]]:
    """Share of a source's runs within the bands of the other sources, by column."""
    return _over_sources(found, percentile, wider_runs, lambda errors, band: np.mean(errors <= band, axis=0))


def loss(
    found: Sequence[Error], percentile: float, wider_runs: float = WIDER_RUNS
) -> dict[str, tuple[float, float]]:
    """How bad the bands of the other sources are for a source's runs, by column.

    The loss by which quantiles are judged, on average least at the one that was asked for: COVERAGE of what
    a run is beyond its band, the rest of what it is within (Koenker and Bassett, Regression quantiles, 1978).
    """

    def mean_loss(errors: Floats, band: Floats) -> Floats:
        beyond = errors - band
        return np.asarray(np.mean(np.maximum(COVERAGE * beyond, (COVERAGE - 1) * beyond), axis=0))

    return _over_sources(found, percentile, wider_runs, mean_loss)


def _over_sources(
    found: Sequence[Error],
    percentile: float,
    wider_runs: float,
    judge: Callable[[Floats, Floats], Floats],
) -> dict[str, tuple[float, float]]:
    """What `judge` says of the errors and bands [run, column] of every source, by the bands of the others."""
    judged = {}
    for source in dict.fromkeys(error.source for error in found):
        others = [error for error in found if error.source != source]
        lines = bands(others, (percentile, percentile), wider_runs)
        left_out = [error for error in found if error.source == source]
        near = [
            next((lines[group] for group in views(error.group) if group in lines), (SCALED_BAND, SCALED_BAND))
            for error in left_out
        ]
        unanchored, anchored = judge(np.array([error.relative for error in left_out]), np.array(near))
        judged[source] = float(unanchored), float(anchored)
    return judged


def least_percentiles(found: Sequence[Error], wider_runs: float = WIDER_RUNS) -> tuple[int, int]:
    """By column, the least percentile whose bands cover enough of a source that is left out, on average."""
    least: list[int] = []
    for column in range(len(COLUMNS)):
        enough = (
            percentile
            for percentile in range(int(100 * COVERAGE), 100)
            if np.mean([share[column] for share in coverage(found, percentile, wider_runs).values()])
            >= COVERAGE
        )
        least.append(next(enough, 99))
    return least[0], least[1]


def _mean(of_sources: dict[str, tuple[float, float]], column: int) -> float:
    """Mean of a column over the sources."""
    return float(np.mean([values[column] for values in of_sources.values()]))


def main(runs: Path, out: Path) -> None:
    """Write the table; print what share of each source its bands would have covered without it."""
    found = errors(runs)
    percentiles = least_percentiles(found)
    shares = [coverage(found, percentile) for percentile in percentiles]
    for source in shares[0]:
        print(f"{source:20} {shares[0][source][0]:.2f} {shares[1][source][1]:.2f}")
    rows = []
    for (chip, stack, kind, tables), band in bands(found, percentiles).items():
        members = sum((chip, stack, kind, tables) in members_of(error.group) for error in found)
        names = [f'"{name}"' if name == "*" else name for name in (chip, stack)]
        values = f"unanchored: {round(band[0], 3)!r}, anchored: {round(band[1], 3)!r}"
        rows.append(
            f"  - {{chip: {names[0]}, stack: {names[1]}, kind: {kind}, tables: {tables}, "
            f"runs: {members}, {values}}}\n"
        )
    head = HEADER.format(
        unanchored=percentiles[0], anchored=percentiles[1], runs=f"{len(found):,}", sources=len(shares[0])
    )
    out.write_text(head + "bands:\n" + "".join(rows))


if __name__ == "__main__":
    default = Path(__file__).parent.parent / "instances/tables/error_bands.yaml"
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else default)
