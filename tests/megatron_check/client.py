"""Asks a server of checks to run one. Needs neither PyTorch nor Megatron-LM.

    python client.py SOCKET FILE ARGUMENTS

runs FILE as a child of the server, with the environment, directory and standard files of this process.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

KILLED = -1
"""Status of a command that a signal ended."""

GRACE_S = 60
"""What a command may take to stop when its time is over."""


def run(
    server: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    files: Sequence[int],
    timeout_s: int,
    directory: Path,
) -> int:
    """Run a command, as Python takes it, in a directory with three standard files; its exit status."""
    request = {
        "command": list(command),
        "environment": dict(environment),
        "directory": str(directory),
        "timeout_s": timeout_s,
    }
    return ask(server, request, files, timeout_s + GRACE_S)


def ask(server: str, request: dict[str, Any], files: Sequence[int] = (), timeout_s: int = 120) -> int:
    """Hand on one request with its files, and wait for the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(server)
        line = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [line], files) if files else 0
        connection.sendall(line[sent:])
        with connection.makefile() as answer:
            return int(answer.readline() or KILLED)


if __name__ == "__main__":
    server, *command = sys.argv[1:]
    sys.exit(run(server, command, os.environ, (0, 1, 2), 600, Path.cwd()))
