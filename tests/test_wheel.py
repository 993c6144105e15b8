"""The wheel works on its own: built, installed in a fresh environment, used from another folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

QUICK = ("--cluster", "2x8 h100-sxm-80gb", "--model", "llama3-8b", "--seq-length", "8192")
"""A problem that takes seconds, with two nodes so that there is something to decide."""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without our checkout on the path, and fail with its words."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel from a copy of the sources: setuptools would put leftovers of an old `build/` into it."""
    out, sources = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("sources")
    for name in ("planner", "formulations", "instances"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, sources, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `hetplan` command of a fresh environment that holds the wheel."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    # Compiling all of OR-Tools and NumPy takes longer than compiling what is used.
    pip = (sys.executable, "-m", "pip", "--python", home / "venv", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-compile", wheel, cwd=home)
    return home / "venv" / "bin" / "hetplan"


def test_wheel_carries_instances_templates_and_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("chips", "models", "clusters", "problems", "tables"):
        assert any(n.startswith(f"planner/instances/{folder}/") for n in names), folder
    assert any(n.startswith("planner/launchers/templates/") for n in names)
    assert any(n.endswith("/licenses/LICENSE") for n in names)
    assert not any(n.startswith("tests/") for n in names)


def test_installed_command_plans_and_exports_from_another_folder(installed: Path, tmp_path: Path) -> None:
    done = run(
        installed,
        "plan",
        *QUICK,
        "--global-batch-size",
        "64",
        "--gap",
        "0.05",
        "--out",
        "launch",
        "--json",
        cwd=tmp_path,
    )
    result = json.loads(done.stdout)
    assert result["evaluation"]["violations"] == []
    assert result["bound_s"] <= result["evaluation"]["step_s"]
    assert (tmp_path / "launch" / "launch.sh").is_file()

    run(installed, "export", "launch/plan.yaml", "--out", "again", cwd=tmp_path)
    first = (tmp_path / "launch" / "launch.sh").read_text()
    assert (tmp_path / "again" / "launch.sh").read_text() == first


def test_installed_command_lists_what_is_shipped(installed: Path, tmp_path: Path) -> None:
    for kind in ("chips", "models", "clusters", "problems", "targets", "stacks"):
        assert json.loads(run(installed, "list", kind, "--json", cwd=tmp_path).stdout)
