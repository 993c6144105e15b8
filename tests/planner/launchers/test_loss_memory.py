"""What Megatron-LM's own loss holds of its logits, against what its stack says."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from planner.data.load import load_stack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def test_the_loss_holds_six_bytes_of_a_logit_fused_or_not(megatron_python: str) -> None:
    """16 bits and an fp32 copy; places and masks of the labels are a hundredth of that."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [megatron_python, "-m", "tests.megatron_check.loss_memory", port]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    expected = load_stack("megatron-core").loss_bytes_per_logit
    assert found == pytest.approx({"plain": expected, "fused": expected}, rel=0.02)
