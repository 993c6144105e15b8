"""The batch script that starts a launch directory under Slurm.

A cluster of one node class is one job. With several classes, which sites usually keep in partitions
of their own, it is a heterogeneous job, one component a class; the start scripts find their rank by
host name, so that neither the components nor Slurm's node order decide where a stage runs.
(Slurm documentation, sbatch and "Heterogeneous Job Support".)
"""

from __future__ import annotations

import re

from planner.data.problem import Problem, TargetName
from planner.launchers.placement import HostPlace
from planner.launchers.template_text import fill

_SAVING: dict[TargetName, dict[str, str]] = {
    "megatron-lm": {
        "checkpoint": "set CHECKPOINT_PATH",
        "saves": "-n ${CHECKPOINT_PATH:-}",
        "extra": "EXTRA_MEGATRON_ARGS",
        "exit_after": "--exit-duration-in-mins ",
    },
    "megatron-bridge": {
        "checkpoint": "give checkpoint.save and checkpoint.load in EXTRA_OVERRIDES",
        "saves": "${EXTRA_OVERRIDES:-} == *checkpoint.save=*",
        "extra": "EXTRA_OVERRIDES",
        "exit_after": "train.exit_duration_in_mins=",
    },
}
"""How each target is told to save, and to end after so many minutes."""


def slurm_text(problem: Problem, places: tuple[HostPlace, ...], target: TargetName = "megatron-lm") -> str:
    """Text of `submit.sbatch`."""
    components = _components(problem, places)
    blocks = [
        _directives(problem, name, members, first=i == 0) for i, (name, members) in enumerate(components)
    ]
    groups = ",".join(str(i) for i in range(len(components)))
    return fill(
        "submit.sbatch",
        {
            **_SAVING[target],
            "directives": "\n#SBATCH hetjob\n".join(blocks),
            "het_group": f"--het-group={groups} " if len(components) > 1 else "",
        },
    )


def _components(problem: Problem, places: tuple[HostPlace, ...]) -> list[tuple[str, list[HostPlace]]]:
    """Hosts of each node class that the plan uses, classes in rank order."""
    class_of_host = {
        host: node_class.name
        for i, node_class in enumerate(problem.cluster.classes)
        for host in problem.cluster.hosts_of(i)
    }
    members: dict[str, list[HostPlace]] = {}
    for place in places:
        members.setdefault(class_of_host.get(place.name, place.chip), []).append(place)
    return list(members.items())


def _directives(problem: Problem, class_name: str, members: list[HostPlace], first: bool) -> str:
    named = any(c.name == class_name and c.hosts is not None for c in problem.cluster.classes)
    nodes = ",".join(place.name for place in members)
    lines = [f"# {class_name}: {members[0].num_chips} x {members[0].chip} a node"]
    if first:
        job = re.sub(r"[^A-Za-z0-9._-]+", "-", problem.name).strip("-") or "plan"
        lines.append(f"#SBATCH --job-name=hetplan-{job}")
    lines += [
        f"#SBATCH --nodes={len(members)}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        f"#SBATCH --nodelist={nodes}" if named else f"##SBATCH --nodelist={nodes}",
        "##SBATCH --partition=FILL_IN",
        f"##SBATCH --gpus-per-node={members[0].num_chips}",
    ]
    if first:
        lines += ["##SBATCH --account=FILL_IN", "##SBATCH --time=FILL_IN"]
    return "\n".join(lines)
