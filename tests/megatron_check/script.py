"""Runs a launch script with recorders in place of the launchers, and says what every rank would run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .refusal import Refused

_SCRIPTS = ("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py")

_SHELL_RECORDER = """#!/bin/sh
set -C
{{ printf '%s\\0' "$#" "$@"; env -0; }} >'{record}'
"""

_PYTHON_RECORDER = """import os, sys
variables = [f"{{name}}={{value}}" for name, value in os.environ.items()]
words = [str(len(sys.argv) - 1), *sys.argv[1:], *variables]
open({record!r}, "x").write("".join(f"{{word}}\\0" for word in words))
"""

_RECORDERS = {"torchrun": _SHELL_RECORDER, **dict.fromkeys(_SCRIPTS, _PYTHON_RECORDER)}
"""Stand in for torchrun and for Megatron's scripts, and write down how they are called, once: how many words
there are, the words and the environment, each ended by a zero byte."""


@dataclass(frozen=True)
class NodeStart:
    """What the script starts on one node."""

    launcher: dict[str, str]
    """Options of torchrun, by their name with dashes."""
    entry_point: str
    """Python file that torchrun runs on every rank."""
    arguments: tuple[str, ...]
    """Arguments that follow it."""
    environment: dict[str, str]
    """Environment of torchrun."""

    @property
    def num_processes(self) -> int:
        """Ranks on the node."""
        return int(self.launcher.get("nproc-per-node", "1"))


def start_as_node(script: str, node: int, settings: Mapping[str, str]) -> NodeStart:
    """Run the script with NODE_RANK set, as it would run on that node.

    Raises
    ------
    Refused
        Where the script stops before it starts torchrun; the message is the script's own.
    """
    with _recorders() as (directory, record):
        environment = {
            **os.environ,
            "MEGATRON_PATH": str(directory),
            "PATH": f"{directory}{os.pathsep}{os.environ.get('PATH', '')}",
            "NODE_RANK": str(node),
            **settings,
        }
        done = subprocess.run(
            ["bash", script], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        if not record.exists():
            raise Refused(
                f"node {node}: the script started nothing: {done.stderr.strip() or done.stdout.strip()}"
            )
        return _split(*_read(record))


def arguments_of_ranks(start: NodeStart, first_rank: int) -> list[tuple[str, ...]]:
    """Megatron's arguments on every rank of a node.

    Usually torchrun gives all of them the same. Where it runs a script of the directory instead of
    pretrain_gpt.py, that script is run as each rank, and what it hands on is written down.
    """
    if os.path.basename(start.entry_point) in _SCRIPTS:
        return [start.arguments] * start.num_processes
    found = []
    for rank in range(first_rank, first_rank + start.num_processes):
        with _recorders() as (directory, record):
            environment = {**start.environment, "MEGATRON_PATH": str(directory), "RANK": str(rank)}
            subprocess.run(
                [sys.executable, start.entry_point, *start.arguments],
                env=environment,
                capture_output=True,
                timeout=120,
                check=True,
            )
            found.append(tuple(_read(record)[0]))
    return found


@contextmanager
def _recorders() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        record = directory / "record"
        for program, text in _RECORDERS.items():
            path = directory / program
            path.write_text(text.format(record=str(record)))
            path.chmod(0o755)
        yield directory, record


def _read(record: Path) -> tuple[list[str], dict[str, str]]:
    """Words that followed the program, and its environment."""
    count, *words = record.read_text().split("\0")[:-1]
    variables = (word.partition("=") for word in words[int(count) :])
    return words[: int(count)], {name: value for name, _, value in variables}


def _split(words: list[str], environment: dict[str, str]) -> NodeStart:
    """Options of torchrun, the Python file, and what follows it."""
    launcher = {}
    position = 0
    while not words[position].endswith(".py"):
        name, equals, value = words[position].lstrip("-").partition("=")
        if not equals:
            position += 1
            value = words[position]
        launcher[name.replace("_", "-")] = value
        position += 1
    return NodeStart(launcher, words[position], tuple(words[position + 1 :]), environment)
