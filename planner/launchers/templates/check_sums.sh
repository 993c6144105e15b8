# shellcheck shell=bash
# Do layers, stages, ranks and batch still add up? Needs messages.sh and describe_node of launch.sh.
#
# The numbers are read from the very arguments that Megatron will get, so that an edit of one of them
# is caught before hundreds of processes have started.

# last_value FLAG ARGUMENT...: prints the word after the last FLAG, or after FLAG=, as Megatron reads it.
last_value() {
    local flag=$1 value=""
    shift
    while (($#)); do
        if [[ $1 == "$flag" ]]; then
            value=${2:-}
        elif [[ $1 == "$flag="* ]]; then
            value=${1#*=}
        fi
        shift
    done
    echo "$value"
}

# count_layers LETTER LAYOUT: how many layers a layout of the form Et*4|t*5m*1L places.
count_layers() {
    local letter=$1 rest=$2 total=0
    while [[ $rest =~ $letter\*([0-9]+) ]]; do
        total=$((total + BASH_REMATCH[1]))
        rest=${rest#*"${BASH_REMATCH[0]}"}
    done
    echo "$total"
}

# check_processes NNODES WORLD_SIZE
check_processes() {
    local node total=0
    for ((node = 0; node < $1; node++)); do
        describe_node "$node"
        total=$((total + PROCESSES))
    done
    if ((total != $2)); then
        fail "the nodes start $total processes, the plan has $2 ranks"
    fi
}

# check_rank NODE_RANK RANK LOCAL_RANK WORLD_SIZE WORLD_SIZE_OF_PLAN
# Is this rank where the plan puts it? For ranks that another launcher numbered.
check_rank() {
    local node first=0
    if (($4 != $5)); then
        fail "$4 ranks were started, the plan has $5"
    fi
    for ((node = 0; node < $1; node++)); do
        describe_node "$node"
        first=$((first + PROCESSES))
    done
    describe_node "$1"
    if (($2 != first + $3 || $3 >= PROCESSES)); then
        fail "rank $2 was started as process $3 of node $1, where the plan has ranks $first to $((first + PROCESSES - 1)); order the hosts as in hosts.txt"
    fi
}

# check_sums WORLD_SIZE DATA_PARALLEL NUM_MICROBATCHES VIRTUAL_STAGES ARGUMENT...
check_sums() {
    local world=$1 dp=$2 microbatches=$3 virtual=$4
    shift 4
    local tp pp cp layers mtp layout pattern bars placed predicted mbs gbs
    tp=$(last_value --tensor-model-parallel-size "$@")
    pp=$(last_value --pipeline-model-parallel-size "$@")
    cp=$(last_value --context-parallel-size "$@")
    if ((tp * cp * dp * pp != world)); then
        fail "tensor $tp x context $cp x data $dp x pipeline $pp parallel is $((tp * cp * dp * pp)) ranks, the plan has $world"
    fi

    layout=$(last_value --pipeline-model-parallel-layout "$@")
    pattern=$(last_value --hybrid-layer-pattern "$@")
    layout=${layout:-$pattern}
    bars=${layout//[!|]/}
    if ((${#bars} + 1 != pp * virtual)); then
        fail "the layout $layout has $((${#bars} + 1)) stages, the plan has $pp x $virtual"
    fi
    layers=$(last_value --num-layers "$@")
    if [[ -n $pattern ]]; then
        placed=${pattern%%/*}
        placed=${placed//|/}
        placed=${#placed}
        predicted=${pattern//[!\/]/}
        predicted=${#predicted}
    else
        placed=$(count_layers t "$layout")
        predicted=$(count_layers m "$layout")
    fi
    if ((placed != layers)); then
        fail "the layout $layout places $placed layers, the model has $layers"
    fi
    mtp=$(last_value --mtp-num-layers "$@")
    if ((predicted != ${mtp:-0})); then
        fail "the layout $layout places $predicted prediction layers, the model has ${mtp:-0}"
    fi

    mbs=$(last_value --micro-batch-size "$@")
    gbs=$(last_value --global-batch-size "$@")
    if ((mbs * dp * microbatches != gbs)); then
        fail "micro-batch $mbs x data parallel $dp x $microbatches micro-batches is $((mbs * dp * microbatches)) sequences, the global batch is $gbs"
    fi
}
