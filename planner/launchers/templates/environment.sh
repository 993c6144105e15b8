# shellcheck shell=bash
# Environment of the training processes, by the programming platform of the node's chips.
# Lines that begin with "# export" are for you to fill in where your network needs them.

# set_environment BACKEND
set_environment() {
    # As much locked memory (for RDMA) and as many open files as the host lets us have; logins often start with less.
    ulimit -S -l "$(ulimit -H -l)" 2>/dev/null || true
    ulimit -S -n "$(ulimit -H -n)" 2>/dev/null || true
@{mixed_platforms}@{max_connections}

    case $1 in
    cuda)
        # Fewer gaps in memory. If you add --use-nccl-ub (PyTorch before 2.11), set expandable_segments:False;
        # with --cuda-graph-impl on chips older than Blackwell, set NCCL_GRAPH_REGISTER=0 as well.
@{cuda}
        # The network adapters that NCCL uses. Left alone, NCCL finds them by itself.
        # export NCCL_SOCKET_IFNAME=eth0
        # export NCCL_IB_HCA=mlx5
        # export NCCL_IB_GID_INDEX=3
        # export NCCL_DEBUG=INFO
        ;;
    rocm)
        # As AMD's own script for Llama 3 sets them; not tried here. RCCL reads the variables of NCCL.
@{rocm}
        # export NCCL_SOCKET_IFNAME=eth0
        # export NCCL_IB_HCA=mlx5
        # export NCCL_IB_GID_INDEX=3
        ;;
    ascend)
        # As MindSpeed-LLM's scripts set them; not tried here. Megatron-LM runs on Ascend with MindSpeed, after
        # source /usr/local/Ascend/ascend-toolkit/set_env.sh
@{ascend}
        # export HCCL_SOCKET_IFNAME=eth0
        # export GLOO_SOCKET_IFNAME=eth0
        ;;
    gaudi | tpu | neuron | musa | maca | xpu)
        # Placeholder, not tried: upstream Megatron-LM does not run on these chips; their vendors have forks.
        ;;
    esac
}
