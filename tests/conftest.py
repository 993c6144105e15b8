"""What holds for every test."""

from __future__ import annotations

import gc
import signal

from planner.garbage import collect_rarely


def pytest_configure() -> None:
    """Hear Ctrl-C, and let processes that tests start hear it, as in a terminal.

    A shell that puts the tests in its background hands them on with Ctrl-C ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Spare what is there for good, thousands of tests and all modules, from every look for dead objects."""
    collect_rarely()
    gc.freeze()
