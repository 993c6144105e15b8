"""Full sharding: parameters gathered layer by layer in every micro-batch, gradients scattered likewise.

PyTorch FSDP, DeepSpeed ZeRO-3 and Megatron-FSDP keep 1 / n of each layer's parameters, gather a layer before
its forward and again before its backward, and scatter its gradients after it, each on a stream beside
computation (arXiv 2304.11277, sections 3.2 and 3.3; arXiv 1910.02054, section 7.2.2). ZeRO-2 keeps whole
parameters, gathers them once a step and scatters the gradients of every micro-batch. With one layer ahead
in flight, what a layer exposes is what its own computation cannot hide. Hybrid sharding keeps the shards
among neighbours, within a node say; the gradient's shards are then all-reduced among all that hold the same
(arXiv 2304.11277, section 3.2.2).

PyTorch's also copy on the stream of the computation. FSDP cuts a layer's parameters out of a flat one, so
that autograd joins their gradients (torch/distributed/fsdp/_flat_param.py, torch.split). FSDP2 gathers the
ranks' shards one behind the other, copies each parameter out of them, and copies gradients in, cast to the
format of their sum (_fully_shard/_fsdp_collectives.py, foreach_all_gather_copy_out and
foreach_reduce_scatter_copy_in, both in the current stream).
"""

from __future__ import annotations

from planner.cost.collectives import Network, collective_s
from planner.cost.compute import traffic_s
from planner.cost.elementwise import Values, minimum, where
from planner.cost.operators import HALF
from planner.cost.overlap import exposed_behind
from planner.cost.parameters import ParameterCounts
from planner.cost.placement import Spread, spread_group
from planner.cost.sizes import Sizes
from planner.cost.states import WEIGHT_BYTES
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack

GATHERS_IN_FORWARD = ("zero3", "fsdp")
"""Modes that shard the parameters themselves."""

SCATTERS_EACH_MICROBATCH = ("zero2", *GATHERS_IN_FORWARD)
"""Modes that hold a shard of the gradients only, so that every micro-batch scatters its own."""


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

    def layer_s(self, counts: ParameterCounts, compute_s: tuple[Values, Values]) -> tuple[Values, Values]:
        """Forward and backward exchange of a piece that its computation does not hide [s]."""
        zero = 0.0 * compute_s[0]
        if not self.scatters:
            return zero, zero
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
        forward, backward = gather, gather + scatter
        if self.stack.dp_overlap:
            forward, backward = (
                exposed_behind(x, y) for x, y in zip((forward, backward), compute_s, strict=True)
            )
        relative = self.network.relative
        return (
            forward + traffic_s(relative, copied_out),
            backward + traffic_s(relative, copied_out + copied_in),
        )

    def _once(self, op: str, size_bytes: Values, spread: Spread, sharing: Values) -> Values:
        return where(spread.ranks > 1, collective_s(self.network, op, size_bytes, spread, sharing), 0.0)
