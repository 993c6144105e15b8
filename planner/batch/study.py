"""What the variants of a study change against the problem as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.batch.what_if import BASE

Row = dict[str, Any]


def add_changes(rows: Sequence[Row]) -> None:
    """Fill in, in place, what each variant changes against its study's base.

    step_change
        Step time over that of the base, minus 1: 0.08 is 8% slower.
    tokens_per_s_change
        Tokens a second over those of the base, minus 1; tells batches and sequences apart fairly.
    gain_per_node, gain_per_million_usd
        Of nodes bought: tokens_per_s_change for each node, and for each million dollars.
    """
    base = {row["study"]: row for row in rows if row["study"] is not None and row["variant"] == BASE}
    for row in rows:
        first = base.get(row["study"])
        if first is None or first["step_s"] is None or row["step_s"] is None:
            continue
        row["step_change"] = row["step_s"] / first["step_s"] - 1
        gain = row["tokens_per_s_change"] = row["tokens_per_s"] / first["tokens_per_s"] - 1
        if (row["nodes_changed"] or 0) > 0:
            row["gain_per_node"] = gain / row["nodes_changed"]
            if row["price_usd"]:
                row["gain_per_million_usd"] = gain / row["price_usd"] * 1e6
