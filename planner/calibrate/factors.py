"""One factor a chip from steps that were measured: computation, measured over predicted.

A prediction is off by much the same factor for one chip and one software stack: clocks, cooling, versions
of kernels. One measured step finds it. Each run of one chip asks for the factor with which its prediction is
its measured time; a chip's factor is the median of these. Chips that ran in mixed runs alone share one
factor in each of them, beside those that are known. The factor scales computation and launches, as
`SoftwareStack.time_factor` says, and no communication: a step that is slow for its links keeps its error, and
shows it in the table of what is left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from planner.calibrate.convert import Candidate
from planner.calibrate.predictions import predict_runs, with_time_factors
from planner.errors import InstanceError
from planner.units import format_seconds

LEAST_FACTOR, MOST_FACTOR = 0.25, 8.0
"""Factors beyond which something else is wrong than the chip's pace: another unit, plan or link (guess)."""
REL_TOL = 1e-9
"""How near a prediction comes to its measured time."""


@dataclass(frozen=True)
class MeasuredStep:
    """A training step that was timed."""

    label: str
    """What messages and tables call it."""
    candidate: Candidate
    """What ran."""
    measured_s: float
    """Time of the step [s]."""


@dataclass(frozen=True)
class ChipFactor:
    """What the steps say of one chip."""

    chip: str
    """Id of the chip."""
    factor: float
    """Measured over predicted computation time: the median of the runs."""
    num_runs: int
    """Runs that it rests on."""
    least: float
    """Least factor of one run."""
    most: float
    """Most of one run."""
    is_shared: bool
    """Whether it comes from mixed runs, in which it cannot be told from that of other chips."""


@dataclass(frozen=True)
class Compared:
    """A step beside its predictions [s]."""

    label: str
    """What the step is called."""
    measured_s: float
    """As it was timed."""
    before_s: float
    """Predicted with no factor."""
    after_s: float
    """Predicted with the factors of all chips."""


@dataclass(frozen=True)
class Calibration:
    """Factors, and what they leave."""

    chips: tuple[ChipFactor, ...]
    """In order of the chips' ids."""
    steps: tuple[Compared, ...]
    """In the order given."""
    unexplained: tuple[str, ...]
    """Steps that no factor explains, each in a sentence; they count for no chip."""

    @property
    def factors(self) -> dict[str, float]:
        """Factor of each chip, as a stack holds them."""
        return {found.chip: found.factor for found in self.chips}


def calibrate(steps: Sequence[MeasuredStep]) -> Calibration:
    """Find the factor of every chip that the steps ran on.

    Factors that the problems' stacks hold already are left out, so that what comes out stands alone.

    Raises
    ------
    InstanceError
        For no step at all, and for a chip of which no step is explained by a factor within `LEAST_FACTOR`
        and `MOST_FACTOR`.
    """
    if not steps:
        raise InstanceError("no measured step; give PLAN.yaml=SECONDS or a file of runs", "command line")
    plain = [replace(step, candidate=_without_factors(step.candidate)) for step in steps]
    found: dict[str, ChipFactor] = {}
    unexplained: dict[str, str] = {}
    for is_shared in (False, True):
        wanted: dict[str, list[float]] = defaultdict(list)
        for step in plain:
            chips = set(step.candidate.problem.chips)
            unknown = sorted(chips - set(found))
            if not unknown or (len(chips) > 1 and not is_shared):
                continue
            try:
                factor = _factor_of(step, unknown, {chip: found[chip].factor for chip in chips & set(found)})
            except InstanceError as error:
                unexplained.setdefault(step.label, str(error))
                continue
            for chip in unknown:
                wanted[chip].append(factor)
        for chip, factors in wanted.items():
            of_chip = median(factors), len(factors), min(factors), max(factors)
            found[chip] = ChipFactor(chip, *of_chip, is_shared)
    for step in plain:
        if set(step.candidate.problem.chips) - set(found):
            raise InstanceError(unexplained[step.label].removeprefix(f"{step.label}: "), step.label)
    factors_of = {chip: found[chip].factor for chip in found}
    return Calibration(
        chips=tuple(found[chip] for chip in sorted(found)),
        steps=tuple(
            Compared(step.label, step.measured_s, _predicted_s(step, {}), _predicted_s(step, factors_of))
            for step in plain
        ),
        unexplained=tuple(unexplained.values()),
    )


def _without_factors(candidate: Candidate) -> Candidate:
    problem = candidate.problem
    stack = problem.stack.model_copy(update={"time_factor": {}})
    return replace(candidate, problem=problem.model_copy(update={"stack": stack}))


def _predicted_s(step: MeasuredStep, factors: dict[str, float]) -> float:
    (prediction,) = predict_runs([with_time_factors(step.candidate, factors)], [None])
    return prediction.step_s


def _factor_of(step: MeasuredStep, unknown: Sequence[str], known: dict[str, float]) -> float:
    """The factor of all unknown chips with which the step is predicted as it was measured."""

    def too_long_by_s(factor: float) -> float:
        return _predicted_s(step, known | dict.fromkeys(unknown, factor)) - step.measured_s

    low_s, high_s = too_long_by_s(LEAST_FACTOR), too_long_by_s(MOST_FACTOR)
    if low_s > 0 or high_s < 0:
        raise InstanceError(_unexplained(step, unknown, low_s, high_s), step.label)
    return _root(too_long_by_s, (LEAST_FACTOR, low_s), (MOST_FACTOR, high_s), REL_TOL * step.measured_s)


def _unexplained(step: MeasuredStep, unknown: Sequence[str], low_s: float, high_s: float) -> str:
    chips, measured = " and ".join(unknown), format_seconds(step.measured_s)
    if low_s > 0:
        how, predicted_s = f"computed {1 / LEAST_FACTOR:g} times as fast", step.measured_s + low_s
    else:
        how, predicted_s = f"took {MOST_FACTOR:g} times as long to compute", step.measured_s + high_s
    only = "" if low_s > 0 else "only "
    return (
        f"measured {measured}, but {only}{format_seconds(predicted_s)} are predicted even if {chips} {how}; "
        "check the unit, the plan and the links"
    )


Point = tuple[float, float]
"""An argument and the value there."""


def _root(value_at: Callable[[float], float], low: Point, high: Point, tolerance: float) -> float:
    """Where a function that does not fall crosses zero: regula falsi, halving what stays (Illinois)."""
    last_side = 0
    (a, at_a), (b, at_b) = low, high
    for _ in range(200):
        if at_a >= -tolerance:
            return a
        if at_b <= tolerance:
            return b
        middle = (a * at_b - b * at_a) / (at_b - at_a)
        value = value_at(middle)
        if abs(value) <= tolerance:
            return middle
        if value < 0:
            a, at_a, at_b = middle, value, at_b / 2 if last_side < 0 else at_b
            last_side = -1
        else:
            b, at_b, at_a = middle, value, at_a / 2 if last_side > 0 else at_a
            last_side = 1
    return (a + b) / 2
