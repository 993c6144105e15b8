"""Factors of chips from measured steps: made-up truths come back, and what they cannot explain is said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import api
from planner.calibrate.convert import Candidate
from planner.calibrate.factors import LEAST_FACTOR, MeasuredStep, calibrate
from planner.cli import main
from planner.cost.bands import error_band
from planner.data import load
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.save import to_yaml
from planner.errors import InstanceError
from tests.planner.stubs import two_class_problem, two_stage_plan

H100, A100 = "h100-sxm-80gb", "a100-sxm-80gb"


def uniform(chip: str, microbatch_size: int = 1) -> tuple[Problem, Plan]:
    """One node of one chip with two stages."""
    problem = two_class_problem(cluster=f"1x8 {chip}")
    mixed = two_stage_plan(two_class_problem())
    stages = tuple(
        stage.model_copy(
            update={
                "chip": chip,
                "node_class": problem.cluster.classes[0].name,
                "hosts": problem.cluster.hosts_of(0),
                "data_parallel": 1,
                "recompute": "full",
                "recompute_layers": 16,
                "layers": layers,
            }
        )
        for stage, layers in zip(mixed.stages, ((0, 15), (16, 31)), strict=True)
    )
    plan = mixed.model_copy(
        update={
            "stages": stages,
            "data_parallel": 1,
            "microbatch_size": microbatch_size,
            "num_microbatches": 64 // microbatch_size,
        }
    )
    return problem, plan


def mixed() -> tuple[Problem, Plan]:
    """A stage on A100 and a stage on H100."""
    problem = two_class_problem()
    return problem, two_stage_plan(problem)


def timed(
    problem: Problem, plan: Plan, truth: Mapping[str, float], label: str = "", off: float = 1.0
) -> MeasuredStep:
    """The step that these factors give, `off` times as long."""
    stack = problem.stack.model_copy(update={"time_factor": dict(truth)})
    step_s = api.predict(problem.model_copy(update={"stack": stack}), plan).step_s
    return MeasuredStep(label or problem.name, Candidate(problem, (plan,), stack.id, False, ()), step_s * off)


@settings(max_examples=6, deadline=None)
@given(st.floats(0.5, 3.0), st.floats(0.5, 3.0))
def test_steps_of_one_chip_each_give_back_the_factors_they_were_made_with(h100: float, a100: float) -> None:
    truth = {H100: h100, A100: a100}
    found = calibrate([timed(*uniform(H100), truth, "h"), timed(*uniform(A100), truth, "a")])
    assert found.factors == pytest.approx(truth, rel=1e-6)
    for step in found.steps:
        assert step.after_s == pytest.approx(step.measured_s, rel=1e-8)


def test_a_mixed_step_gives_the_chip_that_ran_nowhere_else() -> None:
    truth = {H100: 1.2, A100: 1.4}
    found = calibrate([timed(*mixed(), truth, "m"), timed(*uniform(H100), truth, "h")])
    assert found.factors == pytest.approx(truth, rel=1e-6)
    assert [(chip.chip, chip.is_shared) for chip in found.chips] == [(A100, True), (H100, False)]


def test_a_mixed_step_alone_gives_one_factor_to_all_its_chips() -> None:
    found = calibrate([timed(*mixed(), {H100: 1.3, A100: 1.3})])
    assert found.factors == pytest.approx({H100: 1.3, A100: 1.3}, rel=1e-6)


def test_the_median_counts_and_one_wild_step_does_not() -> None:
    problem, plan = uniform(H100)
    other = uniform(H100, microbatch_size=2)
    steps = [
        timed(problem, plan, {H100: 1.1}, "one"),
        timed(*other, {H100: 1.1}, "two"),
        timed(problem, plan, {H100: 3.0}, "wild"),
    ]
    (chip,) = calibrate(steps).chips
    assert chip.factor == pytest.approx(1.1, rel=1e-6)
    assert (chip.num_runs, chip.least, chip.most) == (
        3,
        pytest.approx(1.1, rel=1e-6),
        pytest.approx(3.0, rel=1e-6),
    )


def test_factors_that_a_stack_holds_already_are_left_out() -> None:
    problem, plan = uniform(H100)
    held = problem.stack.model_copy(update={"time_factor": {H100: 2.0}})
    step = timed(problem, plan, {H100: 1.25})
    again = replace(
        step,
        candidate=replace(step.candidate, problem=problem.model_copy(update={"stack": held})),
    )
    assert calibrate([again]).factors == pytest.approx({H100: 1.25}, rel=1e-6)


def test_a_step_that_no_factor_explains_counts_for_no_chip_and_stops_where_it_is_alone() -> None:
    problem, plan = uniform(H100)
    sound = timed(problem, plan, {H100: 1.1}, "sound")
    short = timed(problem, plan, {H100: LEAST_FACTOR}, "short", off=0.5)
    with pytest.raises(InstanceError, match=r"^short: measured .*computed 4 times as fast; check the unit"):
        calibrate([short])
    found = calibrate([short, sound])
    assert found.factors == pytest.approx({H100: 1.1}, rel=1e-6)
    (sentence,) = found.unexplained
    assert sentence.startswith("short: ")
    with pytest.raises(InstanceError, match="took 8 times as long"):
        calibrate([timed(problem, plan, {H100: 8.0}, off=1.5)])


def plan_file(folder: Path, chip: str, factor: float) -> tuple[Path, float]:
    """A plan with its problem in a file, and the time of its step at this factor."""
    problem, plan = uniform(chip)
    whole = plan.model_copy(update={"problem": load.problem_file(problem)})
    path = folder / f"{chip}.yaml"
    path.write_text(to_yaml(whole))
    return path, timed(problem, plan, {chip: factor}).measured_s


def test_the_command_writes_a_stack_with_which_the_step_is_predicted_as_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, measured_s = plan_file(tmp_path, H100, 1.3)
    out = tmp_path / "mine.yaml"
    assert main(["calibrate", f"{path}={measured_s!r}", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "1.300" in shown.out and f"--stack {out}" in shown.err
    problem, plan = uniform(H100)
    stack = load.load_stack(out)
    assert stack.time_factor == {H100: pytest.approx(1.3, abs=1e-6)}
    again = api.predict(problem.model_copy(update={"stack": stack}), plan)
    assert again.step_s == pytest.approx(measured_s, rel=1e-5)
    assert again.error_band == error_band(problem.chips[H100], stack, problem.model)
    assert main(["calibrate", f"{path}={measured_s!r}", "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["calibrate", f"{path}={measured_s!r}", "--out", str(out), "--force"]) == 0


def test_the_command_reads_a_file_of_runs_of_one_kind_of_software(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.planner.calibrate.rows import row

    runs = tmp_path / "runs.jsonl"
    lines = [row(id="one"), row(id="two", software="DeepSpeed Megatron", quality="low"), row(id="three")]
    runs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["calibrate", str(runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [step["label"] for step in told["runs"]] == ["one", "three"]
    assert told["skipped"] == {"quality low": 1}
    (chip,) = told["chips"]
    assert chip["runs"] == 2 and chip["factor"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan.yaml=0"], "is no time of a step"),
        (["plan.yaml=soon"], "is no time of a step"),
        (["plan.yaml"], "is a plan without its time"),
        (["nothing.yaml=1.5"], "nothing.yaml"),
        (["nothing.jsonl"], "nothing.jsonl"),
    ],
)
def test_wrong_words_end_in_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and told in shown.err and shown.err.count("\n") == 1
