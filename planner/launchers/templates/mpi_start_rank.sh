#!/usr/bin/env bash
# One rank under MPI: tells launch.sh which. Started by run.sh.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Open MPI, then MPICH and Intel MPI.
export RANK=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:?no rank: start this through mpirun}}
export WORLD_SIZE=${OMPI_COMM_WORLD_SIZE:-${PMI_SIZE:?no number of ranks: start this through mpirun}}
export LOCAL_RANK=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:?no rank on the host: start this through mpirun}}

# The host finds its place by name; a value for all ranks would put them all in one place.
unset NODE_RANK
HETPLAN_RANK_IS_STARTED=1 exec bash "$HERE/../../launch.sh"
