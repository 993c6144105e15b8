"""The time that a chip waits for its host, which launches too slowly, or waits for the chip itself.

How many launches a piece has stands in `launches.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.elementwise import Values, exists, maximum, minimum, total, where
from planner.cost.kernels.launches import DENSE_LAUNCHES
from planner.cost.lazy import lazy
from planner.cost.prices import PARTS
from planner.cost.sizes import Sizes
from planner.data.chip import Chip
from planner.data.stack import SoftwareStack
from planner.units import MS

HEAD_LAUNCHES = 1.0
"""Launches of final norm, head and loss over those of a dense layer (guess: some thirty kernels each)."""

Parts = list[Values]
"""A time in the order of PARTS."""

TENSOR_PARALLEL = PARTS.index("tp")

TINY_S = 1e-15
"""Less than any time of a piece, so that nothing is divided by zero [s]."""

LAUNCHES_BESIDE_REDUCTION = 2.0 / DENSE_LAUNCHES
"""Launches of a reduction and of the kernel behind it, over those of a dense layer: for them a chip idles
where the host waits for it before and after (guess: two launches)."""


def host_layer_s(stack: SoftwareStack, chip: Chip) -> float:
    """What the host of a chip takes to launch the forward of a dense layer [s]."""
    slower = stack.time_factor.get(chip.id, 1.0) * chip.host_launch_factor
    return slower * stack.host_layer_floor_ms * MS


@dataclass(frozen=True)
class HostWaits:
    """What the chips of one class wait for."""

    stack: SoftwareStack
    chip: Chip
    sizes: Sizes

    @lazy
    def layer_s(self) -> float:
        """What the host takes to launch the forward of a dense layer [s]."""
        return host_layer_s(self.stack, self.chip)

    def step_s(self, tensors: int) -> float:
        """Least time of the optimizer's step for parameters in so many tensors [s]."""
        launches = self.stack.optimizer_tensor_launches * tensors
        return launches / DENSE_LAUNCHES * self.layer_s

    def launched(self, parts: Parts, layers: Values, reductions: int = 0) -> Parts:
        """Parts of a piece with the time that the chip waits.

        The host launches it more slowly than the chip works, or, with `tp_collectives_synchronise`, launches
        each reduction among tensor-parallel ranks and what follows it only when the chip is idle.

        Parameters
        ----------
        layers
            Launches of the piece over those of a dense layer's forward.
        reductions
            Its reductions among tensor-parallel ranks.
        """
        stack = self.stack
        if not stack.host_layer_floor_ms:
            return parts
        layer_s = self.layer_s
        floor_s = layers * layer_s
        if stack.tp_collectives_synchronise:
            alone = parts[TENSOR_PARALLEL]
            idle = where(self.sizes.tp > 1, reductions * LAUNCHES_BESIDE_REDUCTION * layer_s, 0.0)
            floor_s = maximum(floor_s, total(parts) - alone) + alone + idle
        return with_host_floor(parts, floor_s)

    def amid(
        self, parts: Parts, layers: Values, within: tuple[Parts, Values, int], reductions: int = 0
    ) -> Parts:
        """Parts of a piece that the host launches amid another one, with which it shares a floor.

        Where the chip would wait for its host there, the piece fills that time: its parts shrink alike, so
        that both together take what their launches do.

        Parameters
        ----------
        within
            The other piece without its waits, its launches and its reductions.
        """
        if not self.stack.host_layer_floor_ms:
            return parts
        other, launches, reduced = within
        joint = [a + b for a, b in zip(other, parts, strict=True)]
        waits = self.launched(joint, launches + layers, reduced + reductions)[-1]
        more = waits - self.launched(*within)[-1]
        filled = minimum(maximum(-more, 0.0) / maximum(total(parts), TINY_S), 1.0)
        return [*((1.0 - filled) * part for part in parts[:-1]), maximum(more, 0.0)]


def parts_of(compute: Values, tp: Values, cp: Values, ep: Values, dp: Values = 0.0) -> Parts:
    """A time in the order of PARTS, the host's part zero."""
    return [compute, tp, cp, ep, dp, 0.0]


assert PARTS == ("compute", "tp", "cp", "ep", "dp", "host"), "`parts_of` fixes the order of parts"


def with_host_floor(parts: Parts, floor_s: Values) -> Parts:
    """Parts that take at least as long as the host needs to launch them; the rest of it is the host's part.

    Collectives are launched by the same host, so that they count towards the same floor.
    """
    if not exists(floor_s > 0):
        return parts
    return [*parts[:-1], maximum(floor_s - total(parts), 0.0)]
