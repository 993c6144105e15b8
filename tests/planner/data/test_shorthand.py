"""Nodes in short form have what such nodes usually have, and the cluster says what was assumed."""

from __future__ import annotations

import pytest

from planner.data.load import load_cluster
from planner.errors import InstanceError
from tests.planner.cost.problems import prices, problem


def test_short_form_gives_classes_with_the_usual_adapters():
    cluster = load_cluster("6x8 h100-sxm-80gb, 10x8 a100-sxm-80gb")
    assert [(c.name, c.num_nodes, c.chips_per_node) for c in cluster.classes] == [
        ("h100-sxm-80gb", 6, 8),
        ("a100-sxm-80gb", 10, 8),
    ]
    assert [(c.nics_per_node, c.nic_gbit_per_s, c.transport) for c in cluster.classes] == [
        (8, 400, "rdma"),
        (8, 200, "rdma"),
    ]
    assert cluster.links == ()  # one platform: a pair gets the slower side's adapters
    assert cluster.link_between(0, 1)[0] == 8 * 200e9 / 8


def test_everything_taken_for_granted_is_listed():
    text = "\n".join(load_cluster("2x8 h100, 2x8 a100-80").assumptions)
    for part in ("8 x 400 Gbit/s", "8 x 200 Gbit/s", "450 GB/s", "300 GB/s", "5 us"):
        assert part in text


def test_the_link_between_two_classes_is_listed_once_with_its_rate():
    noted = prices(problem("2x8 h100, 2x8 a100-80"), tensor_parallel=8, data_parallel=2).assumptions
    of_pair = [note for note in noted if " to a100" in note]
    assert len(of_pair) == 1 and "1600 Gbit/s a node" in of_pair[0]


def test_half_a_node_has_half_the_adapters():
    assert load_cluster("2x4 h100").classes[0].nics_per_node == 4
    assert load_cluster("2x1 a10").classes[0].nics_per_node == 1


def test_slow_ethernet_is_taken_for_tcp():
    node_class = load_cluster("2x8 rtx-4090-24gb").classes[0]
    assert (node_class.transport, node_class.nic_gbit_per_s) == ("tcp", 25)


def test_chip_without_known_adapters_gets_a_marked_guess():
    cluster = load_cluster("2x4 tpu-v4-32gb")
    assert cluster.classes[0].nic_gbit_per_s == 100
    assert any("a guess" in a for a in cluster.assumptions)


def test_two_platforms_meet_through_the_host():
    cluster = load_cluster("2x8 a800-80gb, 2x8 ascend-910b-64gb")
    assert cluster.link_between(0, 1)[2] == "host_staged"


def test_same_chip_twice_gives_two_classes():
    cluster = load_cluster("2x8 h100, 4x4 h100, 1x1 H100")
    assert [c.name for c in cluster.classes] == ["h100-sxm-80gb", "h100-sxm-80gb-2", "h100-sxm-80gb-3"]


@pytest.mark.parametrize("text", ["6 X 8 h100", "6×8 h100", "  6x8   h100  "])
def test_spelling_is_forgiving(text):
    assert load_cluster(text).id == "6x8 h100-sxm-80gb"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("6x8", "cannot read '6x8'; write nodes x chips per node"),
        ("8 h100", "cannot read '8 h100'"),
        ("6x8 h100,", "cannot read ''"),
        ("6x8 h100; 2x8 a100", "cannot read"),
        ("-6x8 h100", "cannot read '-6x8 h100'"),
        ("0x8 h100", "'0x8 h100': nodes must be 1 to 200000, got 0"),
        ("6x0 h100", "chips per node must be 1 to 1024, got 0"),
        ("1000000x8 h100", "nodes must be 1 to 200000, got 1000000"),
        ("6x8 h100x", "unknown chip 'h100x'; did you mean h100"),
        ("h100", "'h100' is a chip; a cluster of it is written '4x8 h100'"),
    ],
)
def test_wrong_form_is_shown_the_right_one(text, message):
    with pytest.raises(InstanceError) as error:
        load_cluster(text)
    assert message in str(error.value)
    assert str(error.value).startswith("cluster: ")
