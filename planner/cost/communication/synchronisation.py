"""Once a step: reduction of gradients, gathering of parameters, the optimizer.

Every piece's price is linear in its parameters: bytes over the rate that one bucket reaches. With
overlap Megatron-LM reduces in buckets of max(40 million, 1 million x ranks) parameters, else in one per
stage (core/distributed/param_and_grad_buffer.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from planner.cost.communication.collectives import collective_s, ring_latency_s
from planner.cost.communication.links import Network
from planner.cost.communication.overlap import OVERLAP_SLOWDOWN
from planner.cost.communication.placement import Spread, spread_group
from planner.cost.elementwise import Values, maximum, minimum, where
from planner.cost.kernels.relatives import Relative
from planner.cost.kernels.step_traffic import ZERO_GRADIENT_BYTES, step_bytes, whole_gradient_bytes
from planner.cost.memory.states import WEIGHT_BYTES
from planner.cost.sharding import GATHERS_IN_FORWARD, SCATTERS_EACH_MICROBATCH, parameter_bytes
from planner.cost.sizes import Sizes
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack

REMEMBERED = 1024
"""Groups kept, of a network and what goes at once. A guess."""

BUCKET_PARAMETERS = 40e6
BUCKET_PARAMETERS_PER_RANK = 1e6
"""Size of a bucket with overlap: the larger of the first and the second times the ranks
(core/distributed/distributed_data_parallel.py)."""

WHOLE_STAGE_PARAMETERS = 1e9
"""Size taken for the single bucket of a stage without overlap; larger ones reach the same rate
(guess: at 4 GB the measured shares of `collectives.py` are flat)."""

CAST_WEIGHT_BYTES = 4.0
"""Bytes moved for each parameter of a rank to cast its 16-bit weight and the transpose to a narrow format,
once a step, as Transformer Engine keeps both until the weights change (is_first_microbatch)."""

TRANSPOSE_WEIGHT_BYTES = 2.0
"""The same where the weight is narrow already: it is read and its transpose written."""


class GradientGroup(NamedTuple):
    """Seconds for each parameter of a rank, and the time of one bucket."""

    reduce_s: Values
    gather_s: Values
    bucket_reduce_s: Values
    bucket_gather_s: Values
    shard: Values
    """Ranks that share the optimizer state."""
    spread_s: Values
    """Seconds for each parameter that the optimizer's own step takes to spread it."""
    spread_latency_s: Values
    """Seconds of that step whatever the parameters."""


def bucket_parameters(stack: SoftwareStack, ranks: Values) -> Values:
    """Parameters of a bucket of a group of ranks; of a large stage where nothing is cut into buckets."""
    if stack.bucket_parameters is not None:
        return float(stack.bucket_parameters)
    if stack.dp_overlap:
        return maximum(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * ranks)
    return WHOLE_STAGE_PARAMETERS


def gradient_group(
    network: Network,
    ranks: Values,
    sharers: Values,
    stride: Values,
    sharing: Values,
    dp_mode: str,
    stack: SoftwareStack,
    *,
    bucket: Values,
    width: float,
) -> GradientGroup:
    """How fast a group reduces gradients and gathers parameters once a step.

    What full sharding does in every micro-batch is no business of the step (`sharding.py`).

    Parameters
    ----------
    bucket
        Parameters that go at once.
    width
        Bytes of one where it is gathered [bytes].
    """
    ways = _Ways(dp_mode, stack.gradient_bytes, stack.optimizer_shard_size, stack.parameters_broadcast)
    of = (network, ranks, sharers, stride, sharing, bucket, width, ways)
    return _found(*of) if isinstance(ranks, np.ndarray) else _found_of_one(*of)  # type: ignore[arg-type]


class _Ways(NamedTuple):
    """What a group takes from how the software runs it; see `SoftwareStack`."""

    dp_mode: str
    gradient_bytes: float
    optimizer_shard_size: int | None
    parameters_broadcast: bool


