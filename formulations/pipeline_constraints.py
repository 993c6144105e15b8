"""The rows of `pipeline_rows` as constraints of a program, all of them there from the start.

`joint`, `layer_partition` and the integer twins state them in their docstrings, groups (window), (partial),
(through) and (end), and add them here. Linear and integer programs write sums and comparisons alike; times
are in ms in the former, in whole ticks in the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Add = Callable[[Any, str], None]
"""Adds a constraint under a name."""


@dataclass(frozen=True)
class PipelineTimes:
    """Times of a pipeline in a program: numbers, variables or sums of them, each a list over the stages."""

    num_microbatches: int
    forward: Sequence[Any]
    """F[s]"""
    backward: Sequence[Any]
    """B[s]"""
    send: Sequence[Any]
    """c[s]; 0 behind the last stage."""
    wait: Sequence[Any]
    """w[s]"""
    after: Sequence[Any]
    """Z[s]: what a stage still does when it has ended, its reduction with the tail of that."""
    first: Sequence[Any]
    """A[s]: from the start of the first forward to the end of its backward."""
    last: Sequence[Any]
    """Y[s]: from the start of the last forward to the end of its backward."""
    core: Sequence[Any]
    """C[s]: from the first forward to the last backward."""
    reach: Sequence[Any]
    """R[s]: from start to end of the step, as far as stages >= s force it."""
    longest: tuple[Sequence[Any], Sequence[Any]]
    """U1[s], U2[s]: the longest forward, and backward, of stages 0 .. s."""
    through: tuple[Sequence[Any], Sequence[Any]]
    """P1[s], P2[s]: from the start of the step to the end of the first backward of s; from the start of its
    last forward to the end of stage 0."""
    end: Any
    """T: end of the last stage with what follows it."""

    @property
    def num_stages(self) -> int:
        """p."""
        return len(self.forward)

    def passes(self, first: int, last: int) -> Any:
        """Sum of F + B over stages first .. last."""
        return sum(self.forward[first : last + 1]) + sum(self.backward[first : last + 1])

    def sends(self, first: int, last: int) -> Any:
        """Sum of c over stages first .. last - 1: the hops from first to last."""
        return sum(self.send[first:last])

    def steady(self, s: int, e: int, windows: int, rest: int) -> Any:
        """From the first backward of s to its last forward: windows down to e, then plain pairs."""
        span = self.passes(s, e) + 2 * self.sends(s, e)
        return windows * span + rest * self.passes(s, s) + (windows + rest + 1) * self.wait[s]

    def round_trip(self, s: int) -> Any:
        """D[s]: from the start of a forward of s down to the last stage and back."""
        end = self.num_stages - 1
        return self.passes(s, end) + 2 * self.sends(s, end)


def add_window(add: Add, times: PipelineTimes) -> None:
    """A stage does one thing at a time and holds at most q + 1 micro-batches."""
    p, m = times.num_stages, times.num_microbatches
    for s in range(p):
        k, r = divmod(m - 1, p - s)
        windows = (k + 1) * times.round_trip(s) + k * times.wait[s]
        work = m * times.passes(s, s) + max(m - p + s, 0) * times.wait[s]
        add(times.core[s] >= work, f"window_work_{s}")
        add(times.core[s] >= r * times.forward[s] + windows, f"window_forward_{s}")
        add(times.core[s] >= r * times.backward[s] + windows, f"window_backward_{s}")


def add_partial(add: Add, times: PipelineTimes) -> None:
    """Warm-up and wind-down of a stage, with windows down to stage e in between."""
    p, m = times.num_stages, times.num_microbatches
    for s in range(max(p + 1 - m, 0), p):
        q = p - 1 - s
        f, b, trip = times.forward[s], times.backward[s], times.round_trip(s)
        add(times.first[s] >= trip, f"partial_first_wait_{s}")
        add(times.first[s] >= (q + 1) * f + b, f"partial_first_work_{s}")
        add(times.last[s] >= trip, f"partial_last_wait_{s}")
        add(times.last[s] >= (q + 1) * b + f, f"partial_last_work_{s}")
        for e in range(s, p):
            windows, rest = divmod(m - 2 - q, e - s + 1)
            steady = times.steady(s, e, windows, rest)
            add(times.core[s] >= times.first[s] + steady + times.last[s], f"partial_{s}_{e}")


def add_through(add: Add, times: PipelineTimes) -> None:
    """From the start of the step to its end, with warm-up and wind-down paced by any stage before."""
    p, m = times.num_stages, times.num_microbatches
    sides = ("forward", times.forward, times.backward), ("backward", times.backward, times.forward)
    for k, (name, there, back) in enumerate(sides):
        longest, through = times.longest[k], times.through[k]
        for s in range(p):
            q = p - 1 - s
            add(longest[s] >= there[s], f"through_own_{name}_{s}")
            if s:
                add(longest[s] >= longest[s - 1], f"through_longest_{name}_{s}")
            down = sum(there[: s + 1]) + times.sends(0, s)
            add(
                through[s] >= down + min(q, m - 1) * longest[s] + (back[s] if q <= m - 2 else 0),
                f"through_paced_{name}_{s}",
            )
            if s + 1 < p and q <= m - 2:
                add(through[s] >= through[s + 1] + times.send[s] + back[s], f"through_later_{name}_{s}")
    first, last = times.through
    for s in range(p):
        whole = first[s] + last[s] + times.after[0]
        for e in range(s, p if m >= p - s + 1 else s + 1):
            windows, rest = divmod(max(m - 1 - p + s, 0), e - s + 1)
            between = times.steady(s, e, windows, rest) if m >= p - s + 1 else 0
            add(times.end >= whole + between, f"through_{s}_{e}")


def add_end(add: Add, times: PipelineTimes) -> None:
    """Every stage delays the stages before it, each of which still reduces its gradients."""
    for s in range(times.num_stages):
        around = times.passes(0, s - 1) + 2 * times.sends(0, s) if s else 0
        add(times.reach[s] >= times.core[s] + around, f"end_reach_{s}")
        if s + 1 < times.num_stages:
            add(times.reach[s] >= times.reach[s + 1], f"end_later_{s}")
        drain = sum(times.backward[:s]) + times.sends(0, s)
        add(times.end >= times.reach[s] - drain + times.after[s], f"end_{s}")


def to_linear(model: Any) -> Add:
    """Adds to a PuLP program."""
    return lambda constraint, name: model.addConstraint(constraint, name)


def to_integer(model: Any) -> Add:
    """Adds to a `cp_model.CpModel`."""
    return lambda constraint, name: model.add(constraint).with_name(name)
