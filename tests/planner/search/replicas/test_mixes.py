"""Bounds on mixes against brute force over small mixes, and against the referee on random pipelines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from planner.cost.communication.resharding import StageShape, mesh_hops_s
from planner.cost.pricing import price
from planner.cost.remembered import remembered_price
from planner.data.load import build_problem, load_problem
from planner.data.plan import Pipeline, Plan
from planner.data.problem import Problem
from planner.search.degrees import list_degrees
from planner.search.replicas import shares as shares_module
from planner.search.replicas.boxes import Boxes, Column
from planner.search.replicas.chains import Chains, Kind
from planner.search.replicas.choices import are_many, improve_each
from planner.search.replicas.columns import Least
from planner.search.replicas.driver import search_replicas
from planner.search.replicas.items import held_levels
from planner.search.replicas.mixes import FEW_BOXES, MOST_BOXES, Mixes
from planner.search.replicas.pricing import Pricing
from planner.search.replicas.refining import APART, NEAR, _share
from planner.search.replicas.space import exchange_floor_s, replica_degrees, shared_rows, widest_shares
from planner.search.replicas.steps import paces
from planner.search.replicas.work import work_bound_s, work_of_chips
from planner.simulate.evaluate import evaluate
from planner.simulate.meshes import degrees_of_stages, shapes_of
from planner.simulate.pipelines import exchange_s, share_of, tail_s
from planner.simulate.step import stage_contents, step_times
from planner.units import MS
from tests.planner.simulate.synthetic import packed_plan


def small_problem(seed: int) -> Problem:
    """Two classes of a node each with 2 chips, a short model, at most 2 sequences at a time."""
    random = np.random.default_rng(seed)
    chips = random.choice(["h100-sxm-80gb", "a100-sxm-80gb", "l40s-48gb", "v100-sxm-32gb"], 2, replace=False)
    problem = build_problem(
        cluster=", ".join(f"1x2 {chip}" for chip in chips),
        model="llama3-8b",
        seq_length=2048,
        global_batch_size=int(random.choice([6, 8, 12])),
        target="unrestricted",
        precision="fp16",
    )
    model = problem.model.model_copy(update={"num_layers": int(random.integers(2, 5))})
    options = problem.options.model_copy(
        update={"max_context_parallel": 1, "max_microbatch_size": 2, "pin": {"sp": 0}}
    )
    return problem.model_copy(update={"model": model, "options": options})


def mixes_of(problem: Problem, is_up: Callable[[], bool] = lambda: False) -> Mixes:
    table = replica_degrees(problem)
    return Mixes(problem, Chains(problem, table, price(problem, table.degrees)), is_up)


@dataclass(frozen=True)
class Timed:
    """A pipeline, its chips, and when it has reduced its gradients after 1, 2, ... micro-batches."""

    plan: Plan
    chips: tuple[int, int]
    ends_s: tuple[float, ...]
    tail_s: float
    beyond_s: float
    """What it exchanges with a pipeline like itself beyond what any mix does."""


PIPELINES: dict[tuple[str, bool], list[Timed]] = {}
"""Those of each problem, which many tests ask for."""


def all_pipelines(problem: Problem, *, sequence_parallel: bool = False) -> list[Timed]:
    """Every pipeline with one degree for all stages and one recomputation, by number of micro-batches."""
    key = problem.model_dump_json(), sequence_parallel
    if key not in PIPELINES:
        PIPELINES[key] = _all_pipelines(problem, sequence_parallel)
    return PIPELINES[key]


def _all_pipelines(problem: Problem, sequence_parallel: bool) -> list[Timed]:
    num_layers, batch = problem.model.num_layers, problem.workload.global_batch_size
    sizes = range(1, problem.most_microbatch_size + 1)
    found = []
    for tp, dp, mbs, p in itertools.product((1, 2), (1, 2), sizes, range(1, 5)):
        if dp * mbs > batch:
            continue
        for classes in itertools.product((0, 1), repeat=p):
            chips = tuple(tp * dp * classes.count(c) for c in (0, 1))
            if max(chips) > 2 or p > num_layers:
                continue
            for cuts in itertools.combinations(range(1, num_layers), p - 1):
                layers = np.diff([0, *cuts, num_layers]).tolist()
                for recompute in ("none", "full"):
                    plan = packed_plan(
                        problem,
                        list(zip(classes, layers, strict=True)),
                        tensor_parallel=tp,
                        data_parallel=dp,
                        microbatch_size=mbs,
                        num_microbatches=1,
                        recompute=recompute,
                        recompute_layers=min(layers) if recompute == "full" else 0,
                        sequence_parallel=sequence_parallel,
                    )
                    timed = timed_pipeline(problem, plan, batch // (dp * mbs))
                    if timed is not None:
                        beyond_s = exchange_s(problem, (plan, plan)) - exchange_floor_s(problem, 2)
                        ends_s, tail = timed
                        found.append(Timed(plan, chips, ends_s, tail, max(beyond_s, 0.0)))  # type: ignore[arg-type]
    return found


def timed_pipeline(problem: Problem, plan: Plan, most: int) -> tuple[tuple[float, ...], float] | None:
    """Ends after each number of micro-batches that fits, and the tail; None where one does not fit.

    By the pieces of the referee, which are priced once; more micro-batches never take less memory.
    """
    degrees, choices = degrees_of_stages(plan)
    prices = remembered_price(problem, degrees)
    contents = stage_contents(problem, plan, prices)
    shapes = shapes_of(plan, choices, [content.node_class for content in contents])
    plans = [plan.model_copy(update={"num_microbatches": m}) for m in range(1, most + 1)]
    while plans:
        judged = evaluate(share_of(problem, plans[-1]), plans[-1])
        if all(stage.peak_memory_gib <= stage.limit_gib for stage in judged.stages):
            break
        plans.pop()
    if not plans:
        return None
    tail = tail_s(problem, plan)
    steps_s = [step_times(problem, own, prices, shapes, contents).step_s for own in plans]
    assert steps_s[-1] == judged.step_s
    return tuple(step_s - tail for step_s in steps_s), tail


def best_pair_s(problem: Problem, *, sequence_parallel: bool = False) -> float:
    """Least step of two pipelines side by side."""
    pipelines = all_pipelines(problem, sequence_parallel=sequence_parallel)
    pairs = itertools.combinations_with_replacement(pipelines, 2)
    return best_of_pairs_s(
        problem,
        (
            (one, two)
            for one, two in pairs
            if max(a + b for a, b in zip(one.chips, two.chips, strict=True)) <= 2
        ),
    )


def best_of_pairs_s(problem: Problem, pairs: Iterable[tuple[Timed, Timed]]) -> float:
    """Least step of some pairs of pipelines, each with any share of the batch."""
    batch, best = problem.workload.global_batch_size, np.inf
    for one, two in pairs:
        sizes = [t.plan.data_parallel * t.plan.microbatch_size for t in (one, two)]
        exchange = exchange_s(problem, (one.plan, two.plan))
        for m, end in enumerate(one.ends_s, 1):
            left, rest = divmod(batch - m * sizes[0], sizes[1])
            if rest or not 1 <= left <= len(two.ends_s):
                continue
            step = max(end, two.ends_s[left - 1]) + exchange + max(one.tail_s, two.tail_s)
            best = min(best, step)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_pair_of_pipelines_is_done_before_the_bound(seed: int) -> None:
    problem = small_problem(seed)
    best = best_pair_s(problem)
    bound = mixes_of(problem).improve(2 * best)
    assert 0.6 * best < bound <= best * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", (3,))
def test_each_choice_of_what_pipelines_share_bounds_its_own_pairs(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences split or whole: each of the two is bounded by itself, both by the lower bound of either.

    Times far beyond the best pair are looked at with fewer boxes than a search has for them.
    """
    monkeypatch.setattr(shares_module, "MOST_BOXES", 2000)
    problem = small_problem(seed)
    problem = problem.model_copy(update={"options": problem.options.model_copy(update={"pin": {}})})
    best_s = {split: best_pair_s(problem, sequence_parallel=split) for split in (False, True)}
    mixes = mixes_of(problem)
    together_s = mixes.improve(2 * min(best_s.values()))
    assert list(shared_rows(problem, mixes.chains.table)) == [(False, 1, None), (True, 1, None)]
    apart_s = []
    for split, part in zip((False, True), mixes.that_share(), strict=True):
        apart_s.append(part.improve(2 * best_s[split]))
        assert together_s <= apart_s[-1] <= best_s[split] * (1 + 1e-9)
    whole_s = mixes.improve_apart(2 * min(best_s.values()))
    assert min(apart_s) * (1 - 1e-9) <= whole_s <= min(best_s.values()) * (1 + 1e-9)
    # All looks in turn, as where experts make the choices many; whenever time is up.
    each_s = improve_each(mixes_of(problem), 2 * min(best_s.values()))
    assert min(apart_s) * (1 - 1e-3) <= each_s <= min(best_s.values()) * (1 + 1e-9)
    for looks in (0, 5, 50):
        left = iter(range(looks))
        cut = mixes_of(problem, lambda left=left: next(left, None) is None)  # type: ignore[misc]
        assert improve_each(cut, 2 * min(best_s.values())) <= min(best_s.values()) * (1 + 1e-9)
    assert improve_each(mixes_of(problem), together_s / 2) == together_s / 2


