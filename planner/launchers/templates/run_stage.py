"""Runs one rank of pretrain_gpt.py with the arguments of its pipeline stage.

A host of this plan holds stages that recompute differently, and torchrun gives all processes of a
host the same command line. Each process therefore adds what belongs to its own stage here.
"""

import os
import sys

TENSOR_X_CONTEXT = @{tensor_x_context}
DATA_PARALLEL = @{data_parallel}
PIPELINE_PARALLEL = @{pipeline_parallel}
STAGES_ARE_OUTERMOST = @{stages_are_outermost}

STAGE_ARGS = [
@{stage_args}
]


def stage_of(rank: int) -> int:
    """Pipeline stage of a global rank."""
    if STAGES_ARE_OUTERMOST:
        return rank // (TENSOR_X_CONTEXT * DATA_PARALLEL)
    return rank // TENSOR_X_CONTEXT % PIPELINE_PARALLEL


def main() -> None:
    """Become pretrain_gpt.py, in the same process."""
    script = os.path.join(os.environ["MEGATRON_PATH"], "pretrain_gpt.py")
    stage_args = STAGE_ARGS[stage_of(int(os.environ["RANK"]))]
    os.execv(sys.executable, [sys.executable, "-u", script, *sys.argv[1:], *stage_args])


if __name__ == "__main__":
    main()
