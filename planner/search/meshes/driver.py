"""Search for `flagscale`: stages that differ in tensor and data parallelism, with a bound over all of them.

The space: every batch and shape of `planner.search.meshes.shapes`, every number of stages and every sequence
of shapes that the hosts can hold in whole tensor-parallel groups, every split of the layers (leading ones
of another kind on the first stage), and either full recomputation of any number of layers on each stage,
or selective recomputation on all. No context parallelism, no virtual stages, as FlagScale has none. What is
pinned holds for every stage.

A plan with equal degrees comes first, from the search for Megatron-LM; then pipelines of one shape a class,
and changes to them that help. Best-first: a family of batches (`planner.search.meshes.families`) with all
its numbers of stages is bounded by `planner.search.meshes.bounding`, cut by what its ends are where these
share an embedding (`planner.search.meshes.ends`), by the number of stages down to one, then by its batches,
then by the first stage at which a pipeline differs from the best one that came up; a whole sequence becomes
a program, as in `planner.search.driver`. Pipelines that come up are tried, and changed where that helps;
now and then those of a batch are annealed (`planner.search.meshes.annealer`). Where no better plan turns up
for long the search ends with the bound it has, and the result is no more than feasible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.cost.pricing import price
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Result
from planner.search.bound_data import bound_data
from planner.search.clock import LEAST_SHARE_S
from planner.search.driver import Search
from planner.search.items import Prefix
from planner.search.kinds import check_kinds, layer_kinds
from planner.search.meshes import sequences
from planner.search.meshes.annealer import MeshAnnealer
from planner.search.meshes.neighbours import Place, first_sequences, improve, sequence_of
from planner.search.meshes.opener import MeshOpener
from planner.search.meshes.pairs import list_lengths, list_pairs, longest_of
from planner.search.meshes.shapes import list_batches
from planner.search.progress import Progress
from planner.search.space import Pairs

BLOCKS, LOOKS = 400, 120
"""Choices of one shape a class that are listed, and pipelines of them that are looked at for first plans."""
GAP_OF_UNIFORM = 0.01
"""Gap at which the search for equal degrees ends: it gives plans to begin with, and proves nothing here."""
PATIENCE_OF_UNIFORM = 20, 1.0
"""`Search.patience` of it: a guess."""
SHARE_OF_UNIFORM = 0.2
"""Share of the time limit that the search for equal degrees may take: it ends by itself where that pays no
more, and without its plan little is closed. A guess."""

TOO_MANY = 3
"""Batches with too many pipelines to list behind which no more are listed. A guess."""
STALE_SETS = 800
"""Sets of pipelines and programs opened without a better plan after which the search ends with its bound."""
NOTHING_FITS = "no plan fits; give chips with more memory, more of them, or fewer wishes"
"""The reason where time is too short for a better one."""
LIMITS = {"max_context_parallel": 1, "max_virtual_stages": 1}
"""Options that hold for FlagScale whatever the user allows."""


def pinned_beyond(problem: Problem) -> str | None:
    """What is pinned or forbidden that no stage-by-stage plan can keep, in a sentence."""
    pins, ruled_out = problem.options.pin.items(), problem.options.forbid
    wishes = [f"{name}={value} is pinned" for name, value in pins if name in ("cp", "vp") and value > 1]
    wishes += [f"{wish} is forbidden" for wish in ("cp=1", "vp=1") if wish in ruled_out]
    if not wishes:
        return None
    return f"{' and '.join(wishes)}; target flagscale has no context parallelism and no virtual stages"


def search_meshes(
    problem: Problem,
    on_progress: Callable[[Progress], None] | None = None,
    seeds: Sequence[Plan] = (),
) -> Result:
    """The best plan whose stages may differ in degrees; `seeds` are plans to begin with.

    Raises
    ------
    InstanceError, SolverError
        As `planner.search.driver.search`.
    """
    check_kinds(problem)
    return MeshSearch(problem, on_progress, seeds).run()


class MeshSearch(Search):
    """One search; `run` does it."""

    def __init__(
        self,
        problem: Problem,
        on_progress: Callable[[Progress], None] | None,
        seeds: Sequence[Plan] = (),
    ) -> None:
        # Classes that must be busy are asked of whole pipelines, as not each shape can lie on each of them.
        options = problem.options.model_copy(update=LIMITS | {"use": ()})
        super().__init__(problem.model_copy(update={"options": options}), on_progress, seeds)
        self.use, self.stale_sets = problem.options.use, STALE_SETS
        self.tried: set[Place] = set()
        self.meanwhile: Callable[[], None] | None = None
        """What is done behind the first plans, which may bring a better one."""
        self.reason = pinned_beyond(problem)
        self.of_equal_degrees = self.problem.model_copy(
            update={"options": options.model_copy(update={"use": problem.options.use})}
        )
        """What the search for equal degrees is asked."""

    def _search(self) -> bool:
        if self.reason is not None:
            return False
        if not self.seeds:
            self._uniform_plans()
        self.reporter.report("listing choices", self.incumbent.step_s, None, 0, 0)
        if self._is_up_already():
            return True
        opener = self.make_opener()
        if self._is_up_already():
            return True
        self.pairs = list_pairs(self.problem, opener.batches, self.bounds)
        opener.longest = longest_of(self.pairs)
        is_left = ~np.isin(self.pairs.choice, self._list_few(opener))
        self.pairs = Pairs(*(values[is_left] for values in vars(self.pairs).values()))
        opener.longest = longest_of(self.pairs)
        lengths = list_lengths(self.pairs, opener.families[: opener.num_wide])
        self.frontier.queue.stream(np.array([bound_s for bound_s, _ in lengths]), lambda i: lengths[i][1])
        self.is_listed = True
        self._first_plans(opener)
        if self.meanwhile is not None:
            self.meanwhile()
        return self._loop(opener) or self.is_stopped

    def _is_up_already(self) -> bool:
        """Whether the limit has passed before all is listed: the plans at hand are then all that is known."""
        is_up = self.clock.is_up and not self.is_stopped
        if is_up:
            self.offer_seeds()
        return is_up

    def _list_few(self, opener: MeshOpener) -> list[int]:
        """Queue all pipelines of the batches that have few; their numbers.

        Once some have too many the others are left alone as well: on more chips all do.
        """
        few, most, many = list[int](), sequences.MOST_LISTED, 0
        for number, longest in opener.longest.items():
            mine = np.flatnonzero(self.pairs.choice == number)
            listed: list[tuple[float, list[tuple[int, ...]]]] = []
            for p, bound_s in zip(
                self.pairs.stages[mine].tolist(), self.pairs.bound_s[mine].tolist(), strict=True
            ):
                places, part = opener.places.of(number, longest), Prefix(number, p, ())
                found = sequences.list_sequences(self.problem, opener.batches[number], places, part, most)
                if found is None or sum(len(orders) for _, orders in listed) > most:
                    many += 1
                    break
                listed.append((bound_s, found))
            else:
                few.append(number)
                for bound_s, orders in listed:
                    opener.push_orders(bound_s, number, orders)
            if many >= TOO_MANY or self.clock.is_up:
                break
        return few

    def make_opener(self) -> MeshOpener:
        """Price all degrees, and make what opens parts of them."""
        prices = price(self.problem, self.table.degrees)
        kinds = layer_kinds(self.problem.model)
        assert kinds is not None
        sends_block = not self.problem.stack.p2p_overlap
        self.bounds = bound_data(self.problem.model.num_layers, kinds, prices, sends_block=sends_block)
        batches = list_batches(self.problem, self.table, prices)
        none = np.zeros(0, dtype=np.int64)
        self.pairs = Pairs(none, none, np.zeros(0))
        opener = MeshOpener(
            self.problem, prices, self.table, self.bounds, self.frontier, self.clock, batches, self.use
        )
        self.opener = opener
        self.annealer = MeshAnnealer(opener)
        return opener

    def _uniform_plans(self) -> None:
        """The best plans of Megatron-LM, which come before all else."""
        limit_s = self.clock.left_s
        share_s = None if limit_s is None else max(SHARE_OF_UNIFORM * limit_s, LEAST_SHARE_S)
        options = self.of_equal_degrees.options.model_copy(
            update={
                "time_limit_s": share_s,
                "gap": max(self.problem.options.gap, GAP_OF_UNIFORM),
                "max_virtual_stages": 1,
                # No mesh of several classes is among the plans of this search.
                "forbid": tuple(dict.fromkeys((*self.problem.options.forbid, "stages=mixed"))),
            }
        )
        asked = self.of_equal_degrees.model_copy(update={"target": "megatron-lm", "options": options})
        uniform = Search(asked, None)
        uniform.patience = PATIENCE_OF_UNIFORM
        found = self._ran(uniform)
        self.reason = found.reason
        plans = [found.plan, *(other.plan for other in found.runners_up)]
        self.seeds = [plan for plan in plans if plan is not None]

    def _ran(self, search: Search, more_s: float | None = None) -> Result:
        """What a search within this one found, in `more_s` where it goes on [s]; Ctrl-C leaves no time."""
        found = search.run() if more_s is None else search.go_on(more_s)
        self.clock.was_felt |= found.hurried
        if search.is_stopped:
            self.is_stopped = True
            self.clock.stop()
        return found

    def _first_plans(self, opener: MeshOpener) -> None:
        self.offer_seeds()
        for plan in self.seeds:
            place = sequence_of(self.problem, opener.batches, plan)
            # A plan of more nodes may be at hand; without its hosts it shows nothing here.
            if place is not None and opener.is_allowed(*place):
                opener.try_order(*place)
        for choice, order in first_sequences(opener, BLOCKS)[:LOOKS]:
            if self.clock.is_up:
                return
            opener.try_order(choice, order)
            self.reporter.report("first plans", self.incumbent.step_s, None, 0, len(self.frontier.queue))
        improve(opener, self.tried)
        self.improved = opener.best

    def _opened(self, left: int) -> None:
        """Anneal now and then, and change what has been found where that is better."""
        if isinstance(self.opener, MeshOpener):
            self.annealer.look(self.bound_s)
            if self.opener.best != self.improved:
                improve(self.opener, self.tried)
                self.improved = self.opener.best
        super()._opened(left)

    def _why_infeasible(self) -> str:
        """As the search for equal degrees has it, whose tables tell by how much the closest plan misses."""
        if self.reason is None:
            self._uniform_plans()
        return self.reason or NOTHING_FITS
