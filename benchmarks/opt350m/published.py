"""What other planners reach on the same clusters, as data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.opt350m.judge import JudgedPlan, plan_of
from benchmarks.opt350m.profile import Kind

FILE = Path(__file__).parent / "data" / "published.yaml"


@dataclass(frozen=True)
class Known:
    """A published plan and the step time published with it [s]."""

    plan: JudgedPlan
    step_s: float


@dataclass(frozen=True)
class Published:
    """One cluster."""

    chips: tuple[int, int]
    """Fast and slow chips."""
    others: tuple[tuple[float, ...], ...]
    """Step time of each other planner and, where known, the seconds of its search; the best first."""
    brute_force: Known | None
    one_degree: Known | None
    """The best published plan with one tensor degree, where it is not the same."""
    all_busy_s: float | None

    @property
    def name(self) -> str:
        """The cluster in a table."""
        return f"{self.chips[0]} + {self.chips[1]}"


@cache
def published() -> tuple[Published, ...]:
    """All clusters, as listed."""
    return tuple(
        Published(
            chips=tuple(entry["chips"]),
            others=tuple(map(tuple, entry["others"])),
            brute_force=_known(entry, "brute_force"),
            one_degree=_known(entry, "one_degree"),
            all_busy_s=entry.get("all_busy_s"),
        )
        for entry in yaml.safe_load(FILE.read_text())["clusters"]
    )


def _known(entry: dict[str, Any], name: str) -> Known | None:
    if name not in entry:
        return None
    data_parallel, size, stages = entry[name]
    kinds = [(layers, Kind(chip, degree)) for layers, chip, degree in stages]
    return Known(plan_of(data_parallel, size, *kinds), entry[f"{name}_s"])
