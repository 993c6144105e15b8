"""The picture of imports: one way only, solvers in one place, every module alone, a fast start."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = (
    (
        "planner",
        "planner.errors",
        "planner.tolerances",
        "planner.units",
        "planner.instances",
        "planner.garbage",
        "planner.processes",
    ),
    ("planner.data",),
    ("planner.rules", "planner.cost"),
    ("planner.simulate", "formulations"),
    ("planner.search",),
    ("planner.launchers", "planner.report", "planner.leaving"),
    ("planner.api",),
    ("planner.explain",),
    ("planner.batch", "planner.calibrate"),
    ("planner.cli", "planner.commands"),
    ("planner.__main__",),
)
"""From the ground up. A module imports from its own package and from lower layers, never from a neighbour."""

MAY_LOOK_UP = {("planner", "planner.api")}
"""`planner/__init__.py` hands out the public calls, lazily; that it is lazy is tested below."""

WRITES_TO_SCREEN = ("planner.cli", "planner.commands", "planner.__main__")


def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found = {}
    for top in ("planner", "formulations"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "templates" in parts:  # text with gaps, filled in when a launch directory is written
                continue
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package_of(module: str) -> str | None:
    """The entry of LAYERS that a module belongs to; None for one of somebody else."""
    names = [name for layer in LAYERS for name in layer if name != "planner"]
    for name in names:
        if module == name or module.startswith(name + "."):
            return name
    return "planner" if module == "planner" else None


def layer_of(package: str) -> int:
    """Height of an entry of LAYERS."""
    return next(i for i, layer in enumerate(LAYERS) if package in layer)


def imported(tree: ast.AST, known: Container[str]) -> Iterator[str]:
    """Modules that a file imports anywhere: in functions and for type checking alone as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in known else str(node.module)


@functools.cache
def parsed() -> dict[str, ast.Module]:
    """Syntax tree of every module."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules().items()}


def test_every_module_has_a_layer() -> None:
    assert [name for name in modules() if package_of(name) is None] == []


def test_no_import_points_up_or_sideways() -> None:
    known = modules()
    wrong = []
    for name, tree in parsed().items():
        own = package_of(name)
        assert own is not None
        for other in imported(tree, known):
            theirs = package_of(other)
            if theirs is None or theirs == own or (own, theirs) in MAY_LOOK_UP:
                continue
            if own in WRITES_TO_SCREEN and theirs in WRITES_TO_SCREEN:
                continue
            if layer_of(theirs) >= layer_of(own) and layer_of(own) > 0:
                wrong.append(f"{name} imports {other}")
            if layer_of(own) == 0 and layer_of(theirs) > 0:
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_solvers_are_imported_in_formulations_only() -> None:
    known = modules()
    wrong = [
        f"{name} imports {other}"
        for name, tree in parsed().items()
        for other in imported(tree, known)
        if other.split(".")[0] in {"pulp", "ortools"} and not name.startswith("formulations")
    ]
    assert wrong == []


def test_only_the_command_line_writes_to_the_screen() -> None:
    wrong = []
    for name, tree in parsed().items():
        if package_of(name) in WRITES_TO_SCREEN:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                wrong.append(f"{name}:{node.lineno}")
    assert wrong == []


def test_modules_stay_small() -> None:
    """Long files hide their subject; split by idea, not by length, when one grows past this.

    A formulation may be longer: it stands in one file, with its mathematics whole at the top.
    """
    long = {
        name: lines
        for name, path in modules().items()
        if (lines := len(path.read_text(encoding="utf-8").splitlines()))
        > (500 if name.startswith("formulations.") else 300)
    }
    assert long == {}


# A fresh interpreter forks once for each module, so that each is imported alone without paying for
# numpy and pydantic every time. Once a layer is done it is loaded for those above: it imports nothing of
# them, so it cannot hide a cycle. Within a layer a module is imported where the first one that it imports
# itself has been imported alone: it would begin with that.
_IMPORT_EACH_ALONE = """
import importlib, json, os, sys, traceback
import numpy, pydantic, yaml

def import_alone(name, followers):
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(not all([import_alone(follower, followers) for follower in followers[name]]))
    return os.waitpid(child, 0)[1] == 0

for first, followers in json.loads(sys.argv[1]):
    if not all([import_alone(name, followers) for name in first]):
        sys.exit(1)
    for name in followers:
        importlib.import_module(name)
print("each imports alone")
"""


def first_import(name: str, within: list[str]) -> str | None:
    """The first module of some that a module imports when it is loaded."""
    for node in parsed()[name].body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for other in imported(node, parsed()):
                if other in within:
                    return other
    return None


def followers(names: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Modules to be imported alone, and by module those that are imported after it.

    A module whose first imports lead back to itself is imported alone: it is that which may fail.
    """
    before = {name: first_import(name, names) for name in names}
    alone, after = [], {name: list[str]() for name in names}
    for name in names:
        seen, at = {name}, before[name]
        while at is not None and at not in seen:
            seen.add(at)
            at = before[at]
        first = before[name]
        if first is None or at is not None:
            alone.append(name)
        else:
            after[first].append(name)
    return alone, after


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_each_module_imports_alone() -> None:
    heights = {name: layer_of(package_of(name) or "") for name in modules()}
    layers = [[name for name in heights if heights[name] == layer] for layer in range(len(LAYERS))]
    assert all(layers)
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_EACH_ALONE, json.dumps([followers(layer) for layer in layers])],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, "each imports alone\n"), done.stderr


def loaded_by(code: str) -> set[str]:
    """Top-level packages, and our own modules, that a fresh interpreter has after running some code."""
    tail = "import json, sys; sys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{tail}"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(json.loads(done.stderr))


HEAVY = {"numpy", "ortools", "pandas", "plotly", "pulp", "pydantic", "rich.console", "yaml"}


def test_importing_planner_loads_nothing_heavy() -> None:
    loaded = loaded_by("import planner")
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("planner.")} == set()


def test_a_checkout_that_is_not_installed_in_place_finds_its_data() -> None:
    """A script run in a checkout takes this package, which once looked for data that only a wheel holds."""
    code = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]; "
        "from importlib.resources import files; assert files('planner.instances').joinpath('chips').is_dir()"
    )
    assert "planner.instances" in loaded_by(code)


def test_help_loads_nothing_heavy() -> None:
    assert loaded_by("from planner.cli import main; main(['--help'])") & HEAVY == set()


def test_listing_loads_no_solver() -> None:
    loaded = loaded_by("from planner.cli import main; main(['list', 'targets'])")
    assert loaded & {"ortools", "pandas", "plotly", "pulp"} == set()


@pytest.mark.parametrize("before", ["", "import highspy; "], ids=["", "loaded before"])
def test_pulp_does_not_load_another_highs(tmp_path: Path, before: str) -> None:
    """PuLP would show its library to the HiGHS of OR-Tools, which died of it once `highspy` was installed."""
    package = tmp_path / "highspy"
    package.mkdir()
    (package / "__init__.py").write_text("class Highs: ...\n")
    (package / "_core.so").write_text("not a library")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {before}opened = []; "
        "sys.addaudithook(lambda event, args: event == 'ctypes.dlopen' and opened.append(str(args[0]))); "
        "import formulations.solvers; assert not any('highspy' in name for name in opened); "
        f"assert ('highspy' in sys.modules) == {bool(before)}; import highspy; assert highspy.Highs"
    )
    assert "pulp" in loaded_by(code)


def test_every_package_is_part_of_the_wheel() -> None:
    """A package that the list forgets works from a checkout and fails once installed."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("planner", "formulations")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert found <= set(listed)
