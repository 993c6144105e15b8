"""Orders of node classes along the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import factorial, prod


def count_orders(counts: Sequence[int]) -> int:
    """Distinct arrangements of stages with so many on each class."""
    return factorial(sum(counts)) // prod(factorial(count) for count in counts)


def all_orders(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every distinct arrangement, in lexicographic order."""
    left = list(counts)
    order: list[int] = []

    def extend() -> Iterator[tuple[int, ...]]:
        if not any(left):
            yield tuple(order)
            return
        for node_class, count in enumerate(left):
            if count:
                left[node_class] -= 1
                order.append(node_class)
                yield from extend()
                order.pop()
                left[node_class] += 1

    yield from extend()


def block_orders(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The arrangements in which each class forms one block."""
    used = [node_class for node_class, count in enumerate(counts) if count]

    def extend(blocks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(blocks) == len(used):
            yield tuple(node_class for node_class in blocks for _ in range(counts[node_class]))
            return
        for node_class in used:
            if node_class not in blocks:
                yield from extend((*blocks, node_class))

    yield from extend(())
