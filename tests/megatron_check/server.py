"""Runs checks in children forked from a process that has imported PyTorch and Megatron-LM already.

    python -m tests.megatron_check.server DESCRIPTOR

Importing them takes some five seconds of every check. Each check runs as it would in a Python of its own:
with its own command line, environment, directory and files, and from the same state as any other, for
nothing that it does reaches the process that it was forked from.

DESCRIPTOR is a listening Unix socket. Each connection brings one request, a line of JSON:

- `{"serve": PATH, "at": SOCKET}` makes a process that serves SOCKET with the Megatron-LM that PATH holds, or
  with the installed one where PATH is empty; it listens once the answer is there.
- `{"command": [...], "environment": {...}, "directory": DIR, "timeout_s": N}`, with the three standard files,
  runs `-m MODULE ARGUMENTS`, `-c CODE ARGUMENTS` or `FILE ARGUMENTS`, as Python takes them. The answer is the
  exit status; none comes where a signal ended the child. When its time is over it stops with an error.

All end with the standard input of the first.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
import warnings
from typing import Any

IMPORTED = (
    "megatron.core.models.gpt.experimental_attention_variant_module_specs",
    "megatron.core.models.hybrid.hybrid_model",  # from core 0.18 on
    "megatron.core.models.mamba.mamba_model",  # before
    "megatron.core.tokenizers.text.libraries.null_tokenizer",
    "megatron.training.arguments",
    "megatron.training.theoretical_memory_usage",
    "megatron.training.training",
    "torch.testing._internal.distributed.fake_pg",
)
"""What checks import; a version has not all of them."""


def main() -> None:
    """Serve the socket that the command line names, with PyTorch alone."""
    from . import collectives, standins

    standins.install(9)
    collectives.wrap()
    _serve(socket.socket(fileno=int(sys.argv[1])))


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def _serve(listener: socket.socket) -> None:
    """Fork a child for each connection, until the standard input ends."""
    while True:
        _bury()
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready and not os.read(0, 1):
            return
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection)
        connection.close()


def _bury() -> None:
    """Take notice of children that have ended, which nobody waits for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> None:
    """Do, in a child, what a connection asks for. Ends the process."""
    line, files = b"", list[int]()
    while not line.endswith(b"\n"):
        part, more, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        line, files = line + part, files + more
        if not part:
            os._exit(1)
    request = json.loads(line)
    if "serve" in request:
        listener = _listen(request["at"])
        _import_megatron(request["serve"])
        connection.sendall(b"0\n")
        connection.close()
        _serve(listener)
        os._exit(0)
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(request["timeout_s"])
    status = _run(request, files)
    connection.sendall(b"%d\n" % status)
    os._exit(status)


def _stop(*_: Any) -> None:
    raise TimeoutError("the time of this check is over")


def _import_megatron(path: str) -> None:
    if path:
        sys.path.insert(1, path)  # where PYTHONPATH would have it, after the directory of the tests
    warnings.simplefilter("ignore")
    for module in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    warnings.resetwarnings()


def _run(request: dict[str, Any], files: list[int]) -> int:
    """Run a command with its files, environment and directory; its exit status."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    status = 0
    try:
        _run_python(request["command"])
    except SystemExit as leave:
        status = _status_of(leave.code)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _run_python(command: list[str]) -> None:
    kind, *others = command
    if kind == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *others[1:]]
        exec(others[0], {"__name__": "__main__"})
    else:
        sys.argv = command
        runpy.run_path(kind, run_name="__main__")


def _status_of(code: Any) -> int:
    if code is None or isinstance(code, int):
        return int(code or 0) & 255
    print(code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
