"""How far predictions are from measured runs, by suite and by kind of run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate.anchors import Anchor, Anchorable, leave_one_out
from planner.calibrate.convert import Candidate, convert, layer_family, precision_of
from planner.calibrate.filters import matches, parse_conditions
from planner.calibrate.patterns import SkipRun
from planner.calibrate.predictions import Prediction, predict_runs, with_time_factors
from planner.calibrate.ranking import ranking
from planner.calibrate.runs import Run, read_runs
from planner.calibrate.stacks import family, memory_kind, release_year
from planner.data.chip import HALF_PRECISIONS
from planner.data.load import load_chip
from planner.data.nearest import did_you_mean
from planner.errors import InstanceError

ANCHOR_MODES = ("none", "leave-one-out")

LAUNCH_BOUND = 0.1
"""Share of a step spent waiting for the host from which a run counts as bound by launches (guess)."""


@dataclass(frozen=True)
class Scored:
    """A run with what became of it."""

    run: Run
    candidate: Candidate | None = None
    prediction: Prediction | None = None
    anchors: tuple[Anchor | None, ...] = ()
    skipped: str | None = None

    @property
    def is_anchored(self) -> bool:
        """Whether every chip of the run has a factor."""
        return bool(self.anchors) and all(anchor is not None for anchor in self.anchors)


def score(
    path: str | Path,
    *,
    suite: str | None = None,
    where: dict[str, str] | None = None,
    anchor: str | None = "none",
    rows: bool = False,
) -> dict[str, Any]:
    """Score predictions against a file of measured runs.

    Parameters
    ----------
    path
        One JSON object a line.
    suite
        Only runs of this source.
    where
        Only runs whose fields have these values, such as `{"precision": "bf16"}`.
    anchor
        `none`, or `leave-one-out`, which scales each prediction by the factor of other runs on the
        same chip and software; they are taken from the whole file, whatever is filtered.
    rows
        Whether to list every run.

    Raises
    ------
    InstanceError
        Where the file holds no runs, a line is malformed, or a filter names nothing known.
    """
    anchored = _wants_anchors(anchor)
    runs = read_runs(path)
    sources = tuple(dict.fromkeys(run.source for run in runs))
    if suite is not None and suite not in sources:
        raise InstanceError(f"no run is of suite {suite!r}{did_you_mean(suite, sources)}", str(path))
    conditions = parse_conditions(where or {})
    with_low = "quality" in conditions
    selected = [(suite is None or run.source == suite) and matches(run, conditions) for run in runs]
    wanted = [keep or anchored for keep in selected]
    predicted = _predict([run for run, keep in zip(runs, wanted, strict=True) if keep], with_low)
    scored = _anchored(predicted) if anchored else predicted
    picked = _picked(selected, wanted)
    kept = [s for s, keep in zip(scored, picked, strict=True) if keep]
    return {
        "suites": _summaries(kept, lambda s: s.run.source),
        "groups": _summaries(kept, _group),
        # Factors differ from layout to layout of a group, so that they would only blur its order.
        "ranking": ranking(
            (s.run, s.prediction.step_s)
            for s, keep in zip(predicted, picked, strict=True)
            if keep and s.prediction and s.run.measured.step_s
        ),
        "rows": [_row(s) for s in kept] if rows else [],
    }


def _wants_anchors(anchor: str | None) -> bool:
    """Whether predictions are to be anchored; refuses an unknown word."""
    if anchor is not None and anchor not in ANCHOR_MODES:
        raise InstanceError(
            f"{anchor!r} is no way to anchor; there are {', '.join(ANCHOR_MODES)}", "--anchor"
        )
    return anchor == "leave-one-out"


def _picked(selected: Sequence[bool], wanted: Sequence[bool]) -> list[bool]:
    """Of the wanted runs, which are selected."""
    return [keep for keep, want in zip(selected, wanted, strict=True) if want]


def _predict(runs: Sequence[Run], with_low: bool) -> list[Scored]:
    """Convert and predict runs; quality low is left out unless asked for."""
    converted = [_convert(run, with_low) for run in runs]
    possible = [s for s in converted if s.candidate is not None]
    predictions = predict_runs(
        [s.candidate for s in possible if s.candidate is not None],
        [memory_kind(s.run) for s in possible],
    )
    by_id = {id(s): p for s, p in zip(possible, predictions, strict=True)}
    return [replace(s, prediction=by_id.get(id(s))) for s in converted]


def _convert(run: Run, with_low: bool) -> Scored:
    if run.quality == "low" and not with_low:
        return Scored(run, skipped="quality low")
    try:
        return Scored(run, candidate=convert(run))
    except SkipRun as skip:
        return Scored(run, skipped=skip.reason)


def _anchored(scored: list[Scored]) -> list[Scored]:
    """Predictions scaled by the factors of other runs."""
    usable = [s for s in scored if s.prediction is not None and s.run.measured.step_s is not None]
    anchors = leave_one_out([_anchorable(s) for s in usable])
    by_id = {id(s): a for s, a in zip(usable, anchors, strict=True)}
    return [_scale(s, by_id.get(id(s), ())) for s in scored]


def _anchorable(scored: Scored) -> Anchorable:
    run, candidate, prediction = scored.run, scored.candidate, scored.prediction
    assert candidate is not None and prediction is not None and run.measured.step_s is not None
    chips = tuple(candidate.problem.chips)
    plan, model = run.plan, run.model
    layout = (
        (model.num_layers, model.hidden_size, model.ffn_hidden_size, model.num_attention_heads, model.moe),
        (plan.tensor_parallel, plan.pipeline_parallel, plan.context_parallel or 1, plan.expert_parallel or 1),
    )
    return Anchorable(
        chips=chips,
        vendors=tuple(load_chip(chip).vendor for chip in chips),
        stack=family(run),
        layout=layout,
        ratio=run.measured.step_s / prediction.step_s,
        kind=layer_family(run),
        place=_place(candidate, run.software),
        launch_bound=prediction.breakdown_s.get("host", 0.0) > LAUNCH_BOUND * prediction.step_s,
    )


def _place(candidate: Candidate, software: str) -> tuple[float, ...]:
    """Coordinates by which runs are alike: half as far apart for twice the tokens as for twice the width.

    The tensor-parallel degree counts once more than the others, as it changes the shapes of products.
    Releases a year apart are as far from each other as twice the width: each changes kernels and overlap.
    """
    plan, workload = candidate.plans[0], candidate.problem.workload
    degree = plan.tensor_parallel * plan.pipeline_parallel * plan.context_parallel
    return (
        math.log(candidate.problem.model.hidden_size),
        0.5 * math.log(plan.microbatch_size * workload.seq_length),
        0.5 * math.log(degree),
        0.5 * math.log(plan.tensor_parallel),
        0.3 * (workload.precision in HALF_PRECISIONS),
        0.3 * (plan.stages[0].recompute == "full"),
        math.log(2) * release_year(software),
    )


def _scale(scored: Scored, anchors: tuple[Anchor | None, ...]) -> Scored:
    """Scale a uniform run's step as a whole, a mixed run's computation chip by chip."""
    if not anchors or scored.prediction is None or scored.candidate is None:
        return scored
    if len(anchors) == 1:
        factor = anchors[0].factor if anchors[0] is not None else 1.0
        prediction = replace(scored.prediction, step_s=scored.prediction.step_s * factor)
        return replace(scored, prediction=prediction, anchors=anchors)
    factors = {
        chip: anchor.factor
        for chip, anchor in zip(scored.candidate.problem.chips, anchors, strict=True)
        if anchor is not None
    }
    (prediction,) = predict_runs([with_time_factors(scored.candidate, factors)], [memory_kind(scored.run)])
    return replace(scored, prediction=prediction, anchors=anchors)


def _group(scored: Scored) -> str:
    run = scored.run
    precision = scored.candidate.problem.workload.precision if scored.candidate else _stated_precision(run)
    return f"{run.source}/{precision}/{layer_family(run)}"


def _stated_precision(run: Run) -> str:
    """Precision of a run that is not scored, as far as it can be known."""
    try:
        return precision_of(run, [load_chip(group.chip) for group in run.cluster.groups])
    except (SkipRun, InstanceError):
        return run.workload.precision or "unknown"


def _summaries(scored: Sequence[Scored], key: Any) -> dict[str, Any]:
    """Summary of every group, in order of first occurrence."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for s in scored:
        groups[key(s)].append(s)
    return {name: _summary(members) for name, members in groups.items()}


