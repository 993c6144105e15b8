"""Another process that answers (`planner.explain.asking`): questions on standard input, answers on output.

    python -m planner.explain.worker

Messages are pickled. When the process that asks ends, however it ends, standard input closes and this one
goes at once, in the middle of a question as well. A question that raises ends it, too: whoever asked sees
that the answer never comes.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from typing import Any, BinaryIO

READY = "ready"
"""First message, once everything is imported and the grounds of the questions are here."""


def main() -> None:
    """Answer until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which then ends us
    # Solvers write to standard output whatever they are told: keep the pipe for ourselves.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, messages), daemon=True).start()
    try:
        _answer(messages, answers)
    finally:
        # An ordinary end would wait for the listener's lock on standard input, and abort.
        os._exit(1)


def _answer(messages: queue.SimpleQueue[Any], answers: BinaryIO) -> None:
    """Give an answer for each question, all with the same grounds."""
    import planner.search.driver
    import planner.simulate.evaluate  # noqa: F401
    from planner.garbage import collect_rarely
    from planner.search.shared import sharing

    collect_rarely()
    grounds = messages.get()
    _send(READY, answers)
    with sharing():
        while True:
            question, limit_s = messages.get()
            _send(grounds.answer(question, limit_s), answers)


def _send(message: object, out: BinaryIO) -> None:
    pickle.dump(message, out)
    out.flush()


def _listen(source: BinaryIO, messages: queue.SimpleQueue[Any]) -> None:
    """Pass on messages; end the process when their source is gone."""
    try:
        while True:
            messages.put(pickle.load(source))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
