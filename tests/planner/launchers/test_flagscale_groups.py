"""Process groups of exported FlagScale configurations, rank by rank, against what the plan means."""

from __future__ import annotations

import random
from collections import defaultdict
from fractions import Fraction

import pytest

from planner.rules.flagscale import hetero_config, plan_violations
from planner.rules.flagscale_config import HeteroConfig, config_violations
from tests.flagscale_groups import Rank, embedding_groups, neighbours, pipelines, rows_summed
from tests.planner.launchers import plans
from tests.planner.launchers.test_round_trip import with_degrees_by_stage


def piece(config: HeteroConfig, rank: Rank) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """What a rank holds of a micro-batch's activations: from and to of its sequence, of its samples."""
    mesh, i, k = rank
    tp, _, _, dp, _ = config.meshes[mesh]
    return Fraction(i, tp), Fraction(i + 1, tp), Fraction(k, dp), Fraction(k + 1, dp)


def meet(a: tuple[Fraction, ...], b: tuple[Fraction, ...]) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


@pytest.mark.parametrize("seed", range(12))
def test_ranks_are_connected_where_their_pieces_meet(seed: int) -> None:
    problem, plan = with_degrees_by_stage(seed)
    config = hetero_config(problem, plan)
    ways = list(pipelines(config))
    for mesh, (now, then) in enumerate(zip(config.meshes, config.meshes[1:], strict=False)):
        ranks = [
            [(m, i, k) for i in range(s[0]) for k in range(s[3])] for m, s in ((mesh, now), (mesh + 1, then))
        ]
        meant = {(a, b) for a in ranks[0] for b in ranks[1] if meet(piece(config, a), piece(config, b))}
        assert {(a, b) for a, others in neighbours(config, mesh).items() for b in others} == meant
        assert {(way[mesh], way[mesh + 1]) for way in ways} == meant
    # Without experts the expert groups of a mesh are those of its tensor parallelism, into which it divides.
    assert config.expert_tensor_parallel is not None
    for (tp, _, ep, dp, _), etp in zip(config.meshes, config.expert_tensor_parallel, strict=True):
        assert tp * dp % (etp * ep) == 0


def sums_right(config: HeteroConfig) -> bool:
    """Whether all parts of a shared embedding are summed once, each with the same part of the other end."""
    pairs_of: dict[Rank, list[tuple[Rank, Rank]]] = defaultdict(list)
    for pair in embedding_groups(config):
        for rank in pair:
            pairs_of[rank].append(pair)
    for pair in embedding_groups(config):
        if pair[0][1] != pair[1][1]:  # other rows of the vocabulary
            return False
        rows = [rows_summed(config, rank, pairs_of[rank].index(pair), len(pairs_of[rank])) for rank in pair]
        if rows[0] != rows[1]:
            return False
    return True


def random_config(rng: random.Random) -> HeteroConfig:
    meshes = [(rng.choice([1, 2, 4]), 1, 1, rng.choice([1, 2, 4]), 1) for _ in range(rng.randint(2, 4))]
    return HeteroConfig(
        process_meshes=tuple(number for mesh in meshes for number in mesh),
        layer_split=(1,) * len(meshes),
        device_types=tuple(f"A_{i}" for i in range(len(meshes))),
        num_layers=len(meshes),
        pipeline_parallel=len(meshes),
        microbatch_size=4,
        global_batch_size=64,
        tied_or_predicting=True,
        distributed_optimizer=rng.random() < 0.7,
    )


def test_shared_embeddings_are_summed_part_by_part() -> None:
    """Ends of tensor parallelism 4 around a stage of 2 summed other rows of the vocabulary without a word."""
    rng, accepted, wrong = random.Random(0), 0, 0
    for _ in range(2000):
        config = random_config(rng)
        right = sums_right(config)
        if not config_violations(config):
            accepted += 1
            assert right, config.process_meshes
        wrong += not right
    assert accepted > 100 and wrong > 100


@pytest.mark.parametrize(
    ("meshes", "complaint"),
    [
        ((4, 1, 1, 2, 1, 2, 1, 1, 4, 1, 4, 1, 1, 2, 1), "mesh 1: tensor parallel 2 is no multiple"),
        ((2, 1, 1, 4, 1, 4, 1, 1, 2, 1, 2, 1, 1, 4, 1), "mesh 1: data parallel 2 is no multiple of 4"),
    ],
)
def test_a_stage_that_joins_what_the_ends_hold_apart_is_refused(
    meshes: tuple[int, ...], complaint: str
) -> None:
    config = random_config(random.Random(1))
    told = HeteroConfig(
        **{
            **vars(config),
            "process_meshes": meshes,
            "layer_split": (1, 1, 1),
            "device_types": ("A", "B", "C"),
            "num_layers": 3,
            "pipeline_parallel": 3,
            "distributed_optimizer": True,
        }
    )
    (said,) = config_violations(told)
    assert said.startswith(complaint)
    assert not sums_right(told)


def test_replicas_of_different_number_need_the_distributed_optimizer() -> None:
    problem, plan = plans.mixed_128()
    stages = tuple(
        stage.model_copy(
            update={"recompute": "none", "recompute_layers": 0}
            | ({"tensor_parallel": 4, "data_parallel": 8} if s > 1 else {})
        )
        for s, stage in enumerate(plan.stages)
    )
    changes = {"stages": stages, "target": "flagscale", "microbatch_size": 2, "dp_mode": "ddp"}
    config = hetero_config(problem, plan.model_copy(update=changes))
    assert any("counts parts of the gradient's norm several times" in s for s in config_violations(config))


@pytest.mark.parametrize(("replicas", "complaints"), [((4, 4), 0), ((1, 5), 1), ((2, 4), 0), ((5, 5), 0)])
def test_rows_of_a_shared_embedding_divide_by_the_replicas_of_both_ends(
    replicas: tuple[int, int], complaints: int
) -> None:
    """FlagScale cut them without a look at the rest where it need not, and stopped in the first step."""
    problem, plan = plans.biases_and_learned_positions()
    stages = tuple(
        stage.model_copy(update={"data_parallel": dp})
        for stage, dp in zip(plan.stages, replicas, strict=True)
    )
    plan = plan.model_copy(update={"stages": stages, "target": "flagscale"})
    assert hetero_config(problem, plan).partial_reduce == (replicas[0] != replicas[1])
    said = [line for line in plan_violations(problem, plan) if "rows of the embedding" in line]
    assert len(said) == complaints
