# shellcheck shell=bash
# Where the output of each rank goes besides the console. Needs messages.sh.

# open_logs FOLDER NODE_RANK: sets LOG_FOLDER to this node's folder in LOG_DIR, or in FOLDER where that is unset;
# to nothing where LOG_DIR is empty, or nothing can be written there.
open_logs() {
    LOG_FOLDER=${LOG_DIR-$1}
    if [[ -z $LOG_FOLDER ]]; then
        return
    fi
    LOG_FOLDER=$LOG_FOLDER/node-$2
    if ! mkdir -p "$LOG_FOLDER" 2>/dev/null; then
        warn "no logs can be written into $LOG_FOLDER, set LOG_DIR; what ranks say goes to the console alone"
        LOG_FOLDER=""
    fi
}
