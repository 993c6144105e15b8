#!/usr/bin/env bash
# Starts this node's share of the training run. Run it on every host of hosts.txt; README.md says how.
#
# Written by Hetplan @{version} for @{problem_name}.
# The arrays below are the plan: change them and it is no longer the plan that was computed.
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

# Where the Megatron-LM checkout (core @{core_version}) lies on every node.
MEGATRON_PATH=${MEGATRON_PATH:-$HOME/Megatron-LM}

NNODES=@{num_nodes}
WORLD_SIZE_OF_PLAN=@{world_size}

# These have no flag: Megatron-LM derives them. They serve to check that everything adds up.
DATA_PARALLEL=@{data_parallel}
NUM_MICROBATCHES=@{num_microbatches}
VIRTUAL_STAGES=@{virtual_stages}

# What each node runs. A node's rank is its line in hosts.txt, from 0.
#   PROCESSES       processes, one a chip
#   CHIPS           chips that the host must have, CHIP their name in the plan, DEVICE_PATTERN in the driver
#   STAGE_ARGS      arguments that may differ between pipeline stages: what is recomputed
describe_node() {
@{node_table}
}

MODEL_ARGS=(
@{model_args}
)

MOE_ARGS=(
@{moe_args}
)

PARALLEL_ARGS=(
@{parallel_args}
)

BATCH_ARGS=(
@{batch_args}
)

PRECISION_ARGS=(
@{precision_args}
)

OPTIMIZER_ARGS=(
@{optimizer_args}
)

# The arguments from here on change neither the time of a step nor its memory: they are yours.
TRAINING_ARGS=(
    --train-iters "${TRAIN_ITERS:-@{train_iters}}"
    --lr "${LR:-3e-4}"
    --min-lr "${MIN_LR:-3e-5}"
    --lr-decay-style "${LR_DECAY_STYLE:-cosine}"
    --lr-warmup-fraction "${LR_WARMUP_FRACTION:-0.01}"
    --weight-decay "${WEIGHT_DECAY:-0.1}"
    --adam-beta1 "${ADAM_BETA1:-0.9}"
    --adam-beta2 "${ADAM_BETA2:-0.95}"
    --clip-grad "${CLIP_GRAD:-1.0}"
    --init-method-std "${INIT_METHOD_STD:-0.02}"
    --norm-epsilon "${NORM_EPSILON:-1e-5}"
    --seed "${SEED:-1234}"
    --log-interval "${LOG_INTERVAL:-1}"
    --log-throughput
    --eval-interval "${EVAL_INTERVAL:-1000}"
    --eval-iters "${EVAL_ITERS:-0}"
    --distributed-timeout-minutes "${DISTRIBUTED_TIMEOUT_MINUTES:-30}"
@{training_args}
)

# Without DATA_PATH the run trains on made-up tokens, so that it can be tried as it is.
if [[ -n ${DATA_PATH:-} ]]; then
    read -ra data_files <<<"$DATA_PATH"
    DATA_ARGS=(
        --data-path "${data_files[@]}"
        --split "${DATA_SPLIT:-99,1,0}"
        --tokenizer-type "${TOKENIZER_TYPE:-HuggingFaceTokenizer}"
        --tokenizer-model "${TOKENIZER_MODEL:?is needed beside DATA_PATH: the path of the tokenizer}"
    )
else
    DATA_ARGS=(
        --mock-data
        --tokenizer-type NullTokenizer
        --vocab-size @{vocab_size}
    )
fi
# Causal attention needs no mask from the loader, which would take seq_length^2 bytes a sample.
DATA_ARGS+=(--no-create-attention-mask-in-dataloader)

# Without CHECKPOINT_PATH nothing is saved.
CHECKPOINT_ARGS=()
if [[ -n ${CHECKPOINT_PATH:-} ]]; then
    CHECKPOINT_ARGS=(
        --save "$CHECKPOINT_PATH"
        --load "$CHECKPOINT_PATH"
        --save-interval "${SAVE_INTERVAL:-1000}"
        --ckpt-format @{checkpoint_format}
    )
fi

# Words separated by spaces, for anything else; with a flag given twice, Megatron takes the last.
read -ra EXTRA_ARGS <<<"${EXTRA_MEGATRON_ARGS:-}"

if [[ -z ${NODE_RANK:-} ]]; then
    NODE_RANK=$(find_node_rank "$HERE/hosts.txt")
    NODE_RANK_WAS_PRESET=0
else
    NODE_RANK_WAS_PRESET=1
fi
check_node_rank "$NODE_RANK" "$NNODES"

COMMON_ARGS=(
    "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${BATCH_ARGS[@]}" "${PRECISION_ARGS[@]}"
    "${OPTIMIZER_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}" "${CHECKPOINT_ARGS[@]}" "${EXTRA_ARGS[@]}"
)

if [[ ${HETPLAN_SKIP_CHECKS:-0} != 1 ]]; then
    check_host_list "$HERE/hosts.txt" "$NNODES"
    check_processes "$NNODES" "$WORLD_SIZE_OF_PLAN"
    check_sums "$WORLD_SIZE_OF_PLAN" "$DATA_PARALLEL" "$NUM_MICROBATCHES" "$VIRTUAL_STAGES" "${COMMON_ARGS[@]}"
fi

describe_node "$NODE_RANK"
if [[ ${HETPLAN_SKIP_CHECKS:-0} != 1 ]]; then
    check_devices "$NODE_RANK_WAS_PRESET" "$BACKEND" "$CHIPS" "$CHIP" "$DEVICE_PATTERN"
    check_megatron "$MEGATRON_PATH"
fi

set_environment "$BACKEND"
export MEGATRON_PATH
MASTER_ADDR=${MASTER_ADDR:-$(first_host "$HERE/hosts.txt")}
MASTER_PORT=${MASTER_PORT:-29500}

# Somebody else has started this very rank (forms/mpi): become it, if it is where the plan puts it.
if [[ ${HETPLAN_RANK_IS_STARTED:-0} == 1 ]]; then
    check_rank "$NODE_RANK" "$RANK" "$LOCAL_RANK" "$WORLD_SIZE" "$WORLD_SIZE_OF_PLAN"
    export RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
    exec python -u "@{entry_point}" "${COMMON_ARGS[@]}" "${STAGE_ARGS[@]}"
fi

# Static rendezvous: with --rdzv-backend c10d torchrun would number the nodes itself, not as planned.
exec torchrun \
    --nnodes "$NNODES" \
    --node-rank "$NODE_RANK" \
    --nproc-per-node "$PROCESSES" \
    --master-addr "$MASTER_ADDR" \
    --master-port "$MASTER_PORT" \
    "@{entry_point}" \
    "${COMMON_ARGS[@]}" \
    "${STAGE_ARGS[@]}"
