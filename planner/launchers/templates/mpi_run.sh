#!/usr/bin/env bash
# Starts all ranks with Open MPI from one host: bash forms/mpi/run.sh
# The folder must lie under one path on every host. More words go to mpirun.
#
# Ranks follow the hosts of the hostfile, slot by slot. Where your MPI or its resource manager orders hosts in its own
# way, pin them with the rankfile instead, whose slots are cores: give each rank those next to its chip.
#   Open MPI 4: --rankfile rankfile          Open MPI 5: --map-by rankfile:file=rankfile
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

exec mpirun -np @{world_size} --hostfile "$HERE/hostfile" --map-by slot --bind-to none \
    -x MASTER_ADDR="${MASTER_ADDR:-@{first_host}}" -x MASTER_PORT="${MASTER_PORT:-29500}" \
    -x MEGATRON_PATH="${MEGATRON_PATH:-$HOME/Megatron-LM}" \
    "$@" bash "$HERE/start_rank.sh"
