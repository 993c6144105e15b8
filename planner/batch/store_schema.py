"""Tables of a store, and how faults of SQLite are put to the user."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any

from planner.errors import InstanceError

STORE_SCHEMA = "hetplan/store/v1"
"""Written into every store; another one is refused."""

TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job (
    name TEXT PRIMARY KEY,      -- unique; a job asked again under the same name replaces itself
    place INTEGER NOT NULL,     -- order in which jobs came in
    key TEXT NOT NULL,          -- hash of the question
    problem BLOB,               -- compressed JSON of the problem, everything inline; null where refused
    facts TEXT NOT NULL,        -- JSON: model, cluster, target, batch, chips, price, study
    limits TEXT NOT NULL,       -- JSON
    checksum TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS job_key ON job (key);
CREATE TABLE IF NOT EXISTS answer (
    key TEXT PRIMARY KEY,       -- one answer to one question, whatever names ask it
    status TEXT NOT NULL,       -- done or failed
    cause TEXT,                 -- of a failure: input, timeout, memory, crash, fault
    attempts INTEGER NOT NULL,
    facts TEXT NOT NULL,        -- JSON: termination, step_s, bound_s, gap, plan in words, message
    result BLOB,                -- compressed JSON of the result
    checksum TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS claim (key TEXT PRIMARY KEY, run TEXT NOT NULL) WITHOUT ROWID;
"""

JOB_ROW = "job.name, job.place, job.key, job.problem, job.facts, job.limits, job.checksum"
ANSWER_ROW = (
    "answer.key, answer.status, answer.cause, answer.attempts, answer.facts, answer.result, answer.checksum"
)
"""Columns of a row in the order of its checksum, which is the last."""


def checksum(*values: Any) -> str:
    """Hash of a row, which tells a damaged one."""
    digest = hashlib.sha256()
    for value in values:
        raw = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()[:16]


def job_checksum(name: str, place: int, *rest: Any) -> str:
    """That of a job's columns but the last; its place may change."""
    return checksum(name, *rest)


def job_is_sound(row: Sequence[Any]) -> bool:
    """Whether all of a job's row is as it was written."""
    return bool(job_checksum(*row[:-1]) == row[-1])


def answer_is_sound(row: Sequence[Any]) -> bool:
    """Whether all of an answer's row is as it was written."""
    return bool(checksum(*row[:-1]) == row[-1])


def tolerant(db: sqlite3.Connection) -> sqlite3.Connection:
    """The connection, giving damaged text as well: a checksum then tells it."""
    db.text_factory = lambda raw: raw.decode(errors="replace")
    return db


_FULL = ("disk is full", "database or disk is full", "disk I/O error")
_READ_ONLY = ("readonly", "read-only", "read only")
_DAMAGED = ("malformed", "corrupt", "unsupported file format")


def explained(fault: sqlite3.Error, path: str) -> InstanceError:
    """What is wrong with a store and the way out, in one line."""
    text = str(fault)
    if any(word in text for word in _READ_ONLY):
        return InstanceError("cannot be written; give a store that you may write, or change its rights", path)
    if any(word in text for word in _FULL):
        return InstanceError(
            f"cannot be written ({text}); what is in it is safe: make room, then run the same batch again",
            path,
        )
    if "not a database" in text:
        return InstanceError("is no store: it holds something else, or its beginning is damaged", path)
    if any(word in text for word in _DAMAGED):
        return damaged(text, path)
    if "unable to open" in text:
        return InstanceError("cannot be opened: is the folder there, and may you write to it?", path)
    if "locked" in text:
        return InstanceError("is held by another process for too long; try again", path)
    return InstanceError(f"cannot be used: {text}", path)


def damaged(what: str, path: str) -> InstanceError:
    """A store whose file is broken."""
    return InstanceError(
        f"is damaged ({what}); `hetplan batch ... --repair` keeps all jobs and answers that can be read",
        path,
    )
