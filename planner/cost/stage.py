"""Add up the prices of one stage: its time and its synchronisation (`stage_memory.py`: its memory).

Used by the referee for a finished plan and by the search for its coefficients; nothing else turns
prices into a stage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.lazy import lazy
from planner.cost.prices import PARTS, Floats, Prices

REPLICAS = PARTS.index("dp")


@dataclass(frozen=True)
class StageContent:
    """What a stage holds.

    `chunks[v]` lists the layer kinds (indices into `Prices.kinds`) of virtual stage v, in order.
    """

    node_class: int
    chunks: tuple[tuple[int, ...], ...]
    has_embedding: bool
    has_head: bool
    recompute: str
    recompute_layers: int
    recompute_piece: int = 1
    """Layers of which only the first keeps its input, where all are recomputed."""

    @lazy
    def kinds(self) -> tuple[int, ...]:
        """Layer kinds of all chunks."""
        return tuple(k for chunk in self.chunks for k in chunk)

    @lazy
    def count_of_kind(self) -> Counter[int]:
        """Layers of each kind in all chunks."""
        return Counter(self.kinds)

    def recomputed(self, chunk: tuple[int, ...]) -> Counter[int]:
        """Layers of each kind that one of its chunks recomputes in full."""
        return count_of_kinds(chunk[: self.recompute_layers] if self.recompute == "full" else ())

    @property
    def recomputed_kinds(self) -> tuple[int, ...]:
        """Kinds of the layers that are recomputed in full."""
        if self.recompute != "full":
            return ()
        return tuple(k for chunk in self.chunks for k in chunk[: self.recompute_layers])


@lru_cache(maxsize=4096)
def count_of_kinds(kinds: tuple[int, ...]) -> Counter[int]:
    """Layers of each kind; shared, for reading alone, as stages and plans repeat the same chunks."""
    return Counter(kinds)


def chunk_times(prices: Prices, choice: int, content: StageContent) -> tuple[Floats, Floats]:
    """Forward and backward of one micro-batch on every chunk, arrays [chunk, part] in seconds.

    The embedding belongs to the first chunk, final norm, head and loss to the last.
    """
    c, n = choice, content.node_class
    forward = np.zeros((len(content.chunks), len(PARTS)))
    backward = np.zeros_like(forward)
    for v, chunk in enumerate(content.chunks):
        for kind, count in count_of_kinds(chunk).items():
            forward[v] += count * prices.layer_forward_s[c, kind, n]
            backward[v] += count * prices.layer_backward_s[c, kind, n]
            if content.recompute == "selective":
                backward[v] += count * prices.layer_selective_s[c, kind, n]
        for kind, count in content.recomputed(chunk).items():
            backward[v] += count * prices.layer_full_s[c, kind, n]
    if content.has_embedding:
        forward[0] += prices.embedding_forward_s[c, n]
        backward[0] += prices.embedding_backward_s[c, n]
    if content.has_head:
        forward[-1] += prices.head_forward_s[c, n]
        backward[-1] += prices.head_backward_s[c, n]
        if content.recompute == "selective":
            # Layers that predict further tokens hold the same modules; of whole layers only the method
            # uniform recomputes them (core/transformer/multi_token_prediction.py), which plans do not use.
            backward[-1] += prices.predictions_selective_s[c, n]
    if prices.scales_s is not None:
        forward[:, REPLICAS] += prices.scales_s[c, n]
        backward[:, REPLICAS] += prices.scales_s[c, n]
    return forward, backward


def _once(
    choice: int, content: StageContent, layer: Floats, embedding: Floats, head: Floats, beside: Floats
) -> float:
    """Sum of a once-a-step price over the pieces of a stage [s]; `beside`: of a head beside the embedding."""
    c, n = choice, content.node_class
    total = float(sum(count * layer[c, kind, n] for kind, count in content.count_of_kind.items()))
    if content.has_embedding:
        total += float(embedding[c, n])
    if content.has_head:
        total += float((beside if content.has_embedding else head)[c, n])
    return total


def exposed_reduce_s(prices: Prices, choice: int, content: StageContent, backward_s: float) -> float:
    """Gradient reduction that the last micro-batch's backward does not hide [s].

    The one bucket of a later stage hides behind nothing of its own; with virtual stages that holds for the
    layers of its first, the others are done before. Never less than with buckets, so that bounds, which take
    all stages to have them, stay bounds.
    """
    total = _once(
        choice,
        content,
        prices.layer_reduce_s,
        prices.embedding_reduce_s,
        prices.head_reduce_s,
        prices.head_beside_embedding_reduce_s,
    )
    tail = float(prices.reduce_tail_s[choice, content.node_class])
    in_buckets = max(0.0, total - prices.hidden_fraction * backward_s) + tail
    if content.has_embedding or not prices.later_stages_have_one_bucket:
        return in_buckets
    if len(content.chunks) > 1:
        kinds = count_of_kinds(content.chunks[0])
        total = sum(n * float(prices.layer_reduce_s[choice, k, content.node_class]) for k, n in kinds.items())
    return max(in_buckets, total)


def exposed_gather_s(prices: Prices, choice: int, content: StageContent, forward_s: float) -> float:
    """Parameter gathering that the first micro-batch's forward does not hide [s]."""
    total = _once(
        choice,
        content,
        prices.layer_gather_s,
        prices.embedding_gather_s,
        prices.head_gather_s,
        prices.head_beside_embedding_gather_s,
    )
    tail = float(prices.gather_tail_s[choice, content.node_class])
    return max(0.0, total - prices.hidden_fraction * forward_s) + tail


