"""Write `instances/tables/error_bands.yaml`: how far predictions are from measured runs.

A band is what four of five runs stay within that had no part in it: a percentile of |predicted / measured -
1| over the runs of a chip, a family of software and a kind of model, unanchored and anchored by other runs
(leave one out). Runs of one source are alike, so that every source counts as much as another in a group, and
the percentile is the least whose bands hold for four of five runs of a source that is left out of them, on
average over the sources. Groups of fewer than five runs are left to the wider ones: software alone, chip
alone, all. Figures of predictions, not inputs to them.

Usage: `python benchmarks/error_bands.py RUNS.jsonl [instances/tables/error_bands.yaml]`.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.calibrate.accuracy import score
from planner.calibrate.runs import read_runs
from planner.cost.bands import SCALED_BAND
from planner.cost.prices import Floats
from planner.cost.relatives import has_own_tables
from planner.data.load import load_chip

FEWEST_RUNS = 5
"""Runs from which a percentile means anything."""

COVERAGE = 0.8
"""Share of the runs of a source, left out of the bands, that stay within them; mean over the sources."""

COLUMNS = ("unanchored", "anchored")

Group = tuple[str, str, str, bool]
"""Chip, family of software, kind of model, whether the chip has tables of its own; `*` stands for all."""

HEADER = """\
# What four of five measured runs of a source stay within that had no part in it, by chip, family of software
# and kind of model: percentile {unanchored} ({anchored} anchored) of |predicted / measured - 1|, every source
# of a group with the same weight. Written by benchmarks/error_bands.py from {runs} published runs of
# {sources} sources, quality high and medium; `anchored` is scaled by other runs of its chip and software
# (leave one out). The first line that matches in the order chip and stack, stack, chip, all (`*`) counts;
# `tables: false` holds the chips that are scaled from a relative.
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
        group = chip.id, rows[0]["stack"], "dense" if run.model.moe is None else "moe", has_own_tables(chip)
        unanchored, with_anchor = (abs(row["predicted_step_s"] / row["measured_step_s"] - 1) for row in rows)
        found.append(Error(run.source, group, (unanchored, with_anchor)))
    return found


def views(group: Group) -> tuple[Group, ...]:
    """Groups that a run belongs to, the nearest first."""
    chip, stack, kind, own = group
    return ((chip, stack, kind, own), ("*", stack, kind, own), (chip, "*", kind, own), ("*", "*", kind, own))


def bands(found: Sequence[Error], percentiles: tuple[float, float]) -> dict[Group, tuple[float, float]]:
    """Band of every group with enough runs, by column; the nearest groups first."""
    pooled: list[dict[Group, list[Error]]] = [defaultdict(list) for _ in range(4)]
    for error in found:
        for level, group in zip(pooled, views(error.group), strict=True):
            level[group].append(error)
    lines = {}
    for level in pooled:
        for group, members in sorted(level.items()):
            if len(members) >= FEWEST_RUNS:
                count = Counter(error.source for error in members)
                weights = np.array([1 / count[error.source] for error in members])
                values = np.array([error.relative for error in members]).T
                unanchored, anchored = (
                    weighted_percentile(*pair)
                    for pair in zip(values, (weights,) * 2, percentiles, strict=True)
                )
                lines[group] = unanchored, anchored
    return lines


def weighted_percentile(values: Floats, weights: Floats, percentile: float) -> float:
    """Least value below or at which lies that much of the weight."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(share, percentile / 100 - 1e-12)])


def coverage(found: Sequence[Error], percentile: float) -> dict[str, tuple[float, float]]:
    """Share of a source's runs within the bands of the other sources, by column."""
    shares = {}
    for source in dict.fromkeys(error.source for error in found):
        lines = bands([error for error in found if error.source != source], (percentile, percentile))
        inside = []
        for error in found:
            if error.source == source:
                near = (lines[group] for group in views(error.group) if group in lines)
                band = next(near, (SCALED_BAND, SCALED_BAND))
                inside.append(np.array(error.relative) <= band)
        unanchored, anchored = np.mean(inside, axis=0)
        shares[source] = float(unanchored), float(anchored)
    return shares


def least_percentiles(found: Sequence[Error]) -> tuple[int, int]:
    """By column, the least percentile whose bands cover enough of a source that is left out, on average."""
    least: list[int] = []
    for column in range(len(COLUMNS)):
        enough = (
            percentile
            for percentile in range(int(100 * COVERAGE), 100)
            if np.mean([share[column] for share in coverage(found, percentile).values()]) >= COVERAGE
        )
        least.append(next(enough, 99))
    return least[0], least[1]


def main(runs: Path, out: Path) -> None:
    """Write the table; print what share of each source its bands would have covered without it."""
    found = errors(runs)
    percentiles = least_percentiles(found)
    shares = [coverage(found, percentile) for percentile in percentiles]
    for source in shares[0]:
        print(f"{source:20} {shares[0][source][0]:.2f} {shares[1][source][1]:.2f}")
    rows = []
    for (chip, stack, kind, own), band in bands(found, percentiles).items():
        members = sum((chip, stack, kind, own) in views(error.group) for error in found)
        names = [f'"{name}"' if name == "*" else name for name in (chip, stack)]
        values = f"unanchored: {round(band[0], 3)!r}, anchored: {round(band[1], 3)!r}"
        rows.append(
            f"  - {{chip: {names[0]}, stack: {names[1]}, kind: {kind}, tables: {str(own).lower()}, "
            f"runs: {members}, {values}}}\n"
        )
    head = HEADER.format(
        unanchored=percentiles[0], anchored=percentiles[1], runs=f"{len(found):,}", sources=len(shares[0])
    )
    out.write_text(head + "bands:\n" + "".join(rows))


if __name__ == "__main__":
    default = Path(__file__).parent.parent / "instances/tables/error_bands.yaml"
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else default)
