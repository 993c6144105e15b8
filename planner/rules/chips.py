"""What the chip must be able to do, and how tensor-parallel groups sit in a node.

Each rule returns None where it holds, else a sentence with the thing, the value and the way out.
"""

from __future__ import annotations

from planner.data.chip import Chip, Precision
from planner.data.precision import chip_supports as chip_supports
from planner.data.precision import supported_precisions


def precision_runs(chip: Chip, precision: Precision) -> str | None:
    """The chip multiplies in the number format: it states a peak, and on CUDA it is new enough.

    Source: see `planner.data.precision`; Megatron-LM itself checks none of this at start.
    """
    if chip_supports(chip, precision):
        return None
    capability = f" (compute capability {chip.compute_capability})" if chip.compute_capability else ""
    able = supported_precisions(chip)
    return (
        f"precision {precision}: chip {chip.id}{capability} does not have it; "
        f"it has {', '.join(able) or 'none'}; change the precision or leave the chip out"
    )


def tensor_group_stays_in_node(tp: int, chips_per_node: int, node_class: str) -> str | None:
    """A tensor-parallel group never leaves a node: tp divides the node's chips.

    Our choice, as Megatron would let it span nodes: Narayanan et al. 2021, "Efficient Large-Scale
    Language Model Training on GPU Clusters Using Megatron-LM", section 3.2, takeaway 1. Ranks are
    dealt in blocks of tp (megatron-core 0.19.2, megatron/core/parallel_state.py, `RankGenerator`),
    so that with a divisor no block leaves its host.
    """
    if tp_fits_node(tp, chips_per_node):
        return None
    return f"tensor_parallel {tp}: a node of class {node_class} has {chips_per_node} chips; take a divisor"


def tp_fits_node(tp: int, chips_per_node: int) -> bool:
    """Whether tensor-parallel groups fill a node without a rest."""
    return chips_per_node % tp == 0