def slowed_s(prices: Prices, choice: int, content: StageContent) -> float:
    """Synchronisation within the optimizer's price: what nothing hides, and what slows products [s]."""
    reduce_s = _once(
        choice,
        content,
        prices.layer_reduce_s,
        prices.embedding_reduce_s,
        prices.head_reduce_s,
        prices.head_beside_embedding_reduce_s,
    )
    gather_s = _once(
        choice,
        content,
        prices.layer_gather_s,
        prices.embedding_gather_s,
        prices.head_gather_s,
        prices.head_beside_embedding_gather_s,
    )
    return prices.slowed_fraction * (reduce_s + gather_s) + shown_s(prices, choice, content)


def shown_s(prices: Prices, choice: int, content: StageContent) -> float:
    """Synchronisation of embedding and head that nothing hides, a part of the optimizer's price [s]."""
    if prices.end_shown_s is None:
        return 0.0
    embedding, head, beside = prices.end_shown_s[choice, :, content.node_class].tolist()
    of_head = beside if content.has_embedding else head
    return float(embedding * content.has_embedding + of_head * content.has_head)


def shown_ends(prices: Prices, choice: int, node_class: int, *, first: bool, last: bool) -> tuple[bool, bool]:
    """Whether nothing hides the exchange of a stage's embedding and of its head, a part of `optimizer_s`."""
    if prices.end_shown_s is None:
        return False, False
    embedding, head, beside = (prices.end_shown_s[choice, :, node_class] > 0.0).tolist()
    of_head = last and (beside if first else head)
    return first and (embedding or of_head), of_head


def optimizer_s(prices: Prices, choice: int, content: StageContent) -> float:
    """Optimizer step over the stage's parameters, and what synchronising them takes from computation [s]."""
    return _once(
        choice,
        content,
        prices.layer_optimizer_s,
        prices.embedding_optimizer_s,
        prices.head_optimizer_s,
        prices.head_beside_embedding_optimizer_s,
    )


def in_flight_1f1b(num_stages: int, stage: int, num_microbatches: int, *, planned: bool = False) -> int:
    """Micro-batches whose activations stage s of p holds under 1F1B: min(m, p - s).

    Parameters
    ----------
    planned
        Whether memory is planned ahead (`plans_memory` of a stack). Every stage but the last then has 2 p
        places between its forward and its backward, however many are taken, and that where a forward writes
        (oneflow/core/job_rewriter/pipeline_buffer_pass.cpp: buffer_size = total_stage_num * 2).
    """
    if planned and num_microbatches > 1 and stage < num_stages - 1:
        return 2 * num_stages + 1
    return min(num_microbatches, num_stages - stage)


def in_flight_of_stages(num_stages: int, num_microbatches: int, *, planned: bool = False) -> Floats:
    """`in_flight_1f1b` of every stage, [stage]."""
    held = np.minimum(num_microbatches, np.arange(num_stages, 0, -1, dtype=np.float64))
    if planned and num_microbatches > 1:
        held[:-1] = in_flight_1f1b(num_stages, 0, num_microbatches, planned=True)
    return held
