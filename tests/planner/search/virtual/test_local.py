"""Dealing the layers of stages to chunks: all at once as one by one."""

import numpy as np

from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import fewest_layers
from planner.cost.prices import Floats
from planner.search.virtual.local import Ints, deal
from tests.formulations.interleaved_instances import random_interleaved


def one_by_one(data: VirtualSelectionData, stages: Ints, pattern: Floats) -> Ints:
    """Each layer goes to the chunk that is then the least full, the last of equal ones."""
    layer = data.stage.forward_ms + data.stage.backward_ms
    base = np.add(*data.base_ms())
    dealt = fewest_layers(data)
    for s in range(data.num_stages):
        for _ in range(int(stages[s] - dealt[s].sum())):
            taken = np.round((dealt[s] + 1 + base[s] / layer[s]) / pattern, 6)
            dealt[s, max(range(len(taken)), key=lambda k: (-taken[k], k))] += 1
    return dealt


def test_layers_dealt_at_once_lie_as_if_dealt_one_by_one() -> None:
    rng = np.random.default_rng(3)
    for seed in range(60):
        data = random_interleaved(seed)
        fewest = fewest_layers(data).sum(axis=1)
        stages = fewest + rng.integers(0, 30, data.num_stages)
        shares = rng.integers(1, 4, data.virtual_stages) * rng.choice([1.0, 1.7])
        pattern = shares / shares.sum()
        assert deal(data, stages, pattern).tolist() == one_by_one(data, stages, pattern).tolist(), seed
