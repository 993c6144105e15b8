"""Full sharding: parameters gathered layer by layer in every micro-batch, gradients scattered likewise.

PyTorch FSDP, DeepSpeed ZeRO-3 and Megatron-FSDP keep 1 / n of each layer's parameters, gather a layer before
its forward and again before its backward, and scatter its gradients after it, each on a stream beside
computation (arXiv 2304.11277, sections 3.2 and 3.3; arXiv 1910.02054, section 7.2.2). ZeRO-2 keeps whole
parameters, gathers them once a step and scatters the gradients of every micro-batch. With one layer ahead
in flight, what a layer exposes is what its own computation cannot hide. Hybrid sharding keeps the shards
among neighbours, within a node say; the gradient's shards are then all-reduced among all that hold the same
(arXiv 2304.11277, section 3.2.2).

What is gathered first has nothing to hide behind, nor has what is scattered last: the embedding. PyTorch's
root unit holds it with the head and keeps both between the passes (fully_shard, reshard_after_forward: false
for the root unless set).

PyTorch's also copy on the stream of the computation. FSDP cuts a layer's parameters out of a flat one, so
that autograd joins their gradients (torch/distributed/fsdp/_flat_param.py, torch.split). FSDP2 gathers the
ranks' shards one behind the other, copies each parameter out of them, and copies gradients in, cast to the
format of their sum (_fully_shard/_fsdp_collectives.py, foreach_all_gather_copy_out and
foreach_reduce_scatter_copy_in, both in the current stream). FSDP divides a layer's gradients by about the
root of the ranks' number before it scatters them (_reduce_grad of torch/distributed/fsdp/_runtime_utils.py,
_div_if_needed); FSDP2's collectives take the mean of what 16 bits or more hold.

DeepSpeed's ZeRO-3 of 2021 calls a collective for every weight and every gradient, with a list of one tensor a
rank: PyTorch copies each between the list and a buffer of its own, by a launch a rank, and what is gathered
is cleared before. The host waits for the chip around each gather, so that nothing hides any of it, and keeps
parameters of fewer than 100,000 values whole: norms and biases, whose gradients are scattered all the same
(deepspeed/runtime/zero/partition_parameters.py, `_allgather_param`, `_reduce_scatter_gradient`; stage3.py,
`fetch_sub_module`, param_persistence_threshold; torch ProcessGroupNCCL.cpp, allgather and reduce_scatter).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.cost.communication.collectives import collective_s, ring_latency_s
from planner.cost.communication.links import Network
from planner.cost.communication.overlap import OVERLAP_SLOWDOWN, SHARDS_SLOWDOWN, exposed_behind
from planner.cost.communication.placement import Spread, spread_group
from planner.cost.elementwise import Values, minimum, total, where
from planner.cost.kernels.compute import traffic_s
from planner.cost.kernels.operators import HALF, Matmul
from planner.cost.memory.states import WEIGHT_BYTES
from planner.cost.parameters import ParameterCounts
from planner.cost.sizes import Sizes
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack

GATHERS_IN_FORWARD = ("zero3", "fsdp")
"""Modes that shard the parameters themselves."""

SCATTERS_EACH_MICROBATCH = ("zero2", *GATHERS_IN_FORWARD)
"""Modes that hold a shard of the gradients only, so that every micro-batch scatters its own."""

LIST_TENSOR_S = 7.1e-6
"""What the host takes for one rank's tensor in a list [s]: to cut it out (2.1 us: the loops of both functions
in Python 3.11 with PyTorch 2.13 on a server's processor) and to launch its copy from a loop in C++ (some
5 us, as `EXPERT_LAUNCHES` in `launches.py`)."""


@dataclass(frozen=True)
class Tensors:
    """What a rank would hold of a piece's parameters if they were whole, tensor by tensor."""

    weights: Sequence[Values]
    """Parameters of each weight."""
    vectors: int
    """Norms and biases, which are too small to be gathered."""

    @classmethod
    def of(cls, products: Sequence[Matmul], vectors: int) -> Tensors:
        """Those of a piece with these products, grouped ones apart."""
        own = [p for p in products if p.has_weight and not p.grouped]
        return cls([p.count * p.n * p.k for p in own], vectors)


def parameter_bytes(stack: SoftwareStack, precision: Precision) -> float:
    """Bytes of a parameter where it is gathered.

    Per-tensor 8-bit weights travel as they are; formats with scales by blocks are gathered in 16 bits and
    cast afterwards (Megatron-LM core, optimizer/distrib_optimizer.py; `reuse_grad_buf_for_mxfp8_param_ag`).
    """
    return 1.0 if stack.narrow_parameters and precision == "fp8" else WEIGHT_BYTES


