"""10,000 small questions of `batch_grid.yaml`: jobs a second, processor time a job, start of a resume.

    python benchmarks/batch_grid.py --store plans.db         all of them; killed or not, the same call goes on
    python benchmarks/batch_grid.py --every 50               every 50th run of ten neighbours, drawn evenly
    python benchmarks/batch_grid.py --every 50 --workers 1   on one worker

It makes the calls of `hetplan batch benchmarks/batch_grid.yaml --store plans.db`. A question counts as
answered where its plan is proven, where no plan exists, and where the search ended short of the gap; the
last are counted apart.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from planner.batch.jobs_file import Job, read_jobs  # noqa: E402
from planner.batch.local_executor import LocalExecutor  # noqa: E402
from planner.batch.rows import read_rows  # noqa: E402
from planner.batch.run import Batch, BatchProgress  # noqa: E402
from planner.batch.store import Store  # noqa: E402

JOBS = ROOT / "benchmarks" / "batch_grid.yaml"
SAY_EVERY_S = 30.0
"""Time between two lines about the progress [s]."""
NEIGHBOURS = 10
"""Questions in a row that differ in their batch alone: the last axis of the grid."""
SLOWEST = 8
"""Questions that are named at the end."""


class Sayer:
    """Says now and then how far it is."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def __call__(self, now: BatchProgress) -> None:
        if time.monotonic() - self._last_s >= SAY_EVERY_S:
            self._last_s = time.monotonic()
            print(f"  {now.done + now.failed} of {now.total}, {now.rate_per_s:.2f} a second", file=sys.stderr)


def drawn(jobs: Sequence[Job], every: int) -> list[Job]:
    """Every so many runs of neighbours, which share tables as in the whole grid.

    Moved on by one with each run, so that no axis is met at one value alone.
    """
    number = len(jobs) // NEIGHBOURS
    runs = sorted({(k * every + k) % number for k in range(number // every)})
    return [job for run in runs for job in jobs[run * NEIGHBOURS : (run + 1) * NEIGHBOURS]]


def processor_s() -> float:
    """Processor time of all workers that have ended [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(jobs: Sequence[Job], path: Path, workers: int) -> tuple[BatchProgress, float, float]:
    """Answer them; where it ended, and the processor time of the workers and of this process [s]."""
    own_s, others_s = time.process_time(), processor_s()
    with closing(Store(path)) as store, closing(LocalExecutor(workers)) as executor:
        end = Batch(jobs, store, on_progress=Sayer()).run(executor)
    return end, processor_s() - others_s, time.process_time() - own_s


def resume_s(every: int, path: Path) -> float:
    """Time from the start of the same call until it would hand out its first job [s]."""
    started_s = time.perf_counter()
    with closing(Store(path)) as store:
        store.drop_damaged()
        jobs = read_jobs(JOBS)
        Batch(jobs if every == 1 else drawn(jobs, every), store)
    return time.perf_counter() - started_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="draw every so many jobs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", type=Path, help="where answers are kept; a temporary file where absent")
    wishes = parser.parse_args()
    started_s = time.perf_counter()
    jobs = read_jobs(JOBS)
    reading_s = time.perf_counter() - started_s
    asked = jobs if wishes.every == 1 else drawn(jobs, wishes.every)
    with tempfile.TemporaryDirectory() as folder:
        path = wishes.store or Path(folder) / "plans.db"
        end, workers_s, own_s = run(asked, path, wishes.workers)
        again_s = resume_s(wishes.every, path)
        rows = read_rows(path)
        size_kib = path.stat().st_size / len(rows) / 1024
    solved = max(end.solved_now, 1)
    print(f"jobs                 {end.solved_now} of {len(jobs)} answered now, on {wishes.workers} workers")
    print(f"reading the file     {reading_s:.2f} s")
    print(f"time                 {end.elapsed_s:.1f} s, {end.rate_per_s:.2f} jobs a second")
    print(f"all {len(jobs)}            {end.elapsed_s / solved * len(jobs) / 60:.1f} min at this rate")
    print(f"processor            {workers_s / solved:.3f} s a job in the workers, imports included")
    print(f"store and scheduler  {1e3 * own_s / solved:.2f} ms of processor time a job")
    print(f"start of a resume    {again_s:.2f} s, the file read anew; store {size_kib:.1f} KiB a job")
    print(
        "ended as             " + ", ".join(f"{n} {word}" for word, n in Counter(map(ending, rows)).items())
    )
    for row in sorted(rows, key=lambda row: -(row["seconds"] or 0.0))[:SLOWEST]:
        print(f"  {row['seconds']:6.1f} s  {row['name']}: {row['plan'] or row['message']}"[:120])


def ending(row: dict[str, object]) -> str:
    """How a question ended."""
    return str(row["termination"] if row["status"] == "done" else row["cause"])


if __name__ == "__main__":
    main()
