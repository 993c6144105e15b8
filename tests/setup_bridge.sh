#!/usr/bin/env bash
# Makes the virtual environment in which the real Megatron-Bridge reads our launch directories, and in which
# small networks that Megatron-LM builds of them are compared with the code of their publishers (transformers).
#
#   tests/setup_bridge.sh
#
# HETPLAN_BRIDGE_VENV    where to make it (default: .venv-bridge at the root of the repository)
# HETPLAN_MEGATRON_VENV  the environment of Megatron-LM that it stands on, made first (tests/setup_megatron.sh)
#
# About 550 MB and a minute beside Megatron-LM's. Run again at will: a finished environment is left as it is.
# tests/run.sh does not make it, and without it the tests that compare with either are skipped.
# megatron-bridge declares Python >= 3.12 and packages that need a GPU; its code reads configurations without.
set -euo pipefail

bridge_version=0.6.2
packages=(
    omegaconf==2.3.1 hydra-core==1.3.8 transformers==5.12.1 accelerate==1.15.0 datasets==5.2.0 peft==0.21.2
    rich==15.0.0 pillow==13.0.0 regex six tqdm
)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${HETPLAN_BRIDGE_VENV:-$root/.venv-bridge}
done_mark=$venv/.complete-bridge-$bridge_version

if [[ -e $done_mark ]]; then
    echo "$venv is complete"
    exit 0
fi

bash "$root/tests/setup_megatron.sh"
megatron=$(cd "${HETPLAN_MEGATRON_VENV:-$root/.venv-megatron}" && pwd)
python=$megatron/bin/python
packages_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'
"$python" -m venv "$venv"
# PyTorch and megatron-core, a gigabyte, are those of the other environment.
packages_of "$python" >"$(packages_of "$venv/bin/python")/megatron_lm.pth"
"$venv/bin/python" -m pip install --quiet "${packages[@]}"
"$venv/bin/python" -m pip install --quiet --no-deps --ignore-requires-python "megatron-bridge==$bridge_version"
"$venv/bin/python" -c 'import importlib.metadata as m; print(*(f"{p} {m.version(p)}" for p in ("megatron-bridge", "megatron-core", "transformers")))'
touch "$done_mark"
