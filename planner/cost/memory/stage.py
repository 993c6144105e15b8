"""Add up the memory of one stage by term, at the moment when it holds most.

Used by the referee for a finished plan; the search has the same terms as coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.memory.pipelines import in_pipeline_of, outside_bytes
from planner.cost.prices import STATES, Floats, Prices
from planner.cost.stage import StageContent, count_of_kinds

OUTSIDE = ("fragmentation", "context")
"""Terms of memory that no allocation asks for: gaps between them, and what lies outside the allocator."""


@dataclass(frozen=True)
class _Moment:
    """What a stage holds beside its states and buffers at a moment that may be its fullest [bytes]."""

    gradients: float = 0.0
    """Beyond those kept."""
    activations: float = 0.0
    working: float = 0.0
    recompute: float = 0.0
    logits: float = 0.0

    @property
    def total(self) -> float:
        return self.gradients + self.activations + self.working + self.recompute + self.logits


def memory_bytes(
    prices: Prices, choice: int, content: StageContent, in_flight: Sequence[float], num_stages: int
) -> dict[str, float]:
    """Peak memory of one chip of a stage by term [bytes]; the terms add up to the reserved peak.

    All but `OUTSIDE` is what the framework's allocator hands out. The fullest moment counts: in a backward,
    behind it, or in the optimizer's step.

    Parameters
    ----------
    in_flight
        Micro-batches whose activations each chunk holds at the peak, one number a chunk.
    num_stages
        Stages of the pipeline: receive buffers exist where there are several.
    """
    prices = in_pipeline_of(prices, num_stages)
    states = _state_bytes(prices, choice, content)
    terms = {name: float(states[i]) for i, name in enumerate(STATES)}
    kept = kept_bytes(prices, choice, content)
    held = sum(count * size for count, size in zip(in_flight, kept, strict=True))
    moments = [
        _in_backward(prices, choice, content, held),
        _after_backward(prices, choice, content, held - sum(kept)),
        _in_step(prices, choice, content, terms["optimizer"]),
    ]
    fullest = max(moments, key=lambda moment: moment.total)
    terms["gradients"] += fullest.gradients
    terms |= {"activations": fullest.activations, "working": fullest.working}
    terms |= {"recompute": fullest.recompute, "logits": fullest.logits}
    terms["buffers"] = float(prices.pipeline_buffer_bytes[choice]) if num_stages > 1 else 0.0
    terms["fragmentation"] = sum(terms.values()) * (1 / prices.allocated_fraction - 1)
    is_end = content.has_embedding or content.has_head
    terms["context"] = float(outside_bytes(prices, choice, content.node_class, is_end, num_stages))
    return terms


def _state_bytes(prices: Prices, choice: int, content: StageContent) -> Floats:
    """Weights, main gradients and optimizer state, array [state]."""
    states = np.zeros(len(STATES))
    for kind, count in content.count_of_kind.items():
        states = states + count * prices.layer_state_bytes[choice, kind]
    if content.has_embedding:
        states = states + prices.embedding_state_bytes[choice]
    if content.has_head and content.has_embedding:
        states = states + prices.head_beside_embedding_state_bytes[choice]
    elif content.has_head:
        states = states + prices.head_state_bytes[choice]
    return states


def _in_backward(prices: Prices, choice: int, content: StageContent, activations: float) -> _Moment:
    """All activations, and the most that passes: in a layer, in the loss, or in the embedding.

    In the embedding the activations of the micro-batch are gone, of which its own and those of one layer
    count here, so that what passes follows from the kinds of layers alone, as the search has it.
    """
    pairs = (_working_bytes(prices, choice, content, kind) for kind in content.count_of_kind)
    working, again = max(pairs, key=sum, default=(0.0, 0.0))
    logits = float(prices.head_peak_bytes[choice]) if content.has_head else 0.0
    embedding = _embedding_bytes(prices, choice, content)
    if embedding > max(working + again, logits):
        return _Moment(activations=activations, working=embedding)
    if logits > working + again:
        return _Moment(activations=activations, logits=logits)
    return _Moment(activations=activations, working=working, recompute=again)


def _embedding_bytes(prices: Prices, choice: int, content: StageContent) -> float:
    """What the embedding's backward makes beyond what is gone by then."""
    if not content.has_embedding:
        return 0.0
    kept = kept_of_layers(prices, content.recompute)[choice, :, content.node_class]
    gone = min((float(kept[kind]) for kind in content.count_of_kind), default=0.0)
    return float(prices.embedding_peak_bytes[choice]) - gone


def kept_of_layers(prices: Prices, recompute: str) -> Floats:
    """The least that a layer keeps of a micro-batch where its stage recomputes so, [choice, kind, class]."""
    if recompute == "full":
        return prices.layer_activation_full_bytes
    if recompute == "selective":
        return prices.layer_activation_selective_bytes
    return prices.layer_activation_bytes


def _after_backward(prices: Prices, choice: int, content: StageContent, activations: float) -> _Moment:
    """Gradients that wait whole for their reduction, when the activations of their micro-batch are gone."""
    sizes = (n * float(prices.layer_waiting_bytes[choice, k]) for k, n in content.count_of_kind.items())
    waiting = sum(sizes)
    return _Moment(gradients=waiting, activations=activations) if waiting else _Moment()


def _in_step(prices: Prices, choice: int, content: StageContent, optimizer: float) -> _Moment:
    """Gradients copied for the optimizer beside placeholders, when all activations are gone."""
    sizes = (float(prices.layer_placeholder_bytes[choice, kind]) for kind in content.count_of_kind)
    return _Moment(gradients=prices.step_copy_share * optimizer, working=max(sizes, default=0.0))


def kept_bytes(prices: Prices, choice: int, content: StageContent) -> list[float]:
    """Activations that one micro-batch leaves on each chunk until its backward [bytes]."""
    c, n, piece = choice, content.node_class, content.recompute_piece
    selective = content.recompute == "selective"
    kept = prices.layer_activation_selective_bytes if selective else prices.layer_activation_bytes
    sizes = []
    for chunk in content.chunks:
        size, recomputed = 0.0, content.recomputed(chunk)
        for kind, count in count_of_kinds(chunk).items():
            in_full = recomputed[kind]
            inputs = -(-in_full // piece)
            size += float(
                (count - in_full) * kept[c, kind, n] + inputs * prices.layer_activation_full_bytes[c, kind, n]
            )
        sizes.append(size)
    if content.has_embedding:
        sizes[0] += float(prices.embedding_activation_bytes[c])
    if content.has_head:
        sizes[-1] += float(prices.head_activation_bytes[c, n])
    return sizes


def _working_bytes(prices: Prices, choice: int, content: StageContent, kind: int) -> tuple[float, float]:
    """Passing buffers of a layer's backward, and what exists again while it is recomputed [bytes]."""
    again, n = 0.0, content.node_class
    if content.recompute == "selective":
        whole, kept = prices.layer_activation_bytes, prices.layer_activation_selective_bytes
        again = float(whole[choice, kind, n] - kept[choice, kind, n])
    elif kind in content.recomputed_kinds:
        longest = max(content.recomputed(chunk)[kind] for chunk in content.chunks)
        piece = min(content.recompute_piece, longest)
        again = piece * float(prices.layer_recompute_peak_bytes[choice, kind, n])
        # Of a piece only the first layer's input was kept.
        again += (piece - 1) * float(prices.layer_activation_full_bytes[choice, kind, n])
    return float(prices.layer_working_bytes[choice, kind, n]), again
