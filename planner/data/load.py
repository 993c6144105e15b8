"""Instance name or file -> record; the only way into the product.

A name means a shipped instance, else a file; whatever ends in .yaml, .yml or .json or holds a path
separator is a file. Files are YAML or JSON with a `schema:` line. What is wrong with the input is
said in one line by `InstanceError`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from planner.data.base import Data
from planner.data.catalog import names, shipped_name, shipped_values, unknown
from planner.data.checks import RULES, idle_notes
from planner.data.chip import Chip, Precision
from planner.data.cluster import Cluster
from planner.data.explain import explained, validated
from planner.data.kinds import CLASS_OF_KIND, schema_line
from planner.data.model_spec import ModelSpec
from planner.data.nearest import did_you_mean
from planner.data.options import Options
from planner.data.plan import Plan
from planner.data.problem import Problem, ProblemFile, TargetName
from planner.data.read import read_file
from planner.data.result import Result
from planner.data.shorthand import cluster_from_short_form, looks_like_short_form
from planner.data.stack import SoftwareStack
from planner.data.workload import Workload
from planner.errors import InstanceError

__all__ = [
    "build_problem",
    "load_chip",
    "load_cluster",
    "load_model",
    "load_plan",
    "load_problem",
    "load_stack",
    "names",
    "problem_file",
    "resolve_problem",
]

Record = TypeVar("Record", bound=Data)
Name = str | os.PathLike[str]

_FILE_ENDINGS = (".yaml", ".yml", ".json")


def load_problem(path_or_name: Name) -> Problem:
    """Load a shipped problem by its name, or a problem file, and check it as a whole.

    Raises
    ------
    InstanceError
        Where the name is unknown or the file or anything it names is wrong.
    """
    text = os.fspath(path_or_name)
    if not _is_file(text) and (name := shipped_name("problems", text)):
        where, folder, values = name, None, _checked_kind(shipped_values("problems", name), "problem", name)
    else:
        path = _existing_path(text, "problems")
        where, folder, values = text, path.parent, _file_values(path, text, "problem")
    given = validated(ProblemFile, values, where)
    if not given.name:
        given = given.model_copy(update={"name": Path(where).stem if folder else where})
    return _resolved(given, where, folder)


def load_plan(path: Name) -> Plan:
    """Load a plan file; the result of `hetplan plan --json` serves too, its best plan is taken."""
    text = os.fspath(path)
    values = read_file(Path(text), text)
    if isinstance(values, dict) and values.get("schema") == schema_line("result"):
        result = validated(Result, _checked_kind(values, "result", text), text)
        if result.plan is None:
            raise InstanceError(f"holds no plan: {result.reason or result.termination}", text)
        return result.plan
    return validated(Plan, _checked_kind(values, "plan", text), text)


def load_chip(name: str) -> Chip:
    """Load a shipped chip by its id or an alias, case aside."""
    found = shipped_name("chips", name)
    if found is None:
        raise unknown("chips", name, "chip")
    return _shipped_chip(found)


def load_model(id_or_path: Name) -> ModelSpec:
    """Load a shipped model by its id or an alias, or a model file."""
    return _model(os.fspath(id_or_path), "model", None)


def load_cluster(id_path_or_short_form: Name) -> Cluster:
    """Load a shipped cluster, a cluster file, or nodes in short form (`6x8 h100-sxm-80gb, ...`)."""
    cluster = _cluster(os.fspath(id_path_or_short_form), "cluster", None, {})
    return _with_chip_ids(cluster, "cluster", {})[0]


def load_stack(id_or_path: Name) -> SoftwareStack:
    """Load a shipped software stack, or a stack file."""
    return _stack(os.fspath(id_or_path), "stack", None)


def resolve_problem(given: ProblemFile, where: str) -> Problem:
    """Put the records in the place of the names of a problem file and check the whole.

    Parameters
    ----------
    where
        What error messages name as the source; files named in it are looked up in the current folder.
    """
    return _resolved(given, where, None)


def problem_file(problem: Problem) -> ProblemFile:
    """The same problem with everything inline, so that its file stands alone."""
    return ProblemFile(
        name=problem.name,
        cluster=problem.cluster,
        model=problem.model,
        workload=problem.workload,
        target=problem.target,
        stack=problem.stack,
        chips=tuple(problem.chips.values()),
        options=problem.options,
    )


def build_problem(
    *,
    cluster: str | Cluster,
    model: str | ModelSpec,
    seq_length: int,
    global_batch_size: int,
    precision: Precision = "bf16",
    target: TargetName = "megatron-lm",
    stack: str | SoftwareStack = "megatron-core",
    options: Options | None = None,
    name: str = "",
) -> Problem:
    """Build a problem from the flags of the command line; names and files as in the loaders above."""
    workload = validated(
        Workload,
        {"seq_length": seq_length, "global_batch_size": global_batch_size, "precision": precision},
        "",
        "workload",
    )
    if target not in _targets():
        raise InstanceError(
            f"unknown target {target!r}{did_you_mean(target, _targets())}; there are {', '.join(_targets())}",
            "target",
        )
    title = name or f"{model if isinstance(model, str) else model.id}-{seq_length}-{global_batch_size}"
    given = ProblemFile(
        name=title,
        cluster=cluster,
        model=model,
        workload=workload,
        target=target,
        stack=stack,
        options=options or Options(),
    )
    return _resolved(given, "", None)


def _targets() -> tuple[str, ...]:
    return TargetName.__args__  # type: ignore[attr-defined, no-any-return]


def _resolved(given: ProblemFile, where: str, folder: Path | None) -> Problem:
    """Resolve every name; file names are relative to the problem's own folder."""
    at = f"{where}: " if where else ""
    own = _own_chips(given, at)
    cluster = given.cluster
    if isinstance(cluster, str):
        cluster = _cluster(cluster, f"{at}cluster", folder, own)
    cluster, chips = _with_chip_ids(cluster, f"{at}cluster", own)
    model, stack = given.model, given.stack
    try:
        problem = Problem(
            name=given.name,
            cluster=cluster,
            chips=chips,
            model=_model(model, f"{at}model", folder) if isinstance(model, str) else model,
            workload=given.workload,
            target=given.target,
            stack=_stack(stack, f"{at}stack", folder) if isinstance(stack, str) else stack,
            options=given.options,
        )
    except ValidationError as error:
        raise explained(Problem, error, where) from None
    for rule in RULES:
        if finding := rule(problem):
            field, message = finding
            raise InstanceError(message, f"{at}{field}")
    notes = tuple(n for n in idle_notes(problem) if n not in cluster.assumptions)
    if notes:
        noted = cluster.model_copy(update={"assumptions": cluster.assumptions + notes})
        problem = problem.model_copy(update={"cluster": noted})
    return problem


