"""What a batch costs beside its searches: store and scheduler a job, start of a resume, two workers over one.

    python benchmarks/batch_speed.py             all three, a minute or two
    python benchmarks/batch_speed.py --jobs 200  size of the first two [default: 1000]

The first two measure with answers that are made up at once, so that nothing but our own work is timed.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from planner.batch.answer import Answer  # noqa: E402
from planner.batch.executor import Task  # noqa: E402
from planner.batch.jobs_file import Job, read_jobs  # noqa: E402
from planner.batch.local_executor import LocalExecutor  # noqa: E402
from planner.batch.run import Batch  # noqa: E402
from planner.batch.store import Store  # noqa: E402
from planner.batch.worker import ONE_THREAD  # noqa: E402

RESULT_BYTES = 4000
"""Size of a compressed result of a small problem; what the store really holds is near it."""
SEARCHES = 150
"""Jobs of the third measurement, on two classes of nodes: none takes so long that it ends alone."""


def jobs_of(folder: Path, number: int, problem: str = "llama3-8b-h100-8") -> tuple[Job, ...]:
    """A grid of small problems that differ in their batch."""
    batches = ", ".join(str(8 * (i + 1)) for i in range(number))
    path = folder / "jobs.yaml"
    path.write_text(
        f"schema: hetplan/jobs/v1\ngrid: {{problem: {problem}, gap: 0.03, global_batch_size: [{batches}]}}\n"
    )
    return read_jobs(path)


class Instant:
    """An executor whose workers answer at once."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []

    @property
    def room(self) -> int:
        return 2 - len(self._tasks)

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def wait(self, timeout_s: float) -> list[Answer]:
        facts = {"termination": "optimal", "step_s": 1.0, "bound_s": 1.0, "gap": 0.0, "plan": "tp 1, dp 8"}
        return [Answer(self._tasks.pop(0).key, None, facts, bytes(range(250)) * (RESULT_BYTES // 250))]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Spent:
    """Time of a call [s]: on the wall clock, and on the processor, which a busy machine does not change."""

    wall_s: float
    cpu_s: float


def timed(work: Callable[[], object]) -> Spent:
    """Time of a call in this process."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def overhead(folder: Path, number: int) -> None:
    """Store and scheduler, and a second run that finds everything answered but the last job."""
    jobs = jobs_of(folder, number)
    path = folder / "plans.db"

    def first() -> None:
        with closing(Store(path)) as store:
            Batch(jobs[:-1], store).run(Instant())

    def resume() -> None:
        with closing(Store(path)) as store:
            store.drop_damaged()
            Batch(jobs_of(folder, number), store)

    spent, again = timed(first), timed(resume)
    per_job, cpu = 1e3 * spent.wall_s / number, 1e3 * spent.cpu_s / number
    print(f"store and scheduler  {per_job:6.2f} ms a job ({cpu:.2f} on the processor), {number} jobs")
    print(f"start of a resume    {again.wall_s:6.2f} s ({again.cpu_s:.2f} on the processor), {number} jobs")
    print(f"store                {path.stat().st_size / number / 1024:6.2f} KiB a job")


def workers(folder: Path) -> None:
    """The same searches with one worker and with two, started beforehand; and what the machine allows."""
    jobs = jobs_of(folder, SEARCHES, "llama3-8b-h100-a100-16")
    wall_s = {}
    for number in (1, 2):
        before_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        with closing(Store(folder / f"{number}.db")) as store, closing(LocalExecutor(number)) as executor:
            time.sleep(4.0)  # imports of the workers
            batch = Batch(jobs, store)
            wall_s[number] = timed(lambda batch=batch, executor=executor: batch.run(executor)).wall_s
        cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before_s
        name = f"{number} worker{'s' if number > 1 else ''}"
        print(f"{name:20} {wall_s[number]:6.2f} s ({cpu_s:.2f} on the processor), {SEARCHES} searches")
    print(
        f"two over one         {wall_s[1] / wall_s[2]:6.2f} times; two loops without us {machine():.2f} times"
    )


LOOP = """
import time, numpy
data = numpy.random.default_rng(0).random((400, 80))
started = time.perf_counter()
for _ in range(6000):
    numpy.minimum(data * 1.5, data.sum(axis=1)[:, None]).max(axis=0).tolist()
print(time.perf_counter() - started)
"""
"""Work like ours on small arrays."""


def machine() -> float:
    """How much more two processes of fixed work get done at a time than one: what two workers can reach."""

    def seconds(number: int) -> float:
        loops = [
            subprocess.Popen(
                [sys.executable, "-c", LOOP], stdout=subprocess.PIPE, env={**os.environ, **ONE_THREAD}
            )
            for _ in range(number)
        ]
        return max(float(loop.communicate()[0]) for loop in loops)

    return 2 * seconds(1) / seconds(2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    number = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as folder:
        overhead(Path(folder), number)
        workers(Path(folder))


if __name__ == "__main__":
    main()
