"""What Megatron-LM's own loss holds of its logits, against what its stack says."""

from __future__ import annotations

import json
import socket

import pytest

from planner.data.load import load_stack
from tests.planner.launchers import real_megatron

pytestmark = pytest.mark.slow


def test_the_loss_holds_six_bytes_of_a_logit_fused_or_not(megatron_python: str) -> None:
    """16 bits and an fp32 copy; places and masks of the labels are a hundredth of that."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    run = real_megatron.run(megatron_python, "-m", "tests.megatron_check.loss_memory", port, timeout_s=300)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    expected = load_stack("megatron-core").loss_bytes_per_logit
    assert found == pytest.approx({"plain": expected, "fused": expected}, rel=0.02)
