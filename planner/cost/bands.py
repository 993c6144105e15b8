"""How far off a predicted step time may be, as measured runs of the same chip and software were.

The table (`instances/tables/error_bands.yaml`) holds what four of five published runs stay within, also those
of a source that had no part in it (`benchmarks/error_bands.py`). It says how good the predictions are and
changes none of them.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

from planner.cost.kernels.relatives import TablesOf, tables_of
from planner.data.chip import Chip
from planner.data.model_spec import ModelSpec
from planner.data.read import parse_text
from planner.data.stack import SoftwareStack

SCALED_BAND = 0.35
"""Relative error where nothing like it was measured (published comparisons of unanchored predictors)."""


@lru_cache(maxsize=1)
def _bands() -> dict[tuple[str, str, str, TablesOf], Any]:
    text = (resources.files("planner.instances") / "tables" / "error_bands.yaml").read_text()
    return {
        (b["chip"], b["stack"], b["kind"], b["tables"]): b for b in parse_text(text, "error_bands")["bands"]
    }


def error_band(chip: Chip, stack: SoftwareStack, model: ModelSpec) -> float:
    """Relative error that the step time on one chip may have.

    That of runs on the same chip and software, else the same software, else the same chip, else all; anchored
    where the stack carries a measured factor for the chip. A chip that is scaled from a relative is never
    trusted more than all such chips deserve, and one that is scaled from another maker's, whose kernels it
    never runs, no more than its like.
    """
    kind = "moe" if model.moe is not None else "dense"
    return _band(chip.id, stack.id, kind, tables_of(chip), chip.id in stack.time_factor)


@lru_cache(maxsize=1024)
def _band(chip: str, stack: str, kind: str, tables: TablesOf, is_anchored: bool) -> float:
    bands = _bands()
    column = "anchored" if is_anchored else "unanchored"
    order = ((chip, stack), ("*", stack), (chip, "*"), ("*", "*"))
    for key in order:
        if (*key, kind, tables) in bands:
            return float(bands[(*key, kind, tables)][column])
    return SCALED_BAND
