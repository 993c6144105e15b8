"""Stages of different degrees where they pay: the plan, its bound, and its way to FlagScale."""

from __future__ import annotations

import numpy as np
import pytest

from planner import api
from planner.data.load import build_problem
from planner.data.options import Options
from planner.data.problem import Problem
from planner.data.result import Result
from planner.report.targets import cost_in_words
from planner.rules.flagscale import hetero_config
from planner.rules.flagscale_config import config_violations
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.relaxation import _ascend
from planner.search.state import Incumbent
from planner.units import MS


def problem_of(**changes: object) -> Problem:
    """Four fast chips beside four slow ones with half the memory."""
    values = {
        "cluster": "1x4 h100-sxm-80gb, 1x4 a100-sxm-40gb",
        "model": "llama3-8b",
        "seq_length": 4096,
        "global_batch_size": 16,
        "target": "flagscale",
    }
    return build_problem(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    # FlagScale has no virtual stages: Megatron-LM may win by them.
    options = Options(gap=0.15, time_limit_s=20, max_pipeline_parallel=2, max_virtual_stages=1)
    return dict(api.plan_all(problem_of(), options))


def test_a_wider_launcher_is_never_slower(results: dict[str, Result]) -> None:
    narrow, wide = results["megatron-lm"].evaluation, results["flagscale"].evaluation
    assert narrow is not None and wide is not None
    assert wide.step_s <= narrow.step_s * (1 + 1e-12)


def test_what_a_launcher_costs_is_said_in_a_sentence(results: dict[str, Result]) -> None:
    narrow, wide = results["megatron-lm"].evaluation, results["flagscale"].evaluation
    assert narrow is not None and wide is not None
    slower = narrow.model_copy(update={"step_s": 1.021 * wide.step_s})
    fastest = narrow.model_copy(update={"step_s": wide.step_s / 1.01})
    made_up = {
        name: results[name].model_copy(update={"evaluation": evaluation})
        for name, evaluation in (("megatron-lm", slower), ("flagscale", wide), ("unrestricted", fastest))
    }
    assert cost_in_words(made_up) == (  # type: ignore[arg-type]
        "stock Megatron is 2.1% slower than FlagScale with its meshes, 3.1% than unrestricted; "
        "FlagScale with its meshes is 1.0% slower than unrestricted"
    )


def test_a_searched_plan_passes_flagscales_checks_and_is_written(results: dict[str, Result]) -> None:
    plan = results["flagscale"].plan
    assert plan is not None
    assert config_violations(hetero_config(problem_of(), plan)) == ()
    files = api.export_texts(results["flagscale"], "flagscale")
    assert "hetero_process_meshes" in files["train/hetero.yaml"]


def test_shor_ascends_to_the_top_of_a_ridge() -> None:
    # min(x, 4 - x, 10 - 3 y, x + y) has its top, 2, at x = 2 and any y in [0, 8/3].
    def at(prices: np.ndarray) -> tuple[float, np.ndarray]:
        x, y = prices
        pieces = [(x, (1, 0)), (4 - x, (-1, 0)), (10 - 3 * y, (0, -3)), (x + y, (1, 1))]
        value, slope = min(pieces)
        return float(value), np.array(slope, dtype=float)

    best, where = _ascend(at, np.array([0.1, 5.0]), np.ones(2), 10.0)
    assert best == pytest.approx(2, rel=1e-3)
    assert where[1] >= 0


@pytest.mark.parametrize("stages", [9, pytest.param(12, marks=pytest.mark.slow)])
def test_lengths_looked_at_together_never_miss_what_one_of_them_reaches(stages: int) -> None:
    """The step of a real pipeline is no deadline that all pipelines of 9 to 12 stages miss."""
    problem = problem_of(
        cluster="2x8 h100-sxm-80gb, 2x8 a100-sxm-40gb", model="llama2-13b", global_batch_size=32
    )
    search = MeshSearch(problem, None)
    opener = search.make_opener()
    tried = 0
    for number, batch in enumerate(opener.batches):
        together = opener._relaxation(number, 9, coarse=True, longest=12)
        alone = opener._relaxation(number, stages)
        for k in range(0, len(batch.shapes), 3):
            order = (k,) * (stages - 2) + (len(batch.shapes) - 1,) * 2
            if not opener.is_allowed(number, order):
                continue
            opener.best, opener.incumbent = None, Incumbent(1)
            opener.try_order(number, order)
            if opener.best is not None:
                step_ms = opener.best[0] / MS
                assert together.misses(0.02 * step_ms)
                assert not together.misses(step_ms * (1 + 1e-6))
                assert not alone.misses(step_ms * (1 + 1e-6))
                tried += 1
    assert tried > 3
