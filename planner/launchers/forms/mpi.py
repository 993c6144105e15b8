"""Start the ranks of a launch directory under MPI: hosts and slots in rank order, one process a rank.

Megatron-LM reads RANK, WORLD_SIZE and LOCAL_RANK from the environment; `start_rank.sh` maps what MPI
sets, and `launch.sh` stops a rank that MPI put elsewhere than the plan.
"""

from __future__ import annotations

from planner.launchers.placement import HostPlace
from planner.launchers.template_text import fill, template


def mpi_files(places: tuple[HostPlace, ...]) -> dict[str, str]:
    """Hostfile, rankfile and the scripts that use them."""
    return {
        "forms/mpi/hostfile": "".join(f"{place.name} slots={place.num_processes}\n" for place in places),
        "forms/mpi/rankfile": "".join(
            f"rank {place.first_rank + local}={place.name} slot={local}\n"
            for place in places
            for local in range(place.num_processes)
        ),
        "forms/mpi/run.sh": fill(
            "mpi_run.sh",
            {"world_size": sum(place.num_processes for place in places), "num_hosts": len(places)},
        ),
        "forms/mpi/start_rank.sh": template("mpi_start_rank.sh"),
    }
