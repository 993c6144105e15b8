"""`--target all` where some launcher cannot build the network."""

from __future__ import annotations

import json

import pytest

from planner.cli import main
from planner.commands.screen import ExitCode


def test_launchers_that_build_a_hybrid_are_planned_and_the_others_say_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command ended at the first launcher that could not, and lost its answers for the others."""
    asked = ["plan", "--target", "all", "--model", "nemotron-h-8b", "--cluster", "1x8 h100-sxm-80gb"]
    asked += ["--seq-length", "4096", "--global-batch-size", "16", "--gap", "0.5", "--max-pp", "1", "-q"]
    assert main([*asked, "--json"]) == ExitCode.PLAN
    targets = json.loads(capsys.readouterr().out)["targets"]
    assert targets["megatron-lm"]["plan"] is not None and targets["megatron-bridge"]["plan"] is not None
    assert targets["megatron-bridge"]["plan"]["virtual_stages"] == 1
    for name in ("flagscale", "unrestricted"):
        assert targets[name]["plan"] is None and "Mamba layers" in targets[name]["reason"]


def test_a_network_that_no_launcher_builds_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--target", "all", "--model", "gemma2-9b", "--cluster", "1x8 h100-sxm-80gb"]
    assert main([*asked, "--seq-length", "4096", "--global-batch-size", "16"]) == ExitCode.WRONG_INPUT
    assert "target megatron-lm cannot run this model" in capsys.readouterr().err
