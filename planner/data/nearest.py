"""Find the names that a misspelt one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_SUGGESTIONS = 3


def nearest(name: str, candidates: Iterable[str]) -> tuple[str, ...]:
    """Return up to three candidates close to a name, the closest first; case does not count.

    Where some differ by a slip of a letter or two, only those.
    """
    by_lower: dict[str, str] = {}
    for candidate in candidates:
        by_lower.setdefault(candidate.lower(), candidate)
    # Longer input than any name only costs time: difflib is quadratic in it.
    wanted = name.lower()[:100]
    if slips := difflib.get_close_matches(wanted, by_lower, n=MAX_SUGGESTIONS, cutoff=0.9):
        return tuple(by_lower[c] for c in slips)
    close = difflib.get_close_matches(wanted, by_lower, n=MAX_SUGGESTIONS, cutoff=0.6)
    containing = sorted(c for c in by_lower if len(wanted) >= 2 and wanted in c and c not in close)
    return tuple(by_lower[c] for c in (close + containing)[:MAX_SUGGESTIONS])


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Say `; did you mean a, b or c?` where something is close, else nothing."""
    found = nearest(name, candidates)
    if not found:
        return ""
    listed = " or ".join(filter(None, (", ".join(found[:-1]), found[-1])))
    return f"; did you mean {listed}?"
