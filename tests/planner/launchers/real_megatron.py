"""Runs the real Megatron-LM, each time in a child of one process that has imported it already."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.megatron_check import client

ROOT = Path(__file__).parents[3]


def run(
    python: str,
    *command: str,
    older: str | None = None,
    environment: Mapping[str, str] = os.environ,
    timeout_s: int = 600,
) -> subprocess.CompletedProcess[str]:
    """Run `python *command` in the repository, on the newest Megatron-LM or on an older one."""
    environment = dict(environment)
    if older is not None:
        environment["PYTHONPATH"] = str(_wheel(python, older))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as wrong, open(os.devnull) as none:
        files = (none.fileno(), out.fileno(), wrong.fileno())
        status = client.run(server(python, older), command, environment, files, timeout_s, ROOT)
        out.seek(0)
        wrong.seek(0)
        return subprocess.CompletedProcess([python, *command], status, out.read(), wrong.read())


def server(python: str, older: str | None = None) -> str:
    """Socket of a process that has imported the newest Megatron-LM or an older one."""
    return _server(python, "" if older is None else str(_wheel(python, older)))


@cache
def _server(python: str, path: str) -> str:
    """Socket of a process that has imported the Megatron-LM that a path holds, or the installed one."""
    first = _first_server(python)
    at = f"{first}-{Path(path).name}"
    assert client.ask(first, {"serve": path, "at": at}) == 0, Path(f"{first}.log").read_text()
    return at


def _wheel(python: str, version: str) -> Path:
    wheel = Path(python).parents[1] / "older" / version
    assert wheel.is_dir(), f"{wheel} is missing; run tests/setup_megatron.sh again"
    return wheel


@cache
def _first_server(python: str) -> str:
    """Socket of a process that has imported PyTorch; it ends when its standard input does, with this one."""
    folder = tempfile.mkdtemp(prefix="hetplan-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    at = f"{folder}/megatron"
    with socket.socket(socket.AF_UNIX) as listener, open(f"{at}.log", "w") as log:
        listener.bind(at)
        listener.listen()
        listener.set_inheritable(True)
        command = [python, "-m", "tests.megatron_check.server", str(listener.fileno())]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
        )
    atexit.register(_end, process)
    return at


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
