"""A temporary folder in which a launch script runs without starting or changing anything.

The folder is the script's home and working directory, and its PATH begins there. Launchers only write down
how they were called, and go on to what they would start; a file that every bash reads first replaces what
would change the machine. Small text files beside the script or in the current directory are copied in, as
scripts read settings from there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.errors import InstanceError
from planner.launchers.template_text import fill, template

_FOLLOWED = (
    "srun", "sbatch", "mpirun", "mpiexec", "docker", "podman", "apptainer", "singularity", "enroot", "sudo",
    "numactl", "taskset", "nsys", "ncu", "rocprof",
)  # fmt: skip
_RECORDED = (
    *_FOLLOWED, "torchrun", "python", "python3", "deepspeed", "accelerate", "ssh", "pdsh", "pip", "pip3",
    "wandb",
)  # fmt: skip

_COPIED = frozenset({".sh", ".env", ".conf", ".cfg", ".json", ".yaml", ".yml", ".txt"})
_MOST_COPIED, _LARGEST_COPIED_BYTES = 200, 1 << 20


@dataclass(frozen=True)
class Call:
    """A launcher's call that was written down."""

    words: tuple[str, ...]
    """Its name and words."""
    goes_on: bool
    """Whether it went on to something that is written down as well."""
    connections: str
    """CUDA_DEVICE_MAX_CONNECTIONS of its environment."""


def make_sandbox(folder: Path, beside: Path | None = None) -> None:
    """Fill a new folder with what replaces launchers and commands.

    Parameters
    ----------
    beside
        The script whose neighbours are copied in.
    """
    record = folder / "record"
    record.touch()
    text = fill(
        "recorder.py.txt", {"python": sys.executable, "record": str(record), "followed": " ".join(_FOLLOWED)}
    )
    (folder / "bin").mkdir()
    for name in _RECORDED:
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    (folder / "bin" / "stand_ins").write_text(template("stand_ins.sh"))
    if beside is not None:
        for source in dict.fromkeys((Path.cwd(), beside.resolve().parent)):
            _copy_settings(source, folder)
        _put_python_files(beside.read_text(encoding="utf-8", errors="replace"), folder)


def calls_of(folder: Path) -> list[Call]:
    """What was written down, in order."""
    lines = [json.loads(line) for line in (folder / "record").read_text().splitlines()]
    return [Call(tuple(line["words"]), line["goes_on"], line["connections"]) for line in lines]


def run_inside(
    folder: Path, command: list[str], variables: Mapping[str, object], limit_s: float, where: str
) -> str:
    """Run a command in a sandbox, and return what it said on standard error, or else on standard output.

    Raises
    ------
    InstanceError
        Where it has not ended in time.
    """
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    environment |= {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "HETPLAN_SANDBOX": str(folder),
        "BASH_ENV": str(folder / "bin" / "stand_ins"),
        "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', '')}",
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InstanceError(f"has not ended after {limit_s:g} s", where) from None
    return done.stderr or done.stdout


def _put_python_files(text: str, folder: Path) -> None:
    """Empty files by the relative names of Python files in a script, which may ask whether they exist."""
    for name in re.findall(r"(?<![\w/$}])(?:\./)?(?:\w[\w.-]*/)*\w[\w.-]*\.py\b", text):
        path = folder / name
        if ".." not in Path(name).parts and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def _copy_settings(source: Path, folder: Path) -> None:
    """Copy small text files of one directory; nothing where there are too many to be settings."""
    try:
        found = [
            entry for entry in os.scandir(source) if Path(entry.name).suffix in _COPIED and entry.is_file()
        ]
        if len(found) <= _MOST_COPIED:
            for entry in found:
                if entry.stat().st_size <= _LARGEST_COPIED_BYTES:
                    shutil.copyfile(entry.path, folder / entry.name)
    except OSError:  # what cannot be read is no setting of ours
        return
