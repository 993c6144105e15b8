"""Jobs on a Ray cluster: the same answers, the same store; only who computes them differs.

The store stays with the process that started the batch: Ray tasks are handed a problem and give an
answer back, so that nothing is lost when a machine of the cluster goes. Ray's own retries are off; the
batch counts attempts itself.
"""

from __future__ import annotations

import logging
import platform
import signal
import time
from dataclasses import dataclass
from typing import Any

from planner.batch.answer import Answer, failure
from planner.batch.executor import Task
from planner.batch.revision import revision
from planner.batch.worker import ONE_THREAD
from planner.errors import InstanceError

QUEUED_PER_CORE = 2
"""Tasks handed to Ray for each core, so that no core waits for the next one."""
OTHER_PROGRAM = "{machine} runs another hetplan, or other solvers, than this machine; install the same there"


class RayExecutor:
    """Tasks of one core each on a Ray cluster.

    Parameters
    ----------
    num_workers
        Tasks at a time; all cores of the cluster where None.
    address
        Cluster to join; None starts one on this machine, which ends with the batch.

    Raises
    ------
    InstanceError
        Where Ray is not installed, or the cluster does not answer.
    """

    def __init__(self, num_workers: int | None, address: str | None) -> None:
        try:
            import ray
        except ImportError:
            raise InstanceError(
                "Ray is not installed; `pip install 'hetplan[cluster]'`", "--executor"
            ) from None
        self._ray: Any = ray
        try:
            ray.init(
                address=address,
                num_cpus=num_workers if address is None else None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": ONE_THREAD},
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InstanceError(f"Ray does not start: {str(error).splitlines()[0]}", "--address") from None
        cores = int(ray.cluster_resources().get("CPU", 1))
        self._most = QUEUED_PER_CORE * min(cores, num_workers or cores)
        self._remote = ray.remote(num_cpus=1, max_retries=0)(_solve)
        self._tasks: dict[Any, _Running] = {}

    @property
    def room(self) -> int:
        """How many more tasks may be under way."""
        return self._most - len(self._tasks)

    def submit(self, task: Task) -> None:
        """Hand a task to the cluster."""
        reference = self._remote.remote(task, revision())
        self._tasks[reference] = _Running(task)

    def wait(self, timeout_s: float) -> list[Answer]:
        """Answers that have come in; tasks past their time end their process themselves."""
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=timeout_s)
        return [self._answer(reference) for reference in ready]

    def _answer(self, reference: Any) -> Answer:
        running = self._tasks.pop(reference)
        task, limit_s = running.task, running.task.limits.kill_after_s
        try:
            answer: Answer = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return failure(task.key, "fault", f"our bug: {str(error).splitlines()[-1]}")
        except self._ray.exceptions.RayError as error:
            # No process lives as long before its alarm: one that died later may have been ended by it.
            if limit_s is not None and time.monotonic() - running.begun_s >= limit_s:
                return failure(task.key, "timeout", f"killed after {limit_s:g} s", seconds=limit_s)
            words = " ".join(str(error).split())[:200]
            return failure(task.key, "crash", f"the worker died: {words}", may_retry=True)
        return answer

    def close(self) -> None:
        """Cancel what is under way and leave the cluster."""
        for reference in self._tasks:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


@dataclass
class _Running:
    task: Task
    begun_s: float = 0.0

    def __post_init__(self) -> None:
        self.begun_s = time.monotonic()


def _solve(task: Task, wanted: str) -> Answer:
    """Answer a question on a machine of the cluster, which must run the program that asks."""
    from planner.batch.solving import prepare, solve

    prepare()  # Ray's processes live for many tasks as well
    if revision() != wanted:
        return failure(task.key, "fault", OTHER_PROGRAM.format(machine=platform.node()))
    # The kernel ends the process at its time, whatever it is at; how long the task had to wait for a
    # core of the cluster does not count.
    signal.setitimer(signal.ITIMER_REAL, task.limits.kill_after_s or 0.0)
    try:
        return solve(task)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
