"""Processes that bound parts of a search end with it, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest

from planner.search.walks.part import Limits
from planner.search.walks.relaxer import Relaxer
from planner.search.workers import ROUNDS_ALONE, Task, Workers

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="other processes are forked"
)


class Stub:
    """Bounds a part by the process that did."""

    def bound(self, *args: Any, **kwargs: Any) -> int:
        return os.getpid()


def search(line: Connection) -> None:
    """Have two processes bound parts, then go on for long."""
    workers = Workers(cast(Relaxer, Stub()), 2)
    workers.rounds = ROUNDS_ALONE
    line.send(workers.bounds([Task(0, Limits((), ()), 1, 1.0)] * 2))
    time.sleep(60)


def test_a_search_that_is_killed_leaves_no_process_behind() -> None:
    """They waited for work for ever, and kept the reader of what the search printed waiting, too."""
    context = multiprocessing.get_context("fork")
    line, other = context.Pipe(duplex=False)
    process = context.Process(target=search, args=(other,))
    process.start()
    other.close()
    assert process.pid not in line.recv()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    # All processes that hold the other end are gone once it is closed.
    assert line.poll(10)
    with pytest.raises(EOFError):
        line.recv()
