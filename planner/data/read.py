"""Read a YAML or JSON file into plain values, or say in one line what is wrong with it.

YAML is read by the rules of version 1.2: `no`, `on` and `12:30` are words, `010` is ten, `1e3` a
number. Refused: anchors and aliases (a few lines of them expand without end), a key given twice,
tags, numbers that are not finite, more than one document.
"""

from __future__ import annotations

import json
import math
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from planner.errors import InstanceError
from planner.units import MIB

MAX_FILE_BYTES = 32 * MIB
"""Larger files are no instances; they are refused before they are read."""

MAX_DIGITS = 40
"""Digits of a whole number; no quantity of ours needs as many."""

FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader of plain data, in C where PyYAML has it."""

# YAML 1.2 core schema, section 10.3.2.
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT = re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_FIRST_OF_NO_TEXT = frozenset("+-.0123456789~nNtTfF")
"""Only words that start so can be anything but text; a quick way out for the many that do not."""

_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
"""What the loader may find by itself in plain data."""


def plain_scalar(text: str) -> Any:
    """Value of an unquoted YAML word by the core schema of YAML 1.2."""
    if text and text[0] not in _FIRST_OF_NO_TEXT:
        return text
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text.lower() == "true"
    if _INT.match(text):
        # Base 0 would refuse the leading zero of `010`.
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.match(text):
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))
    return text


def read_file(path: Path, where: str) -> Any:
    """Return the plain values of a YAML or JSON file.

    Parameters
    ----------
    where
        What error messages call the file.

    Raises
    ------
    InstanceError
        Where the file is missing, unreadable, a directory, too large, no text, or malformed.
    """
    where = where if len(where) <= 200 else where[:100] + "..."
    return parse_text(decode(read_raw(path, where), where), where)


def read_raw(
    path: Path, where: str, kind: str = "YAML or JSON file", max_bytes: int = MAX_FILE_BYTES
) -> bytes:
    """Bytes of a file of modest size.

    Parameters
    ----------
    kind
        What error messages ask for.

    Raises
    ------
    InstanceError
        Where the file is missing, unreadable, a directory or too large.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InstanceError(f"is a directory; give a {kind}", where)
        if not stat.S_ISREG(status.st_mode):
            raise InstanceError(f"is no regular file; give a {kind}", where)
        if status.st_size > max_bytes:
            raise InstanceError(
                f"has {status.st_size / MIB:.0f} MiB, the limit is {max_bytes // MIB} MiB; give a {kind}",
                where,
            )
        return path.read_bytes()
    except FileNotFoundError:
        raise InstanceError("there is no such file", where) from None
    except OSError as error:
        raise InstanceError(f"cannot be read: {error.strerror or error}", where) from None
    except ValueError as error:  # a NUL in the path
        raise InstanceError(f"is no file name: {error}", where.replace("\0", "\\0")) from None


def decode(raw: bytes, where: str) -> str:
    """Bytes of a file as text; refuses what is no UTF-8 text.

    Raises
    ------
    InstanceError
        At the first byte that is no UTF-8 text.
    """
    if b"\0" in raw:
        raise InstanceError(f"is no text: zero byte at offset {raw.index(0)}; save it as UTF-8 text", where)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InstanceError(
            f"is no UTF-8 text: byte 0x{raw[error.start]:02x} at offset {error.start}; save it as UTF-8",
            where,
        ) from None


def parse_text(text: str, where: str) -> Any:
    """Return the plain values of YAML or JSON text; JSON is recognised by its opening brace.

    Raises
    ------
    InstanceError
        Where it is empty, malformed or nested too deep; the line is named.
    """
    if not text.strip():
        raise InstanceError("is empty", where)
    try:
        if text.lstrip()[0] in "{[":
            try:
                return _parse_json(text, where)
            except json.JSONDecodeError as error:
                if where.endswith(".json"):
                    raise InstanceError(
                        f"line {error.lineno}, column {error.colno}: no valid JSON: {error.msg}", where
                    ) from None
        return _parse_yaml(text, where)
    except RecursionError:
        raise InstanceError("is nested too deep", where) from None


def _parse_json(text: str, where: str) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in items:
            if key in mapping:
                raise InstanceError(f"key {_short(key)} is given twice; keep one", where)
            mapping[key] = value
        return mapping

    def finite(word: str) -> float:
        number = float(word)
        if not math.isfinite(number):
            raise InstanceError(f"{_short(word)} is no finite number", where)
        return number

    def whole(word: str) -> int:
        return _whole(word, where)

    return json.loads(
        text, object_pairs_hook=pairs, parse_float=finite, parse_int=whole, parse_constant=finite
    )


def _whole(word: str, where: str) -> int:
    _check_digits(word, where)
    return int(word)


def _check_digits(word: str, where: str) -> None:
    """Python refuses to convert more than 4300 digits with a bare ValueError."""
    if len(word) > MAX_DIGITS and _INT.match(word):
        raise InstanceError(f"number {_short(word)} has {len(word)} digits", where)


def _parse_yaml(text: str, where: str) -> Any:
    loader = FastLoader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _value(node, where, set())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InstanceError(f"{at}no valid YAML: {error.problem or error.context}", where) from None
    except yaml.YAMLError as error:  # ReaderError: characters that YAML does not allow
        raise InstanceError(f"no valid YAML: {' '.join(str(error).split())}", where) from None
    finally:
        loader.dispose()


def _value(node: yaml.Node, where: str, seen: set[int]) -> Any:
    """Plain value of a composed node; `seen` holds the nodes met before, which only an alias repeats."""
    line = node.start_mark.line + 1
    if id(node) in seen:
        raise InstanceError(f"line {line}: anchors and aliases are not accepted; write the value out", where)
    seen.add(id(node))
    if node.tag not in _TAGS:
        raise InstanceError(f"line {line}: tag {_short(node.tag)} is not accepted", where)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, where, seen)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, where, seen) for item in node.value]
    assert isinstance(node, yaml.ScalarNode)
    return _scalar(node, line, where)


def _mapping(node: yaml.MappingNode, where: str, seen: set[int]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise InstanceError(f"line {line}: a key must be a word", where)
        if id(key_node) in seen:
            raise InstanceError(f"line {line}: anchors and aliases are not accepted", where)
        seen.add(id(key_node))
        key = key_node.value
        if key in mapping:
            raise InstanceError(f"line {line}: key {_short(key)} is given twice; keep one", where)
        mapping[key] = _value(value_node, where, seen)
    return mapping


def _scalar(node: yaml.ScalarNode, line: int, where: str) -> Any:
    # The loader resolves plain words by YAML 1.1; only whether a word was quoted matters here.
    if node.style:
        return node.value
    _check_digits(node.value, f"{where}: line {line}")
    value = plain_scalar(node.value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InstanceError(f"line {line}: {_short(node.value)} is no finite number", where)
    return value


def _short(text: str) -> str:
    """Quoted text, cut to what fits a message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
