"""Selective recomputation module by module, and whole layers in pieces."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.memory.stage import memory_bytes
from planner.cost.prices import PARTS, Degrees, Prices
from planner.cost.pricing import price
from planner.cost.recomputation import missing_modules, modules_of
from planner.cost.stage import StageContent
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.simulate.evaluate import evaluate
from tests.planner.cost.problems import problem
from tests.planner.simulate.synthetic import packed_plan

EP, TP = PARTS.index("ep"), PARTS.index("tp")


def deepseek() -> Problem:
    return problem(cluster="4x8 h100-sxm-80gb", model="deepseek-v3")


def recomputing(of: Problem, *modules: str, **degrees: int | bool) -> Prices:
    """Prices where selective recomputation runs these modules again."""
    stack = of.stack.model_copy(update={"selective_modules": modules})
    changed = of.model_copy(update={"stack": stack})
    rows = {"data_parallel": 32, "expert_parallel": 8, "expert_tensor_parallel": 1} | degrees
    return price(changed, Degrees.single(**rows))  # type: ignore[arg-type]


def freed_bytes(prices: Prices, kind: str) -> float:
    k = prices.kinds.index(kind)
    return float(prices.layer_activation_bytes[0, k, 0] - prices.layer_activation_selective_bytes[0, k, 0])


def test_recomputing_all_experts_repeats_their_exchanges_and_frees_more_than_their_parts() -> None:
    whole = recomputing(deepseek(), "moe")
    parts = recomputing(deepseek(), "moe_act", "shared_experts")
    moe = whole.kinds.index("moe")
    assert whole.layer_selective_s[0, moe, 0, EP] == whole.layer_forward_s[0, moe, 0, EP] > 0
    assert parts.layer_selective_s[0, moe, 0, EP] == 0.0
    assert freed_bytes(whole, "moe") > 2 * freed_bytes(parts, "moe") > 0
    # A dense layer of the same model has no experts to recompute.
    assert freed_bytes(whole, "dense") == 0.0


def test_a_module_inside_another_is_not_recomputed_twice() -> None:
    whole, both = recomputing(deepseek(), "moe"), recomputing(deepseek(), "moe", "moe_act", "shared_experts")
    np.testing.assert_array_equal(whole.layer_selective_s, both.layer_selective_s)
    np.testing.assert_array_equal(
        whole.layer_activation_selective_bytes, both.layer_activation_selective_bytes
    )


def test_recomputed_mlp_repeats_half_of_a_layers_forward_collectives() -> None:
    found = recomputing(
        problem(), "mlp", tensor_parallel=8, data_parallel=4, expert_parallel=1, sequence_parallel=True
    )
    # Attention and feed-forward block have one pair of maps each.
    assert found.layer_selective_s[0, 0, 0, TP] == pytest.approx(found.layer_forward_s[0, 0, 0, TP] / 2)
    compute = found.layer_selective_s[0, 0, 0, 0] / found.layer_forward_s[0, 0, 0, 0]
    assert 0.5 < compute < 0.9  # 2/3 of the weights of a llama layer are its feed-forward block


def test_modules_that_a_model_lacks_are_named_and_left_out() -> None:
    llama = problem().model
    assert missing_modules(llama, ("core_attn", "mla_up_proj", "moe")) == ("mla_up_proj", "moe")
    assert modules_of(llama, "dense", ("moe_act", "layernorm", "mlp")) == ("layernorm", "mlp")


def content(**changes: object) -> StageContent:
    """Eight layers of the second kind of deepseek-v3 (experts), nothing else."""
    fields: dict[str, object] = {
        "node_class": 0,
        "chunks": ((1,) * 8,),
        "has_embedding": False,
        "has_head": False,
        "recompute": "none",
        "recompute_layers": 0,
    }
    return StageContent(**(fields | changes))  # type: ignore[arg-type]


def test_a_layer_in_backward_holds_its_recomputed_modules_once_more() -> None:
    prices = recomputing(deepseek(), "moe")
    terms = memory_bytes(prices, 0, content(recompute="selective"), [3.0], 1)
    none = memory_bytes(prices, 0, content(), [3.0], 1)
    freed = freed_bytes(prices, "moe")
    assert none["activations"] - terms["activations"] == pytest.approx(8 * 3 * freed)
    assert none["recompute"] == 0.0
    assert terms["recompute"] == pytest.approx(freed)


def test_pieces_of_layers_keep_fewer_inputs_and_need_more_at_once() -> None:
    prices = recomputing(deepseek(), "core_attn")
    one, three = (
        memory_bytes(
            prices, 0, content(recompute="full", recompute_layers=8, recompute_piece=piece), [2.0], 1
        )
        for piece in (1, 3)
    )
    kept = float(prices.layer_activation_full_bytes[0, 1, 0])
    # Eight layers in pieces of three: inputs of layers 0, 3 and 6 for each of two micro-batches in flight.
    assert one["activations"] == pytest.approx(2 * 8 * kept)
    assert three["activations"] == pytest.approx(2 * 3 * kept)
    again = float(prices.layer_recompute_peak_bytes[0, 1, 0])
    # Two more layers exist at once, and the inputs of the second and third are made anew.
    assert one["recompute"] == pytest.approx(again)
    assert three["recompute"] == pytest.approx(3 * again + 2 * kept)


def test_a_plan_may_name_other_modules_than_its_software() -> None:
    of = problem()
    plan = packed_plan(of, [(0, 32)], tensor_parallel=8, recompute="selective")
    by_stack = evaluate(of, plan)
    by_plan = evaluate(of, plan.model_copy(update={"recompute_modules": ("mlp",)}))
    assert by_plan.step_s > by_stack.step_s
    assert by_plan.stages[0].peak_memory_gib < by_stack.stages[0].peak_memory_gib


def test_pieces_go_with_whole_stages_only() -> None:
    of = problem()
    plan = packed_plan(of, [(0, 32)], tensor_parallel=8, recompute="full", recompute_layers=10)
    stage = plan.stages[0].model_copy(update={"recompute_piece": 4})
    found = evaluate(of, plan.model_copy(update={"stages": (stage,)})).violations
    assert any("recompute_piece 4" in message for message in found)
    whole = stage.model_copy(update={"recompute_layers": 32})
    assert not any(
        "recompute_piece" in message
        for message in evaluate(of, plan.model_copy(update={"stages": (whole,)})).violations
    )


def test_pieces_do_not_join_layers_that_predict_further_tokens() -> None:
    """Megatron-LM asserts that, when the last stage recomputes."""
    of = problem()
    predicting = of.model_copy(update={"model": of.model.model_copy(update={"mtp_num_layers": 1})})
    plan = packed_plan(of, [(0, 32)], tensor_parallel=8, recompute="full", recompute_layers=32)
    pieces = plan.model_copy(update={"stages": (plan.stages[0].model_copy(update={"recompute_piece": 4}),)})

    def refused(problem: Problem, plan: Plan) -> bool:
        return any("predict further tokens" in message for message in evaluate(problem, plan).violations)

    assert refused(predicting, pieces)
    assert not refused(predicting, plan) and not refused(of, pieces)


def test_layers_that_predict_further_tokens_recompute_the_same_modules() -> None:
    of = problem()
    one = of.model_copy(update={"model": of.model.model_copy(update={"mtp_num_layers": 1})})
    none, some = (
        packed_plan(of, [(0, 32)], tensor_parallel=8, recompute=kind).model_copy(
            update={"recompute_modules": ("mlp",) if kind == "selective" else None}
        )
        for kind in ("none", "selective")
    )
    more = [
        evaluate(p, some).stages[0].backward_s - evaluate(p, none).stages[0].backward_s for p in (of, one)
    ]
    assert more[1] == pytest.approx(more[0] * 33 / 32)


def test_policies_of_xla_run_fewer_products_again_the_more_they_keep() -> None:
    def again(policy: str) -> float:
        return float(recomputing(problem(), policy, expert_parallel=1).layer_selective_s[0, 0, 0].sum())

    core = float(recomputing(problem(), "core_attn", expert_parallel=1).layer_selective_s[0, 0, 0].sum())
    pointwise, fc1, proj = (again(f"all_but_{kept}") for kept in ("products", "qkv_proj", "qkv"))
    assert core < pointwise < fc1 < proj
    # A gated first map of 4096 to 2 x 14336 has seven times the work of the output map.
    assert 5 < (fc1 - pointwise) / (proj - fc1) < 8
