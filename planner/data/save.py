"""Write records as YAML that people read, and files that are never half written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from planner.data.base import Data
from planner.data.kinds import CLASS_OF_KIND, schema_line
from planner.data.plan import Pipeline, Plan, Replica, Stage
from planner.data.read import plain_scalar
from planner.data.result import Evaluation, Result, RunnerUp, StageEvaluation, TimelineEvent
from planner.errors import InstanceError

_KIND_OF_CLASS = {cls: kind for kind, cls in CLASS_OF_KIND.items()}

_WHOLE: tuple[type[Data], ...] = (
    Plan, Pipeline, Stage, Replica, Evaluation, StageEvaluation, TimelineEvent, Result, RunnerUp,
)  # fmt: skip
# Decisions and results show every field, so that an absent value reads as null. Given data leave
# out what is empty.

_RARE = ("replicas", "pipelines", "recompute_piece", "recompute_modules")
"""Fields of decisions that few plans set; others leave them out."""

_LINE_WIDTH = 110
_UNUSUAL_LINE_BREAKS = "\x85\u2028\u2029"


def to_yaml(record: Data) -> str:
    """Return a record as YAML with its `schema:` line first; short lists stand on one line.

    `load.py` reads it back to an equal record.

    Raises
    ------
    TypeError
        For a record that has no kind of file of its own.
    """
    kind = _KIND_OF_CLASS.get(type(record))
    if kind is None:
        raise TypeError(f"{type(record).__name__} is no kind of file")
    values = {"schema": schema_line(kind), **_plain(record)}
    text: str = yaml.dump(
        values,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=_LINE_WIDTH,
        default_flow_style=False,
    )
    return text


def write_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write a file whole or not at all: a temporary file in the same folder, then a rename.

    Raises
    ------
    InstanceError
        Where the folder is missing or cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InstanceError(f"cannot be written: {error.strerror or error}", str(path)) from None


def _plain(value: Any) -> Any:
    """Plain values of a record; given data without their empty defaults."""
    if isinstance(value, Data):
        whole = isinstance(value, _WHOLE)
        return {
            name: _plain(getattr(value, name))
            for name, field in type(value).model_fields.items()
            if _is_shown(getattr(value, name), name, field, whole=whole)
        }
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _is_shown(value: Any, name: str, field: FieldInfo, *, whole: bool) -> bool:
    if name in _RARE:
        return bool(value != field.get_default(call_default_factory=True))
    return whole or not _is_empty_default(value, field)


def _is_empty_default(value: Any, field: FieldInfo) -> bool:
    empty = value is None or value in ("", (), {})
    return empty and bool(value == field.get_default(call_default_factory=True))


class _Dumper(yaml.SafeDumper):
    """Short lists on one line, no anchors, words quoted where any YAML version reads a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: _Dumper, items: list[Any]) -> yaml.Node:
    flat = all(not isinstance(item, dict) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flat)


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    # PyYAML knows YAML 1.1, in which 1e3 is a word; by 1.2 it is a number and needs quotes.
    style = "'" if not isinstance(plain_scalar(text), str) else None
    if any(character in text for character in _UNUSUAL_LINE_BREAKS):
        style = '"'  # readers of YAML 1.1 fold these; in double quotes they are escaped
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)
