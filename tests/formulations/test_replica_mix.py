"""Mixes of pipelines by hand, against enumeration, and by both forms."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType

import numpy as np
import pulp
import pytest

from formulations import replica_mix, replica_mix_cp, solvers
from formulations.options import SolveOptions
from formulations.replica_mix import ReplicaMixData, Template
from planner.errors import SolverError

OPTIONS = SolveOptions(gap=0.0)


def affine(base: float, each: float, most: int) -> tuple[float, ...]:
    return tuple(base + each * (m + 1) for m in range(most))


def test_a_slow_pipeline_takes_what_it_finishes_in_time() -> None:
    """10 sequences, 1 ms and 2 ms each: 7 + 3 are done after 7 ms; 6 + 4 would take 8, 8 + 2 as well."""
    data = ReplicaMixData(
        (Template((1, 0), 1, affine(0, 1, 10)), Template((0, 1), 1, affine(0, 2, 10))), (1, 1), 10
    )
    for form in (replica_mix, replica_mix_cp):
        found = form.solve(data, OPTIONS)
        assert found is not None and found.deadline_ms == 7
        assert found.copies == (1, 1) and found.microbatches == (7, 3)


def test_a_mix_that_is_done_too_late_is_none() -> None:
    """The same: done after 7 ms, which is before 7.5 ms, and not before 7 ms."""
    templates = Template((1, 0), 1, affine(0, 1, 10)), Template((0, 1), 1, affine(0, 2, 10))
    for form in (replica_mix, replica_mix_cp):
        found = form.solve(ReplicaMixData(templates, (1, 1), 10, latest_ms=7.5), OPTIONS)
        assert found is not None and found.deadline_ms == 7
        assert form.solve(ReplicaMixData(templates, (1, 1), 10, latest_ms=7), OPTIONS) is None


def test_the_batch_is_kept_where_micro_batches_do_not_divide_it() -> None:
    """7 sequences in twos and threes: 2 x 2 + 3; neither kind alone makes seven."""
    data = ReplicaMixData((Template((1,), 2, affine(0, 1, 9)), Template((1,), 3, affine(0, 1, 9))), (2,), 7)
    found = replica_mix.solve(data, OPTIONS)
    assert found is not None and found.microbatches == (2, 1) and found.deadline_ms == 2
    alone = ReplicaMixData(data.templates[:1], (2,), 7)
    assert replica_mix.solve(alone, OPTIONS) is None


@pytest.mark.slow
@pytest.mark.parametrize("form", [replica_mix, replica_mix_cp])
def test_a_wide_gap_puts_no_deadline_out_of_reach(form: ModuleType) -> None:
    # A program that stops within the gap leaves sequences undone, which once said that none can do more.
    rng = np.random.default_rng(7)
    for _ in range(6):
        templates = [
            Template(
                tuple(rng.integers(1, 3, 2).tolist()), int(rng.integers(1, 4)), affine(*rng.random(2), 40)
            )
            for _ in range(5)
        ]
        data = ReplicaMixData(tuple(templates), (9, 7), 60)
        exact, wide = form.solve(data, OPTIONS), form.solve(data, SolveOptions(gap=0.4))
        assert exact is not None and wide is not None and wide.deadline_ms == exact.deadline_ms


def test_a_program_that_the_limit_cuts_counts_as_no_mix_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first deadline is met; the earlier ones are cut: the mix stays that of the first."""
    data = ReplicaMixData((Template((1,), 1, affine(0, 1, 9)),), (3,), 9)
    solve, calls = solvers.solve, []

    def cut(model: pulp.LpProblem, options: SolveOptions) -> solvers.Solution:
        calls.append(options.time_limit_s)
        found = solve(model, replace(options, time_limit_s=None))
        return found if len(calls) == 1 else replace(found, status="no_solution_found")

    monkeypatch.setattr(solvers, "solve", cut)
    assert replica_mix.solve(data, replace(OPTIONS, time_limit_s=1.0)) is not None
    calls.clear()
    with pytest.raises(SolverError, match="not proven"):
        replica_mix.solve(data, OPTIONS)


def test_chips_are_lent_once() -> None:
    """Two chips: one copy of the large template (3 ms) or two of the small (2 x 2 ms = 2 ms for two)."""
    data = ReplicaMixData((Template((2,), 1, affine(0, 1.5, 4)), Template((1,), 1, affine(0, 2, 4))), (2,), 2)
    found = replica_mix.solve(data, OPTIONS)
    assert found is not None and found.copies == (0, 2) and found.deadline_ms == 2


def test_few_pipelines_run_where_each_has_to_exchange_with_all() -> None:
    """Two chips: two small pipelines end after 4 ms; alone the larger takes 4.4 ms, a small one 8."""
    large, small = Template((2,), 1, affine(0, 1.1, 8)), Template((1,), 1, affine(0, 2, 8))
    data = ReplicaMixData((large, small), (2,), 4)
    for form in (replica_mix, replica_mix_cp):
        free, one = form.solve(data, OPTIONS), form.solve(replace(data, most_pipelines=1), OPTIONS)
        assert free is not None and free.deadline_ms == 4 and free.copies == (0, 2)
        assert one is not None and one.copies == (1, 0) and one.deadline_ms == large.times_ms[3]


def enumerated(data: ReplicaMixData) -> float | None:
    """Least time over all copies and all shares, each copy on its own."""
    best = None
    ranges = [range(replica_mix.most_copies(data, template) + 1) for template in data.templates]
    for copies in itertools.product(*ranges):
        taken = [
            sum(count * template.chips[c] for count, template in zip(copies, data.templates, strict=True))
            for c in range(len(data.available))
        ]
        if any(t > have for t, have in zip(taken, data.available, strict=True)):
            continue
        running = [
            template for count, template in zip(copies, data.templates, strict=True) for _ in range(count)
        ]
        for shares in itertools.product(*[range(len(template.times_ms) + 1) for template in running]):
            if sum(m * t.sequences for m, t in zip(shares, running, strict=True)) != data.sequences:
                continue
            done = max(t.times_ms[m - 1] if m else 0.0 for m, t in zip(shares, running, strict=True))
            best = done if best is None else min(best, done)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_both_forms_equal_enumeration(seed: int) -> None:
    random = np.random.default_rng(seed)
    templates = []
    for _ in range(3):
        chips = tuple(int(n) for n in random.integers(0, 3, 2))
        times = np.cumsum(random.uniform(0.5, 3, int(random.integers(2, 5))))
        templates.append(
            Template(chips if sum(chips) else (1, 0), int(random.integers(1, 4)), tuple(times.tolist()))
        )
    data = ReplicaMixData(tuple(templates), (2, 3), int(random.integers(2, 9)))
    best = enumerated(data)
    for form in (replica_mix, replica_mix_cp):
        found = form.solve(data, OPTIONS)
        assert (None if found is None else found.deadline_ms) == best, form.__name__
