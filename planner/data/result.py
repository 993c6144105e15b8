"""What came out: the referee's evaluation of a plan, and the result of a search."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.data.base import Data
from planner.data.plan import Plan

Termination = Literal["optimal", "feasible", "infeasible", "no_solution_found"]


class StageEvaluation(Data):
    """What the referee says of one stage."""

    forward_s: float
    """Forward pass of one micro-batch over all its chunks [s]."""
    backward_s: float
    """Backward pass of one micro-batch, recomputation included [s]."""
    send_s: float
    """Time of one activation to the next stage [s]; 0 for the last."""
    busy_s: float
    """Forward and backward work of the step [s]."""
    bubble_s: float
    """Idle time until the last stage has finished its backward passes [s]."""
    in_flight: float
    """Most micro-batches whose activations it holds at once, in whole micro-batches of all its layers."""
    memory_gib: dict[str, float]
    """Peak memory by term, adding up to the peak [GiB]."""
    peak_memory_gib: float
    """Reserved memory of the fullest chip of the stage, its context included [GiB]."""
    allocated_memory_gib: float | None = None
    """What the framework's allocator hands out of it at the peak [GiB]."""
    limit_gib: float
    """Memory that it may reserve [GiB]."""


class TimelineEvent(Data):
    """One piece of work of the simulated step."""

    stage: int
    """Pipeline stage."""
    chunk: int
    """Virtual stage of that rank."""
    microbatch: int
    """Micro-batch."""
    work: Literal["forward", "backward"]
    """Which pass."""
    start_s: float
    """When it begins [s]."""
    end_s: float
    """When it ends [s]."""


class Evaluation(Data):
    """Time and memory of a plan, and what is wrong with it."""

    step_s: float
    """Time of one training step [s]."""
    breakdown_s: dict[str, float]
    """Parts of the step, adding up to it [s]."""
    tokens_per_s: float
    """Tokens of the whole cluster per second."""
    mfu: float
    """Model FLOP of the step over the peak of the chips used."""
    error_band: float
    """Relative error that the prediction may have, as a fraction of the step time."""
    stages: tuple[StageEvaluation, ...]
    """Stage by stage."""
    violations: tuple[str, ...] = ()
    """Rules that the plan breaks; empty for a plan that may leave."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted: scaled chips, guessed links."""
    most_expert_imbalance: float | None = None
    """Largest `expert_imbalance` of the workload that the plan still fits; null where that has no part in it,
    and from `predict` of the Python API, which is short of time (`planner.simulate.uneven_experts`)."""
    timeline: tuple[TimelineEvent, ...] | None = None
    """Start and end of every piece of work, where asked for."""


class RunnerUp(Data):
    """A next-best plan with its evaluation."""

    plan: Plan
    """The decisions."""
    evaluation: Evaluation
    """What the referee says."""


class Result(Data):
    """Answer of a search: plan, its evaluation, and how far from the best it can be."""

    problem: str
    """Name of the problem."""
    plan: Plan | None
    """Best plan found; null where there is none."""
    evaluation: Evaluation | None
    """What the referee says of it."""
    bound_s: float | None
    """No plan of the target is faster than this [s]; null where unknown."""
    whole_bound_s: float | None = None
    """No plan with one virtual stage a pipeline rank is faster than this [s]; null where unknown."""
    gap: float | None
    """(step - bound) / step."""
    termination: Termination
    """How the search ended."""
    interrupted: bool = False
    """Whether a time limit or Ctrl-C cut it."""
    stopped: bool = False
    """Whether Ctrl-C did."""
    hurried: bool = False
    """Whether a time limit changed the search's course, cut or not; another run may find another plan."""
    reason: str | None = None
    """Why there is no plan, in a sentence."""
    seconds: float
    """Time of the search [s]."""
    solver: str
    """Solver used."""
    version: str
    """Version of Hetplan."""
    runners_up: tuple[RunnerUp, ...] = ()
    """Next-best plans."""
    statistics: dict[str, float] = Field(default_factory=dict)
    """Counts of the search: choices enumerated, closed by bound, opened; programs solved."""

    @classmethod
    def without_plan(
        cls, problem: str, termination: Termination, reason: str, solver: str, version: str = ""
    ) -> Result:
        """The answer where nothing was searched; `reason` says why, in a sentence."""
        return cls(
            problem=problem,
            plan=None,
            evaluation=None,
            bound_s=None,
            gap=None,
            termination=termination,
            reason=reason,
            seconds=0.0,
            solver=solver,
            version=version,
        )