def _summary(scored: Sequence[Scored]) -> dict[str, Any]:
    skipped = Counter(s.skipped for s in scored if s.skipped is not None)
    return {
        "skipped": dict(sorted(skipped.items())),
        "unanchored": sum(s.skipped is None and not s.is_anchored for s in scored),
        "step": _errors(
            [
                (s.run.id, s.prediction.step_s / s.run.measured.step_s - 1)
                for s in scored
                if s.prediction and s.run.measured.step_s
            ]
        ),
        "memory": _errors(
            [
                (s.run.id, s.prediction.memory_gib / s.run.measured.peak_memory_gib - 1)
                for s in scored
                if s.prediction and s.run.measured.peak_memory_gib
            ]
        ),
    }


def _errors(errors: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Mean absolute error, bias, 90th percentile and the worst run of relative errors."""
    if not errors:
        return {"n": 0, "mape": None, "bias": None, "p90": None, "worst_id": None}
    values = np.array([error for _, error in errors])
    absolute = np.abs(values)
    return {
        "n": len(errors),
        "mape": float(absolute.mean()),
        "bias": float(values.mean()),
        "p90": float(np.quantile(absolute, 0.9)),
        "worst_id": errors[int(absolute.argmax())][0],
    }


def _row(scored: Scored) -> dict[str, Any]:
    run, prediction = scored.run, scored.prediction
    factors = [anchor.factor for anchor in scored.anchors if anchor is not None]
    return {
        "id": run.id,
        "source": run.source,
        "predicted_step_s": prediction.step_s if prediction and run.measured.step_s else None,
        "measured_step_s": run.measured.step_s,
        "predicted_memory_gib": prediction.memory_gib
        if prediction and run.measured.peak_memory_gib
        else None,
        "measured_memory_gib": run.measured.peak_memory_gib,
        "anchor": _anchor_value(scored, factors),
        "anchor_basis": [
            None if anchor is None else f"{anchor.basis}, {anchor.num_runs} runs" for anchor in scored.anchors
        ],
        "skipped": scored.skipped,
        "stack": scored.candidate.stack if scored.candidate else None,
        "assumptions": _assumptions(scored),
    }


def _anchor_value(scored: Scored, factors: list[float]) -> float | dict[str, float] | None:
    """The factor; of a mixed run, each chip's."""
    if not factors:
        return None
    if len(scored.anchors) == 1 or scored.candidate is None:
        return factors[0]
    chips = scored.candidate.problem.chips
    return {c: a.factor for c, a in zip(chips, scored.anchors, strict=True) if a is not None}


def _assumptions(scored: Scored) -> list[str]:
    if scored.candidate is None or scored.prediction is None:
        return []
    kind, stated = memory_kind(scored.run), scored.run.memory_kind
    read = [] if kind == stated else [f"measured memory is what is {kind}, not {stated} as the run says"]
    return [*scored.candidate.assumptions, *scored.prediction.assumptions, *read]
