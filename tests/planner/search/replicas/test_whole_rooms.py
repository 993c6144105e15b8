"""Bounds by whole pipelines in whole rooms against brute force over small mixes, and against the referee."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.data.load import load_problem
from planner.data.problem import Problem
from planner.search.assemble import hosts_needed
from planner.search.replicas import room_parts
from planner.search.replicas.mixes import Mixes
from planner.search.replicas.room_boxes import Places, RoomBoxes
from planner.search.replicas.room_floors import RoomFloors
from planner.search.replicas.room_parts import ROUNDS, bounded, cut, joined, within
from planner.search.replicas.room_walk import END, NONE, RoomWalk, _States
from planner.search.replicas.whole_rooms import WholeRooms, are_few
from planner.simulate.pipeline import simulate
from planner.units import MS
from tests.planner.search.replicas.test_mixes import (
    Timed,
    all_pipelines,
    best_of_pairs_s,
    mixes_of,
    small_problem,
)


def classes_of(timed: Timed, problem: Problem) -> list[int]:
    """Class of every stage."""
    return [problem.cluster.class_index(stage.node_class or "") for stage in timed.plan.stages]


def can_stand(problem: Problem, parts: tuple[Timed, ...]) -> bool:
    """Whether the hosts go round for pipelines one after the other."""
    sizes = [stage.tensor_parallel * stage.data_parallel for timed in parts for stage in timed.plan.stages]
    classes = [c for timed in parts for c in classes_of(timed, problem)]
    nodes = problem.cluster.classes
    needed = hosts_needed(classes, sizes, [node_class.chips_per_node for node_class in nodes])
    return all(count <= nodes[c].num_nodes for c, count in needed.items())


def best_pair_on_hosts_s(problem: Problem, pipelines: list[Timed]) -> float:
    """Least step of two pipelines that the hosts hold in either order."""
    pairs = itertools.combinations_with_replacement(pipelines, 2)
    return best_of_pairs_s(
        problem,
        (
            (one, two)
            for one, two in pairs
            if can_stand(problem, (one, two)) or can_stand(problem, (two, one))
        ),
    )


def some_prices(mixes: Mixes, random: np.random.Generator) -> list[np.ndarray]:
    """Prices at which the chips are worth the batch."""
    prices = [mixes.best_price, *random.uniform(0.2, 1.0, (3, 2))]
    return [price * mixes.batch / float(price @ mixes.available) for price in prices]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_pair_of_pipelines_is_done_before_the_bound(seed: int) -> None:
    """At good prices and poor ones, up to times far beyond the best pair, and whenever time is up."""
    random = np.random.default_rng(seed)
    problem = small_problem(seed)
    mixes, best_s = mixes_of(problem), best_pair_on_hosts_s(problem, all_pipelines(problem))
    best_ms = best_s / MS - mixes.exchange_ms
    assert are_few(mixes.chains)
    mixes.improve(2 * best_s)
    reached = []
    for price in some_prices(mixes, random):
        # What is looked at first is the last time that is asked for, just beyond the best pair.
        rooms = WholeRooms(mixes.pricing, price)
        reached.append(rooms.improve(0.0, best_ms * (1 + 1e-6)))
        assert reached[-1] <= best_ms * (1 + 1e-9)
        assert not any(rooms.excludes(far * best_ms) for far in (1.01, 1.1, 1.5))
        left = iter(range(3))
        cut = WholeRooms(mixes.pricing, price, lambda left=left: next(left, None) is None)  # type: ignore[misc]
        assert cut.improve(0.0, 1.5 * best_ms) <= best_ms
    assert (max(reached) + mixes.exchange_ms) * MS > 0.6 * best_s
    # What rooms do not close at once is not asked for again, and still no bound is beyond it.
    apart = mixes_of(problem)
    assert not apart.close_by_rooms(best_s * (1 + 1e-6))
    assert min(part.open_ms for part in apart.that_share()) == pytest.approx(best_ms, rel=1e-5)
    assert apart.improve_rooms_apart(best_s * (1 + 1e-6)) <= best_s
    assert mixes_of(problem).close_by_rooms(0.3 * best_s)


@pytest.mark.slow
@pytest.mark.parametrize("seed", (6, 8, 9))
def test_pipelines_in_whole_rooms_are_done_later_than_fractions(seed: int) -> None:
    """Shares of the batch alone tell nothing of these."""
    mixes = mixes_of(small_problem(seed))
    fractional_s = mixes.improve(1.0)
    assert mixes.improve_by_rooms(1.0) > fractional_s * 1.003


def single_kinds(rooms: WholeRooms) -> list[int]:
    """Kinds with one number of replicas."""
    return [one for kind in rooms._kinds() for one in rooms.chains.singles(kind)]


def rooms_of_all(
    mixes: Mixes, price: np.ndarray, deadline_ms: float, ratio: float, of_round: int
) -> np.ndarray:
    """Most sequences by room with no pipeline left out for what it gains."""
    rooms, all_times = WholeRooms(mixes.pricing, price), (np.zeros(1), np.full(1, np.inf))
    parts = [
        part
        for number in single_kinds(rooms)
        for part in rooms._parts(
            number, within(rooms._times_ms(number), all_times, ratio), deadline_ms, 1e6, of_round
        )
    ]
    runs = rooms.most_runs(parts, np.full(mixes.batch + 1, 1e6), deadline_ms)
    assert runs is not None
    for axis in range(runs.ndim):
        np.maximum.accumulate(runs, axis=axis, out=runs)
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_pipeline_runs_more_than_its_room_is_said_to(seed: int) -> None:
    """Every pipeline of the brute force by the referee's times, at random prices, deadlines and ratios."""
    random = np.random.default_rng(seed)
    problem = small_problem(seed)
    mixes, pipelines = mixes_of(problem), all_pipelines(problem)
    ends_ms = np.array([timed.ends_s[-1] / MS for timed in pipelines])
    compared = reached = 0
    for price in some_prices(mixes, random):
        deadline_ms = float(random.uniform(0.2, 1.0) * np.median(ends_ms))
        ratio, of_round = float(random.choice([1.0, 1.01, 1.5])), int(random.choice([0, len(ROUNDS) - 1]))
        runs = rooms_of_all(mixes, price, deadline_ms, ratio, of_round)
        for timed in pipelines:
            sequences = timed.plan.data_parallel * timed.plan.microbatch_size
            done = [
                m * sequences
                for m, end_s in enumerate(timed.ends_s, 1)
                if (end_s + timed.tail_s + timed.beyond_s) / MS <= deadline_ms and m * sequences < mixes.batch
            ]
            if done:
                room = padded(classes_of(timed, problem), timed)
                if max(room) <= 2:
                    compared += 1
                    reached += max(done) == runs[room]
                    assert max(done) <= runs[room]
    assert compared > 50 and reached > 0


