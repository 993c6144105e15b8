# shellcheck shell=bash
# Environment of the training processes, by the programming platform of the node's chips.
# Lines that begin with "# export" are for you to fill in where your network needs them.

# set_environment BACKEND
set_environment() {
@{max_connections}

    case $1 in
    cuda)
        # The network adapters that NCCL uses. Left alone, NCCL finds them by itself.
        # export NCCL_SOCKET_IFNAME=eth0
        # export NCCL_IB_HCA=mlx5
        # export NCCL_IB_GID_INDEX=3
        # export NCCL_DEBUG=INFO
        ;;
    rocm)
        # Placeholder, not tried: RCCL reads the variables of NCCL.
        # export NCCL_SOCKET_IFNAME=eth0
        # export NCCL_IB_HCA=mlx5
        ;;
    ascend)
        # Placeholder, not tried: Megatron-LM runs on Ascend through MindSpeed only.
        # export HCCL_SOCKET_IFNAME=eth0
        # export HCCL_CONNECT_TIMEOUT=1800
        ;;
    gaudi | tpu | neuron | musa | maca | xpu)
        # Placeholder, not tried: upstream Megatron-LM does not run on these chips; their vendors have forks.
        ;;
    esac
}
