"""Which layers the stages of an interleaved pipeline hold in all, by the stages of each class up to there.

A set of sums is a row of bits, in words of 64: bit x stands for x layers in all. Arrays of them have an axis
of the numbers of stages by class that are possible up to a stage.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Bools, Ints

Sums = NDArray[np.uint64]
"""[..., numbers, word]"""
WORD = 64
WORDS_AT_ONCE = 60_000
"""Words that are held together, 0.5 MB, so that they stay near the processor. A guess."""


class LayerSums:
    """Sums of layers by numbers of stages of each class.

    Parameters
    ----------
    fewest, most
        [class] stages of each class in the whole pipeline.
    """

    def __init__(self, fewest: Ints, most: Ints, num_stages: int, num_layers: int) -> None:
        self.num_stages, self.num_layers = num_stages, num_layers
        most = np.minimum(most, num_stages)
        counts = np.array(list(product(*(range(k + 1) for k in most.tolist()))), dtype=np.int64)
        total = counts.sum(axis=1)
        stride = np.append(np.cumprod((most + 1)[::-1])[-2::-1], 1).astype(np.int64)
        place = np.zeros(len(counts), dtype=np.int64)
        for t in range(num_stages + 1):
            at = np.flatnonzero(total == t)
            place[at] = np.arange(len(at))
        self.sizes = [int((total == t).sum()) for t in range(num_stages + 1)]
        """[stage] of the numbers of stages by class that are possible before it, and at last behind all."""
        self.moves: list[list[tuple[Ints, Ints]]] = []
        """[stage][class] numbers before a stage that may be followed by one of the class, and after it."""
        for s in range(num_stages):
            before = np.flatnonzero(total == s)
            room = [np.flatnonzero(counts[before, c] < k) for c, k in enumerate(most.tolist())]
            self.moves.append([(at, place[before[at] + stride[c]]) for c, at in enumerate(room)])
        words = num_layers // WORD + 1
        self.nothing: Sums = np.zeros((self.sizes[0], words), dtype=np.uint64)
        """Before the first stage, [numbers, word]: no layers."""
        self.nothing[0, 0] = 1
        self.all: Sums = np.zeros((self.sizes[num_stages], words), dtype=np.uint64)
        """Behind the last stage: all layers, where the numbers of stages may be these."""
        self.is_end: Bools = (counts[total == num_stages] >= fewest).all(axis=1)
        self.all[self.is_end, num_layers // WORD] = np.uint64(1) << np.uint64(num_layers % WORD)

    def behind(self, s: int, before: Sums, of_class: Ints, layers: Ints) -> Sums:
        """Sums behind stages s of a class with so many layers, from those before each [stage, numbers]."""
        found: Sums = np.zeros((len(layers), self.sizes[s + 1], before.shape[2]), dtype=np.uint64)
        for c, n, rows in _alike(of_class, layers):
            old, new = self.moves[s][c]
            found[np.ix_(rows, new)] = _raised(before[np.ix_(rows, old)], n)
        return found

    def before(self, s: int, behind: Sums, of_class: Ints, layers: Ints) -> Sums:
        """The same from those behind to those before each."""
        found: Sums = np.zeros((len(layers), self.sizes[s], behind.shape[2]), dtype=np.uint64)
        for c, n, rows in _alike(of_class, layers):
            old, new = self.moves[s][c]
            found[np.ix_(rows, old)] = _lowered(behind[np.ix_(rows, new)], n)
        return found


def _alike(of_class: Ints, layers: Ints) -> list[tuple[int, int, Ints]]:
    """Classes and numbers of layers that occur, with the places where they do."""
    width = int(layers.max(initial=0)) + 1
    key = of_class * width + layers
    order = _sorted(key, int(key.max(initial=0)))
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    rows = np.split(order, starts[1:]) if len(starts) else []
    return [(*divmod(int(key[some[0]]), width), some) for some in rows]


def _sorted(numbers: Ints, most: int) -> Ints:
    """Places of numbers up to so many in their order; those of 16 bits are sorted several times faster."""
    order: Ints = np.argsort(numbers.astype(np.uint16) if most < 1 << 16 else numbers, kind="stable")
    return order


def _raised(sums: Sums, n: int) -> Sums:
    """All sums larger by n; those beyond the words are lost."""
    words, bits = divmod(n, WORD)
    raised = np.zeros_like(sums)
    raised[..., words:] = sums[..., : sums.shape[-1] - words] << np.uint64(bits)
    if bits and words + 1 < sums.shape[-1]:
        raised[..., words + 1 :] |= sums[..., : -words - 1] >> np.uint64(WORD - bits)
    return raised


def _lowered(sums: Sums, n: int) -> Sums:
    """All sums less by n; those below 0 are lost."""
    words, bits = divmod(n, WORD)
    lowered = np.zeros_like(sums)
    lowered[..., : sums.shape[-1] - words] = sums[..., words:] >> np.uint64(bits)
    if bits and words + 1 < sums.shape[-1]:
        lowered[..., : -words - 1] |= sums[..., words + 1 :] << np.uint64(WORD - bits)
    return lowered


def joined(sums: Sums, group: Ints, num_groups: int) -> Sums:
    """The sums of all in a group together, [group, ...]."""
    found: Sums = np.zeros((num_groups, *sums.shape[1:]), dtype=np.uint64)
    if len(sums):
        order = _sorted(group, num_groups - 1)
        first = np.flatnonzero(np.diff(group[order], prepend=-1))
        found[group[order[first]]] = np.bitwise_or.reduceat(sums[order], first, axis=0)
    return found


def meet(some: Sums, others: Sums) -> Bools:
    """Whether each of some has a sum in common with the other, [item, numbers] -> [item]."""
    both = (some & others).reshape(len(some), int(np.prod(some.shape[1:])))
    return np.asarray(np.bitwise_or.reduce(both, axis=1) != 0)


def pairs_meet(some: Sums, i: Ints, others: Sums, j: Ints) -> Bools:
    """The same for pairs of them, [pair]."""
    found: Bools = np.zeros(len(i), dtype=np.bool_)
    at_once = max(WORDS_AT_ONCE // max(int(np.prod(some.shape[1:])), 1), 1)
    for begin in range(0, len(i), at_once):
        part = slice(begin, begin + at_once)
        found[part] = meet(some[i[part]], others[j[part]])
    return found