def _found(
    network: Network,
    ranks: Values,
    sharers: Values,
    stride: Values,
    sharing: Values,
    bucket: Values,
    width: float,
    ways: _Ways,
) -> GradientGroup:
    """`gradient_group` of what it depends on."""
    spread, dp_mode = spread_group(ranks, stride, network.domain_chips), ways.dp_mode
    gradients = bucket * ways.gradient_bytes
    if dp_mode == "ddp":
        reduce = collective_s(network, "all_reduce", gradients, spread, sharing)
        gather: Values = 0.0
    elif dp_mode not in GATHERS_IN_FORWARD and (
        ways.optimizer_shard_size is not None or ways.parameters_broadcast
    ):
        return _shared_group(network, spread, stride, sharing, bucket, ways)
    else:
        reduce = collective_s(network, "reduce_scatter", gradients, spread, sharing)
        gather = collective_s(network, "all_gather", bucket * width, spread, sharing)
    if dp_mode in SCATTERS_EACH_MICROBATCH:
        reduce = 0.0
    if dp_mode in GATHERS_IN_FORWARD:
        gather = 0.0
    alone = ranks <= 1
    reduce, gather = where(alone, 0.0, reduce), where(alone, 0.0, gather)
    nothing = 0.0 * ranks
    shard = sharers if dp_mode != "ddp" else 1.0 + nothing
    return GradientGroup(reduce / bucket, gather / bucket, reduce, gather, shard, nothing, nothing)


_found_of_one = lru_cache(maxsize=REMEMBERED)(_found)
"""That of a single group: choices ask for few of them again and again."""


def _shared_group(
    network: Network,
    spread: Spread,
    stride: Values,
    sharing: Values,
    bucket: Values,
    ways: _Ways,
) -> GradientGroup:
    """A distributed optimizer that neighbouring ranks share, or whose step broadcasts the parameters.

    Gathered: gradients are scattered among the sharers, the shares all-reduced among all that hold the same
    one, parameters gathered among the sharers. Broadcast: gradients are all-reduced among all ranks, and
    every sharer in turn sends its parameters along a ring, which takes as long as a gather and the ring's
    latency for every sharer.
    """
    ranks, domain = spread.ranks, network.domain_chips
    shard = minimum(ranks, float(ways.optimizer_shard_size or "inf"))
    near = spread_group(shard, stride, domain)
    alone, nothing = ranks <= 1, 0.0 * ranks
    gradients = bucket * ways.gradient_bytes
    if ways.parameters_broadcast:
        whole = WHOLE_STAGE_PARAMETERS * WEIGHT_BYTES
        reduce = where(alone, 0.0, collective_s(network, "all_reduce", gradients, spread, sharing))
        sent = collective_s(network, "all_gather", whole, near, sharing) / WHOLE_STAGE_PARAMETERS
        ring = ring_latency_s(near)
        sent, latency = where(shard > 1, sent, 0.0), where(shard > 1, shard * ring, 0.0)
        return GradientGroup(reduce / bucket, nothing, reduce, nothing, shard, sent, latency)
    far = spread_group(ranks / shard, stride * shard, domain)
    scatter = collective_s(network, "reduce_scatter", gradients, near, sharing)
    across = minimum(sharing * near.inside, domain)
    scatter = scatter + collective_s(network, "all_reduce", gradients / shard, far, across)
    gather = collective_s(network, "all_gather", bucket * WEIGHT_BYTES, near, sharing)
    reduce, gather = where(alone, 0.0, scatter), where(alone, 0.0, gather)
    return GradientGroup(reduce / bucket, gather / bucket, reduce, gather, shard, nothing, nothing)


