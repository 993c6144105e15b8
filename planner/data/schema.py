"""JSON Schema of every kind of file, for editors and for programs that write our files."""

from __future__ import annotations

from typing import Any

from planner.data.field_docs import described_schema
from planner.data.kinds import CLASS_OF_KIND, schema_line
from planner.data.nearest import did_you_mean
from planner.errors import InstanceError

KINDS = tuple(CLASS_OF_KIND)
"""Kinds of files that have a schema."""


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a kind of file, its required `schema` key included.

    Raises
    ------
    InstanceError
        For an unknown kind.
    """
    if kind not in CLASS_OF_KIND:
        known = (*KINDS, "jobs")  # whose schema lies with the batch
        raise InstanceError(
            f"unknown kind {kind!r}{did_you_mean(kind, known)}; there are {', '.join(known)}", "schema"
        )
    line = schema_line(kind)
    schema = described_schema(CLASS_OF_KIND[kind])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": line,
        **schema,
        "properties": {
            "schema": {"const": line, "description": "Kind and version of the file.", "title": "Schema"},
            **schema["properties"],
        },
        "required": ["schema", *schema.get("required", ())],
    }
