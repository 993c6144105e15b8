"""A pipeline simulated the slow way: the graph of all pieces written out, and its longest path.

Shares nothing with the product: orders are spelled out from the words of the Megatron-LM paper, and
times are found by relaxing every edge until nothing changes.
"""

from __future__ import annotations

import itertools

Piece = tuple[str, int, int, int]  # pass, stage, chunk, micro-batch


def order_in_words(p: int, s: int, m: int, v: int) -> list[tuple[str, int, int]]:
    """What stage s does: (pass, chunk, micro-batch), warm-up first, then pairs, then the rest."""
    forwards = []
    for group in range(0, m, p):
        for chunk in range(v):
            forwards += [("F", chunk, k) for k in range(group, min(group + p, m))]
    backwards = [("B", v - 1 - chunk, k) for _, chunk, k in forwards]
    warmup = p - s - 1 if v == 1 else 2 * (p - s - 1) + (v - 1) * p
    work = []
    while forwards or backwards:
        if forwards and warmup > 0:
            work.append(forwards.pop(0))
            warmup -= 1
        elif forwards:
            work += [forwards.pop(0), backwards.pop(0)]
        else:
            work.append(backwards.pop(0))
    return work


def longest_path(
    forward: list[list[float]], backward: list[list[float]], send: list[float], m: int
) -> dict[Piece, tuple[float, float]]:
    """Start and end of every piece."""
    p, v = len(forward), len(forward[0])
    length: dict[Piece, float] = {}
    edges: list[tuple[Piece, Piece, float]] = []
    for s in range(p):
        order = [(name, s, chunk, k) for name, chunk, k in order_in_words(p, s, m, v)]
        edges += [(a, b, 0.0) for a, b in itertools.pairwise(order)]
        for piece in order:
            length[piece] = (forward if piece[0] == "F" else backward)[s][piece[2]]
    # Virtual stage x = chunk * p + stage; activations go from x to x + 1, gradients back.
    for x in range(p * v - 1):
        here, there = (x % p, x // p), ((x + 1) % p, (x + 1) // p)
        delay = send[here[0]] if p > 1 else 0.0
        for k in range(m):
            edges.append((("F", *here, k), ("F", *there, k), delay))
            edges.append((("B", *there, k), ("B", *here, k), delay))
    start = dict.fromkeys(length, 0.0)
    changed = True
    while changed:
        changed = False
        for a, b, delay in edges:
            earliest = start[a] + length[a] + delay
            if earliest > start[b]:
                start[b] = earliest
                changed = True
    return {piece: (start[piece], start[piece] + length[piece]) for piece in length}
