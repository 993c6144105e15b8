"""What a jobs file may say, what its jobs are, and how its mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.batch.job_spec import GRACE_S, JobSpec
from planner.batch.jobs_file import Job, read_jobs
from planner.cli import main
from planner.data.load import load_problem
from planner.data.options import Options
from planner.errors import InstanceError
from tests.planner.batch.samples import SMALL, jobs_text, write_jobs


def read(folder: Path, text: str) -> tuple[Job, ...]:
    return read_jobs(write_jobs(folder, text))


def test_list_and_grid_are_read_in_order_with_the_last_axis_fastest(tmp_path: Path) -> None:
    text = jobs_text(
        jobs=["{problem: llama3-8b-h100-8}", SMALL % 32],
        grid="{model: [llama3-8b, llama2-7b], cluster: dgx-h100-8,"
        " seq_length: [2048, 4096], global_batch_size: 64}",
    )
    assert [job.name for job in read(tmp_path, text)] == [
        "llama3-8b-h100-8",
        "llama3-8b on dgx-h100-8, 32 x 4096",
        "llama3-8b on dgx-h100-8, 64 x 2048",
        "llama3-8b on dgx-h100-8, 64 x 4096",
        "llama2-7b on dgx-h100-8, 64 x 2048",
        "llama2-7b on dgx-h100-8, 64 x 4096",
    ]


def test_named_problem_is_the_shipped_one_and_fields_replace_its_own(tmp_path: Path) -> None:
    same, other = read(
        tmp_path,
        jobs_text(
            jobs=[
                "{problem: llama3-8b-h100-8}",
                "{problem: llama3-8b-h100-8, global_batch_size: 64, cluster: 2x8 h100-sxm-80gb, gap: 0.02}",
            ]
        ),
    )
    assert same.problem == load_problem("llama3-8b-h100-8")
    assert other.problem is not None and same.problem is not None
    assert other.problem.workload.global_batch_size == 64
    assert other.problem.workload.seq_length == same.problem.workload.seq_length
    assert other.problem.cluster.num_chips == 16
    assert other.problem.options == Options(gap=0.02)


def test_jobs_differ_in_how_unevenly_experts_are_loaded(tmp_path: Path) -> None:
    even, uneven = read(
        tmp_path,
        jobs_text(
            jobs=[
                "{problem: mixtral-8x7b-h100-64}",
                "{problem: mixtral-8x7b-h100-64, expert_imbalance: 1.3}",
            ]
        ),
    )
    assert even.problem is not None and uneven.problem is not None
    assert even.problem.workload.expert_imbalance == 1.0
    assert uneven.problem.workload.expert_imbalance == 1.3
    assert "load 1.3" in uneven.name and even.name != uneven.name


def test_defaults_hold_for_list_and_grid_and_entries_override_them(tmp_path: Path) -> None:
    text = jobs_text(
        defaults="{gap: 0.03, time_limit_s: 20, memory_gib: 2}",
        jobs=["{problem: llama3-8b-h100-8, gap: 0.1}"],
        grid="{problem: llama3-8b-h100-8, global_batch_size: [8, 16]}",
    )
    jobs = read(tmp_path, text)
    assert [job.problem and job.problem.options.gap for job in jobs] == [0.1, 0.03, 0.03]
    assert {job.limits.memory_gib for job in jobs} == {2}
    assert {job.limits.kill_after_s for job in jobs} == {30 + GRACE_S}


def test_files_are_looked_up_beside_the_jobs_file(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(
        "schema: hetplan/problem/v1\ncluster: dgx-h100-8\nmodel: llama3-8b\n"
        "workload: {seq_length: 1024, global_batch_size: 8}\n"
    )
    (job,) = read(tmp_path, jobs_text(jobs=["{problem: ours.yaml}"]))
    assert job.problem is not None and job.problem.workload.seq_length == 1024


def test_same_question_has_one_key_whatever_its_name_limits_and_prices(tmp_path: Path) -> None:
    jobs = read(
        tmp_path,
        jobs_text(
            jobs=[
                "{problem: llama3-8b-h100-8}",
                "{problem: llama3-8b-h100-8, name: again, time_limit_s: 9, workers: 2, memory_gib: 1}",
                "{model: llama3-8b, cluster: dgx-h100-8, seq_length: 8192, global_batch_size: 128}",
            ]
        ),
    )
    assert len({job.key for job in jobs}) == 1
    assert len({job.name for job in jobs}) == 3


@pytest.mark.parametrize("change", ["gap: 0.02", "global_batch_size: 64", "precision: fp8", "top: 1"])
def test_whatever_changes_the_answer_changes_the_key(tmp_path: Path, change: str) -> None:
    jobs = read(
        tmp_path,
        jobs_text(jobs=["{problem: llama3-8b-h100-8}", f"{{problem: llama3-8b-h100-8, {change}}}"]),
    )
    assert jobs[0].key != jobs[1].key


def test_entries_without_a_name_of_their_own_are_numbered(tmp_path: Path) -> None:
    jobs = read(tmp_path, jobs_text(jobs=["{problem: llama3-8b-h100-8}"] * 3))
    assert [job.name for job in jobs] == ["llama3-8b-h100-8", "llama3-8b-h100-8 (2)", "llama3-8b-h100-8 (3)"]


@pytest.mark.parametrize("wish", ["pin: tp=4", "pin: [tp=4]", "pin: {tp: 4}"])
def test_pins_are_taken_as_flags_write_them_too(tmp_path: Path, wish: str) -> None:
    (job,) = read(
        tmp_path, jobs_text(jobs=[f"{{problem: llama3-8b-h100-8, {wish}, forbid: recompute=full}}"])
    )
    assert job.problem is not None
    assert (job.problem.options.pin, job.problem.options.forbid) == ({"tp": 4}, ("recompute=full",))


def test_grid_over_pins_makes_a_job_of_each(tmp_path: Path) -> None:
    jobs = read(
        tmp_path,
        jobs_text(grid="{problem: llama3-8b-h100-8, pin: [tp=2, tp=4], forbid: [recompute=full, dp=8]}"),
    )
    assert [job.problem and job.problem.options.pin["tp"] for job in jobs] == [2, 2, 4, 4]
    assert len({job.key for job in jobs}) == 4
    assert jobs[0].name == "llama3-8b-h100-8, pin tp=2, forbid recompute=full"


def test_schema_of_a_jobs_file_knows_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "jobs"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["$defs"]["Job"]["properties"]) == set(JobSpec.model_fields)
    assert schema["properties"]["schema"]["const"] == "hetplan/jobs/v1"


def test_every_option_of_a_problem_can_be_set_in_a_job() -> None:
    assert set(Options.model_fields) <= set(JobSpec.model_fields)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jobs: []", "has no `schema:` line; add `schema: hetplan/jobs/v1`"),
        ("schema: hetplan/problem/v1\njobs: []", "is no jobs file"),
        ("schema: hetplan/jobs/v1\njobs: []", "holds no job"),
        ("schema: hetplan/jobs/v1\njob: []", "unknown key 'job'; known are schema, defaults, jobs, grid"),
        (
            jobs_text(jobs=["{problem: llama3-8b-h100-8, gapp: 0.1}"]),
            "jobs[0]: unknown key 'gapp'; did you mean",
        ),
        (jobs_text(jobs=["{problem: llama3-8b-h100-8, gap: 2}"]), "jobs[0].gap: must be < 1, got 2"),
        (jobs_text(jobs=["{problem: llama3-8b-h100-8}", "3"]), "jobs[1]: must be a table of keys"),
        (jobs_text(jobs=["{seq_length: '8'}"]), "jobs[0].seq_length: must be a whole number, got '8'"),
        (jobs_text(grid="{model: [llama3-8b, 3]}"), "grid.model: must be a name or a table of keys, got 3"),
        (jobs_text(grid="{model: []}"), "grid.model: must have at least one value"),
        (jobs_text(grid="{name: [a, b]}"), "grid.name: "),
        (jobs_text(jobs=["{problem: a, name: x}", "{problem: b, name: x}"]), "name 'x' is taken by"),
        (jobs_text(jobs=["{problem: llama3-8b-h100-8, pin: tp}"]), "jobs[0].pin: must be a table of keys"),
        (jobs_text(jobs=["{problem: llama3-8b-h100-8, target: megatron}"]), "jobs[0].target: must be one of"),
    ],
)
def test_mistake_in_the_file_refuses_it_and_says_where(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InstanceError) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{model: lama3-8b, cluster: dgx-h100-8, seq_length: 8, global_batch_size: 8}", "did you mean"),
        (
            "{model: llama3-8b, cluster: nowhere, seq_length: 8, global_batch_size: 8}",
            "unknown cluster 'nowhere'",
        ),
        ("{model: llama3-8b, cluster: dgx-h100-8, seq_length: 8}", "says no global_batch_size"),
        ("{model: llama3-8b}", "says no cluster"),
        ("{problem: missing.yaml}", "no such file"),
        ("{problem: llama3-8b-h100-8, spare: a100}", "no class is named 'a100'; the cluster has h100"),
    ],
)
def test_entry_without_a_problem_is_kept_with_its_reason(tmp_path: Path, entry: str, words: str) -> None:
    bad, good = read(tmp_path, jobs_text(jobs=[entry, "{problem: llama3-8b-h100-8}"]))
    assert bad.problem is None and bad.refused is not None
    assert words in bad.refused and "jobs[0]" in bad.refused
    assert good.problem is not None


def test_examples_of_the_readme_are_jobs_files(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    examples = [block for block in text.split("```") if block.startswith("yaml\nschema: hetplan/jobs/v1")]
    jobs = [job for example in examples for job in read(tmp_path, example.removeprefix("yaml\n"))]
    assert [job.refused for job in jobs if job.refused] == []
    assert {job.study for job in jobs} == {None, "purchase", "down", "both", "sure", "batches", "fleet"}
    studies = (1 + 2) + (1 + 2 * 6) + (1 + 2) + 2 + 4 + 3 * 8
    assert len(jobs) == 2 * 3 + studies + 2
    assert {"llama3-8b-h100-8", "tight"} <= {job.name for job in jobs}  # compared below them
