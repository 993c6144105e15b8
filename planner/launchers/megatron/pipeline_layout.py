"""Megatron-LM's pipeline layout string: which layers each virtual stage holds.

`E` embedding, `t*n` n decoder layers, `m*n` n multi-token-prediction layers, `L` loss; `|` separates
the virtual stages, chunk by chunk: entry v * P + p is chunk v of pipeline rank p.
(megatron-core 0.19.2, `megatron/core/transformer/pipeline_parallel_layer_layout.py`.)

The layout states every uneven split, so no other flag takes part in placing layers.
"""

from __future__ import annotations

from planner.data.plan import Plan


def pipeline_layout(plan: Plan, mtp_num_layers: int = 0) -> str:
    """The layout string of a plan; multi-token-prediction layers sit with the loss or before it.

    `Et*14` reads as E and then 14 layers: a repeat count binds to the character before it.
    """
    entries = [
        _layers(last - first + 1)
        for chunk in range(plan.virtual_stages)
        for first, last in (stage.chunks[chunk] for stage in plan.stages)
    ]
    entries[0] = "E" + entries[0]
    if mtp_num_layers:
        entries[_position(plan)] += f"m*{mtp_num_layers}"
    entries[-1] += "L"
    return "|".join(entries)


def _position(plan: Plan) -> int:
    """Entry of the predictions: the last virtual stage of their pipeline rank."""
    if plan.prediction_stage is None:
        return -1
    return plan.prediction_stage - len(plan.stages)


def _layers(count: int) -> str:
    return f"t*{count}" if count else ""
