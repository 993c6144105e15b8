"""Speed of one prediction, of many bounds, and of the event simulation: one line each, on one core.

    python benchmarks/prediction_speed.py                 four shipped problems
    python benchmarks/prediction_speed.py --problem NAME  one of them; repeatable

Machines differ, and other work disturbs: every time is processor time, the least of several tries (of new
degrees the median of many, each asked once), and beside it stands its ratio to a million steps of a Python
loop on the same machine in the same run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from formulations.stage_selection_data import StageChoice, objective_ms  # noqa: E402
from planner import load_problem  # noqa: E402
from planner.cost.prices import Degrees, Prices  # noqa: E402
from planner.cost.pricing import price  # noqa: E402
from planner.cost.remembered import remembered_price  # noqa: E402
from planner.data.load import names  # noqa: E402
from planner.data.problem import Problem  # noqa: E402
from planner.search.bound_data import bound_data  # noqa: E402
from planner.search.bounds import group_bounds  # noqa: E402
from planner.search.coefficients import stage_coefficients  # noqa: E402
from planner.search.degrees import DegreeTable, list_degrees  # noqa: E402
from planner.search.kinds import layer_kinds  # noqa: E402
from planner.simulate.pipeline import stage_ends_s  # noqa: E402
from planner.units import MS  # noqa: E402

PROBLEMS = (
    "llama3-405b-h100-1024",
    "llama3-70b-h100-a100-128",
    "llama3-405b-mixed-10240",
    "deepseek-v3-gb200-256",
)
"""One node class, two, and four; and a mixture of experts."""

CANDIDATES = 100_000
PIPELINES = ((8, 64), (64, 512))
"""Stages and micro-batches of the simulated pipelines."""


def best_s(work: Callable[[], Any], tries: int) -> float:
    """Least processor time of one call among several [s]."""
    found = []
    for _ in range(tries):
        start_s = time.process_time()
        work()
        found.append(time.process_time() - start_s)
    return min(found)


def unit_s() -> float:
    """Processor time of a million steps of a Python loop [s]."""

    def work() -> None:
        total = 0
        for i in range(1_000_000):
            total += i & 7

    return best_s(work, 5)


def row_of(degrees: Degrees, row: int) -> Degrees:
    """One row of a table of degrees."""
    at = slice(row, row + 1)
    return Degrees(
        degrees.tensor_parallel[at],
        degrees.context_parallel[at],
        degrees.expert_parallel[at],
        degrees.expert_tensor_parallel[at],
        degrees.data_parallel[at],
        degrees.microbatch_size[at],
        degrees.sequence_parallel[at],
        degrees.dp_mode,
    )


def rows_ms(problem: Problem, prices: Prices, table: DegreeTable, row: int) -> float:
    """Step time of one plan by the rows of the formulation: even layers, the classes as blocks [ms]."""
    p = int(min(table.max_stages[row].sum(), 8))
    order = np.repeat(np.arange(table.max_stages.shape[1]), table.max_stages[row])[:p].tolist()
    micro = int(table.num_microbatches[row])
    data = stage_coefficients(problem, prices, 0, int(table.stage_size[row]), micro, order)
    layers = [problem.model.num_layers * (s + 1) // p - problem.model.num_layers * s // p for s in range(p)]
    return objective_ms(data, StageChoice(tuple(layers), ("none",) * p, (0,) * p))


def bound_candidates(problem: Problem, table: DegreeTable) -> None:
    """Price all degrees of a problem and bound many candidates: degrees with stages on each class."""
    kinds = layer_kinds(problem.model)
    assert kinds is not None
    prices = price(problem, table.degrees)
    data = bound_data(problem.model.num_layers, kinds, prices, sends_block=not problem.stack.p2p_overlap)
    choice = np.arange(CANDIDATES) % len(table)
    random = np.random.default_rng(0).random((CANDIDATES, table.max_stages.shape[1]))
    counts = np.ceil(random * table.max_stages[choice]).astype(np.int64)
    group_bounds(data, choice, table.num_microbatches[choice], counts)


def lines(name: str, unit: float) -> list[str]:
    """What one problem's predictions and bounds take."""
    problem = load_problem(name)
    table = list_degrees(problem)
    seen = np.unique(np.linspace(0, len(table) - 1, 60).astype(int)).tolist()
    each = {row: row_of(table.degrees, row) for row in seen}
    # Degrees never asked for before, each once: the median. Then degrees asked for before, with other layers.
    fresh = median(
        best_s(lambda r=row: rows_ms(problem, price(problem, each[r]), table, r), 1) for row in seen
    )
    again = best_s(lambda: rows_ms(problem, remembered_price(problem, each[seen[0]]), table, seen[0]), 60)
    bounds = best_s(lambda: bound_candidates(problem, table), 3)
    about = f"{name}, {len(problem.cluster.classes)} classes"
    return [
        f"{about}: one prediction (costs and rows), new degrees {shown(fresh, unit)}, "
        f"known degrees {shown(again, unit)}",
        f"{about}: {CANDIDATES:,} candidates bounded, {len(table):,} rows of degrees priced "
        f"{shown(bounds, unit)}",
    ]


def simulation(num_stages: int, num_microbatches: int, unit: float) -> str:
    """What the events of one pipeline take."""
    times = np.random.default_rng(0).uniform(1, 2, (3, 1, num_stages, 1))
    found = best_s(lambda: stage_ends_s(times[0], times[1], times[2, :, :, 0], num_microbatches), 20)
    return f"events of {num_stages} stages x {num_microbatches} micro-batches {shown(found, unit)}"


def shown(seconds: float, unit: float) -> str:
    """A time and its ratio to the unit."""
    return f"{seconds / MS:.2f} ms ({seconds / unit:.4f} units)"


def main() -> int:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(description="Speed of predictions, bounds and events on one core.")
    parser.add_argument("--problem", action="append", choices=names("problems"), help="this problem only")
    flags = parser.parse_args()
    unit = unit_s()
    sys.stdout.write(f"unit {unit / MS:.1f} ms: a million steps of a Python loop\n")
    for name in flags.problem or PROBLEMS:
        for line in lines(name, unit):
            sys.stdout.write(line + "\n")
    for num_stages, num_microbatches in PIPELINES:
        sys.stdout.write(simulation(num_stages, num_microbatches, unit) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
