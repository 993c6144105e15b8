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
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
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
from planner.search.mixed.placement import hosts_of_ranks  # noqa: E402

PATH = ROOT / "instances" / "best_known.yaml"
HEAD = """\
# Best plan known for each shipped problem: step time [s], proven bound [s], when and how they were found.
# Written by benchmarks/best_known.py. A stage reads [node class, layers, recompute, layers recomputed]; a
# list of [node class, ranks] comes first where its ranks lie on several, layers are a list with chunks.
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
    stages = []
    for stage in found.stages:
        counts = [last - first + 1 for first, last in stage.chunks]
        ranks = Counter(replica.node_class for replica in stage.replicas or ())
        where = [[name, count] for name, count in ranks.items()] or stage.node_class
        layers = counts if len(counts) > 1 else counts[0]
        stages.append([where, layers, stage.recompute, stage.recompute_layers])
    return {**{name: values[name] for name in DEGREES}, "stages": stages}


def in_full(problem: Problem, short: dict[str, Any]) -> Plan:
    """The plan of an entry."""
    tp, dp = short["tensor_parallel"], short["data_parallel"]
    index = problem.cluster.class_index
    dealt = [
        [(index(name), ranks) for name, ranks in ([[where, dp]] if isinstance(where, str) else where)]
        for where, *_ in short["stages"]
    ]
    chips_of_rank = tp * short["context_parallel"]
    of_stage = hosts_of_stages(problem, [ranks[0][0] for ranks in dealt], chips_of_rank * dp)
    of_rank = hosts_of_ranks(problem, dealt, chips_of_rank)
    is_mixed = any(len(ranks) > 1 for ranks in dealt)
    stages = []
    for s, (_, _, recompute, recomputed) in enumerate(short["stages"]):
        node_class = problem.cluster.classes[dealt[s][0][0]]
        stages.append(
            {
                "layers": _ranges(short["stages"], s),
                "chip": node_class.chip,
                "node_class": node_class.name,
                "hosts": list(dict.fromkeys(h for own in of_rank[s] for h in own))
                if is_mixed
                else of_stage[s],
                "tensor_parallel": tp,
                "data_parallel": dp,
                "recompute": recompute,
                "recompute_layers": recomputed,
                "replicas": _replicas(problem, dealt[s], of_rank[s], tp),
            }
        )
    decisions = {name: short[name] for name in DEGREES}
    layers = short["stages"][0][1]
    decisions["virtual_stages"] = len(layers) if isinstance(layers, list) else 1
    return Plan.model_validate(
        {"target": problem.target, **decisions, "dp_mode": "distopt", "stages": stages}
    )


def _ranges(stages: list[list[Any]], s: int) -> list[Any]:
    """First and last layer of a stage, of each of its chunks with virtual stages."""
    counts = [one[1] if isinstance(one[1], list) else [one[1]] for one in stages]
    ends = np.cumsum(np.array(counts).T).reshape(len(counts[0]), len(counts))[:, s]
    found = [[int(end - count), int(end) - 1] for end, count in zip(ends, counts[s], strict=True)]
    return found if len(found) > 1 else found[0]


def _replicas(
    problem: Problem, ranks: list[tuple[int, int]], hosts: list[tuple[str, ...]], tp: int
) -> list[dict[str, Any]] | None:
    """The ranks of a stage on several classes; None for one class."""
    if len(ranks) == 1:
        return None
    classes = [problem.cluster.classes[c] for c, count in ranks for _ in range(count)]
    return [
        {"node_class": one.name, "chip": one.chip, "hosts": own, "tensor_parallel": tp}
        for one, own in zip(classes, hosts, strict=True)
    ]


def known() -> dict[str, dict[str, Any]]:
    """Entries by problem; none where there is no file yet."""
    entries = yaml.safe_load(PATH.read_text())["problems"] if PATH.exists() else {}
    return dict(entries)


def known_step_s(problem: Problem, entry: dict[str, Any]) -> float:
    """What the referee says today of the plan of an entry [s]; infinite where it does not fit any more."""
    evaluation = predict(problem, in_full(problem, entry["plan"]))
    return float("inf") if evaluation.violations else evaluation.step_s


def searched(name: str, gap: float, limit_s: float) -> dict[str, Any] | None:
    """The entry of a new search; None without a plan."""
    problem = load_problem(name)
    options = problem.options.model_copy(update={"gap": gap, "time_limit_s": limit_s})
    result = plan(problem, Options.model_validate(options.model_dump()))
    if result.plan is None or result.evaluation is None:
        return None
    return entry_of(result.evaluation.step_s, result.bound_s, in_short(result.plan))


def entry_of(step_s: float, bound_s: float | None, short: dict[str, Any]) -> dict[str, Any]:
    """The entry of a plan with what a search of today has proven."""
    gap = 0.0 if bound_s is None else (step_s - bound_s) / step_s
    proof = f"search over all orders, layers and recomputation to a gap of {gap:.2%}"
    return {
        "step_s": round(step_s, 6),
        "bound_s": None if bound_s is None else round(bound_s, 6),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "how": f"{proof}, hetplan {__version__}",
        "plan": short,
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
            new = entry_of(old_s, new["bound_s"], old["plan"])
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
