"""Agreement on the scales of 8-bit products between ranks, where scales follow from earlier steps.

Delayed scaling needs the largest value of every tensor among the ranks that share it. Transformer Engine
reduces those of a whole pass at once when its region ends, nothing beside it (pytorch/fp8.py,
`reduce_and_update_fp8_tensors`): a region of Megatron-LM is a chunk of a stage, so that each micro-batch
does so once a chunk in its forward and once in its backward (core/transformer/transformer_block.py). The
ranks are all of the stage, or those that divide tensors and sequences with `tp_only_amax_red`
(core/parallel_state.py, `get_amax_reduction_group`). A few values a layer: all of the time is latency.
"""

from __future__ import annotations

from planner.cost.communication.collectives import collective_s
from planner.cost.communication.inside_node import SMALLEST_BYTES
from planner.cost.communication.links import Network
from planner.cost.communication.placement import spread_group
from planner.cost.elementwise import Values
from planner.cost.sizes import Sizes
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack


def agrees_on_scales(precision: Precision, stack: SoftwareStack) -> bool:
    """Whether ranks agree on scales after each pass of a chunk."""
    return precision == "fp8" and stack.scales_agreed_by != "nobody" and not stack.current_scaling


def scale_reduction_s(network: Network, sizes: Sizes, stack: SoftwareStack) -> Values:
    """Time that a pass of a chunk takes to agree on its scales, where ranks do [s], one number a choice."""
    ranks = sizes.stage_chips if stack.scales_agreed_by == "stage" else sizes.tp * sizes.cp
    spread = spread_group(ranks, sizes.ones, network.domain_chips)
    return collective_s(network, "all_reduce", SMALLEST_BYTES * sizes.ones, spread, sizes.ones)
