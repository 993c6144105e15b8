#!/usr/bin/env bash
# Starts this node's share of the training run. Run it on every host of hosts.txt; README.md says how.
#
# Written by Hetplan @{version} for @{problem_name}.
# overrides.txt is the plan: change it and it is no longer the plan that was computed.
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

NNODES=@{num_nodes}
WORLD_SIZE_OF_PLAN=@{world_size}

# These are no fields of overrides.txt: Megatron derives them. They serve to check that everything adds up.
DATA_PARALLEL=@{data_parallel}
NUM_MICROBATCHES=@{num_microbatches}
VIRTUAL_STAGES=@{virtual_stages}
NUM_LAYERS=@{num_layers}
MTP_NUM_LAYERS=@{mtp_num_layers}

# What each node runs. A node's rank is its line in hosts.txt, from 0.
describe_node() {
@{node_table}
}

# override FIELD: prints its value in overrides.txt, without quotes.
override() {
    awk -v key="$1=" 'index($0, key) == 1 { value = substr($0, length(key) + 1) } END { print value }' \
        "$HERE/overrides.txt" | tr -d '"'
}

# Words separated by spaces, for anything else, such as train.train_iters=100; they win over the file.
read -ra EXTRA_OVERRIDES <<<"${EXTRA_OVERRIDES:-}"

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
    check_sums "$WORLD_SIZE_OF_PLAN" "$DATA_PARALLEL" "$NUM_MICROBATCHES" "$VIRTUAL_STAGES" \
        --tensor-model-parallel-size "$(override model.tensor_model_parallel_size)" \
        --pipeline-model-parallel-size "$(override model.pipeline_model_parallel_size)" \
        --context-parallel-size "$(override model.context_parallel_size)" \
        --pipeline-model-parallel-layout "$(override model.pipeline_model_parallel_layout)" \
        --num-layers "$NUM_LAYERS" --mtp-num-layers "$MTP_NUM_LAYERS" \
        --micro-batch-size "$(override train.micro_batch_size)" \
        --global-batch-size "$(override train.global_batch_size)"
fi

describe_node "$NODE_RANK"
if [[ ${HETPLAN_SKIP_CHECKS:-0} != 1 ]]; then
    check_devices "$NODE_RANK_WAS_PRESET" "$BACKEND" "$CHIPS" "$CHIP" "$DEVICE_PATTERN"
fi

set_environment "$BACKEND"
MASTER_ADDR=${MASTER_ADDR:-$(first_host "$HERE/hosts.txt")}
MASTER_PORT=${MASTER_PORT:-29500}

# Static rendezvous: with --rdzv-backend c10d torchrun would number the nodes itself, not as planned.
exec torchrun \
    --nnodes "$NNODES" \
    --node-rank "$NODE_RANK" \
    --nproc-per-node "$PROCESSES" \
    --master-addr "$MASTER_ADDR" \
    --master-port "$MASTER_PORT" \
    "$HERE/lib/train.py" "$HERE/overrides.txt" "${EXTRA_OVERRIDES[@]}"
