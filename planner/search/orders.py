"""Orders of node classes along the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import factorial, prod

from planner.cost.prices import Floats


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


def wrapped_orders(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Those in which one class forms a block at either end, and each other one a block between them."""
    used = [node_class for node_class, count in enumerate(counts) if count]
    for outer in used if len(used) > 1 else []:
        inner = [0 if node_class == outer else count for node_class, count in enumerate(counts)]
        for behind in sorted({1, counts[outer] // 2, counts[outer] - 1} - {0, counts[outer]}):
            for order in block_orders(inner):
                yield (*(outer,) * (counts[outer] - behind), *order, *(outer,) * behind)


def likely_orders(counts: Sequence[int], tied_s: Floats) -> Iterator[tuple[int, ...]]:
    """Orders with few changes of class; with ends alike as well, where these share an embedding sooner.

    `tied_s` is what sharing takes with these classes at the ends, [class, class] [s].
    """
    yield from block_orders(counts)
    used = [node_class for node_class, count in enumerate(counts) if count]
    if min(tied_s[c, c] for c in used) < max(tied_s[one, other] for one in used for other in used):
        yield from wrapped_orders(counts)
