"""Prices made up for tests, and plans that pack stages on hosts as the rules ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.cost.prices import PARTS, ROLES, STATES, Prices
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.units import GIB, MS


def prices_of(
    problem: Problem,
    *,
    send_s: float = 0.0,
    send_inside_s: float = 0.0,
    speed: Sequence[float] | None = None,
    **changes: Any,
) -> Prices:
    """One choice: a layer forward takes 1 ms of computation and 0.1 ms of TP on the first class.

    `speed` divides the times of each node class. Sends take `send_s` between hosts.
    """
    kinds, classes = problem.model.layer_kinds, problem.cluster.classes
    k, n = len(kinds), len(classes)
    slow = 1.0 / np.array(speed if speed is not None else [1.0] * n)
    shares = np.zeros(len(PARTS))
    shares[:2] = 1.0, 0.1
    piece = MS * shares[None, None, :] * slow[None, :, None]
    layer = np.repeat(piece[:, None], k, axis=1)
    state = np.array([2.0, 4.0, 6.0]) * GIB / 16
    values: dict[str, Any] = {
        "kinds": kinds,
        "layer_forward_s": layer,
        "layer_backward_s": 2 * layer,
        "layer_selective_s": 0.2 * layer,
        "layer_full_s": layer,
        "embedding_forward_s": 0.05 * piece,
        "embedding_backward_s": 0.1 * piece,
        "head_forward_s": 1.2 * piece,
        "head_backward_s": 2.4 * piece,
        "send_s": np.full((1, n, n), send_s),
        "send_inside_s": np.full((1, n), send_inside_s),
        "layer_reduce_s": np.full((1, k, n), 0.3 * MS),
        "embedding_reduce_s": np.full((1, n), 0.5 * MS),
        "head_reduce_s": np.full((1, n), 0.5 * MS),
        "reduce_tail_s": np.full((1, n), 0.3 * MS),
        "layer_gather_s": np.full((1, k, n), 0.15 * MS),
        "embedding_gather_s": np.full((1, n), 0.2 * MS),
        "head_gather_s": np.full((1, n), 0.2 * MS),
        "gather_tail_s": np.full((1, n), 0.15 * MS),
        "hidden_fraction": 0.9,
        "layer_optimizer_s": np.full((1, k, n), 0.02 * MS),
        "embedding_optimizer_s": np.full((1, n), 0.02 * MS),
        "head_optimizer_s": np.full((1, n), 0.02 * MS),
        "step_fixed_s": np.full((1, n), 1.0 * MS),
        **{
            f"head_beside_embedding_{task}_s": np.full((1, n), cost * MS)
            for task, cost in {"reduce": 0.5, "gather": 0.2, "optimizer": 0.02}.items()
        },
        "tied_sync_s": np.full((1, n, n), 0.4 * MS),
        "layer_state_bytes": np.tile(state, (1, k, 1)),
        "embedding_state_bytes": state[None],
        "head_state_bytes": state[None],
        "head_beside_embedding_state_bytes": state[None],
        "layer_activation_bytes": np.full((1, k, n), 0.5 * GIB),
        "layer_activation_selective_bytes": np.full((1, k, n), 0.4 * GIB),
        "layer_activation_full_bytes": np.full((1, k, n), 0.05 * GIB),
        "embedding_activation_bytes": np.array([0.05 * GIB]),
        "head_activation_bytes": np.full((1, n), 0.1 * GIB),
        "layer_working_bytes": np.full((1, k, n), 0.3 * GIB),
        "layer_waiting_bytes": np.zeros((1, k)),
        "layer_placeholder_bytes": np.full((1, k), 0.1 * GIB),
        "embedding_peak_bytes": np.array([0.4 * GIB]),
        "layer_recompute_peak_bytes": np.full((1, k, n), 0.5 * GIB),
        "head_peak_bytes": np.array([1.0 * GIB]),
        "pipeline_buffer_bytes": np.array([0.1 * GIB]),
        "fixed_bytes": np.full((1, n, 1, len(ROLES)), 1.5 * GIB),
        "allocated_fraction": 0.94,
        "limit_bytes": np.array([problem.memory_limit_bytes(i) for i in range(n)]),
        "error_band": 0.05,
        "assumptions": ("prices made up",),
    }
    assert len(STATES) == 3
    return Prices(**(values | changes))


def packed_plan(
    problem: Problem,
    stages: Sequence[tuple[int, int]],
    *,
    tensor_parallel: int = 8,
    data_parallel: int = 1,
    microbatch_size: int = 1,
    recompute: str = "none",
    recompute_layers: int = 0,
    **changes: Any,
) -> Plan:
    """A plan from (node class, layers) of each stage, on the first hosts of every class."""
    size = tensor_parallel * data_parallel
    next_host = [0] * len(problem.cluster.classes)
    first_layer, built, start, before = 0, [], 0, -1
    for node_class, layers in stages:
        if node_class != before:
            if before >= 0:
                next_host[before] += -(-start // problem.cluster.classes[before].chips_per_node)
            start = 0
        per_host, first = problem.cluster.classes[node_class].chips_per_node, next_host[node_class]
        hosts = problem.cluster.hosts_of(node_class)
        end = start + size
        built.append(
            Stage(
                layers=(first_layer, first_layer + layers - 1),
                chip=problem.cluster.classes[node_class].chip,
                node_class=problem.cluster.classes[node_class].name,
                hosts=hosts[first + start // per_host : first + (end - 1) // per_host + 1],
                tensor_parallel=tensor_parallel,
                data_parallel=data_parallel,
                recompute=recompute,  # type: ignore[arg-type]
                recompute_layers=recompute_layers,
            )
        )
        first_layer, start, before = first_layer + layers, end, node_class
    values: dict[str, Any] = {
        "target": problem.target,
        "tensor_parallel": tensor_parallel,
        "data_parallel": data_parallel,
        "microbatch_size": microbatch_size,
        "num_microbatches": problem.workload.global_batch_size // (microbatch_size * data_parallel),
        "sequence_parallel": tensor_parallel > 1,
        "stages": tuple(built),
    }
    return Plan(**(values | changes))
