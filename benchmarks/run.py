"""Time to a plan, time to its proof, and the gap, for the shipped problems; speed of one prediction.

    python benchmarks/run.py                 every shipped problem
    python benchmarks/run.py --quick         three of them
    python benchmarks/run.py --predict       speed of one prediction alone
    python benchmarks/run.py --problem NAME  one of them; repeatable

Each problem runs in a process of its own, so that its peak memory is its own. Rows go to the screen
and to `benchmarks/results/`, as a table and as JSON. Machines differ: beside the seconds stands their
ratio to the time of a fixed piece of work (`unit_s`) on the same machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.cases import PREDICTED, Case, cases  # noqa: E402
from planner import __version__, load_problem, plan, predict  # noqa: E402
from planner.data.load import names  # noqa: E402
from planner.data.options import Options  # noqa: E402
from planner.errors import PlannerError  # noqa: E402
from planner.units import KIB, MIB, MS  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"

COLUMNS = (
    "problem",
    "chips",
    "first_plan_s",
    "gap_reached_s",
    "total_s",
    "total_units",
    "step_s",
    "bound_s",
    "gap",
    "termination",
    "peak_memory_mib",
)


def unit_s() -> float:
    """Time of a fixed piece of work that is half interpreter and half numpy; the best of five [s]."""
    values = np.random.default_rng(0).random(2_000_000)

    def work() -> None:
        total = 0
        for i in range(1_000_000):
            total += i & 7
        np.sort(values)

    return min(timed(work) for _ in range(5))


def timed(work: Callable[[], Any]) -> float:
    """Time of one call [s]."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def run_case(case: Case) -> dict[str, Any]:
    """Plan one problem in this process and return its row."""
    seen: dict[str, float] = {}

    def watch(progress: Any) -> None:
        if progress.incumbent_s is not None:
            seen.setdefault("first_plan_s", progress.elapsed_s)
        if progress.gap is not None and progress.gap <= case.gap:
            seen.setdefault("gap_reached_s", progress.elapsed_s)

    problem = load_problem(case.problem)
    options = problem.options.model_copy(update={"gap": case.gap, "time_limit_s": case.time_limit_s})
    row: dict[str, Any] = {"problem": case.problem, "chips": problem.cluster.num_chips}
    start_s = time.perf_counter()
    try:
        result = plan(problem, Options.model_validate(options.model_dump()), on_progress=watch)
    except PlannerError as refused:
        return {**row, "termination": f"{type(refused).__name__}: {refused}"}
    total_s = time.perf_counter() - start_s
    if result.gap is not None and result.gap <= case.gap:
        seen.setdefault("gap_reached_s", total_s)
    if result.plan is not None:
        seen.setdefault("first_plan_s", total_s)
    return {
        **row,
        **seen,
        "total_s": total_s,
        "step_s": result.evaluation.step_s if result.evaluation else None,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "termination": result.termination,
        "reason": result.reason,
        "peak_memory_mib": peak_memory_mib(),
        "statistics": result.statistics,
    }


def peak_memory_mib() -> float | None:
    """Most memory that this process has held [MiB]; None where the system does not say.

    From VmHWM, as ru_maxrss of a child begins at what its parent held when it was started.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(int(line.split()[1]) * KIB / MIB for line in status.splitlines() if line.startswith("VmHWM"))


def run_alone(case: Case) -> dict[str, Any]:
    """Plan one problem in a fresh process."""
    command = [sys.executable, __file__, "--alone", case.problem, str(case.gap), str(case.time_limit_s)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        last_words = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return {"problem": case.problem, "termination": f"failed: {last_words[0]}"}
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def prediction_ms(repeats: int = 200) -> dict[str, float]:
    """Time of one prediction of one plan on one core, the first and the median of the rest [ms]."""
    problem = load_problem(PREDICTED)
    result = plan(problem, Options(gap=0.2, time_limit_s=60))
    if result.plan is None:
        raise SystemExit(f"no plan of {PREDICTED} to predict: {result.reason}")
    best = result.plan
    times_s = [timed(lambda: predict(problem, best)) for _ in range(repeats)]
    return {"first_ms": times_s[0] / MS, "median_ms": median(times_s[1:]) / MS}


def shown(value: Any) -> str:
    """A cell of the table."""
    if value is None:
        return "-"
    return (
        f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )


def as_table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(shown(row.get(c)) for c in COLUMNS) + " |" for row in rows]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What ran this, and on what."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return {
        "hetplan": __version__,
        "commit": commit.stdout.strip() or None,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": "python benchmarks/run.py " + " ".join(sys.argv[1:]),
    }


def write(report: dict[str, Any], table: str) -> Path:
    """Keep the report; one file a machine and month, the newer run in the place of the older."""
    RESULTS.mkdir(exist_ok=True)
    about = report["about"]
    stem = RESULTS / f"plan_{about['machine']}_{about['when'][:7].replace('-', '')}"
    stem.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
    facts = "\n".join(f"- {key}: {value}" for key, value in about.items())
    speed = f"\nOne prediction: {report['prediction']}\n" if report.get("prediction") else ""
    stem.with_suffix(".md").write_text(f"# Time to plan\n\n{facts}\n{speed}\n{table}\n")
    return stem.with_suffix(".md")


def main() -> int:
    """Run what the flags ask for."""
    parser = argparse.ArgumentParser(description="Time to plan, and gap, of the shipped problems.")
    parser.add_argument("--quick", action="store_true", help="three problems only")
    parser.add_argument("--predict", action="store_true", help="speed of one prediction only")
    parser.add_argument("--problem", action="append", choices=names("problems"), help="this problem only")
    parser.add_argument("--time-limit-s", type=float, help="limit for each problem")
    parser.add_argument("--no-write", action="store_true", help="screen only")
    parser.add_argument("--alone", nargs=3, metavar=("PROBLEM", "GAP", "LIMIT"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.alone:
        name, gap, limit_s = flags.alone
        sys.stdout.write(json.dumps(run_case(Case(name, float(gap), float(limit_s)))))
        return 0
    report: dict[str, Any] = {"about": {**machine(), "unit_s": round(unit_s(), 4)}, "rows": []}
    if flags.predict or not flags.problem:
        report["prediction"] = prediction_ms()
        sys.stdout.write(f"one prediction: {report['prediction']}\n")
    if flags.predict:
        return 0
    chosen = [Case(name) for name in flags.problem] if flags.problem else list(cases(quick=flags.quick))
    for case in chosen:
        if flags.time_limit_s is not None:
            case = Case(case.problem, case.gap, flags.time_limit_s)
        row = run_alone(case)
        if row.get("total_s") is not None:
            row["total_units"] = row["total_s"] / report["about"]["unit_s"]
        report["rows"].append(row)
        sys.stdout.write(as_table([row]).splitlines()[-1] + "\n")
        sys.stdout.flush()
    table = as_table(report["rows"])
    sys.stdout.write("\n" + table + "\n")
    if not flags.no_write:
        sys.stdout.write(f"written to {write(report, table)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
