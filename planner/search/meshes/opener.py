"""Open one part of the space of pipelines of free shapes: bound it, split it, or solve it.

The constants are guesses: they say what is looked at, never what is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from formulations.stage_selection_data import StageChoice
from planner.cost.prices import Floats, Prices
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.search.bound_data import BoundData
from planner.search.clock import Clock
from planner.search.degrees import DegreeTable, length_is_allowed
from planner.search.items import Item, Lengths, Order, Prefix, Program
from planner.search.meshes import sequences
from planner.search.meshes.assemble import assemble_meshes
from planner.search.meshes.bounding import Learned, bound_by_walks, bound_lengths
from planner.search.meshes.cutting import Cutter
from planner.search.meshes.ends import Ends
from planner.search.meshes.families import Family, found_in, list_families, make_family
from planner.search.meshes.listers import CREDIT, list_pipelines
from planner.search.meshes.places import Ints, Places, PlaceTables
from planner.search.meshes.relaxation import Found
from planner.search.meshes.shapes import Batch, can_be_placed, leads_to_its_end
from planner.search.meshes.tables import MeshTables
from planner.search.meshes.units import count_units
from planner.search.meshes.walks import MeshWalks
from planner.search.openings import TRIED_ORDERS, Opener
from planner.search.referee import confirmed
from planner.search.state import Frontier
from planner.simulate.evaluate import evaluate_stages
from planner.units import MS

COARSE_WORK, FINE_WORK = 200_000, 200_000
"""Points times shapes times stages of one walk, at first and where that leaves a part open."""
MOST_POINTS = 2000
MANY_LENGTHS = 12
"""Numbers of stages from which brackets stay whole, so that all parts are soon looked at once."""
COARSE_HALVINGS, FINE_HALVINGS = 1, 3
"""How often brackets are halved, of fewer lengths and in the end."""
WORTH_A_LOOK = 1e-3
"""Share of its bound by which a number of stages must rise to be looked at once more as it is. A guess."""
TRIED_MEMBERS = 2
"""Batches of a family in which what its walks come to is tried."""

Key = tuple[int, bool, Ends | None]
"""Of what prices are learned: a number, whether it is that of a family, and ends where they are given."""


class MeshOpener(Opener):
    """Opens parts whose orders are shapes of a batch: `choice` is its number, an order its shapes."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        bounds: BoundData,
        frontier: Frontier[Item],
        clock: Clock,
        batches: Sequence[Batch],
        use: Sequence[str] = (),
    ) -> None:
        super().__init__(problem, prices, table, bounds, frontier, clock)
        self.batches, self.use = batches, set(use)
        self.meshes = MeshTables(problem, prices, batches)
        self.tables = self.meshes  # type: ignore[assignment]
        self.places = PlaceTables(problem, prices, batches)
        self.chips_of_class = [node_class.num_chips for node_class in problem.cluster.classes]
        same = list_families(batches)
        self.families = [tuple(sorted(chain(*families))) for families in same]
        """Batches of what is bounded together: all that run as many sequences at a time, then by families."""
        self.num_wide = len(same)
        self.longest: dict[int, int] = {}
        """Most stages of every batch."""
        self._narrower: dict[int, range] = {}
        for number, families in enumerate(same):
            self._narrower[number] = range(len(self.families), len(self.families) + len(families))
            self.families += families
        self._made: dict[int, Family] = {}
        self.learned: dict[Key, Learned] = {}
        """Good prices of every batch, and of every family."""
        self.work = 0
        """Numbers that all looks went through, about."""
        self.best: tuple[float, int, tuple[int, ...]] | None = None
        """Step time, batch and shapes of the best plan that was judged here."""
        self.best_layers: tuple[int, ...] = ()
        """Its layers."""
        self.reached_s: dict[int, float] = {}
        """Step time of the best plan of every batch that was judged here."""
        self.credit = CREDIT
        """How many more attempts to list pipelines may fail."""
        self.promising: dict[int, tuple[Found, ...]] = {}
        """Pipelines that the last look at a batch came to."""

    def open(self, bound_s: float, item: Item) -> None:
        """Bound a part better, split it, or judge what is in it."""
        if isinstance(item, Lengths):
            self._look_at_lengths(bound_s, item)
        elif isinstance(item, Prefix):
            self._split(bound_s, item)
        else:
            self.sets_since_better += isinstance(item, Program)
            super().open(bound_s, item)

    def _look_at_lengths(self, bound_s: float, part: Lengths) -> None:
        """List the few pipelines of some numbers of stages; else bound these together, then cut them."""
        stages, known_s = np.array(part.stages), np.array(part.bounds_s)
        stages, known_s = self._open_lengths(stages, known_s)
        if len(stages):
            is_listed = list_pipelines(self, part, stages, known_s)
            stages, known_s = stages[~is_listed], known_s[~is_listed]
        if not len(stages):
            return
        lengths, family = stages.tolist(), self.family(part.choice, part.ends)
        if family is None:
            self.frontier.push(bound_s, part)
            return
        key: Key = (part.choice, True, part.ends)
        # What one number of stages is closed by is found sooner by walks.
        halvings = FINE_HALVINGS if len(lengths) == 1 else COARSE_HALVINGS * (len(lengths) < MANY_LENGTHS)
        found_s, found = self._walked(
            bound_s, key, family.batch, family.places, lengths, known_s, COARSE_WORK, halvings
        )
        if found_s.min() < self.frontier.cutoff_s:
            self._try_found_of_family(family, found)
        stages, known_s = self._open_lengths(stages, np.maximum(known_s, found_s))
        if len(stages):
            cutoff_s, may_rise = self.frontier.cutoff_s, False
            if len(lengths) == 1 and np.isfinite(cutoff_s):
                limits = float(known_s[0]) / MS, cutoff_s / MS
                may_rise = self.learned[key].is_unsettled(lengths[0], *limits)
                may_rise |= known_s[0] > part.bounds_s[0] * (1 + WORTH_A_LOOK)
            for least_s, piece in self._cutter.pieces(part, stages, known_s, may_rise=may_rise):
                self.frontier.push(least_s, piece)

    @property
    def _cutter(self) -> Cutter:
        return Cutter(self.problem, self.batches, self.families, self._narrower, self.longest)

    def family(self, number: int, ends: Ends | None = None) -> Family | None:
        """The tables of a family, kept as parts of it come again and again; None where time is up."""
        members = tuple(member for member in self.families[number] if member in self.longest)
        longest = self._cutter.longest_in(number)
        if ends is not None:
            return make_family(self.places, self.batches, members, longest, lambda: self.clock.is_up, ends)
        if number not in self._made:
            made = make_family(self.places, self.batches, members, longest, lambda: self.clock.is_up)
            if made is None:
                return None
            if number < self.num_wide:
                return made
            self._made[number] = made
        return self._made[number]

    def _try_found_of_family(self, family: Family, found: Sequence[Found]) -> None:
        """Try pipelines of a family in the first of its batches that has their shapes."""
        for member in family.members[:TRIED_MEMBERS]:
            mine = found_in(family, self.batches[member], found)
            if mine:
                self.promising[member] = mine
                self._try_found(member, mine)

    def _open_lengths(self, stages: Ints, bounds_s: Floats) -> tuple[Ints, Floats]:
        """Numbers of stages that may hold a better plan; the others are closed."""
        is_open = bounds_s < self.frontier.cutoff_s
        if not is_open.all():
            self.frontier.close(float(bounds_s[~is_open].min()))
        return stages[is_open], bounds_s[is_open]

    def _relaxed(
        self,
        bound_s: float,
        choice: int,
        lengths: Sequence[int],
        work: int,
        halvings: int,
        allowed: NDArray[np.bool_] | None = None,
    ) -> tuple[Floats, tuple[Found, ...]]:
        """Bounds of some lengths of a batch [s], and pipelines that came up."""
        places = self.places.of(choice, self.longest[choice])
        key: Key = (choice, False, None)
        args = self.batches[choice], places, lengths, np.full(len(lengths), bound_s), work, halvings
        return self._walked(bound_s, key, *args, allowed)

    def _walked(
        self,
        bound_s: float,
        key: Key,
        batch: Batch,
        places: Places,
        lengths: Sequence[int],
        known_s: Floats,
        work: int,
        halvings: int,
        allowed: NDArray[np.bool_] | None = None,
    ) -> tuple[Floats, tuple[Found, ...]]:
        """The same of a batch, or of a family as `key` says."""
        points = int(np.clip(work // (max(lengths) * len(batch.shapes)), 1, MOST_POINTS))
        units = count_units(batch, self.chips_of_class, points)
        cutoff_s, made = self.cutoff_beyond_s(bound_s), list[MeshWalks]()

        def walks_of(lengths: Sequence[int]) -> MeshWalks:
            chips, blocks = self.chips_of_class, not self.problem.stack.p2p_overlap
            made.append(MeshWalks(places, batch, lengths, chips, units, sends_block=blocks, allowed=allowed))
            return made[-1]

        learned, is_up = self.learned.setdefault(key, Learned()), lambda: self.clock.is_up
        # Without a plan times close nothing: walks are to come up with one.
        has_plan = np.isfinite(self.frontier.cutoff_s)
        if not has_plan or (key[1] and key[0] < self.num_wide):
            halvings *= int(has_plan)
            bound_ms, found = bound_by_walks(walks_of(lengths), cutoff_s / MS, is_up, halvings, learned)
        else:
            limits = known_s / MS, cutoff_s / MS
            bound_ms, found = bound_lengths(
                walks_of, lengths, limits, is_up, halvings, learned, is_whole=key[1]
            )
        self.work += sum(walks.work for walks in made)
        return bound_ms * MS, found

    def _try_found(self, choice: int, found: Sequence[Found]) -> None:
        for order, layers in found[:TRIED_ORDERS]:
            if (choice, order) not in self._tried and self.is_allowed(choice, order):
                self._tried.add((choice, order))
                self.try_order(choice, order, layers)

    def is_allowed(self, choice: int, order: tuple[int, ...]) -> bool:
        """Whether the classes have the hosts that the shapes take, and the user lets the order be."""
        if not length_is_allowed(self.problem.options, len(order)):
            return False
        if not can_be_placed(self.problem, self.batches[choice], order):
            return False
        # First and last stage go together, and all classes that must be busy are.
        batch = self.batches[choice]
        used = {self.problem.cluster.classes[batch.shapes[k].node_class].name for k in order}
        return self.use <= used and leads_to_its_end(self.problem, batch, order)

    def _split(self, bound_s: float, part: Prefix) -> None:
        """Bound pipelines as well as can be, take the best one out, and cut the rest by where they differ."""
        self.sets_since_better += 1
        batch = self.batches[part.choice]
        if len(part.shapes) == part.stages:
            self.push_orders(bound_s, part.choice, [part.shapes])
            return
        places = self.places.of(part.choice, self.longest[part.choice])
        listed = sequences.list_sequences(self.problem, batch, places, part, sequences.MOST_LISTED)
        if listed is not None and len(listed) <= sequences.FEW_LISTED:
            self.push_orders(bound_s, part.choice, listed)
            return
        lengths, allowed = (part.stages,), sequences.allowed_shapes(batch, part)
        if not allowed.any(axis=1).all():
            return
        bounds_s, found = self._relaxed(bound_s, part.choice, lengths, FINE_WORK, FINE_HALVINGS, allowed)
        bound_s = max(bound_s, float(bounds_s[0]))
        if bound_s >= self.frontier.cutoff_s:
            self.frontier.close(bound_s)
            return
        self._try_found(part.choice, found)
        if self.clock.is_up:
            self.frontier.push(bound_s, part)
            return
        if listed is not None:
            self.push_orders(bound_s, part.choice, listed)
            return
        order = found[0][0] if found else sequences.any_order(batch, part)
        self.push_orders(bound_s, part.choice, [order])
        for child in sequences.parts_beside(self.problem, batch, part, order):
            self.frontier.push(bound_s, child)

    def push_orders(self, bound_s: float, choice: int, orders: Sequence[tuple[int, ...]]) -> None:
        """Keep those pipelines open one by one that may be."""
        for order in orders:
            if self.is_allowed(choice, order):
                self.frontier.push(bound_s, Order(choice, order))

    def _bound_order(self, bound_s: float, part: Order) -> tuple[float, tuple[int, ...] | None]:
        """The bound of the prefix that became it stands."""
        return bound_s, None

    def _evaluated(
        self, choice: int, order: tuple[int, ...], stage_choice: StageChoice
    ) -> tuple[Plan, Evaluation]:
        batch = self.batches[choice]
        plan = assemble_meshes(self.problem, batch, order, stage_choice)
        rows = [batch.shapes[k].choice for k in order]
        evaluation = evaluate_stages(self.problem, plan, self.prices, rows)
        self.reached_s[choice] = min(evaluation.step_s, self.reached_s.get(choice, np.inf))
        if self.best is None or evaluation.step_s < self.best[0]:
            self.best = evaluation.step_s, choice, order
            self.best_layers = stage_choice.layers
        return confirmed(plan, evaluation)
