"""Time to proof of each formulation by solver and number of stages; how close the pipeline rows come.

    python benchmarks/formulation_times.py          the table of formulations/README.md
    python benchmarks/formulation_times.py --rows   rows over the events of random pipelines, instead

Programs come from shipped problems: half of the stages on each of two classes, the slow ones first.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from formulations import stage_selection, stage_selection_cp  # noqa: E402
from formulations.options import SolveOptions, SolverName  # noqa: E402
from formulations.pipeline_rows import step_bound  # noqa: E402
from formulations.stage_selection_data import StageSelectionData  # noqa: E402
from planner import load_problem  # noqa: E402
from planner.cost.prices import Degrees  # noqa: E402
from planner.cost.pricing import price  # noqa: E402
from planner.search.coefficients import stage_coefficients  # noqa: E402
from planner.simulate.pipeline import makespan_1f1b  # noqa: E402

SOLVERS: tuple[SolverName, ...] = ("highs", "scip", "cbc", "cp_sat")


@dataclass(frozen=True)
class Program:
    """One outer choice of a shipped problem."""

    problem: str
    num_stages: int
    tensor_parallel: int
    data_parallel: int


PROGRAMS = (
    Program("llama3-70b-h100-a100-128", 4, 8, 4),
    Program("llama3-70b-h100-a100-128", 8, 8, 2),
    Program("llama3-70b-h100-a100-128", 16, 8, 1),
    Program("llama3-405b-mixed-10240", 32, 8, 20),
)


def coefficients(program: Program) -> StageSelectionData:
    """The program's data, with micro-batches of one sequence."""
    problem = load_problem(program.problem)
    tp, dp = program.tensor_parallel, program.data_parallel
    degrees = Degrees.single(tensor_parallel=tp, data_parallel=dp, sequence_parallel=tp > 1)
    prices = price(problem, degrees)
    speed = prices.layer_forward_s[0, 0].sum(axis=-1)
    slow, fast = int(np.argmax(speed)), int(np.argmin(speed))
    half = program.num_stages // 2
    order = [slow] * half + [fast] * (program.num_stages - half)
    num_microbatches = problem.workload.global_batch_size // dp
    return stage_coefficients(problem, prices, 0, tp * dp, num_microbatches, order)


def row(program: Program, solver: SolverName, limit_s: float) -> str:
    """One line of the table: the best of three solves."""
    data = coefficients(program)
    form = stage_selection_cp if solver == "cp_sat" else stage_selection
    options = SolveOptions(solver=solver, time_limit_s=limit_s)
    times_s = []
    for _ in range(3):
        start_s = time.perf_counter()
        result = form.solve(data, options)
        times_s.append(time.perf_counter() - start_s)
        if times_s[-1] > limit_s / 2:
            break
    known = result.objective_ms is not None and result.bound_ms is not None
    gap = f"{1 - result.bound_ms / result.objective_ms:.0e}" if known else "-"  # type: ignore[operator]
    value = "-" if result.objective_ms is None else f"{result.objective_ms:.3f}"
    stem = form.__name__.rpartition(".")[2]
    size = f"{data.num_stages} | {data.num_layers} | {data.num_microbatches}"
    return f"| {stem} | {solver} | {size} | {1e3 * min(times_s):.0f} | {value} | {gap} | {result.status} |"


def row_slack(cases: int = 2000) -> list[str]:
    """How far the rows stay below the events, mean and worst, by unevenness and by sends."""
    rng = np.random.default_rng(0)
    lines = [
        "| unevenness | sends, of a forward | below on average | at worst |",
        "|---|---|---|---|",
    ]
    for uneven in (0.0, 0.1, 0.5):
        for send in (0.0, 0.05, 0.3):
            below = []
            for _ in range(cases):
                p, m = int(rng.integers(2, 9)), int(rng.integers(1, 25))
                forward = 1 + uneven * rng.random(p)
                backward = 2 * (1 + uneven * rng.random(p))
                hops, nothing = np.full(p, send), np.zeros(p)
                bound = float(step_bound(forward, backward, hops, m, nothing))
                below.append(1 - bound / makespan_1f1b(forward, backward, hops, m))
            mean, worst = max(float(np.mean(below)), 0.0), max(below)
            lines.append(f"| {uneven:.0%} | {send:.0%} | {mean:.3%} | {worst:.2%} |")
    return lines


def main() -> int:
    """Write the table that the flags ask for."""
    parser = argparse.ArgumentParser(description="Time to proof of every formulation.")
    parser.add_argument("--rows", action="store_true", help="how close the pipeline rows come")
    parser.add_argument("--time-limit-s", type=float, default=60.0, help="limit for one solve")
    flags = parser.parse_args()
    if flags.rows:
        sys.stdout.write("\n".join(row_slack()) + "\n")
        return 0
    sys.stdout.write(
        "| formulation | solver | stages | layers | micro-batches | ms | objective, ms | gap | status |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|---|---|\n")
    for program in PROGRAMS:
        for solver in SOLVERS:
            sys.stdout.write(row(program, solver, flags.time_limit_s) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
