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

# hosts_of HOSTS_FILE: the host of each line; empty lines and those that begin with # are none.
hosts_of() {
    awk '{ sub(/\r$/, "") } NF && $1 !~ /^#/ { print $1 }' "$1"
}

# lines_of_name NAME HOSTS_FILE: where a host stands, from 0; upper and lower case are one in host names.
lines_of_name() {
    hosts_of "$2" | awk -v name="$1" 'tolower($1) == tolower(name) { printf "%s%d", (found++ ? " " : ""), NR - 1 }'
}

# find_node_rank HOSTS_FILE: prints the number of this host's line, from 0.
find_node_rank() {
    local hosts_file=$1 name ranks tried=""
    while read -r name; do
        ranks=$(lines_of_name "$name" "$hosts_file")
        if [[ $ranks == *" "* ]]; then
            fail "this host ($name) stands several times in $hosts_file (hosts $ranks, from 0); each host has one line"
        fi
        if [[ -n $ranks ]]; then
            echo "$ranks"
            return
        fi
        tried+=${tried:+, }$name
    done < <(names_of_this_host | awk 'NF && !seen[$0]++')
    # Some lists have addresses in the place of names.
    for name in $([[ -n ${HETPLAN_HOST:-} ]] || hostname -I 2>/dev/null || true); do
        ranks=$(lines_of_name "$name" "$hosts_file")
        if [[ $ranks =~ ^[0-9]+$ ]]; then
            echo "$ranks"
            return
        fi
    done
    fail "this host ($tried) is not in $hosts_file; write the name that it has there, or set NODE_RANK"
}

first_host() {
    hosts_of "$1" | awk 'NR == 1'
}

# check_node_rank NODE_RANK NNODES
check_node_rank() {
    if [[ ! $1 =~ ^(0|[1-9][0-9]*)$ ]] || (($1 >= $2)); then
        fail "NODE_RANK is $1; the plan has the nodes 0 to $(($2 - 1))"
    fi
}

# check_host_list HOSTS_FILE NNODES
check_host_list() {
    local lines
    lines=$(hosts_of "$1" | wc -l)
    if ((lines != $2)); then
        fail "$1 lists $((lines)) hosts, the plan has $2; one line a host, in the order of the plan"
    fi
}
