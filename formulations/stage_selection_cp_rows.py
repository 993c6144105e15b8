"""The rows of `pipeline_rows` as constraints of `stage_selection_cp`, whose docstring states them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from formulations.stage_selection_data import StageSelectionData
from formulations.stage_selection_ticks import Ticks


@dataclass(frozen=True)
class Variables:
    """The solver's variables and the times that follow from them, each a list over the stages."""

    n: list[Any]
    extra: list[Any]
    forward: list[Any]
    backward: list[Any]
    reduction: list[Any]
    core: list[Any]
    end: Any
    follow: Any


def both(var: Variables, first: int, last: int) -> Any:
    """Sum of f + b over stages first .. last."""
    return sum(var.forward[first : last + 1]) + sum(var.backward[first : last + 1])


def round_trip(ticks: Ticks, var: Variables, s: int) -> Any:
    """t[s] + d[s]: from the start of a forward of s down to the last stage and back."""
    return both(var, s, len(var.n) - 1) + 2 * int(ticks.send[s:].sum())


def add_window(model: Any, data: StageSelectionData, ticks: Ticks, var: Variables) -> None:
    """A stage does one thing at a time and holds at most q + 1 micro-batches."""
    p, m = data.num_stages, data.num_microbatches
    for s in range(p):
        k, r = divmod(m - 1, p - s)
        windows = (k + 1) * round_trip(ticks, var, s)
        model.add(var.core[s] >= m * both(var, s, s)).with_name(f"window_work_{s}")
        model.add(var.core[s] >= r * var.forward[s] + windows).with_name(f"window_forward_{s}")
        model.add(var.core[s] >= r * var.backward[s] + windows).with_name(f"window_backward_{s}")


def add_partial(model: Any, data: StageSelectionData, ticks: Ticks, var: Variables) -> None:
    """Warm-up and wind-down of a stage, with windows down to stage e in between."""
    p, m = data.num_stages, data.num_microbatches
    for s in range(max(p + 1 - m, 0), p):
        q = p - 1 - s
        f, b = var.forward[s], var.backward[s]
        trip = round_trip(ticks, var, s)
        limit = var.core[s].proto.domain[1]
        first = model.new_int_var(0, limit, f"A_{s}")
        last = model.new_int_var(0, limit, f"Y_{s}")
        model.add(first >= trip).with_name(f"partial_first_wait_{s}")
        model.add(first >= (q + 1) * f + b).with_name(f"partial_first_work_{s}")
        model.add(last >= trip).with_name(f"partial_last_wait_{s}")
        model.add(last >= (q + 1) * b + f).with_name(f"partial_last_work_{s}")
        for e in range(s, p):
            windows, rest = divmod(m - 2 - q, e - s + 1)
            span = both(var, s, e) + 2 * int(ticks.send[s:e].sum())
            steady = windows * span + rest * both(var, s, s)
            model.add(var.core[s] >= first + steady + last).with_name(f"partial_{s}_{e}")


def add_end(model: Any, ticks: Ticks, var: Variables) -> None:
    """Every stage delays the stages before it, each of which still reduces its gradients."""
    p = len(var.n)
    limit = var.end.proto.domain[1]
    reach = [model.new_int_var(0, limit, f"R_{s}") for s in range(p)]
    for s in range(p):
        around = both(var, 0, s - 1) + 2 * int(ticks.send[:s].sum())
        model.add(reach[s] >= var.core[s] + around).with_name(f"end_reach_{s}")
        if s + 1 < p:
            model.add(reach[s] >= reach[s + 1]).with_name(f"end_later_{s}")
        drain = sum(var.backward[:s]) + int(ticks.send[:s].sum())
        model.add(var.end >= reach[s] - drain + var.reduction[s]).with_name(f"end_{s}")
