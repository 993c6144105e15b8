"""Runs a launch script as each of its nodes, with recorders in place of whatever it would start.

The script runs under bash in a temporary folder, which is its home and its PATH's first entry, with a
time limit. torchrun, srun, mpirun and python only write down how they were called; other commands of
the script run as they stand.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from planner.errors import InstanceError
from planner.launchers.megatron_hybrid import ENTRY_POINTS

TIME_LIMIT_S = 60
"""How long a script may take on one node [s]; it starts nothing, so that it should end at once."""

_RECORDED = (
    "torchrun", "srun", "mpirun", "mpiexec", "python", "python3", "deepspeed", "docker", "apptainer",
    "singularity", "ssh", "pdsh", "pip", "pip3", "wandb", "scontrol", "sbatch",
)  # fmt: skip

_RECORDER = """#!{python}
import json, os, sys
with open({record!r}, "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
if os.path.basename(sys.argv[0]).startswith("python") and "-c" in sys.argv[1:2]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Writes down how it was called; `python -c`, with which scripts compute, runs all the same."""

_TRAINER = re.compile(r"(^|/)(pretrain|train|run_stage|finetune|gpt|main)[\w.-]*\.py$")


@dataclass(frozen=True)
class NodeStart:
    """What a script starts on one node."""

    launcher: dict[str, str]
    """Options before the Python file, by name with dashes: those of torchrun or srun."""
    entry_point: str
    """Python file that runs on every rank."""
    arguments: tuple[str, ...]
    """Words that follow it."""

    @property
    def num_processes(self) -> int | None:
        """Processes of the node; None where the launcher does not say."""
        for name in ("nproc-per-node", "ntasks-per-node"):
            if self.launcher.get(name, "").isdigit():
                return int(self.launcher[name])
        return None


def run_as_nodes(script: Path, num_nodes: int | None) -> list[NodeStart]:
    """What every node starts; the number of nodes is the launcher's own where it is not given.

    Raises
    ------
    InstanceError
        Where the script stops before it starts anything, or the number of nodes is unknown.
    """
    first = run_as_node(script, 0, num_nodes or 1)
    if num_nodes is None:
        told = first.launcher.get("nnodes", first.launcher.get("nodes", ""))
        if not told.isdigit():
            raise InstanceError("does not say on how many nodes it runs; give --nodes", str(script))
        num_nodes = int(told)
        first = run_as_node(script, 0, num_nodes)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        others = pool.map(lambda node: run_as_node(script, node, num_nodes), range(1, num_nodes))
        return [first, *others]


def run_as_node(script: Path, node: int, num_nodes: int) -> NodeStart:
    """Run the script as one node and read what it would have started."""
    variables = {
        "NODE_RANK": node,
        "SLURM_NODEID": node,
        "SLURM_PROCID": node,
        "NNODES": num_nodes,
        "NUM_NODES": num_nodes,
        "SLURM_NNODES": num_nodes,
        "SLURM_JOB_NUM_NODES": num_nodes,
        "SLURM_JOB_ID": 1,
        "SLURM_JOB_NODELIST": "localhost",
        "MASTER_ADDR": "localhost",
        "HETPLAN_SKIP_CHECKS": 1,
    }
    where = f"{script}, as node {node}"
    with tempfile.TemporaryDirectory() as folder:
        record = _put_recorders(Path(folder))
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        environment |= {"HOME": folder, "TMPDIR": folder, "PATH": f"{folder}:{os.environ.get('PATH', '')}"}
        said = _run(["bash", str(script.resolve())], environment, folder, where)
        calls = [json.loads(line) for line in record.read_text().splitlines()]
    directives = _slurm_directives(script)
    for call in calls:
        found = _started(call)
        if found is not None:
            return replace(found, launcher={**directives, **found.launcher})
    last = said.strip().splitlines()[-1] if said.strip() else "it says nothing"
    raise InstanceError(f"starts no training: {last}", where)


def arguments_of_rank(start: NodeStart, rank: int, where: str) -> tuple[str, ...]:
    """Megatron's words on one rank, where the script runs a file of its own directory on each."""
    if os.path.basename(start.entry_point) != "run_stage.py":
        return start.arguments
    with tempfile.TemporaryDirectory() as folder:
        record = _put_recorders(Path(folder))
        for script in ENTRY_POINTS:
            (Path(folder) / script).write_text(
                f"import json, sys\nopen({str(record)!r}, 'a').write(json.dumps(sys.argv) + '\\n')\n"
            )
        environment = os.environ | {"RANK": str(rank), "MEGATRON_PATH": folder}
        _run([sys.executable, start.entry_point, *start.arguments], environment, folder, where)
        return tuple(json.loads(record.read_text().splitlines()[0])[1:])


def _run(command: list[str], environment: Mapping[str, str], folder: str, where: str) -> str:
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InstanceError(f"has not ended after {TIME_LIMIT_S} s", where) from None
    return done.stderr or done.stdout


def _put_recorders(folder: Path) -> Path:
    record = folder / "record"
    record.touch()
    for name in _RECORDED:
        path = folder / name
        path.write_text(_RECORDER.format(python=sys.executable, record=str(record)))
        path.chmod(0o755)
    return record


def _started(call: list[str]) -> NodeStart | None:
    """The training that a recorded call would have started; None where it is something else."""
    words = [word for part in call for word in (shlex.split(part) if _is_command_line(part) else [part])]
    for position, word in enumerate(words):
        if _TRAINER.search(word):
            return NodeStart(_options(words[:position]), word, tuple(words[position + 1 :]))
    return None


def _slurm_directives(script: Path) -> dict[str, str]:
    """Options that a batch script gives in its head, for what its srun does not say."""
    lines = script.read_text(encoding="utf-8", errors="replace").splitlines()
    words = [word for line in lines if line.startswith("#SBATCH") for word in line.split("#")[1].split()[1:]]
    return _options(words)


def _is_command_line(text: str) -> bool:
    """Whether a word holds a whole command, as after `bash -c`."""
    return " " in text and ".py" in text


def _options(words: list[str]) -> dict[str, str]:
    """Options of the launchers before the Python file; the later launcher wins."""
    short = {"-N": "nodes", "-n": "ntasks", "-np": "ntasks"}
    options = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word in short:
            options[short[word]] = following
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            options[name.replace("_", "-")] = value if equals else following
    return options
