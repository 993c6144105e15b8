"""The cheapest nodes, against every subset of them planned alone."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from planner import api
from planner.cli import main
from planner.data import load
from planner.data.changes import with_class, with_named_hosts
from planner.data.load import build_problem
from planner.data.options import Options
from planner.data.problem import Problem
from planner.data.save import to_yaml
from planner.errors import InstanceError
from planner.explain import economy
from planner.explain.economy import cheapest
from planner.explain.node_counts import used_nodes, with_counts
from tests.oracle_plans import brute_force_by_hosts
from tests.random_problems import random_problem

PRICES = np.array([40.0, 24.0])


def priced(nodes: int) -> Problem:
    """Small nodes of H100 and A100 with prices, a short model, to be solved exactly."""
    problem = build_problem(
        cluster=f"{nodes}x4 h100-sxm-80gb, {nodes}x4 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=2048,
        global_batch_size=24,
        options=Options(gap=0.0, virtual_gap=0.0, top=1),
    )
    short = problem.model.model_copy(update={"num_layers": 8, "published_params": None})
    problem = Problem(**(dict(problem) | {"model": short}))
    for c, price in enumerate(PRICES):
        problem = with_class(problem, c, price_usd_per_hour=float(price), power_kw=float(price) / 10)
    return problem


def every_subset(nodes: int) -> list[tuple[np.ndarray, float]]:
    """Nodes used and step time of the best plan on every subset of nodes of the priced problem."""
    problem = priced(nodes)
    named = with_named_hosts(problem)
    found = []
    sizes = [range(node_class.num_nodes + 1) for node_class in problem.cluster.classes]
    for counts in itertools.product(*sizes):
        if any(counts):
            result = api.plan(with_counts(named, counts))
            assert result.plan is not None and result.evaluation is not None
            found.append((np.array(used_nodes(named, result.plan)), result.evaluation.step_s))
    return found


@pytest.mark.slow
def test_the_cheapest_token_and_the_cheapest_nodes_are_those_of_the_best_subset() -> None:
    problem, subsets = priced(2), every_subset(2)
    result, found = cheapest(problem, "cost")
    best = min(float(PRICES @ used) * step_s for used, step_s in subsets)
    per_million = best / 3600 / problem.workload.tokens_per_step * 1e6
    assert result is not None and found.value == pytest.approx(per_million, rel=1e-9)
    assert found.bound == pytest.approx(per_million, rel=2e-4)  # exact to the least gap that is asked
    _, energy = cheapest(problem, "energy")
    assert energy.value == pytest.approx(per_million / 10, rel=1e-9)
    # The cheapest that reach a step time.
    steps = sorted(step_s for _, step_s in subsets)
    for limit_s in (steps[1], steps[len(steps) // 2], steps[-1]):
        result, found = cheapest(problem, "cost", reach_s=limit_s * (1 + 1e-9))
        assert result is not None and result.evaluation is not None
        assert result.evaluation.step_s <= limit_s * (1 + 1e-9)
        assert found.value == min(
            float(PRICES @ used) for used, step_s in subsets if step_s <= limit_s * (1 + 1e-9)
        )
    assert cheapest(problem, "cost", reach_s=steps[0] / 10)[0] is None


def random_prices(seed: int) -> Problem:
    """A small problem of two classes or more whose nodes have prices and powers."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, num_classes=2 + seed % 2, most_layers=5 - seed % 2)
    model = problem.model.model_copy(update={"activation": "silu" if problem.model.gated_mlp else "gelu"})
    problem = problem.model_copy(update={"model": model})
    for c in range(len(problem.cluster.classes)):
        price, power = (float(value) for value in rng.uniform(1.0, 4.0, 2))
        problem = with_class(problem, c, price_usd_per_hour=price, power_kw=power)
    return problem


def weight(problem: Problem, objective: str, used: tuple[int, ...]) -> float:
    """Price or power of some nodes of each class."""
    key = {"cost": "price_usd_per_hour", "energy": "power_kw"}[objective]
    return sum(n * getattr(c, key) for n, c in zip(used, problem.cluster.classes, strict=True))


