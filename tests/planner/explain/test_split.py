"""Train together or apart: each class alone, the gain of the mix and what of it is proven."""

from __future__ import annotations

import json

import pytest

from planner import api
from planner.cli import main
from planner.data.load import build_problem
from planner.data.options import Options
from planner.errors import InstanceError
from planner.explain.split import _verdict, compare_split
from tests.planner.stubs import without_plan


def test_two_equal_classes_alone_reach_what_the_mix_reaches_with_room_to_spare() -> None:
    # Eight H100 named twice: together they are sixteen, apart two times eight.
    flags = {
        "model": "llama3-8b",
        "seq_length": 4096,
        "global_batch_size": 64,
        "options": Options(gap=0.001, max_virtual_stages=1),
    }
    problem = build_problem(cluster="1x8 h100-sxm-80gb, 1x8 h100-sxm-80gb", **flags)
    result = api.plan(problem)
    split = compare_split(problem, result)
    one = api.plan(build_problem(cluster="1x8 h100-sxm-80gb", **flags))
    assert one.evaluation is not None
    for alone in split.alone:
        assert alone.tokens_per_s == pytest.approx(one.evaluation.tokens_per_s)
        assert alone.tokens_per_s_at_most >= alone.tokens_per_s
    assert split.mixing_gain is not None and 0.8 < split.mixing_gain < 1.1
    assert split.mixing_gain_at_least is not None and split.mixing_gain_at_most is not None
    assert split.mixing_gain_at_least <= split.mixing_gain <= split.mixing_gain_at_most


def test_the_verdict_says_only_what_is_proven() -> None:
    assert _verdict(1.1, 1.05, 1.12).startswith("train together: the mix trains 10.0% more")
    assert "25.0% more tokens in all" in _verdict(0.8, 0.75, 0.85)
    assert _verdict(1.01, 0.99, 1.03).startswith("no difference is proven")
    assert "no class can train this model alone" in _verdict(None, None, None, none_can=True)
    assert _verdict(None, None, None).startswith("not known")


def test_a_class_whose_search_ran_out_of_time_is_not_said_to_hold_no_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With none of the limit left for the classes, the answer was that none can train the model alone."""
    flags = {"model": "llama3-8b", "seq_length": 4096, "global_batch_size": 64}
    problem = build_problem(cluster="1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb", **flags)
    result = api.plan(problem, Options(gap=0.5))
    monkeypatch.setattr(api, "plan", lambda asked: without_plan(asked, "no_solution_found", "out of time"))
    split = compare_split(problem, result)
    assert [alone.tokens_per_s_at_most for alone in split.alone] == [None, None]
    assert split.mixing_gain is None and split.mixing_gain_at_least is None
    assert split.words.startswith("not known")


def test_one_class_cannot_be_split() -> None:
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb", model="llama3-8b", seq_length=2048, global_batch_size=8
    )
    with pytest.raises(InstanceError, match="a split needs two node classes"):
        compare_split(problem, api.plan(problem, Options(gap=0.5)))


@pytest.mark.slow
def test_the_command_prints_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--cluster", "1x8 h100-sxm-80gb, 1x8 v100-sxm-16gb", "--model", "llama3-8b"]
    flags += ["--seq-length", "2048", "--global-batch-size", "32", "--precision", "fp16", "--quiet"]
    assert main(["plan", *flags, "--compare-split", "--json"]) == 0
    split = json.loads(capsys.readouterr().out)["split"]
    assert [alone["node_class"] for alone in split["alone"]] == ["h100-sxm-80gb", "v100-sxm-16gb"]
    assert main(["plan", *flags, "--compare-split"]) == 0
    assert "mixing gain" in capsys.readouterr().out
