"""A fleet split: the shares that are planned, and the split that their answers give."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from planner.batch.answer import Answer
from planner.batch.executor import Task
from planner.batch.fleet import split
from planner.batch.jobs_file import Job, read_jobs
from planner.batch.rows import read_rows
from planner.batch.run import Batch
from planner.batch.store import Store
from planner.cli import main
from planner.data.problem import ProblemFile
from planner.errors import InstanceError
from tests.planner.batch.samples import InstantExecutor, jobs_text, rows, write_jobs

FLEET = (
    "{name: fleet, kind: fleet_split, cluster: '3x8 h100-sxm-80gb, 2x8 a100-sxm-80gb',%s trainings: ["
    "{name: a, model: llama3-8b, seq_length: 4096, global_batch_size: 48},"
    "{name: b, model: llama2-7b, seq_length: 4096, global_batch_size: 48%s}]}"
)


def read(folder: Path, more: str = "", of_b: str = "") -> tuple[Job, ...]:
    return read_jobs(write_jobs(folder, jobs_text(jobs=[FLEET % (more, of_b)])))


def answer(task: Task) -> Answer:
    """An H100 node makes 2 tokens/s for either, an A100 node 1, or 1.5 for `b`, which fits no single node."""
    problem = ProblemFile.model_validate_json(task.problem_text)
    is_b = problem.model.id == "llama2-7b"  # type: ignore[union-attr]
    cluster: Any = problem.cluster
    if is_b and cluster.num_nodes == 1:
        return Answer(task.key, None, {"termination": "infeasible", "message": "too small"})
    speed = {"h100-sxm-80gb": 2.0, "a100-sxm-80gb": 1.5 if is_b else 1.0}
    tokens_per_s = sum(speed[c.chip] * c.num_nodes for c in cluster.classes)
    step_s = 1 / tokens_per_s
    facts = {
        "termination": "optimal",
        "step_s": step_s,
        "bound_s": 0.99 * step_s,
        "tokens_per_s": tokens_per_s,
    }
    return Answer(task.key, None, facts)


def solved(folder: Path, **wishes: str) -> Path:
    with closing(Store(folder / "plans.db")) as store:
        Batch(read(folder, **wishes), store).run(InstantExecutor(answer))
    return folder / "plans.db"


def test_every_training_is_planned_on_every_share(tmp_path: Path) -> None:
    jobs = read(tmp_path)
    assert len(jobs) == 2 * (4 * 3 - 1)
    by_name = {job.name: job for job in jobs}
    only_old = by_name["fleet: a on 2 of a100-sxm-80gb"].problem
    assert only_old is not None and [c.num_nodes for c in only_old.cluster.classes] == [2]
    mixed = by_name["fleet: b on 1 of h100-sxm-80gb, 2 of a100-sxm-80gb"].problem
    assert mixed is not None and mixed.model.id == "llama2-7b"
    assert [c.num_nodes for c in mixed.cluster.classes] == [1, 2]


def test_node_step_plans_fewer_shares_and_always_the_whole_class(tmp_path: Path) -> None:
    counts = {job.share["nodes"]["h100-sxm-80gb"] for job in read(tmp_path, " node_step: 2,") if job.share}
    assert counts == {0, 2, 3}


def test_greatest_sum_gives_each_kind_of_node_to_whom_it_is_worth_most(tmp_path: Path) -> None:
    """All A100 to b: 6 + 3 = 9. With an A100 at a it would be 8.5; idle nodes only lose."""
    found = split(read_rows(solved(tmp_path)), "fleet", "sum")
    assert found.value == pytest.approx(9.0)
    given = {row["share"]["training"]: row["share"]["nodes"] for row in found.rows}
    assert given["b"]["a100-sxm-80gb"] == 2
    assert (found.missing, sum(found.idle.values())) == (0, 0)
    assert found.bound == pytest.approx(9.0 / 0.99) and found.gap == pytest.approx(0.01)


def test_slowest_training_is_helped_first(tmp_path: Path) -> None:
    """a with 2 H100 makes 4, b with 1 + 2 makes 5; with 3 H100 at a, b makes 3."""
    found = split(read_rows(solved(tmp_path)), "fleet", "slowest")
    assert found.value == pytest.approx(4.0)
    assert {row["share"]["training"]: row["tokens_per_s"] for row in found.rows} == {"a": 4.0, "b": 5.0}


def test_training_with_more_tokens_gets_more_nodes(tmp_path: Path) -> None:
    found = split(read_rows(solved(tmp_path, of_b=", tokens: 8")), "fleet", "slowest")
    assert {row["share"]["training"]: row["tokens_per_s"] for row in found.rows} == {"a": 1.0, "b": 7.5}


def test_no_bound_is_claimed_while_shares_have_no_answer(tmp_path: Path) -> None:
    path, jobs = tmp_path / "plans.db", read(tmp_path)
    with closing(Store(path)) as store:
        store.add_jobs(jobs)
        Batch(jobs[:3] + jobs[-3:], store).run(InstantExecutor(answer))
    found = split(read_rows(path), "fleet", "sum")
    assert (found.missing, found.bound, found.gap) == (len(jobs) - 6, None, None)


def test_command_prints_the_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = solved(tmp_path)
    assert main(["split", str(path), "fleet", "--objective", "slowest", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [share["training"] for share in shown["shares"]] == ["a", "b"] and shown["value"] == pytest.approx(
        4.0
    )
    assert main(["split", str(path), "fleet"]) == 0
    assert "no split into such shares is predicted more than 1.0% better" in capsys.readouterr().out
    assert main(["split", str(path), "nothing"]) == 2
    assert "no `kind: fleet_split` is named 'nothing'; there are fleet" in capsys.readouterr().err


def test_too_many_shares_and_equal_names_are_refused(tmp_path: Path) -> None:
    huge = FLEET.replace("3x8", "400x8").replace("2x8", "400x8") % ("", "")
    (job,) = read_jobs(write_jobs(tmp_path, jobs_text(jobs=[huge])))
    assert "give a larger `node_step`" in (job.refused or "")
    with pytest.raises(InstanceError, match="needs `trainings:`"):
        read_jobs(write_jobs(tmp_path, jobs_text(jobs=["{kind: fleet_split, cluster: dgx-h100-8}"])))


def test_shares_lie_on_one_class_where_classes_are_clusters_apart(tmp_path: Path) -> None:
    jobs = read(tmp_path, more=" one_class: true,")
    shares = [job.share["nodes"] for job in jobs if job.share is not None]
    assert len(shares) == 2 * (3 + 2)
    assert all(sum(map(bool, nodes.values())) == 1 for nodes in shares)


def test_damaged_row_leaves_the_split_unproven(tmp_path: Path) -> None:
    """Whose row it was cannot be told: it may have held a better share."""
    store = solved(tmp_path)
    assert split(read_rows(store), "fleet", "sum").gap is not None
    rows(store, "UPDATE job SET facts = '{}' WHERE rowid = 2")
    found = split(read_rows(store), "fleet", "sum")
    assert (found.missing, found.gap) == (1, None)


def test_command_says_what_the_split_is_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = solved(tmp_path, of_b=", weight: 2")
    assert main(["split", str(store), "fleet"]) == 0
    assert "by weight" in capsys.readouterr().out
    assert main(["split", str(store), "fleet", "--objective", "slowest"]) == 0
    assert "the last to finish is" in capsys.readouterr().out
