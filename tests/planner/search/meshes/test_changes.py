"""Hops between classes over slow links: what walks count for them, and where no plan has any."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from planner.cost.communication.resharding import hop_between_s
from planner.data.cluster import Link
from planner.data.problem import Problem
from planner.search.meshes import bounding
from planner.search.meshes.changes import list_changes
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.opener import MeshOpener
from planner.search.meshes.pairs import list_pairs, longest_of
from planner.units import MS
from tests.planner.search.meshes.test_meshes import random_pipeline
from tests.random_problems import random_problem, with_deferred_sends


def with_slow_links(problem: Problem, gbit_per_s: float) -> Problem:
    """The same with slow links between all classes, of different rates, for many micro-batches."""
    names = [c.name for c in problem.cluster.classes]
    links = tuple(
        Link(between=(a, b), gbit_per_s=gbit_per_s * (i + j), latency_us=30.0)
        for i, a in enumerate(names)
        for j, b in enumerate(names[:i], 1)
    )
    workload = problem.workload.model_copy(update={"global_batch_size": 24})
    cluster = problem.cluster.model_copy(update={"links": links})
    changes = {"target": "flagscale", "cluster": cluster, "workload": workload}
    return problem.model_copy(update=changes)


def slow_opener(seed: int, gbit_per_s: float, *, deferred: bool) -> MeshOpener:
    problem = random_problem(seed, most_layers=12, num_classes=2 + seed % 2)
    problem = with_deferred_sends(problem) if deferred else problem
    search = MeshSearch(with_slow_links(problem, gbit_per_s), None)
    opener = search.make_opener()
    opener.longest = longest_of(list_pairs(search.problem, opener.batches, search.bounds))
    return opener


SLOW = (0, True), (3, False), (9, False), (9, True), (13, False)


@pytest.mark.parametrize(
    ("seed", "deferred"), [(0, False), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_no_pipeline_undercuts_its_bound_nor_has_a_barred_hop(
    seed: int, deferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random pipelines by the referee against walks of their length and of its neighbours."""
    monkeypatch.setattr(bounding, "LIMITS_OF_FEW", ())
    rng, changed, near, bars = np.random.default_rng(seed), 0, 0, 0
    for gbit_per_s in (0.3, 3.0):
        opener = slow_opener(seed, gbit_per_s, deferred=deferred)
        for _ in range(60):
            number = int(rng.choice(list(opener.longest)))
            batch, (order, value_s) = opener.batches[number], random_pipeline(opener, number, rng)
            classes = batch.node_class[list(order)]
            if not np.isfinite(value_s) or (classes == classes[0]).all():
                continue
            places, p, m = (
                opener.places.of(number, opener.longest[number]),
                len(order),
                batch.num_microbatches,
            )
            changes = list_changes(places, batch)
            hops = [(a, b) for a, b in pairwise(order) if batch.node_class[a] != batch.node_class[b]]
            for a, b in hops:
                shapes = batch.shapes[a], batch.shapes[b]
                hop_ms = hop_between_s(opener.problem, opener.prices, *shapes, inside=False) / MS
                pair = changes.node_class[a], changes.node_class[b]
                least_ms = places.hop_ms[a] + places.hop_ms[b] + changes.more_ms[pair]
                assert least_ms <= 2 * hop_ms * (1 + 1e-9)
                near += bool(least_ms >= 1.9 * hop_ms)
            for s, (a, b) in enumerate(pairwise(changes.node_class[list(order)].tolist())):
                assert not changes.barred(m, p - 1 - s, value_s / MS)[a, b] or a == b
                bars += bool(changes.barred(m, p - 1 - s, value_s / MS / 2)[a, b])
            opener.incumbent.step_s = value_s * (1 + 1e-6)
            lengths = [length for length in (p, p + 1) if length <= opener.longest[number]]
            alone = np.arange(len(batch.shapes))[None, :] == np.array(order)[:, None]
            for looked_at, allowed in (([p], alone), (lengths, None)):
                found_s, _ = opener._relaxed(0.0, number, looked_at, 20_000, 1, allowed)
                assert float(found_s[0]) <= value_s * (1 + 1e-9), (number, order, looked_at)
            changed += 1
    assert changed >= 5 and near >= 5 and bars >= 1
