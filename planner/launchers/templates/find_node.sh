# shellcheck shell=bash
# Which line of hosts.txt this host is. Needs messages.sh.

# The names that this host answers to, the likeliest first. HETPLAN_HOST overrides them all.
names_of_this_host() {
    if [[ -n ${HETPLAN_HOST:-} ]]; then
        echo "$HETPLAN_HOST"
        return
    fi
    hostname -s 2>/dev/null || true
    hostname -f 2>/dev/null || true
    hostname 2>/dev/null || uname -n
    # Inside a Slurm job: the name that Slurm knows the node by.
    if [[ -n ${SLURMD_NODENAME:-} ]]; then
        echo "$SLURMD_NODENAME"
    fi
}

# find_node_rank HOSTS_FILE: prints the number of this host's line, from 0.
find_node_rank() {
    local hosts_file=$1 name rank tried=""
    while read -r name; do
        rank=$(awk -v name="$name" '$1 == name { print NR - 1; exit }' "$hosts_file")
        if [[ -n $rank ]]; then
            echo "$rank"
            return
        fi
        tried+=${tried:+, }$name
    done < <(names_of_this_host | awk 'NF && !seen[$0]++')
    fail "this host ($tried) is not in $hosts_file; write the name that it has there, or set NODE_RANK"
}

first_host() {
    awk 'NR == 1 { print $1 }' "$1"
}

# check_node_rank NODE_RANK NNODES
check_node_rank() {
    if [[ ! $1 =~ ^[0-9]+$ ]] || (($1 >= $2)); then
        fail "NODE_RANK is $1; the plan has the nodes 0 to $(($2 - 1))"
    fi
}

# check_host_list HOSTS_FILE NNODES
check_host_list() {
    local lines
    lines=$(awk 'NF' "$1" | wc -l)
    if ((lines != $2)); then
        fail "$1 lists $((lines)) hosts, the plan has $2; one line a host, in the order of the plan"
    fi
}
