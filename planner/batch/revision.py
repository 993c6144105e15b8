"""What would answer a question here: a hash of our own sources and data, and of the libraries that solve.

A release changes its version; a changed search, price or measured table inside one version changes this,
so that a store never passes an old answer for a new one. The whole of both packages counts, reports and
all: a list of what can change an answer would one day lack something.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import metadata, resources
from importlib.resources.abc import Traversable

SOURCES = ("planner", "planner.instances", "formulations")
"""Packages whose files count; `planner.instances` lies elsewhere in a checkout."""
SOLVERS = ("numpy", "ortools", "pulp")
"""Libraries whose version counts."""
_COUNTS = (".py", ".yaml", ".npz", ".csv", ".json")
"""Endings of files that count."""


@cache
def revision() -> str:
    """Hash of this program, worked out once in a process (some 15 ms)."""
    return digest({package: resources.files(package) for package in SOURCES})


def digest(folders: Mapping[str, Traversable]) -> str:
    """Hash of all files that count in some folders, of our version, and of the solvers'."""
    import planner

    found = hashlib.sha256(planner.__version__.encode())
    for library in SOLVERS:
        found.update(f"{library} {metadata.version(library)}\n".encode())
    for name, folder in folders.items():
        _add(found, folder, name)
    return found.hexdigest()[:16]


def _add(found: hashlib._Hash, folder: Traversable, name: str) -> None:
    """Add the files of a folder and of all below it, by name."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            _add(found, entry, f"{name}/{entry.name}")
        elif entry.name.endswith(_COUNTS):
            content = entry.read_bytes()
            found.update(f"{name}/{entry.name} {len(content)}\n".encode())
            found.update(content)
