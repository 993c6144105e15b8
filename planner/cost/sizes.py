"""Degrees of every choice as floating-point numbers, and the token counts that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.elementwise import Flags, Values, maximum, minimum, where
from planner.cost.lazy import lazy
from planner.cost.prices import Degrees
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack


@dataclass(frozen=True)
class Sizes:
    """What each choice makes of a micro-batch: arrays of axis `choice`, or the numbers of one choice."""

    tp: Values
    cp: Values
    ep: Values
    etp: Values
    dp: Values
    microbatch_size: Values
    sequence_parallel: Values
    """1 where the sequence is split between the tensor-parallel ranks, else 0."""
    seq_length: float
    optimizer_shard_size: float = float("inf")
    """Most ranks that share the optimizer state of a parameter."""
    expert_load: float = 1.0
    """Rows of the busiest rank's experts over an even share."""

    @staticmethod
    def of(problem: Problem, degrees: Degrees) -> Sizes:
        """The degrees as arrays of floats."""
        return Sizes._of(problem, degrees, lambda values: np.asarray(values, dtype=np.float64))

    @staticmethod
    def single(problem: Problem, degrees: Degrees) -> Sizes:
        """The only row of the degrees as plain numbers."""
        return Sizes._of(problem, degrees, lambda values: float(values.item()))

    @staticmethod
    def _of(problem: Problem, degrees: Degrees, floats: Callable[[NDArray[Any]], Values]) -> Sizes:
        return Sizes(
            tp=floats(degrees.tensor_parallel),
            cp=floats(degrees.context_parallel),
            ep=floats(degrees.expert_parallel),
            etp=floats(degrees.expert_tensor_parallel),
            dp=floats(degrees.data_parallel),
            microbatch_size=floats(degrees.microbatch_size),
            sequence_parallel=floats(degrees.sequence_parallel & (degrees.tensor_parallel > 1)),
            seq_length=float(problem.workload.seq_length),
            optimizer_shard_size=float(problem.stack.optimizer_shard_size or "inf"),
            expert_load=expert_load(problem),
        )

    @lazy
    def of_one_replica(self) -> Sizes:
        """The same without data parallelism, which changes nothing about the work of a micro-batch."""
        return replace(self, dp=self.ones)

    @lazy
    def of_experts(self) -> Sizes:
        """Experts and their ranks alone, of a single choice: one of all else."""
        one = self.ones
        return replace(self, tp=one, cp=one, dp=one, microbatch_size=one, sequence_parallel=0.0)

    @lazy
    def ones(self) -> Values:
        """One for every choice."""
        return np.ones_like(self.tp) if isinstance(self.tp, np.ndarray) else 1.0

    @lazy
    def zeros(self) -> Values:
        """Nothing for every choice."""
        return 0.0 * self.ones

    @lazy
    def splits_sequence(self) -> Flags:
        """Whether the tensor-parallel ranks split the sequence."""
        return self.sequence_parallel > 0

    @lazy
    def copies_inputs(self) -> Flags:
        """Whether tensor-parallel ranks hold the whole sequence each."""
        return (self.tp > 1) & (self.sequence_parallel == 0)

    @lazy
    def tokens(self) -> Values:
        """Tokens of a micro-batch on one context-parallel rank."""
        return self.microbatch_size * self.seq_length / self.cp

    @lazy
    def norm_tokens(self) -> Values:
        """Tokens whose norms and residuals one rank computes: split with sequence parallelism."""
        return self.tokens / where(self.splits_sequence, self.tp, 1.0)

    @lazy
    def routed_tokens(self) -> Values:
        """Tokens that one rank sends to experts; the tensor-parallel ranks share them."""
        return self.tokens / self.tp

    @lazy
    def stage_chips(self) -> Values:
        """Chips of one stage."""
        return self.tp * self.cp * self.dp

    @lazy
    def gradient_ranks(self) -> Values:
        """Ranks that share the gradient of a dense parameter: data x context parallel."""
        return self.dp * self.cp

    @lazy
    def expert_gradient_ranks(self) -> Values:
        """Ranks that share the gradient of an expert's parameter."""
        return self.stage_chips / (self.ep * self.etp)

    def sharers(self, ranks: Values) -> Values:
        """Ranks that share a state, of those that share a gradient.

        As many groups share the experts' as share the rest (megatron-core 0.19.2, parallel_state.py:1447).
        """
        some = minimum(self.gradient_ranks, self.optimizer_shard_size)
        return maximum(ranks * (some / self.gradient_ranks), 1.0)

    def expert_rows(self, top_k: int) -> Values:
        """Routed rows that the busiest rank's experts process."""
        return self.tokens * top_k * self.etp / self.tp * self.expert_load


def expert_load(problem: Problem) -> float:
    """Rows of the busiest rank's experts over an even share: what comes, up to a capacity."""
    moe, comes = problem.model.moe, problem.workload.expert_imbalance
    if moe is None or moe.capacity_factor is None:
        return comes
    return moe.capacity_factor if moe.pad_to_capacity else min(comes, moe.capacity_factor)


def context_levels(stack: SoftwareStack, sizes: Sizes, domain_chips: float) -> tuple[Values, Values]:
    """Ranks that exchange heads, and rings of them that pass keys and values on; their product is cp."""
    one = sizes.ones
    if stack.cp_exchange == "a2a":
        return sizes.cp, one
    if stack.cp_exchange != "a2a+p2p":
        return one, sizes.cp
    inner = minimum(sizes.cp, maximum(domain_chips // sizes.tp, 1.0))
    inner = where(sizes.cp % inner == 0, inner, 1.0)
    return inner, sizes.cp / inner
