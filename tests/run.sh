#!/usr/bin/env bash
# Runs every check, and sets up all that they need in `.venv-test` and `.venv-megatron`. Comparisons with the real
# Megatron-Bridge run as well where `tests/setup_bridge.sh` has made `.venv-bridge`, and are skipped elsewhere.
#
#   bash tests/run.sh          everything: lint, types, fast tests, slow tests
#   bash tests/run.sh --fast   lint, types and the fast tests, under a minute once set up
#
# HETPLAN_PYTHON  Python to make the environments from (default: the first of 3.13, 3.12, 3.11 found)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fast=false
for argument in "$@"; do
    case $argument in
        --fast) fast=true ;;
        *)
            echo "usage: bash tests/run.sh [--fast]" >&2
            exit 2
            ;;
    esac
done

say() { printf '\n== %s\n' "$*"; }

find_python() {
    local candidate
    for candidate in "${HETPLAN_PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [[ -n $candidate ]] && command -v "$candidate" >/dev/null \
            && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            command -v "$candidate"
            return
        fi
    done
    echo "Python 3.11 or newer is needed; set HETPLAN_PYTHON to one" >&2
    return 1
}

set_up_tests() {
    local python=$1 stamp
    stamp=.venv-test/.installed-$(sha256sum pyproject.toml | cut -c1-16)
    [[ -e $stamp ]] && return
    "$python" -m venv .venv-test
    # What is never imported need not be compiled: that takes as long as all the rest.
    .venv-test/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[test]'
    touch "$stamp"
}

# Debian's packages that some tests use: without them those tests are skipped, and say so.
set_up_packages() {
    local tool missing=false
    for tool in shellcheck slurmctld munged mpirun; do
        command -v "$tool" >/dev/null || missing=true
    done
    $missing || return 0
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        { apt-get update && apt-get install -y shellcheck slurm-wlm munge openmpi-bin; } >/dev/null 2>&1 \
            || echo "not all of shellcheck, Slurm and Open MPI could be installed; their tests are skipped" >&2
    fi
}

# Many tests start Python anew: without compiled files each would compile the product again.
unset PYTHONDONTWRITEBYTECODE

HETPLAN_PYTHON=$(find_python)
export HETPLAN_PYTHON

# What takes one core for a minute runs beside what follows it; its words are shown where it is waited for.
words=$(mktemp -d)
trap 'kill "${beside:-}" 2>/dev/null || true; rm -rf "$words"' EXIT
start_beside() {
    "$@" >"$words/beside" 2>&1 &
    beside=$!
}
end_beside() {
    local status=0
    wait "$beside" || status=$?
    beside=
    cat "$words/beside"
    return "$status"
}

say "set up"
if ! $fast; then
    start_beside bash tests/setup_megatron.sh
    # Where CI is set, a missing Megatron environment is a failure; elsewhere its tests are skipped.
    export CI=1
fi
set_up_tests "$HETPLAN_PYTHON"
set_up_packages
if ! $fast; then
    end_beside
fi
bin=$PWD/.venv-test/bin

say "lint"
"$bin/ruff" check .
"$bin/ruff" format --check .
if command -v shellcheck >/dev/null; then
    shellcheck tests/*.sh .ci/run
fi

start_beside "$bin/mypy"

# One process a core; long tests are handed on to whichever is idle.
several=(--numprocesses auto --maxprocesses 4 --dist worksteal)

say "fast tests"
"$bin/pytest" -q "${several[@]}" -m "not slow"

say "types"
end_beside

if ! $fast; then
    say "slow tests"
    "$bin/pytest" -q "${several[@]}" -m slow --durations=15
fi

say "all passed"
