"""What the chip must be able to do, and how tensor-parallel groups sit in a node.

Each rule returns None where it holds, else a sentence with the thing, the value and the way out.
"""

from __future__ import annotations

from planner.data.chip import Chip, Precision

LEAST_COMPUTE_CAPABILITY: dict[Precision, float] = {
    "fp16": 0.0,
    "bf16": 8.0,
    "fp8": 8.9,
    "fp8_block": 9.0,
    "mxfp8": 10.0,
    "nvfp4": 10.0,
}
"""CUDA compute capability from which a number format runs on tensor cores.

Sources: CUDA C++ Programming Guide 12, section "Compute Capabilities" (bf16 from 8.0; V100, T4,
Titan-RTX and RTX-20 lack it); Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/fp8.py,
`check_fp8_support`, `check_fp8_block_scaling_support`, `check_mxfp8_support`, `check_nvfp4_support`.
"""


def precision_runs(chip: Chip, precision: Precision) -> str | None:
    """The chip multiplies in the number format: it states a peak, and on CUDA it is new enough.

    Source: see `LEAST_COMPUTE_CAPABILITY`; Megatron-LM itself checks none of this at start.
    """
    if chip_supports(chip, precision):
        return None
    capability = f" (compute capability {chip.compute_capability})" if chip.compute_capability else ""
    able = [name for name in LEAST_COMPUTE_CAPABILITY if chip_supports(chip, name)]
    return (
        f"precision {precision}: chip {chip.id}{capability} does not have it; "
        f"it has {', '.join(able) or 'none'}; change the precision or leave the chip out"
    )


def chip_supports(chip: Chip, precision: Precision) -> bool:
    """Whether a chip multiplies in a number format."""
    if chip.peak_flop_per_s(precision) is None:
        return False
    if chip.backend != "cuda" or chip.compute_capability is None:
        return True
    return chip.compute_capability >= LEAST_COMPUTE_CAPABILITY[precision]


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
