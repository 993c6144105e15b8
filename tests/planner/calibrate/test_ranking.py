"""Order of layouts, by hand."""

from __future__ import annotations

import pytest

from planner.calibrate.ranking import ranking, regret, spearman
from tests.planner.calibrate.rows import run


def test_spearman_of_known_orders() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    # One swap of neighbours among four: 1 - 6 (1 + 1) / (4 (16 - 1)) = 0.8.
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_ties_share_their_mean_rank() -> None:
    # Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: covariance 4.5, variances 4.5 and 5.
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_regret_is_what_the_predicted_best_costs() -> None:
    assert regret([3.0, 1.0, 2.0], [10.0, 11.0, 12.0]) == pytest.approx(0.1)
    assert regret([1.0, 3.0, 2.0], [10.0, 11.0, 12.0]) == 0.0


def test_only_layouts_of_one_model_on_one_cluster_are_compared() -> None:
    def layout(measured_s: float, **changes: object) -> tuple[object, float]:
        return run(measured__step_s=measured_s, **changes), measured_s

    same = [layout(1.0, plan__microbatch_size=1), layout(2.0, plan__microbatch_size=2), layout(3.0)]
    alone = [layout(1.0, source="suite-b"), layout(2.0, source="suite-b")]
    scores = ranking([*same, *alone])  # type: ignore[arg-type]
    assert list(scores) == ["suite-a"]  # two runs say nothing of an order
    assert scores["suite-a"]["groups"] == 1
    assert scores["suite-a"]["n"] == 3
    assert scores["suite-a"]["rho"] == pytest.approx(1.0)
    assert scores["suite-a"]["regret"] == 0.0
