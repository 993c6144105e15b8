"""Pipelines of different shape side by side: each as alone, then the sum of their gradients."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from planner import api
from planner.cost.communication.exchange import exchange_link, exchanged_parameters
from planner.cost.memory.states import WEIGHT_BYTES
from planner.cost.parameters import padded_vocab
from planner.data.load import build_problem, load_plan
from planner.data.plan import Pipeline, Plan
from planner.data.problem import Problem
from planner.data.save import to_yaml
from planner.simulate.evaluate import evaluate
from planner.simulate.pipelines import exchange_s, share_of, tail_s
from planner.units import GIB
from tests.planner.simulate.synthetic import packed_plan


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Two nodes of 8 chips in each of two classes, 32 layers, 32 sequences."""
    return build_problem(
        cluster="2x8 h100-sxm-80gb, 2x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=32,
        target="unrestricted",
    )


@pytest.fixture(scope="module")
def parts(problem: Problem) -> tuple[Plan, Plan]:
    """One stage of tp 4 x dp 4 on the H100 with 6 micro-batches, two of tp 8 on the A100 with 8."""
    fast = packed_plan(problem, [(0, 32)], tensor_parallel=4, data_parallel=4, num_microbatches=6)
    slow = packed_plan(problem, [(1, 17), (1, 15)], tensor_parallel=8, num_microbatches=8)
    return fast, slow


@pytest.fixture(scope="module")
def both(parts: tuple[Plan, Plan]) -> Plan:
    fast, slow = parts
    pipelines = tuple(
        Pipeline(num_stages=len(part.stages), microbatch_size=1, num_microbatches=part.num_microbatches)
        for part in parts
    )
    return Plan.model_validate(
        {**fast.model_dump(), "stages": (*fast.stages, *slow.stages), "pipelines": pipelines}
    )


def test_the_step_is_the_slowest_pipeline_the_exchange_and_the_longest_tail(
    problem: Problem, parts: tuple[Plan, Plan], both: Plan
) -> None:
    found = evaluate(problem, both)
    assert found.violations == ()
    alone = [evaluate(share_of(problem, part), part).step_s for part in parts]
    tails = [tail_s(problem, part) for part in parts]
    exchange = exchange_s(problem, parts)
    assert exchange > 0
    expected = max(step - tail for step, tail in zip(alone, tails, strict=True)) + exchange + max(tails)
    assert found.step_s == pytest.approx(expected)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_s)
    assert len(found.stages) == 3


def test_gradients_of_two_equal_pipelines_go_once_over_the_wire_of_each_host(problem: Problem) -> None:
    # 2 (G - 1) / G = 1 of all gradients leaves every host; two stages share them, so half on each of two.
    one = packed_plan(problem, [(0, 32)], tensor_parallel=8)
    two = packed_plan(problem, [(0, 16), (0, 16)], tensor_parallel=8)
    whole, halves = exchange_s(problem, (one, one)), exchange_s(problem, (two, two))
    assert 0.45 * whole < halves < 0.6 * whole
    assert exchange_s(problem, (one,)) == 0


def test_sequences_must_add_up_to_the_batch(problem: Problem, both: Plan) -> None:
    assert both.pipelines is not None
    more = both.pipelines[1].model_copy(update={"num_microbatches": 9})
    wrong = both.model_copy(update={"pipelines": (both.pipelines[0], more)})
    assert any("run 33 sequences" in said for said in evaluate(problem, wrong).violations)


def test_no_launcher_runs_them(problem: Problem, both: Plan) -> None:
    for target in ("megatron-lm", "flagscale"):
        said = evaluate(problem, both.model_copy(update={"target": target})).violations
        assert any("one for all replicas" in message for message in said)


def test_stages_and_pipelines_must_agree(both: Plan) -> None:
    with pytest.raises(ValidationError, match="have 2 stages in all, stages lists 3"):
        Plan.model_validate({**both.model_dump(), "pipelines": [both.pipelines[0].model_dump()] * 2})  # type: ignore[index]


