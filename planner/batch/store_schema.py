"""Tables of a store, and how faults of SQLite are put to the user."""

from __future__ import annotations

import sqlite3

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
