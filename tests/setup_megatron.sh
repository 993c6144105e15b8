#!/usr/bin/env bash
# Makes the virtual environment in which the real Megatron-LM reads our launch directories.
#
#   tests/setup_megatron.sh
#
# HETPLAN_MEGATRON_VENV  where to make it (default: .venv-megatron at the root of the repository)
# HETPLAN_PYTHON         Python to make it from (default: python3; 3.11 or newer)
#
# About 1 GB, nearly all of it PyTorch. Run again at will: a finished environment is left as it is.
# megatron-core cannot be an extra of the package: 0.19.2 declares Python >= 3.12, though its wheel for
# 3.11 works, and its declared dependencies (triton, a gigabyte) are not needed to read arguments.
set -euo pipefail

torch_version=2.13.0
megatron_version=0.19.2
older_versions=(0.17.1 0.18.2) # unpacked beside it; 0.15 and 0.16 hold no argument parser

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${HETPLAN_MEGATRON_VENV:-$root/.venv-megatron}
done_mark=$venv/.complete-torch-$torch_version-megatron-$megatron_version-${older_versions[0]}-${older_versions[1]}-einops

if [[ -e $done_mark ]]; then
    echo "$venv is complete"
    exit 0
fi

"${HETPLAN_PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or newer is needed; set HETPLAN_PYTHON" >&2
    exit 1
}
"${HETPLAN_PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --no-compile "torch==$torch_version" numpy packaging pyyaml typing_extensions einops
"$venv/bin/python" -m pip install --quiet --no-compile --no-deps --ignore-requires-python "megatron-core==$megatron_version"
for version in "${older_versions[@]}"; do
    "$venv/bin/python" -m pip install --quiet --no-compile --no-deps --ignore-requires-python --upgrade \
        --target "$venv/older/$version" "megatron-core==$version"
done
"$venv/bin/python" -c 'import importlib.metadata as m; print("megatron-core", m.version("megatron-core"), "torch", m.version("torch"))'
touch "$done_mark"
