"""Prove in another problem, as far as it holds, what a search has proven of the parts of one.

Where the other problem is better than several more in which nothing is better, what holds there holds in all
of these (`planner.search.floors`), and none of them need prove it again.
"""

from __future__ import annotations

from planner.data.problem import Problem
from planner.search.driver import Search
from planner.search.floors import ANY_VIRTUAL, Cell, Floors
from planner.search.openings import Opener
from planner.search.virtual import VirtualOpener
from planner.search.virtual_items import VirtualPair, VirtualPart
from planner.units import MS


def prove_again(problem: Problem, done: Floors, step_s: float) -> Floors:
    """Bounds of the parts that a search has closed, in another problem.

    Parameters
    ----------
    done
        What the search has proven.
    step_s
        Step of the best plan that it found [s]: bounds beyond its gaps are of no interest. No plan is
        looked for.
    """
    search = Search(problem, None, floors=Floors())
    floors = search.frontier.floors
    if not len(search.table):
        return floors
    search.list_parts()
    search.incumbent.step_s = step_s
    if not isinstance(search.opener, Opener):
        return floors
    prover = VirtualProver(search.bounds, search.clock, search.opener)
    for cell, here in done.counterparts(problem, search.table):
        if search.clock.is_up:
            break
        proof = done.proven[cell]
        if here.virtual_stages != 1 and proof.bound_s >= prover.cutoff_s:
            prover.prove(here, whole_numbers=proof.whole_numbers)
        elif here.virtual_stages == 1 and proof.bound_s >= search.frontier.cutoff_s:
            limits = search.opener.limits_of(here.choice, here.stages)
            cutoff_s = search.opener.cutoff_beyond_s(0.0)
            found = search.opener.relaxer.bound(here.choice, limits, here.stages, cutoff_s, fine=False)
            floors.note(here, found.bound_s)
    return floors


class VirtualProver(VirtualOpener):
    """Bounds parts with virtual stages and looks for no plan."""

    def prove(self, cell: Cell, *, whole_numbers: bool) -> None:
        """Bound a part up to the cutoff, by a program in whole numbers only where asked to."""
        pair = VirtualPair(cell.choice, cell.stages)
        limits = self.limits_of(pair)
        if limits is None:
            return
        if cell.virtual_stages == ANY_VIRTUAL:
            if not self._may_win(pair, limits):
                self.frontier.floors.note(cell, self.cutoff_s)
            return
        bound_s = self.space.bounds_of(pair).get(cell.virtual_stages)
        if bound_s is None:
            return
        part = VirtualPart(cell.choice, cell.virtual_stages, cell.stages, limits)
        bound_s = self._raised_s(self._capacity_s(bound_s, part), part)
        for integral in (False, True)[: 1 + whole_numbers]:
            if bound_s < self.cutoff_s:
                found = self._relaxed(part, self.cutoff_s, integral=integral)
                bound_s = max(bound_s, min(found.bound_ms * MS, self.cutoff_s))
        self.frontier.floors.note(cell, bound_s)
