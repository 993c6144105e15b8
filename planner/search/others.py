"""The parts of the space that lie beside those of the first opener, and what opens them."""

from __future__ import annotations

from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.search.beyond import BeyondOpener, leads_may_go_on
from planner.search.bound_data import BoundData
from planner.search.clock import Clock
from planner.search.degrees import DegreeTable, may_mix_stages
from planner.search.mixed.opener import MixedOpener
from planner.search.referee import Referee
from planner.search.state import Incumbent

OtherOpener = MixedOpener | BeyondOpener


def other_openers(
    problem: Problem,
    table: DegreeTable,
    prices: Prices,
    bounds: BoundData,
    incumbent: Incumbent,
    gap: float,
    clock: Clock,
    referee: Referee,
) -> list[OtherOpener]:
    """Stages that mix classes, leading layers beyond the first stage: what there is of them, queued."""
    openers: list[OtherOpener] = []
    if may_mix_stages(problem):
        openers.append(MixedOpener(problem, prices, table, bounds, incumbent, gap, clock))
    if leads_may_go_on(problem):
        openers.append(BeyondOpener(problem, prices, table, incumbent, gap, clock, referee))
    return openers