def test_experts_make_the_choices_of_what_pipelines_share_many() -> None:
    """Every mix belongs to one of them, and each is bounded no lower than all chains together are."""
    problem = load_problem("mixtral-8x7b-h100-64")
    mixes = mixes_of(problem.model_copy(update={"target": "unrestricted"}))
    assert are_many(mixes) and not are_many(mixes_of(small_problem(0)))
    shares = shared_rows(problem, mixes.chains.table)
    assert {row for rows in shares.values() for row in rows} == set(range(len(mixes.chains.table)))
    # Whole sequences stand on stages of one chip alone, which are beside split ones as well.
    widest = widest_shares(shares)
    assert set(widest) == {shared for shared in shares if shared[0]} == set(mixes.parts)
    assert all(any(set(rows) <= set(wide) for wide in widest.values()) for rows in shares.values())
    most_s = 2 * mixes.improve(0.5)
    together_s = mixes.improve(most_s, 100)
    assert improve_each(mixes, most_s) >= together_s


def test_where_choices_are_many_rooms_come_last() -> None:
    """Rooms of one choice of 22 took all the time, and 40% stayed open of GLM-4.5-Air on two classes."""
    asked: dict[str, Any] = {
        "cluster": "h100-a100-16",
        "seq_length": 4096,
        "global_batch_size": 64,
        "target": "unrestricted",
    }
    few, many = (mixes_of(build_problem(model=model, **asked)) for model in ("llama3-8b", "mixtral-8x7b"))
    assert few.begin_with_rooms and not many.begin_with_rooms
    # Nearly all choices are closed by the first looks, long before the best plan of 5.15 s.
    many.improve_at_first(3.0)
    assert sum(part.is_closed(3.0) for part in many.that_share()) > 0.8 * len(many.that_share())


