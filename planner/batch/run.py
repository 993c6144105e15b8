"""Run the jobs of a batch: claim, hand out, keep the answer; nothing lost and nothing done twice."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.batch.answer import Answer, failure
from planner.batch.executor import Executor, Task
from planner.batch.job_spec import Limits
from planner.batch.jobs_file import Job
from planner.batch.store import Store
from planner.data import load

WAIT_S = 0.5
"""Longest wait between two looks at the clock [s]."""


@dataclass(frozen=True)
class Best:
    """The fastest step so far."""

    name: str
    step_s: float


@dataclass(frozen=True)
class BatchProgress:
    """State of a batch at one moment."""

    total: int
    """Jobs."""
    done: int
    failed: int
    running: int
    elsewhere: int
    """Being answered by another process on the same store."""
    left: int
    """Questions without an answer: jobs that ask the same count once, as in `solved_now`."""
    solved_now: int
    """Questions answered by this run."""
    elapsed_s: float
    best: Best | None

    @property
    def rate_per_s(self) -> float:
        """Answers of this run a second."""
        return self.solved_now / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def time_left_s(self) -> float | None:
        """Until the end at this rate [s]; None before the first answer."""
        return self.left / self.rate_per_s if self.solved_now else None


OnProgress = Callable[[BatchProgress], None]


class Batch:
    """One run over some jobs; `run` does it.

    Parameters
    ----------
    retry_failed
        Work again on what failed in an earlier run.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        store: Store,
        *,
        retry_failed: bool = False,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._store, self._on_progress = store, on_progress
        self._started_s = time.monotonic()
        self._questions = _questions(jobs)
        store.add_jobs(jobs)
        known = store.answered()
        self._answers: dict[str, Answer] = {}
        self._askers = Counter(job.key for job in jobs)
        self._done = self._failed = 0
        self._best: Best | None = None
        self._attempts: dict[str, int] = {}
        self._todo: deque[str] = deque()
        for key, job in _alike_together(self._questions).items():
            answer = known.get(key)
            failed_before = answer is not None and retry_failed and answer.cause is not None
            if answer is None or failed_before or _may_do_better(answer, job.limits):
                self._attempts[key] = 0 if answer is None else answer.attempts
                self._todo.append(key)
            else:
                self._keep(answer)
        self._seen = dict(self._attempts)
        self._retries_left = {key: job.limits.retries for key, job in self._questions.items()}
        self._running: set[str] = set()
        self._elsewhere: deque[str] = deque()
        self._solved_now = 0

    @property
    def progress(self) -> BatchProgress:
        """Where it stands."""
        return BatchProgress(
            total=self._askers.total(),
            done=self._done,
            failed=self._failed,
            running=len(self._running),
            elsewhere=len(self._elsewhere),
            left=len(self._questions) - len(self._answers),
            solved_now=self._solved_now,
            elapsed_s=time.monotonic() - self._started_s,
            best=self._best,
        )

    @property
    def is_over(self) -> bool:
        """Whether every question has an answer."""
        return len(self._answers) == len(self._questions)

    def run(self, executor: Executor) -> BatchProgress:
        """Answer everything that has no answer yet."""
        while not self.is_over:
            self._hand_out(executor)
            if self._running:
                answers = executor.wait(WAIT_S)
                # Workers that are free go on while their answers are flushed to disk.
                self._hand_out(executor)
                for answer in answers:
                    self._take(answer)
            elif self._elsewhere:
                time.sleep(WAIT_S)
            if self._on_progress is not None:
                self._on_progress(self.progress)
        return self.progress

    def _hand_out(self, executor: Executor) -> None:
        """Keep every worker busy; look now and then at what other runs had claimed."""
        if not self._todo and self._elsewhere:
            self._todo, self._elsewhere = self._elsewhere, deque()
            others = len(self._todo)
        else:
            others = -1
        while self._todo and executor.room > 0 and others != 0:
            others -= 1
            key = self._todo.popleft()
            job = self._questions[key]
            if not self._store.claim(key, self._seen[key]):
                self._set_aside(key)
            elif job.problem is None:
                self._running.add(key)
                self._take(failure(key, "input", job.refused or "refused"))
            else:
                text = load.problem_file(job.problem).model_dump_json()
                ask_text = None if job.ask is None else job.ask.model_dump_json()
                executor.submit(Task(key, text, job.limits, ask_text))
                self._running.add(key)

    def _set_aside(self, key: str) -> None:
        """A question that another run has answered meanwhile, or is at."""
        answer = self._store.answer_of(key)
        if answer is None or answer.attempts <= self._seen[key]:
            self._elsewhere.append(key)
        else:
            self._keep(answer)

    def _take(self, answer: Answer) -> None:
        """An answer has come in: try again, or keep it for good."""
        key = answer.key
        self._running.discard(key)
        self._attempts[key] += 1
        if answer.may_retry and self._retries_left[key] > 0:
            self._retries_left[key] -= 1
            self._todo.appendleft(key)
            return
        answer = replace(
            answer,
            attempts=self._attempts[key],
            facts={**answer.facts, **_limits_used(self._questions[key].limits)},
        )
        if self._store.finish(answer):
            self._solved_now += 1
        self._keep(answer)

    def _keep(self, answer: Answer) -> None:
        self._answers[answer.key] = answer
        if answer.cause is None:
            self._done += self._askers[answer.key]
        else:
            self._failed += self._askers[answer.key]
        step_s = answer.facts.get("step_s")
        if step_s is not None and (self._best is None or step_s < self._best.step_s):
            self._best = Best(self._questions[answer.key].name, step_s)


def _questions(jobs: Sequence[Job]) -> dict[str, Job]:
    """One job a question; where several ask the same, the one with the most generous limits."""
    questions: dict[str, Job] = {}
    for job in jobs:
        first = questions.get(job.key)
        if first is None or _more(job.limits.time_limit_s, first.limits.time_limit_s):
            questions[job.key] = job
    return questions


def _alike_together(questions: dict[str, Job]) -> dict[str, Job]:
    """The same questions, those about one model, cluster and sequence one after the other.

    A worker then finds the tables of the question before (`planner.search.shared`). Groups keep the order in
    which they first appear, and jobs their order inside a group.
    """
    groups: dict[object, dict[str, Job]] = {}
    for key, job in questions.items():
        problem, about = job.problem, None
        if problem is not None:
            workload = problem.workload
            about = (
                problem.model.id,
                problem.cluster.id,
                workload.seq_length,
                workload.precision,
                problem.target,
            )
        groups.setdefault(about, {})[key] = job
    return {key: job for group in groups.values() for key, job in group.items()}


def _more(limit: float | None, than: float | None) -> bool:
    """Whether a limit allows more than another; None is no limit."""
    return than is not None and (limit is None or limit > than)


def _may_do_better(answer: Answer, limits: Limits) -> bool:
    """Whether a limit cut an answer, and the job now allows more."""
    if answer.facts.get("interrupted"):
        return _more(limits.time_limit_s, answer.facts.get("time_limit_s"))
    if answer.cause == "timeout":
        return _more(limits.kill_after_s, answer.facts.get("kill_after_s"))
    if answer.cause == "memory":
        return _more(limits.memory_gib, answer.facts.get("memory_gib"))
    return False


def _limits_used(limits: Limits) -> dict[str, float | None]:
    return {
        "time_limit_s": limits.time_limit_s,
        "kill_after_s": limits.kill_after_s,
        "memory_gib": limits.memory_gib,
    }
