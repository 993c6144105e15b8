"""Environment variables that the chips of a platform need, whichever launcher starts them."""

from __future__ import annotations

from planner.data.chip import Backend
from planner.data.plan import Plan
from planner.launchers.template_text import fill

_MAX_CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
# megatron-core 0.19.2, validate_args: tensor and context parallelism ask for it on chips older than
# Blackwell; each rank looks at its own chip, so that a mixed cluster sets it everywhere.

_ENVIRONMENTS: dict[Backend, dict[str, str]] = {
    "cuda": {},
    "rocm": {},
    # Huawei, HCCL environment variables: time that a rank waits for the others to connect [s].
    "ascend": {"HCCL_CONNECT_TIMEOUT": "1800"},
}


_ORDERED = """\
    # Tensor and context parallelism need it on every chip older than Blackwell; each rank checks its
    # own chip, so that a mixed cluster sets it everywhere.
    export CUDA_DEVICE_MAX_CONNECTIONS=1"""

_UNORDERED = """\
    # Megatron-FSDP refuses 1, with which its gathers would wait behind computation.
    unset CUDA_DEVICE_MAX_CONNECTIONS"""


def environment_text(plan: Plan) -> str:
    """The script that sets the environment of the training processes, for what the plan shards."""
    sharded = plan.dp_mode not in ("ddp", "distopt")
    return fill("environment.sh", {"max_connections": _UNORDERED if sharded else _ORDERED})


def environment_of(backend: Backend) -> dict[str, str]:
    """Variables of a platform with values that any cluster can use; interfaces are the site's to name."""
    return {**_MAX_CONNECTIONS, **_ENVIRONMENTS.get(backend, {})}
