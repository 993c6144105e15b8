#!/usr/bin/env bash
# Starts all ranks with Open MPI from one host: bash forms/mpi/run.sh
# The folder must lie under one path on every host. More words go to mpirun.
#
# Ranks follow the hosts of hosts.txt, slot by slot. Where your MPI or its resource manager orders hosts in its own
# way, pin them with the rankfile instead, whose slots are cores: give each rank those next to its chip.
#   Open MPI 4: --rankfile rankfile          Open MPI 5: --map-by rankfile:file=rankfile
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../lib/messages.sh
source "$HERE/../../lib/messages.sh"
# shellcheck source=../../lib/find_node.sh
source "$HERE/../../lib/find_node.sh"

# Names that were written into hosts.txt go into hostfile and rankfile, line by line.
check_host_list "$HERE/../../hosts.txt" @{num_hosts}
if ! diff -q <(hosts_of "$HERE/../../hosts.txt") <(hosts_of "$HERE/hostfile") >/dev/null; then
    for file in rankfile hostfile; do
        awk '
            FNR == 1 { part++ }
            part == 1 { name[FNR] = $1; next }
            part == 2 { new[$1] = name[FNR]; next }
            /^rank/ { split($2, place, "="); $2 = place[1] "=" new[place[2]]; print; next }
            { $1 = new[$1]; print }
        ' <(hosts_of "$HERE/../../hosts.txt") "$HERE/hostfile" "$HERE/$file" >"$HERE/$file.new"
        mv "$HERE/$file.new" "$HERE/$file"
    done
fi

# mpirun hands on what it is told to only: all that README.md lists, where it is set, and the way to Python.
handed_on=()
for name in PATH LD_LIBRARY_PATH DATA_PATH TOKENIZER_MODEL TOKENIZER_TYPE DATA_SPLIT PADDED_VOCAB_SIZE \
    CHECKPOINT_PATH SAVE_INTERVAL TRAIN_ITERS LR MIN_LR LR_DECAY_STYLE LR_WARMUP_FRACTION WEIGHT_DECAY ADAM_BETA1 ADAM_BETA2 CLIP_GRAD \
    INIT_METHOD_STD NORM_EPSILON SEED LOG_INTERVAL EVAL_INTERVAL EVAL_ITERS DISTRIBUTED_TIMEOUT_MINUTES \
    ROTARY_BASE MOE_BALANCING MOE_AUX_LOSS_COEFF EXTRA_MEGATRON_ARGS HETPLAN_SKIP_CHECKS LOG_DIR; do
    if [[ -n ${!name:-} ]]; then
        handed_on+=(-x "$name")
    fi
done

exec mpirun -np @{world_size} --hostfile "$HERE/hostfile" --map-by slot --bind-to none "${handed_on[@]}" \
    -x MASTER_ADDR="${MASTER_ADDR:-$(first_host "$HERE/../../hosts.txt")}" -x MASTER_PORT="${MASTER_PORT:-29500}" \
    -x MEGATRON_PATH="${MEGATRON_PATH:-$HOME/Megatron-LM}" \
    "$@" bash "$HERE/start_rank.sh"
