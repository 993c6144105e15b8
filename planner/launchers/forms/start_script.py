"""The script that every host runs, and the shell files that it reads: the same for each target of ours
that starts torchrun; only what torchrun starts differs."""

from __future__ import annotations

from collections.abc import Callable

import planner
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.launchers.forms.environments import environment_text
from planner.launchers.forms.node_table import node_table
from planner.launchers.forms.slurm import slurm_text
from planner.launchers.placement import HostPlace, hosts_text
from planner.launchers.template_text import fill, template

_LIBRARY = ("messages.sh", "find_node.sh", "preflight.sh", "check_sums.sh", "logs.sh")


def start_files(
    problem: Problem,
    plan: Plan,
    places: tuple[HostPlace, ...],
    *,
    command: str,
    where_the_plan_is: str,
    stage_args: Callable[[HostPlace], tuple[str, ...]] | None = None,
) -> dict[str, str]:
    """Start script, its library, the hosts and the batch script, by path in the launch directory.

    Parameters
    ----------
    command
        Shell text that defines `command_of_node`, which sets COMMAND, and `check_plan`.
    where_the_plan_is
        One line for the head of the script.
    stage_args
        Words that a host adds to the command line for its stages; None where the script has no such words.
    """
    script = fill(
        "launch.sh",
        {
            "version": planner.__version__,
            "problem_name": " ".join(problem.name.split()),
            "where_the_plan_is": where_the_plan_is,
            "num_nodes": len(places),
            "world_size": plan.world_size,
            "data_parallel": plan.data_parallel,
            "num_microbatches": plan.num_microbatches,
            "virtual_stages": plan.virtual_stages,
            "node_table": node_table(problem, places, stage_args),
            "command": command.rstrip("\n"),
        },
    )
    return {
        "launch.sh": script,
        "hosts.txt": hosts_text(places),
        "submit.sbatch": slurm_text(problem, places, plan.target),
        "lib/environment.sh": environment_text(problem, plan),
        **{f"lib/{name}": template(name) for name in _LIBRARY},
    }
