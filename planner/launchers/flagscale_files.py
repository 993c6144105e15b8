"""The files of a FlagScale experiment: which belong together, and what stands in them, unjudged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from planner.data.read import FastLoader
from planner.data.shorthand import MAX_CHIPS_PER_NODE
from planner.errors import InstanceError


@dataclass(frozen=True)
class Host:
    """A line of a hostfile."""

    name: str
    """Name or address."""
    slots: int
    """Processes that it runs."""
    kind: str
    """Its device type; empty where the line names none."""


def experiment_files(path: Path) -> tuple[Path, Path | None]:
    """The file of `train`, and the hostfile where there is one.

    Raises
    ------
    InstanceError
        Where the configuration cannot be read.
    """
    top = path / "config.yaml" if path.is_dir() else path
    tree = yaml_table(top)
    train, named = top, "hostfile"
    if "experiment" in tree:
        defaults, experiment = tree.get("defaults"), tree["experiment"]
        chosen = _entry(defaults if isinstance(defaults, list) else [], "train", "")
        train = top.parent / "train" / f"{chosen}.yaml"
        named = str(_entry([_entry([experiment], "runner", {})], "hostfile", named))
    places = (top.parent / named, top.parent.parent / named)
    return train, next((place for place in places if place.is_file()), None)


def _entry(tables: list[Any], key: str, absent: Any) -> Any:
    """Value of a key in the first table that has it."""
    return next((table[key] for table in tables if isinstance(table, dict) and key in table), absent)


def yaml_table(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises
    ------
    InstanceError
        Where it cannot be read or holds something else.
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=FastLoader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InstanceError(f"cannot be read: {' '.join(str(error).split())}", str(path)) from None
    if not isinstance(tree, dict):
        raise InstanceError("holds no YAML mapping", str(path))
    return tree


def leaves_of(tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leaves by their own names; the names of the branches mean nothing to FlagScale."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves_of(value)
        else:
            yield str(key), value


def words_of(leaves: dict[str, Any]) -> Iterator[str]:
    """The command line that FlagScale makes of the leaves; the heterogeneous mode's own are left out."""
    for key, value in leaves.items():
        own = "hetero" in key or key.endswith(("_per_stage_micro_batch", "_per_process_mesh"))
        if own or key in ("standalone_embedding_stage", "use_partial_reduce_for_shared_embedding"):
            continue
        if value is None or value is False:
            continue
        yield "--" + key.replace("_", "-")
        if key == "moe_layer_freq" and isinstance(value, list):
            yield f"[{','.join(map(str, value))}]"
        elif value is not True:
            yield from map(str, value if isinstance(value, list) else [value])


def read_hosts(hostfile: Path | None) -> list[Host]:
    """The hosts of a hostfile, in its order; none where there is no file.

    Raises
    ------
    InstanceError
        Where a line does not say how many processes its host runs.
    """
    found = []
    lines = hostfile.read_text("utf-8", errors="replace").splitlines() if hostfile is not None else []
    for line in lines:
        words = line.split("#")[0].split()
        if not words:
            continue
        fields = dict(word.partition("=")[::2] for word in words[1:])
        slots = fields.get("slots", "")
        if not slots.isdecimal() or not 1 <= int(slots) <= MAX_CHIPS_PER_NODE:
            raise InstanceError(f"{line[:60]!r}: write it as `host slots=8 type=NAME`", str(hostfile))
        found.append(Host(words[0], int(slots), fields.get("type", "")))
    return found
