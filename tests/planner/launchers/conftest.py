"""The environment that holds the real Megatron-LM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def megatron_python() -> str:
    """Python of the environment that holds Megatron-LM; without it, CI fails and others skip."""
    venv = Path(os.environ.get("HETPLAN_MEGATRON_VENV", ROOT / ".venv-megatron"))
    python = venv / "bin" / "python"
    if not python.exists():
        reason = f"{venv} is missing; run tests/setup_megatron.sh"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return str(python)


@pytest.fixture(scope="session")
def bridge_python() -> str:
    """Python of the environment that holds Megatron-Bridge and transformers."""
    venv = Path(os.environ.get("HETPLAN_BRIDGE_VENV", ROOT / ".venv-bridge"))
    python = venv / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{venv} is missing; run tests/setup_bridge.sh, which takes a minute and 550 MB")
    return str(python)
