"""OPT-350M on A100-40 and V100-16 beside other planners, scored by a published simulator.

python -m benchmarks.opt350m                      every cluster and target, and Hetplan's own plans
python -m benchmarks.opt350m --cluster 32+96      one cluster; repeatable
python -m benchmarks.opt350m --no-ordinary        without Hetplan's own plans
python -m benchmarks.opt350m --no-write           screen only
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from benchmarks.opt350m.ordinary import ordinary
from benchmarks.opt350m.published import Published, published
from benchmarks.opt350m.spaces import TARGETS, best_plan
from benchmarks.run import RESULTS, machine

WHOLE = "megatron-lm, batch kept"
"""Name of the space whose plans Megatron-LM runs as they are."""
COMPARED = ("A100 + V100", "best other", "brute force", *TARGETS, WHOLE, "over best other")
ORDINARY = ("A100 + V100", "Hetplan's own step", "gap", "seconds", "judged", "over the best judged", "plan")


def compared(entry: Published) -> dict[str, Any]:
    """Proven best plans of a cluster by target."""
    row: dict[str, Any] = {"chips": entry.chips, "name": entry.name, "others": entry.others}
    row["brute_force_s"] = entry.brute_force.step_s if entry.brute_force else None
    row["all_busy_s"] = entry.all_busy_s
    row["targets"] = {}
    for name in (*TARGETS, WHOLE):
        found = best_plan(entry.chips, name.split(",")[0], whole_batches=name == WHOLE)
        row["targets"][name] = {
            "step_s": found.step_s,
            "bound_s": found.bound_s,
            "gap": found.gap,
            "seconds": found.seconds,
            "core_seconds": found.core_seconds,
            "labels": found.labels,
            "plan": str(found.plan),
            "keeps_batch": found.plan is not None and found.plan.keeps_batch,
        }
    return row


def planned(entry: Published) -> dict[str, Any] | None:
    """Hetplan's ordinary plan of a cluster, by both."""
    own = ordinary(entry.chips)
    if own is None:
        return None
    return {
        "step_s": own.step_s,
        "gap": own.gap,
        "seconds": own.seconds,
        "judged": asdict(own.judged),
        "plan": str(own.plan),
    }


def compared_cells(row: dict[str, Any]) -> list[str]:
    """One line of the first table."""
    best = row["others"][0] if row["others"] else None
    cells = [row["name"], seconds_in_brackets(*best) if best else "-"]
    cells.append(f"{row['brute_force_s']:.3f}" if row["brute_force_s"] else "-")
    cells += [
        seconds_in_brackets(found["step_s"], found["core_seconds"]) for found in row["targets"].values()
    ]
    least_s = min(found["step_s"] for found in row["targets"].values())
    return [*cells, f"{best[0] / least_s:.2f} x" if best else "-"]


def ordinary_cells(row: dict[str, Any]) -> list[str]:
    """One line of the second table."""
    own = row["ordinary"]
    if own is None:
        return [row["name"], *["-"] * (len(ORDINARY) - 1)]
    least_s = row["targets"][WHOLE]["step_s"]
    judged_s = own["judged"]["step_s"]
    refused = "; ".join(own["judged"]["violations"])
    return [
        row["name"],
        f"{own['step_s']:.3f}",
        f"{own['gap']:.2%}",
        f"{own['seconds']:.1f}",
        f"{judged_s:.3f}" + (f" ({refused})" if refused else ""),
        f"{judged_s / least_s - 1:+.1%}",
        own["plan"],
    ]


def seconds_in_brackets(step_s: float, seconds: float | None = None) -> str:
    """A step time with the time of its search."""
    if seconds is None:
        return f"{step_s:.3f}"
    return f"{step_s:.3f} ({seconds:.0f})" if seconds >= 10 else f"{step_s:.3f} ({seconds:.2g})"


def table(header: tuple[str, ...], lines: list[list[str]]) -> str:
    """A Markdown table."""
    rows = ["| " + " | ".join(cells) + " |" for cells in [list(header), *lines]]
    return "\n".join([rows[0], "|" + "---|" * len(header), *rows[1:]])


def main() -> int:
    """Run what the flags ask for."""
    parser = argparse.ArgumentParser(description="OPT-350M on mixed clusters beside other planners.")
    names = [entry.name.replace(" ", "") for entry in published()]
    parser.add_argument("--cluster", action="append", choices=names, help="this cluster only")
    parser.add_argument("--no-ordinary", action="store_true", help="without Hetplan's own plans")
    parser.add_argument("--no-write", action="store_true", help="screen only")
    flags = parser.parse_args()
    rows = []
    for entry in published():
        if flags.cluster and entry.name.replace(" ", "") not in flags.cluster:
            continue
        row = compared(entry)
        if not flags.no_ordinary and entry.others:
            row["ordinary"] = planned(entry)
        rows.append(row)
        sys.stderr.write(" | ".join(compared_cells(row)) + "\n")
    text = report(rows)
    sys.stdout.write(text)
    if not flags.no_write and not flags.cluster:
        about = {**machine(), "command": "python -m benchmarks.opt350m " + " ".join(sys.argv[1:])}
        RESULTS.mkdir(exist_ok=True)
        stem = RESULTS / f"opt350m_{about['machine']}_{about['when'][:7].replace('-', '')}"
        stem.with_suffix(".json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        facts = "\n".join(f"- {key}: {value}" for key, value in about.items())
        stem.with_suffix(".md").write_text(f"# OPT-350M beside other planners\n\n{facts}\n\n{text}")
        sys.stdout.write(f"written to {stem.with_suffix('.md')}\n")
    return 0


def report(rows: list[dict[str, Any]]) -> str:
    """Both tables, and the plans."""
    parts = [
        "Step time in s by the published simulator; in brackets the seconds of search and proof, ours on one "
        f"core; gap at most {max(f['gap'] for row in rows for f in row['targets'].values()):.0e}.",
        table(COMPARED, [compared_cells(row) for row in rows]),
        "\n".join(
            f"- {row['name']}, {target}: {found['plan']}"
            + ("" if found["keeps_batch"] else " (rounded up: more than 1,024 sequences)")
            for row in rows
            for target, found in row["targets"].items()
        ),
    ]
    with_own = [row for row in rows if "ordinary" in row]
    if with_own:
        parts += [
            "Hetplan's ordinary plans for megatron-lm, chosen by its own referee, and what the judge says; "
            "without virtual stages, context parallelism and recomputation, which the judge does not know.",
            table(ORDINARY, [ordinary_cells(row) for row in with_own]),
        ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
