"""A batch from start to end with made-up answers: what is solved, what is kept, what is tried again."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from planner.batch.answer import Answer, failure
from planner.batch.executor import Task
from planner.batch.jobs_file import Job, read_jobs
from planner.batch.repair import repair
from planner.batch.run import Batch, BatchProgress
from planner.batch.store import Dropped, Store
from planner.errors import InstanceError
from tests.planner.batch.samples import InstantExecutor, jobs_text, rows, some_jobs, sound_answer, write_jobs


def run(store: Path, jobs: tuple[Job, ...], executor: InstantExecutor, **wishes: bool) -> BatchProgress:
    with closing(Store(store)) as opened:
        return Batch(jobs, opened, **wishes).run(executor)


def test_every_job_is_answered_once_and_a_second_run_solves_nothing(tmp_path: Path) -> None:
    store, jobs = tmp_path / "plans.db", some_jobs(tmp_path, 6)
    first, second = InstantExecutor(), InstantExecutor()
    assert run(store, jobs, first).done == 6
    assert run(store, jobs, second).done == 6
    assert sorted(task.key for task in first.given) == sorted(job.key for job in jobs)
    assert second.given == []
    assert rows(store, "SELECT count(*) FROM answer WHERE status = 'done'") == [(6,)]
    assert sorted(tmp_path.iterdir()) == [tmp_path / "jobs.yaml", store]


def test_same_question_under_two_names_is_solved_once(tmp_path: Path) -> None:
    text = jobs_text(jobs=["{problem: llama3-8b-h100-8}", "{problem: llama3-8b-h100-8, name: again}"])
    executor = InstantExecutor()
    run(tmp_path / "plans.db", read_jobs(write_jobs(tmp_path, text)), executor)
    assert len(executor.given) == 1
    assert rows(tmp_path / "plans.db", "SELECT name FROM job JOIN answer USING (key) ORDER BY place") == [
        ("llama3-8b-h100-8",),
        ("again",),
    ]


def test_failure_is_kept_with_its_message_while_others_go_on(tmp_path: Path) -> None:
    jobs = some_jobs(tmp_path, 3)

    def answer(task: Task) -> Answer:
        return failure(task.key, "input", "no") if task.key == jobs[1].key else sound_answer(task)

    end = run(tmp_path / "plans.db", jobs, InstantExecutor(answer))
    assert (end.done, end.failed, end.left) == (2, 1, 0)
    ((key, cause, facts),) = rows(
        tmp_path / "plans.db", "SELECT key, cause, facts FROM answer WHERE status = 'failed'"
    )
    assert (key, cause, json.loads(str(facts))["message"]) == (jobs[1].key, "input", "no")


def test_failure_is_worked_on_again_only_where_asked(tmp_path: Path) -> None:
    jobs = some_jobs(tmp_path, 1)
    run(tmp_path / "plans.db", jobs, InstantExecutor(lambda task: failure(task.key, "fault", "bug")))
    idle, busy = InstantExecutor(), InstantExecutor()
    run(tmp_path / "plans.db", jobs, idle)
    assert idle.given == []
    assert run(tmp_path / "plans.db", jobs, busy, retry_failed=True).done == 1
    assert rows(tmp_path / "plans.db", "SELECT status, attempts FROM answer") == [("done", 2)]


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (3, 4)])
def test_job_whose_worker_dies_is_tried_again_as_often_as_it_says(
    tmp_path: Path, retries: int, attempts: int
) -> None:
    jobs = tuple(replace(job, limits=replace(job.limits, retries=retries)) for job in some_jobs(tmp_path, 1))
    dying = InstantExecutor(lambda task: failure(task.key, "crash", "died", may_retry=True))
    assert run(tmp_path / "plans.db", jobs, dying).failed == 1
    assert len(dying.given) == attempts
    assert rows(tmp_path / "plans.db", "SELECT cause, attempts FROM answer") == [("crash", attempts)]


@pytest.mark.parametrize(
    ("first", "second", "solved"),
    [("5", "5", False), ("5", "3", False), ("5", "6", True), ("5", "null", True)],
)
def test_answer_that_a_limit_cut_is_solved_again_under_a_longer_one(
    tmp_path: Path, first: str, second: str, solved: bool
) -> None:
    def cut(task: Task) -> Answer:
        return Answer(task.key, None, {"termination": "feasible", "interrupted": True, "step_s": 2.0})

    def jobs(limit: str) -> tuple[Job, ...]:
        entry = f"{{problem: llama3-8b-h100-8, time_limit_s: {limit}}}"
        return read_jobs(write_jobs(tmp_path, jobs_text(jobs=[entry])))

    run(tmp_path / "plans.db", jobs(first), InstantExecutor(cut))
    executor = InstantExecutor()
    run(tmp_path / "plans.db", jobs(second), executor)
    assert bool(executor.given) == solved


def test_entry_without_a_problem_fails_with_its_reason_and_needs_no_worker(tmp_path: Path) -> None:
    text = jobs_text(jobs=["{problem: nothing-of-this-name}", "{problem: llama3-8b-h100-8}"])
    executor = InstantExecutor()
    end = run(tmp_path / "plans.db", read_jobs(write_jobs(tmp_path, text)), executor)
    assert (end.done, end.failed, len(executor.given)) == (1, 1, 1)


def test_job_changed_under_its_name_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    for batch in (8, 16):
        text = jobs_text(jobs=[f"{{problem: llama3-8b-h100-8, name: mine, global_batch_size: {batch}}}"])
        run(tmp_path / "plans.db", read_jobs(write_jobs(tmp_path, text)), InstantExecutor())
    ((facts,),) = rows(tmp_path / "plans.db", "SELECT facts FROM job")
    assert json.loads(str(facts))["global_batch_size"] == 16


class Killed(BaseException):
    """Stands for the end of the process."""


def test_batch_killed_after_any_number_of_answers_goes_on_with_the_rest(tmp_path: Path) -> None:
    jobs = some_jobs(tmp_path, 4)
    for survived in range(5):
        store = tmp_path / f"{survived}.db"
        answers = iter(range(survived))

        def answer(task: Task, answers: object = answers) -> Answer:
            if next(answers, None) is None:  # type: ignore[call-overload]
                raise Killed
            return sound_answer(task)

        if survived < 4:
            with pytest.raises(Killed):
                run(store, jobs, InstantExecutor(answer))
        rest = InstantExecutor()
        assert run(store, jobs, rest).done == 4
        assert len(rest.given) == 4 - (survived if survived < 4 else 0)


def test_two_runs_on_one_store_share_the_work(tmp_path: Path) -> None:
    """The second run starts in the middle of the first, finds its claims, and takes what is left."""
    store, jobs = tmp_path / "plans.db", some_jobs(tmp_path, 6)
    inner = InstantExecutor(room=1)
    second: list[BatchProgress] = []

    class Nested(InstantExecutor):
        def wait(self, timeout_s: float) -> list[Answer]:
            if not second:
                with closing(Store(store)) as other:
                    batch = Batch(jobs, other)
                    for _ in range(20):
                        batch._hand_out(inner)
                        for answer in inner.wait(0) if inner.room == 0 else []:
                            batch._take(answer)
                    second.append(batch.progress)
            return super().wait(timeout_s)

    outer = Nested()
    assert run(store, jobs, outer).done == 6
    assert (second[0].done, second[0].elsewhere) == (4, 2)
    given = [task.key for task in (*outer.given, *inner.given)]
    assert sorted(given) == sorted(job.key for job in jobs)
    assert rows(store, "SELECT count(*), max(attempts) FROM answer") == [(6, 1)]


def test_claim_of_a_dead_run_is_taken_over(tmp_path: Path) -> None:
    store, (job,) = tmp_path / "plans.db", some_jobs(tmp_path, 1)
    with closing(Store(store)) as opened:
        opened.add_jobs([job])
    with closing(Store(store)) as opened, opened._writing():
        opened._db.execute("INSERT INTO claim VALUES (?, 'long-dead')", (job.key,))
    executor = InstantExecutor()
    assert run(store, (job,), executor).done == 1
    assert rows(store, "SELECT * FROM claim") == []


def test_progress_counts_and_names_the_best(tmp_path: Path) -> None:
    jobs = some_jobs(tmp_path, 3)
    seen: list[BatchProgress] = []
    with closing(Store(tmp_path / "plans.db")) as store:
        Batch(jobs, store, on_progress=seen.append).run(InstantExecutor(room=1))
    assert [(p.done, p.left) for p in seen] == [(1, 2), (2, 1), (3, 0)]
    best = min(jobs, key=lambda job: job.key[:4])
    assert seen[-1].best is not None and seen[-1].best.name == best.name


def test_answer_whose_row_is_damaged_is_dropped_and_solved_again(tmp_path: Path) -> None:
    store, jobs = tmp_path / "plans.db", some_jobs(tmp_path, 3)
    run(store, jobs, InstantExecutor())
    rows(store, f"UPDATE answer SET facts = replace(facts, '1.0', '9.0') WHERE key = '{jobs[1].key}'")
    executor = InstantExecutor()
    with closing(Store(store)) as opened:
        assert opened.drop_damaged() == Dropped(1, ())
        Batch(jobs, opened).run(executor)
    assert [task.key for task in executor.given] == [jobs[1].key]


def test_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("these are my notes, and no database at all " * 50)
    with pytest.raises(InstanceError, match="is no store"):
        Store(text)
    other = tmp_path / "other.db"
    rows(other, "CREATE TABLE mine (a)")
    with pytest.raises(InstanceError, match="a database of another program"):
        Store(other)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "other.db"]


def test_store_broken_in_the_middle_is_detected_named_and_the_rest_saved(tmp_path: Path) -> None:
    store, jobs = tmp_path / "plans.db", some_jobs(tmp_path, 20)
    run(store, jobs, InstantExecutor())
    raw = bytearray(store.read_bytes())
    # From page 5 on lie rows: a page of jobs and a page of answers are lost, or an index over them.
    raw[4096 * 12 : 4096 * 14] = b"\xff" * 8192
    store.write_bytes(raw)
    with pytest.raises(InstanceError) as refused:
        Store(store)
    assert "plans.db: is damaged" in str(refused.value) and "--repair" in str(refused.value)
    old, saved = repair(store)
    assert old.read_bytes() == raw
    assert 20 <= saved["job"] + saved["answer"] <= 39
    executor = InstantExecutor()
    assert run(store, jobs, executor).done == 20
    assert len(executor.given) == 20 - saved["answer"]


def test_store_in_use_is_not_repaired(tmp_path: Path) -> None:
    with (
        closing(Store(tmp_path / "plans.db")),
        pytest.raises(InstanceError, match="a batch is running on it"),
    ):
        repair(tmp_path / "plans.db")


def test_full_disk_ends_the_batch_with_what_was_answered_kept(tmp_path: Path) -> None:
    store, jobs = tmp_path / "plans.db", some_jobs(tmp_path, 30)

    def large(task: Task) -> Answer:
        return replace(sound_answer(task), result=bytes(range(256)) * 64)

    with closing(Store(store)) as opened:
        batch = Batch(jobs, opened)
        (pages,) = opened._db.execute("PRAGMA page_count").fetchone()
        opened._db.execute(f"PRAGMA max_page_count = {pages + 40}")
        with pytest.raises(InstanceError, match="what is in it is safe: make room"):
            batch.run(InstantExecutor(large))
        answered = batch.progress.done
    assert 0 < answered < 30
    executor = InstantExecutor()
    assert run(store, jobs, executor).done == 30
    assert len(executor.given) == 30 - answered


def test_store_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "plans.db")) as opened:
        opened._db.execute("PRAGMA query_only = 1")
        with pytest.raises(InstanceError, match=r"plans\.db: cannot be written"):
            opened.add_jobs(some_jobs(tmp_path, 1))
        opened._db.execute("PRAGMA query_only = 0")
    with pytest.raises(InstanceError, match="no file can be made beside it"):
        Store(tmp_path / "nowhere" / "plans.db")


def test_questions_about_one_model_cluster_and_sequence_run_one_after_the_other(tmp_path: Path) -> None:
    """The batch, of which tables do not depend, is the slowest axis of the file; it becomes the fastest."""
    grid = (
        "{global_batch_size: [8, 16], problem: llama3-8b-h100-8, seq_length: [2048, 4096], gap: [0.1, 0.2]}"
    )
    jobs = read_jobs(write_jobs(tmp_path, jobs_text(grid=grid)))
    executor = InstantExecutor()
    run(tmp_path / "plans.db", jobs, executor)
    lengths = [load_seq_length(task) for task in executor.given]
    assert lengths == [2048] * 4 + [4096] * 4
    of_file = [job.key for job in jobs if job.problem and job.problem.workload.seq_length == 2048]
    assert [task.key for task in executor.given[:4]] == of_file


def load_seq_length(task: Task) -> int:
    return int(json.loads(task.problem_text)["workload"]["seq_length"])


def test_free_worker_gets_its_next_job_before_the_last_answer_is_flushed(tmp_path: Path) -> None:
    events: list[str] = []

    class Noting(InstantExecutor):
        def submit(self, task: Task) -> None:
            events.append("given")
            super().submit(task)

    with closing(Store(tmp_path / "plans.db")) as store:
        finish = store.finish

        def noting(answer: Answer) -> bool:
            events.append("kept")
            return finish(answer)

        store.finish = noting  # type: ignore[method-assign]
        Batch(some_jobs(tmp_path, 3), store).run(Noting(room=1))
    assert events == ["given", "given", "kept", "given", "kept", "kept"]
