"""Which runs of layers fit a stage, against the referee's memory of each run."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.cost.stage import StageContent
from planner.cost.stage_memory import memory_bytes
from planner.data.load import build_problem
from planner.search.interval_memory import IntervalMemory, Position


def stages(prices: Prices, at: Position, kinds: list[int], recompute: str, layers: int) -> np.ndarray:
    """Memory of every run [bytes]; infinite of empty ones where the stage must have a layer."""
    count, least = len(kinds), 0 if at.may_be_empty and recompute == "none" else 1
    sizes = np.full((count + 1, count + 1), np.inf)
    for first, end in product(range(count + 1), repeat=2):
        if end - first >= max(layers, least):
            run = (tuple(kinds[first:end]),)
            content = StageContent(at.node_class, run, at.first, at.last, recompute, layers)
            pipeline = 1 if at.first and at.last else 4
            sizes[first, end] = sum(memory_bytes(prices, 0, content, [at.in_flight], pipeline).values())
    return sizes


@pytest.mark.parametrize(("stack", "sequence"), [("megatron-core", 512), ("megatron-bridge", 256)])
@pytest.mark.parametrize(("first", "last"), list(product([True, False], repeat=2)))
def test_runs_fit_where_the_referee_says_so(stack: str, sequence: int, first: bool, last: bool) -> None:
    """Short sequences, so that the embedding's gradient counts, and in Bridge the optimizer's step."""
    of = build_problem(
        cluster="4x8 h100-sxm-80gb",
        model="nemotron-h-8b",
        seq_length=sequence,
        global_batch_size=64,
        stack=stack,
    )
    prices = price(of, Degrees.single(tensor_parallel=2, data_parallel=2))
    kinds = [prices.kinds.index(kind) for kind in of.model.kind_of_layer[:12]]
    alone = first and last
    at = Position(0, 0, 2, first, last, num_stages=1 if alone else 4, may_be_empty=first != last)
    for recompute, layers in [("none", 0), ("selective", 0), ("full", 1), ("full", 4)]:
        sizes = stages(prices, at, kinds, recompute, layers)
        room = float(np.median(sizes[np.isfinite(sizes)])) * 1.001
        memory = IntervalMemory(replace(prices, limit_bytes=np.array([room])), at, np.array(kinds))
        fits = {
            "none": memory.fits_plain,
            "selective": memory.fits_selective,
            "full": lambda memory=memory, layers=layers: memory.fits_full()[layers - 1],
        }[recompute]()
        long_enough = np.isfinite(sizes)
        assert np.array_equal(fits[long_enough], sizes[long_enough] <= room), (recompute, layers)
        assert 0 < fits[long_enough].sum() < long_enough.sum()
