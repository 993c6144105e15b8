"""Clocks jump: nothing of the product asks a clock that somebody may set."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SET_BY_HAND = re.compile(
    r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(|\bdate\.today\(|CURRENT_TIMESTAMP"
)


def test_no_module_asks_a_clock_that_can_jump() -> None:
    asking = [
        str(path.relative_to(ROOT))
        for top in ("planner", "formulations")
        for path in sorted((ROOT / top).rglob("*.py"))
        if "templates" not in path.parts and SET_BY_HAND.search(path.read_text(encoding="utf-8"))
    ]
    assert asking == []
