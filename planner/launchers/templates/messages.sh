# shellcheck shell=bash
# How the start scripts speak: one line each, on standard error.

warn() {
    echo "hetplan: warning: $*" >&2
}

fail() {
    echo "hetplan: $*" >&2
    exit 1
}
