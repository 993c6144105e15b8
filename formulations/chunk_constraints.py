"""What the chunks and stages of an interleaved pipeline recompute, hold and take, as linear constraints.

`virtual_selection` states these groups in its docstring, from (recomputed) to (follow_up). The class of every
stage is fixed. Times in ms, sizes in GiB.
"""

from __future__ import annotations

import numpy as np
import pulp

from formulations.stage_selection_data import most_layers_in_step
from formulations.virtual_selection_cuts import Variables
from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import most_layers


def add_recomputed(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """Layers are recomputed in full only where every chunk with layers holds them and the stage says so."""
    most = most_layers(data)
    for s, counts in enumerate(var.n):
        for k, n in enumerate(counts):
            if data.may_be_empty(s) != k:
                model += var.u[s] <= n, f"recomputed_held_{s}_{k}"
        model += var.u[s] <= most * var.x[s], f"recomputed_said_{s}"
        model += var.u[s] >= var.x[s], f"recomputed_some_{s}"


def add_empty(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """The chunk of embedding or head recomputes as many layers as the others, or has none."""
    most = most_layers(data)
    for s, k in data.ends:
        if data.may_be_empty(s) is None:
            continue
        u1, n, empty = var.u1[s], var.n[s][k], 1 - var.x1[s]
        model += n >= var.x1[s], f"empty_not_{s}"
        model += n <= most * var.x1[s], f"empty_has_none_{s}"
        model += var.u[s] <= n + most * empty, f"empty_held_{s}"
        model += u1 <= n, f"empty_most_{s}"
        model += u1 <= var.u[s], f"empty_alike_{s}"
        model += u1 >= var.u[s] - most * empty, f"empty_all_{s}"


def in_full(data: VirtualSelectionData, var: Variables, s: int, k: int) -> pulp.LpVariable:
    """Layers of a chunk that are recomputed in full."""
    return var.u1[s] if data.may_be_empty(s) == k else var.u[s]


def add_selective(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """Core attention is recomputed in all layers of a stage or in none."""
    most = most_layers(data)
    for s, chosen in enumerate(var.k1):
        for k, k1 in enumerate(chosen):
            model += k1 <= var.n[s][k], f"selective_held_{s}_{k}"
            model += k1 <= most * var.y[s], f"selective_said_{s}_{k}"
            model += k1 >= var.n[s][k] - most + most * var.y[s], f"selective_all_{s}_{k}"


def add_one_kind(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """A stage recomputes core attention or whole layers, not both."""
    for s in range(data.num_stages if var.y else 0):
        model += var.x[s] + var.y[s] <= 1, f"one_kind_{s}"


def add_memory(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """What a stage holds fits its chips at every moment that can be the peak."""
    lead_kept, lead_selective, lead_full = data.lead_kept_gib
    for s, held in enumerate(data.moments):
        lead, kept = int(data.stage.lead[s]), float(data.kept_gib[s])
        saves, saved = kept - float(data.kept_selective_gib[s]), kept - float(data.kept_full_gib[s])
        for h, in_flight in enumerate(held.tolist()):
            full = [saved] * data.virtual_stages
            if lead:
                full[0] = max(full[0], lead_kept - lead_full)
            need = data.full_peak_gib[s] * var.x[s]
            for k, e in enumerate(in_flight):
                need += (data.state_gib + e * kept) * var.n[s][k]
                need -= e * full[k] * in_full(data, var, s, k)
                if var.k1:
                    need -= e * saves * var.k1[s][k]
            if var.y:
                need += float(data.selective_peak_gib[s]) * var.y[s]
            if lead and var.y:
                need -= lead * in_flight[0] * (lead_kept - lead_selective - saves) * var.y[s]
            rest = data.base_gib[s][h] + lead * in_flight[0] * (lead_kept - kept)
            model += need <= float(data.limit_gib[s] - rest), f"memory_{s}_{h}"


def add_step(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """What a stage holds in the optimizer's step fits its chips."""
    most = most_layers_in_step(data.stage)
    for s in np.flatnonzero(data.stage.step_layer_gib):
        model += pulp.lpSum(var.n[s]) <= float(most[s]), f"step_{s}"


def add_forward_time(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """Forward of a chunk: its layers, and embedding or head."""
    base, _ = data.base_ms()
    for s, k in np.ndindex(data.num_stages, data.virtual_stages):
        time_ms = data.stage.forward_ms[s] * var.n[s][k] + float(base[s, k])
        model += var.forward[s][k] == time_ms, f"forward_time_{s}_{k}"


def add_backward_time(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """Backward of a chunk: its layers, what they recompute, and embedding or head."""
    times, (_, base) = data.stage, data.base_ms()
    for s, k in np.ndindex(data.num_stages, data.virtual_stages):
        lead = int(times.lead[s]) if k == 0 else 0
        full = float(min(times.full_ms[s], times.lead_full_ms[s]) if lead else times.full_ms[s])
        time_ms = times.backward_ms[s] * var.n[s][k] + full * in_full(data, var, s, k) + float(base[s, k])
        if var.k1:
            time_ms += float(times.selective_ms[s]) * var.k1[s][k]
            time_ms += lead * float(times.lead_selective_ms[s] - times.selective_ms[s]) * var.y[s]
            if k == data.virtual_stages - 1:
                time_ms += float(times.predictions_selective_ms[s]) * var.y[s]
        own = var.backward[s][k]  # in full layers of the other kind may take more than `full`
        model += own >= time_ms if lead else own == time_ms, f"backward_time_{s}_{k}"


def add_reduction(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """Gradient reduction shows where the last backward does not hide it, or that of chunk 0 behind all."""
    times = data.stage
    for s in range(data.num_stages):
        total = times.reduce_ms[s] * pulp.lpSum(var.n[s]) + float(times.base_reduce_ms[s])
        hidden = times.hidden_fraction * pulp.lpSum(var.backward[s])
        model += var.reduction[s] >= total - hidden, f"reduction_{s}"
        in_one = times.bucket_ms[s] * var.n[s][0] - float(times.reduce_tail_ms[s])
        model += var.reduction[s] >= in_one, f"reduction_in_one_{s}"


def add_gathering(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """Parameter gathering shows where the first forward does not hide it."""
    times = data.stage
    for s in range(data.num_stages):
        total = times.gather_ms[s] * pulp.lpSum(var.n[s]) + float(times.base_gather_ms[s])
        hidden = times.hidden_fraction * pulp.lpSum(var.forward[s])
        model += var.gathering[s] >= total - hidden, f"gathering_{s}"


def add_follow_up(model: pulp.LpProblem, data: VirtualSelectionData, var: Variables) -> None:
    """After all stages have met, the slowest optimizer and gathering end the step."""
    times = data.stage
    for s in range(data.num_stages):
        rest = float(times.base_optimizer_ms[s] + times.gather_tail_ms[s])
        total = times.optimizer_ms[s] * pulp.lpSum(var.n[s]) + rest
        model += var.follow >= total + var.gathering[s], f"follow_up_{s}"
