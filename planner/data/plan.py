"""A plan: decisions only. What they cost is the evaluation's business."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from planner.data.base import Data
from planner.data.problem import ProblemFile, TargetName

Recompute = Literal["none", "selective", "full"]
DpMode = Literal["ddp", "distopt", "zero2", "zero3", "fsdp"]
LayerRange = tuple[int, int]


class Stage(Data):
    """One pipeline stage: its layers, its chips, what it recomputes."""

    layers: LayerRange | tuple[LayerRange, ...]
    """First and last layer, from 0; with virtual stages a list of such, chunk 0 first."""
    chip: str
    """Id of the chip that it runs on."""
    node_class: str
    """Name of the node class."""
    hosts: tuple[str, ...]
    """Hosts in rank order; the first and the last may be shared with the neighbouring stages."""
    tensor_parallel: int = Field(ge=1)
    """Tensor-parallel degree."""
    data_parallel: int = Field(ge=1)
    """Data-parallel degree."""
    recompute: Recompute = "none"
    """What is recomputed in the backward pass."""
    recompute_layers: int = Field(default=0, ge=0)
    """With "full": layers of each (virtual) stage that are recomputed, from its start; else 0."""

    @property
    def chunks(self) -> tuple[LayerRange, ...]:
        """First and last layer of every virtual stage of this rank, chunk 0 first."""
        if len(self.layers) == 2 and isinstance(self.layers[0], int):
            return (self.layers,)
        return self.layers

    @property
    def num_layers(self) -> int:
        """Layers of all its chunks."""
        return sum(last - first + 1 for first, last in self.chunks)


class Plan(Data):
    """Which layers run on which chips, with which degrees and micro-batches."""

    target: TargetName
    """Launcher that the plan is made for."""
    tensor_parallel: int = Field(ge=1)
    """Tensor-parallel degree."""
    context_parallel: int = Field(default=1, ge=1)
    """Context-parallel degree."""
    expert_parallel: int = Field(default=1, ge=1)
    """Expert-parallel degree, inside data x context parallel."""
    expert_tensor_parallel: int = Field(default=1, ge=1)
    """Tensor-parallel degree of the experts; Megatron's default is the tensor-parallel degree."""
    data_parallel: int = Field(ge=1)
    """Replicas of every stage."""
    microbatch_size: int = Field(ge=1)
    """Sequences of a micro-batch."""
    num_microbatches: int = Field(ge=1)
    """Micro-batches of a step on one replica."""
    virtual_stages: int = Field(default=1, ge=1)
    """Virtual stages of each pipeline rank."""
    sequence_parallel: bool = False
    """Whether the tensor-parallel ranks split the sequence between the matrix products."""
    dp_mode: DpMode = "distopt"
    """What the data-parallel ranks shard."""
    rank_order: Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"] = "tp-cp-ep-dp-pp"
    """Axes of the ranks, fastest first."""
    stages: tuple[Stage, ...] = Field(min_length=1)
    """Stages in pipeline order."""
    problem: ProblemFile | None = None
    """The problem that the plan answers, inline, so that a plan file can be exported on its own."""

    @model_validator(mode="after")
    def _chunks_match(self) -> Plan:
        for i, stage in enumerate(self.stages):
            if len(stage.chunks) != self.virtual_stages:
                raise ValueError(
                    f"stages[{i}] has {len(stage.chunks)} layer ranges, "
                    f"virtual_stages is {self.virtual_stages}"
                )
        return self

    @property
    def pipeline_parallel(self) -> int:
        """Number of stages."""
        return len(self.stages)

    @property
    def stage_size(self) -> int:
        """Chips of one stage."""
        return self.tensor_parallel * self.context_parallel * self.data_parallel

    @property
    def world_size(self) -> int:
        """Chips that the plan uses."""
        return self.stage_size * len(self.stages)