def test_of_choices_with_the_same_rows_one_stays() -> None:
    one, two, three = (False, 1, None), (True, 1, None), (True, 2, None)
    assert widest_shares({one: [1, 2], two: [2, 1], three: [2]}) == {one: [1, 2]}
    assert widest_shares({one: [1], two: [1, 2], three: [2, 3]}) == {two: [1, 2], three: [2, 3]}


def test_choices_of_what_pipelines_share_hold_all_rows_that_go_together() -> None:
    """Chips that share no layer stand on either side; where none shares one nothing is split."""
    problem = load_problem("llama3-8b-h100-a100-16")
    problem = problem.model_copy(update={"target": "unrestricted"})
    table = replica_degrees(problem)
    d, groups = table.degrees, shared_rows(problem, table)
    assert set(groups) == {(False, 1, None), (True, 1, None)}
    for (split, _, _), rows in groups.items():
        fits = (d.sequence_parallel == split) | (d.tensor_parallel == 1)
        assert rows == np.flatnonzero(fits).tolist()
    pinned = problem.model_copy(
        update={"options": problem.options.model_copy(update={"max_tensor_parallel": 1})}
    )
    assert set(shared_rows(pinned, replica_degrees(pinned))) == {(False, 1, None)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_pipeline_runs_what_its_chips_are_worth_before_pricing_says(seed: int) -> None:
    """At random prices, every pipeline of the brute force, and whenever the look is cut short."""
    random = np.random.default_rng(seed)
    problem = small_problem(seed)
    mixes = mixes_of(problem)
    pipelines = all_pipelines(problem)
    looked = 0
    for _ in range(6):
        price = random.uniform(0.1, 1.0, 2)
        price *= problem.workload.global_batch_size / float(price @ mixes.available)
        first_ms = min((end_ms(timed, price) for timed in pipelines), default=np.inf)
        if not np.isfinite(first_ms):
            continue
        for looks in (3, 10, 1000):
            left = iter(range(looks))
            pricing = Pricing(mixes.chains, lambda left=left: next(left, None) is None)  # type: ignore[misc]
            assert pricing.soonest(price, 4 * first_ms).bound_ms <= first_ms * (1 + 1e-9)
        assert mixes.pricing.soonest(price, 4 * first_ms).bound_ms > 0.4 * first_ms
        looked += 1
    assert looked > 2


def end_ms(timed: Timed, price: np.ndarray) -> float:
    """When a pipeline has run what its chips are worth, with its tail and what it exchanges."""
    size = timed.plan.data_parallel * timed.plan.microbatch_size
    m = max(int(np.ceil(float(price @ np.array(timed.chips)) / size * (1 - 1e-9))), 1)
    whole_s = [end_s + timed.tail_s + timed.beyond_s for end_s in timed.ends_s]
    return whole_s[m - 1] / MS if m <= len(whole_s) else np.inf


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_weight_and_share_bounds_all_pipelines_that_boxes_hold(seed: int) -> None:
    """Boxes that cut all times and numbers of micro-batches at random: the least of them holds for all."""
    random = np.random.default_rng(seed)
    problem = small_problem(seed)
    mixes = mixes_of(problem)
    chains, pipelines = mixes.chains, all_pipelines(problem)
    price = random.uniform(0.1, 1.0, 2)
    price *= problem.workload.global_batch_size / float(price @ mixes.available)
    for _ in range(8):
        edges = np.concatenate([[1e-6], np.sort(random.uniform(1.0, 400.0, 3)), [1e9]])
        sizes = [(size, m) for size in (1, 2) for m in range(1, 13)]
        least = {(size, m): np.inf for size, m in sizes if chains.kind_of(size, m) is not None}
        for size, m in least:
            same, low = np.ones(4, dtype=np.int64), edges[:-1]
            weights = low * random.uniform(0.0, 2.0, 4)
            late = random.uniform(0.0, 1.0, 4) * random.integers(0, 2, 4)
            adapters = random.choice([0.0, 1.0], 4) * random.uniform(0.2, 4.0, 4) * chains.adapters.max()
            first = int(random.integers(max(m - 2, 1), m + 1))
            kind = chains.kind_of(size, first)
            assert kind is not None
            near, apart = random.choice([1.0, 0.9, 0.5], 4), random.choice([0.0, 0.1, 0.7], 4)
            boxes = Boxes(
                same * kind, same * first, same * m, low, edges[1:], weights, late, adapters, near, apart
            )
            least[size, m] = float(mixes.pricing.paths.soonest(boxes, price, 1e7)[0].min())
        for timed in pipelines:
            size = timed.plan.microbatch_size
            worth = float(price @ np.array(timed.chips)) / (size * timed.plan.data_parallel)
            for m in range(max(int(np.ceil(worth * (1 - 1e-9))), 1), min(len(timed.ends_s), 12) + 1):
                end = timed.ends_s[m - 1] + timed.tail_s + timed.beyond_s
                assert least[size, m] <= end / MS * (1 + 1e-9)


@pytest.mark.slow
def test_the_last_stage_near_the_slow_one_tells_more_where_micro_batches_are_few() -> None:
    """13 of them on 64 replicas: a slow stage alone hides stages behind it that are nearly as slow."""
    problem = load_problem("llama3-405b-mixed-10240")
    mixes = mixes_of(problem)
    worth = np.array([0.317, 0.317, 0.278, 0.087])
    worth *= problem.workload.global_batch_size / float(worth @ mixes.available)
    degree = mixes.chains.replicas[1].index(64)
    one, whole = np.ones(1), np.ones(1, dtype=np.int64)
    kind = whole * mixes.chains.number(Kind(1, degree, degree + 1))
    low, best = 1063.2 * one, []
    for near, apart in ((1.0, 0.0), (NEAR, APART)):
        values = []
        for weight in (0.1, 0.3, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0):
            ends = low, low * 1.007, weight * low
            boxes = Boxes(kind, whole * 13, whole * 13, *ends, 0 * one, 0 * one, near * one, apart * one)
            values.append(float(mixes.pricing.paths.soonest(boxes, worth, 1e9)[0][0]))
        best.append(max(values))
    assert best[1] > 1.05 * best[0]


def test_no_stage_of_a_box_has_more_forward_in_its_time_than_the_box_takes_it_to() -> None:
    """At all places, with several numbers of micro-batches held; shares count none, it, and all time."""
    random = np.random.default_rng(0)
    chains = mixes_of(small_problem(0)).chains
    kind = chains.kind_of(1, 1)
    assert kind is not None
    least, compared = Least(chains, kind), 0
    for low in random.uniform(1.0, 100.0, 20):
        pace = least.pace(np.array([low]), np.array([1.5 * low]))[0]
        for behind, held in ((0, 1), (1, 1), (2, 2), (3, 3)):
            for stages in chains.stages(kind, behind, held):
                own = (stages.times >= low) & (stages.times <= 1.5 * low)
                compared += int(own.sum())
                assert (stages.forward[own] <= pace * stages.times[own] * (1 + 1e-12)).all()
    assert compared > 20
    assert paces(np.array([0.3])).ravel() == pytest.approx([0.0, 0.3, 1.0])


def test_no_stage_of_a_kind_has_shorter_hops_than_it_is_taken_to_have() -> None:
    """Three stages of random items; two replicas that fill a host leave no other stage room in it."""
    random = np.random.default_rng(0)
    problem = build_problem(
        cluster="2x8 h100-sxm-80gb, 2x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=2048,
        global_batch_size=8,
        target="unrestricted",
    )
    table = replica_degrees(problem)
    prices = price(problem, table.degrees)
    chains = Chains(problem, table, prices)
    ratios = []
    for degree, replicas in enumerate(chains.replicas[1]):
        least = chains.least_hops_ms(chains.number(Kind(1, degree, degree + 1))) * MS
        rows = chains.rows[1][degree]
        for _ in range(60):
            listed = random.choice(np.flatnonzero(rows >= 0), 3)
            items = chains.item_of[listed]
            shapes = [
                StageShape(int(rows[i]), int(chains.node_class[k]), tp, replicas, tp * replicas)
                for i, k in zip(listed, items, strict=True)
                for tp in (int(chains.tensor_parallel[k]),)
            ]
            hops = mesh_hops_s(problem, prices, shapes)
            assert hops[0] >= least[0, items[0]] * (1 - 1e-12)
            assert hops[1] >= least[0, items[2]] * (1 - 1e-12)
            assert hops[0] + hops[1] >= least[1, items[1]] * (1 - 1e-12)
            ratios.append(least[1, items[1]] / (hops[0] + hops[1]))
    assert max(ratios) == pytest.approx(1.0)
    wide = int(np.flatnonzero((chains.tensor_parallel == 4) & (chains.node_class == 0))[0])
    one, two = (chains.least_hops_ms(chains.number(Kind(1, d, d + 1)))[:, wide] for d in (0, 1))
    assert one[1] < 3 * one[0] < two[0]


@pytest.mark.parametrize("seed", range(4))
def test_chains_on_the_chips_that_a_class_has_are_worth_what_the_best_split_of_layers_is(seed: int) -> None:
    """By every split of the layers among the classes; with few replicas a class has chips for all of them."""
    random = np.random.default_rng(seed)
    mixes = mixes_of(small_problem(seed))
    chains, paths = mixes.chains, mixes.pricing.paths
    for size, degrees in chains.replicas.items():
        for degree in range(len(degrees)):
            least = paths.least(chains.number(Kind(size, degree, degree + 1)))
            worth = random.uniform(0.1, 1.0, 2)
            finite = least.times_ms[np.isfinite(least.times_ms)]
            most_ms = np.array([finite.min() / 2, *random.uniform(finite.min(), finite.max(), 4)])
            found = least.worth_of_chain(worth, chains.num_layers, most_ms)
            of_layer = least.chips_of_layer(most_ms)
            for box, chips in enumerate(of_layer):
                shares = np.linspace(0, chains.num_layers, 2001)
                taken = np.stack([shares, chains.num_layers - shares]) * np.minimum(chips, 1e9)[:, None]
                fits = (taken <= least.room[:, None]).all(axis=0)
                best = float((worth @ taken)[fits].min(initial=np.inf))
                assert found[box] <= best
                assert not np.isfinite(best) or found[box] == pytest.approx(best, rel=0.02)


def test_stages_that_no_box_tells_apart_cost_the_same() -> None:
    """With costs made anew for every number of stages behind, the paths say the same."""
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb, 1x8 a100-sxm-40gb",
        model="llama2-13b",
        seq_length=2048,
        global_batch_size=64,
        target="unrestricted",
    )
    mixes = mixes_of(problem)
    paths, price = mixes.pricing.paths, mixes.best_price
    assert mixes.pricing.list_first()
    first = mixes.pricing.first
    boxes = first.at(np.flatnonzero(first.least_m == 4)[::4])
    shared, _ = paths.soonest(boxes, price, 1e6)
    ranges = {paths._alike(boxes, q) for q in range(mixes.chains.longest)}
    assert any(len(alike) > 1 for alike in ranges)
    paths._alike = lambda boxes, behind: range(behind, behind + 1)  # type: ignore[method-assign]
    apart, _ = paths.soonest(boxes, price, 1e6)
    assert (shared <= apart * (1 + 1e-12)).all()
    assert shared == pytest.approx(apart, rel=0.01)


