"""The sentences under the fields of records, for their schemas alone.

pydantic would read them from the source of each class while it builds it (`use_attribute_docstrings`): a
third of the time that our records take to load, in every process, for what few ask.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel

from planner.data.explain import records_in


def described_schema(cls: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema of a record and of all records in it, each field with the sentence under it."""
    schema = cls.model_json_schema()
    definitions = schema.get("$defs", {})
    for record in _records_within(cls, {}).values():
        _describe(schema if record is cls else definitions.get(record.__name__, {}), record)
    return schema


def _describe(schema: dict[str, Any], cls: type[BaseModel]) -> None:
    properties = schema.get("properties", {})
    for base in reversed(cls.__mro__):
        if base is BaseModel or not issubclass(base, BaseModel):
            continue
        for name, sentence in _sentences(base).items():
            if name in properties and cls.model_fields[name].description is None:
                # Keys stand in the order of the alphabet, as pydantic has them.
                properties[name] = dict(sorted({**properties[name], "description": sentence}.items()))


def _sentences(cls: type[BaseModel]) -> dict[str, str]:
    """What stands under each field of a class itself; none where it has no source of its own."""
    try:
        (record,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except OSError:  # made by `create_model`
        return {}
    assert isinstance(record, ast.ClassDef)
    found = {}
    for field, below in zip(record.body, record.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[field.target.id] = inspect.cleandoc(str(below.value.value))
    return found


def _records_within(
    cls: type[BaseModel], found: dict[type[BaseModel], type[BaseModel]]
) -> dict[type[BaseModel], type[BaseModel]]:
    """A record and all that its fields hold, at any depth."""
    if cls not in found:
        found[cls] = cls
        for field in cls.model_fields.values():
            for record in records_in(field.annotation):
                _records_within(record, found)
    return found
