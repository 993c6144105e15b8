"""Dealing the layers of stages to chunks: all at once as one by one."""

from dataclasses import replace

import numpy as np
import pytest

from formulations.interleaved_rows import largest_waits
from formulations.virtual_selection_data import VirtualSelectionData, choices, objectives_ms, pieces_ms
from formulations.virtual_selection_tables import fewest_layers
from planner.cost.prices import Floats
from planner.search.virtual.local import MOST_GROUPS, Dealer, Ints, deal
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


def test_long_steps_are_no_shorter_than_a_stage_works_and_waits() -> None:
    rng, seen = np.random.default_rng(0), 0
    for seed in (1, 47, 55):
        data = random_interleaved(seed)
        fewest = fewest_layers(data)
        for groups in (MOST_GROUPS, 30) * 10:
            layers = fewest.copy()
            np.add.at(layers.reshape(-1), rng.integers(layers.size, size=data.num_layers - fewest.sum()), 1)
            m = groups * data.num_stages
            longer = replace(data, stage=replace(data.stage, num_microbatches=m))
            found = list(choices(longer, layers.tolist()))
            if not found:
                continue
            seen += 1
            values = Dealer(longer).values_ms(found)
            if groups <= MOST_GROUPS:
                assert values == pytest.approx(objectives_ms(longer, found), rel=1e-12)
            pieces = pieces_ms(longer, found)
            send = np.broadcast_to(data.send_ms, pieces.forward.shape[:2])
            waits = largest_waits(pieces.forward, pieces.backward, send, m)
            waits += pieces.reduction[:, 0] + pieces.follow + data.stage.constant_ms
            assert (values >= waits * (1 - 1e-9)).all(), seed
    assert seen > 20