def test_numbers_held_between_those_told_apart_count_as_the_one_below() -> None:
    levels = held_levels(100)
    assert levels[:16] == list(range(1, 17)) and levels[16:20] == [18, 20, 22, 24] and levels[-1] <= 100
    assert max(b / a for a, b in itertools.pairwise(levels[15:])) <= 1.125
    assert held_levels(3) == [1, 2, 3]


def test_prices_begin_at_what_chips_do_in_the_best_plan() -> None:
    """By hand: three layers on two chips of one class, one layer on one chip of the other."""
    problem = small_problem(0)
    problem = problem.model_copy(update={"model": problem.model.model_copy(update={"num_layers": 4})})
    plan = packed_plan(problem, [(0, 3), (1, 1)], tensor_parallel=1, data_parallel=2, num_microbatches=3)
    done, chips = work_of_chips(problem, plan)
    assert chips.tolist() == [2, 2] and done.tolist() == [18, 6]
    mixes = mixes_of(problem)
    mixes.begin_at(plan)
    assert mixes.price == pytest.approx(problem.workload.global_batch_size * np.array([3, 1]) / 8)
    # A class that is left idle is worth its speed beside the others.
    mixes.begin_at(packed_plan(problem, [(0, 4)], tensor_parallel=2))
    assert mixes.price == pytest.approx(mixes._worth_the_batch(mixes.speed))


