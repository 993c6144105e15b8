"""Words of each rank, where a launch directory runs a file of its own on all of them (`run_stage.py`)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from planner.launchers.read.run_script import TIME_LIMIT_S, NodeStart
from planner.launchers.read.sandbox import make_sandbox, run_inside

_RUN_AS_RANKS = """
import json, os, runpy, sys
entry, first, count, *words = sys.argv[1:]
found = []
os.execv = lambda _program, command: found.append(command[3:])
for rank in range(int(first), int(first) + int(count)):
    os.environ["RANK"] = str(rank)
    sys.argv = [entry, *words]
    runpy.run_path(entry, run_name="__main__")
with open("arguments", "w") as file:
    json.dump(found, file)
"""
"""Runs the file as each rank in one process, and writes down what each would have become: Python, `-u`, the
script of Megatron-LM, its words."""


def arguments_of_ranks(start: NodeStart, first: int, count: int, where: str) -> list[tuple[str, ...]]:
    """Words of the ranks of one node, of which `first` is the first.

    Raises
    ------
    InstanceError
        Where the file does not end in time.
    """
    if os.path.basename(start.entry_point) != "run_stage.py":
        return [start.arguments] * count
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        make_sandbox(folder)
        command = [sys.executable, "-c", _RUN_AS_RANKS, start.entry_point, str(first), str(count)]
        run_inside(folder, [*command, *start.arguments], {"MEGATRON_PATH": folder}, TIME_LIMIT_S, where)
        return [tuple(words) for words in json.loads((folder / "arguments").read_text())]