def padded(classes: list[int], timed: Timed) -> tuple[int, int]:
    """Chips of each class, hosts of 2 chips whole for runs between two others."""
    room = [0, 0]
    runs = [(c, len(list(group))) for c, group in itertools.groupby(classes)]
    sizes = timed.plan.tensor_parallel * timed.plan.data_parallel
    for k, (c, length) in enumerate(runs):
        chips = length * sizes
        room[c] += -(-chips // 2) * 2 if 0 < k < len(runs) - 1 else chips
    return room[0], room[1]


def test_rows_of_boxes_hold_for_uneven_stages() -> None:
    """Against the referee's events: stages that differ up to sixfold, few and many micro-batches."""
    random = np.random.default_rng(0)
    closest = {False: np.inf, True: np.inf}
    for _ in range(3000):
        p, m = int(random.integers(1, 9)), int(random.integers(1, 14))
        times = random.uniform(1.0, random.choice([1.05, 1.3, 6.0]), p)
        share = random.uniform(0.2, 0.8, p) if random.random() < 0.5 else np.full(p, 1 / 3)
        forward, backward = share * times, (1 - share) * times
        makespan = simulate(forward[:, None], backward[:, None], np.zeros(p), m).makespan_s
        rho = min(float(share.max()), 0.5)
        low = float(times.max()) / random.choice([1.0, 1.02, 1.3])
        most = m + int(random.integers(0, 3))
        late = rho * (min(most, p) - 1) * low if p >= m else 0.0
        twice = (m - 1) * low + float(np.minimum(times, 2 * times - low).sum()) - late
        once = (m - 1 + rho) * low + float((times - rho * low).sum())
        assert max(twice, once) <= makespan * (1 + 1e-9)
        closest[False] = min(closest[False], makespan / twice - 1 if twice > 0 else np.inf)
        closest[True] = min(closest[True], makespan / once - 1 if once > 0 else np.inf)
    assert closest[False] < 1e-3 and closest[True] < 1e-3


def test_a_run_between_two_others_takes_its_host_whole() -> None:
    """By hand: stages of a chip each; amid a pipeline a class lends both chips of its host."""
    mixes = mixes_of(small_problem(0))
    rooms = WholeRooms(mixes.pricing, mixes.best_price)
    places, nothing, whole = (
        rooms._places_of(single_kinds(rooms)[0], 1),
        np.zeros(1),
        np.zeros(1, dtype=np.int64),
    )
    walk = RoomWalk(places, rooms.price, rooms.per_host)
    assert rooms.per_host.tolist() == [2, 2]
    chains = mixes.chains
    item = [int(np.flatnonzero((chains.node_class == c) & (chains.tensor_parallel == 1))[0]) for c in (0, 1)]
    for order, chips in (((0, 1, 0), [2, 2]), ((0, 1), [1, 1]), ((1, 0, 1), [2, 2]), ((0, 0, 1), [2, 1])):
        states = _States(whole, whole, np.zeros((1, 2), dtype=np.int64), whole + NONE, whole + END, nothing)
        for c in order:
            states = walk._with(states, item[c], 1, nothing)
        assert states.chips.tolist() == [chips]
        # Chips that stay idle are paid for; the stages cost nothing here.
        idle = np.array(chips) - np.bincount(order, minlength=2)
        assert states.cost[0] == pytest.approx(float(rooms.price @ idle) / walk.sequences)


def test_wide_intervals_hold_all_chains_that_narrow_ones_do() -> None:
    """The least cost of a wide box is no more than that of any narrow one within it."""
    mixes = mixes_of(small_problem(2))
    rooms = WholeRooms(mixes.pricing, mixes.best_price)
    number = single_kinds(rooms)[0]
    places = rooms._places_of(number, 1)
    times = places.times_ms()

    def most_left(low: float, high: float, *, once: bool) -> float:
        one, whole = np.ones(1), np.ones(1, dtype=np.int64)
        boxes = RoomBoxes(low * one, high * one, 0 * one, whole, 4 * whole, once)
        return float((places.most(boxes, 1e3) - RoomFloors(places, boxes).of_chains(np.inf * one))[0])

    compared = 0
    for once in (False, True):
        wide = most_left(float(times[0]), float(times[-1]), once=once)
        for low, high in itertools.pairwise(times[:: max(len(times) // 12, 1)].tolist()):
            narrow = most_left(low, high, once=once)
            compared += np.isfinite(narrow)
            assert narrow <= wide * (1 + 1e-9)
    assert compared > 4


def test_boxes_hold_the_times_of_stages_at_every_place_whatever_they_hold() -> None:
    """Stages that hold more recompute more: boxes of the times with one micro-batch held left gaps."""
    problem = load_problem("llama3-70b-h100-a100-128")
    mixes = mixes_of(problem.model_copy(update={"target": "unrestricted"}))
    chains = mixes.chains
    rooms = WholeRooms(mixes.pricing, mixes.best_price)
    for number in single_kinds(rooms)[::7]:
        times = rooms._times_ms(number)
        for behind, held in itertools.product((0, 1, 2, 5, 11, 30), (1, 2, 3, 6, 16, 31)):
            if held > behind + 1 or behind >= rooms._places_of(number, 1).longest:
                continue
            for stages in chains.stages(number, behind, held):
                assert np.isin(stages.times[np.isfinite(stages.times)], times).all()
        low, high = within(times, (np.zeros(1), np.full(1, np.inf)), 1.01)
        box = np.searchsorted(low, times, side="right") - 1
        assert (times <= high[box]).all() and (high <= low * 1.01).all()


def least_cost_of(floors: RoomFloors, stages: int, box: int) -> float:
    """Least cost of a chain of so many stages by looking at all layers of each."""
    places = floors.places
    state = {places.num_layers: 0.0}
    for behind in range(stages):
        is_first = behind == stages - 1
        costs = (floors.first if is_first else floors.inner)[places.place_of[behind]][box]
        late = float(places.less_late(floors.boxes, np.array([behind]))[0, box]) if is_first else 0.0
        ahead: dict[int, float] = {}
        for left, cost in state.items():
            for n in range(1, min(left, floors.width) + 1):
                ahead[left - n] = min(ahead.get(left - n, np.inf), cost + costs[n] - late)
        state = ahead
    return state.get(0, np.inf)


@pytest.mark.parametrize("seed", range(4))
def test_floors_hold_for_chains_of_any_stages_and_layers(seed: int) -> None:
    """With a price on each layer, and by the shortest path cut at the longest chain that is asked for."""
    random = np.random.default_rng(seed)
    mixes = mixes_of(small_problem(seed))
    rooms = WholeRooms(mixes.pricing, mixes.best_price)
    closest = np.inf
    for number in single_kinds(rooms)[:6]:
        places = rooms._places_of(number, int(random.integers(1, 6)))
        times, once = places.times_ms(), bool(random.integers(2))
        low = random.choice(times, 5)
        few = random.integers(1, 6, 5)
        boxes = RoomBoxes(low, low * random.uniform(1.0, 2.0, 5), 0 * low, few, few + 3, once)
        floors = RoomFloors(places, boxes)
        for box in range(len(boxes)):
            exact = np.array([least_cost_of(floors, p + 1, box) for p in range(places.longest)])
            for some in (floors, RoomFloors(places, boxes, is_rough=True), RoomFloors(places, boxes, 1)):
                assert (some.by_stages[:, box] <= exact[: len(some.by_stages)] + 1e-9).all()
            known = np.isfinite(exact)
            apart = exact[known] - floors.by_stages[known, box]
            closest = min(closest, float(apart.min(initial=np.inf)))
            for most in (exact.min() - 0.1, exact.min() + 1e-9, np.inf):
                found = floors.of_chains(np.where(np.arange(5) == box, most, -np.inf))[box]
                assert found == pytest.approx(exact.min()) or exact.min() > most
                assert found >= exact.min() - 1e-9
    assert closest < 0.05


def test_boxes_whose_layers_are_priced_gain_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """What closes a box before layers are told apart closes it then too."""
    mixes = mixes_of(small_problem(3))
    rooms = WholeRooms(mixes.pricing, mixes.best_price)
    compared = 0
    for number in single_kinds(rooms):
        places = rooms._places_of(number, 2)
        low = places.times_ms()[::3]
        few = np.full(len(low), 2)
        boxes = RoomBoxes(low, low * 1.1, 0 * low, few, few + 2)
        deadline_ms = 6 * float(np.median(low))
        loss = 0.1 * mixes.batch
        exact, priced = (bounded(places, boxes, deadline_ms, loss, of_round) for of_round in (-1, 0))
        open_ones = exact.left >= -loss / chains_sequences(places)
        compared += int(open_ones.sum())
        monkeypatch.setattr(room_parts, "MANY_PLACES", 1)
        for of_round in (-1, 0):
            rough = bounded(places, boxes, deadline_ms, loss, of_round).left
            assert (rough >= np.where(open_ones, exact.left, -np.inf) - 1e-9).all()
        monkeypatch.undo()
        assert (priced.left >= np.where(open_ones, exact.left, -np.inf) - 1e-9).all()
    assert compared > 5


def chains_sequences(places: Places) -> int:
    """Sequences that all replicas run at once."""
    return places.replicas * places.size


def test_boxes_of_several_numbers_of_replicas_gain_no_less_than_those_of_each() -> None:
    """Wide boxes of the first round, with few numbers of micro-batches held told apart."""
    mixes = mixes_of(small_problem(3))
    rooms, loss = WholeRooms(mixes.pricing, mixes.best_price), 1e6
    chains, compared = mixes.chains, 0
    for number in rooms._kinds():
        least = rooms.paths.least(number)
        low_ms = float(least.times_ms.min())
        deadline_ms = 8 * low_ms
        times = cut(low_ms, deadline_ms, 1.1)
        all_of = rooms._parts(number, times, deadline_ms, loss, 0)
        wide = {
            float(low): float(left) for p in all_of for low, left in zip(p.boxes.low, p.left, strict=True)
        }
        for one in chains.singles(number):
            for part in rooms._parts(one, times, deadline_ms, loss, len(ROUNDS) - 1):
                for low, left in zip(part.boxes.low.tolist(), part.left.tolist(), strict=True):
                    if np.isfinite(left):
                        compared += len(chains.replicas_of(number)) > 1
                        assert left <= wide[low] + 1e-9
    assert compared > 20


def test_pieces_leave_no_gap_and_intervals_that_touch_are_one() -> None:
    """By hand."""
    low, high = cut(2.0, 5.0, 1.1)
    assert low[0] <= 2.0 and high[-1] >= 5.0
    assert (low[1:] <= high[:-1]).all() and (high <= 1.1001 * low).all()
    times = [(np.array([5.0, 1.0]), np.array([6.0, 2.0])), (np.array([1.5, 8.0]), np.array([3.0, 9.0]))]
    assert [ends.tolist() for ends in joined(times)] == [[1.0, 5.0, 8.0], [3.0, 6.0, 9.0]]
    inside = [(np.array([1.0, 2.0]), np.array([10.0, 3.0]))]
    assert [ends.tolist() for ends in joined(inside)] == [[1.0], [10.0]]
