"""Writes down the collectives that a rank issues, and lets the fake backend answer with something.

Torch's fake backend moves nothing, so that buffers would hold whatever was in memory. Each collective
is therefore answered as if all other ranks held what this one holds.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any, NamedTuple


class Signature(NamedTuple):
    """Where a function of torch.distributed takes the tensor that it moves, its result, and its group."""

    moved: tuple[str, int]
    result: tuple[str, int] | None
    group: int


SIGNATURES = {
    "all_reduce": Signature(("tensor", 0), None, 2),
    "broadcast": Signature(("tensor", 0), None, 2),
    "all_gather_into_tensor": Signature(("input_tensor", 1), ("output_tensor", 0), 2),
    "reduce_scatter_tensor": Signature(("input", 1), ("output", 0), 3),
    "all_gather": Signature(("tensor", 1), ("tensor_list", 0), 2),
    "reduce_scatter": Signature(("input_list", 1), ("output", 0), 3),
    "all_to_all_single": Signature(("input", 1), ("output", 0), 4),
    "isend": Signature(("tensor", 0), None, 2),
    "irecv": Signature(("tensor", 0), ("tensor", 0), 2),
}


class Event(NamedTuple):
    """One kind of collective; equal ones are counted."""

    phase: str
    operation: str
    group: str
    group_size: int
    size_bytes: int


class Recorder:
    """Counts collectives by phase, operation, group and size while it is switched on."""

    def __init__(self) -> None:
        self.counts: Counter[Event] = Counter()
        self._phase = "other"
        self._on = False
        self._inside = False

    def install(self) -> None:
        """Watch torch.distributed from now on. Before Megatron is imported, unless `wrap` was called."""
        global _installed
        wrap()
        _installed = self

    def phase(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its collectives under the name of a phase."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            before, self._phase = self._phase, name
            try:
                return function(*args, **kwargs)
            finally:
                self._phase = before

        return run

    def only_during(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with the recorder switched on while it runs."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._on = True
            try:
                return function(*args, **kwargs)
            finally:
                self._on = False

        return run

    def table(self) -> list[dict[str, Any]]:
        """One row a kind of collective, with its count."""
        return [{**event._asdict(), "count": count} for event, count in self.counts.items()]

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """One collective may call another; only the outer one counts."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def note(self, name: str, tensor: Any, group: Any) -> None:
        """Count one, where it is an outer one of the part that is watched."""
        if not self._on or self._inside:
            return
        import torch.distributed as dist

        group = group if group is not None else dist.group.WORLD
        parts = tensor if isinstance(tensor, list | tuple) else [tensor]
        size_bytes = sum(part.numel() * part.element_size() for part in parts)
        self.counts[Event(self._phase, name, group.group_desc, dist.get_world_size(group), size_bytes)] += 1


_installed: Recorder | None = None


@cache
def wrap() -> None:
    """Let torch.distributed be watched. Before Megatron is imported, which binds its functions by name.

    Without an installed recorder all is as torch has it.
    """
    import torch.distributed as public
    from torch.distributed import distributed_c10d as private

    for name, signature in SIGNATURES.items():
        wrapped = _wrap(name, signature, getattr(private, name))
        setattr(private, name, wrapped)
        setattr(public, name, wrapped)
    batched = private.batch_isend_irecv

    @wraps(batched)
    def batch_isend_irecv(operations: list[Any]) -> Any:
        if _installed is None:
            return batched(operations)
        for operation in operations:
            _installed.note(operation.op.__name__, operation.tensor, operation.group)
        with _installed.quietly():
            works = batched(operations)
            for operation in operations:
                if operation.op.__name__ == "irecv":
                    operation.tensor.data.zero_()
        return works

    public.batch_isend_irecv = private.batch_isend_irecv = batch_isend_irecv


def _wrap(name: str, signature: Signature, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _installed is None:
            return function(*args, **kwargs)
        moved = _argument(args, kwargs, *signature.moved)
        _installed.note(name, moved, _argument(args, kwargs, "group", signature.group))
        for key in ("output_split_sizes", "input_split_sizes"):
            if kwargs.get(key) is not None:
                kwargs[key] = [int(size) for size in kwargs[key]]
        with _installed.quietly():
            work = function(*args, **kwargs)
            if signature.result is not None:
                _answer(name, _argument(args, kwargs, *signature.result), moved)
        return work

    return wrapped


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], name: str, position: int) -> Any:
    if name in kwargs:
        return kwargs[name]
    return args[position] if len(args) > position else None


def _answer(name: str, result: Any, moved: Any) -> None:
    if name == "all_gather_into_tensor":
        part = moved.data.reshape(-1)
        result.data.view(-1).copy_(part.repeat(result.numel() // max(part.numel(), 1)))
    elif name == "reduce_scatter_tensor":
        result.data.view(-1).copy_(moved.data.reshape(-1)[: result.numel()])
    elif name == "all_gather":
        for tensor in result:
            if tensor.shape == moved.shape:
                tensor.data.copy_(moved.data)
            else:
                tensor.data.zero_()
    else:
        result.data.zero_()
