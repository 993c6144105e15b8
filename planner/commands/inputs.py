"""From flags to a checked problem and checked options."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from planner.data import load
from planner.data.explain import Record, explained, validated
from planner.data.options import Options
from planner.data.problem import Problem, ProblemFile
from planner.data.workload import Workload
from planner.errors import InstanceError

_FLAGS = {
    "time_limit_s": "--time-limit-s",
    "gap": "--gap",
    "top": "--top",
    "workers": "--workers",
    "solver": "--solver",
    "memory_reserve_fraction": "--memory-reserve",
    "pin": "--pin",
    "forbid": "--forbid",
    "max_pipeline_parallel": "--max-pp",
    "max_virtual_stages": "--max-vp",
    "seq_length": "--seq-length",
    "global_batch_size": "--global-batch-size",
    "precision": "--precision",
    "expert_imbalance": "--expert-imbalance",
}
"""Flag of each field, for messages."""


def problem_from_flags(
    name: str | None,
    *,
    inside: Problem | None = None,
    cluster: str | None,
    model: str | None,
    seq_length: int | None,
    global_batch_size: int | None,
    precision: str | None,
    expert_imbalance: float | None,
    target: str | None,
    stack: str | None,
) -> Problem:
    """A shipped problem, a file or one at hand with some fields replaced, or a problem made of flags alone.

    Raises
    ------
    InstanceError
        Where both or neither are given, or a value is wrong.
    """
    work = {
        "seq_length": seq_length,
        "global_batch_size": global_batch_size,
        "precision": precision,
        "expert_imbalance": expert_imbalance,
    }
    work = {key: value for key, value in work.items() if value is not None}
    if name is not None or inside is not None:
        if cluster is not None or model is not None:
            other = "PROBLEM" if inside is None else "the problem inside the plan"
            raise InstanceError(f"give {other}, or --cluster and --model, not both", "command line")
        problem = inside or load.load_problem(name or "")
        return _replaced(problem, work, target=target, stack=stack) if work or target or stack else problem
    if cluster is None or model is None:
        missing = "a PROBLEM, or --cluster and --model" if cluster is None and model is None else None
        missing = missing or ("--cluster" if cluster is None else "--model")
        raise InstanceError(
            f"missing {missing}; `hetplan list problems` shows what is shipped", "command line"
        )
    if seq_length is None or global_batch_size is None:
        raise InstanceError(_missing_batch(seq_length, global_batch_size), "command line")
    checked(Workload, {}, work)
    chosen = {"target": target, "stack": stack, "precision": precision}
    given: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
    built = load.build_problem(
        cluster=cluster, model=model, seq_length=seq_length, global_batch_size=global_batch_size, **given
    )
    return built if expert_imbalance is None else _replaced(built, work, target=None, stack=None)


def _missing_batch(seq_length: int | None, global_batch_size: int | None) -> str:
    """What of the batch is missing, and what it looks like."""
    missing = []
    if seq_length is None:
        missing.append("tokens of a sequence (such as --seq-length 8192)")
    if global_batch_size is None:
        missing.append("sequences of a step (such as --global-batch-size 512)")
    return "missing: " + " and ".join(missing)


def _replaced(problem: Problem, work: dict[str, Any], *, target: str | None, stack: str | None) -> Problem:
    """The problem with some fields replaced, checked as a whole again."""
    fields = load.problem_file(problem).model_dump(mode="json")
    fields["workload"] = checked(Workload, fields["workload"], work).model_dump(mode="json")
    fields |= {key: value for key, value in {"target": target, "stack": stack}.items() if value is not None}
    return load.resolve_problem(validated(ProblemFile, fields, "command line"), "command line")


def pins(wishes: list[str]) -> dict[str, int]:
    """`tp=8` and the like as a mapping.

    Raises
    ------
    InstanceError
        Where a wish is not of the form NAME=NUMBER, or a name comes twice.
    """
    found: dict[str, int] = {}
    for wish in wishes:
        name, equals, value = wish.partition("=")
        if not equals or not value.isdecimal():
            raise InstanceError(f"{wish!r} is not of the form NAME=NUMBER, such as tp=8", "--pin")
        if name in found:
            raise InstanceError(f"{name} is pinned twice", "--pin")
        found[name] = int(value)
    return found


def known_classes(problem: Problem, names: list[str], flag: str = "--spare") -> tuple[str, ...]:
    """Names of node classes, each checked to be in the cluster.

    Raises
    ------
    InstanceError
        Where the cluster has no such class.
    """
    known = [node_class.name for node_class in problem.cluster.classes]
    for name in names:
        if name not in known:
            raise InstanceError(f"no node class is named {name!r}; the cluster has {', '.join(known)}", flag)
    return tuple(names)


def with_wishes_for_classes(problem: Problem) -> Problem:
    """The problem, whose spared and used classes do not exclude each other or leave none.

    Raises
    ------
    InstanceError
        Where a class is both spared and used, or all are spared.
    """
    spare, use = problem.options.spare, problem.options.use
    both = [name for name in use if name in spare]
    if both:
        raise InstanceError(f"{both[0]!r} is spared as well; give up --use or --spare", "--use")
    if all(node_class.name in spare for node_class in problem.cluster.classes):
        raise InstanceError("keeps every class idle; leave one out", "--spare")
    return problem


def checked_options(options: Options, wishes: dict[str, Any]) -> Options:
    """Options with the given wishes put in; see `checked`."""
    return checked(Options, options.model_dump(), wishes)


def checked(cls: type[Record], values: dict[str, Any], wishes: dict[str, Any]) -> Record:
    """A record with some fields replaced by flags; None leaves a field as it is.

    Raises
    ------
    InstanceError
        Where a value is out of range, by its flag.
    """
    given = {key: value for key, value in wishes.items() if value is not None}
    try:
        return cls.model_validate({**values, **given})
    except ValidationError as refused:
        field = str(refused.errors(include_url=False)[0]["loc"][0])
        message = str(explained(cls, refused, "")).removeprefix(f"{field}: ")
        raise InstanceError(message, _FLAGS.get(field, field)) from None