GAP = economy.LEAST_GAP * 1.01
"""What the economy may miss of the best, which it says itself."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(600, 632))
def test_the_cheapest_token_is_that_of_the_best_of_all_plans(seed: int) -> None:
    """Brute force over all plans, judged by the referee, each weighed by the nodes that it uses."""
    problem, objective = random_prices(seed), ("cost", "energy")[seed % 2]
    plans = {used: best.step_s for used, best in brute_force_by_hosts(problem).items() if best.what}
    result, found = cheapest(problem, objective)  # type: ignore[arg-type]
    if not plans:
        assert result is None and found.value is None and "no plan" in found.words
        return
    best = min(weight(problem, objective, used) * step_s for used, step_s in plans.items())
    per_million = best / 3600 / problem.workload.tokens_per_step * 1e6
    assert result is not None and found.value is not None and found.bound is not None
    assert found.value == pytest.approx(per_million, rel=GAP)
    assert found.bound <= per_million * (1 + 1e-9)
    assert found.gap is not None and found.gap <= GAP and not found.interrupted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(640, 672))
def test_the_cheapest_nodes_that_reach_a_step_time_are_those_of_all_plans(seed: int) -> None:
    problem, objective = random_prices(seed), ("cost", "energy")[seed % 2]
    plans = {used: best.step_s for used, best in brute_force_by_hosts(problem).items() if best.what}
    steps = sorted(plans.values())
    for limit_s in [steps[0] * 0.99, *steps[:: max(len(steps) // 3, 1)]] if steps else [1.0]:
        limit_s *= 1 + 1e-9
        reaching = [used for used, step_s in plans.items() if step_s <= limit_s]
        result, found = cheapest(problem, objective, reach_s=limit_s)  # type: ignore[arg-type]
        if not reaching:
            assert result is None and found.value is None
            assert ("reaches the step time" if steps else "there is no plan") in found.words
            continue
        best = min(weight(problem, objective, used) for used in reaching)
        assert result is not None and result.evaluation is not None and found.value is not None
        assert result.evaluation.step_s <= limit_s
        assert found.value == pytest.approx(best, rel=GAP)
        assert found.bound is not None and found.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("reach_s", [None, 1e3])
def test_a_class_that_must_not_idle_is_among_the_nodes(reach_s: float | None) -> None:
    """The class was left out together with the wish for it, and the answer claimed a proof."""
    problem = priced(1)
    for node_class in problem.cluster.classes:
        options = Options(gap=0.2, use=(node_class.name,))
        asked = problem.model_copy(update={"options": options})
        result, found = cheapest(asked, "cost", reach_s=reach_s)
        assert result is not None and node_class.name in found.nodes


@pytest.mark.slow
def test_a_step_time_between_bound_and_plan_is_settled_or_left_open() -> None:
    """It was taken for out of reach where the gap alone hid whether it is."""
    problem = priced(1)
    exact = api.plan(problem)
    assert exact.evaluation is not None
    reach_s = exact.evaluation.step_s * (1 + 1e-9)
    loose = problem.model_copy(update={"options": Options(gap=0.5, virtual_gap=0.5, top=1)})
    found, economy_ = cheapest(loose, "cost", reach_s=reach_s)
    assert found is not None and found.evaluation is not None and found.evaluation.step_s <= reach_s
    assert economy_.value is not None
    # Out of time nothing is proven.
    hurried = loose.model_copy(update={"options": loose.options.model_copy(update={"time_limit_s": 1e-3})})
    none, open_ = cheapest(hurried, "cost", reach_s=reach_s * 0.99)
    assert none is None and open_.bound is not None and open_.words.startswith("no plan was found")
    assert open_.unit == "$/h"


def test_the_command_tells_out_of_reach_from_not_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = priced(1).model_copy(update={"options": Options(gap=0.5, time_limit_s=1e-3)})
    file = tmp_path / "problem.yaml"
    file.write_text(to_yaml(load.problem_file(problem)))
    assert main(["plan", str(file), "--reach-step-s", "1", "--quiet"]) == 4
    assert "no plan was found" in capsys.readouterr().out
    for flags in (["--objective", "cost"], ["--reach-step-s", "1"]):  # which all launchers once ignored
        assert main(["plan", str(file), *flags, "--target", "all", "--quiet"]) == 2
        assert f"{flags[0]}: goes with one target" in capsys.readouterr().err
        assert main(["plan", str(file), *flags, "--robust", "2", "--quiet"]) == 2
        assert f"{flags[0]}: goes with none of --robust" in capsys.readouterr().err
    assert main(["plan", str(file), "--target", "al", "--quiet"]) == 2
    assert "did you mean all" in capsys.readouterr().err


def test_a_class_without_a_price_is_named() -> None:
    problem = with_class(priced(1), 1, price_usd_per_hour=None)
    named = r"class a100-sxm-80gb has no price_usd_per_hour, which `"
    with pytest.raises(InstanceError, match=named + "--objective cost`"):
        cheapest(problem, "cost")
    with pytest.raises(InstanceError, match=named + "--reach-step-s`"):
        cheapest(problem, "cost", reach_s=1.0)


def test_the_command_prints_nodes_and_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = priced(1).model_copy(update={"options": Options(gap=0.2)})
    file = tmp_path / "problem.yaml"
    file.write_text(to_yaml(load.problem_file(problem)))
    assert main(["plan", str(file), "--objective", "cost", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["economy"]["nodes"] and found["economy"]["gap"] <= 0.2 and found["plan"] is not None
    assert main(["plan", str(file), "--reach-step-s", "1e-6", "--quiet"]) == 3
    assert "no plan reaches the step time" in capsys.readouterr().out
    assert main(["plan", str(file), "--objective", "speed", "--quiet"]) == 2
