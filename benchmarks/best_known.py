"""Keep the best plan known for each shipped problem in `instances/best_known.yaml`.

    python benchmarks/best_known.py                      search every problem again, keep what is better
    python benchmarks/best_known.py --problem NAME       one of them; repeatable
    python benchmarks/best_known.py --gap 0.002 --time-limit-s 60

An entry holds the plan in short, its step time, the proven bound, when and how they were found. Predictions
change as they learn from measurements, so the value of an old entry is only a record: plans are compared by
what the referee says of them today.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from planner import __version__, load_problem, plan, predict  # noqa: E402
from planner.data.load import names  # noqa: E402
from planner.data.options import Options  # noqa: E402
from planner.data.plan import Plan  # noqa: E402
from planner.data.problem import Problem  # noqa: E402
from planner.errors import PlannerError  # noqa: E402
from planner.search.assemble import hosts_of_stages  # noqa: E402

PATH = ROOT / "instances" / "best_known.yaml"
HEAD = """\
# Best plan known for each shipped problem: step time [s], proven bound [s], when and how they were found.
# Written by benchmarks/best_known.py. A stage reads [node class, layers, recompute, layers recomputed].
"""
DEGREES = (
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "data_parallel",
    "microbatch_size",
    "num_microbatches",
    "sequence_parallel",
)


def in_short(found: Plan) -> dict[str, Any]:
    """The decisions of a plan without hosts and first layers, which follow from the rest."""
    values = found.model_dump(mode="json")
    stages = [
        [
            stage.node_class,
            sum(last - first + 1 for first, last in stage.chunks),
            stage.recompute,
            stage.recompute_layers,
        ]
        for stage in found.stages
    ]
    return {**{name: values[name] for name in DEGREES}, "stages": stages}


def in_full(problem: Problem, short: dict[str, Any]) -> Plan:
    """The plan of an entry."""
    size = short["tensor_parallel"] * short["context_parallel"] * short["data_parallel"]
    classes = [problem.cluster.class_index(name) for name, *_ in short["stages"]]
    hosts = hosts_of_stages(problem, classes, size)
    stages, first = [], 0
    for s, (name, layers, recompute, recomputed) in enumerate(short["stages"]):
        stages.append(
            {
                "layers": [first, first + layers - 1],
                "chip": problem.cluster.classes[classes[s]].chip,
                "node_class": name,
                "hosts": hosts[s],
                "tensor_parallel": short["tensor_parallel"],
                "data_parallel": short["data_parallel"],
                "recompute": recompute,
                "recompute_layers": recomputed,
            }
        )
        first += layers
    decisions = {name: short[name] for name in DEGREES}
    return Plan.model_validate(
        {"target": problem.target, **decisions, "dp_mode": "distopt", "stages": stages}
    )


def known() -> dict[str, dict[str, Any]]:
    """Entries by problem; none where there is no file yet."""
    entries = yaml.safe_load(PATH.read_text())["problems"] if PATH.exists() else {}
    return dict(entries)


def known_step_s(problem: Problem, entry: dict[str, Any]) -> float:
    """What the referee says today of the plan of an entry [s]; infinite where it does not fit any more."""
    evaluation = predict(problem, in_full(problem, entry["plan"]))
    return float("inf") if evaluation.violations else evaluation.step_s


def searched(name: str, gap: float, limit_s: float) -> dict[str, Any] | None:
    """The entry of a new search; None without a plan. One virtual stage a rank."""
    problem = load_problem(name)
    options = problem.options.model_copy(
        update={"gap": gap, "time_limit_s": limit_s, "max_virtual_stages": 1}
    )
    result = plan(problem, Options.model_validate(options.model_dump()))
    if result.plan is None or result.evaluation is None:
        return None
    proof = f"search over all orders, layers and recomputation to a gap of {100 * (result.gap or 0.0):.2f}%"
    return {
        "step_s": round(result.evaluation.step_s, 6),
        "bound_s": None if result.bound_s is None else round(result.bound_s, 6),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "how": f"{proof}, hetplan {__version__}",
        "plan": in_short(result.plan),
    }


def main() -> int:
    """Search again and keep the better of old and new plans."""
    parser = argparse.ArgumentParser(description="Search for better plans of the shipped problems.")
    parser.add_argument("--problem", action="append", choices=names("problems"))
    parser.add_argument("--gap", type=float, default=0.002)
    parser.add_argument("--time-limit-s", type=float, default=60.0)
    flags = parser.parse_args()
    entries = known()
    for name in flags.problem or names("problems"):
        try:
            new = searched(name, flags.gap, flags.time_limit_s)
        except PlannerError as refused:
            sys.stdout.write(f"{name}: {refused}\n")
            continue
        old = entries.get(name)
        if new is None:
            continue
        problem = load_problem(name)
        old_s = known_step_s(problem, old) if old else float("inf")
        if old is not None and old_s <= known_step_s(problem, new):
            new = {**new, "step_s": round(old_s, 6), "plan": old["plan"]}
        entries[name] = new
        sys.stdout.write(f"{name}: {new['step_s']} s, bound {new['bound_s']} s\n")
        sys.stdout.flush()
        text = yaml.safe_dump(
            {"problems": dict(sorted(entries.items()))}, sort_keys=False, default_flow_style=None, width=110
        )
        PATH.write_text(HEAD + text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
