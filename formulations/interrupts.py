"""Ctrl-C around compiled code, which cannot be left half-way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Let Ctrl-C wait until a solver has ended or been loaded, then act on it.

    Python runs the handler of a signal when the solver gives control back, which is amid the conversion of
    its answer; OR-Tools 9.15 drops what the handler raises there, and the search would go on. Amid the
    loading of its compiled modules the handler's exception becomes an ImportError.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[0])
