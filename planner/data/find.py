"""Find the record that a name means: a shipped instance, a file, or nodes in short form."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from planner.data.base import Data
from planner.data.catalog import shipped_name, shipped_values, unknown
from planner.data.chip import Chip
from planner.data.cluster import Cluster
from planner.data.explain import validated
from planner.data.hf.config import is_hf_config, model_from_hf_config
from planner.data.kinds import CLASS_OF_KIND, schema_line
from planner.data.model_spec import ModelSpec
from planner.data.read import read_file
from planner.data.shorthand import cluster_from_short_form, looks_like_short_form
from planner.data.stack import SoftwareStack
from planner.errors import InstanceError

Record = TypeVar("Record", bound=Data)
Name = str | os.PathLike[str]

_FILE_ENDINGS = (".yaml", ".yml", ".json")


LARGEST = 1e30
"""More than any quantity of ours, in the units of files."""
SMALLEST = 1e-100
"""Less than any, but for differences that rounding leaves."""


def find_chip(name: str, where: str, own: dict[str, Chip]) -> Chip:
    """Chip of an id or alias, case aside; a problem's own chips (by lower-case name) hide shipped ones.

    Raises
    ------
    InstanceError
        Where neither the problem nor we have such a chip; the nearest names are given.
    """
    if found := own.get(name.lower()):
        return found
    shipped = shipped_name("chips", name)
    if shipped is None:
        raise unknown("chips", name, where, extra=tuple(own))
    return _shipped_chip(shipped)


@cache
def _shipped_chip(name: str) -> Chip:
    return _shipped(Chip, "chips", name)


def find_cluster(text: str, where: str, folder: Path | None, own: dict[str, Chip]) -> Cluster:
    """Shipped cluster, cluster file, or cluster in short form; files are relative to `folder`.

    Raises
    ------
    InstanceError
        For an unknown name, a file that cannot be read, or a short form that makes no sense.
    """
    if not is_file(text):
        if name := shipped_name("clusters", text):
            return _shipped(Cluster, "clusters", name)
        if looks_like_short_form(text):
            return cluster_from_short_form(text, lambda chip: find_chip(chip, where, own), where)
        if shipped_name("chips", text):
            raise InstanceError(f"{text!r} is a chip; a cluster of it is written '4x8 {text}'", where)
    return _from_file(Cluster, "clusters", text, where, folder)


def find_model(text: str, where: str, folder: Path | None) -> ModelSpec:
    """Shipped model, model file, or a configuration of transformers; files are relative to `folder`."""
    if not is_file(text) and (name := shipped_name("models", text)):
        return _shipped(ModelSpec, "models", name)
    path = existing_path(text, "models", where, folder)
    if path.suffix.lower() == ".json" and is_hf_config(values := read_file(path, str(path))):
        return model_from_hf_config(values, path)
    return _from_file(ModelSpec, "models", text, where, folder)


def find_stack(text: str, where: str, folder: Path | None) -> SoftwareStack:
    """Shipped software stack or stack file; files are relative to `folder`."""
    if not is_file(text) and (name := shipped_name("stacks", text)):
        return _shipped(SoftwareStack, "stacks", name)
    return _from_file(SoftwareStack, "stacks", text, where, folder)


def _shipped(cls: type[Record], kind: str, name: str) -> Record:
    where = f"{kind}/{name}.yaml"
    return validated(cls, checked_kind(shipped_values(kind, name), kind[:-1], where), where)


def _from_file(cls: type[Record], kind: str, text: str, where: str, folder: Path | None) -> Record:
    path = existing_path(text, kind, where, folder)
    return validated(cls, file_values(path, str(path), kind[:-1]), str(path))


def is_file(text: str) -> bool:
    """Whether a string can only mean a file."""
    return text.lower().endswith(_FILE_ENDINGS) or "/" in text or os.sep in text


def existing_path(text: str, kind: str, where: str = "", folder: Path | None = None) -> Path:
    """Path of a file that a string names; else the error for an unknown name.

    Raises
    ------
    InstanceError
        For the name of nothing that is there.
    """
    path = (folder or Path()) / text
    if is_file(text) or (text and len(text) < 256 and "\0" not in text and path.exists()):
        return path
    raise unknown(kind, text, where)


def file_values(path: Path, where: str, kind: str) -> dict[str, Any]:
    """Values of a file of a kind, without its `schema:` line."""
    return checked_kind(read_file(path, where), kind, where)


def checked_kind(values: Any, kind: str, where: str) -> dict[str, Any]:
    """Values without their `schema:` line, which must name the kind and version expected.

    Raises
    ------
    InstanceError
        Where they are no table, or of another kind or version.
    """
    wanted = schema_line(kind)
    if not isinstance(values, dict):
        raise InstanceError(f"must be a table of keys that starts with `schema: {wanted}`", where)
    found = values.get("schema")
    if found is None:
        raise InstanceError(f"has no `schema:` line; add `schema: {wanted}`", where)
    if found != wanted:
        known = {schema_line(other): other for other in CLASS_OF_KIND}
        if isinstance(found, str) and found in known:
            message = f"is a {known[found]} file, expected a {kind} file (`schema: {wanted}`)"
        else:
            message = f"`schema: {str(found)[:60]}` is not understood; this release reads `{wanted}`"
        raise InstanceError(message, where)
    _check_floats(values, where, "")
    return {key: value for key, value in values.items() if key != "schema"}


def _check_floats(values: Any, where: str, path: str) -> None:
    """No fraction so great or small that products of a few such are no numbers any more."""
    if isinstance(values, float):
        if abs(values) > LARGEST:
            raise InstanceError(f"{path}: {values:g} is greater than {LARGEST:g}; check its unit", where)
        if 0 < abs(values) < SMALLEST:
            raise InstanceError(f"{path}: {values:g} is nearer to 0 than {SMALLEST:g}; check its unit", where)
    elif isinstance(values, dict):
        for key, value in values.items():
            _check_floats(value, where, f"{path}.{key}" if path else key)
    elif isinstance(values, list):
        for i, value in enumerate(values):
            _check_floats(value, where, f"{path}[{i}]")
