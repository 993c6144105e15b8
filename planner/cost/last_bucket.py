"""Synchronisation of embedding and head, once a step.

Megatron-LM fills buckets from the end of the model to its beginning, as gradients come. The last one holds
the embedding: it is complete when the backward has ended, and the first to be gathered, which the forward
waits for. So nothing hides the embedding. Where weights are kept in 8 bits, all that stays in 16 goes with
the last bucket (`partition_buckets`, case 3, in core/distributed/param_and_grad_buffer.py): the head too, on
a stage with the embedding. A bucket is at least as large as a tensor that it holds, and reaches the rate of
that size.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.collectives import Network
from planner.cost.elementwise import Values, maximum
from planner.cost.prices import ENDS
from planner.cost.sharding import GATHERS_IN_FORWARD, parameter_bytes
from planner.cost.states import WEIGHT_BYTES
from planner.cost.synchronisation import (
    GradientGroup,
    Synchronisation,
    bucket_parameters,
    gradient_group,
)
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack


@dataclass(frozen=True)
class LastBucket:
    """Prices of the `ENDS` on one node class."""

    sync: Synchronisation
    network: Network
    dp_mode: str
    stack: SoftwareStack
    precision: Precision

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
        """How fast the bucket goes that holds it."""
        s = self.sync.sizes
        ranks = s.gradient_ranks
        return gradient_group(
            self.network,
            ranks,
            s.sharers(ranks) if self.dp_mode in GATHERS_IN_FORWARD else ranks,
            s.tp,
            s.tp,
            self.dp_mode,
            self.stack,
            bucket=maximum(bucket_parameters(self.stack, ranks), dense),
            width=self._width(end),
        )

    def _is_shown(self, end: str) -> bool:
        is_apart = parameter_bytes(self.stack, self.precision) < WEIGHT_BYTES
        return self.stack.dp_overlap and (end == ENDS[0] or (end == ENDS[2] and is_apart))

    def _width(self, end: str) -> float:
        """Bytes of a parameter where it is gathered: 16 bits, but for heads that are 8-bit products."""
        is_narrow = end != ENDS[0] and self.stack.narrow_head
        return parameter_bytes(self.stack, self.precision) if is_narrow else WEIGHT_BYTES
