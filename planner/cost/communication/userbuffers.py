"""Tensor-parallel collectives that run in pieces beside pieces of their products.

Transformer Engine's overlap through user buffers (pytorch/module/base.py, `initialize_ub`, methods
`ring_exchange`, `pipeline` and `bulk`; needs sequence parallelism):

- gathers before column-parallel forwards and row-parallel dgrads: a ring passes on a rank's piece while the
  product works on the piece at hand, so that only what outlasts all pieces but one is exposed;
- scatters after row-parallel forwards: the product of one piece runs beside the sum of the piece before, on
  the multiprocessors that the sum leaves, and the last sum is exposed;
- the other collectives of the backward pass run whole beside a product (`layer_communication.py`).

Products of fewer tokens are slower; how much, the tables of products say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.cost.communication.overlap import exposed_behind
from planner.cost.elementwise import Values, maximum, minimum, total
from planner.cost.kernels.compute import MatmulTimes, in_pieces
from planner.cost.kernels.operators import Matmul
from planner.cost.kernels.relatives import Relative
from planner.cost.sizes import Sizes
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack

MOST_RING_PIECES = 4.0
"""Pieces of a ring of eight ranks: it takes two ranks' pieces at a time (`aggregate` in NVIDIA's published
configurations for eight ranks; NeMo, collections/llm/recipes/tp_overlap_configs/userbuffers.py)."""

SCATTER_PIECES = 4.0
"""`num_splits` of all those configurations."""

SCATTER_SHARE = 20 / 132
"""Multiprocessors that sums take from the product beside them: `num_sm` is 16 to 24 in most of those
configurations, with `set_sm_margin`; of the 132 of an H100."""


@dataclass(frozen=True)
class PieceTimes:
    """Products of a layer in pieces and whole, one time a product [s]."""

    column_forward_s: tuple[Sequence[Values], Sequence[Values]]
    """In pieces, whole."""
    row_forward_s: tuple[Sequence[Values], Sequence[Values]]
    row_dgrad_s: tuple[Sequence[Values], Sequence[Values]]
    ring_pieces: Values


def piece_times(
    relative: Relative,
    matmuls: list[Matmul],
    whole: MatmulTimes,
    sizes: Sizes,
    precision: Precision,
    stack: SoftwareStack,
) -> PieceTimes:
    """Times of a layer's tensor-parallel products in pieces; `whole` has those of all its products."""
    column = [i for i, x in enumerate(matmuls) if x.split == "column"]
    row = [i for i, x in enumerate(matmuls) if x.split == "row"]
    ring = minimum(sizes.tp, MOST_RING_PIECES)
    gathered = in_pieces(relative, [matmuls[i] for i in (*column, *row)], ring, precision, stack)
    scattered = in_pieces(relative, [matmuls[i] for i in row], SCATTER_PIECES, precision, stack)
    return PieceTimes(
        column_forward_s=(gathered.forward_s[: len(column)], [whole.forward_s[i] for i in column]),
        row_forward_s=(scattered.forward_s, [whole.forward_s[i] for i in row]),
        row_dgrad_s=(gathered.dgrad_s[len(column) :], [whole.dgrad_s[i] for i in row]),
        ring_pieces=ring,
    )


def ring_gather_s(
    gather_s: Values, times: tuple[Sequence[Values], Sequence[Values]], pieces: Values
) -> Values:
    """What gathers add to products that take their input piece by piece [s]."""
    return total(
        maximum(parted - whole, 0.0) + exposed_behind(gather_s, parted * (1 - 1 / pieces))
        for parted, whole in zip(*times, strict=True)
    )


def pipelined_scatter_s(scatter_s: Values, times: tuple[Sequence[Values], Sequence[Values]]) -> Values:
    """What scatters add to products whose output they sum piece by piece [s]."""
    added, beside = [], 1 - 1 / SCATTER_PIECES
    for parted, whole in zip(*times, strict=True):
        slowed = maximum(parted, whole) / (1 - SCATTER_SHARE)
        left = maximum(scatter_s - slowed, 0.0) * beside + scatter_s / SCATTER_PIECES
        added.append(slowed - whole + left)
    return total(added)
