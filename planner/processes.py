"""Processes of our own beside this one, and how many are worth it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def started(
    module: str, *, stderr: IO[bytes] | int, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A new process that runs a module of ours, with pipes to its standard input and from its output.

    A new interpreter, not a copy of this process: that would take over locks of a solver's threads without
    the threads. Whatever ends this process closes the pipes, which the module takes as the word to end too.

    Raises
    ------
    OSError
        Where the system has no room for one.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        # The same modules as here, wherever they come from.
        env={
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        },
        bufsize=0,
    )
