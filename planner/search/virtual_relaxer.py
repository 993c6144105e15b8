"""Bounds of parts with virtual stages by the relaxation over their classes (`formulations.virtual_classes`).

Rows (path) that one part needs are kept for all of its shape, as a path knows no times.
"""

from __future__ import annotations

from formulations.interleaved_paths import PathRow
from formulations.virtual_classes_data import VirtualClassesData, VirtualClassesResult
from planner.search.bound_data import BoundData
from planner.search.openings import Opener
from planner.search.state import Clock
from planner.search.virtual_dives import VirtualDiver
from planner.search.virtual_items import VirtualPart
from planner.units import MS

FIRST_ROUNDS, RAISING_ROUNDS = 2, 6
"""Rounds of rows (path) of the relaxation of a part, at the cutoff that counts and at lower ones. A guess."""
MOST_PATHS = 80
"""Rows (path) that are kept for parts of one shape. A guess."""


class VirtualRelaxer(VirtualDiver):
    """Bounds parts of one search."""

    def __init__(self, bounds: BoundData, clock: Clock, opener: Opener) -> None:
        super().__init__(bounds, clock, opener)
        self._paths: dict[tuple[int, int, int], dict[PathRow, None]] = {}
        """By stages, micro-batches and virtual stages: rows (path) found, the last to count at the end."""

    def _relaxed(
        self,
        part: VirtualPart,
        cutoff_s: float,
        *,
        integral: bool,
        rounds: int = FIRST_ROUNDS,
    ) -> VirtualClassesResult:
        from formulations import virtual_classes

        tables = self.tables.of_classes(part.choice, part.virtual_stages, part.stages)
        capacity = self._capacity(part)
        used = {c: one for c, one in tables.data.items() if part.limits.most[c]}
        data = VirtualClassesData(
            classes=used,
            tables=tables.tables,
            fits=capacity.fits(cutoff_s / MS),
            fewest=capacity.fewest,
            most=capacity.most,
            hop_ms=tables.times.hop_ms,
            sends_block=self._sends_block(part.virtual_stages),
            cutoff_ms=cutoff_s / MS,
        )
        key = part.stages, data.sample.stage.num_microbatches, part.virtual_stages
        known = self._paths.setdefault(key, {})
        found = virtual_classes.solve(
            data, self._solve_options(), integral=integral, rows=tuple(known), rounds=rounds
        )
        for row in found.rows:
            known.pop(row, None)
            known[row] = None
        for row in list(known)[:-MOST_PATHS]:
            del known[row]
        self.opener.programs += 1
        self.work += found.work
        return found
