"""`hetplan batch`: from a jobs file to a store full of answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from planner.batch.jobs_file import Job, read_jobs
from planner.batch.local_executor import LocalExecutor
from planner.batch.run import Batch
from planner.batch.store import Store
from planner.commands import screen
from planner.commands.batch_progress import reporter, sentence
from planner.commands.screen import ExitCode
from planner.data.nearest import did_you_mean
from planner.errors import InstanceError
from planner.processes import cores

if TYPE_CHECKING:
    from planner.batch.executor import Executor

EXECUTORS = ("local", "ray")
"""Where jobs can run."""

REFUSED_SHOWN = 10
"""Entries without a problem that are named on the screen."""


def run(
    jobs_path: Path,
    store_path: Path,
    *,
    workers: int | None,
    executor: str,
    address: str | None,
    retry_failed: bool,
    repair: bool,
    quiet: bool,
) -> ExitCode:
    """Answer every job that the store has no answer to; the exit code says whether any failed."""
    check_executor(executor, address)
    if workers is not None and workers < 1:
        raise InstanceError(f"must be at least 1, got {workers}", "--workers")
    jobs = read_jobs(jobs_path)
    if repair:
        _repair(store_path)
    with ExitStack() as stack:
        store = stack.enter_context(closing(Store(store_path)))
        dropped = store.drop_damaged()
        if dropped.answers:
            screen.note(f"{store_path}: {dropped.answers} answers were damaged and are worked out again")
        on_progress = stack.enter_context(reporter(quiet=quiet))
        if lost := sorted({*dropped.jobs} - {job.name for job in jobs}):
            names = ", ".join(lost[:REFUSED_SHOWN]) + (", ..." if len(lost) > REFUSED_SHOWN else "")
            screen.note(
                f"{store_path}: {len(lost)} jobs of other files were damaged; ask them again: {names}"
            )
        batch = Batch(jobs, store, retry_failed=retry_failed, on_progress=on_progress)
        _say_refused(jobs)
        if not batch.is_over:
            try:
                hands = stack.enter_context(closing(make_executor(executor, workers, address)))
                batch.run(hands)
            except KeyboardInterrupt:
                screen.note(f"interrupted; run the same command to go on. {sentence(batch.progress)}")
                return ExitCode.INTERRUPTED
        end = batch.progress
    if not quiet:
        screen.note(f"{sentence(end)}; see `hetplan results {store_path}`")
    return ExitCode.FAULT if end.failed else ExitCode.PLAN


def _repair(store_path: Path) -> None:
    """Save what can be read of a damaged store, and say how much that was."""
    from planner.batch.repair import repair

    old, saved = repair(store_path)
    screen.note(
        f"{store_path}: saved {saved['job']} jobs and {saved['answer']} answers; the old file is {old.name}"
    )


def check_executor(name: str, address: str | None) -> None:
    """Refuse an executor that is unknown, or an address that it has no use for."""
    if name not in EXECUTORS:
        hint = did_you_mean(name, EXECUTORS) or f"; there are {', '.join(EXECUTORS)}"
        raise InstanceError(f"unknown executor {name!r}{hint}", "--executor")
    if address is not None and name != "ray":
        raise InstanceError("needs --executor ray", "--address")


def make_executor(name: str, workers: int | None, address: str | None) -> Executor:
    """Start the workers."""
    if name == "ray":
        from planner.batch.ray_executor import RayExecutor

        return RayExecutor(workers, address)
    return LocalExecutor(workers or cores())


def _say_refused(jobs: Sequence[Job]) -> None:
    """Name the entries that gave no problem; the store keeps their messages as well."""
    refused = [job for job in jobs if job.refused is not None]
    for job in refused[:REFUSED_SHOWN]:
        screen.note(f"left out: {job.refused}")
    if len(refused) > REFUSED_SHOWN:
        screen.note(f"left out: {len(refused) - REFUSED_SHOWN} more jobs")
