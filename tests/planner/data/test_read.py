"""Files are read by the rules of YAML 1.2 or JSON, and whatever is wrong is said in one line."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.data.read import MAX_FILE_BYTES, parse_text, read_file
from planner.errors import InstanceError


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2024-13-45", "2024-13-45"),
        ("1_000", "1_000"),
        ("010", 10),
        ("0x1f", 31),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("true", True),
        ("~", None),
        ("", None),
        ("'1e3'", "1e3"),
        ('"true"', "true"),
    ],
)
def test_words_mean_what_yaml_1_2_says(word, value):
    found = parse_text(f"key: {word}\n", "x.yaml")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("a: 1\na: 2\n", "line 2: key 'a' is given twice"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ("a: &x 1\nb: *x\n", "line 1: anchors and aliases"),
        ("&x [*x]", "anchors and aliases"),
        ("a: .inf", "line 1: '.inf' is no finite number"),
        ("a: 1e999", "no finite number"),
        ('{"a": NaN}', "no finite number"),
        ("a: " + "9" * 5000, "5000 digits"),
        ("a: !!python/object/apply:os.system [ls]", "tag"),
        ("? [a]\n: 1\n", "a key must be a word"),
        ("a: 1\n b: 2\n", "line 2"),
        ("a: [1,\n", "no valid YAML"),
        ("\ta: 1\n", "line 1"),
        ("a: 1\n---\nb: 1\n", "another document"),
        ('a: "\x07"', "control characters"),
        ("[" * 100_000, "nested too deep"),
        ("{a: " * 100_000, "nesting"),
    ],
)
def test_malformed_text_is_refused_in_one_line(text, part):
    with pytest.raises(InstanceError) as error:
        parse_text(text, "x.yaml")
    assert part in str(error.value)
    assert str(error.value).startswith("x.yaml: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_bomb_of_aliases_is_refused_at_once():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    with pytest.raises(InstanceError, match="anchors and aliases"):
        parse_text("\n".join(lines), "x.yaml")


def test_json_error_names_line_and_column():
    with pytest.raises(InstanceError, match=r"x\.json: line 2, column 1: no valid JSON"):
        parse_text('{"a": 1,\n}', "x.json")


def test_flow_style_yaml_is_no_broken_json():
    assert parse_text("{a: 1, b: [x, y]}", "x.yaml") == {"a": 1, "b": ["x", "y"]}


def test_byte_order_mark_is_ignored(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_file(path, "x.yaml") == {"a": 1}


@pytest.mark.parametrize(
    ("raw", "part"), [(bytes(range(256)), "zero byte at offset 0"), (b"a: \xff\n", "byte 0xff at offset 3")]
)
def test_binary_junk_is_no_text(tmp_path, raw, part):
    path = tmp_path / "x.yaml"
    path.write_bytes(raw)
    with pytest.raises(InstanceError, match=part):
        read_file(path, "x.yaml")


def test_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # a hole: no bytes on the disk
    with pytest.raises(InstanceError, match="the limit is 32 MiB"):
        read_file(path, "x.yaml")


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(InstanceError, match="is a directory"):
        read_file(tmp_path, "x")
    with pytest.raises(InstanceError, match="there is no such file"):
        read_file(tmp_path / "none.yaml", "x")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(InstanceError, match="no regular file"):
        read_file(fifo, "x")


numbers = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text('ab "\\{}:#é漢\u2028', max_size=8)
keys = st.text("abc", min_size=1, max_size=3)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, max_size=3))
def test_json_reads_as_any_json_reader_reads_it(mapping):
    assert parse_text(json.dumps(mapping), "x.json") == mapping


@given(st.binary(max_size=60))
def test_no_input_raises_anything_else(raw):
    try:
        parse_text(raw.decode("utf-8", "replace"), "x.yaml")
    except InstanceError as error:
        assert "\n" not in str(error)
