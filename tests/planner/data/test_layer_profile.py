"""Layer profiles: reading two formats, interpolating along the micro-batch, refusing the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.data.layer_profile import PIECES, LayerProfile, PieceTimes, ProfilePoint
from planner.data.load import load_problem, problem_file, resolve_problem
from planner.data.profile_formats import read_profile_folder, read_profile_table
from planner.data.profiles import profiled_model, shipped_profile_names, shipped_profiles
from planner.data.save import to_yaml
from planner.errors import InstanceError
from planner.units import MIB, MS

SAILOR = Path(__file__).parents[4] / "shared" / "peer_data" / "sailor" / "metis_format_profiles"


def piece(forward_ms: float, **more: float) -> PieceTimes:
    return PieceTimes(forward_ms=forward_ms, backward_ms=2 * forward_ms, **more)


def point(mbs: int, forward_ms: float, tp: int = 1, **more: float) -> ProfilePoint:
    return ProfilePoint(
        tensor_parallel=tp,
        microbatch_size=mbs,
        embedding=piece(0.1),
        layer=piece(forward_ms, **more),
        head=piece(2 * forward_ms),
    )


def table(path: Path, *, chip: str = "H100", entries: int = 4, **changes: str) -> Path:
    """Two layers between embedding and head at micro-batches 1 and 2: f = 1, 3 ms, then twice that."""
    lines = ["model,chip,mbs,tp,layer_index,fwd_s,bwd_s,update_s"]
    for mbs in (1, 2):
        for i, forward in enumerate([0.0005, 0.001, 0.003, 0.002][:entries]):
            row = {"fwd_s": f"{mbs * forward}", "bwd_s": f"{2 * mbs * forward}", "update_s": "0.0004"}
            row = {"model": "tiny", "chip": chip, "mbs": f"{mbs}", "tp": "1", "layer_index": f"{i}"} | row
            lines.append(",".join((row | changes).values()))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_time_between_two_microbatches_lies_on_the_line_between_them() -> None:
    profile = LayerProfile(chip="h100-sxm-80gb", points=(point(2, 4.0), point(8, 10.0)))
    times = profile.curves[1].times_at(4)  # a third of the way from 2 to 8
    assert times[1, 0] == pytest.approx(6.0 * MS)
    assert times[1, 1] == pytest.approx(12.0 * MS)
    assert times[2, 0] == pytest.approx(12.0 * MS)
    assert profile.curves[1].times_at(8)[1, 0] == pytest.approx(10.0 * MS)


def test_point_outside_the_measured_range_is_not_covered_and_says_why() -> None:
    profile = LayerProfile(chip="h100-sxm-80gb", points=(point(2, 4.0), point(8, 10.0), point(1, 3.0, tp=2)))
    assert profile.covers(1, 2) and profile.covers(1, 5) and profile.covers(1, 8)
    assert not profile.covers(1, 1) and not profile.covers(1, 9) and not profile.covers(4, 2)
    assert "micro-batches 2 to 8, not 9" in profile.gap(1, 9)
    assert "no tensor_parallel 4; it has 1, 2" in profile.gap(4, 2)


def test_smaller_microbatch_never_takes_longer() -> None:
    # Measured 5 ms at one sequence and 4 ms at two: launches disturbed the first.
    profile = LayerProfile(chip="h100-sxm-80gb", points=(point(1, 5.0), point(2, 4.0), point(4, 9.0)))
    assert [profile.curves[1].times_at(m)[1, 0] / MS for m in (1, 2, 4)] == pytest.approx([4.0, 4.0, 9.0])


def test_layer_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="leave out what was not measured"):
        point(1, 0.0)


def test_point_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="given twice"):
        LayerProfile(chip="h100-sxm-80gb", points=(point(1, 1.0), point(1, 2.0)))


def test_memory_grows_by_the_slope_over_the_microbatch() -> None:
    def with_memory(mbs: int) -> ProfilePoint:
        pieces = {name: piece(1.0, memory_mib=100.0 + 30.0 * mbs) for name in ("embedding", "layer", "head")}
        return ProfilePoint(tensor_parallel=1, microbatch_size=mbs, **pieces)

    profile = LayerProfile(chip="h100-sxm-80gb", points=(with_memory(1), with_memory(4)))
    assert profile.curves[1].activation_bytes == pytest.approx([30.0 * MIB] * 3)
    assert LayerProfile(chip="x", points=(with_memory(1),)).curves[1].activation_bytes is None


def test_table_of_layer_times_becomes_the_mean_of_its_layers(tmp_path: Path) -> None:
    (profile,) = read_profile_table(table(tmp_path / "t.csv"), "t.csv", num_layers=2)
    first = next(p for p in profile.points if p.microbatch_size == 1)
    assert first.embedding.forward_ms == pytest.approx(0.5)
    assert first.layer.forward_ms == pytest.approx(2.0)  # mean of 1 and 3
    assert first.head.backward_ms == pytest.approx(4.0)
    assert first.layer.update_ms == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("changes", "num_layers", "words"),
    [
        ({}, 3, "lists 4 entries; a model of 3 layers has 5"),
        ({"fwd_s": "0"}, 2, "a layer takes no time"),
        ({"fwd_s": "fast"}, 2, "line 2"),
        ({"bwd_s": "-1"}, 2, "finite and >= 0"),
        ({"update_s": "inf"}, 2, "finite and >= 0"),
        ({"mbs": "0"}, 2, "line 2: tp and mbs must be 1 or more"),
        ({"tp": "-1"}, 2, "line 2: tp and mbs must be 1 or more"),
        ({"model": "m" * 200_000}, 2, "field larger than field limit"),
    ],
)
def test_table_that_cannot_be_right_is_refused(
    tmp_path: Path, changes: dict[str, str], num_layers: int, words: str
) -> None:
    path = table(tmp_path / "t.csv", **changes)
    with pytest.raises(InstanceError, match=words):
        read_profile_table(path, "t.csv", num_layers)


def test_update_of_zero_counts_as_not_measured(tmp_path: Path) -> None:
    (profile,) = read_profile_table(table(tmp_path / "t.csv", update_s="0"), "t.csv", 2)
    assert profile.points[0].layer.update_ms is None


def test_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InstanceError, match="lacks the columns model, chip"):
        read_profile_table(path, "t.csv", 2)


def folder_file(folder: Path, name: str, together_ms: list[float], memory_mib: list[float]) -> None:
    values: dict[str, Any] = {
        "model": {"model_name": "tiny", "num_layers": len(together_ms)},
        "execution_time": {"layer_compute_total_ms": together_ms, "optimizer_time_ms": 2.0},
        "execution_memory": {"layer_memory_total_mb": memory_mib},
    }
    (folder / name).write_text(json.dumps(values))


def test_folder_of_points_parts_forward_and_backward_one_to_two(tmp_path: Path) -> None:
    folder = tmp_path / "H100"
    folder.mkdir()
    folder_file(folder, "mbs1_tmp2.json", [0.3, 3.0, 3.0, 6.0], [50.0, 60.0, 60.0, 80.0])
    folder_file(folder, "mbs2_tmp2.json", [0.3, 6.0, 6.0, 9.0], [50.0, 70.0, 70.0, 90.0])
    profile = read_profile_folder(folder, "H100", num_layers=2)
    assert profile.chip == "H100" and profile.assumptions
    assert profile.curves[2].times_at(1)[1] / MS == pytest.approx([1.0, 2.0, 0.5])
    assert profile.curves[2].activation_bytes == pytest.approx([0.0, 10 * MIB, 10 * MIB])


def test_folder_without_points_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match=r"mbs4_tmp2\.json"):
        read_profile_folder(tmp_path, "x", 2)
    (tmp_path / "mbs1_tmp1.json").write_text("{}")
    with pytest.raises(InstanceError, match="no profile of layers"):
        read_profile_folder(tmp_path, "x", 2)


@pytest.mark.skipif(not SAILOR.exists(), reason="the published profiles are not at hand")
def test_published_folder_says_what_the_published_table_says() -> None:
    folder = read_profile_folder(SAILOR / "OPT-350" / "GH-96", "GH-96", num_layers=24)
    (shipped,) = (p for p in shipped_profiles("opt-350m") if p.chip == "gh200-96gb")
    for tp, mbs in ((1, 8), (4, 8)):
        ours, theirs = (p.curves[tp].times_at(mbs)[1] for p in (folder, shipped))
        assert ours[:2].sum() == pytest.approx(theirs[:2].sum(), rel=0.02)
        # An update is a single layer's there, and left out of the shipped table.
        assert ours[2] > 0 and np.isnan(theirs[2])


def test_shipped_profiles_are_found_by_other_peoples_names() -> None:
    assert [profiled_model(name).name for name in ("OPT-350M", "GPT-Neo-2.7B")] == [
        "opt-350m",
        "gpt-neo-2.7b",
    ]  # type: ignore[union-attr]
    assert profiled_model("GPT3-175B") is None
    for name in shipped_profile_names():
        assert shipped_profiles(name)
        # The source's updates are one layer's alone, unfused: the cost model's optimizer takes their place.
        points = [point for profile in shipped_profiles(name) for point in profile.points]
        assert all(getattr(point, piece).update_ms is None for point in points for piece in PIECES)


PROBLEM = """
schema: hetplan/problem/v1
cluster: 1x4 gh200-96gb, 1x4 a100-sxm-40gb
model: {model}
workload: {{seq_length: {seq_length}, global_batch_size: 64, precision: fp16}}
profiles: {profiles}
"""


def load(tmp_path: Path, profiles: str, model: str = "llama3-8b", seq_length: int = 8192) -> Any:
    path = tmp_path / "p.yaml"
    path.write_text(PROBLEM.format(model=model, profiles=profiles, seq_length=seq_length))
    return load_problem(path)


def test_problem_names_shipped_profiles_and_survives_its_file(tmp_path: Path) -> None:
    problem = load(tmp_path, "[llama3-8b]")
    assert [p.chip for p in problem.profiles] == ["a100-sxm-40gb", "gh200-96gb"]  # V100 is not here
    assert problem.profile_of(0).chip == "gh200-96gb"
    given = problem_file(problem)
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(given))
    assert load_problem(again).profiles == problem.profiles
    assert resolve_problem(given, "x").profiles == problem.profiles


def test_problem_names_a_table_beside_it(tmp_path: Path) -> None:
    entries = ["model,chip,mbs,tp,layer_index,fwd_s,bwd_s,update_s"]
    entries += [f"llama,GH-96,1,1,{i},0.001,0.002,0.0001" for i in range(34)]
    (tmp_path / "mine.csv").write_text("\n".join(entries))
    problem = load(tmp_path, "[mine.csv]")
    assert problem.profiles[0].chip == "gh200-96gb"


@pytest.mark.parametrize(
    ("profiles", "more", "words"),
    [
        ("[llama3-9b]", {}, "unknown profile 'llama3-9b'; did you mean llama3-8b"),
        ("[missing.csv]", {}, "there is no such file"),
        ("[{chip: h100-sxm-80gb, points: []}]", {}, r"profiles\[0\].points: must have at least 1 entry"),
        ("[{fil: a.csv}]", {}, r"profiles\[0\]: unknown key 'fil'; did you mean file"),
        ("[llama3-8b, llama3-8b]", {}, "has two profiles"),
        ("[llama3-8b]", {"seq_length": 4096}, "measured at 8192 tokens, the workload has 4096"),
        ("[opt-350m]", {"seq_length": 2048}, "24, but llama3-8b has 32"),
        ("[llama3-8b]", {"model": "mixtral-8x7b"}, "measured on llama3-8b, but the model is mixtral-8x7b"),
        ("[llama3-8b]", {"model": "deepseek-v3"}, "layers of several kinds"),
    ],
)
def test_profile_that_does_not_fit_is_refused(
    tmp_path: Path, profiles: str, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(InstanceError, match=words):
        load(tmp_path, profiles, **more)
