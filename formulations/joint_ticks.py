"""Times of `joint` in whole ticks, for its integer twin; rounding is explained in `stage_selection_cp`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulations.joint_data import JointData, Pair
from formulations.stage_selection_tables import RecomputeTable, least_bottleneck_of_ms, stage_times_ms
from formulations.stage_selection_ticks import Ints, Ticks, most_loss, tick_ms, times_in_ticks


@dataclass(frozen=True)
class JointTicks:
    """Times in ticks: of every stage on every class, and of the sends between two classes."""

    tick_ms: float
    of_class: tuple[Ticks, ...]
    send: Ints
    """[class, class]"""

    def table(self, name: str, at: Pair) -> Ints:
        """A table of `Ticks` for a stage on a class, [n]; 0 for no layers and where n do not fit."""
        of_class = self.of_class[at[1]]
        row: Ints = np.where(of_class.fits[at[0]], getattr(of_class, name)[at[0]], 0)
        return row


def joint_ticks(data: JointData, tables: tuple[RecomputeTable, ...]) -> JointTicks:
    """All times in ticks of one length; infinite bottlenecks leave the length at 1 ms."""
    first = data.of_class[0]
    pairs = list(zip(data.of_class, tables, strict=True))
    fastest = np.min([stage_times_ms(of_class, table) for of_class, table in pairs], axis=0)
    bottleneck_ms = least_bottleneck_of_ms(fastest, first.num_layers)
    tick = tick_ms(data.num_stages, first.num_microbatches, most_loss(first.num_layers), bottleneck_ms)
    return JointTicks(
        tick_ms=tick,
        of_class=tuple(times_in_ticks(of_class, table, tick) for of_class, table in pairs),
        send=np.floor(data.send_ms / tick).astype(np.int64),
    )
