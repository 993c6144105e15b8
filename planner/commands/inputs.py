"""From flags to a checked problem and checked options."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from planner.data import load
from planner.data.options import Options
from planner.data.problem import Problem, ProblemFile
from planner.errors import InstanceError

_FLAGS = {
    "time_limit_s": "--time-limit-s",
    "gap": "--gap",
    "top": "--top",
    "workers": "--workers",
    "solver": "--solver",
    "memory_reserve_fraction": "--memory-reserve",
    "seq_length": "--seq-length",
    "global_batch_size": "--global-batch-size",
    "precision": "--precision",
}
"""Flag of each field, for messages."""


def problem_from_flags(
    name: str | None,
    *,
    cluster: str | None,
    model: str | None,
    seq_length: int | None,
    global_batch_size: int | None,
    precision: str | None,
    target: str | None,
    stack: str | None,
) -> Problem:
    """A shipped problem or a file with some fields replaced, or a problem made of flags alone.

    Raises
    ------
    InstanceError
        Where both or neither are given, or a value is wrong.
    """
    work = {"seq_length": seq_length, "global_batch_size": global_batch_size, "precision": precision}
    work = {key: value for key, value in work.items() if value is not None}
    if name is not None:
        if cluster is not None or model is not None:
            raise InstanceError("give PROBLEM, or --cluster and --model, not both", "command line")
        problem = load.load_problem(name)
        return _replaced(problem, work, target=target, stack=stack) if work or target or stack else problem
    if cluster is None or model is None:
        missing = "a PROBLEM, or --cluster and --model" if cluster is None and model is None else None
        missing = missing or ("--cluster" if cluster is None else "--model")
        raise InstanceError(
            f"missing {missing}; `hetplan list problems` shows what is shipped", "command line"
        )
    for field in ("seq_length", "global_batch_size"):
        if field not in work:
            raise InstanceError(f"missing {_FLAGS[field]}", "command line")
    more: dict[str, Any] = {"target": target, "stack": stack, "precision": precision}
    more = {key: value for key, value in more.items() if value is not None}
    return _named_by_flag(
        lambda: load.build_problem(
            cluster=cluster,
            model=model,
            seq_length=seq_length,
            global_batch_size=global_batch_size,
            **more,
        )
    )


def _replaced(problem: Problem, work: dict[str, Any], *, target: str | None, stack: str | None) -> Problem:
    """The problem with some fields replaced, checked as a whole again."""
    fields = load.problem_file(problem).model_dump()
    fields["workload"] = {**fields["workload"], **work}
    if target is not None:
        fields["target"] = target
    if stack is not None:
        fields["stack"] = stack
    return _named_by_flag(lambda: load.resolve_problem(ProblemFile.model_validate(fields), "command line"))


def _named_by_flag(make: Any) -> Problem:
    """Run a constructor; a field that it refuses is reported by its flag."""
    try:
        problem: Problem = make()
    except ValidationError as refused:
        raise _by_flag(refused) from None
    return problem


def checked_options(options: Options, wishes: dict[str, Any]) -> Options:
    """Options with the given wishes put in.

    Raises
    ------
    InstanceError
        Where a value is out of range, by its flag.
    """
    given = {key: value for key, value in wishes.items() if value is not None}
    try:
        return Options.model_validate({**options.model_dump(), **given})
    except ValidationError as refused:
        raise _by_flag(refused) from None


def _by_flag(refused: ValidationError) -> InstanceError:
    """The first complaint of pydantic as one line that names the flag and the value."""
    first = refused.errors(include_url=False)[0]
    field = str(first["loc"][-1]) if first["loc"] else ""
    message = first["msg"].removeprefix("Value error, ")
    return InstanceError(f"{first['input']!r}: {message}", _FLAGS.get(field, field or "command line"))
