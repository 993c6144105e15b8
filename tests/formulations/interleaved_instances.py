"""Random coefficients of interleaved pipelines, as the search makes them of random problems."""

from __future__ import annotations

import itertools

import numpy as np

from formulations.stage_selection_tables import least_bottleneck_ms, least_recompute
from formulations.virtual_selection_data import VirtualSelectionData
from planner.cost.pricing import price
from planner.search.degrees import list_degrees
from planner.search.virtual_data import whole_stages
from planner.search.virtual_tables import VirtualTables
from tests.random_problems import random_interleaved_problem


def random_interleaved(seed: int) -> VirtualSelectionData:
    """Two or three stages of two or three chunks on random classes that may hold the layers."""
    rng = np.random.default_rng(seed)
    for at in itertools.count(int(rng.integers(10_000))):
        problem = random_interleaved_problem(at)
        table = list_degrees(problem)
        stages, chunks = int(rng.integers(2, 4)), int(rng.integers(2, 4))
        fits = [
            choice
            for choice in range(len(table))
            if table.num_microbatches[choice] % stages == 0 and stages * chunks <= problem.model.num_layers
        ]
        if not fits:
            continue
        choice = fits[int(rng.integers(len(fits)))]
        classes = np.flatnonzero(table.max_stages[choice])
        order = rng.choice(classes, size=stages).tolist()
        data = VirtualTables(problem, price(problem, table.degrees), table).data(choice, chunks, order)
        whole = whole_stages(data)
        if np.isfinite(least_bottleneck_ms(whole, least_recompute(whole))):
            return data
    raise AssertionError("unreachable")
