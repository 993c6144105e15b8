"""The judge's best plan on a cluster, proven: an exact search over pipelines built from their end.

Space      `space`: every layer split, order, micro-batch size, number of replicas and stages, on sets of
           kinds; `spaces` names which sets.
Labels     `labels`: the last stages of a pipeline. Adding a stage in front fixes what the one behind it
           sends back, and its depth from the end is what memory asks for, so a label's costs never
           change later.
Bound      (m - 1) max(slowest so far, least bottleneck of the rest) + sum so far + least sum of the rest
           + update + all-reduce so far (`floors`). Labels whose bound reaches the best plan are dropped,
           and so are those that another label makes needless.
Order      configurations (micro-batch size, D) by their bound, some at a time; a narrow pass over the
           most promising ones gives a first plan.
Proof      every plan of the space passes through labels that are dropped only for one of these reasons,
           so none is better than `bound_s`. Where stages mix, a label is a relaxation (`space`): a
           complete one is turned into whole replicas and judged; if that costs more than the label
           says, the label's own value stays in the bound.
Not MILP   U, sync and both ends are maxima over what a stage holds, and the judge's fits make them
           arbitrary tables; recursion takes them as they are.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.opt350m.floors import NEVER_S, Floor, bottleneck_s, floors, remaining_s
from benchmarks.opt350m.judge import GLOBAL_BATCH_SIZE, JudgedPlan, score
from benchmarks.opt350m.labels import Labels, joined, narrowed, undominated
from benchmarks.opt350m.profile import NUM_LAYERS, SIZES
from benchmarks.opt350m.realise import realised
from benchmarks.opt350m.space import NUM_BLOCKS, Floats, Ints, Space
from planner.errors import SolverError

PROOF_TOL = 1e-9
"""Relative: a label whose bound is this close to the best plan is dropped."""
BATCH = 64
"""Configurations searched at once."""
DIVES, DIVE_BATCH, DIVE_WIDTH = 256, 32, 30
"""Configurations of the narrow pass, how many at once, labels of each."""


@dataclass(frozen=True)
class Proven:
    """The best plan of a space and what was proven of it."""

    plan: JudgedPlan | None
    step_s: float
    bound_s: float
    labels: int
    """Labels opened."""
    seconds: float
    """Wall time [s]."""
    core_seconds: float
    """Time of the one core that worked [s]: the wall time where nothing else runs."""

    @property
    def gap(self) -> float:
        """How far the plan may be from the best, of its step time."""
        return (self.step_s - self.bound_s) / self.step_s if self.plan is not None else math.inf


class Search:
    """One search of one space; `run` does it."""

    def __init__(self, where: Space, incumbent: Proven | None = None, *, whole_batches: bool = False) -> None:
        self.space = where
        self.whole_batches = whole_batches
        """Whether the global batch must be whole micro-batches of all replicas, as launchers demand."""
        self.floors: tuple[Floor, ...] = floors(where)
        self.plan = incumbent.plan if incumbent else None
        self.best_s = incumbent.step_s if incumbent else math.inf
        self.relaxed_s = math.inf
        """Least value of a complete label that no plan reached."""
        self.opened = 0
        self.history: list[Labels] = []

    def run(self) -> Proven:
        """Dive, then open every configuration that may hold a better plan."""
        start_s, start_core_s = time.perf_counter(), time.process_time()
        bound = self.config_bounds_s()
        order = np.argsort(bound, kind="stable")
        order = order[np.isfinite(bound[order])]
        if self.plan is None:
            for at in range(0, min(len(order), DIVES), DIVE_BATCH):
                self.open(order[at : at + DIVE_BATCH], width=DIVE_WIDTH)
            self.relaxed_s = math.inf
        while len(order) and bound[order[0]] < self.cutoff_s:
            self.open(order[:BATCH])
            order = order[BATCH:]
        proven_s = min(self.cutoff_s, self.relaxed_s)
        seconds, core_s = time.perf_counter() - start_s, time.process_time() - start_core_s
        return Proven(self.plan, self.best_s, proven_s, self.opened, seconds, core_s)

    @property
    def cutoff_s(self) -> float:
        """Only what is below this is better than the best plan."""
        return self.best_s * (1 - PROOF_TOL)

    def split(self, config: Ints) -> tuple[Ints, Ints]:
        """Index of the micro-batch size and of the data-parallel degree."""
        size, degree = np.divmod(config, self.space.microbatches.shape[1])
        return size, degree

    def repeats(self, config: Ints) -> Ints:
        """m - 1."""
        return self.space.microbatches[self.split(config)] - 1

    def config_bounds_s(self) -> Floats:
        """Bound of every configuration: one stage on the fastest kind, or several by the pools."""
        degrees = self.space.microbatches.shape[1]
        bounds = []
        for size, floor in enumerate(self.floors):
            need = np.full(degrees, NUM_BLOCKS)
            least = bottleneck_s(floor, need, self.space.capacity, 0).min(axis=1)
            alone = min((NUM_BLOCKS * block for block in floor.block_s.values()), default=math.inf)
            bound = self.space.microbatches[size] * np.minimum(least, alone)
            if self.whole_batches:
                sequences = SIZES[size] * np.arange(1, degrees + 1)
                bound = np.where(GLOBAL_BATCH_SIZE % sequences == 0, bound, np.inf)
            bounds.append(bound)
        return np.concatenate(bounds)

    def open(self, configs: Ints, width: int | None = None) -> None:
        """Search some configurations, all labels of one depth at a time."""
        self.history = []
        labels, depth = self.last_stages(configs), 1
        while len(labels):
            bound = self.bound_s(labels, depth)
            kept = np.flatnonzero(bound < self.cutoff_s)
            kept = kept[undominated(labels.take(kept), bound[kept], len(self.space.sets))]
            if width is not None:
                kept = kept[narrowed(labels.take(kept), bound[kept], width)]
            labels = labels.take(kept)
            self.opened += len(labels)
            self.history.append(labels)
            parts = [self.extended(labels, group, depth) for group in range(len(self.space.sets))]
            labels, depth = joined(parts), depth + 1

    def last_stages(self, configs: Ints) -> Labels:
        """One label for each configuration, set and number of layers of the last stage."""
        at = self.space
        shape = (len(configs), len(at.sets), NUM_LAYERS)
        config, group, first = (index.ravel() for index in np.indices(shape))
        config = configs[config]
        size, degree = self.split(config)
        time_s = at.time_s[size, group, first, NUM_LAYERS]
        fits = at.fits[size, group, first, NUM_LAYERS, 1] & np.isfinite(time_s)
        fits &= (at.uses[group] <= at.capacity[degree]).all(axis=1)
        labels = Labels(
            config=config,
            first=first,
            group=group,
            open_s=time_s,
            slowest_s=np.zeros(len(first)),
            sum_s=np.zeros(len(first)),
            sync_s=self.sync_s(degree, group, first, NUM_LAYERS),
            update_s=at.update_s[size, group],
            used=at.uses[group],
            parent=np.full(len(first), -1),
        ).take(np.flatnonzero(fits))
        value = (self.repeats(labels.config) + 1) * labels.open_s + labels.update_s + labels.sync_s
        self.complete(labels, value, labels.first == 0)
        return labels.take(np.flatnonzero((labels.first > 0) & (value < self.cutoff_s)))

    def sync_s(self, degree: Ints, group: Ints | int, first: Ints, end: Ints | int) -> Floats:
        """All-reduce of stages of layers first .. end - 1."""
        at = self.space
        head = np.asarray(end == NUM_LAYERS).astype(int)
        blocks = np.minimum(end, NUM_LAYERS - 1) - np.maximum(first, 1)
        table: Floats = at.sync_s[
            degree, at.cut[group], at.link[group], (first == 0).astype(int), head, np.maximum(blocks, 0)
        ]
        return table

    def extended(self, labels: Labels, group: int, depth: int) -> Labels:
        """All labels with one more stage on a set in front; complete pipelines are judged."""
        at = self.space
        size, degree = self.split(labels.config)
        room = ((labels.used + at.uses[group]) <= at.capacity[degree]).all(axis=1)
        labels_at = np.flatnonzero(room & np.isfinite(at.update_s[size, group]))
        some, size, degree = labels.take(labels_at), size[labels_at], degree[labels_at]
        back = np.where(
            (some.first == NUM_LAYERS - 1) & (depth == 1),
            at.head_send_s[size, some.group, group],
            at.send_s[size, some.group, group],
        )
        closed = some.open_s + (2 * back if depth == 1 else back)
        onward = at.send_s[size, group, some.group]
        slowest, total = np.maximum(some.slowest_s, closed), some.sum_s + closed
        spent = total + some.sync_s + some.update_s + self.repeats(some.config) * slowest
        block = at.time_s[size, group, [[1], [2]], [[2], [3]]].min(axis=0)
        slack = (self.best_s - total - some.sync_s - some.update_s) / (self.repeats(some.config) + 1)
        most = np.where(spent < self.cutoff_s, np.minimum(slack / block, NUM_BLOCKS) + 2, 0)
        row, first = stages_in_front(some.first, most.astype(np.int64))
        end, complete = some.first[row], first == 0
        here = at.time_s[size[row], group, first, end] + onward[row] * np.where(complete & (depth >= 3), 2, 1)
        repeats = self.repeats(some.config)[row]
        slowest_of_all = np.maximum(slowest[row], here)
        value = repeats * slowest_of_all + total[row] + here + some.sync_s[row] + some.update_s[row]
        depth_limit = min(depth + 1, NUM_LAYERS)
        kept = np.flatnonzero((value < self.cutoff_s) & at.fits[size[row], group, first, end, depth_limit])
        row, first, end, here = row[kept], first[kept], end[kept], here[kept]
        sync = np.maximum(some.sync_s[row], self.sync_s(degree[row], group, first, end))
        update = np.maximum(some.update_s[row], at.update_s[size[row], group])
        made = Labels(
            config=some.config[row],
            first=first,
            group=np.full(len(row), group),
            open_s=here,
            slowest_s=slowest[row],
            sum_s=total[row],
            sync_s=sync,
            update_s=update,
            used=some.used[row] + at.uses[group],
            parent=labels_at[row],
        )
        value = repeats[kept] * slowest_of_all[kept] + total[row] + here + sync + update
        self.complete(made, value, first == 0)
        return made.take(np.flatnonzero((first > 0) & (value < self.cutoff_s)))

    def bound_s(self, labels: Labels, depth: int) -> Floats:
        """Least step time of any pipeline that ends in a label."""
        at = self.space
        size, degree = self.split(labels.config)
        bound = np.full(len(labels), np.inf)
        for index, floor in enumerate(self.floors):
            here = np.flatnonzero(size == index)
            if not len(here):
                continue
            some = labels.take(here)
            repeats = self.repeats(some.config).astype(np.float64)[:, None]
            need = np.maximum(some.first - 1, 0)
            left = at.capacity[degree[here]] - some.used
            usable = np.isfinite(at.update_s[index])
            least_back = at.send_s[index][:, usable].min(axis=1)[some.group]
            stage = some.open_s + least_back * (2 if depth == 1 else 1)
            fixed = (some.sum_s + stage + some.update_s + some.sync_s)[:, None]
            reached = np.maximum(some.slowest_s, stage)[:, None]
            slowest = np.maximum(bottleneck_s(floor, need, left, depth), reached)
            pace = np.where(np.isfinite(slowest), repeats * np.minimum(slowest, NEVER_S), np.inf) + fixed
            kept = np.flatnonzero(pace.min(axis=1) < self.cutoff_s)
            slack = self.best_s - fixed[kept, 0]
            limit = np.where(repeats[kept, 0] > 0, slack / np.maximum(repeats[kept, 0], 1), np.inf)
            rest = remaining_s(floor, need[kept], left[kept], limit, depth)
            bound[here[kept]] = (pace[kept] + rest).min(axis=1)
        return bound

    def complete(self, labels: Labels, value: Floats, whole: np.ndarray) -> None:
        """Judge complete pipelines that promise to beat the best plan, the most promising first."""
        better = np.flatnonzero(whole & (value < self.cutoff_s))
        for index in better[np.argsort(value[better], kind="stable")]:
            if value[index] >= self.cutoff_s:
                break
            plan = self.traced(labels, int(index))
            judged_s = score(plan).step_s if plan is not None else math.inf
            if judged_s < value[index] * (1 - PROOF_TOL):
                raise SolverError(f"the judge says {judged_s} s, the search {value[index]} s of {plan}")
            if judged_s > value[index] * (1 + PROOF_TOL):
                self.relaxed_s = min(self.relaxed_s, float(value[index]))
            if judged_s < self.best_s:
                self.best_s, self.plan = judged_s, plan

    def traced(self, labels: Labels, index: int) -> JudgedPlan | None:
        """The plan that a complete label stands for, in whole replicas; None where there is none."""
        size, degree = self.split(labels.config[index : index + 1])
        firsts, groups = [int(labels.first[index])], [int(labels.group[index])]
        behind = int(labels.parent[index])
        for level in reversed(self.history):
            if behind < 0:
                break
            firsts.append(int(level.first[behind]))
            groups.append(int(level.group[behind]))
            behind = int(level.parent[behind])
        counts = [end - first for first, end in zip(firsts, [*firsts[1:], NUM_LAYERS], strict=True)]
        sets = [self.space.sets[group] for group in groups]
        return realised(self.space.chips, int(degree[0]) + 1, SIZES[int(size[0])], counts, sets)


def stages_in_front(end: Ints, most: Ints) -> tuple[Ints, Ints]:
    """Rows of labels and first layers of all stages that end where the labels begin."""
    count = np.minimum(end, most)
    row = np.repeat(np.arange(len(end)), count)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, end[row] - 1 - offset