class Sharding:
    """Exposed gathers and scatters of a piece in one micro-batch, on one node class."""

    def __init__(
        self, network: Network, sizes: Sizes, dp_mode: str, stack: SoftwareStack, precision: Precision
    ) -> None:
        self.network, self.sizes, self.stack = network, sizes, stack
        self.releases_after_forward = dp_mode == "zero3"
        self.parameter_bytes = parameter_bytes(stack, precision)
        self.gathers, self.scatters = dp_mode in GATHERS_IN_FORWARD, dp_mode in SCATTERS_EACH_MICROBATCH

    def layer_s(
        self, counts: ParameterCounts, tensors: Tensors, compute_s: tuple[Values, Values]
    ) -> tuple[Values, Values]:
        """Forward and backward exchange of a piece that its computation does not hide [s]."""
        zero = 0.0 * compute_s[0]
        if not self.scatters:
            return zero, zero
        if self.gathers and self.stack.shards_tensor_by_tensor and not counts.expert:
            return self._tensor_by_tensor(tensors)
        s = self.sizes
        dense = counts.tensor_sharded / s.tp + counts.replicated + 0.0 * zero
        groups = [(dense, s.gradient_ranks, s.tp)]
        if counts.expert:
            groups.append((counts.expert / (s.ep * s.etp), s.expert_gradient_ranks, s.ep * s.etp))
        gather, scatter, copied_out, copied_in = zero, zero, zero, zero
        for parameters, ranks, stride in groups:
            domain, sharers = self.network.domain_chips, s.sharers(ranks)
            spread = spread_group(sharers, stride, domain)
            sharing = minimum(stride, domain)
            if self.gathers:
                gather = gather + self._once("all_gather", self.parameter_bytes * parameters, spread, sharing)
            size = self.stack.scattered_gradient_bytes * parameters
            scatter = scatter + self._once("reduce_scatter", size, spread, sharing)
            far = spread_group(ranks / sharers, stride * sharers, domain)
            across = minimum(sharing * spread.inside, domain)
            scatter = scatter + self._once("all_reduce", size / sharers, far, across)
            several = where(ranks > 1, parameters, 0.0)
            if self.gathers and self.stack.shard_copies == "all":
                copied_out = copied_out + 2 * self.parameter_bytes * several
            if self.stack.shard_copies != "none":
                copied_in = copied_in + (HALF + self.stack.scattered_gradient_bytes) * several
            if self.stack.gradients_divided_apart:
                copied_in = copied_in + 2 * self.stack.scattered_gradient_bytes * several
        forward, backward = gather, gather + scatter
        if self.stack.dp_overlap:
            slowdown = OVERLAP_SLOWDOWN if self.stack.shard_copies == "none" else SHARDS_SLOWDOWN
            forward, backward = (
                exposed_behind(x, y, slowdown=slowdown)
                for x, y in zip((forward, backward), compute_s, strict=True)
            )
        relative = self.network.relative
        return (
            forward + traffic_s(relative, copied_out),
            backward + traffic_s(relative, copied_out + copied_in),
        )

    def root_s(self, counts: ParameterCounts, tensors: Tensors, zero: Values) -> tuple[Values, Values]:
        """Forward and backward exchange of what is gathered first, scattered last and kept between [s].

        Nothing hides either.
        """
        if not self.scatters:
            return zero, zero
        gather, both = self.layer_s(counts, tensors, (zero, zero))
        return gather, both - gather

    def head_s(
        self, counts: ParameterCounts, tensors: Tensors, compute_s: tuple[Values, Values]
    ) -> tuple[Values, Values]:
        """The same of the head, which PyTorch's keep with the embedding in the root's unit [s]."""
        if self.stack.shard_copies != "none":
            return self.root_s(counts, tensors, 0.0 * compute_s[0])
        return self.layer_s(counts, tensors, compute_s)

    def _tensor_by_tensor(self, tensors: Tensors) -> tuple[Values, Values]:
        """Forward and backward exchange where lists of tensors go from the host to each collective [s]."""
        s, stack, relative = self.sizes, self.stack, self.network.relative
        ranks = s.gradient_ranks
        spread = spread_group(ranks, s.tp, self.network.domain_chips)
        sharing = minimum(s.tp, self.network.domain_chips)
        listed = where(ranks > 1, LIST_TENSOR_S * ranks, 0.0)
        small = where(ranks > 1, ring_latency_s(spread), 0.0) + listed
        several = where(ranks > 1, total(tensors.weights), 0.0)

        def calls(op: str, size: float) -> Values:
            return total(self._once(op, size * weight, spread, sharing) for weight in tensors.weights)

        gather = calls("all_gather", self.parameter_bytes) + len(tensors.weights) * listed
        gather = gather + traffic_s(relative, 3 * self.parameter_bytes * several)
        scatter = calls("reduce_scatter", stack.scattered_gradient_bytes)
        scatter = scatter + len(tensors.weights) * listed + tensors.vectors * small
        scatter = scatter + traffic_s(relative, 2 * stack.scattered_gradient_bytes * several)
        return gather, gather + scatter

    def _once(self, op: str, size_bytes: Values, spread: Spread, sharing: Values) -> Values:
        return where(spread.ranks > 1, collective_s(self.network, op, size_bytes, spread, sharing), 0.0)
