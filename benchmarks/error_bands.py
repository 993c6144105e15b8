"""Write `instances/tables/error_bands.yaml`: how far predictions are from measured runs.

A band is what four of five runs stay within: the 80th percentile of |predicted / measured - 1| over the runs
of a chip, a family of software and a kind of model, unanchored and anchored by other runs (leave one out).
Groups of fewer than five runs are left to the wider ones: software alone, chip alone, all. Figures of
predictions, not inputs to them.

Usage: `python benchmarks/error_bands.py RUNS.jsonl [instances/tables/error_bands.yaml]`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate.accuracy import score
from planner.calibrate.runs import read_runs
from planner.cost.relatives import has_own_tables
from planner.data.load import load_chip

FEWEST_RUNS = 5
"""Runs from which a percentile means anything."""

PERCENTILE = 80

HEADER = """\
# What four of five measured runs stay within, by chip, family of software and kind of model: the 80th
# percentile of |predicted / measured - 1|. Written by benchmarks/error_bands.py from published runs (1,895 of
# 24 sources, quality high and medium); `anchored` is scaled by other runs of its chip and software (leave
# one out). `*` stands for all. The first line that matches in the order chip and stack, stack, chip, all
# counts; `tables: false` holds the chips that are scaled from a relative.
"""


def errors(path: Path) -> dict[tuple[str, str, str, bool], list[tuple[float, float]]]:
    """Absolute errors (unanchored, anchored) of every uniform run, by chip, stack, kind and own tables."""
    runs = {run.id: run for run in read_runs(path)}
    plain, anchored = (score(path, anchor=mode, rows=True)["rows"] for mode in ("none", "leave-one-out"))
    found: dict[tuple[str, str, str, bool], list[tuple[float, float]]] = defaultdict(list)
    for a, b in zip(plain, anchored, strict=True):
        run = runs[a["id"]]
        if a["predicted_step_s"] is None or len(run.cluster.groups) != 1:
            continue
        chip = load_chip(run.cluster.groups[0].chip)
        kind = "dense" if run.model.moe is None else "moe"
        pair = tuple(abs(row["predicted_step_s"] / row["measured_step_s"] - 1) for row in (a, b))
        found[chip.id, a["stack"], kind, has_own_tables(chip)].append(pair)  # type: ignore[arg-type]
    return found


def bands(found: dict[tuple[str, str, str, bool], list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """Lines of the table, the nearest groups first."""
    views = (
        lambda chip, stack, kind, own: (chip, stack, kind, own),
        lambda chip, stack, kind, own: ("*", stack, kind, own),
        lambda chip, stack, kind, own: (chip, "*", kind, own),
        lambda chip, stack, kind, own: ("*", "*", kind, own),
    )
    lines = []
    for view in views:
        pooled: dict[tuple[str, str, str, bool], list[tuple[float, float]]] = defaultdict(list)
        for key, pairs in found.items():
            pooled[view(*key)].extend(pairs)
        for (chip, stack, kind, own), pairs in sorted(pooled.items()):
            if len(pairs) < FEWEST_RUNS:
                continue
            unanchored, anchored = np.percentile(np.array(pairs), PERCENTILE, axis=0)
            lines.append(
                {
                    "chip": chip,
                    "stack": stack,
                    "kind": kind,
                    "tables": own,
                    "runs": len(pairs),
                    "unanchored": round(float(unanchored), 3),
                    "anchored": round(float(anchored), 3),
                }
            )
    return lines


def main(runs: Path, out: Path) -> None:
    """Write the table."""
    rows = []
    for line in bands(errors(runs)):
        values = ", ".join(
            f"{key}: {str(value).lower() if isinstance(value, bool) else value!r}".replace("'*'", '"*"')
            for key, value in line.items()
        ).replace("'", "")
        rows.append(f"  - {{{values}}}\n")
    out.write_text(HEADER + "bands:\n" + "".join(rows))


if __name__ == "__main__":
    default = Path(__file__).parent.parent / "instances/tables/error_bands.yaml"
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else default)
