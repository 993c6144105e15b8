"""Environment variables that the chips of a platform need, whichever launcher starts them."""

from __future__ import annotations

from planner.data.chip import Backend

_MAX_CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
# megatron-core 0.19.2, validate_args: tensor and context parallelism ask for it on chips older than
# Blackwell; each rank looks at its own chip, so that a mixed cluster sets it everywhere.

_ENVIRONMENTS: dict[Backend, dict[str, str]] = {
    "cuda": {},
    "rocm": {},
    # Huawei, HCCL environment variables: time that a rank waits for the others to connect [s].
    "ascend": {"HCCL_CONNECT_TIMEOUT": "1800"},
}


def environment_of(backend: Backend) -> dict[str, str]:
    """Variables of a platform with values that any cluster can use; interfaces are the site's to name."""
    return {**_MAX_CONNECTIONS, **_ENVIRONMENTS.get(backend, {})}
