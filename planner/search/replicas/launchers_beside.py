"""Searches for a narrower launcher in a process of their own, while this one bounds mixes.

Two take long and need nothing of mixes: that for FlagScale's plans, and that for Megatron-LM's where a share
of the time limit cut it, which may find better plans for as long as there is time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from planner.data.result import Result
from planner.search.beside import Beside, may_have_others
from planner.search.meshes.driver import MeshSearch
from planner.search.progress import Reporter
from planner.search.replicas.mixing import SHARE_BESIDE, Mixing

if TYPE_CHECKING:
    from planner.search.replicas.driver import ReplicaSearch

SHARE_OF_REST = 0.95
"""Share of the time that is left for which Megatron-LM's plans are searched further: the answer is to come
in time. A guess."""


def flagscale_beside(search: ReplicaSearch, mixing: Mixing) -> Beside[Result] | None:
    """Search FlagScale's plans in another process, where there is one and mixes come meanwhile."""
    may = "flagscale" not in search.proven_s and may_have_others(search.whole.options.workers)
    if not may or mixing.mixes is None or search.incumbent.step_s is None:
        return None

    def found(is_unwanted: Callable[[], bool]) -> Result:
        own = search.search_for("flagscale", MeshSearch, SHARE_BESIDE)
        own.reporter, own.clock.is_unwanted = Reporter(own.clock, None), is_unwanted
        return own.run()

    return _begun(found)


def megatron_beside(search: ReplicaSearch) -> Beside[Result] | None:
    """Go on with Megatron-LM's plans in another process, where there is one and a limit cut them."""
    own, left_s = search.cut_search, search.clock.left_s
    may = own is not None and not search.is_stopped and may_have_others(search.whole.options.workers)
    if own is None or not may or left_s is None or search.clock.is_up:
        return None

    def found(is_unwanted: Callable[[], bool]) -> Result:
        own.reporter, own.clock.is_unwanted = Reporter(own.clock, None), is_unwanted
        return own.go_on(SHARE_OF_REST * left_s)

    return _begun(found)


def _begun(found: Callable[[Callable[[], bool]], Result]) -> Beside[Result] | None:
    with suppress(OSError):
        return Beside(found)
    return None
