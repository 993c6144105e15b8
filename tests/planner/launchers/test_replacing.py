"""A launch directory is replaced in one step, and nothing stays beside it, whenever the process is killed."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from planner.launchers import replacing
from planner.launchers.replacing import put_in_place

OURS = ("launch.sh", "plan.yaml")
KILLED = """
import os, sys
from pathlib import Path
from planner.launchers import replacing

left, ours = int(sys.argv[2]), ("launch.sh", "plan.yaml")

def dying(call):
    def run(*args, **fields):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return call(*args, **fields)
    return run

for owner, name in ((Path, "rename"), (Path, "write_text"), (replacing.shutil, "rmtree")):
    setattr(owner, name, dying(getattr(owner, name)))
replacing._exchanged = dying(replacing._exchanged) if sys.argv[3] == "atomic" else lambda one, other: False
replacing.put_in_place(Path(sys.argv[1]), dict.fromkeys(ours, "new"), (), ours)
"""
"""Replaces a directory and is killed before so many of the calls that change anything."""


def written(out: Path) -> dict[str, str]:
    """What a directory holds."""
    return {path.name: path.read_text() for path in out.iterdir()}


@pytest.mark.parametrize("way", ["atomic", "renamed"])
@pytest.mark.parametrize("calls", range(6))
def test_a_killed_replacement_loses_nothing_and_leaves_nothing_for_long(
    way: str, calls: int, tmp_path: Path
) -> None:
    out = tmp_path / "launch"
    out.mkdir()
    old = {"launch.sh": "old", "plan.yaml": "old"}
    for name, text in (old | {"train.log": "a log"}).items():
        (out / name).write_text(text)
    command = [sys.executable, "-c", KILLED, str(out), str(calls), way]
    killed = subprocess.run(command, check=False).returncode == -9
    assert killed or calls > 4
    new = {"launch.sh": "new", "plan.yaml": "new"}
    if way == "atomic":  # with two renames there is a moment without either
        now = written(out)
        assert {name: now[name] for name in OURS} in (old, new)
    put_in_place(out, new, (), OURS)
    assert written(out) == new | {"train.log": "a log"}
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_at_work_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "launch"
    other = replacing.new_folder(tmp_path, "launch")
    (other / "launch").mkdir()
    with replacing._locked(other):
        put_in_place(out, {"launch.sh": "new"}, (), OURS)
        assert other.exists()
    put_in_place(out, {"launch.sh": "new"}, (), OURS)
    assert list(tmp_path.iterdir()) == [out]


def test_what_was_left_over_never_overwrites(tmp_path: Path) -> None:
    out = tmp_path / "launch"
    put_in_place(out, {"launch.sh": "old"}, (), OURS)
    (out / "train.log").write_text("today")
    left = replacing.new_folder(tmp_path, "launch")
    (left / "launch").mkdir()
    (left / "launch" / "train.log").write_text("yesterday")
    put_in_place(out, {"launch.sh": "new"}, (), OURS)
    assert written(out) == {"launch.sh": "new", "train.log": "today"}
    assert (left / "launch" / "train.log").read_text() == "yesterday"


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "launch"
    for name in (".launch.new-file", ".other.new-1"):
        (tmp_path / name / "launch").mkdir(parents=True)
    (tmp_path / ".launch.new-file" / "notes").write_text("mine")
    (tmp_path / ".launch.new-link").symlink_to(tmp_path / ".other.new-1")
    put_in_place(out, {"launch.sh": "new"}, (), OURS)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_full_disk_is_told_with_the_file_that_found_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hetplan: error: file system: File too large`, it said, of whatever file."""

    def full(path: Path, text: str, encoding: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left") as told:
        put_in_place(tmp_path / "launch", {"lib/a.sh": ""}, (), ())
    assert told.value.filename == str(tmp_path / "launch" / "lib" / "a.sh")
    assert list(tmp_path.iterdir()) == []
