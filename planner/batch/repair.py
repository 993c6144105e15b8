"""Save from a damaged store what can still be read, row by row."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from planner.batch import run_lock
from planner.batch.store_schema import (
    ANSWER_ROW,
    JOB_ROW,
    STORE_SCHEMA,
    TABLES,
    answer_is_sound,
    explained,
    job_is_sound,
    tolerant,
)
from planner.errors import InstanceError

_CHECKED = {
    "job": (f"SELECT {JOB_ROW} FROM job WHERE rowid = ?", job_is_sound),
    "answer": (f"SELECT {ANSWER_ROW} FROM answer WHERE rowid = ?", answer_is_sound),
}
"""How a row is read, and what tells a damaged one."""

_MOST_MISSING = 10_000
"""Row numbers tried beyond the last one that could be read."""


def repair(path: Path) -> tuple[Path, dict[str, int]]:
    """Write all sound rows into a new store in the old one's place, and keep the old file beside it.

    Returns
    -------
    tuple
        Where the old file went, and how many rows of each table were saved.

    Raises
    ------
    InstanceError
        Where a batch is running on the store, or nothing can be written beside it.
    """
    if not path.is_file():
        raise InstanceError("there is no such store", str(path))
    for lock in path.parent.glob(f"{path.name}.run-*"):
        if run_lock.is_alive(path, lock.name.rpartition("-")[2]):
            raise InstanceError("a batch is running on it; end that first", str(path))
    fresh = path.with_name(f"{path.name}.repaired")
    fresh.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(fresh, isolation_level=None)) as new:
            new.executescript(TABLES)
            new.execute("INSERT INTO about VALUES ('schema', ?)", (STORE_SCHEMA,))
            new.execute("BEGIN")
            saved = {table: _save(path, new, table) for table in _CHECKED}
            new.execute("COMMIT")
    except sqlite3.Error as fault:
        raise explained(fault, str(fresh)) from None
    old = _free(path)
    os.replace(path, old)
    for ending in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{old}{ending}")
    os.replace(fresh, path)
    return old, saved


def _free(path: Path) -> Path:
    """A name for the damaged file that is not taken."""
    number = 1
    while (old := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return old


def _save(path: Path, new: sqlite3.Connection, table: str) -> int:
    """Copy the rows of a table whose checksum is right, past those that cannot be read."""
    saved = 0
    with closing(tolerant(sqlite3.connect(path))) as old:
        missing = row_id = 0
        while missing < _MOST_MISSING:
            row_id += 1
            row = _row(old, table, row_id)
            if row is None:
                missing += 1
                continue
            missing = 0
            if _CHECKED[table][1](row):
                marks = ", ".join("?" * len(row))
                new.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", row)
                saved += 1
    return saved


def _row(old: sqlite3.Connection, table: str, row_id: int) -> tuple[Any, ...] | None:
    """One row by its number; None where there is none, or its page is broken."""
    try:
        found: tuple[Any, ...] | None = old.execute(_CHECKED[table][0], (row_id,)).fetchone()
    except sqlite3.DatabaseError:
        return None
    return found
