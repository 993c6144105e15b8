"""What a store holds, one row a job, read without disturbing a batch that writes to it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from planner.batch import run_lock
from planner.batch.pack import unpacked
from planner.batch.store_schema import (
    ANSWER_ROW,
    JOB_ROW,
    STORE_SCHEMA,
    answer_is_sound,
    explained,
    job_is_sound,
    tolerant,
)
from planner.batch.study import add_changes
from planner.data import load
from planner.data.problem import Problem, ProblemFile
from planner.data.result import Result
from planner.errors import InstanceError

FIELDS = (
    "name", "key", "study", "variant", "share", "nodes_changed", "price_usd", "step_change",
    "tokens_per_s_change", "gain_per_node", "gain_per_million_usd",
    "behind_best", "loaded_fraction", "change",
    "fits_fraction", "best_fraction", "mean_loss", "worst_loss", "robustness",
    "model", "cluster", "target", "seq_length", "global_batch_size", "precision",
    "nodes", "chips", "usd_per_hour", "status", "termination", "step_s", "bound_s", "gap",
    "tokens_per_s", "mfu", "usd_per_million_tokens", "chips_used", "peak_memory_gib", "error_band", "plan",
    "message", "cause", "attempts", "interrupted", "seconds", "time_limit_s", "version",
)  # fmt: skip
"""Fields of a row, in the order of columns; null where there is no value."""

_SELECT = f"""
SELECT {JOB_ROW}, {ANSWER_ROW}, claim.run
FROM job LEFT JOIN answer USING (key) LEFT JOIN claim USING (key)
"""
_JOB_COLUMNS = 7

DAMAGED = "damaged in the store; run its batch again, which works it out anew"


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """One row a job, in the order in which jobs came in; `pandas.DataFrame` takes them as they are.

    `status` is done (answered; that no plan exists is an answer), failed, running, queued, or damaged.

    Raises
    ------
    InstanceError
        Where there is no such store, or it is damaged.
    """
    store = Path(path)
    alive: dict[str, bool] = {}
    with _reading(store) as db:
        rows = [_row(store, alive, values) for values in db.execute(f"{_SELECT} ORDER BY job.place")]
    add_changes(rows)
    return rows


def _row(store: Path, alive: dict[str, bool], values: tuple[Any, ...]) -> dict[str, Any]:
    job, answer, run = values[:_JOB_COLUMNS], values[_JOB_COLUMNS:-1], values[-1]
    name, _, key, _, asked, *_ = job
    _, status, cause, attempts, found, *_ = answer
    answered = status is not None
    if not job_is_sound(job) or (answered and not answer_is_sound(answer)):
        said = {"name": str(name), "key": str(key), "status": "damaged", "message": DAMAGED}
        return {field: said.get(field) for field in FIELDS}
    facts = json.loads(asked) | json.loads(found or "{}")
    if not answered:
        if run is not None and run not in alive:
            alive[run] = run_lock.is_alive(store, run)
        status = "running" if run is not None and alive[run] else "queued"
    facts |= {"name": name, "key": key, "status": status, "cause": cause, "attempts": attempts or 0}
    if facts.get("usd_per_hour") is not None and facts.get("tokens_per_s"):
        usd_per_s = facts["usd_per_hour"] / 3600
        facts["usd_per_million_tokens"] = usd_per_s / facts["tokens_per_s"] * 1e6
    return {field: facts.get(field) for field in FIELDS}


def read_answer(path: str | Path, name: str) -> tuple[Problem, Result]:
    """Problem and result of a job, by its name or by the beginning of its key.

    Raises
    ------
    InstanceError
        Where no job or more than one is meant, or it has no answer.
    """
    with _reading(Path(path)) as db:
        found = db.execute(f"{_SELECT} WHERE job.name = ?", (name,)).fetchall()
        if not found and name.isalnum():
            found = db.execute(f"{_SELECT} WHERE job.key GLOB ? || '*'", (name,)).fetchall()
    if not found:
        raise InstanceError(f"no job is named {name!r} and no key begins so", str(path))
    if len(found) > 1 and len({row[_JOB_COLUMNS] for row in found}) > 1:
        raise InstanceError(f"{name!r} fits {len(found)} jobs: {found[0][0]!r}, {found[1][0]!r}", str(path))
    job, answer = found[0][:_JOB_COLUMNS], found[0][_JOB_COLUMNS:-1]
    job_name, problem, facts, result = job[0], job[3], answer[4], answer[5]
    if not job_is_sound(job) or (answer[0] is not None and not answer_is_sound(answer)):
        raise InstanceError(f"job {job_name!r} is {DAMAGED}", str(path))
    if result is None:
        message = json.loads(facts)["message"] if facts else "it has not been answered yet"
        raise InstanceError(f"job {job_name!r} has no answer: {message}", str(path))
    file = ProblemFile.model_validate_json(unpacked(problem))
    return load.resolve_problem(file, job_name), _with_problem(
        file, Result.model_validate_json(unpacked(result))
    )


def _with_problem(file: ProblemFile, result: Result) -> Result:
    """The result with the problem put back into its best plan, which the store keeps apart."""
    plan = result.plan and result.plan.model_copy(update={"problem": file})
    return result.model_copy(update={"plan": plan, "problem": file.name})


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write."""
    if not path.is_file():
        raise InstanceError(
            "there is no such store; `hetplan batch JOBS.yaml --store ...` makes one", str(path)
        )
    try:
        with closing(_connection(path)) as db:
            known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            if "about" not in known:
                raise InstanceError("is no store of `hetplan batch`", str(path))
            (schema,) = db.execute("SELECT value FROM about WHERE name = 'schema'").fetchone()
            if schema != STORE_SCHEMA:
                raise InstanceError(
                    f"is a store of {schema!r}; this release reads {STORE_SCHEMA!r}", str(path)
                )
            yield db
    except sqlite3.Error as fault:
        raise explained(fault, str(path)) from None


def _connection(path: Path) -> sqlite3.Connection:
    """A connection for reading, by the gentlest way that the folder allows.

    A writable one can clear SQLite's log away behind it. Where the folder may not be written a
    read-only one does; where SQLite cannot even make the index of its log, and there is none, nothing is
    missed when the file is read as it stands.
    """
    ways = ["rw", "ro"]
    if not path.with_name(f"{path.name}-wal").exists():
        ways.append("ro&immutable=1")
    refusal: sqlite3.Error | None = None
    for way in ways:
        db = tolerant(
            sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode={way}", uri=True, timeout=10.0)
        )
        try:
            db.execute("PRAGMA query_only = 1")
            db.execute("SELECT 1 FROM sqlite_master").fetchone()
            return db
        except sqlite3.OperationalError as fault:
            db.close()
            refusal = fault
    assert refusal is not None
    raise refusal
