"""Rows of a store, filters, order and fronts; comparisons of two plans."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.batch.answer import Answer, failure
from planner.batch.compare import Side, compare
from planner.batch.executor import Task
from planner.batch.jobs_file import read_jobs
from planner.batch.pack import packed
from planner.batch.query import in_order, matching, pareto
from planner.batch.rows import FIELDS, read_answer, read_rows
from planner.batch.run import Batch
from planner.batch.solving import facts_of, without_problem
from planner.batch.store import Store
from planner.cli import main
from planner.data import load
from planner.errors import InstanceError
from tests.planner.batch.samples import InstantExecutor, jobs_text, some_jobs, write_jobs
from tests.planner.stubs import made_up_result, two_class_problem, two_stage_plan


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One job answered, one failed, one without a problem, one not begun."""
    folder = tmp_path_factory.mktemp("store")
    path = folder / "plans.db"
    cluster = "1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb"
    entry = f"{{model: llama3-8b, cluster: '{cluster}', seq_length: 8192, global_batch_size: 64, name: %s}}"
    text = jobs_text(
        jobs=[entry % "good", "{problem: nowhere, name: unknown}", "{problem: llama3-8b-h100-8}"]
    )
    result = without_problem(made_up_result(two_class_problem()))

    def answer(task: Task) -> Answer:
        if "dgx" in task.problem_text:
            return failure(task.key, "timeout", "killed after 9 s")
        return Answer(task.key, None, facts_of(result), packed(result.model_dump_json()))

    with closing(Store(path)) as opened:
        Batch(read_jobs(write_jobs(folder, text)), opened).run(InstantExecutor(answer))
        opened.add_jobs(some_jobs(folder, 1))
    return path


def test_list_has_one_entry_a_job_with_every_field(store: Path) -> None:
    rows = read_rows(store)
    assert [(row["name"], row["status"], row["message"]) for row in rows[::2]] == [
        ("good", "done", None),
        ("llama3-8b-h100-8", "failed", "killed after 9 s"),
    ]
    assert rows[1]["status"] == "failed" and "unknown problem 'nowhere'" in rows[1]["message"]
    assert rows[3]["status"] == "queued"
    assert all(tuple(row) == FIELDS for row in rows)
    good = rows[0]
    assert (good["model"], good["chips"], good["target"]) == ("llama3-8b", 16, "megatron-lm")
    assert (good["step_s"], good["bound_s"], good["gap"], good["termination"]) == (
        2.0,
        1.984,
        0.008,
        "optimal",
    )
    assert good["plan"].startswith("tp 4, dp 2, pp 2; micro-batch 1; 1 stage a100-sxm-80gb, 1 stage h100")


def test_a_parquet_file_holds_the_rows(store: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    assert main(["results", str(store), "--parquet", str(path), "--sort", "name"]) == 0
    rows = parquet.read_table(path).to_pylist()
    assert list(rows[0]) == list(FIELDS)
    assert [row["name"] for row in rows] == sorted(row["name"] for row in read_rows(store))
    assert {row["step_s"] for row in rows} == {row["step_s"] for row in read_rows(store)}
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    assert main(["results", str(store), "--parquet", str(path), "--csv"]) == 2


def test_command_prints_a_json_list_a_table_or_csv(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", str(store), "--json", "--where", "status=done"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["good"]
    assert main(["results", str(store), "--csv", "--sort", "-name"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in table] == sorted((row["name"] for row in table), reverse=True)
    assert main(["results", str(store)]) == 0
    assert "killed after 9 s" in capsys.readouterr().out.replace("\n", " ")


def test_result_of_a_job_is_a_result_file_that_can_be_planned_with(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["results", str(store), "--result", "good"]) == 0
    path = tmp_path / "result.json"
    path.write_text(capsys.readouterr().out)
    plan = load.load_plan(path)
    assert plan.problem is not None and plan.problem.name == "good"
    assert plan.model_copy(update={"problem": None}) == two_stage_plan(two_class_problem())


def test_job_is_found_by_its_name_or_the_beginning_of_its_key(store: Path) -> None:
    key = read_rows(store)[0]["key"]
    by_name, by_key = read_answer(store, "good"), read_answer(store, key[:10])
    assert by_name == by_key
    for name, words in (
        ("unknown", "has no answer"),
        ("nobody", "no job is named"),
        ("*", "no job is named"),
    ):
        with pytest.raises(InstanceError, match=words):
            read_answer(store, name)


ROWS: list[dict[str, Any]] = [
    dict.fromkeys(FIELDS) | {"name": name, "model": model, "chips": chips, "step_s": step_s, "gap": 0.01}
    for name, model, chips, step_s in (
        ("a", "m", 8, 4.0),
        ("b", "m", 16, 3.0),
        ("worse than b", "m", 16, 3.5),
        ("worse than b for more", "m", 32, 3.0),
        ("c", "m", 64, 1.0),
        ("other model", "n", 64, 9.0),
        ("no plan", "m", 4, None),
    )
]


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["model=n"], ["other model"]),
        (["model!=m"], ["other model"]),
        (["step_s<3.2", "chips<=32"], ["b", "worse than b for more"]),
        (["step_s=null"], ["no plan"]),
        (["name~WORSE", "chips>16"], ["worse than b for more"]),
        (["gap=0.010"], names(ROWS)),
    ],
)
def test_filters_keep_what_fits_all_of_them(filters: list[str], found: list[str]) -> None:
    assert names(matching(ROWS, filters)) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [("model", "is no filter"), ("modl=x", "did you mean model"), ("step_s<fast", "'fast' is no number")],
)
def test_wrong_filter_is_explained(text: str, words: str) -> None:
    with pytest.raises(InstanceError, match=words):
        matching(ROWS, [text])


