"""Whether a batch process still lives, told by a lock that dies with it.

Process ids are used again and clocks jump; a lock on a file is released by the kernel at the moment
the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import glob
import os
import uuid
from pathlib import Path

from planner.errors import InstanceError


class RunLock:
    """The mark of a living batch process on a store: a locked file beside it."""

    def __init__(self, store: Path) -> None:
        self.run = uuid.uuid4().hex[:12]
        self._path = lock_path(store, self.run)
        young = store.with_name(f"{store.name}.new-{self.run}")
        try:
            self._file = os.open(young, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Named as a run only once it is locked: nobody may meet it unlocked and take it for dead.
            os.rename(young, self._path)
        except OSError as error:
            raise InstanceError(
                f"no file can be made beside it ({error.strerror}); give a folder that you may write",
                str(store),
            ) from None

    def release(self) -> None:
        """End of the run."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def lock_path(store: Path, run: str) -> Path:
    """File that a run holds locked."""
    return store.with_name(f"{store.name}.run-{run}")


def is_alive(store: Path, run: str) -> bool:
    """Whether the process of a run still lives; the file of a dead one is removed."""
    path = lock_path(store, run)
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(file)


def sweep(store: Path) -> None:
    """Remove what killed runs have left beside a store."""
    for path in store.parent.glob(f"{glob.escape(store.name)}.run-*"):
        is_alive(store, path.name.rpartition("-")[2])
