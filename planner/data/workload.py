"""What one training step does: sequence length, batch, precision."""

from __future__ import annotations

from pydantic import Field

from planner.data.base import Data
from planner.data.chip import Precision


class Workload(Data):
    """One optimizer step of pre-training."""

    seq_length: int = Field(ge=1)
    """Tokens of a sequence."""
    global_batch_size: int = Field(ge=1)
    """Sequences of a step, over all replicas."""
    precision: Precision = "bf16"
    """Number format of the matrix products."""
    expert_imbalance: float = Field(default=1.0, ge=1)
    """Tokens that come to the busiest rank's experts, over an even share of all."""
    train_iters: int = Field(default=500_000, ge=1)
    """Steps of the training run, for the launch script."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step."""
        return self.seq_length * self.global_batch_size
