"""Turn pydantic's findings into one line: which field, what it holds, what it must hold."""

from __future__ import annotations

import json
import typing
from collections import Counter
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from planner.data.base import Data
from planner.data.nearest import did_you_mean
from planner.errors import InstanceError

Record = TypeVar("Record", bound=Data)

_TYPE_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table of keys",
    "model_type": "a table of keys",
    "model_attributes_type": "a table of keys",
}
MAX_LISTED = 24
"""Most names of keys in one message; ours."""
_LIMIT_WORDS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}


def validated(cls: type[Record], values: Any, where: str, prefix: str = "") -> Record:
    """Build a record from plain values as read from a file.

    Types are strict: a quoted number is no number, `true` is no 1.

    Parameters
    ----------
    where
        File or instance that the values come from.
    prefix
        Path of the values inside it, such as `cluster`.

    Raises
    ------
    InstanceError
        On the first field that is wrong, unknown keys before all else.
    """
    try:
        # Strict JSON mode takes lists for tuples, which strict Python mode would refuse.
        text = json.dumps(values, ensure_ascii=False).encode()
        return cls.model_validate_json(text, strict=True)
    except UnicodeEncodeError:
        raise InstanceError("holds half a character (a lone surrogate); write it as UTF-8", where) from None
    except ValidationError as error:
        raise explained(cls, error, where, prefix) from None


def explained(cls: type[BaseModel], error: ValidationError, where: str, prefix: str = "") -> InstanceError:
    """Choose the finding that helps most and word it in one line."""
    found = _worth_saying(error.errors())
    first = found[0]
    parts = _field_parts(first["loc"])
    unknown = first["type"] == "extra_forbidden"
    path = _path(prefix, parts[:-1] if unknown or first["type"] == "missing" else parts)
    message = _unknown_key(cls, first["loc"]) if unknown else _message(cls, first, parts)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return InstanceError(message + more, f"{where}: {path}" if path and where else path or where)


_TABLE_KINDS = {"Cluster", "LayerProfile", "ModelSpec", "ProfileSource", "SoftwareStack"}
"""Kinds of table that a field may take beside others; pydantic puts them into the path of a finding."""


def _worth_saying(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Findings without those that only follow from others, unknown keys first."""
    errors = _of_nearest_kind(errors)
    named = [e for e in errors if len(e["loc"]) < 2 or e["loc"][-1] != "str"] or errors
    longer = [e["loc"] for e in named]
    deepest = [
        e for e in named if not any(len(x) > len(e["loc"]) and x[: len(e["loc"])] == e["loc"] for x in longer)
    ]
    # A misspelt key is also a missing one: name the misspelling.
    return sorted(deepest, key=lambda e: e["type"] != "extra_forbidden")


def _of_nearest_kind(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Where a field takes several kinds of table, the findings of the kind with the fewest."""
    counts: dict[tuple[int | str, ...], Counter[int | str]] = {}
    for error in errors:
        for i, part in enumerate(error["loc"]):
            if _is_table_kind(part):
                counts.setdefault(error["loc"][:i], Counter())[part] += 1
    nearest = {where: min(kinds, key=lambda kind: kinds[kind]) for where, kinds in counts.items()}
    return [
        error
        for error in errors
        if all(
            not _is_table_kind(part) or nearest[error["loc"][:i]] == part
            for i, part in enumerate(error["loc"])
        )
    ]


def _is_table_kind(part: int | str) -> bool:
    """Whether part of a path is a kind of table, or a check of one: `function-after[check(), Cluster]`."""
    return isinstance(part, str) and (part in _TABLE_KINDS or "[" in part)


def _field_parts(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Keys and indices of a location, without the names of a union's branches."""
    return tuple(part for part in loc if part != "str" and not _is_table_kind(part))


def _path(prefix: str, parts: tuple[int | str, ...]) -> str:
    text = prefix
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _message(cls: type[BaseModel], error: ErrorDetails, parts: tuple[int | str, ...]) -> str:
    kind, value, context = error["type"], _shown(error["input"]), error.get("ctx", {})
    if kind == "model_type" and len(parts) == 1 and _takes_a_name(cls, str(parts[0])):
        return f"must be a name or a table of keys, got {value}"
    if kind == "too_short":
        return f"must have at least {context['min_length']} entry, got {context['actual_length']}"
    if kind == "too_long":
        return f"must have at most {context['max_length']} entries, got {context['actual_length']}"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "missing" and isinstance(parts[-1], int):
        return f"has {parts[-1]} entries, entry {parts[-1] + 1} is missing"
    if kind == "missing":
        return f"key {parts[-1]!r} is missing"
    if kind == "literal_error":
        close = did_you_mean(str(error["input"]), _literals(context["expected"]))
        return f"must be one of {context['expected']}, got {value}{close}"
    if kind in _TYPE_WORDS:
        return f"must be {_TYPE_WORDS[kind]}, got {value}"
    if kind in _LIMIT_WORDS:
        sign, key = _LIMIT_WORDS[kind]
        return f"must be {sign} {context[key]:g}, got {value}"
    if kind == "value_error":
        return str(context["error"])
    return f"{error['msg'][0].lower()}{error['msg'][1:]}, got {value}"


def _takes_a_name(cls: type[BaseModel], field: str) -> bool:
    """Whether a field takes the name of a shipped instance in the place of its values."""
    return field in cls.model_fields and str in typing.get_args(cls.model_fields[field].annotation)


def _literals(expected: str) -> list[str]:
    return [word.strip("' ") for word in expected.replace(" or ", ", ").split(",")]


def _shown(value: Any) -> str:
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(cls: type[BaseModel], parts: tuple[int | str, ...]) -> str:
    owner = _record_at(cls, parts[:-1])
    fields = list(owner.model_fields) if owner else []
    key = str(parts[-1])
    return f"unknown key {_shown(key)}{did_you_mean(key, fields) or _known(fields)}"


def _known(fields: list[str]) -> str:
    """The names that there are, or the first of them where a line would not hold them."""
    if not fields:
        return ""
    listed = ", ".join(fields[:MAX_LISTED])
    rest = len(fields) - MAX_LISTED
    return f"; known are {listed}" + (f" and {rest} more (`hetplan schema` lists them)" if rest > 0 else "")


def _record_at(cls: type[BaseModel], parts: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Record class that a path inside a record leads to, where it can be told."""
    owners = [cls]
    for part in parts:
        if _is_table_kind(part):
            owners = [owner for owner in owners if owner.__name__ in str(part)] or owners
        elif owners and isinstance(part, str) and part in owners[0].model_fields:
            owners = records_in(owners[0].model_fields[part].annotation)
    return owners[0] if owners else None


def records_in(annotation: Any) -> list[type[BaseModel]]:
    """Record classes inside an annotation such as `tuple[Stage, ...]` or `MoeSpec | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [record for argument in typing.get_args(annotation) for record in records_in(argument)]
