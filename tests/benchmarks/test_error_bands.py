"""Error bands: what runs stay within that had no part in them."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from benchmarks.error_bands import (
    COVERAGE,
    WIDER_RUNS,
    Error,
    Group,
    bands,
    coverage,
    errors,
    least_percentiles,
    loss,
    weighted_percentile,
)

MEASURED = Path(__file__).parents[3] / "shared/measured/runs.jsonl"
GROUP: Group = ("h100-sxm-80gb", "megatron-core", "dense", "own")


def runs(source: str, values: list[float]) -> list[Error]:
    """Runs of one group with these errors."""
    return [Error(source, GROUP, (value, value)) for value in values]


ELSEWHERE: Group = ("a100-sxm-80gb", *GROUP[1:])


def test_a_group_counts_by_its_own_runs() -> None:
    """Runs at 30% here, those of another source at 10% on another chip: of all runs, these weigh half."""

    def band(num_runs: int) -> float:
        here = [Error("here", GROUP, (0.3, 0.3))] * num_runs
        found = here + [Error("there", ELSEWHERE, (0.1, 0.1))] * 100
        return bands(found, (40, 40), 80)[GROUP][0]

    assert band(5) == 0.1  # little more than half of the weight lies at 30%
    assert band(400) == 0.3  # 400 / 480 and more


def test_scaled_chips_of_other_makers_widen_the_bands_of_all_scaled_chips_but_not_the_other_way() -> None:
    far = [Error("far", ("ascend-910b-64gb", "mindspeed", "dense", "other_maker"), (0.3, 0.3))] * 20
    near = [Error("near", ("v100-sxm-16gb", "megatron-2022", "dense", "same_maker"), (0.1, 0.1))] * 20
    found = bands(far + near, (60, 60))
    assert found["*", "*", "dense", "same_maker"] == found["*", "*", "dense", "other_maker"] == (0.3, 0.3)
    assert bands(far + near, (50, 50))["*", "*", "dense", "same_maker"] == (0.1, 0.1)
    assert bands(far + near, (50, 50))["*", "*", "dense", "other_maker"] == (0.3, 0.3)


def test_a_band_of_few_runs_is_steady() -> None:
    """Five runs, the last of them as exact as the others or far off, beside many of other chips."""
    rng = np.random.default_rng(1)
    wide = [
        Error(f"s{s}", ELSEWHERE, (float(e), float(e)))
        for s in range(9)
        for e in rng.exponential(0.05, size=50)
    ]

    def jump(percentile: float, wider_runs: float) -> float:
        exact, off = (
            bands(wide + runs("few", [0.02, 0.03, 0.04, 0.05, last]), (percentile,) * 2, wider_runs)[GROUP][0]
            for last in (0.04, 0.4)
        )
        return off / exact

    assert jump(87, 0) == 8.0
    assert 1.0 <= jump(87, WIDER_RUNS) < 1.25


def test_loss_is_least_at_the_quantile_asked_for() -> None:
    """Two alike sources: of the bands of one for the other the 80th percentile is the best."""
    values = [float(x) for x in np.linspace(0.0, 0.1, 101)]
    found = runs("a", values) + runs("b", values)
    by_percentile = {p: loss(found, p, 0)["a"][0] for p in (60, 70, 80, 90, 99)}
    assert min(by_percentile, key=lambda p: by_percentile[p]) == 80
    # Half of the runs are 0.1 within, half 0.1 beyond: (0.2 + 0.8) * 0.1 / 2.
    assert loss(runs("a", [0.0, 0.2]) + runs("b", [0.1] * 5), 80, 0)["a"][0] == pytest.approx(0.05)


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
