#!/usr/bin/env bash
# Starts all ranks with Open MPI from one host: bash forms/mpi/run.sh
# The folder must lie under one path on every host. More words go to mpirun.
#
# Ranks follow the hosts of the hostfile, slot by slot. Where your MPI or its resource manager orders hosts in its own
# way, pin them with the rankfile instead, whose slots are cores: give each rank those next to its chip.
#   Open MPI 4: --rankfile rankfile          Open MPI 5: --map-by rankfile:file=rankfile
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# mpirun hands on what it is told to only: all that README.md lists, where it is set, and the way to Python.
handed_on=()
for name in PATH LD_LIBRARY_PATH DATA_PATH TOKENIZER_MODEL TOKENIZER_TYPE DATA_SPLIT CHECKPOINT_PATH SAVE_INTERVAL \
    TRAIN_ITERS LR MIN_LR LR_DECAY_STYLE LR_WARMUP_FRACTION WEIGHT_DECAY ADAM_BETA1 ADAM_BETA2 CLIP_GRAD \
    INIT_METHOD_STD NORM_EPSILON SEED LOG_INTERVAL EVAL_INTERVAL EVAL_ITERS DISTRIBUTED_TIMEOUT_MINUTES \
    ROTARY_BASE MOE_BALANCING MOE_AUX_LOSS_COEFF EXTRA_MEGATRON_ARGS HETPLAN_SKIP_CHECKS LOG_DIR; do
    if [[ -n ${!name:-} ]]; then
        handed_on+=(-x "$name")
    fi
done

exec mpirun -np @{world_size} --hostfile "$HERE/hostfile" --map-by slot --bind-to none "${handed_on[@]}" \
    -x MASTER_ADDR="${MASTER_ADDR:-@{first_host}}" -x MASTER_PORT="${MASTER_PORT:-29500}" \
    -x MEGATRON_PATH="${MEGATRON_PATH:-$HOME/Megatron-LM}" \
    "$@" bash "$HERE/start_rank.sh"