def test_a_chain_is_bounded_by_the_rows_of_all_its_stages() -> None:
    """By hand: stages of 3 and 1 take 3 for each micro-batch, and 3 + 1 where there is one alone."""
    column = Column(0, (0, 0), (3, 1), (2.0,), 1, 4, (3.0, 1.0), (0.0, 3.0), (1.0, 0.0))
    assert column.times_ms.tolist() == [4.0, 6.0, 9.0, 12.0]
    assert (column.sequences(8.9), column.sequences(9.0)) == (2, 3)
    assert column.time_ms(2.2) == 9.0 and column.time_ms(5) == np.inf


def test_shares_of_rows_rise_again_where_they_say_more_of_another_chain() -> None:
    """A share that fell for a short chain once kept long ones 10% below their times."""
    assert _share(1.0, -5.0, 1.0) == 0.5 and _share(0.25, -5.0, 1.0) == 0.0
    assert _share(0.25, 5.0, 1.0) == 0.5 and _share(0.0, 5.0, 1.0) == 1.0
    assert _share(1.0, 5.0, 1.0) is None and _share(0.5, 1.0, 1.0) is None


def test_listing_what_to_look_at_ends_when_the_time_is_up_and_goes_on_later() -> None:
    """It took a second and more past the limit on problems with experts."""
    mixes = mixes_of(small_problem(0))
    price, limit_ms = mixes.best_price, 1e6
    cut = Pricing(mixes.chains, lambda: True)
    one = next(cut._first_boxes())
    assert cut.soonest(price, limit_ms).bound_ms == 0.0 and len(cut.first) == len(one)
    cut.is_up = cut.paths.is_up = lambda: False
    assert cut.soonest(price, limit_ms).bound_ms == mixes.pricing.soonest(price, limit_ms).bound_ms


