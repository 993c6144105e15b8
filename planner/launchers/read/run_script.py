"""Runs a launch script as each of its nodes, with recorders in place of whatever it would start.

The script runs under bash in a sandbox with a time limit: launchers only write down how they were called, and
commands that would change the machine do nothing. What it would start is read from the calls.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from planner.data.read import read_raw
from planner.errors import InstanceError
from planner.launchers.read.alike_nodes import nodes_to_run
from planner.launchers.read.sandbox import Call, calls_of, make_sandbox, run_inside

TIME_LIMIT_S = 60
"""How long a script may take on one node [s]; it starts nothing, so that it should end at once."""

_TRAINER = re.compile(r"(^|/)(pretrain|train|run_stage|finetune|gpt|main)[\w.-]*\.py$")
_SOURCED = re.compile(r"""(?m)^([ \t]*)(?:source|\.)[ \t]+("[^"\n]*"|[^\s;|&]+)(?=[^\n]*$)""")
"""A file whose settings a script reads."""
_LOG = re.compile(r"""(?:\d|&)?>>?[ \t]*("[^"\n]*"|'[^'\n]*'|[^\s;|&<>()"']+)""")
"""Output sent into a file."""
_WHOLE_CLUSTER = ("deepspeed", "accelerate")
"""Launchers that take all nodes and chips where they are not told how many."""


