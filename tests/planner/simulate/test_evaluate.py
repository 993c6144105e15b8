"""The referee's verdict on whole plans, with prices made up."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from planner.data.load import build_problem
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.simulate.evaluate import evaluate, evaluate_with_prices
from planner.units import GIB, MS
from tests.planner.simulate.synthetic import packed_plan, prices_of


@pytest.fixture(scope="module")
def mixed() -> Problem:
    """Two classes of 16 chips each, 32 layers, 32 sequences."""
    return build_problem(
        cluster="2x8 h100-sxm-80gb, 2x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=8192,
        global_batch_size=32,
    )


@pytest.fixture(scope="module")
def tied(mixed: Problem) -> Problem:
    """The same with an embedding that the head shares."""
    return mixed.model_copy(update={"model": mixed.model.model_copy(update={"tied_embeddings": True})})


def even_prices(problem: Problem, **changes: Any) -> Any:
    """Layers alone cost time: no embedding, head, reduction, gathering or optimizer."""
    base = prices_of(problem)
    nothing = {
        name: np.zeros_like(getattr(base, name))
        for name in vars(base)
        if name.startswith(("embedding_", "head_", "step_fixed", "tied"))
        or name.endswith(("reduce_s", "gather_s", "optimizer_s", "tail_s"))
        if isinstance(getattr(base, name), np.ndarray)
    }
    return prices_of(problem, **(nothing | changes))


def test_even_stages_take_the_textbook_time(mixed: Problem) -> None:
    plan = packed_plan(mixed, [(0, 8), (0, 8), (1, 8), (1, 8)])
    found = evaluate_with_prices(mixed, plan, even_prices(mixed))
    stage_s = 8 * 3 * 1.1 * MS
    assert found.step_s == pytest.approx((32 + 4 - 1) * stage_s, rel=1e-12)
    assert found.breakdown_s["bubble"] == pytest.approx(3 * stage_s, rel=1e-9)
    assert found.breakdown_s["compute"] == pytest.approx(32 * 8 * 3 * MS, rel=1e-12)
    assert found.breakdown_s["tp"] == pytest.approx(32 * 8 * 3 * 0.1 * MS, rel=1e-12)
    assert found.violations == ()


PLANS = {
    "one stage": ([(0, 32)], {}),
    "uneven stages on two classes": ([(1, 5), (1, 6), (0, 11), (0, 10)], {}),
    "several replicas": ([(1, 12), (0, 20)], {"data_parallel": 2}),
    "half a node a stage": ([(0, 8), (0, 8), (1, 8), (1, 8)], {"tensor_parallel": 4}),
    "everything recomputed": ([(1, 12), (0, 20)], {"recompute": "full", "recompute_layers": 12}),
}


@pytest.mark.parametrize("case", PLANS, ids=str)
@pytest.mark.parametrize("overlap", [True, False])
def test_parts_add_up_to_the_step_and_none_is_negative(mixed: Problem, case: str, overlap: bool) -> None:
    stages, degrees = PLANS[case]
    problem = mixed.model_copy(update={"stack": mixed.stack.model_copy(update={"p2p_overlap": overlap})})
    plan = packed_plan(problem, stages, **degrees)
    prices = prices_of(problem, send_s=0.7 * MS, send_inside_s=0.1 * MS, speed=[1.0, 0.5])
    found = evaluate_with_prices(problem, plan, prices)
    assert found.violations == ()
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_s, rel=1e-12)
    assert min(found.breakdown_s.values()) >= 0
    parts = {"compute", "tp", "cp", "ep", "pp", "dp", "host", "bubble", "optimizer"}
    assert set(found.breakdown_s) == parts
    assert found.tokens_per_s == pytest.approx(32 * 8192 / found.step_s)


def test_stages_end_apart_so_reductions_do_not_simply_add(mixed: Problem) -> None:
    # Two stages, one micro-batch each of 16 ms a layer x 16. Stage 1 ends first (it need not wait
    # for stage 0's backward): with a long reduction on it alone and a short one on stage 0, the step
    # is the larger of the two sums, not the last end plus the longest reduction.
    plan = packed_plan(mixed, [(0, 16), (1, 16)], num_microbatches=1)
    backward_s = 16 * 2 * 1.1 * MS
    reduce = np.zeros((1, 1, 2))
    reduce[0, 0, 1] = 0.5 * backward_s / 16
    found = evaluate_with_prices(mixed, plan, even_prices(mixed, layer_reduce_s=reduce, hidden_fraction=0.0))
    stage_s = 16 * 3 * 1.1 * MS
    assert found.step_s == pytest.approx(2 * stage_s, rel=1e-12)
    assert found.breakdown_s["dp"] == pytest.approx(0.0, abs=1e-12)


def test_only_what_outlasts_the_last_backward_is_exposed(mixed: Problem) -> None:
    plan = packed_plan(mixed, [(0, 32)])
    backward_s = 32 * 2 * 1.1 * MS
    reduce = np.full((1, 1, 2), (0.9 * backward_s + 5 * MS) / 32)
    found = evaluate_with_prices(mixed, plan, even_prices(mixed, layer_reduce_s=reduce))
    assert found.breakdown_s["dp"] == pytest.approx(5 * MS, rel=1e-9)


def test_tied_embeddings_meet_once_a_step_where_there_are_two_stages(tied: Problem) -> None:
    n = len(tied.cluster.classes)
    prices = even_prices(tied, tied_sync_s=np.full((1, n, n), 3 * MS))
    alone = evaluate_with_prices(tied, packed_plan(tied, [(0, 32)]), prices)
    apart = evaluate_with_prices(tied, packed_plan(tied, [(0, 16), (0, 16)]), prices)
    assert alone.breakdown_s["dp"] == pytest.approx(0.0, abs=1e-12)
    assert apart.breakdown_s["dp"] == pytest.approx(3 * MS, rel=1e-9)


def test_optimizer_runs_after_all_stages_met(mixed: Problem) -> None:
    # Slowest optimizer on the stage with most layers: 20 layers of 0.02 ms, plus 1 ms fixed.
    base = prices_of(mixed)
    prices = even_prices(mixed, layer_optimizer_s=base.layer_optimizer_s, step_fixed_s=base.step_fixed_s)
    found = evaluate_with_prices(mixed, packed_plan(mixed, [(1, 12), (0, 20)]), prices)
    assert found.breakdown_s["optimizer"] == pytest.approx(1.4 * MS, rel=1e-12)


def test_wider_link_never_slows_the_plan(mixed: Problem) -> None:
    plan = packed_plan(mixed, [(1, 5), (1, 6), (0, 11), (0, 10)])
    steps = [
        evaluate_with_prices(mixed, plan, prices_of(mixed, send_s=ms * MS, speed=[1.0, 0.5])).step_s
        for ms in (0.0, 0.5, 2.0, 10.0)
    ]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]


def test_recomputation_takes_time_and_gives_memory_back(mixed: Problem) -> None:
    prices = prices_of(mixed)
    kinds: list[dict[str, Any]] = [
        {"recompute": "none"},
        {"recompute": "selective"},
        {"recompute": "full", "recompute_layers": 8},
        {"recompute": "full", "recompute_layers": 16},
    ]
    found = [
        evaluate_with_prices(mixed, packed_plan(mixed, [(0, 16), (1, 16)], **kind), prices) for kind in kinds
    ]
    none, selective, half, full = found
    assert none.step_s < selective.step_s < half.step_s < full.step_s
    kept = [evaluation.stages[0].memory_gib["activations"] for evaluation in found]
    assert kept[0] > kept[1] > kept[2] > kept[3]
    assert full.stages[1].peak_memory_gib < none.stages[1].peak_memory_gib


def test_memory_terms_add_up_and_first_stages_hold_more_microbatches(mixed: Problem) -> None:
    found = evaluate_with_prices(
        mixed, packed_plan(mixed, [(0, 8), (0, 8), (1, 8), (1, 8)]), prices_of(mixed)
    )
    assert [stage.in_flight for stage in found.stages] == [4, 3, 2, 1]
    for s, stage in enumerate(found.stages):
        assert stage.peak_memory_gib == pytest.approx(sum(stage.memory_gib.values()))
        embedding, head = 0.05 * (s == 0) * 4, 0.1 * (s == 3)
        assert stage.memory_gib["activations"] == pytest.approx(8 * 0.5 * (4 - s) + embedding + head)


def test_a_stage_that_does_not_fit_is_named_with_the_way_out(mixed: Problem) -> None:
    heavy = prices_of(mixed, layer_activation_bytes=np.full((1, 1, 2), 5 * GIB))
    plan = packed_plan(mixed, [(1, 16), (0, 16)])
    found = evaluate_with_prices(mixed, plan, heavy)
    message = found.violations[0]
    assert message.startswith("stage 0 (chip a100-sxm-80gb): needs ")
    assert message.endswith("; try recompute=full")
    assert f"may use {found.stages[0].limit_gib:.1f} GiB" in message
    recomputed = packed_plan(mixed, [(1, 16), (0, 16)], recompute="full", recompute_layers=2)
    assert (
        evaluate_with_prices(mixed, recomputed, heavy).violations[0].endswith("try recompute_layers up to 16")
    )


def test_what_is_short_by_little_is_told_in_mib(mixed: Problem) -> None:
    """A stage was said to need 76.0 GiB and to be let have 76.0 GiB."""
    plan, prices = packed_plan(mixed, [(1, 16), (0, 16)]), prices_of(mixed)
    stage = evaluate_with_prices(mixed, plan, prices).stages[0]
    more = (stage.limit_gib - stage.peak_memory_gib) * GIB + 20 * 2**20
    found = evaluate_with_prices(mixed, plan, prices_of(mixed, fixed_bytes=prices.fixed_bytes + more))
    assert f"needs {stage.limit_gib:.1f} GiB, 20.0 MiB more than it may use" in found.violations[0]


def test_mfu_counts_the_chips_that_the_plan_uses(mixed: Problem) -> None:
    from planner.cost.kernels.flop import model_flop_per_step

    plan = packed_plan(mixed, [(1, 12), (0, 20)])
    found = evaluate_with_prices(mixed, plan, prices_of(mixed))
    peaks = [mixed.chip_of(i).peak_flop_per_s("bf16") or 0.0 for i in range(2)]
    assert found.mfu == pytest.approx(model_flop_per_step(mixed) / found.step_s / (8 * sum(peaks)))


def test_timeline_holds_every_piece_of_work_without_overlap(mixed: Problem) -> None:
    plan = packed_plan(mixed, [(1, 12), (0, 20)])
    found = evaluate_with_prices(mixed, plan, prices_of(mixed, send_s=MS), timeline=True)
    assert found.timeline is not None
    assert len(found.timeline) == 2 * 2 * 32
    for s in range(2):
        events = [event for event in found.timeline if event.stage == s]
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(events))
        assert sum(e.end_s - e.start_s for e in events) == pytest.approx(found.stages[s].busy_s, rel=1e-9)


def interleaved(problem: Problem, num_microbatches: int = 32) -> Plan:
    plan = packed_plan(problem, [(0, 16), (1, 16)], num_microbatches=num_microbatches)
    stages = tuple(
        stage.model_copy(update={"layers": ((8 * s, 8 * s + 7), (16 + 8 * s, 23 + 8 * s))})
        for s, stage in enumerate(plan.stages)
    )
    return plan.model_copy(update={"stages": stages, "virtual_stages": 2})


def test_virtual_stages_shorten_the_bubble(mixed: Problem) -> None:
    prices = even_prices(mixed)
    found = evaluate_with_prices(mixed, interleaved(mixed), prices)
    stage_s = 16 * 3 * 1.1 * MS
    assert found.violations == ()
    assert found.step_s == pytest.approx(32 * stage_s + stage_s / 2, rel=1e-12)
    # Stage 0 holds 2 (p - 1) + (v - 1) p + 1 = 5 virtual micro-batches of half its layers.
    assert found.stages[0].in_flight == 2.5
    assert found.stages[0].memory_gib["activations"] == pytest.approx(5 * 8 * 0.5)


def test_a_schedule_that_would_wait_for_itself_is_refused_and_still_timed(mixed: Problem) -> None:
    found = evaluate_with_prices(mixed, interleaved(mixed, num_microbatches=31), even_prices(mixed))
    assert found.step_s == evaluate_with_prices(mixed, interleaved(mixed), even_prices(mixed)).step_s
    assert any(message.startswith("num_microbatches 31: with virtual stages") for message in found.violations)


def test_a_lost_layer_is_a_violation_and_no_crash(mixed: Problem) -> None:
    plan = packed_plan(mixed, [(1, 12), (0, 19)])
    found = evaluate_with_prices(mixed, plan, prices_of(mixed))
    assert any("layers 0 to 30" in message for message in found.violations)


def test_an_unknown_class_cannot_be_priced(mixed: Problem) -> None:
    plan = packed_plan(mixed, [(1, 12), (0, 20)])
    stages = (plan.stages[0].model_copy(update={"node_class": "v100"}), plan.stages[1])
    with pytest.raises(InstanceError, match=r"stages\[0\].node_class: no node class .* 'v100'"):
        evaluate(mixed, plan.model_copy(update={"stages": stages}))


def test_real_prices_give_a_sane_step(mixed: Problem) -> None:
    plan = packed_plan(mixed, [(1, 10), (0, 22)], tensor_parallel=8, recompute="full", recompute_layers=10)
    found = evaluate(mixed, plan)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_s, rel=1e-9)
    assert 0.05 < found.mfu < 0.7
    assert found.error_band > 0


def test_sends_may_hide_with_virtual_stages_alone(mixed: Problem) -> None:
    prices = even_prices(mixed, send_s=np.full((1, 2, 2), 2 * MS))
    blocking = mixed.model_copy(
        update={"stack": mixed.stack.model_copy(update={"p2p_overlap_interleaved": False})}
    )
    hiding = mixed.model_copy(
        update={"stack": mixed.stack.model_copy(update={"p2p_overlap_interleaved": True})}
    )
    plain = packed_plan(mixed, [(0, 8), (0, 8), (1, 8), (1, 8)])
    stages = tuple(
        stage.model_copy(update={"layers": ((4 * s, 4 * s + 3), (16 + 4 * s, 16 + 4 * s + 3))})
        for s, stage in enumerate(plain.stages)
    )
    interleaved = plain.model_copy(update={"virtual_stages": 2, "stages": stages})
    both = [
        [evaluate_with_prices(of, plan, prices).step_s for of in (blocking, hiding)]
        for plan in (plain, interleaved)
    ]
    assert both[0][0] == both[0][1]
    # 32 micro-batches cross two chunks each way: what blocked each of them is hidden behind others now.
    assert both[1][1] < both[1][0] - 32 * 2 * 2 * MS
