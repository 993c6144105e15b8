"""Answer one question in this process: from the text of a problem to an answer ready to be kept.

Runs in the workers of every executor, so that a job's answer does not depend on where it runs.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from planner import api
from planner.batch.answer import Answer, failure
from planner.batch.ask import Ask, answered
from planner.batch.executor import Task
from planner.batch.job_spec import Limits
from planner.batch.pack import packed
from planner.data import load
from planner.data.options import Options
from planner.data.problem import Problem, ProblemFile
from planner.data.result import Result
from planner.errors import InstanceError, PlannerError
from planner.garbage import collect_rarely
from planner.report import words
from planner.search import shared
from planner.units import GIB

_MEMORY = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
"""On Linux what the process has written to or may write to; mapped libraries do not count."""


def prepare() -> None:
    """Load what every job needs in a worker's process, and set up what jobs take over from earlier ones.

    Called before the time of its first job begins; a second call changes nothing.
    """
    import planner.search.driver
    import planner.simulate.evaluate  # noqa: F401

    if shared.current() is None:
        collect_rarely()
        shared.share(shared.Shared())


def solve(task: Task) -> Answer:
    """Answer a job within its limits.

    Whatever is wrong with the question, or goes beyond a limit, is an answer too; a bug of ours is none
    and ends the worker.
    """
    started_s = time.monotonic()
    key, limits = task.key, task.limits
    more: dict[str, Any] = {}
    try:
        with _memory_limit(limits.memory_gib):
            problem = _problem(task.problem_text, limits)
            if task.ask_text is None:
                result = api.plan(problem)
            else:
                result, more = answered(problem, Ask.model_validate_json(task.ask_text))
    except InstanceError as refusal:
        return failure(key, "input", str(refusal))
    except PlannerError as fault:
        return failure(key, "fault", str(fault), seconds=time.monotonic() - started_s)
    except MemoryError:
        seconds = time.monotonic() - started_s
        limit = "this machine has" if limits.memory_gib is None else f"its {limits.memory_gib:g} GiB"
        return failure(key, "memory", f"needs more memory than {limit}", seconds=seconds)
    return Answer(key, None, facts_of(result) | more, packed(without_problem(result).model_dump_json()))


def _problem(text: str, limits: Limits) -> Problem:
    problem = load.resolve_problem(ProblemFile.model_validate_json(text), "")
    options: Options = problem.options.model_copy(update={"time_limit_s": limits.time_limit_s, "workers": 1})
    return problem.model_copy(update={"options": options})


@contextmanager
def _memory_limit(memory_gib: float | None) -> Iterator[None]:
    """Let allocations beyond the limit fail; the worker itself, some 0.2 GiB, counts as well."""
    soft, hard = resource.getrlimit(_MEMORY)
    if memory_gib is not None:
        # What earlier jobs have left for later ones is not this job's.
        kept = shared.current()
        wanted = int(memory_gib * GIB) + (kept.num_bytes if kept else 0)
        resource.setrlimit(_MEMORY, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(_MEMORY, (soft, hard))


def without_problem(result: Result) -> Result:
    """The same result without the problem inside its plans: the store has it already."""
    if result.plan is None:
        return result
    others = tuple(
        other.model_copy(update={"plan": other.plan.model_copy(update={"problem": None})})
        for other in result.runners_up
    )
    best = result.plan.model_copy(update={"problem": None})
    return result.model_copy(update={"plan": best, "runners_up": others})


def facts_of(result: Result) -> dict[str, Any]:
    """What a list of results shows of an answer."""
    facts: dict[str, Any] = {
        "termination": result.termination,
        "interrupted": result.interrupted,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "seconds": result.seconds,
        "version": result.version,
        "message": result.reason,
    }
    if result.plan is not None and result.evaluation is not None:
        facts |= {
            "step_s": result.evaluation.step_s,
            "tokens_per_s": result.evaluation.tokens_per_s,
            "mfu": result.evaluation.mfu,
            "error_band": result.evaluation.error_band,
            "chips_used": result.plan.world_size,
            "peak_memory_gib": max(stage.peak_memory_gib for stage in result.evaluation.stages),
            "plan": plan_in_words(result),
        }
    # JSON has no infinity; a bound that says nothing is none.
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}


def plan_in_words(result: Result) -> str:
    """Degrees, micro-batch, chips and layers of the stages: `tp 4, dp 8, pp 4; micro-batch 1; ...`."""
    plan = result.plan
    assert plan is not None
    parts = [
        words.degrees_of(plan),
        f"micro-batch {plan.microbatch_size}",
        words.chip_runs(plan),
        f"layers {words.layer_runs(plan)}",
        f"recompute {words.recompute_runs(plan)}",
    ]
    return "; ".join(parts)