@dataclass(frozen=True)
class NodeStart:
    """What a script starts on one node."""

    launcher: dict[str, str]
    """Options before the Python file, by name with dashes: those of torchrun or srun."""
    entry_point: str
    """Python file that runs on every rank."""
    arguments: tuple[str, ...]
    """Words that follow it."""
    by: str = ""
    """Name of the launcher."""
    connections: str = "1"
    """CUDA_DEVICE_MAX_CONNECTIONS of the processes."""
    home: str = ""
    """Folder that was the script's home while it ran."""

    @property
    def num_nodes(self) -> int | None:
        """Nodes of the run; None where the launcher does not say."""
        for name in ("nnodes", "nodes", "num-nodes"):
            text = self.launcher.get(name, "").partition("-")[0].rpartition(":")[2]
            if text.isdecimal():
                return int(text)
        tasks, on_each = (self.launcher.get(name, "") for name in ("ntasks", "ntasks-per-node"))
        if tasks.isdecimal() and on_each.isdecimal() and int(on_each):
            return -(-int(tasks) // int(on_each))
        return None

    def num_processes(self, num_nodes: int, num_chips: int) -> int | None:
        """Processes of the node; None where the launcher does not say."""
        if self.launcher.get("nproc-per-node") in ("gpu", "auto"):
            return num_chips
        for name in ("nproc-per-node", "num-gpus", "ntasks-per-node", "npernode"):
            if self.launcher.get(name, "").isdecimal():
                return int(self.launcher[name])
        tasks = self.launcher.get("ntasks", "")
        return int(tasks) // num_nodes if tasks.isdecimal() and int(tasks) % num_nodes == 0 else None


def run_as_nodes(
    script: Path,
    num_nodes: int | None,
    chips_of_nodes: Sequence[int],
    words: Sequence[str],
    notes: list[str],
) -> list[tuple[NodeStart, int]]:
    """What every node starts, and how many processes.

    Parameters
    ----------
    num_nodes
        Nodes to run it as; the launcher's own where absent.
    chips_of_nodes
        Chips of every node of the cluster.
    words
        What follows the script on its command line.

    Raises
    ------
    InstanceError
        Where the script stops before it starts anything.
    """
    hint = num_nodes or len(chips_of_nodes)
    first = run_as_node(script, 0, hint, chips_of_nodes[0], words)
    told = num_nodes or first.num_nodes
    if told is None:
        told = hint if first.by in _WHOLE_CLUSTER else 1
        notes.append(f"{told} node{'s' if told > 1 else ''}: the script does not say how many")
    if told != hint:
        first = run_as_node(script, 0, told, chips_of_nodes[0], words)
    chips = [chips_of_nodes[min(node, len(chips_of_nodes) - 1)] for node in range(told)]
    starts = _start_all(script, first, chips, words)
    return [
        (start, _processes(start, told, num_chips, notes))
        for start, num_chips in zip(starts, chips, strict=True)
    ]


def _start_all(script: Path, first: NodeStart, chips: list[int], words: Sequence[str]) -> list[NodeStart]:
    """What every node starts, run as few of them as tell it; `first` is what the first one starts."""
    told = len(chips)

    def start(nodes: Iterable[int]) -> None:
        def run(node: int) -> NodeStart:
            return run_as_node(script, node, told, chips[node], words)

        nodes = [node for node in nodes if node not in ran]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ran.update(zip(nodes, pool.map(run, nodes), strict=True))

    ran = {0: first}
    start(nodes_to_run(script, chips))
    before = max((node for node in ran if node < told - 1), default=0)
    if len(ran) < told and chips[-1] == chips[before] and _words(ran[told - 1]) != _words(ran[before]):
        start(range(told))
    starts = [first]
    for node in range(1, told):
        starts.append(ran.get(node, starts[-1]))
    return starts


def _words(start: NodeStart) -> list[str]:
    """What a node starts, but its rank and where it keeps its logs."""
    own = ("node-rank", "machine-rank", "log-dir")
    launcher = [f"{name}={value}" for name, value in start.launcher.items() if name not in own]
    return [word.replace(start.home, "~") for word in (*launcher, start.entry_point, *start.arguments)]


def _processes(start: NodeStart, num_nodes: int, num_chips: int, notes: list[str]) -> int:
    """Processes of a node; what its launcher takes where it is not told."""
    told = start.num_processes(num_nodes, num_chips)
    if told is not None:
        return told
    taken = num_chips if start.by in _WHOLE_CLUSTER else 1
    notes.append(
        f"processes of a node: {taken}, as {start.by} takes without --nproc-per-node or --ntasks-per-node"
    )
    return taken


def run_as_node(script: Path, node: int, num_nodes: int, num_chips: int, words: Sequence[str]) -> NodeStart:
    """Run the script as one node and read what it would have started.

    A script that starts nothing may have failed at a log file that it cannot or must not write here, or at
    settings of its own cluster, so that it is run once more without either.

    Raises
    ------
    InstanceError
        Where it is no script, starts no training, or does not end in time.
    """
    where = f"{script}, as node {node}"
    text = _script_text(script)
    whole = ["bash", str(script.resolve()), *words]
    leniently = ["bash", "-c", _leniently(text), str(script.resolve()), *words]
    said, calls = "", list[Call]()
    for command in (whole, leniently):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            make_sandbox(folder, script)
            variables = _variables(script, node, num_nodes, num_chips)
            last = run_inside(folder, command, variables, TIME_LIMIT_S, where)
            said, calls = said or last, calls_of(folder)
        outer = _slurm_directives(text)
        for call in calls:
            if call.goes_on:
                outer |= _options(call.words)
                continue
            found = _started(call)
            if found is not None:
                return replace(found, launcher={**outer, **found.launcher}, home=str(folder))
    raise InstanceError(f"starts no training: {_last_words(said, calls)}", where)


def _script_text(script: Path) -> str:
    """Text of a script, whose comments may be in any encoding."""
    raw = read_raw(script, str(script), "shell script")
    if b"\0" in raw:
        raise InstanceError("is no shell script: it holds zero bytes", str(script))
    return raw.decode("utf-8", errors="replace")


def _leniently(text: str) -> str:
    """A script that writes no files and passes over settings that are not there.

    It is to be run by `bash -c`, which knows no BASH_SOURCE.
    """
    text = _LOG.sub(lambda m: "" if re.search(r"[/.]|LOG|log", m[1]) else m[0], text)
    text = _SOURCED.sub(r"\1[ ! -e \2 ] || source \2", text)
    return text.replace("${BASH_SOURCE[0]}", "$0").replace("$BASH_SOURCE", "$0")


def _variables(script: Path, node: int, num_nodes: int, num_chips: int) -> dict[str, object]:
    """What schedulers set on a node; RANK and WORLD_SIZE count nodes, as under Kubernetes operators."""
    return {
        "NODE_RANK": node,
        "NNODES": num_nodes,
        "NUM_NODES": num_nodes,
        "RANK": node,
        "WORLD_SIZE": num_nodes,
        "SLURM_NODEID": node,
        "SLURM_PROCID": node,
        "SLURM_LOCALID": 0,
        "SLURM_NNODES": num_nodes,
        "SLURM_NTASKS": num_nodes,
        "SLURM_JOB_NUM_NODES": num_nodes,
        "SLURM_JOB_ID": 1,
        "SLURM_JOBID": 1,
        "SLURM_JOB_NAME": script.stem,
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NODELIST": "localhost",
        "SLURM_GPUS_ON_NODE": num_chips,
        "KUBERNETES_CONTAINER_RESOURCE_GPU": num_chips,
        "SLURM_SUBMIT_DIR": script.resolve().parent,
        "OMPI_COMM_WORLD_RANK": node,
        "OMPI_COMM_WORLD_SIZE": num_nodes,
        "OMPI_COMM_WORLD_LOCAL_RANK": 0,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
        "HETPLAN_SKIP_CHECKS": 1,
        "HETPLAN_CHIPS": num_chips,
    }


def _last_words(said: str, calls: Sequence[Call]) -> str:
    """Why nothing was started: the script's last line, and what it called instead."""
    last = said.strip().splitlines()[-1] if said.strip() else "it says nothing"
    called = [shlex.join(call.words)[:80] for call in calls]
    return last + (f"; it only calls {called[-1]}" if called else "")


def _started(call: Call) -> NodeStart | None:
    """The training that a recorded call would have started; None where it is something else."""
    words = [word for part in call.words for word in _split(part)]
    for position, word in enumerate(words):
        if _TRAINER.search(word):
            return NodeStart(
                _options(words[:position]), word, tuple(words[position + 1 :]), words[0], call.connections
            )
    return None


def _slurm_directives(text: str) -> dict[str, str]:
    """Options that a batch script gives in its head, for what its srun does not say."""
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    words = [word for line in lines for word in line.split("#")[1].split()[1:]]
    return _options(["srun", *words])


def _split(part: str) -> list[str]:
    """The words of a whole command in one word, as after `bash -c`; any other word as it is."""
    if " " not in part or ".py" not in part:
        return [part]
    try:
        return shlex.split(part)
    except ValueError:  # an open quote: no command
        return [part]


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options of the launchers before the Python file; the later launcher wins."""
    by_mpi = words[0].startswith("mpi")
    short = {"-N": "ntasks-per-node" if by_mpi else "nodes", "-n": "ntasks", "-np": "ntasks"}
    short |= {"-npernode": "ntasks-per-node", "-ppn": "ntasks-per-node"}
    options = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        glued = re.fullmatch(r"(-[Nn])(\d+)", word)
        if glued:
            options[short[glued[1]]] = glued[2]
        elif word in short:
            options[short[word]] = following
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            options[name.replace("_", "-")] = value if equals else following
    return options
