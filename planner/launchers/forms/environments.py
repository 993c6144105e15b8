"""Environment variables that the chips of a platform need, whichever launcher starts them."""

from __future__ import annotations

import shlex

from planner.data.chip import Backend
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.launchers.template_text import fill

_MAX_CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
# megatron-core 0.19.2, validate_args: tensor and context parallelism ask for it on chips older than
# Blackwell; each rank looks at its own chip, so that a mixed cluster sets it everywhere.

_ENVIRONMENTS: dict[Backend, dict[str, str]] = {
    # Memory is predicted for these two. Segments that grow leave fewer gaps (as NVIDIA's performance scripts
    # for Megatron-Bridge set it); Megatron-LM looks for this, the older of PyTorch's two names, where it
    # cannot have them. Without the second, PyTorch before 2.8 does not reuse what a collective has read or
    # written until the chip has come to it, though the host runs layers ahead (torchtitan,
    # docs/composability.md).
    "cuda": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1"},
    # AMD's own start script for Llama 3: ROCm/Megatron-LM, examples/llama/train_llama3.sh (2024).
    "rocm": {"GPU_MAX_HW_QUEUES": "2", "TORCH_NCCL_HIGH_PRIORITY": "1", "HSA_NO_SCRATCH_RECLAIM": "1"},
    # Huawei's own start scripts: Ascend/MindSpeed-LLM, examples/ (2024 and 2025). The first is the time that
    # a rank waits for the others to connect [s].
    "ascend": {
        "HCCL_CONNECT_TIMEOUT": "1800",
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "TASK_QUEUE_ENABLE": "2",
    },
}

_NEWER_NAMES = {"PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_ALLOC_CONF"}
"""Names that the user may have set instead."""

_JOINED: dict[Backend, str] = {"cuda": "NCCL", "rocm": "RCCL", "ascend": "HCCL"}
"""Library of collectives of a platform."""


_ORDERED = """\
    # Tensor and context parallelism need it on every chip older than Blackwell; each rank checks its
    # own chip, so that a mixed cluster sets it everywhere.
    export CUDA_DEVICE_MAX_CONNECTIONS=1"""

_UNORDERED = """\
    # Megatron-FSDP refuses 1, with which its gathers would wait behind computation.
    unset CUDA_DEVICE_MAX_CONNECTIONS"""


def environment_text(problem: Problem, plan: Plan) -> str:
    """The script that sets the environment of the training processes, for what the plan shards and uses."""
    sharded = plan.dp_mode not in ("ddp", "distopt")
    trouble = mixed_platforms(problem, plan)
    return fill(
        "environment.sh",
        {
            "mixed_platforms": "" if trouble is None else f"    warn {shlex.quote(trouble)}\n",
            "max_connections": _UNORDERED if sharded else _ORDERED,
            "cuda": _exports("cuda"),
            "rocm": _exports("rocm"),
            "ascend": _exports("ascend"),
        },
    )


def _exports(backend: Backend) -> str:
    """Lines that set a platform's variables where the user has not."""
    values = _ENVIRONMENTS[backend]
    lines = []
    for name, value in values.items():
        newer = _NEWER_NAMES.get(name)
        given = f"${{{newer}:-{value}}}" if newer else value
        lines.append(f"        export {name}=${{{name}:-{given}}}")
    return "\n".join(lines)


def mixed_platforms(problem: Problem, plan: Plan) -> str | None:
    """What a job on chips of several platforms lacks in stock Megatron-LM; None on one platform."""
    used = dict.fromkeys(problem.chips[chip].backend for stage in plan.stages for _, chip, _ in stage.places)
    if len(used) < 2:
        return None
    libraries = ", ".join(f"{_JOINED.get(backend, 'its own')} ({backend})" for backend in sorted(used))
    return (
        f"this plan joins chips of several platforms, whose collectives form no common groups: {libraries}; "
        "the processes need a communication library that does, such as FlagCX, which stock Megatron-LM lacks"
    )


def environment_of(backend: Backend) -> dict[str, str]:
    """Variables of a platform with values that any cluster can use; interfaces are the site's to name."""
    return {**_MAX_CONNECTIONS, **_ENVIRONMENTS.get(backend, {})}
