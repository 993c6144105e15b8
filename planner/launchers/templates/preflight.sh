# shellcheck shell=bash
# Is this host what the plan takes it for? Needs messages.sh. HETPLAN_SKIP_CHECKS=1 leaves it out.

# Each platform's own tool, by name.
device_tool() {
    case $1 in
    cuda) echo nvidia-smi ;;
    rocm) if command -v amd-smi >/dev/null; then echo amd-smi; else echo rocm-smi; fi ;;
    ascend) echo npu-smi ;;
    gaudi) echo hl-smi ;;
    esac
}

# device_names TOOL: one device a line.
device_names() {
    case $1 in
    nvidia-smi) nvidia-smi --query-gpu=name --format=csv,noheader ;;
    rocm-smi) rocm-smi --showproductname --csv | csv_column "card series" ;;
    amd-smi) amd-smi static --asic --csv | csv_column "market_name" ;;
    # The map also lists what is no device (Mcu), without a logical number in the third column.
    npu-smi) npu-smi info -m | awk '$3 ~ /^[0-9]+$/ { $1 = $2 = $3 = ""; sub(/^ +([0-9]+ +)?/, ""); print }' ;;
    hl-smi) hl-smi --query-aip=name --format=csv,noheader ;;
    esac
}

# device_memory TOOL: MiB of every device that says how much it has, one a line.
device_memory() {
    local card
    case $1 in
    nvidia-smi) nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits ;;
    rocm-smi) rocm-smi --showmeminfo vram --csv | csv_column "vram total memory (b)" | awk '{ print int($1 / 1048576) }' ;;
    amd-smi) amd-smi static --vram --csv | csv_column "size" ;;
    npu-smi)
        for card in $(npu-smi info -m | awk '$3 ~ /^[0-9]+$/ && !seen[$1]++ { print $1 }'); do
            npu-smi info -t memory -i "$card" | awk -F: '/HBM Capacity/ { print int($2) }'
        done
        ;;
    hl-smi) hl-smi --query-aip=memory.total --format=csv,noheader,nounits ;;
    esac
}

# csv_column NAME: the column of that name, in whatever case, from standard input; other lines are dropped.
csv_column() {
    awk -F, -v name="$1" '
        !column { for (i = 1; i <= NF; i++) if (tolower($i) == name) column = i; next }
        NF >= column { print $column }
    '
}

# check_devices NODE_RANK_WAS_PRESET BACKEND CHIPS CHIP DEVICE_PATTERN MEMORY_MIB
# Stops when the host has other chips, another number of them, or less memory than the plan counts on. A
# missing device tool stops it too, unless NODE_RANK was preset: then somebody else decides what runs where.
check_devices() {
    local preset=$1 backend=$2 chips=$3 chip=$4 pattern=$5 memory_mib=$6 tool names
    tool=$(device_tool "$backend")
    if [[ -z $tool ]]; then
        warn "no device check for $backend; see for yourself that this host has $chips x $chip"
        return
    fi
    if ! command -v "$tool" >/dev/null; then
        if ((preset)); then
            warn "$tool is missing; not checked that this host has $chips x $chip"
            return
        fi
        fail "$tool is missing; the plan wants $chips x $chip here (HETPLAN_SKIP_CHECKS=1 starts anyway)"
    fi
    names=$(device_names "$tool") || fail "$tool failed: $names; the plan wants $chips x $chip here"
    check_device_names "$names" "$chips" "$chip" "$pattern"
    check_device_memory "$(device_memory "$tool" 2>/dev/null || true)" "$chips" "$chip" "$memory_mib"
}

# check_device_names NAMES CHIPS CHIP PATTERN; NAMES has one device a line.
check_device_names() {
    local names=$1 chips=$2 chip=$3 pattern=$4 count other
    count=$(awk 'NF' <<<"$names" | wc -l)
    if ((count != chips)); then
        fail "this host has $((count)) devices, the plan wants $chips x $chip; is it on the right line of hosts.txt?"
    fi
    # Some drivers give a number (0x74a1) in the place of a name.
    if [[ -z $pattern || $names =~ ^(0x|N/A) ]]; then
        warn "no device name is known for $chip; not checked that these are such: $(head -n 1 <<<"$names")"
        return
    fi
    other=$(grep -Eiv -m 1 -e "$pattern" <<<"$names" || true)
    if [[ -n $other ]]; then
        fail "this host has a $other, the plan wants $chips x $chip ($pattern); is it on the right line of hosts.txt?"
    fi
}

# check_device_memory MEMORY CHIPS CHIP MEMORY_MIB; MEMORY has one device a line.
# Drivers keep some for themselves, and error correction takes a sixteenth on some chips.
check_device_memory() {
    local least
    least=$(awk '/^ *[0-9]+ *$/ && (!found || $1 < least) { least = $1; found = 1 } END { if (found) print least }' <<<"$1")
    if [[ -n $least ]] && ((least * 10 < $4 * 9)); then
        fail "a device of this host has $least MiB, the plan counts on $4 MiB a chip ($2 x $3); is it divided into parts?"
    fi
}

# check_programs PROGRAM...: are they in PATH?
check_programs() {
    local program
    for program in "$@"; do
        if ! command -v "$program" >/dev/null; then
            fail "$program is missing; activate the environment that has PyTorch first"
        fi
    done
}

# check_megatron MEGATRON_PATH SCRIPT
check_megatron() {
    if [[ ! -f $1/$2 ]]; then
        warn "$1/$2 is missing; set MEGATRON_PATH to a checkout of Megatron-LM"
    fi
}

# check_meeting_place HOST: can it be found? A warning only, as some networks name a host when it is up.
check_meeting_place() {
    if command -v getent >/dev/null && ! getent hosts "$1" >/dev/null; then
        warn "the network knows no host $1, where the ranks meet; write real names into hosts.txt, or set MASTER_ADDR"
    fi
}
