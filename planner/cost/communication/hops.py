"""Time of each pipeline hop, and where that time goes: the one place that search and referee ask.

A hop leads from a stage to the next, and in the backward pass back again. Consecutive stages on one
node class form a *run*; its stages are packed one after the other on the hosts of the class, from
the start of a host, and no run shares a host with another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost.prices import Floats

INSIDE_LATENCY_S = 2e-6
"""Latency of a message between two chips of a host (guess)."""


def hops_inside_host(
    class_of_stage: Sequence[int], stage_size: int | Sequence[int], chips_per_node: Sequence[int]
) -> tuple[bool, ...]:
    """Whether each hop s -> s + 1 stays within one host; the last entry is the hop back to the first stage.

    Parameters
    ----------
    class_of_stage
        Node class of every stage, in pipeline order.
    stage_size
        Chips of a stage: one number for all, or one a stage.
    chips_per_node
        Chips of a node, by node class.
    """
    num_stages = len(class_of_stage)
    if isinstance(stage_size, int) and num_stages > 1 and 2 * stage_size > max(chips_per_node):
        return (False,) * num_stages  # no host holds two stages
    sizes = [stage_size] * num_stages if isinstance(stage_size, int) else stage_size
    host_of_stage: list[tuple[int, int] | None] = []
    run, start = -1, 0
    for s, (node_class, size) in enumerate(zip(class_of_stage, sizes, strict=True)):
        if s == 0 or class_of_stage[s - 1] != node_class:
            run, start = run + 1, 0
        chips = chips_per_node[node_class]
        first_host = start // chips
        start += size
        last_host = (start - 1) // chips
        host_of_stage.append((run, first_host) if first_host == last_host else None)
    return tuple(
        host_of_stage[s] is not None and host_of_stage[s] == host_of_stage[(s + 1) % num_stages]
        for s in range(num_stages)
    )


def hop_send_s(
    send_s: Floats,
    send_inside_s: Floats,
    class_of_stage: Sequence[int],
    stage_size: int,
    chips_per_node: Sequence[int],
) -> Floats:
    """Time of one activation over each hop s -> s + 1, array [stage] in seconds; the last leads to the first.

    Within a host the chips' own links carry it, else the network between the two node classes.

    Parameters
    ----------
    send_s
        [node_class from, node_class to] over the network: `Prices.send_s` of one choice [s].
    send_inside_s
        [node_class] between two stages within a node: `Prices.send_inside_s` of one choice [s].
    class_of_stage, stage_size, chips_per_node
        See `hops_inside_host`.
    """
    inside = hops_inside_host(class_of_stage, stage_size, chips_per_node)
    if len(class_of_stage) == 1:
        return np.zeros(1)
    within, between = send_inside_s.tolist(), send_s.tolist()
    after = (*class_of_stage[1:], class_of_stage[0])
    hops = [
        within[one] if is_inside else between[one][other]
        for one, other, is_inside in zip(class_of_stage, after, inside, strict=True)
    ]
    return np.array(hops)


def block_on_sends(
    forward_s: Floats, backward_s: Floats, hops_s: Floats, *, p2p_overlap: bool
) -> tuple[Floats, Floats, Floats]:
    """Forward, backward and hops as the schedule sees them: where sends block, the sender works longer.

    With overlap a hop delays the receiver alone, and all three come back as they are. Without it the
    sender of each pass is busy for the time of the hop as well, and the hop itself takes no time.

    Parameters
    ----------
    forward_s, backward_s
        [..., stage, chunk] one micro-batch on one chunk [s].
    hops_s
        [..., stage] from `hop_send_s` [s].
    """
    if p2p_overlap:
        return forward_s, backward_s, hops_s
    leaving_s = np.repeat(hops_s[..., None], forward_s.shape[-1], axis=-1)
    returning_s = np.concatenate([leaving_s[..., -1:, :], leaving_s[..., :-1, :]], axis=-2)
    # Nothing follows the forward of the last chunk, nor the backward of the first.
    leaving_s[..., -1, -1] = returning_s[..., 0, 0] = 0.0
    return forward_s + leaving_s, backward_s + returning_s, np.zeros_like(hops_s)
