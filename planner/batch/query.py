"""Choose among the rows of a store: filters, order, and the front of what nothing else beats."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from planner.batch.rows import FIELDS
from planner.data.nearest import did_you_mean
from planner.errors import InstanceError

Row = dict[str, Any]

_FILTER = re.compile(r"^(\w+)\s*(!=|<=|>=|=|<|>|~)\s*(.*)$", re.DOTALL)
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

COSTS = {"chips": "chips", "nodes": "nodes", "cost": "usd_per_hour"}
"""What a front weighs the step time against, and the field that holds it."""

SAME_QUESTION = ("model", "seq_length", "global_batch_size", "precision")
"""Step times are compared among rows that are equal in these."""


def matching(rows: Sequence[Row], filters: Sequence[str]) -> list[Row]:
    """Rows that fit every filter: `model=llama3-8b`, `step_s<2`, `name~h100` (holds), `status!=failed`.

    Raises
    ------
    InstanceError
        Where a filter has another form, names no field, or orders by what is no number.
    """
    tests = [_test(text) for text in filters]
    return [row for row in rows if all(test(row) for test in tests)]


def _test(text: str) -> Callable[[Row], bool]:
    parts = _FILTER.match(text)
    if parts is None:
        raise InstanceError(
            f"{text!r} is no filter; write model=llama3-8b, status!=failed, step_s<2 or name~h100", "--where"
        )
    field, sign, wanted = parts[1], parts[2], parts[3]
    check_field(field, "--where")
    if sign in _ORDER:
        try:
            limit = float(wanted)
        except ValueError:
            raise InstanceError(f"{text!r}: {wanted!r} is no number", "--where") from None
        return lambda row: _is_number(row[field]) and _ORDER[sign](row[field], limit)
    if sign == "~":
        return lambda row: wanted.lower() in str(row[field] or "").lower()
    return lambda row: _equals(row[field], wanted) == (sign == "=")


def _equals(value: Any, wanted: str) -> bool:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value] == wanted.lower()
    if isinstance(value, int | float):
        try:
            return bool(value == float(wanted))
        except ValueError:
            return False
    return bool(value == wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_field(field: str, where: str) -> None:
    """Refuse what is no field of a row.

    Raises
    ------
    InstanceError
        Where a row has no such field.
    """
    if field not in FIELDS:
        hint = did_you_mean(field, FIELDS) or f"; there are {', '.join(FIELDS)}"
        raise InstanceError(f"unknown field {field!r}{hint}", where)


def in_order(rows: Sequence[Row], fields: Sequence[str]) -> list[Row]:
    """Rows sorted by fields, the first one most; `-field` is descending; absent values come last."""
    ordered = list(rows)
    for field in reversed(fields):
        name, descending = field.removeprefix("-"), field.startswith("-")
        check_field(name, "--sort")
        there = [row for row in ordered if row[name] is not None]
        absent = [row for row in ordered if row[name] is None]
        there.sort(key=lambda row: row[name], reverse=descending)
        ordered = there + absent
    return ordered


def pareto(rows: Sequence[Row], cost: str) -> list[Row]:
    """Rows that no other row of the same model and batch beats in step time without costing more.

    Parameters
    ----------
    cost
        chips, nodes, or cost (dollars an hour; rows without a price are left out).

    Raises
    ------
    InstanceError
        For another cost.
    """
    if cost not in COSTS:
        raise InstanceError(f"unknown cost {cost!r}; there are {', '.join(COSTS)}", "--pareto")
    field = COSTS[cost]
    fit = [row for row in rows if row["step_s"] is not None and row[field] is not None]
    fit.sort(key=lambda row: (str([row[name] for name in SAME_QUESTION]), row[field], row["step_s"]))
    front: list[Row] = []
    for row in fit:
        last = front[-1] if front else None
        same = last is not None and all(last[name] == row[name] for name in SAME_QUESTION)
        if last is None or not same or row["step_s"] < last["step_s"]:
            front.append(row)
    return front