def test_absent_values_come_last_in_either_order() -> None:
    up, down = names(in_order(ROWS, ["step_s", "name"])), names(in_order(ROWS, ["-step_s"]))
    assert (up[0], up[-1]) == ("c", "no plan")
    assert (down[0], down[-1]) == ("other model", "no plan")
    assert up[1:3] == ["b", "worse than b for more"]


def test_front_holds_what_nothing_beats_among_rows_of_the_same_question() -> None:
    assert names(pareto(ROWS, "chips")) == ["a", "b", "c", "other model"]
    assert pareto(ROWS, "cost") == []  # nothing has a price


# Comparisons


def side(label: str, first_layers: int, **changes: Any) -> Side:
    problem = two_class_problem(**changes)
    plan = two_stage_plan(problem, first_layers=first_layers)
    return Side(label, problem, plan, api.predict(problem, plan))


def test_comparison_names_the_decision_and_the_part_of_the_step() -> None:
    a, b = side("a", 10), side("b", 16)
    found = compare(a, b)
    assert found.question == ()
    assert "layers 2 x 16" in found.decisions
    assert found.parts[0][0] in ("compute", "bubble")
    slower = b.evaluation.step_s > a.evaluation.step_s
    assert found.reasons[0].startswith("B is ") and ("slow" if slower else "fast") in found.reasons[0]
    assert found.as_json()["step_change"] == b.evaluation.step_s / a.evaluation.step_s - 1


def test_faster_is_counted_of_the_step_as_in_the_table() -> None:
    """A step of a quarter less read "31.7% faster", above a table with -24.1%."""
    a, b = side("a", 10), side("b", 12)
    long = replace(a, evaluation=a.evaluation.model_copy(update={"step_s": b.evaluation.step_s / 0.75}))
    assert compare(long, b).reasons[0].startswith("B is 25.0% faster than A")
    assert compare(b, long).reasons[0].startswith("B is 33.3% slower than A")


def test_comparison_tries_each_plan_on_the_other_problem() -> None:
    found = compare(
        side("a", 10), side("b", 12, global_batch_size=128, cluster="1x8 h100-sxm-80gb, 2x8 a100-sxm-80gb")
    )
    assert [name for name, _, _ in found.question] == ["cluster", "batch"]
    assert any("the plan of A on the problem of B" in reason for reason in found.reasons)


def test_equal_plans_compare_as_the_same() -> None:
    found = compare(side("a", 10), side("b", 10))
    assert (found.decisions, found.question) == ("", ())
    assert found.reasons[0].startswith("both take ")


def test_compare_prints_both_sides(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "good", "good", "--store", str(store)]) == 0
    assert "the same" in capsys.readouterr().out
    assert main(["compare", "good", "good", "--store", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_change"] == 0
    assert main(["compare", "good", "good"]) == 2
    assert "add --store" in capsys.readouterr().err


def test_front_over_cost_without_prices_says_what_is_missing(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["results", str(store), "--pareto", "cost"]) == 0
    assert "no row has a value for cost; give prices with `node_usd_per_hour" in capsys.readouterr().err


def test_front_over_cost_shows_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = "{problem: llama3-8b-h100-8, node_usd_per_hour: {h100-sxm-80gb: 20}}"

    def answer(task: Task) -> Answer:
        return Answer(task.key, None, {"termination": "optimal", "step_s": 2.0, "tokens_per_s": 1e5})

    with closing(Store(tmp_path / "plans.db")) as opened:
        Batch(read_jobs(write_jobs(tmp_path, jobs_text(jobs=[entry]))), opened).run(InstantExecutor(answer))
    assert main(["results", str(tmp_path / "plans.db"), "--pareto", "cost"]) == 0
    shown = capsys.readouterr().out
    assert "$/h" in shown and "20.00" in shown and "0.056" in shown  # 20 $ for 360 million tokens
