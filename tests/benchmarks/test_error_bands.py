"""Error bands: what runs stay within that had no part in them."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from benchmarks.error_bands import (
    COVERAGE,
    Error,
    bands,
    coverage,
    errors,
    least_percentiles,
    weighted_percentile,
)

MEASURED = Path(__file__).parents[3] / "shared/measured/runs.jsonl"
GROUP = ("h100-sxm-80gb", "megatron-core", "dense", True)


def runs(source: str, values: list[float]) -> list[Error]:
    """Runs of one group with these errors."""
    return [Error(source, GROUP, (value, value)) for value in values]


def test_a_source_of_many_runs_weighs_no_more_than_one_of_few() -> None:
    found = runs("many", [0.01] * 95) + runs("few", [0.2] * 5)
    # Of 100 runs 95 are at 1%; of two sources one.
    assert bands(found, (80, 50))[GROUP] == (0.2, 0.01)
    assert weighted_percentile(np.array([3.0, 1.0, 2.0]), np.ones(3), 67) == 3.0
    assert weighted_percentile(np.array([3.0, 1.0, 2.0]), np.ones(3), 66) == 2.0


def test_the_percentile_rises_until_sources_left_out_are_covered() -> None:
    """Five sources, each less exact than the last: the 80th percentile of the others is too narrow."""
    rng = np.random.default_rng(0)
    found = [
        error
        for s in range(5)
        for error in runs(f"s{s}", list(rng.exponential(0.05 * (1 + 0.3 * s), size=20)))
    ]
    percentile, _ = least_percentiles(found)
    assert percentile > 80
    mean = np.mean([share[0] for share in coverage(found, percentile).values()])
    before = np.mean([share[0] for share in coverage(found, percentile - 1).values()])
    assert mean >= COVERAGE > before


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.exists(), reason="the measured runs are not at hand")
def test_shipped_bands_cover_sources_that_had_no_part_in_them() -> None:
    text = (resources.files("planner.instances") / "tables" / "error_bands.yaml").read_text()
    stated = re.search(r"percentile (\d+) \((\d+) anchored\)", text)
    assert stated is not None
    found = errors(MEASURED)
    for column, percentile in enumerate(map(int, stated.groups())):
        shares = [share[column] for share in coverage(found, percentile).values()]
        assert np.mean(shares) >= COVERAGE
