#!/usr/bin/env bash
# Starts this node's share of the training run. Run it on every host of hosts.txt; README.md says how.
#
# Written by Hetplan @{version} for @{problem_name}.
# @{where_the_plan_is}
# What is yours to choose is set through environment variables, listed in README.md.
set -euo pipefail

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    echo "hetplan: this is bash $BASH_VERSION; 4.4 or newer is needed" >&2
    exit 1
fi

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/messages.sh
source "$HERE/lib/messages.sh"
# shellcheck source=lib/environment.sh
source "$HERE/lib/environment.sh"
# shellcheck source=lib/find_node.sh
source "$HERE/lib/find_node.sh"
# shellcheck source=lib/preflight.sh
source "$HERE/lib/preflight.sh"
# shellcheck source=lib/check_sums.sh
source "$HERE/lib/check_sums.sh"
# shellcheck source=lib/logs.sh
source "$HERE/lib/logs.sh"

NNODES=@{num_nodes}
WORLD_SIZE_OF_PLAN=@{world_size}

# These have no setting: Megatron derives them. They serve to check that everything adds up.
DATA_PARALLEL=@{data_parallel}
NUM_MICROBATCHES=@{num_microbatches}
VIRTUAL_STAGES=@{virtual_stages}

# What each node runs. A node's rank is its line in hosts.txt, from 0.
#   PROCESSES       processes, one a chip
#   CHIPS           chips that the host must have, CHIP their name in the plan, DEVICE_PATTERN in the driver,
#                   MEMORY_MIB what each must have
#   STAGE_ARGS      arguments that may differ between pipeline stages, where there are any: what is recomputed
describe_node() {
@{node_table}
}

@{command}

if [[ -z ${NODE_RANK:-} ]]; then
    NODE_RANK=$(find_node_rank "$HERE/hosts.txt")
    NODE_RANK_WAS_PRESET=0
else
    NODE_RANK_WAS_PRESET=1
fi
check_node_rank "$NODE_RANK" "$NNODES"

if [[ ${HETPLAN_SKIP_CHECKS:-0} != 1 ]]; then
    check_host_list "$HERE/hosts.txt" "$NNODES"
    check_processes "$NNODES" "$WORLD_SIZE_OF_PLAN"
    check_plan
fi

describe_node "$NODE_RANK"
command_of_node
MASTER_ADDR=${MASTER_ADDR:-$(first_host "$HERE/hosts.txt")}
MASTER_PORT=${MASTER_PORT:-29500}
if [[ ${HETPLAN_SKIP_CHECKS:-0} != 1 ]]; then
    check_devices "$NODE_RANK_WAS_PRESET" "$BACKEND" "$CHIPS" "$CHIP" "$DEVICE_PATTERN" "$MEMORY_MIB"
    ((NODE_RANK_WAS_PRESET)) || check_meeting_place "$MASTER_ADDR"
fi

set_environment "$BACKEND"
open_logs "$HERE/logs" "$NODE_RANK"

# Somebody else has started this very rank (forms/mpi): become it, if it is where the plan puts it.
if [[ ${HETPLAN_RANK_IS_STARTED:-0} == 1 ]]; then
    check_rank "$NODE_RANK" "$RANK" "$LOCAL_RANK" "$WORLD_SIZE" "$WORLD_SIZE_OF_PLAN"
    export RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
    if [[ -n $LOG_FOLDER ]]; then
        exec > >(exec tee -a "$LOG_FOLDER/rank-$RANK.log") 2>&1
    fi
    exec python -u "${COMMAND[@]}"
fi

check_programs torchrun
# A file for what each rank says, and all of it on the console with the rank's place on the node before each line.
LOG_ARGS=()
if [[ -n $LOG_FOLDER ]]; then
    LOG_ARGS=(--log-dir "$LOG_FOLDER" --tee 3)
fi
# Static rendezvous: with --rdzv-backend c10d torchrun would number the nodes itself, not as planned.
exec torchrun \
    --nnodes "$NNODES" \
    --node-rank "$NODE_RANK" \
    --nproc-per-node "$PROCESSES" \
    --master-addr "$MASTER_ADDR" \
    --master-port "$MASTER_PORT" \
    "${LOG_ARGS[@]}" \
    "${COMMAND[@]}"
