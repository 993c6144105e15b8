"""Small random problems for the oracle: mixed classes, tight memory, slow and fast links."""

from __future__ import annotations

import numpy as np

from planner.data.cluster import Cluster, Link, NodeClass
from planner.data.experts_spec import MoeSpec
from planner.data.load import load_chip, load_stack
from planner.data.model_spec import ModelSpec
from planner.data.options import Options
from planner.data.problem import Problem
from planner.data.workload import Workload

CHIPS = ("h100-sxm-80gb", "a100-sxm-80gb", "l40s-48gb", "b200-180gb", "mi300x-192gb", "a100-pcie-40gb")


def random_problem(
    seed: int,
    *,
    most_layers: int = 6,
    gap: float = 0.0,
    experts: bool = False,
    most_context: int = 1,
    num_classes: int = 2,
) -> Problem:
    """A problem of classes with at most 4 chips each, `most_layers` layers and a batch of at most 8."""
    rng = np.random.default_rng(seed)
    model = _model(rng, most_layers)
    if experts:
        model = _with_experts(rng, model).model_copy(update={"mtp_num_layers": int(seed % 3 == 0)})
    names = [str(name) for name in rng.choice(CHIPS, size=num_classes, replace=False)]
    sizes = [(1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1)]
    tightness = float(rng.choice([0.08, 0.15, 0.3, 0.6, 1.5]))
    billion = (
        18 * (model.num_layers * 12 * model.hidden_size**2 + 2 * model.vocab_size * model.hidden_size) / 2**30
    )
    classes = []
    for i, name in enumerate(names):
        nodes, per_node = sizes[int(rng.integers(len(sizes)))]
        classes.append(
            NodeClass(
                name=f"class{i}",
                chip=name,
                num_nodes=nodes,
                chips_per_node=per_node,
                nics_per_node=int(rng.integers(1, 3)),
                nic_gbit_per_s=float(rng.choice([10, 100, 400])),
                memory_gib=3.4 + billion * tightness * float(rng.uniform(0.7, 2.0)),
            )
        )
    links = ()
    if rng.random() < 0.5:
        rate = float(rng.choice([1, 10, 100]))
        links = (
            Link(between=("class0", "class1"), gbit_per_s=rate, latency_us=float(rng.choice([5, 50, 1000]))),
        )
    stack = load_stack("megatron-core").model_copy(
        update={
            "p2p_overlap": bool(rng.random() < 0.5),
            "dp_overlap": bool(rng.random() < 0.5),
            "flash_attention": bool(rng.random() < 0.7),
            "megatron_groups": False,  # tiny chips have no room for them
            # A third copies so many gradients for the optimizer's step that this is when stages are fullest.
            "gradient_bytes": 2.0 if seed % 3 == 2 else 4.0,
            "step_gradient_bytes": 12.0,
        }
    )
    return Problem(
        name=f"random-{seed}",
        cluster=Cluster(id=f"random-{seed}", classes=tuple(classes), links=links),
        chips={name: load_chip(name) for name in names},
        model=model,
        workload=Workload(
            seq_length=int(rng.choice([512, 1024, 2048, 4096])), global_batch_size=int(rng.integers(1, 9))
        ),
        stack=stack,
        options=Options(
            gap=gap,
            max_context_parallel=most_context,
            least_context_tokens=1,
            max_virtual_stages=1,
            forbid=("stages=mixed",),
        ),
    )


def with_deferred_sends(problem: Problem) -> Problem:
    """The same where stages wait for a gradient before they send an activation, over slower links."""
    changes = {"p2p_overlap": False, "p2p_after_gradient": True}
    classes = tuple(
        c.model_copy(update={"nic_gbit_per_s": c.nic_gbit_per_s / 10}) for c in problem.cluster.classes
    )
    return problem.model_copy(
        update={
            "stack": problem.stack.model_copy(update=changes),
            "cluster": problem.cluster.model_copy(update={"classes": classes}),
        }
    )


def with_an_old_class(problem: Problem, seed: int) -> Problem:
    """The same in fp16, where the attention of one class keeps its scores."""
    chip = problem.cluster.classes[seed % len(problem.cluster.classes)].chip
    old = problem.chips[chip].model_copy(update={"compute_capability": 7.0})
    return problem.model_copy(
        update={
            "chips": {**problem.chips, chip: old},
            "workload": problem.workload.model_copy(update={"precision": "fp16"}),
            "stack": problem.stack.model_copy(update={"flash_attention": True}),
        }
    )


def with_unlike_adapters(problem: Problem) -> Problem:
    """The same with an embedding that both ends hold, and adapters far from those of other classes."""
    classes = tuple(
        c.model_copy(update={"nic_gbit_per_s": rate, "nics_per_node": 1})
        for c, rate in zip(problem.cluster.classes, (400.0, 1.0, 10.0), strict=False)
    )
    return problem.model_copy(
        update={
            "model": problem.model.model_copy(update={"tied_embeddings": True}),
            "cluster": problem.cluster.model_copy(update={"classes": classes}),
        }
    )


