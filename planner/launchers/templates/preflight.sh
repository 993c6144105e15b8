# shellcheck shell=bash
# Is this host what the plan takes it for? Needs messages.sh. HETPLAN_SKIP_CHECKS=1 leaves it out.

# check_devices NODE_RANK_WAS_PRESET BACKEND CHIPS CHIP DEVICE_PATTERN
# Stops when the host has other chips, or another number of them. A missing device tool stops it too,
# unless NODE_RANK was preset: then somebody else decides what runs where.
check_devices() {
    local preset=$1 backend=$2 chips=$3 chip=$4 pattern=$5 names
    case $backend in
    cuda)
        if ! command -v nvidia-smi >/dev/null; then
            if ((preset)); then
                warn "nvidia-smi is missing; not checked that this host has $chips x $chip"
                return
            fi
            fail "nvidia-smi is missing; the plan wants $chips x $chip here (HETPLAN_SKIP_CHECKS=1 starts anyway)"
        fi
        names=$(nvidia-smi --query-gpu=name --format=csv,noheader) ||
            fail "nvidia-smi failed: $names; the plan wants $chips x $chip here"
        ;;
    *)
        warn "no device check for $backend; see for yourself that this host has $chips x $chip"
        return
        ;;
    esac
    check_device_names "$names" "$chips" "$chip" "$pattern"
}

# check_device_names NAMES CHIPS CHIP PATTERN; NAMES has one device a line.
check_device_names() {
    local names=$1 chips=$2 chip=$3 pattern=$4 count other
    count=$(awk 'NF' <<<"$names" | wc -l)
    if ((count != chips)); then
        fail "this host has $((count)) devices, the plan wants $chips x $chip; is it on the right line of hosts.txt?"
    fi
    if [[ -z $pattern ]]; then
        warn "no device name is known for $chip; not checked that these are such: $(head -n 1 <<<"$names")"
        return
    fi
    other=$(grep -Eiv -m 1 -e "$pattern" <<<"$names" || true)
    if [[ -n $other ]]; then
        fail "this host has a $other, the plan wants $chips x $chip ($pattern); is it on the right line of hosts.txt?"
    fi
}

# check_megatron MEGATRON_PATH
check_megatron() {
    if [[ ! -f $1/pretrain_gpt.py ]]; then
        warn "$1/pretrain_gpt.py is missing; set MEGATRON_PATH to a checkout of Megatron-LM"
    fi
}
