"""How a plan is asked for: limits, gap, and what the user pins."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from planner.data.base import Data

SolverName = Literal["highs", "cp_sat", "scip", "cbc"]

DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "mbs", "sp", "vp")
"""What can be pinned or forbidden: degrees, micro-batch size, sequence parallelism (0 or 1), vp (virtual
stages)."""
RECOMPUTE_KINDS = ("selective", "full")
"""Kinds of recomputation that can be forbidden."""
NAMED_KINDS = {"recompute": RECOMPUTE_KINDS, "stages": ("mixed", "empty", "predictions")}
"""What can be forbidden by a word: recomputation, stages on chips of several classes, (virtual) stages
without a layer, and predictions of further tokens on another stage than the loss."""


class Options(Data):
    """Limits and wishes of one call of `plan`."""

    time_limit_s: float | None = Field(default=None, gt=0)
    """Wall-clock limit of the search [s]; null for none."""
    gap: float = Field(default=0.01, ge=0, lt=1)
    """Relative gap between plan and bound at which the search may stop."""
    virtual_gap: float = Field(default=0.02, ge=0, lt=1)
    """The same for plans with virtual stages, where larger than `gap`: their bounds are looser."""
    top: int = Field(default=3, ge=1, le=100)
    """How many plans to return, the best included."""
    workers: int | None = Field(default=None, ge=1, le=1024)
    """Processes of one search; the answer does not depend on it unless a time limit cuts the search. Null
    takes a second one where it is sure to pay (mixes of pipelines, annealing of virtual stages); two or more
    also bound parts of the space, two fifths of the work without virtual stages and a few hundredths with
    them."""
    solver: SolverName = "highs"
    """Solver of the mixed-integer programs."""
    seed: int = Field(default=0, ge=0)
    """Seed of the solver."""
    memory_reserve_fraction: float = Field(default=0.04, ge=0, lt=1)
    """Share of usable memory that no plan may touch."""
    max_tensor_parallel: int | None = Field(default=None, ge=1)
    """Largest tensor-parallel degree; null for the node size."""
    max_pipeline_parallel: int | None = Field(default=None, ge=1)
    """Most stages; null for the number of layers."""
    max_virtual_stages: int | None = Field(default=None, ge=1)
    """Most virtual stages of a pipeline rank; null for 12, which published runs on eight stages reach, and
    for 1 on mixed clusters of more than 20,000 chips. On mixed ones a number also lifts the limit on the
    effort for their proof."""
    max_microbatch_size: int | None = Field(default=None, ge=1)
    """Largest micro-batch [sequences]; null for 8, or as many short sequences as hold 65,536 tokens."""
    max_context_parallel: int = Field(default=32, ge=1)
    """Largest context-parallel degree."""
    least_context_tokens: int = Field(default=4096, ge=1)
    """Fewest tokens of a sequence that a context-parallel rank gets. Of the published runs with context
    parallelism that predictions were compared with, nearly all have this many or more."""
    pin: dict[str, int] = Field(default_factory=dict)
    """Values that a plan must have, by name: tp, cp, pp, dp, ep, etp, mbs, sp (0 or 1), vp (virtual
    stages)."""
    forbid: tuple[str, ...] = ()
    """What no plan may have: `recompute=full`, `recompute=selective`, `stages=mixed` (chips of several
    classes in one stage), `stages=empty` (the embedding or the loss alone in a (virtual) stage),
    `stages=predictions` (predictions of further tokens before the stage with the loss), `tp=8` and the
    like."""
    spare: tuple[str, ...] = ()
    """Names of node classes that must stay idle."""
    use: tuple[str, ...] = ()
    """Names of node classes that must not stay idle."""
    keep_class_order: bool = False
    """Whether stages must follow the order in which the cluster lists its classes, each on one of them."""

    @field_validator("pin")
    @classmethod
    def _pins_are_known(cls, pin: dict[str, int]) -> dict[str, int]:
        for name, value in pin.items():
            if name not in DEGREES:
                raise ValueError(f"{name!r} cannot be pinned; choose from {', '.join(DEGREES)}")
            if value < (0 if name == "sp" else 1) or (name == "sp" and value > 1):
                raise ValueError(f"{name} cannot be {value}; " + ("0 or 1" if name == "sp" else "at least 1"))
        return pin

    @field_validator("forbid")
    @classmethod
    def _forbidden_is_known(cls, forbid: tuple[str, ...]) -> tuple[str, ...]:
        for wish in forbid:
            name, equals, value = wish.partition("=")
            if not equals or name not in (*DEGREES, *NAMED_KINDS):
                known = ", ".join((*DEGREES, *NAMED_KINDS))
                raise ValueError(f"{wish!r} is not of the form NAME=VALUE with NAME of {known}")
            if name in NAMED_KINDS and value not in NAMED_KINDS[name]:
                raise ValueError(f"{wish!r}: {name} is one of {', '.join(NAMED_KINDS[name])}")
            if name not in NAMED_KINDS and not value.isdecimal():
                raise ValueError(f"{wish!r}: {value!r} is not a whole number")
        return forbid
