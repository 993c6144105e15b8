"""The JSON Schema of each kind fits the files that we ship."""

from __future__ import annotations

import json

import pytest

from planner.data.catalog import shipped_values
from planner.data.load import names
from planner.data.schema import KINDS, json_schema
from planner.errors import InstanceError


@pytest.mark.parametrize("kind", KINDS)
def test_schema_demands_the_schema_line(kind):
    schema = json_schema(kind)
    assert next(iter(schema["properties"])) == "schema"
    assert schema["properties"]["schema"]["const"] == f"hetplan/{kind}/v1"
    assert schema["required"][0] == "schema"
    assert schema["additionalProperties"] is False
    json.dumps(schema)


@pytest.mark.parametrize("kind", ["chip", "model", "cluster", "problem", "stack"])
def test_schema_knows_every_key_of_the_shipped_files(kind):
    schema = json_schema(kind)
    for name in names(kind + "s"):
        values = shipped_values(kind + "s", name)
        assert set(values) <= set(schema["properties"]), name
        assert set(schema["required"]) <= set(values), name


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_record_is_described(kind):
    schema = json_schema(kind)
    records = {kind: schema, **schema.get("$defs", {})}
    bare = [
        f"{name}.{key}"
        for name, record in records.items()
        for key, value in record.get("properties", {}).items()
        if not value.get("description")
    ]
    assert bare == []


def test_unknown_kind_names_the_nearest():
    with pytest.raises(InstanceError, match=r"unknown kind 'problems'; did you mean problem"):
        json_schema("problems")