def test_a_look_that_was_cut_goes_on_where_it_ended() -> None:
    mixes = mixes_of(small_problem(0))
    price, limit_ms = mixes.best_price, 1e6
    whole = mixes.pricing.soonest(price, limit_ms)
    calls = iter(range(4))
    cut = Pricing(mixes.chains, lambda: next(calls, None) is None)
    assert cut.soonest(price, limit_ms).bound_ms < whole.bound_ms
    cut.is_up = cut.paths.is_up = lambda: False
    assert cut.soonest(price, limit_ms).bound_ms == whole.bound_ms
    assert cut.evaluated == mixes.pricing.evaluated


def test_boxes_in_two_parts_prove_what_they_do_at_once() -> None:
    """A look that ends with its boxes is gone on with at the same prices."""
    whole, parted = mixes_of(small_problem(0)), mixes_of(small_problem(0))
    most = 0.75 * best_pair_s(whole.problem)
    bound = whole.improve(most, 400)
    firsts = [parted.improve(most, number) for number in (20, 60, 400)]
    assert firsts[0] <= firsts[1] <= firsts[2] == pytest.approx(bound)
    assert firsts[0] < bound


def test_deadlines_follow_few_boxes_where_these_are_far_off() -> None:
    """And more boxes where they are near; nothing is asked once the time is reached."""
    for reached, asked in ((0.5, [FEW_BOXES, 0]), (0.9, [FEW_BOXES, MOST_BOXES, 0]), (1.0, [FEW_BOXES])):
        mixes, calls = mixes_of(small_problem(0)), []

        def improve(most_s: float, most_boxes: float, reached=reached, calls=calls) -> float:  # type: ignore
            calls.append(most_boxes)
            return reached * most_s

        def by_deadlines(most_s: float, calls=calls) -> float:  # type: ignore
            calls.append(0)
            return 0.95 * most_s

        mixes.improve, mixes.improve_by_deadlines = improve, by_deadlines  # type: ignore
        assert mixes.improve_by_prices(2.0) == 2.0 * max(reached, 0.95)
        assert calls == asked
        mixes.aims.looks, before = 1, len(calls)
        assert mixes.improve_by_prices(2.0) == 2.0 * 0.95
        assert calls[before:] == [0]


