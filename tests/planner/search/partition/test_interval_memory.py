"""Which runs of layers fit a stage, against the referee's memory of each run."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.cost.memory.stage import memory_bytes
from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.cost.stage import StageContent
from planner.data.load import build_problem
from planner.search.partition.interval_memory import IntervalMemory, Position, Runs


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
    full = np.array([stages(prices, at, kinds, "full", layers) for layers in range(1, len(kinds) + 1)])
    for recompute in ("none", "selective", "full"):
        sizes = full.min(axis=0) if recompute == "full" else stages(prices, at, kinds, recompute, 0)
        room = float(np.median(sizes[np.isfinite(sizes)])) * 1.001
        limited = replace(prices, limit_bytes=np.array([room]))
        memory = IntervalMemory(limited, at, np.array(kinds), Runs.all_of(len(kinds)))
        long_enough = np.isfinite(sizes)
        fits = {
            "none": memory.fits_plain,
            "selective": memory.fits_selective,
            "full": lambda memory=memory: memory.fewest_full() > 0,
        }[recompute]()
        assert np.array_equal(fits[long_enough], sizes[long_enough] <= room), recompute
        assert 0 < fits[long_enough].sum() < long_enough.sum()
    seen, some = set(), np.isfinite(full).any(axis=0)
    for quantile in (0.1, 0.3, 0.5, 0.7, 0.9):
        room = float(np.quantile(full[np.isfinite(full)], quantile)) * 1.001
        fits_so, limited = full <= room, replace(prices, limit_bytes=np.array([room]))
        memory = IntervalMemory(limited, at, np.array(kinds), Runs.all_of(len(kinds)))
        fewest = np.where(fits_so.any(axis=0), fits_so.argmax(axis=0) + 1, 0)
        assert np.array_equal(memory.fewest_full()[some], fewest[some])
        seen |= set(fewest.ravel().tolist())
    assert len(seen) > 2 or stack == "megatron-bridge"


def test_several_numbers_in_flight_are_those_one_by_one() -> None:
    of = build_problem(
        cluster="4x8 h100-sxm-80gb", model="nemotron-h-8b", seq_length=512, global_batch_size=64
    )
    prices = price(of, Degrees.single(tensor_parallel=2, data_parallel=2))
    kinds, runs = np.array([prices.kinds.index(kind) for kind in of.model.kind_of_layer]), Runs.all_of(52)
    limited = replace(prices, limit_bytes=0.3 * prices.limit_bytes)
    places = [
        Position(0, 0, held, first=False, last=True, num_stages=4, may_be_empty=True) for held in (1, 2, 9)
    ]
    several = replace(places[0], in_flight=np.array([1, 2, 9])[:, None, None])
    together = IntervalMemory(limited, several, kinds, runs)
    for i, at in enumerate(places):
        alone = IntervalMemory(limited, at, kinds, runs)
        assert np.array_equal(together.fits_plain()[i], alone.fits_plain())
        assert np.array_equal(together.fits_selective()[i], alone.fits_selective())
        assert np.array_equal(together.fewest_full()[i], alone.fewest_full())
    assert len(np.unique(together.fewest_full())) > 5
