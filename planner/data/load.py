"""Instance name or file -> record; the only way into the product.

A name means a shipped instance, else a file; whatever ends in .yaml, .yml or .json or holds a path
separator is a file. Files are YAML or JSON with a `schema:` line. What is wrong with the input is
said in one line by `InstanceError`.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from planner.data.catalog import names, shipped_name, shipped_values
from planner.data.checks import RULES, idle_notes
from planner.data.chip import Chip, Precision
from planner.data.cluster import Cluster
from planner.data.explain import explained, validated
from planner.data.find import (
    Name,
    checked_kind,
    existing_path,
    file_values,
    find_chip,
    find_cluster,
    find_model,
    find_stack,
    is_file,
)
from planner.data.kinds import schema_line
from planner.data.model_spec import ModelSpec
from planner.data.nearest import did_you_mean
from planner.data.options import Options
from planner.data.plan import Plan
from planner.data.problem import Problem, ProblemFile, TargetName
from planner.data.profiles import resolve_profiles
from planner.data.read import read_file
from planner.data.result import Result
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

BESIDE_A_RESULT = ("baseline", "economy", "robustness", "split")
"""What `hetplan plan --json` writes beside a result where it is asked for more than a plan."""


def load_problem(path_or_name: Name) -> Problem:
    """Load a shipped problem by its name, or a problem file, and check it as a whole.

    Raises
    ------
    InstanceError
        Where the name is unknown or the file or anything it names is wrong.
    """
    text = os.fspath(path_or_name)
    if not is_file(text) and (name := shipped_name("problems", text)):
        where, folder, values = name, None, checked_kind(shipped_values("problems", name), "problem", name)
    else:
        path = existing_path(text, "problems")
        where, folder, values = text, path.parent, file_values(path, text, "problem")
    given = validated(ProblemFile, values, where)
    if not given.name:
        given = given.model_copy(update={"name": Path(where).stem if folder else where})
    return _resolved(given, where, folder)


def load_plan(path: Name) -> Plan:
    """Load a plan file; the result of `hetplan plan --json` serves too, its best plan is taken.

    Raises
    ------
    InstanceError
        Where the file cannot be read, is wrong in a field, or is a result without a plan.
    """
    text = os.fspath(path)
    values = read_file(Path(text), text)
    if isinstance(values, dict) and values.get("schema") == schema_line("result"):
        own = {name: value for name, value in values.items() if name not in BESIDE_A_RESULT}
        if "plan" in own and own["plan"] is None:
            why = own.get("reason") or own.get("termination") or "none was found"
            raise InstanceError(f"holds no plan: {why}", text)
        result = validated(Result, checked_kind(own, "result", text), text)
        assert result.plan is not None
        return result.plan
    if isinstance(values, dict) and isinstance(of_targets := values.get("targets"), dict) and of_targets:
        listed = ", ".join(map(str, of_targets))
        raise InstanceError(
            f"holds a result for each of several targets ({listed}); plan for one of them with `--target`, "
            "or write what stands under its name to a file of its own",
            text,
        )
    return validated(Plan, checked_kind(values, "plan", text), text)


def load_chip(name: str) -> Chip:
    """Load a shipped chip by its id or an alias, case aside."""
    return find_chip(name, "chip", {})


def load_model(id_or_path: Name) -> ModelSpec:
    """Load a shipped model by its id or an alias, or a model file."""
    return find_model(os.fspath(id_or_path), "model", None)


def load_cluster(id_path_or_short_form: Name) -> Cluster:
    """Load a shipped cluster, a cluster file, or nodes in short form (`6x8 h100-sxm-80gb, ...`)."""
    cluster = find_cluster(os.fspath(id_path_or_short_form), "cluster", None, {})
    return _with_chip_ids(cluster, "cluster", {})[0]


def load_stack(id_or_path: Name) -> SoftwareStack:
    """Load a shipped software stack, or a stack file."""
    return find_stack(os.fspath(id_or_path), "stack", None)


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
        profiles=problem.profiles,
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
    """Build a problem from the flags of the command line; names and files as in the loaders above.

    Raises
    ------
    InstanceError
        For an unknown name, or a value that is out of range; the field is named.
    """
    workload = validated(
        Workload,
        {"seq_length": seq_length, "global_batch_size": global_batch_size, "precision": precision},
        "",
        "workload",
    )
    if target not in _targets():
        raise InstanceError(
            f"unknown target {target!r}{did_you_mean(target, _targets()) or ';'} "
            f"there are {', '.join(_targets())}",
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
        cluster = find_cluster(cluster, f"{at}cluster", folder, own)
    cluster, chips = _with_chip_ids(cluster, f"{at}cluster", own)
    stack = given.stack
    model = find_model(given.model, f"{at}model", folder) if isinstance(given.model, str) else given.model
    profiles = resolve_profiles(given.profiles, model, chips, own, f"{at}profiles", folder)
    try:
        problem = Problem(
            name=given.name,
            cluster=cluster,
            chips=chips,
            model=model,
            workload=given.workload,
            target=given.target,
            stack=find_stack(stack, f"{at}stack", folder) if isinstance(stack, str) else stack,
            options=given.options,
            profiles=profiles,
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
        chip = find_chip(node_class.chip, f"{where}.classes[{i}].chip", own)
        chips[chip.id] = chip
        classes.append(node_class.model_copy(update={"chip": chip.id}))
    return cluster.model_copy(update={"classes": tuple(classes)}), chips
