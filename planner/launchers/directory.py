"""Writes a plan as launch files of a target, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from planner.data.load import problem_file
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.data.result import Evaluation
from planner.data.save import to_yaml
from planner.errors import InstanceError, PlanRefusedError
from planner.launchers import flagscale, megatron_bridge, megatron_lm, unrestricted
from planner.launchers.bridge.model import recipe_of
from planner.launchers.model_constants import left_out
from planner.launchers.replacing import new_folder, put_in_place
from planner.rules.megatron import violations
from planner.rules.versions import NEWEST, VERSIONS

PLAN_FILE = "plan.yaml"
_SCHEMA_LINE = "schema: hetplan/plan/"
_EXECUTABLE = ("launch.sh", "forms/mpi/run.sh", "forms/mpi/start_rank.sh")
_OURS = (
    "launch.sh",
    "submit.sbatch",
    "hosts.txt",
    "README.md",
    "lib",
    PLAN_FILE,
    "config.yaml",
    "train",
    "hostfile",
    "overrides.txt",
    "plan.json",
    "plan.schema.json",
    "forms",
)
"""Names that a launch directory of any target may have at its top."""

_WRITERS: dict[TargetName, Callable[..., dict[str, str]]] = {
    "megatron-lm": megatron_lm.launch_files,
    "megatron-bridge": megatron_bridge.launch_files,
    "flagscale": flagscale.launch_files,
    "unrestricted": unrestricted.launch_files,
}


def export_plan(
    problem: Problem,
    plan: Plan,
    target: TargetName,
    out_dir: str | Path,
    *,
    evaluation: Evaluation | None = None,
    version: str | None = None,
    force: bool = False,
) -> Path:
    """Write the launch directory of a plan and return its path.

    The directory appears whole or not at all (`planner.launchers.replacing`).

    Parameters
    ----------
    out_dir
        The directory to make; its parents are made where missing.
    evaluation
        What the referee says of the plan, for the page that goes with it.
    version
        Version of Megatron core to write for, with target megatron-lm; the newest where absent.
    force
        Replace an earlier launch directory. Files in it that are not ours move into the new one.

    Raises
    ------
    PlanRefusedError
        Where the target cannot express the plan, or the plan breaks one of its rules.
    InstanceError
        Where `out_dir` exists and may not be replaced.
    """
    out = Path(os.path.abspath(out_dir))
    files = files_of(problem, plan, target, evaluation=evaluation, version=version)
    check_replaceable(out, force)
    put_in_place(out, files, _EXECUTABLE, _OURS)
    return out


def files_of(
    problem: Problem,
    plan: Plan,
    target: TargetName,
    *,
    evaluation: Evaluation | None = None,
    version: str | None = None,
) -> dict[str, str]:
    """Text of every file of a plan's launch directory, by its path in it; nothing is written.

    Raises
    ------
    PlanRefusedError
        Where the target cannot express the plan, or the plan breaks one of its rules.
    InstanceError
        Where the version is unknown, or goes with another target.
    """
    check_version(target, version)
    plan = plan.model_copy(update={"target": target})
    problem = problem.model_copy(update={"target": target})
    broken = violations(problem, plan)
    if broken:
        raise PlanRefusedError(f"the plan breaks the rules of {target}: " + "; ".join(broken))
    chosen = {"version": version} if version is not None else {}
    files = _WRITERS[target](problem, plan, evaluation, **chosen)
    files[PLAN_FILE] = to_yaml(plan.model_copy(update={"problem": problem_file(problem)}))
    return files


def unstated(model: ModelSpec, target: str, version: str | None = None) -> tuple[str, ...]:
    """What the launch files cannot state of the network or take for granted, as their page says."""
    if target == "megatron-bridge":
        return () if recipe_of(model) is not None else left_out(model, NEWEST, by_fields=True)
    cores = {"megatron-lm": version or NEWEST, "flagscale": flagscale.CORE_VERSION}
    return left_out(model, cores[target]) if target in cores else ()


def check_version(target: TargetName, version: str | None) -> None:
    """Refuse a version of Megatron core that we know nothing of, or one for a target that has its own.

    Raises
    ------
    InstanceError
        For either.
    """
    if version is None:
        return
    if target != "megatron-lm":
        raise InstanceError(f"goes with target megatron-lm only, not with {target}", "--version")
    if version not in VERSIONS:
        raise InstanceError(f"unknown version {version!r}; there are {', '.join(VERSIONS)}", "--version")


def check_replaceable(out: Path, force: bool) -> None:
    """Refuse a place that holds anything but an earlier launch directory, or one without `force`.

    Public, so that a long search can ask before it begins.

    Raises
    ------
    InstanceError
        For either.
    """
    if not os.path.lexists(out):
        return
    where = str(out)
    if out.is_symlink() or not out.is_dir():
        raise InstanceError("exists and is no directory; choose another name", where)
    if not force:
        raise InstanceError(
            "exists; choose another name, or --force (force=True) to replace an earlier export", where
        )
    if any(out.iterdir()) and not _is_launch_directory(out):
        raise InstanceError(
            f"is not a launch directory (it has no {PLAN_FILE} of ours), so that --force leaves it alone; "
            "choose another name",
            where,
        )


def check_writable(out: Path) -> None:
    """Refuse a place in which nothing can be made, by making a folder there and taking it away again.

    Rights alone do not tell: /proc and the like take no folder from anybody, and names have a longest length.

    Raises
    ------
    InstanceError
        With the folder that takes none.
    """
    out = Path(os.path.abspath(out))
    above = next(p for p in out.parents if os.path.lexists(p))
    if not above.is_dir():
        raise InstanceError(f"{above} is no directory", str(out))
    try:
        for missing in out.relative_to(above).parts:
            new_folder(above, missing).rmdir()
    except OSError as error:
        raise InstanceError(
            f"no folder can be made in {above} ({error.strerror}); choose another place", str(out)
        ) from None


def _is_launch_directory(path: Path) -> bool:
    plan_file = path / PLAN_FILE
    if not plan_file.is_file():
        return False
    with open(plan_file, "rb") as file:
        return any(line.startswith(_SCHEMA_LINE.encode()) for line in file.read(4096).splitlines())
