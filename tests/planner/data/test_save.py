"""What is written reads well, reads back equal, and is never half there."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.data.cluster import Cluster, NodeClass
from planner.data.load import load_chip, load_cluster, load_model, load_stack, names
from planner.data.plan import Plan, Stage
from planner.data.read import parse_text
from planner.data.save import to_yaml, write_atomic
from planner.errors import InstanceError

ALPHABET = "ano1e0x.:#-~'\"\\ \t\n\r\x07\x85\u2028é漢[]{},&*!|>%@`"
"""Letters of the words that YAML takes for something else, its signs, and every line break."""


def plan_on(hosts):
    stage = Stage(
        layers=((0, 4), (20, 24)), chip="a", node_class="a", hosts=hosts, tensor_parallel=8, data_parallel=2
    )
    return Plan(
        target="megatron-lm", tensor_parallel=8, data_parallel=2, microbatch_size=1, num_microbatches=4,
        virtual_stages=2, stages=(stage,),
    )  # fmt: skip


def test_schema_line_comes_first_and_short_lists_stand_on_one_line():
    lines = to_yaml(plan_on(("node000", "node001"))).splitlines()
    assert lines[0] == "schema: hetplan/plan/v1"
    assert "- layers: [[0, 4], [20, 24]]" in lines
    assert "  hosts: [node000, node001]" in lines


def test_absent_value_of_a_plan_is_null():
    assert "problem: null" in to_yaml(plan_on(("node000",)))


def test_empty_fields_of_given_data_are_left_out():
    text = to_yaml(load_cluster("1x8 h100"))
    assert "hosts" not in text
    assert "note" not in text
    assert "nics_per_node: 8" in text


@pytest.mark.parametrize(
    ("kind", "load"),
    [("chips", load_chip), ("models", load_model), ("clusters", load_cluster), ("stacks", load_stack)],
)
def test_every_instance_reads_back_equal(kind, load):
    for name in names(kind):
        record = load(name)
        values = parse_text(to_yaml(record), "x.yaml")
        values.pop("schema")
        assert type(record).model_validate(values) == record


@given(st.text(ALPHABET, min_size=1, max_size=12))
def test_any_text_survives_in_any_yaml_version(text):
    # "no" and "12:30" are traps of YAML 1.1, "1e3" of 1.2: all must come back as text from both.
    node_class = NodeClass(
        name="a", chip="a", num_nodes=1, chips_per_node=1, nics_per_node=0, nic_gbit_per_s=0, note=text
    )
    written = to_yaml(Cluster(id="x", classes=(node_class,)))
    assert parse_text(written, "x.yaml")["classes"][0]["note"] == text
    assert yaml.safe_load(written)["classes"][0]["note"] == text


@pytest.mark.parametrize("word", ["no", "1e3", "0x1f", "010", "~", "12:30", "true", "1_000", "null", "-.5"])
def test_words_that_look_like_numbers_stay_words(word):
    written = to_yaml(plan_on((word,)))
    assert parse_text(written, "x.yaml")["stages"][0]["hosts"] == [word]
    assert yaml.safe_load(written)["stages"][0]["hosts"] == [word]


def test_long_lists_are_wrapped():
    hosts = tuple(f"node{i:04d}" for i in range(1280))
    text = to_yaml(plan_on(hosts))
    assert max(map(len, text.splitlines())) <= 120
    assert parse_text(text, "x.yaml")["stages"][0]["hosts"] == list(hosts)


def test_file_is_written_whole_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "plan.yaml"
    write_atomic(path, "a\n")
    write_atomic(path, "b\n")
    assert path.read_text() == "b\n"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.yaml"]


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.yaml"
    write_atomic(path, "old\n")

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("planner.data.save.os.fsync", no_space)
    with pytest.raises(InstanceError, match="cannot be written: No space left on device"):
        write_atomic(path, "new\n")
    assert path.read_text() == "old\n"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.yaml"]


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(InstanceError, match=r"plan\.yaml: cannot be written: No such file"):
        write_atomic(tmp_path / "none" / "plan.yaml", "x")
