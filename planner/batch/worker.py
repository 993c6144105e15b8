"""The process of a local worker: takes jobs on standard input, gives answers on standard output.

    python -m planner.batch.worker

It lives for many jobs and imports once. A line of JSON is a message. When the batch process ends,
however it ends, standard input closes and the worker goes at once, in the middle of a job as well.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import sys
import threading
import traceback
from dataclasses import asdict
from typing import Any, BinaryIO

from planner.batch.answer import Answer
from planner.batch.executor import Task
from planner.batch.job_spec import Limits

ONE_THREAD = {
    name: "1"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
}
"""Every worker has a core of its own: threads of numerical libraries would take turns on it."""

READY = b"ready"
"""First message of a worker, once it has imported everything."""


def encoded_task(task: Task) -> bytes:
    """A job as a message."""
    return json.dumps(asdict(task)).encode() + b"\n"


def decoded_task(line: bytes) -> Task:
    """The job of a message."""
    values: dict[str, Any] = json.loads(line)
    return Task(**{**values, "limits": Limits(**values["limits"])})


def encoded_answer(answer: Answer) -> bytes:
    """An answer as a message."""
    values = asdict(answer)
    values["result"] = None if answer.result is None else base64.b64encode(answer.result).decode()
    return json.dumps(values, allow_nan=False).encode() + b"\n"


def decoded_answer(line: bytes) -> Answer:
    """The answer of a message."""
    values: dict[str, Any] = json.loads(line)
    if values["result"] is not None:
        values["result"] = base64.b64decode(values["result"])
    return Answer(**values)


def main() -> None:
    """Work until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the batch process, which then ends us
    # Solvers write to standard output whatever they are told: keep the pipe for ourselves.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, tasks), daemon=True).start()
    from planner.batch.solving import prepare, solve

    prepare()
    answers.write(READY + b"\n")
    answers.flush()
    while True:
        try:
            answers.write(encoded_answer(solve(decoded_task(tasks.get()))))
        except BaseException:
            # An ordinary end would wait for the listener's lock on standard input, and abort.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        answers.flush()


def _listen(source: BinaryIO, tasks: queue.SimpleQueue[bytes]) -> None:
    """Pass on jobs; end the process when their source is gone."""
    for line in source:
        tasks.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