def test_a_plan_file_of_pipelines_reads_back_and_is_exported(problem: Problem, both: Plan, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "plan.yaml"
    path.write_text(to_yaml(both))
    assert load_plan(path) == both
    files = api.export_texts(both, "unrestricted", problem=problem)
    assert "Pipeline 1 is stages 1 to 2: 1 replicas, each 8 micro-batches" in files["README.md"]
    assert '"num_microbatches": 8' in files["plan.json"]


def test_stages_on_one_host_share_its_adapters(problem: Problem) -> None:
    """Halves of a host each send half of the gradients through half of its adapters: no faster than whole."""
    whole = packed_plan(problem, [(0, 32)], tensor_parallel=8)
    halves = packed_plan(problem, [(0, 16), (0, 16)], tensor_parallel=4)
    at_once = exchange_s(problem, (halves, halves))
    assert exchange_s(problem, (whole, whole)) <= at_once * (1 + 1e-9)


@pytest.mark.parametrize("turn", range(3))
def test_the_slowest_link_of_the_ring_carries_what_fewer_hosts_take(turn: int) -> None:
    """Two hosts with slow adapters send to one with fast ones, whose adapters are as few as it is."""
    problem = build_problem(
        cluster="3x8 h100-sxm-80gb, 2x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=32,
        target="unrestricted",
    )
    slow, fast = exchange_link(problem, 1, 0), exchange_link(problem, 0, 0)
    assert slow[0] < fast[0]
    ring = [
        packed_plan(problem, [(1, 32)], tensor_parallel=8, data_parallel=2),
        packed_plan(problem, [(0, 32)], tensor_parallel=8),
        packed_plan(problem, [(0, 32)], tensor_parallel=8, data_parallel=2),
    ]
    sent = exchanged_parameters(problem, 0, 32, copies=False) * problem.stack.gradient_bytes
    expected_s = 4 / 3 * sent / slow[0] + 4 * slow[1]
    assert exchange_s(problem, [*ring[turn:], *ring[:turn]]) == pytest.approx(expected_s, rel=1e-12)
    assert exchange_s(problem, [*reversed(ring)]) == pytest.approx(expected_s, rel=1e-12)


@pytest.fixture(scope="module")
def tied() -> Problem:
    """A model whose head is its embedding, of which the last of several stages holds a copy."""
    return build_problem(
        cluster="4x8 h100-sxm-80gb",
        model="gemma2-9b",
        seq_length=4096,
        global_batch_size=32,
        target="unrestricted",
    )


def test_a_tied_head_and_the_embedding_are_summed_and_held_as_copies(tied: Problem) -> None:
    num_layers, model = tied.model.num_layers, tied.model
    assert model.tied_embeddings
    table = padded_vocab(model.vocab_size, 1) * model.hidden_size
    one = packed_plan(tied, [(0, num_layers)], tensor_parallel=8, num_microbatches=16)
    two = packed_plan(tied, [(0, num_layers - 1), (0, 1)], tensor_parallel=8, num_microbatches=16)
    # The copy is summed among the last stages wherever some pipeline holds it apart from the embedding.
    last = [exchanged_parameters(tied, num_layers - 1, num_layers, copies=copies) for copies in (False, True)]
    assert last[1] - last[0] == table
    bytes_per_s = exchange_link(tied, 0, 0)[0]
    mixed, alike = exchange_s(tied, (one, two)), exchange_s(tied, (one, one))
    expected_s = tied.stack.gradient_bytes * table / bytes_per_s
    assert mixed - alike == pytest.approx(expected_s, abs=4 * tied.cluster.classes[0].latency_s)
    # In memory each pipeline holds what it holds alone: one stage has the table once, two stages twice.
    pipelines = tuple(Pipeline(num_stages=n, microbatch_size=1, num_microbatches=16) for n in (1, 2))
    stages = (*one.stages, *two.stages)
    both = evaluate(tied, Plan.model_validate({**one.model_dump(), "stages": stages, "pipelines": pipelines}))
    alone = [stage for part in (one, two) for stage in evaluate(share_of(tied, part), part).stages]
    assert [stage.memory_gib for stage in both.stages] == [stage.memory_gib for stage in alone]
    weights = [stage.memory_gib["weights"] for stage in both.stages]
    copy_gib = WEIGHT_BYTES * table / 8 / GIB
    assert weights[1] + weights[2] - weights[0] == pytest.approx(copy_gib, rel=1e-3)


def test_a_pipeline_without_tensor_parallelism_runs_beside_ones_that_split_the_sequence(
    problem: Problem,
) -> None:
    wide = packed_plan(problem, [(0, 32)], tensor_parallel=8, num_microbatches=16)
    slim = packed_plan(problem, [(1, 8)] * 4, tensor_parallel=1, num_microbatches=16)
    pipelines = tuple(Pipeline(num_stages=n, microbatch_size=1, num_microbatches=16) for n in (1, 4))
    both = Plan.model_validate(
        {
            **wide.model_dump(),
            "sequence_parallel": True,
            "stages": (*wide.stages, *slim.stages),
            "pipelines": pipelines,
        }
    )
    assert [part.sequence_parallel for part in both.pipeline_plans] == [True, False]
    assert not any("sequence_parallel" in said for said in evaluate(problem, both).violations)
