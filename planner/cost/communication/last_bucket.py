"""Synchronisation of embedding and head, once a step.

Megatron-LM fills buckets from the end of the model to its beginning, as gradients come. The last one holds
the embedding: it is complete when the backward has ended, and the first to be gathered, which the forward
waits for. So nothing hides the embedding. Where weights are kept in 8 bits, all that stays in 16 goes with
the last bucket (`partition_buckets`, case 3, in core/distributed/param_and_grad_buffer.py): the head too, on
a stage with the embedding. A bucket is at least as large as a tensor that it holds, and reaches the rate of
that size.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost.communication.links import Network
from planner.cost.communication.synchronisation import (
    GradientGroup,
    Synchronisation,
    bucket_parameters,
    gradient_group,
)
from planner.cost.elementwise import Values, everywhere, maximum
from planner.cost.memory.states import WEIGHT_BYTES
from planner.cost.prices import ENDS
from planner.cost.sharding import GATHERS_IN_FORWARD, parameter_bytes
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack


class _Known(NamedTuple):
    """A group and the parameters of its bucket, of a width where they are gathered [bytes]."""

    bucket: Values
    width: float
    group: GradientGroup


class LastBucket:
    """Prices of the `ENDS` on one node class."""

    def __init__(
        self,
        sync: Synchronisation,
        network: Network,
        dp_mode: str,
        stack: SoftwareStack,
        precision: Precision,
    ) -> None:
        self.sync, self.network, self.dp_mode = sync, network, dp_mode
        self.stack = stack
        self.parameter_bytes = parameter_bytes(stack, precision)
        self.bucket = bucket_parameters(stack, sync.sizes.gradient_ranks)
        self._known = [_Known(self.bucket, self.parameter_bytes, sync.dense)]

    def once_a_step_s(self, end: str, dense: Values, expert: Values) -> tuple[Values, Values, Values, Values]:
        """Reduction and gathering to be hidden, optimizer, and what of its price nothing hides [s].

        Parameters
        ----------
        end
            One of the `ENDS`.
        dense, expert
            Its parameters on a rank.
        """
        group = self._group(end, dense)
        return self.sync.once_a_step_s(dense, expert, group, shown=self._is_shown(end))

    def _group(self, end: str, dense: Values) -> GradientGroup:
        """How fast the bucket goes that holds it; as fast as another of the same size."""
        s = self.sync.sizes
        ranks, width = s.gradient_ranks, self._width(end)
        bucket = maximum(self.bucket, dense)
        for known in self._known:
            if known.width == width and everywhere(known.bucket == bucket):
                return known.group
        sharers = s.sharers(ranks) if self.dp_mode in GATHERS_IN_FORWARD else ranks
        group = gradient_group(
            self.network, ranks, sharers, s.tp, s.tp, self.dp_mode, self.stack, bucket=bucket, width=width
        )
        self._known.append(_Known(bucket, width, group))
        return group

    def _is_shown(self, end: str) -> bool:
        is_apart = self.parameter_bytes < WEIGHT_BYTES
        return self.stack.dp_overlap and (end == ENDS[0] or (end == ENDS[2] and is_apart))

    def _width(self, end: str) -> float:
        """Bytes of a parameter where it is gathered: 16 bits, but for heads that are 8-bit products."""
        is_narrow = end != ENDS[0] and self.stack.narrow_head
        return self.parameter_bytes if is_narrow else WEIGHT_BYTES
