"""The layer profiles that a problem names: inline, in a file of ours or another tool's, or shipped."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import Field

from planner.data.base import Data
from planner.data.chip import Chip
from planner.data.explain import validated
from planner.data.find import existing_path, file_values, find_chip
from planner.data.layer_profile import PIECES, LayerProfile, PieceTimes, ProfilePoint
from planner.data.model_spec import ModelSpec
from planner.data.nearest import did_you_mean
from planner.data.problem import ProfileSource
from planner.data.profile_formats import read_profile_folder, read_profile_table
from planner.data.read import parse_text
from planner.errors import InstanceError


def resolve_profiles(
    given: Sequence[LayerProfile | ProfileSource | str],
    model: ModelSpec,
    chips: Mapping[str, Chip],
    own: dict[str, Chip],
    where: str,
    folder: Path | None,
) -> tuple[LayerProfile, ...]:
    """Profiles of the cluster's chips, with ids for aliases; those of other chips in a file are left out.

    Raises
    ------
    InstanceError
        Where a file is wrong, a name unknown, nothing fits the cluster, or a chip has two profiles.
    """
    found: dict[str, LayerProfile] = {}
    for i, entry in enumerate(given):
        at = f"{where}[{i}]"
        read = _read(entry, model, at, folder)
        fitting = 0
        for profile in read:
            chip = find_chip(profile.chip, at, own).id
            if chip not in chips:
                continue
            fitting += 1
            if chip in found:
                raise InstanceError(f"chip {chip} has two profiles; keep one", at)
            found[chip] = profile.model_copy(update={"chip": chip})
        if not fitting:
            named = ", ".join(profile.chip for profile in read)
            raise InstanceError(f"holds {named}; the cluster has {', '.join(chips)}", at)
    return tuple(found.values())


def _read(
    entry: LayerProfile | ProfileSource | str, model: ModelSpec, where: str, folder: Path | None
) -> tuple[LayerProfile, ...]:
    if isinstance(entry, LayerProfile):
        return (entry,)
    if isinstance(entry, str):
        if entry.lower() in shipped_profile_names():
            return shipped_profiles(entry.lower())
        if not entry.lower().endswith((".csv", ".yaml", ".yml", ".json")) and "/" not in entry:
            close = did_you_mean(entry, shipped_profile_names())
            known = ", ".join(shipped_profile_names())
            raise InstanceError(f"unknown profile {entry[:60]!r}{close or ';'} shipped are {known}", where)
        entry = ProfileSource(file=entry)
    path = (folder or Path()) / entry.file
    if path.is_dir():
        return (read_profile_folder(path, str(path), model.num_layers, entry.chip, entry.value_bytes),)
    if path.suffix.lower() == ".csv":
        return read_profile_table(path, str(path), model.num_layers, entry.model, entry.value_bytes)
    path = existing_path(entry.file, "profiles", where, folder)
    return (validated(LayerProfile, file_values(path, str(path), "layer_profile"), str(path)),)


_TABLES = files("planner.instances").joinpath("tables")


class ProfiledModel(Data):
    """A model whose layer times are shipped."""

    name: str
    """Its name among the profiles."""
    num_layers: int = Field(ge=1)
    """Layers that were timed."""
    hidden_size: int = Field(ge=1)
    """Width."""
    seq_length: int = Field(ge=1)
    """Tokens of a sequence."""
    spellings: tuple[str, ...]
    """Beginnings of its name in other people's words, letters and digits alone."""
    over_operators: dict[str, float]
    """Forward and backward of a layer over the operator model's, by chip."""


@cache
def _shipped_facts() -> dict[str, Any]:
    """What the shipped profiles have in common, and of which models they are."""
    text = _TABLES.joinpath("layer_profiles.yaml").read_text(encoding="utf-8")
    values = parse_text(text, "layer_profiles")
    assert isinstance(values, dict)
    return values


@cache
def profiled_models() -> tuple[ProfiledModel, ...]:
    """The models whose layer times are shipped."""
    models = _shipped_facts()["models"]
    return tuple(ProfiledModel.model_validate({"name": name, **facts}) for name, facts in models.items())


def shipped_profile_names() -> tuple[str, ...]:
    """Names of the models whose layer times are shipped."""
    return tuple(model.name for model in profiled_models())


def profiled_model(name: str) -> ProfiledModel | None:
    """The model with shipped profiles by its name in other people's words; None where there are none."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    fitting = (model for model in profiled_models() if plain.startswith(model.spellings))
    return next(fitting, None)


@cache
def shipped_profiles(name: str) -> tuple[LayerProfile, ...]:
    """Shipped profiles of a model, one a chip."""
    facts = _shipped_facts()
    (model,) = (model for model in profiled_models() if model.name == name)
    with _TABLES.joinpath("layer_profiles.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == name]
    return tuple(
        LayerProfile(
            chip=chip,
            model=name,
            seq_length=model.seq_length,
            num_layers=model.num_layers,
            value_bytes=facts["value_bytes"],
            points=tuple(
                _shipped_point(int(tp), int(mbs), list(pieces))
                for (tp, mbs), pieces in groupby(
                    points, key=lambda row: (row["tensor_parallel"], row["microbatch_size"])
                )
            ),
            source=facts["source"],
        )
        for chip, points in groupby(rows, key=lambda row: row["chip"])
    )


def _shipped_point(tp: int, mbs: int, rows: Sequence[Mapping[str, str]]) -> ProfilePoint:
    pieces = {
        row["piece"]: PieceTimes(
            forward_ms=float(row["forward_ms"]),
            backward_ms=float(row["backward_ms"]),
            update_ms=float(row["update_ms"]) if row["update_ms"] else None,
        )
        for row in rows
    }
    return ProfilePoint(tensor_parallel=tp, microbatch_size=mbs, **{piece: pieces[piece] for piece in PIECES})