def test_what_pipelines_exchange_is_never_less_than_the_floor() -> None:
    problem = small_problem(0)
    layers = problem.model.num_layers
    whole = [packed_plan(problem, [(c, layers)], tensor_parallel=2) for c in (0, 1)]
    spread = packed_plan(problem, [(0, layers - 1), (1, 1)], tensor_parallel=1)
    for parts in (whole, (spread, spread), (whole[0], spread)):
        assert exchange_floor_s(problem, 2) <= exchange_s(problem, parts)


def test_shares_that_the_replicas_do_not_divide_are_among_the_choices() -> None:
    """Three replicas cannot share a batch of 8 evenly; beside another pipeline they may run a part."""
    problem = build_problem(
        cluster="1x3 h100-sxm-80gb, 1x1 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=2048,
        global_batch_size=8,
    )
    degrees = replica_degrees(problem).degrees.data_parallel
    assert 3 in degrees and 3 not in list_degrees(problem).degrees.data_parallel


@pytest.mark.slow
def test_pipelines_of_sizes_that_do_not_divide_the_batch_are_found_and_bounded() -> None:
    """31 sequences: seven ones beside three fours on each of two replicas, a fifth faster than ones."""
    problem = build_problem(
        cluster="1x3 h100-sxm-80gb",
        model="llama2-7b",
        seq_length=512,
        global_batch_size=31,
        target="unrestricted",
    )
    update = {"pin": {"sp": 0, "pp": 1, "tp": 1}, "max_microbatch_size": 8, "max_context_parallel": 1}
    options = problem.options.model_copy(update={**update, "gap": 0.0, "max_virtual_stages": 1})
    model = problem.model.model_copy(update={"num_layers": 3})
    problem = problem.model_copy(update={"model": model, "options": options})
    timed = []
    for dp, size in itertools.product((1, 2), (1, 2, 4, 8)):
        plan = packed_plan(
            problem,
            [(0, 3)],
            tensor_parallel=1,
            data_parallel=dp,
            microbatch_size=size,
            num_microbatches=1,
        )
        found = timed_pipeline(problem, plan, 31 // (dp * size))
        assert found is not None
        timed.append(Timed(plan, (dp, 0), *found, beyond_s=0.0))
    pairs = [(one, two) for one, two in itertools.product(timed, timed) if one.chips[0] + two.chips[0] <= 3]
    best_s = best_of_pairs_s(problem, pairs)
    ones = (pair for pair in pairs if all(one.plan.microbatch_size == 1 for one in pair))
    result = search_replicas(problem)
    assert result.evaluation is not None and result.bound_s is not None
    assert result.evaluation.step_s <= best_s * (1 + 1e-9) < best_of_pairs_s(problem, ones) / 1.2
    assert result.bound_s <= result.evaluation.step_s
    work_s = work_bound_s(problem)
    of_divisors_s = work_bound_s(problem.model_copy(update={"target": "flagscale"}))
    assert work_s is not None and of_divisors_s is not None
    assert work_s < of_divisors_s and work_s <= best_s


def test_micro_batches_are_divisors_of_the_batch_and_powers_of_two() -> None:
    problem = small_problem(0)
    for batch, sizes in ((12, {1, 2, 3, 4, 6, 8}), (8, {1, 2, 4, 8}), (7, {1, 2, 4, 7})):
        workload = problem.workload.model_copy(update={"global_batch_size": batch})
        options = problem.options.model_copy(update={"max_microbatch_size": 8})
        table = replica_degrees(problem.model_copy(update={"workload": workload, "options": options}))
        assert set(table.degrees.microbatch_size.tolist()) == sizes
        assert (table.degrees.microbatch_size * table.degrees.data_parallel <= batch).all()


def test_the_plan_of_pipelines_that_brute_force_finds_is_confirmed() -> None:
    """The pieces above add up to the referee's step of the whole plan."""
    problem = small_problem(1)
    layers, batch = problem.model.num_layers, problem.workload.global_batch_size
    parts = [
        packed_plan(problem, [(c, layers)], tensor_parallel=2, num_microbatches=batch // 2) for c in (0, 1)
    ]
    plan = Plan.model_validate(
        {
            **parts[0].model_dump(),
            "stages": tuple(stage for part in parts for stage in part.stages),
            "pipelines": tuple(
                Pipeline(num_stages=1, microbatch_size=1, num_microbatches=batch // 2) for _ in parts
            ),
        }
    )
    timed = [timed_pipeline(problem, part, batch // 2) for part in parts]
    assert all(entry is not None for entry in timed)
    ends = max(entry[0][-1] for entry in timed if entry)
    tails = max(entry[1] for entry in timed if entry)
    assert evaluate(problem, plan).step_s == pytest.approx(ends + exchange_s(problem, parts) + tails)
