"""The durable memory of a batch: jobs, claims and answers in one SQLite file.

Write-ahead logging, one transaction for each claim and each answer, flushed to disk: after a kill at
any moment the store holds every answer that was reported. A claim says which run works on a question;
it ends with the answer, with the run, or, where the run was killed, with its lock (`run_lock`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planner.batch import run_lock
from planner.batch.answer import Answer
from planner.batch.jobs_file import Job
from planner.batch.pack import packed
from planner.batch.store_schema import (
    ANSWER_ROW,
    JOB_ROW,
    STORE_SCHEMA,
    TABLES,
    answer_is_sound,
    checksum,
    damaged,
    explained,
    job_checksum,
    job_is_sound,
    tolerant,
)
from planner.data import load
from planner.errors import InstanceError

BUSY_S = 60.0
"""How long to wait for another process that writes [s]."""


@dataclass(frozen=True)
class Dropped:
    """Damaged rows that were removed: how many answers, and the jobs by their names as far as they read."""

    answers: int
    jobs: tuple[str, ...]


class Store:
    """A store open for writing, for one run of a batch.

    Raises
    ------
    InstanceError
        Where the file is damaged, of another kind, or cannot be written; so do all methods.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = run_lock.RunLock(self.path)
        try:
            run_lock.sweep(self.path)
            self._open()
        except BaseException:
            self._lock.release()
            raise

    @property
    def run(self) -> str:
        """Id of this run."""
        return self._lock.run

    def _open(self) -> None:
        where = str(self.path)
        try:
            self._db = tolerant(sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None))
            try:
                self._check(where)
                self._db.execute("PRAGMA journal_mode = WAL")
                with self._writing():
                    for statement in TABLES.split(";\n"):
                        self._db.execute(statement)
                    self._db.execute("INSERT OR IGNORE INTO about VALUES ('schema', ?)", (STORE_SCHEMA,))
            except BaseException:
                self._db.close()
                raise
        except sqlite3.Error as fault:
            raise explained(fault, where) from None

    def _check(self, where: str) -> None:
        """Refuse what is damaged or somebody else's, before anything is written."""
        (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise damaged(" ".join(verdict.split()), where)
        known = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master")}
        if known and "about" not in known:
            raise InstanceError("is a database of another program; give a new file", where)
        if known:
            (schema,) = self._db.execute("SELECT value FROM about WHERE name = 'schema'").fetchone()
            if schema != STORE_SCHEMA:
                raise InstanceError(f"is a store of {schema!r}; this release uses {STORE_SCHEMA!r}", where)

    @contextmanager
    def _writing(self, *, flushed: bool = True) -> Iterator[None]:
        """One transaction, whole or not at all; flushed to disk, unless a power cut may undo it."""
        try:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if flushed else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as fault:
            raise explained(fault, str(self.path)) from None

    def add_jobs(self, jobs: Iterable[Job]) -> None:
        """Put jobs in, all or none; one of a known name takes its place."""
        with self._writing():
            known = {row[0]: row[1:] for row in self._db.execute("SELECT name, key, facts, limits FROM job")}
            (last,) = self._db.execute("SELECT coalesce(max(place), 0) FROM job").fetchone()
            for place, job in enumerate(jobs, start=last + 1):
                facts, limits = json.dumps(job_facts(job)), json.dumps(asdict(job.limits))
                if known.get(job.name) == (job.key, facts, limits):
                    continue
                problem = None
                if job.problem is not None:
                    problem = packed(load.problem_file(job.problem).model_dump_json())
                row = (job.name, place, job.key, problem, facts, limits)
                self._db.execute(
                    "INSERT INTO job VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                    " key = excluded.key, problem = excluded.problem, facts = excluded.facts,"
                    " limits = excluded.limits, checksum = excluded.checksum",
                    (*row, job_checksum(*row)),
                )

    def drop_damaged(self) -> Dropped:
        """Remove rows whose checksum is wrong, so that answers are worked out and jobs put in again."""
        with self._writing():
            answers = [
                row[0]
                for row in self._db.execute(f"SELECT rowid, {ANSWER_ROW} FROM answer")
                if not answer_is_sound(row[1:])
            ]
            jobs = [
                row[:2]
                for row in self._db.execute(f"SELECT rowid, {JOB_ROW} FROM job")
                if not job_is_sound(row[1:])
            ]
            self._db.executemany("DELETE FROM answer WHERE rowid = ?", ((row,) for row in answers))
            self._db.executemany("DELETE FROM job WHERE rowid = ?", ((row,) for row, _ in jobs))
        return Dropped(len(answers), tuple(name for _, name in jobs))

    def answered(self) -> dict[str, Answer]:
        """Every answer by its key, without the results."""
        try:
            rows = self._db.execute("SELECT key, cause, attempts, facts FROM answer")
            return {
                key: Answer(key, cause, json.loads(facts), attempts=attempts)
                for key, cause, attempts, facts in rows
            }
        except sqlite3.Error as fault:
            raise explained(fault, str(self.path)) from None

    def claim(self, key: str, seen_attempts: int = 0) -> bool:
        """Take a question for this run; False where another living run has it, or has answered it.

        Parameters
        ----------
        seen_attempts
            Attempts of the answer that is to be replaced; 0 where there was none.
        """
        with self._writing(flushed=False):
            found = self._db.execute("SELECT run FROM claim WHERE key = ?", (key,)).fetchone()
            if found and found[0] != self.run and run_lock.is_alive(self.path, found[0]):
                return False
            answer = self._db.execute("SELECT attempts FROM answer WHERE key = ?", (key,)).fetchone()
            if answer and answer[0] > seen_attempts:
                return False
            self._db.execute("INSERT OR REPLACE INTO claim VALUES (?, ?)", (key, self.run))
            return True

    def finish(self, answer: Answer) -> bool:
        """Keep an answer and end its claim; False where the claim is no longer ours, which drops it."""
        facts = json.dumps(answer.facts, allow_nan=False)
        row = (answer.key, answer.status, answer.cause, answer.attempts, facts, answer.result)
        with self._writing():
            ours = "SELECT 1 FROM claim WHERE key = ? AND run = ?"
            if not self._db.execute(ours, (answer.key, self.run)).fetchone():
                return False
            self._db.execute(
                "INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, checksum(*row))
            )
            self._db.execute("DELETE FROM claim WHERE key = ?", (answer.key,))
        return True

    def answer_of(self, key: str) -> Answer | None:
        """The answer to one question, without its result."""
        try:
            row = self._db.execute(
                "SELECT cause, attempts, facts FROM answer WHERE key = ?", (key,)
            ).fetchone()
        except sqlite3.Error as fault:
            raise explained(fault, str(self.path)) from None
        return None if row is None else Answer(key, row[0], json.loads(row[2]), attempts=row[1])

    def close(self) -> None:
        """End of the run: open claims are given back."""
        try:
            with self._writing():
                self._db.execute("DELETE FROM claim WHERE run = ?", (self.run,))
        finally:
            self._db.close()
            self._lock.release()


def job_facts(job: Job) -> dict[str, Any]:
    """What a list of results shows of a job itself."""
    study = {
        "study": job.study,
        "variant": job.variant,
        "nodes_changed": job.nodes_changed,
        "price_usd": job.price_usd,
        "share": job.share,
    }
    if job.problem is None:
        return dict(job.asked or {}) | study
    problem = job.problem
    prices = [c.price_usd_per_hour for c in problem.cluster.classes]
    cost = sum(p * c.num_nodes for p, c in zip(prices, problem.cluster.classes, strict=True) if p is not None)
    return study | {
        "model": problem.model.id,
        "cluster": problem.cluster.id,
        "target": problem.target,
        "seq_length": problem.workload.seq_length,
        "global_batch_size": problem.workload.global_batch_size,
        "precision": problem.workload.precision,
        "nodes": problem.cluster.num_nodes,
        "chips": problem.cluster.num_chips,
        "usd_per_hour": None if None in prices else cost,
    }
