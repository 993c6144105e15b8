"""One name for one question: a hash of everything that can change the answer."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from planner.batch.ask import Ask
from planner.batch.revision import revision
from planner.data import load
from planner.data.problem import Problem, ProblemFile

_NO_PART_OF_THE_QUESTION: Any = {
    "name": True,
    "note": True,
    "options": {"time_limit_s", "workers"},
    "cluster": {
        "source": True,
        "note": True,
        "classes": {"__all__": {"price_usd_per_hour", "power_kw", "note"}},
        "links": {"__all__": {"note"}},
    },
    "workload": {"train_iters"},
}
"""Names, notes and prices change no plan. Nor do the limits, as long as they cut nothing: an answer that
a limit cut is solved again when a later batch allows more."""


def job_key(problem: Problem, ask: Ask | None = None) -> str:
    """Hash of a problem, its options, what is asked and this program; equal for what has the same answer."""
    values: list[Any] = [revision(), _values(load.problem_file(problem))]
    if ask is not None:
        values.append(ask.model_dump(mode="json", exclude={"base"}))
        values.append(ask.base and _values(ask.base))
    return _hashed(values)


def _values(file: ProblemFile) -> dict[str, Any]:
    return file.model_dump(mode="json", exclude=_NO_PART_OF_THE_QUESTION)


def refused_key(values: Any) -> str:
    """Hash of an entry that did not even give a problem."""
    return _hashed([revision(), "refused", values])


def _hashed(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