@dataclass(frozen=True)
class Synchronisation:
    """The dense and the experts' gradient groups of one node class."""

    dense: GradientGroup
    expert: GradientGroup
    relative: Relative
    sizes: Sizes
    has_experts: bool
    overlap: bool
    step_bytes: float
    """Bytes that the optimizer's step moves for each parameter of its shard, at the rate of copies, and where
    gradients are sharded what clears them."""
    whole_bytes: Values
    """Bytes that clearing, checking, dividing and copying whole gradients moves for each parameter of a
    rank."""
    cast_bytes: float
    """Bytes moved for each parameter of a rank to have its weight ready in the format of the products."""

    @property
    def slowdown(self) -> float:
        """Time that computation loses per second of synchronisation hidden behind it.

        Of R seconds behind B seconds of computation max(0, R - B) + slowdown min(R, B) is left, which is
        (1 - slowdown) max(0, R - B) + slowdown R: linear parts, of which the second goes with the optimizer.
        """
        return OVERLAP_SLOWDOWN if self.overlap else 0.0

    def once_a_step_s(
        self, dense: Values, expert: Values, group: GradientGroup | None = None, *, shown: bool = False
    ) -> tuple[Values, Values, Values, Values]:
        """Gradient reduction, parameter gathering and optimizer of a piece, and what nothing hides [s].

        The optimizer's price holds what the first two take from the computation that hides them, and all of
        them where nothing does; the last one says how much that is.

        Parameters
        ----------
        dense, expert
            Parameters of the piece that a rank holds.
        group
            How fast its dense gradients are reduced; None takes what layers take.
        shown
            Whether nothing hides its synchronisation.
        """
        group = group or self.dense
        reduce = dense * group.reduce_s + expert * self.expert.reduce_s
        gather = dense * group.gather_s + expert * self.expert.gather_s
        shard = dense / self.dense.shard + expert / self.expert.shard
        total = shard * self.step_bytes + (dense + expert) * (self.whole_bytes + self.cast_bytes)
        spread = dense * self.dense.spread_s + expert * self.expert.spread_s
        optimizer = total / self.relative.memory_bytes_per_s + spread
        nothing = 0.0 * reduce
        if shown:
            return nothing, nothing, optimizer + reduce + gather, reduce + gather
        left = 1 - self.slowdown
        return left * reduce, left * gather, optimizer + self.slowdown * (reduce + gather), nothing

    @property
    def tail_s(self) -> tuple[Values, Values]:
        """Reduction and gathering of the last and first bucket, which nothing hides [s]."""
        if not self.overlap:
            return 0.0 * self.dense.bucket_reduce_s, self.dense.spread_latency_s
        return self.dense.bucket_reduce_s, self.dense.bucket_gather_s + self.dense.spread_latency_s


def synchronisation(
    network: Network,
    sizes: Sizes,
    dp_mode: str,
    stack: SoftwareStack,
    precision: Precision,
    has_experts: bool,
) -> Synchronisation:
    """Gradient groups of a stage on one node class."""
    s = sizes

    def group(ranks: Values, stride: Values, sharing: Values) -> GradientGroup:
        sharers = s.sharers(ranks) if dp_mode in GATHERS_IN_FORWARD else ranks
        bucket, width = bucket_parameters(stack, ranks), parameter_bytes(stack, precision)
        return gradient_group(
            network, ranks, sharers, stride, sharing, dp_mode, stack, bucket=bucket, width=width
        )

    dense = group(s.gradient_ranks, s.tp, s.tp)
    expert = dense
    if has_experts:
        stride = s.ep * s.etp
        sharing = minimum(stride, network.domain_chips)
        expert = group(s.expert_gradient_ranks, stride, sharing)
    cast = 0.0
    if network.relative.gemm_precision != "bf16":
        is_narrow = parameter_bytes(stack, precision) < WEIGHT_BYTES
        cast = TRANSPOSE_WEIGHT_BYTES if is_narrow else CAST_WEIGHT_BYTES
    cleared = ZERO_GRADIENT_BYTES if stack.clears_gradients else 0.0
    whole = whole_gradient_bytes(stack, s, precision)
    sharded = dp_mode in SCATTERS_EACH_MICROBATCH
    return Synchronisation(
        dense,
        expert,
        network.relative,
        s,
        has_experts,
        stack.dp_overlap,
        step_bytes(stack, dp_mode, precision) + (cleared if sharded else 0.0),
        0.0 if sharded else cleared + whole,
        cast,
    )
