"""Time to a first plan and to proofs of 1% and 0.1% by size of the cluster, beside the times aimed at.

    python benchmarks/speed.py                  every row
    python benchmarks/speed.py --row 1024       one of them; repeatable

Dense models of 80 to 126 layers, and DeepSeek-V3 with expert parallelism; one virtual stage a rank. Each row
runs in a process of its own. Beside the wall time stands the processor time of the search, which other work
on the machine disturbs less. Rows go to the screen and to `benchmarks/results/`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.run import RESULTS, machine, peak_memory_mib, shown, unit_s  # noqa: E402
from planner import plan  # noqa: E402
from planner.data.load import build_problem, load_problem  # noqa: E402
from planner.data.options import Options  # noqa: E402
from planner.data.problem import Problem  # noqa: E402


@dataclass(frozen=True)
class Row:
    """A cluster and model, and the times aimed at [s]: first plan, wide gap, narrow gap."""

    name: str
    cluster: str
    model: str
    global_batch_size: int
    aims_s: tuple[float | None, float | None, float | None]
    seq_length: int = 8192
    wide: float = 0.01
    narrow: float = 0.001

    def problem(self) -> Problem:
        """The problem of the row; a cluster without a count of nodes is a shipped problem."""
        if "x8 " not in self.cluster:
            return load_problem(self.cluster)
        return build_problem(
            cluster=self.cluster,
            model=self.model,
            seq_length=self.seq_length,
            global_batch_size=self.global_batch_size,
        )


ROWS = (
    Row("16", "1x8 h200-sxm-141gb, 1x8 b200-180gb", "llama3-70b", 128, (0.3, 0.5, 1)),
    Row("128", "llama3-70b-h100-a100-128", "llama3-70b", 512, (0.5, 1, 2)),
    Row(
        "1024",
        "32x8 h100-sxm-80gb, 32x8 h200-sxm-141gb, 32x8 h800-80gb, 32x8 a100-sxm-80gb",
        "llama3.1-405b",
        512,
        (1, 5, 15),
    ),
    Row("10240", "llama3-405b-mixed-10240", "llama3.1-405b", 2560, (3, 30, 60)),
    Row(
        "102400",
        "3200x8 h100-sxm-80gb, 1600x8 h200-sxm-141gb, 1600x8 h800-80gb, 3200x8 a100-sxm-80gb, "
        "1600x8 b200-180gb, 1600x8 b300-288gb",
        "llama3.1-405b",
        12800,
        (20, 120, None),
        wide=0.02,
    ),
    Row("1024-moe", "64x8 h100-sxm-80gb, 64x8 h200-sxm-141gb", "deepseek-v3", 8192, (None, 20, None), 4096),
)
"""Aims: two cores of a machine that does nothing else."""

COLUMNS = (
    "row",
    "classes",
    "first_plan_s",
    "wide_gap_s",
    "narrow_gap_s",
    "aims_s",
    "cpu_s",
    "step_s",
    "gap",
    "peak_memory_mib",
)


def run_row(row: Row, limit_s: float, *, wide_only: bool) -> dict[str, Any]:
    """Plan one row in this process: to the wide gap, and on to the narrow one."""
    problem = row.problem()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    seen: dict[str, float] = {}

    def watch(progress: Any) -> None:
        if progress.incumbent_s is not None:
            seen.setdefault("first_plan_s", progress.elapsed_s)
        for name, gap in (("wide_gap_s", row.wide), ("narrow_gap_s", row.narrow)):
            if progress.gap is not None and progress.gap <= gap:
                seen.setdefault(name, progress.elapsed_s)
                seen.setdefault(name.replace("gap_s", "gap_cpu_s"), time.process_time() - start_cpu_s)

    target = row.wide if wide_only or row.aims_s[2] is None else row.narrow
    options = problem.options.model_copy(
        update={"gap": target, "time_limit_s": limit_s, "max_virtual_stages": 1}
    )
    result = plan(problem, Options.model_validate(options.model_dump()), on_progress=watch)
    total_s = time.perf_counter() - start_s
    if result.plan is not None:
        seen.setdefault("first_plan_s", total_s)
    for name, gap in (("wide_gap_s", row.wide), ("narrow_gap_s", row.narrow)):
        if result.gap is not None and result.gap <= gap:
            seen.setdefault(name, total_s)
            seen.setdefault(name.replace("gap_s", "gap_cpu_s"), time.process_time() - start_cpu_s)
    return {
        "row": row.name,
        "classes": len(problem.cluster.classes),
        **{name: round(value, 3) for name, value in seen.items()},
        "aims_s": " / ".join("-" if aim is None else f"{aim:g}" for aim in row.aims_s),
        "cpu_s": time.process_time() - start_cpu_s,
        "step_s": result.evaluation.step_s if result.evaluation else None,
        "gap": result.gap,
        "peak_memory_mib": peak_memory_mib(),
        "statistics": result.statistics,
    }


def main() -> int:
    """Run what the flags ask for."""
    parser = argparse.ArgumentParser(description="Time to plan and to proof by size of the cluster.")
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--time-limit-s", type=float, default=120.0, help="limit for each row")
    parser.add_argument("--wide-only", action="store_true", help="stop at the wide gap")
    parser.add_argument("--no-write", action="store_true", help="screen only")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    by_name = {row.name: row for row in ROWS}
    if flags.alone:
        row = run_row(by_name[flags.alone], flags.time_limit_s, wide_only=flags.wide_only)
        sys.stdout.write(json.dumps(row))
        return 0
    rows = []
    head = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    sys.stdout.write("\n".join(head) + "\n")
    for name in flags.row or by_name:
        command = [sys.executable, __file__, "--alone", name, "--time-limit-s", str(flags.time_limit_s)]
        command += ["--wide-only"] if flags.wide_only else []
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            sys.stdout.write(f"| {name} | failed: {(done.stderr.strip().splitlines() or ['?'])[-1]} |\n")
            continue
        row = json.loads(done.stdout)
        rows.append(row)
        sys.stdout.write("| " + " | ".join(shown(row.get(c)) for c in COLUMNS) + " |\n")
        sys.stdout.flush()
    if rows and not flags.no_write:
        RESULTS.mkdir(exist_ok=True)
        about = {**machine(), "command": "python benchmarks/speed.py", "unit_s": round(unit_s(), 4)}
        path = RESULTS / f"speed_{about['machine']}_{about['when'][:7].replace('-', '')}.json"
        path.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
