"""What the pieces of a stage have to do, whatever the chip: their products and what they move.

Computed once for all node classes; `class_pricing.py` says how long a class takes for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.cost.communication.collective_counts import tensor_blocks
from planner.cost.elementwise import Values
from planner.cost.identity import remembered
from planner.cost.kernels.host_waits import Parts
from planner.cost.kernels.launches import backward_launches, launches, routed_launches
from planner.cost.kernels.operators import (
    Matmul,
    column_maps,
    head_matmul,
    layer_matmuls,
    merge_matmul,
    score_matmuls,
)
from planner.cost.kernels.products import Products
from planner.cost.kernels.starts import Seconds, end_starts_s, layer_starts_s
from planner.cost.kernels.traffic import (
    Traffic,
    layer_traffic,
    routed_bytes,
    score_traffic,
)
from planner.cost.kernels.traffic_of_ends import embedding_traffic, head_traffic
from planner.cost.sizes import Sizes
from planner.cost.stacks import stacks_by_kernel
from planner.data.chip import HALF_PRECISIONS
from planner.data.model_spec import WITH_EXPERTS, LayerKind
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack


@dataclass(frozen=True)
class Piece:
    """Products of a piece and where they stand in the joint evaluation."""

    matmuls: list[Matmul]
    first: int
    column: list[int]
    """Which of its products are column-parallel."""

    def rows(self, times: Sequence[Values]) -> Sequence[Values]:
        """The times of its products among those of all."""
        return times[self.first : self.first + len(self.matmuls)]

    def column_rows(self, times: Sequence[Values]) -> list[Values]:
        """The times of its column-parallel products among those of all."""
        return [times[self.first + i] for i in self.column]


@dataclass(frozen=True)
class Routed:
    """The forward of routed experts, which begins when the host knows how many tokens each of them gets."""

    moved_bytes: Values
    """What memory-bound operators move."""
    launches: Values
    """Launches over those of a dense layer."""


@dataclass(frozen=True)
class LayerWork:
    """What one layer does beside its products."""

    traffic: Traffic
    starts_s: Seconds
    """What starting memory-bound kernels takes in its forward and backward [s]."""
    blocks: int
    """Pairs of a column- and a row-parallel product."""
    reductions: int
    """Reductions of its column-parallel maps' input gradients where the sequence is whole."""
    launches: Values
    """Launches of its forward over those of a dense layer; 0 where no launch is ever waited for."""
    backward_launches: Values
    """Launches of its backward over those of a dense layer's forward; 0 likewise."""
    routed: Routed | None = None
    """Its routed experts, where the host waits for their counts."""

    def launched_backward(self, parts: Parts) -> tuple[Parts, Values, int]:
        """Its backward with what the host launches for it, as `HostWaits` takes it."""
        return parts, self.backward_launches, self.reductions


@dataclass(frozen=True)
class Work:
    """Products and traffic of all pieces, for every choice of degrees."""

    vocab: Values
    """Padded vocabulary."""
    kinds: tuple[LayerKind, ...]
    pieces: dict[str, Piece]
    """By layer kind; `head`; `merge` with multi-token prediction; `scores` where a class keeps them."""
    products: Products
    """Those of all pieces, one after the other."""
    layers: dict[bool, dict[LayerKind, LayerWork]]
    """By whether attention is one kernel, as on the classes that there are; then by kind."""
    scores: Traffic
    embedding: Traffic
    head: Traffic
    end_starts_s: tuple[Seconds, Seconds]
    """What starting memory-bound kernels takes in both passes of the embedding, and of norm and loss [s]."""

    @staticmethod
    def of(problem: Problem, sizes: Sizes, vocab: Values) -> Work:
        """What a problem's pieces do."""
        model, stack, stacks = problem.model, problem.stack, stacks_by_kernel(problem)
        kinds = model.layer_kinds
        groups: dict[str, list[Matmul]] = {
            kind: layer_matmuls(model, kind, sizes, stack.joined_maps) for kind in kinds
        }
        groups["head"] = [head_matmul(model, vocab, sizes, stack.narrow_head)]
        if model.mtp_num_layers:
            groups["merge"] = [merge_matmul(model, sizes)]
        if False in stacks:
            groups["scores"] = score_matmuls(model, sizes)
        pieces: dict[str, Piece] = {}
        matmuls: list[Matmul] = []
        for name, group in groups.items():
            column = [i for i, x in enumerate(group) if x.split == "column"]
            pieces[name] = Piece(group, len(matmuls), column)
            matmuls += group
        return Work(
            vocab=vocab,
            kinds=kinds,
            pieces=pieces,
            products=Products(matmuls),
            layers={
                fused: {kind: _layer_work(problem, own, kind, sizes, groups[kind]) for kind in kinds}
                for fused, own in stacks.items()
            },
            scores=score_traffic(model, stack, sizes) if False in stacks else Traffic(0.0, 0.0),
            embedding=embedding_traffic(model, sizes),
            head=head_traffic(model, stack, vocab, sizes),
            end_starts_s=end_starts_s(model, stack, sizes),
        )


def _layer_work(
    problem: Problem, stack: SoftwareStack, kind: LayerKind, sizes: Sizes, products: list[Matmul]
) -> LayerWork:
    """Traffic, reductions and launches of a layer with these products."""
    model = problem.model
    blocks = tensor_blocks(model, kind)
    narrow = problem.workload.precision not in HALF_PRECISIONS
    routed: Routed | None = None
    if isinstance(sizes.tp, float) and stack.flash_attention:
        kernels = _kernels_of_one(problem, kind, sizes.of_experts)
    else:
        kernels = _kernels(problem, stack, kind, sizes, products)
    # Beside another micro-batch the host has that one's pieces to launch as well.
    never = stack.ep_overlap or (model.moe is not None and model.moe.pad_to_capacity)
    if kernels.routed is not None and stack.waits_for_token_counts and not never:
        routed = Routed(routed_bytes(model, stack, sizes, narrow), kernels.routed)
    reductions = column_maps(model, kind) if stack.column_input_copies else blocks
    traffic = layer_traffic(model, kind, stack, sizes, narrow)
    return LayerWork(traffic, kernels.starts_s, blocks, reductions, kernels.forward, kernels.backward, routed)


class _Kernels(NamedTuple):
    """What the host launches of a layer, and what its kernels bound by memory take beside their bytes."""

    starts_s: Seconds
    forward: Values
    backward: Values
    routed: Values | None
    """None of layers without experts, and where no launch is ever waited for."""


def _kernels(
    problem: Problem, stack: SoftwareStack, kind: LayerKind, sizes: Sizes, products: Sequence[Matmul]
) -> _Kernels:
    model, precision = problem.model, problem.workload.precision
    narrow = precision not in HALF_PRECISIONS
    forward: Values = 0.0
    backward: Values = 0.0
    routed: Values | None = None
    if stack.host_layer_floor_ms > 0:
        forward = launches(model, kind, stack, sizes, narrow)
        backward = backward_launches(model, kind, stack, sizes, products, narrow)
        routed = routed_launches(model, stack, sizes, narrow) if kind in WITH_EXPERTS else None
    return _Kernels(layer_starts_s(model, kind, stack, sizes, products, precision), forward, backward, routed)


@remembered
def _kernels_of_one(problem: Problem, kind: LayerKind, sizes: Sizes) -> _Kernels:
    """Those of a single choice where attention is one kernel: experts and their ranks alone change them."""
    stack = stacks_by_kernel(problem)[True]
    products = layer_matmuls(problem.model, kind, sizes, stack.joined_maps)
    return _kernels(problem, stack, kind, sizes, products)
