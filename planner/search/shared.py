"""Tables that searches of one process share: what a problem's neighbours have worked out already.

Problems that differ in their batch alone, or in the degrees that are allowed, price the same pieces, so that
who meets them one after the other need not work the tables out again. Only values that follow from the key
are kept, to the last digit: an answer does not depend on what was searched before, or in which order.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import numpy as np

from planner.cost.prices import Degrees
from planner.data import load
from planner.data.problem import Problem

T = TypeVar("T")

MOST_BYTES = 128 * 2**20
"""Memory for shared tables [bytes]; the ones that were not asked for the longest go first."""

_NO_PART_OF_A_TABLE: Any = {
    "name": True,
    "note": True,
    "workload": {"global_batch_size", "train_iters"},
    "options": {
        *("time_limit_s", "gap", "virtual_gap", "top", "workers", "solver", "seed"),
        *("pin", "forbid", "use", "keep_class_order"),
    },
}
"""What changes which tables are asked for, and none of their values."""


class Shared:
    """Values by key, the least recently used given up where they take too much memory."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._values: OrderedDict[object, tuple[object, int]] = OrderedDict()
        self.num_bytes = 0
        self.hits = 0

    def value(self, key: object, make: Callable[[], T]) -> T:
        """The value of a key, made where it is not known. Whoever gets it must not change it."""
        if key in self._values:
            self._values.move_to_end(key)
            self.hits += 1
            return cast(T, self._values[key][0])
        made = make()
        size = _size_bytes(made)
        self._values[key] = made, size
        self.num_bytes += size
        while self.num_bytes > self._most:
            _, (_, freed) = self._values.popitem(last=False)
            self.num_bytes -= freed
        return made


_current: Shared | None = None


def share(shared: Shared | None) -> None:
    """Let all searches from now on share tables; None ends that."""
    global _current
    _current = shared


@contextmanager
def sharing() -> Iterator[None]:
    """Let searches share tables for a while, where they do not share any already."""
    if current() is not None:
        yield
        return
    share(Shared())
    try:
        yield
    finally:
        share(None)


def current() -> Shared | None:
    """What searches share now."""
    return _current


def table_key(problem: Problem) -> str:
    """Hash of all of a problem that tables depend on."""
    file = load.problem_file(problem)
    told = [wish for wish in problem.options.forbid if wish.startswith(("recompute=", "stages="))]
    text = file.model_dump_json(exclude=_NO_PART_OF_A_TABLE) + ",".join(sorted(told))
    return hashlib.sha256(text.encode()).hexdigest()


def degrees_key(degrees: Degrees, choice: int) -> tuple[object, ...]:
    """One row of degrees."""
    values = (getattr(degrees, field.name) for field in fields(Degrees))
    return tuple(v[choice].item() if isinstance(v, np.ndarray) else v for v in values)


def _size_bytes(value: object) -> int:
    """Bytes of the arrays that an object holds, which can no longer be changed from here on."""
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_size_bytes, value.values()))
    if isinstance(value, tuple):
        return sum(map(_size_bytes, value))
    if not is_dataclass(value):
        return 8
    return 500 + sum(_size_bytes(getattr(value, field.name)) for field in fields(value))