def with_two_racks(problem: Problem, seed: int) -> Problem:
    """The same where the second class are more or fewer of the nodes of the first, in another rack."""
    rng = np.random.default_rng([seed, 2])
    first, second, *others = problem.cluster.classes
    counts = rng.integers(1, 4 if first.chips_per_node == 1 else 3, size=2).tolist()
    racks = [
        first.model_copy(update={"name": name, "num_nodes": count, "pace_chips": 8})
        for name, count in zip((first.name, second.name), counts, strict=True)
    ]
    links = []
    if others:
        links = [
            Link(between=(rack.name, others[0].name), gbit_per_s=20.0, latency_us=30.0) for rack in racks
        ]
    classes = [*racks, *others] if seed % 2 else [racks[0], *others, racks[1]]
    cluster = problem.cluster.model_copy(update={"classes": tuple(classes), "links": tuple(links)})
    return problem.model_copy(update={"cluster": cluster})


def random_interleaved_problem(seed: int, *, most_virtual: int = 3, experts: bool = False) -> Problem:
    """The same where virtual stages are free: 4 to 8 layers, a batch that often divides by the stages."""
    problem = random_problem(seed, experts=experts)
    rng = np.random.default_rng([seed, most_virtual])
    stack = problem.stack.model_copy(
        update={"p2p_overlap_interleaved": (None, True, False)[int(rng.integers(3))]}
    )
    batch = int(rng.choice([2, 4, 6, 8, 12]))
    return problem.model_copy(
        update={
            "model": problem.model.model_copy(update={"num_layers": int(rng.integers(4, 9))}),
            "workload": problem.workload.model_copy(update={"global_batch_size": batch}),
            "stack": stack,
            "options": problem.options.model_copy(
                update={"max_virtual_stages": most_virtual, "virtual_gap": 0.0}
            ),
        }
    )


def _model(rng: np.random.Generator, most_layers: int) -> ModelSpec:
    heads = int(rng.choice([4, 6, 8, 12]))
    hidden = heads * 128
    return ModelSpec(
        id="random",
        family="random",
        num_layers=int(rng.integers(1, most_layers + 1)),
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=heads,
        num_query_groups=int(rng.choice([1, heads // 2, heads])),
        head_dim=128,
        vocab_size=int(rng.choice([1000, 32000, 100000])),
        max_position_embeddings=4096,
        tied_embeddings=bool(rng.random() < 0.3),
        gated_mlp=bool(rng.random() < 0.5),
        activation="silu",
        normalization="rms",
        source="made up for tests",
    )


def _with_experts(rng: np.random.Generator, model: ModelSpec) -> ModelSpec:
    num_experts = int(rng.choice([2, 4]))
    moe = MoeSpec(
        num_experts=num_experts,
        top_k=int(rng.integers(1, 3)),
        ffn_hidden_size=int(rng.choice([256, 1024])),
        shared_ffn_hidden_size=int(rng.choice([0, 512])),
        first_dense_layers=int(rng.integers(0, min(3, model.num_layers))),
    )
    return model.model_copy(update={"moe": moe})


def with_heavy_leading_layers(problem: Problem) -> Problem:
    """The same where dense layers before those with experts take longer, but not in the optimizer's step."""
    model = problem.model
    if model.moe is None or model.num_layers < 2:
        return problem
    wide = 8 * model.hidden_size
    experts = {"num_experts": 4, "top_k": 1, "ffn_hidden_size": wide // 4, "shared_ffn_hidden_size": 0}
    moe = model.moe.model_copy(update={**experts, "first_dense_layers": 1 + (model.num_layers > 2)})
    changes = {"moe": moe, "ffn_hidden_size": wide, "vocab_size": 1000}
    stack = problem.stack.model_copy(update={"host_layer_floor_ms": 0.0, "step_host_ms": 0.0})
    return problem.model_copy(update={"model": model.model_copy(update=changes), "stack": stack})


def with_communicators_of(problem: Problem, kind: int) -> Problem:
    """The same where memory depends on a pipeline's length and reach in one of six ways.

    All groups of Megatron-LM, which take less between nodes; few groups, which take more there and buffers
    below switches; few groups of one size. Every second plans memory ahead.
    """
    changes: tuple[dict[str, object], ...] = (
        {"megatron_groups": True, "communicator_gib": 0.2, "far_communicator_gib": 0.1},
        {"communicator_gib": 0.1, "far_communicator_gib": 0.3, "switch_buffer_mib": 100.0},
        {},
    )
    update = {**changes[kind % 3], "plans_memory": kind % 2 == 0}
    return problem.model_copy(update={"stack": problem.stack.model_copy(update=update)})
