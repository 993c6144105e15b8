"""Answers found by trying everything, for instances small enough; share no formula with the product."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from formulations.stage_selection_data import StageChoice, StageSelectionData


def layer_counts(num_layers: int, num_stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to give all layers to the stages, at least one each."""
    for cuts in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, num_layers)))


def recomputes_that_fit(data: StageSelectionData, s: int, n: int) -> list[tuple[str, int]]:
    """Every recomputation (kind, whole layers) with which n layers fit on stage s."""
    saved = {("none", 0): 0.0, ("selective", 0): data.selective_saves_gib[s] * n - data.selective_peak_gib[s]}
    for u in range(1, n + 1):
        saved["full", u] = data.full_saves_gib[s] * u - data.full_peak_gib[s]
    if (
        data.step_layer_gib[s] * n > 0
        and data.step_layer_gib[s] * n + data.step_base_gib[s] > data.limit_gib[s]
    ):
        return []  # the optimizer's step holds no activations
    need = data.layer_gib[s] * n + data.base_gib[s]
    return [choice for choice, less in saved.items() if need - less <= data.limit_gib[s]]


def choices(data: StageSelectionData) -> Iterator[StageChoice]:
    """Every choice that fits."""
    for layers in layer_counts(data.num_layers, data.num_stages):
        fitting = [
            [way for way in recomputes_that_fit(data, s, n) if is_alike(data, n, *way)]
            for s, n in enumerate(layers)
        ]
        for recomputes in itertools.product(*fitting):
            yield StageChoice(layers, tuple(kind for kind, _ in recomputes), tuple(u for _, u in recomputes))


def is_alike(data: StageSelectionData, n: int, kind: str, full: int) -> bool:
    """Whether a stage of n layers recomputes as one number for all stages, within its range, lets it."""
    if data.alike is None:
        return True
    least, most = data.alike
    return kind == "full" and min(least, n) <= full <= most


def objective_in_words(data: StageSelectionData, choice: StageChoice) -> float:
    """Objective of `stage_selection`, every row of `pipeline_rows` written out term by term."""
    p, m, send = data.num_stages, data.num_microbatches, [float(c) for c in data.send_ms]
    f, b, after, follow = [], [], [], []
    for s, n in enumerate(choice.layers):
        f.append(float(data.forward_ms[s] * n + data.base_forward_ms[s]))
        extra = data.full_ms[s] * choice.recompute_layers[s]
        if choice.recompute[s] == "selective":
            extra += data.selective_ms[s] * n + data.predictions_selective_ms[s]
        b.append(float(data.backward_ms[s] * n + data.base_backward_ms[s] + extra))
        reduction = data.reduce_ms[s] * n + data.base_reduce_ms[s] - data.hidden_fraction * b[s]
        gathering = data.gather_ms[s] * n + data.base_gather_ms[s] - data.hidden_fraction * f[s]
        in_one = float(data.bucket_ms[s] * n + data.base_bucket_ms[s])
        after.append(max(max(0.0, float(reduction)) + float(data.reduce_tail_ms[s]), in_one))
        optimizer = data.optimizer_ms[s] * n + data.base_optimizer_ms[s]
        follow.append(float(optimizer) + max(0.0, float(gathering)) + float(data.gather_tail_ms[s]))
    t = [x + y for x, y in zip(f, b, strict=True)]
    end = 0.0
    for s in range(p):
        fill = sum(f[:s]) + sum(send[:s])
        wait = float(data.wait_ms[s])
        core = max(_core_rows(f, b, t, send, wait, s, m))
        for j in range(s + 1):
            end = max(end, fill + core + sum(b[j:s]) + sum(send[j:s]) + after[j])
        end = max(end, _through_rows(f, b, send, wait, s, m) + after[0])
    return end + max(follow) + data.constant_ms


def _through_rows(f: list[float], b: list[float], send: list[float], wait: float, s: int, m: int) -> float:
    """The best row (through) of stage s, or (flush), over every k, i and e."""
    p = len(f)
    q = p - 1 - s
    if m <= q + 1:
        passes = sum(f[: s + 1]) + sum(b[: s + 1]) + 2 * sum(send[:s])
        return passes + (m - 1) * (max(f[: s + 1]) + max(b[: s + 1]))

    def side(there: list[float], back: list[float]) -> float:
        return max(
            sum(there[: k + 1])
            + sum(send[:k])
            + (p - 1 - k) * there[i]
            + sum(back[s : k + 1])
            + sum(send[s:k])
            for k in range(s, p)
            for i in range(k + 1)
        )

    def between(e: int) -> float:
        windows, rest = divmod(m - 2 - q, e - s + 1)
        span = sum(f[s : e + 1]) + sum(b[s : e + 1]) + 2 * sum(send[s:e])
        return windows * (wait + span) + rest * (wait + f[s] + b[s]) + wait

    return side(f, b) + side(b, f) + max(between(e) for e in range(s, p))


def _core_rows(
    f: list[float], b: list[float], t: list[float], send: list[float], wait: float, s: int, m: int
) -> Iterator[float]:
    p = len(f)
    q = p - 1 - s
    d = sum(t[s + 1 :]) + 2 * sum(send[s : p - 1])
    k, r = divmod(m - 1, q + 1)
    yield m * t[s] + max(0, m - q - 1) * wait
    yield r * f[s] + (k + 1) * (t[s] + d) + k * wait
    yield r * b[s] + (k + 1) * (t[s] + d) + k * wait
    if m >= q + 2:
        first, last = max(t[s] + d, (q + 1) * f[s] + b[s]), max(t[s] + d, (q + 1) * b[s] + f[s])
        for e in range(s, p):
            windows, rest = divmod(m - 2 - q, e - s + 1)
            down_and_up = sum(t[s : e + 1]) + 2 * sum(send[s:e])
            yield first + windows * (wait + down_and_up) + rest * (wait + t[s]) + wait + last


def best_by_layers(data: StageSelectionData) -> dict[tuple[int, ...], float]:
    """Least objective of every layer count that fits, over all recomputations."""
    best: dict[tuple[int, ...], float] = {}
    for choice in choices(data):
        value = objective_in_words(data, choice)
        best[choice.layers] = min(value, best.get(choice.layers, float("inf")))
    return best
