#!/usr/bin/env bash
# Starts the training run from one host, which reaches the others by ssh. README.md says how.
#
# Written by Hetplan @{version} for @{problem_name}.
# FlagScale reads config.yaml, train/hetero.yaml and hostfile; they are the plan.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/messages.sh
source "$HERE/lib/messages.sh"

# Where the FlagScale checkout lies, under the same path on every host.
FLAGSCALE_PATH=${FLAGSCALE_PATH:-$HOME/FlagScale}
PYTHON=${PYTHON:-python}

# FlagScale starts all hosts itself, so that a second start would be a second run.
if [[ ${NODE_RANK:-0} != 0 ]]; then
    warn "node $NODE_RANK has nothing to start: FlagScale starts it from the first host"
    exit 0
fi

if [[ ${HETPLAN_SKIP_CHECKS:-0} != 1 ]]; then
    "$PYTHON" "$HERE/lib/check_config.py" "$HERE" ||
        fail "the configuration no longer adds up; it would not be the plan that was computed"
    if [[ ! -f $FLAGSCALE_PATH/run.py ]]; then
        warn "$FLAGSCALE_PATH/run.py is missing; set FLAGSCALE_PATH to a checkout of FlagScale"
    fi
fi

cd "$FLAGSCALE_PATH" || fail "no folder $FLAGSCALE_PATH"
exec "$PYTHON" run.py --config-path "$HERE" --config-name config \
    "action=${ACTION:-run}" \
    "experiment.runner.hostfile=$HERE/hostfile" \
    "experiment.runner.master_addr=${MASTER_ADDR:-$(awk '!/^#/ && NF { print $1; exit }' "$HERE/hostfile")}" \
    "experiment.exp_dir=${OUTPUT_PATH:-$HERE/outputs}" \
    "$@"