def _own_chips(given: ProblemFile, at: str) -> dict[str, Chip]:
    """Chips that the problem brings along, by id and alias in lower case; they hide shipped ones."""
    own: dict[str, Chip] = {}
    for i, chip in enumerate(given.chips):
        for name in (chip.id, *chip.aliases):
            if own.setdefault(name.lower(), chip).id != chip.id:
                raise InstanceError(f"name {name!r} is taken by another chip of the list", f"{at}chips[{i}]")
        if own[chip.id.lower()] is not chip:
            raise InstanceError(f"chip {chip.id!r} is given twice", f"{at}chips[{i}]")
    return own


def _with_chip_ids(cluster: Cluster, where: str, own: dict[str, Chip]) -> tuple[Cluster, dict[str, Chip]]:
    """The cluster with ids for aliases, and the chips that it names."""
    chips: dict[str, Chip] = {}
    classes = []
    for i, node_class in enumerate(cluster.classes):
        chip = _find_chip(node_class.chip, f"{where}.classes[{i}].chip", own)
        chips[chip.id] = chip
        classes.append(node_class.model_copy(update={"chip": chip.id}))
    return cluster.model_copy(update={"classes": tuple(classes)}), chips


def _find_chip(name: str, where: str, own: dict[str, Chip]) -> Chip:
    if found := own.get(name.lower()):
        return found
    shipped = shipped_name("chips", name)
    if shipped is None:
        raise unknown("chips", name, where, extra=tuple(own))
    return _shipped_chip(shipped)


@cache
def _shipped_chip(name: str) -> Chip:
    return _shipped(Chip, "chips", name)


def _cluster(text: str, where: str, folder: Path | None, own: dict[str, Chip]) -> Cluster:
    if not _is_file(text):
        if name := shipped_name("clusters", text):
            return _shipped(Cluster, "clusters", name)
        if looks_like_short_form(text):
            return cluster_from_short_form(text, lambda chip: _find_chip(chip, where, own), where)
    return _from_file(Cluster, "clusters", text, where, folder)


def _model(text: str, where: str, folder: Path | None) -> ModelSpec:
    if not _is_file(text) and (name := shipped_name("models", text)):
        return _shipped(ModelSpec, "models", name)
    return _from_file(ModelSpec, "models", text, where, folder)


def _stack(text: str, where: str, folder: Path | None) -> SoftwareStack:
    if not _is_file(text) and (name := shipped_name("stacks", text)):
        return _shipped(SoftwareStack, "stacks", name)
    return _from_file(SoftwareStack, "stacks", text, where, folder)


def _shipped(cls: type[Record], kind: str, name: str) -> Record:
    where = f"{kind}/{name}.yaml"
    return validated(cls, _checked_kind(shipped_values(kind, name), kind[:-1], where), where)


def _from_file(cls: type[Record], kind: str, text: str, where: str, folder: Path | None) -> Record:
    path = _existing_path(text, kind, where, folder)
    return validated(cls, _file_values(path, str(path), kind[:-1]), str(path))


def _is_file(text: str) -> bool:
    """Whether a string can only mean a file."""
    return text.lower().endswith(_FILE_ENDINGS) or "/" in text or os.sep in text


def _existing_path(text: str, kind: str, where: str = "", folder: Path | None = None) -> Path:
    """Path of a file that a string names; else the error for an unknown name."""
    path = (folder or Path()) / text
    if _is_file(text) or (text and len(text) < 256 and "\0" not in text and path.exists()):
        return path
    raise unknown(kind, text, where)


def _file_values(path: Path, where: str, kind: str) -> dict[str, Any]:
    return _checked_kind(read_file(path, where), kind, where)


def _checked_kind(values: Any, kind: str, where: str) -> dict[str, Any]:
    """Values without their `schema:` line, which must name the kind and version expected."""
    wanted = schema_line(kind)
    if not isinstance(values, dict):
        raise InstanceError(f"must be a table of keys that starts with `schema: {wanted}`", where)
    found = values.get("schema")
    if found is None:
        raise InstanceError(f"has no `schema:` line; add `schema: {wanted}`", where)
    if found != wanted:
        known = {schema_line(other): other for other in CLASS_OF_KIND}
        if found in known:
            message = f"is a {known[found]} file, expected a {kind} file (`schema: {wanted}`)"
        else:
            message = f"`schema: {str(found)[:60]}` is not understood; this release reads `{wanted}`"
        raise InstanceError(message, where)
    return {key: value for key, value in values.items() if key != "schema"}
