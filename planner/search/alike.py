"""Search for launchers with one setting of recomputation for all stages, as Megatron-Bridge has.

The setting joins the outer choices: every row of degrees stands once with nothing recomputed, once with
core attention and once with whole layers. In the first two the recomputation is part of the prices, and the
search is as exact as for stages that choose on their own. In the third each stage is bounded with the fewest
whole layers that it needs; a launcher takes one number r for all, of which a stage recomputes min(r, its
layers), so that this bounds from below whatever r is. A split of the layers is judged with the least r with
which it fits: a shorter backward ends every piece of work no later, so that no other r is better. The
program of an order knows a range of r (`StageSelectionData.alike`): where its answer needs some r above the
least of the range, the range is cut there. Below, that answer does not fit; above, its objective is exact.

With virtual stages r may exceed the layers of a chunk only where all chunks of its stage are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from planner.cost.prices import Prices
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.search.degrees import DegreeTable
from planner.search.referee import Referee
from planner.simulate.evaluate import evaluate_with_prices
from planner.simulate.predictions import stacked

Setting = Literal["none", "selective", "full"]
"""What all stages recompute."""


def settings_of(problem: Problem) -> tuple[Setting, ...]:
    """The settings that the user's wishes let be."""
    forbid = problem.options.forbid
    kinds: tuple[Setting, ...] = ("selective", "full")
    return ("none", *(kind for kind in kinds if f"recompute={kind}" not in forbid))


def spread(problem: Problem, table: DegreeTable, prices: Prices) -> tuple[DegreeTable, Prices, Referee]:
    """Rows of degrees once for each setting, prices with the setting built in, and who judges their plans."""
    settings = settings_of(problem)
    parts = [_built_in(prices, setting) for setting in settings]
    rows = np.tile(np.arange(len(table)), len(settings))
    return table.taken(rows), stacked(parts), AlikeReferee(problem, prices, settings, len(table))


def _built_in(prices: Prices, setting: Setting) -> Prices:
    """Prices of layers that recompute by a setting, and save nothing by what it leaves out."""
    kept, selective = prices.layer_activation_bytes, prices.layer_activation_selective_bytes
    if setting == "full":
        return replace(prices, layer_activation_selective_bytes=kept)
    if setting == "none":
        return replace(prices, layer_activation_selective_bytes=kept, layer_activation_full_bytes=kept)
    return replace(
        prices,
        layer_backward_s=prices.layer_backward_s + prices.layer_selective_s,
        layer_activation_bytes=selective,
        layer_activation_selective_bytes=selective,
        layer_activation_full_bytes=selective,
        layer_working_bytes=prices.layer_working_bytes + (kept - selective),
    )


class AlikeReferee(Referee):
    """Gives all stages of a plan the setting of its row, then evaluates it."""

    def __init__(
        self, problem: Problem, prices: Prices, settings: tuple[Setting, ...], num_rows: int
    ) -> None:
        super().__init__(problem, prices)
        self.settings, self.num_rows = settings, num_rows

    def recomputes_alike(self, choice: int) -> bool:
        """As of `Referee`."""
        return self.settings[choice // self.num_rows] == "full"

    def judged(self, plan: Plan, choice: int) -> tuple[Plan, Evaluation] | None:
        """As of `Referee`, of the completed plan; None where no number of layers makes all stages fit."""
        setting, row = self.settings[choice // self.num_rows], choice % self.num_rows
        for completed in _completed(plan, setting):
            evaluation = evaluate_with_prices(self.problem, completed, self.prices, row)
            if not evaluation.violations:
                return completed, evaluation
        return None


def _completed(plan: Plan, setting: Setting) -> Iterator[Plan]:
    """The plan with all stages alike; with whole layers by the least number first."""
    least = max(stage.recompute_layers for stage in plan.stages)
    if setting == "selective":
        yield _with(plan, "selective", [0] * len(plan.stages))
    elif setting == "none" or least == 0:
        yield plan
    else:
        counts = [[last - first + 1 for first, last in stage.chunks] for stage in plan.stages]
        for number in range(least, max(map(max, counts)) + 1):
            if any(min(own) < number and min(own) < max(own) for own in counts):
                return
            yield _with(plan, "full", [max(min(number, own[0]), 1) for own in counts])


def _with(plan: Plan, kind: Setting, layers: list[int]) -> Plan:
    stages = tuple(
        stage.model_copy(update={"recompute": kind, "recompute_layers": count})
        for stage, count in zip(plan.stages, layers, strict=True)
    )
    return plan.model_copy(update={"stages": stages})
