"""Read a jobs file: entries one by one, and grids as all combinations of their values.

What is wrong with the file itself (unknown key, wrong type, value out of range) refuses all of it. An
entry that reads well and still gives no problem (a name that nobody knows, a cluster without enough
chips) is kept with its message, so that one of them does not hold up thousands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.batch.ask import Ask
from planner.batch.job_spec import JobSpec, Limits, job_spec, limits_of
from planner.batch.key import job_key, refused_key
from planner.batch.records import Records
from planner.batch.shares import shares
from planner.batch.what_if import Variant, check_study, variants
from planner.data.changes import with_prices
from planner.data.field_docs import described_schema
from planner.data.problem import Problem
from planner.data.read import read_file
from planner.errors import InstanceError

SCHEMA = "hetplan/jobs/v1"
"""The `schema:` line of a jobs file."""

MAX_JOBS = 1_000_000
"""More combinations than this are a slip of the hand."""

_KEYS = ("schema", "defaults", "jobs", "grid")


@dataclass(frozen=True)
class Job:
    """One question to be answered, or why there is none.

    Parameters
    ----------
    name
        Unique in the file.
    key
        Hash of the question; jobs of the same key share one answer.
    problem
        None where the entry gave none.
    refused
        Why there is no problem.
    asked
        Model, cluster and target as the entry names them.
    study, variant, nodes_changed, price_usd, share, ask
        Of a job that a study made: see `what_if.Variant`.
    """

    name: str
    key: str
    limits: Limits
    problem: Problem | None
    refused: str | None = None
    asked: dict[str, str | None] | None = None
    study: str | None = None
    variant: str | None = None
    nodes_changed: int | None = None
    price_usd: float | None = None
    share: dict[str, Any] | None = None
    ask: Ask | None = None


def read_jobs(path: str | Path) -> tuple[Job, ...]:
    """All jobs of a file, in its order; the grid comes after the list.

    Raises
    ------
    InstanceError
        Where the file itself is wrong.
    """
    where = str(path)
    values = read_file(Path(path), where)
    _check_frame(values, where)
    defaults = values.get("defaults") or {}
    common = job_spec(defaults, where, "defaults").options()
    records = Records(Path(path).parent)
    names: dict[str, str] = {}
    jobs: list[Job] = []
    for place, spec in itertools.chain(
        _listed(values.get("jobs") or [], defaults, where), _combined(values.get("grid"), defaults, where)
    ):
        at = f"{where}: {place}"
        jobs += _jobs(spec, at, _unique(spec, at, common, names), records, names)
    if not jobs:
        raise InstanceError("holds no job; list them under `jobs:` or give a `grid:`", where)
    return tuple(jobs)


def _check_frame(values: Any, where: str) -> None:
    if not isinstance(values, dict):
        raise InstanceError(f"must be a table of keys that starts with `schema: {SCHEMA}`", where)
    found = values.get("schema")
    if found is None:
        raise InstanceError(f"has no `schema:` line; add `schema: {SCHEMA}`", where)
    if found != SCHEMA:
        raise InstanceError(f"`schema: {str(found)[:60]}` is no jobs file; expected `{SCHEMA}`", where)
    for key in values:
        if key not in _KEYS:
            raise InstanceError(f"unknown key {key[:60]!r}; known are {', '.join(_KEYS)}", where)
    if not isinstance(values.get("jobs") or [], list):
        raise InstanceError("must be a list of jobs", f"{where}: jobs")


def _listed(entries: list[Any], defaults: dict[str, Any], where: str) -> Iterator[tuple[str, JobSpec]]:
    for i, entry in enumerate(entries):
        place = f"jobs[{i}]"
        if not isinstance(entry, dict):
            raise InstanceError("must be a table of keys", f"{where}: {place}")
        yield place, job_spec(defaults | entry, where, place)


def _combined(grid: Any, defaults: dict[str, Any], where: str) -> Iterator[tuple[str, JobSpec]]:
    """Entries of a grid, or of each grid of a list; the last axis changes fastest."""
    several = isinstance(grid, list)
    for i, axes in enumerate(grid if several else [] if grid is None else [grid]):
        yield from _combinations(axes, defaults, where, f"grid[{i}]" if several else "grid")


def _combinations(
    axes: Any, defaults: dict[str, Any], where: str, place: str
) -> Iterator[tuple[str, JobSpec]]:
    if not isinstance(axes, dict) or not axes:
        raise InstanceError("must be a table of lists, such as `model: [llama3-8b]`", f"{where}: {place}")
    base = job_spec(defaults, where, "defaults")
    choices: list[list[tuple[str, Any]]] = []
    number = 1
    for axis, given in axes.items():
        if axis == "name":
            raise InstanceError("a grid names its jobs itself; leave it out", f"{where}: {place}.name")
        options = given if isinstance(given, list) else [given]
        if not options:
            raise InstanceError("must have at least one value", f"{where}: {place}.{axis}")
        # Each value is checked alone: a combination of checked values needs no other check.
        choices.append([_axis_value(axis, option, where, place) for option in options])
        number *= len(options)
    if number > MAX_JOBS:
        raise InstanceError(f"gives {number:,} jobs, the limit is {MAX_JOBS:,}", f"{where}: {place}")
    for i, combination in enumerate(itertools.product(*choices)):
        yield f"{place} (combination {i + 1})", base.model_copy(update=dict(combination))


def _axis_value(axis: str, option: Any, where: str, place: str) -> tuple[str, Any]:
    spec = job_spec({axis: option}, where, place)
    (name,) = spec.model_fields_set
    return name, getattr(spec, name)


def _jobs(spec: JobSpec, where: str, name: str, records: Records, names: dict[str, str]) -> Iterator[Job]:
    """The job of an entry, or the jobs of its study; with the reason where it gives no problem."""
    check_study(spec, where)
    try:
        if spec.kind == "fleet_split":
            made = list(shares(spec, records, where))
        else:
            problem = records.problem(spec, where)
            made = [] if spec.kind == "plan" else list(variants(spec, problem, where))
    except InstanceError as refusal:
        asked = {
            "model": _shown(spec.model) or spec.problem,
            "cluster": _shown(spec.cluster) or None,
            "target": spec.target,
        }
        yield _refused(name, str(refusal), asked)
        return
    if spec.kind == "plan":
        yield _sound(name, problem, spec)
    for variant in made:
        yield _variant(name, variant, spec, where, names)


def _variant(study: str, variant: Variant, spec: JobSpec, where: str, names: dict[str, str]) -> Job:
    """The job of a variant, marked as one of its study."""
    title = f"{study}: {variant.name}"
    names[title] = where
    if variant.problem is None:
        job = _refused(title, variant.refused or "", {"target": spec.target})
    else:
        job = _sound(title, variant.problem, spec, variant.ask)
    return replace(
        job,
        study=study,
        variant=variant.name,
        nodes_changed=variant.nodes_changed,
        price_usd=variant.price_usd,
        share=variant.share,
    )


def _sound(name: str, problem: Problem, spec: JobSpec, ask: Ask | None = None) -> Job:
    problem = with_prices(problem, spec.node_usd_per_hour or {}).model_copy(update={"name": name})
    return Job(name, job_key(problem, ask), limits_of(spec, problem.options), problem, ask=ask)


def _refused(name: str, reason: str, asked: dict[str, str | None]) -> Job:
    return Job(name, refused_key([reason, name]), Limits(), None, refused=reason, asked=asked)


def _unique(spec: JobSpec, where: str, common: dict[str, Any], names: dict[str, str]) -> str:
    """A name that no job of the file has yet."""
    if spec.name is not None and spec.name in names:
        raise InstanceError(f"name {spec.name!r} is taken by {names[spec.name]}", where)
    wanted = spec.name or described(spec, common)
    name = wanted
    for number in itertools.count(2):
        if name not in names:
            break
        name = f"{wanted} ({number})"
    names[name] = where
    return name


def described(spec: JobSpec, common: dict[str, Any]) -> str:
    """What an entry asks beside what all ask: `llama3-8b on dgx-h100-8, 128 x 8192, gap 0.03`."""
    model, cluster = _shown(spec.model), _shown(spec.cluster)
    head = spec.problem or model or ("no model" if spec.trainings is None else "trainings")
    if spec.problem and model:
        head += f" with {model}"
    if cluster:
        head += f" on {cluster}"
    batch, seq = spec.global_batch_size, spec.seq_length
    work = f"{batch} x {seq}" if batch and seq else f"batch {batch}" if batch else f"sequence {seq}"
    parts = [head] + ([work] if batch or seq else [])
    parts += [_shown(v) for v in (spec.precision, spec.target, spec.stack) if v is not None]
    parts += [f"load {spec.expert_imbalance:g}"] if spec.expert_imbalance is not None else []
    parts += [] if spec.kind == "plan" else [spec.kind.replace("_", " ")]
    for key, value in spec.options().items():
        if key not in ("time_limit_s", "workers") and common.get(key) != value:
            parts.append(f"{key} {_wish(value)}")
    return ", ".join(parts)


def _wish(value: Any) -> str:
    """The value of an option in a name: `tp=4 dp=2`, `recompute=full`, `0.03`."""
    if isinstance(value, dict):
        return " ".join(f"{key}={number}" for key, number in value.items())
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _shown(value: Any) -> str:
    """A record by its id, a name as it stands."""
    if value is None:
        return ""
    return str(value if isinstance(value, str) else value.id)


def jobs_schema() -> dict[str, Any]:
    """JSON Schema of a jobs file."""
    entry = described_schema(JobSpec)
    definitions = {**entry.pop("$defs", {}), "Job": entry}
    axis = {"type": "object", "description": "Each field of a job with one value or a list of them."}
    properties = {
        "schema": {"const": SCHEMA, "description": "Kind and version of the file."},
        "defaults": {"$ref": "#/$defs/Job", "description": "Fields that all jobs have unless they say else."},
        "jobs": {"type": "array", "items": {"$ref": "#/$defs/Job"}, "description": "Jobs one by one."},
        "grid": {
            "anyOf": [axis, {"type": "array", "items": axis}],
            "description": "All combinations of the values of a grid, or of each grid of a list.",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "type": "object",
        "properties": properties,
        "required": ["schema"],
        "additionalProperties": False,
        "$defs": definitions,
    }
