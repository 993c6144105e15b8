"""How many ranks of a mixed stage each class gives, and on which hosts they lie.

Ranks are dealt stage by stage, slowest class first; a class gives its ranks one after the other on hosts of
its own. A host holds ranks without a break, so that what is left on it goes on with the next ranks if they
are on the same class, and stays idle if not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from formulations.stage_selection_data import StageChoice
from planner.data.plan import Plan, Replica
from planner.data.problem import Problem
from planner.search.assemble import assemble_plan
from planner.search.degrees import DegreeTable

MAX_STEPS = 1000
"""Dealings of one stage that are tried for one order."""
LISTED_RANKS = 16
"""Ranks of a stage up to which every dealing is tried; beyond it those that fill hosts."""

Dealt = tuple[tuple[int, int], ...]
"""Node class and number of ranks, in rank order."""


@dataclass(frozen=True)
class Hosts:
    """What is left while ranks are dealt."""

    used: tuple[int, ...]
    """[node_class] hosts begun."""
    node_class: int = -1
    """Class of the host that was begun last."""
    chips_left: int = 0
    """Chips of it that are free."""


class Dealer:
    """Deals the ranks of orders of compositions for one row of degrees."""

    def __init__(
        self, problem: Problem, ranks_of_stage: int, chips_of_rank: int, left: Sequence[int]
    ) -> None:
        """`left` are the ranks that each class may give to mixed stages."""
        self.classes, self.left = problem.cluster.classes, tuple(left)
        self.ranks_of_stage, self.chips_of_rank = ranks_of_stage, chips_of_rank
        self.steps = 0

    @property
    def was_cut(self) -> bool:
        """Whether some dealings were not tried."""
        return self.steps > MAX_STEPS

    def deal(self, order: Sequence[Sequence[int]]) -> Iterator[tuple[Dealt, ...]]:
        """Every dealing of an order that the hosts can hold; stages list their classes in rank order."""
        self.steps = 0
        needs = self._least_chips(order)
        yield from self._deal(order, needs, 0, Hosts((0,) * len(self.classes)), self.left, ())

    def can_deal(self, order: Sequence[Sequence[int]]) -> tuple[bool, bool]:
        """Whether a dealing was found, and whether some were not tried."""
        found = next(self.deal(order), None) is not None
        return found, self.was_cut

    def _deal(
        self,
        order: Sequence[Sequence[int]],
        needs: Sequence[Sequence[int]],
        s: int,
        hosts: Hosts,
        left: tuple[int, ...],
        dealt: tuple[Dealt, ...],
    ) -> Iterator[tuple[Dealt, ...]]:
        if s == len(order):
            yield dealt
            return
        for stage in self._dealings(order[s], left):
            self.steps += 1
            if self.was_cut:
                return
            after = self._place(hosts, stage)
            if after is None or not self._suffices(after, needs[s + 1]):
                continue
            given = dict(stage) if len(stage) > 1 else {}
            still = tuple(n - given.get(c, 0) for c, n in enumerate(left))
            if self._fills(order[s + 1 :], still):
                yield from self._deal(order, needs, s + 1, after, still, (*dealt, stage))

    def _least_chips(self, order: Sequence[Sequence[int]]) -> list[list[int]]:
        """Chips that the stages from the s-th on take at least from each class."""
        needs = [[0] * len(self.classes)]
        for stage in reversed(order):
            ranks = self.ranks_of_stage if len(stage) == 1 else 1
            least = list(needs[0])
            for c in stage:
                least[c] += ranks * self.chips_of_rank
            needs.insert(0, least)
        return needs

    def _suffices(self, hosts: Hosts, needs: Sequence[int]) -> bool:
        for c, node_class in enumerate(self.classes):
            left = (node_class.num_nodes - hosts.used[c]) * node_class.chips_per_node
            if needs[c] > left + (hosts.chips_left if hosts.node_class == c else 0):
                return False
        return True

    def _fills(self, order: Sequence[Sequence[int]], left: Sequence[int]) -> bool:
        """Whether what is left may fill the mixed stages that are still to come, by any set of classes."""
        mixed = [stage for stage in order if len(stage) > 1]
        for own in mixed:
            inside = sum(set(stage) <= set(own) for stage in mixed)
            if inside * self.ranks_of_stage > sum(left[c] for c in own):
                return False
        return len(mixed) * self.ranks_of_stage <= sum(left)

    def _place(self, hosts: Hosts, stage: Dealt) -> Hosts | None:
        """The hosts after a stage; None where they do not suffice."""
        for c, ranks in stage:
            per_node = self.classes[c].chips_per_node
            left = hosts.chips_left if hosts.node_class == c else 0
            more = max(ranks * self.chips_of_rank - left, 0)
            begun = -(-more // per_node)
            used = tuple(n + begun * (i == c) for i, n in enumerate(hosts.used))
            if used[c] > self.classes[c].num_nodes:
                return None
            hosts = Hosts(used, c, left + begun * per_node - ranks * self.chips_of_rank)
        return hosts

    def _dealings(self, stage: Sequence[int], left: Sequence[int]) -> Iterator[Dealt]:
        """Numbers of ranks of each class of a stage, at least one each; most of the slowest first."""
        *given, last = stage
        if not given:
            yield ((last, self.ranks_of_stage),)
            return
        for counts in product(*[self._counts(c, left[c]) for c in given]):
            rest = self.ranks_of_stage - sum(counts)
            if 1 <= rest <= left[last]:
                yield (*zip(given, counts, strict=True), (last, rest))

    def _counts(self, node_class: int, most: int) -> list[int]:
        """Numbers of ranks that a class of a mixed stage may give, in descending order."""
        d = self.ranks_of_stage
        ranks_of_host = max(self.classes[node_class].chips_per_node // self.chips_of_rank, 1)
        counts = range(min(d - 1, most), 0, -1)
        if d <= LISTED_RANKS:
            return list(counts)
        return [n for n in counts if n == counts[0] or 0 in (n % ranks_of_host, (d - n) % ranks_of_host)]


def assemble_mixed_plan(
    problem: Problem, table: DegreeTable, choice: int, dealt: Sequence[Dealt], stage_choice: StageChoice
) -> Plan:
    """The plan of one row of degrees, one dealing of the ranks and one answer of `stage_selection`."""
    degrees = table.degrees
    tp = int(degrees.tensor_parallel[choice])
    chips = tp * int(degrees.context_parallel[choice])
    hosts_of_rank = hosts_of_ranks(problem, dealt, chips)
    plan = assemble_plan(problem, table, choice, [stage[0][0] for stage in dealt], stage_choice)
    stages = []
    for stage, ranks, own in zip(plan.stages, dealt, hosts_of_rank, strict=True):
        hosts = tuple(dict.fromkeys(host for rank in own for host in rank))
        replicas = None
        if len(ranks) > 1:
            class_of_rank = [problem.cluster.classes[c] for c, count in ranks for _ in range(count)]
            replicas = tuple(
                Replica(
                    node_class=node_class.name, chip=node_class.chip, hosts=rank_hosts, tensor_parallel=tp
                )
                for node_class, rank_hosts in zip(class_of_rank, own, strict=True)
            )
        stages.append(stage.model_copy(update={"hosts": hosts, "replicas": replicas}))
    return plan.model_copy(update={"stages": tuple(stages)})


def hosts_of_ranks(
    problem: Problem, dealt: Sequence[Dealt], chips_of_rank: int
) -> list[list[tuple[str, ...]]]:
    """Hosts of every rank of every stage, as `Dealer` counts them."""
    names = [problem.cluster.hosts_of(c) for c in range(len(problem.cluster.classes))]
    used = [0] * len(names)
    current, left = -1, 0
    found = []
    for stage in dealt:
        own: list[tuple[str, ...]] = []
        for c, ranks in stage:
            if c != current:
                current, left = c, 0
            for _ in range(ranks):
                hosts, needed = [], chips_of_rank
                while needed:
                    if left == 0:
                        used[c] += 1
                        left = problem.cluster.classes[c].chips_per_node
                    hosts.append(names[c][used[c] - 1])
                    taken = min(left, needed)
                    left, needed = left - taken, needed - taken
                own.append(tuple(hosts))
        found.append(own)
    return found
