"""A directory appears whole or not at all, in the place of an earlier one as well.

It is built in a folder beside its place and changes places with the earlier one in a single step. Where the
system has no such step, two renames follow each other. What a killed process has left beside the place goes
with the next one: a folder at work is locked, and the lock ends with its process, however it ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_HERE, _EXCHANGE = -100, 2
"""`AT_FDCWD` and `RENAME_EXCHANGE` of Linux: renameat2(2), linux/fs.h."""


def new_folder(above: Path, name: str) -> Path:
    """A folder beside the place of `name`, with which nobody else meddles."""
    return Path(tempfile.mkdtemp(dir=above, prefix=f".{name}.new-"))


def put_in_place(
    out: Path, files: Mapping[str, str], executable: Collection[str], ours: Collection[str]
) -> None:
    """Make a directory of text files at `out`; what is there already and not ours moves into it.

    Parameters
    ----------
    files
        Texts by path in the directory.
    executable
        Paths of scripts.
    ours
        Names at the top of a directory that may go with an earlier one.
    """
    ours = {*ours, *(Path(name).parts[0] for name in files)}
    out.parent.mkdir(parents=True, exist_ok=True)
    building = new_folder(out.parent, out.name)
    try:
        with _locked(building):
            new = building / out.name
            for name, text in files.items():
                path = new / name
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(path, text, out / name)
                if name in executable:
                    path.chmod(0o755)
            if out.exists():
                _hand_over(_replaced(new, out), out, ours)
            else:
                new.rename(out)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    for left in _left_over(out):
        if all([_hand_over(tree, out, ours) for tree in left.iterdir()]):
            shutil.rmtree(left, ignore_errors=True)


def _write(path: Path, text: str, shown: Path) -> None:
    """Write a file; a full disk is told with the path that the file would have had."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        error.filename = str(shown)
        raise


def _replaced(new: Path, out: Path) -> Path:
    """Put `new` in the place of `out`; where that one is now."""
    if _exchanged(new, out):
        return new
    old = new.with_name("old")
    out.rename(old)
    try:
        new.rename(out)
    except OSError:
        old.rename(out)
        raise
    return old


def _exchanged(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where system or file system has none."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _hand_over(old: Path, out: Path, ours: Collection[str]) -> bool:
    """Move what is not ours from an earlier directory; whether nothing of it stays behind."""
    kept = [entry for entry in old.iterdir() if entry.name not in ours]
    for entry in kept:
        if not os.path.lexists(out / entry.name):
            entry.rename(out / entry.name)
    return not any(os.path.lexists(entry) for entry in kept)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder as being worked in; a file system without locks goes without."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)


def _left_over(out: Path) -> Iterator[Path]:
    """Folders beside a place whose process has died; one that is empty still may be about to be locked."""
    for left in sorted(out.parent.glob(f".{glob.escape(out.name)}.new-*")):
        if left.is_symlink() or not left.is_dir() or not all(tree.is_dir() for tree in left.iterdir()):
            continue
        if not any(left.iterdir()):
            continue
        file = os.open(left, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its process lives, or there are no locks to tell
            continue
        finally:
            os.close(file)
        yield left
