"""Which nodes each training of a fleet gets, from the plans that a batch has made for every share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from formulations.fleet_split import FleetSplitData, Objective, Option, solve
from formulations.options import SolveOptions
from planner.errors import InstanceError

Row = dict[str, Any]


@dataclass(frozen=True)
class Split:
    """The best division of a cluster among trainings.

    Parameters
    ----------
    rows
        The job of each training that is part of the split; None for all where no split exists.
    value, bound
        sum: weighted tokens a second of all together, and what no split into such shares can exceed.
        slowest: tokens a second over tokens to train, of the last to finish. The bound is None where
        some shares have no answer.
    idle
        Nodes of each class that nobody gets.
    missing
        Shares without an answer.
    """

    objective: Objective
    rows: tuple[Row, ...]
    value: float | None
    bound: float | None
    idle: dict[str, int] = field(default_factory=dict)
    missing: int = 0

    @property
    def gap(self) -> float | None:
        """(bound - value) / bound."""
        if self.value is None or self.bound is None:
            return None
        return max(0.0, (self.bound - self.value) / self.bound)

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "schema": "hetplan/split/v1",
            "objective": self.objective,
            "value": self.value,
            "bound": self.bound,
            "gap": self.gap,
            "shares": [
                {
                    "training": row["share"]["training"],
                    "nodes": row["share"]["nodes"],
                    "job": row["name"],
                    "tokens_per_s": row["tokens_per_s"],
                    "step_s": row["step_s"],
                    "plan": row["plan"],
                }
                for row in self.rows
            ],
            "idle": self.idle,
            "missing": self.missing,
        }


def split(rows: Sequence[Row], study: str, objective: Objective) -> Split:
    """The best split of a study's cluster.

    Raises
    ------
    InstanceError
        Where the study is unknown or has no answers yet.
    """
    own = [row for row in rows if row["study"] == study and row["share"] is not None]
    if not own:
        studies = sorted({row["study"] for row in rows if row["share"] is not None})
        known = f"; there are {', '.join(studies)}" if studies else " in this store"
        raise InstanceError(f"no `kind: fleet_split` is named {study!r}{known}", "hetplan split")
    groups: dict[str, list[Row]] = {}
    for row in own:
        planned = groups.setdefault(row["share"]["training"], [])
        if row["step_s"] is not None:
            planned.append(row)
    # That no plan exists on a share is an answer, and a refused share can have none.
    missing = sum(row["status"] != "done" and row["cause"] != "input" for row in own)
    missing += sum(row["termination"] == "no_solution_found" for row in own)
    # Whose row is damaged cannot be told from it: it may be one of ours.
    missing += sum(row["status"] == "damaged" for row in rows)
    classes = list(own[0]["share"]["nodes"])
    available = {name: max(row["share"]["nodes"][name] for row in own) for name in classes}
    tables = list(groups.values())
    if not all(tables):
        return Split(objective, (), None, None, available, missing)
    data, scale = _data(tables, available, objective, optimistic=False)
    found = solve(data, SolveOptions())
    if found is None:
        return Split(objective, (), None, None, available, missing)
    bound = None
    if not missing and all(row["bound_s"] for table in tables for row in table):
        hopeful, hopeful_scale = _data(tables, available, objective, optimistic=True)
        best = solve(hopeful, SolveOptions())
        bound = None if best is None else best.value * hopeful_scale
    chosen = tuple(table[o] for table, o in zip(tables, found.chosen, strict=True))
    idle = {n: available[n] - sum(row["share"]["nodes"][n] for row in chosen) for n in classes}
    return Split(objective, chosen, found.value * scale, bound, idle, missing)


def _data(
    tables: Sequence[Sequence[Row]], available: dict[str, int], objective: Objective, *, optimistic: bool
) -> tuple[FleetSplitData, float]:
    """Options of every training, scaled so that the largest figure is 1, and that scale.

    Parameters
    ----------
    optimistic
        Take for each plan the rate at its proven bound instead of the one that was found.
    """

    def rate(row: Row) -> float:
        faster = row["step_s"] / row["bound_s"] if optimistic else 1.0
        return float(row["tokens_per_s"] * faster)

    def figures(row: Row) -> tuple[float, float]:
        return rate(row) * row["share"]["weight"], rate(row) / row["share"]["tokens"]

    which = 0 if objective == "sum" else 1
    both = [[figures(row) for row in table] for table in tables]
    scales = [max(pair[i] for table in both for pair in table) for i in range(2)]
    options = tuple(
        tuple(
            Option(
                pair[0] / scales[0], pair[1] / scales[1], tuple(row["share"]["nodes"][n] for n in available)
            )
            for row, pair in zip(table, pairs, strict=True)
        )
        for table, pairs in zip(tables, both, strict=True)
    )
    return FleetSplitData(options, tuple(available.values()), objective), scales[which]
