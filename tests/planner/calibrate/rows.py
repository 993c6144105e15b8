"""A small measured run that tests change in one place each."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from planner.calibrate.runs import Run

ROW: dict[str, Any] = {
    "id": "run-0",
    "source": "suite-a",
    "software": "NeMo (dgxc-benchmarking v25.02)",
    "quality": "high",
    "missing": [],
    "cluster": {"groups": [{"chip": "h100-sxm-80gb", "num_chips": 16, "chips_per_node": 8}]},
    "model": {
        "name": "Llama3-8B",
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "moe": None,
    },
    "workload": {"seq_length": 8192, "global_batch_size": 64, "precision": "bf16"},
    "plan": {
        "tensor_parallel": 2,
        "pipeline_parallel": 4,
        "context_parallel": 1,
        "expert_parallel": 1,
        "expert_tensor_parallel": None,
        "virtual_stages": 1,
        "data_parallel": 2,
        "dp_mode": "distopt",
        "microbatch_size": 1,
        "recompute": "none",
        "sequence_parallel": True,
        "stages": None,
    },
    "measured": {"step_s": 10.0},
    "notes": "",
}

MOE = {
    "num_experts": 8,
    "top_k": 2,
    "ffn_hidden_size": 14336,
    "shared_ffn_hidden_size": 0,
    "first_dense_layers": 0,
}


def row(**changes: Any) -> dict[str, Any]:
    """The row with changes; `plan__recompute=None` changes a value of a part."""
    changed = copy.deepcopy(ROW)
    for name, value in changes.items():
        part = changed
        *parents, last = name.split("__")
        for parent in parents:
            part = part[parent]
        part[last] = value
    return changed


def run(**changes: Any) -> Run:
    """The same, read."""
    return Run.model_validate(row(**changes))


def write(path: Path, *rows: dict[str, Any]) -> Path:
    """A file of rows."""
    path.write_text("\n".join(json.dumps(r) for r in rows) + "\n", encoding="utf-8")
    return path
