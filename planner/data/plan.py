"""A plan: decisions only. What they cost is the evaluation's business."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.data.base import Data
from planner.data.problem import ProblemFile, TargetName
from planner.data.stack import SelectiveModule

Recompute = Literal["none", "selective", "full"]
DpMode = Literal["ddp", "distopt", "zero2", "zero3", "fsdp"]
LayerRange = tuple[Annotated[int, Field(ge=0)], int]


MOST_RANKS = 10_000_000
"""More ranks than any cluster has: some are listed one by one, and a slip must not ask for billions."""

MOST_SEQUENCES = 1_000_000_000
"""More than a micro-batch has, and few enough that counts of their tokens fit the arrays they go through."""


class Replica(Data):
    """One data-parallel rank of a stage: the chips that hold one copy of its layers."""

    node_class: str
    """Name of the node class."""
    chip: str
    """Id of the chip."""
    hosts: tuple[str, ...] = Field(min_length=1)
    """Hosts in rank order; the first and the last may be shared with the neighbouring ranks."""
    tensor_parallel: int = Field(ge=1, le=MOST_RANKS)
    """Tensor-parallel degree."""


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
    tensor_parallel: int = Field(ge=1, le=MOST_RANKS)
    """Tensor-parallel degree."""
    data_parallel: int = Field(ge=1, le=MOST_RANKS)
    """Data-parallel degree."""
    recompute: Recompute = "none"
    """What is recomputed in the backward pass."""
    recompute_layers: int = Field(default=0, ge=0)
    """With "full": layers of each (virtual) stage that are recomputed, from its start, or all of one with
    fewer; else 0."""
    recompute_piece: int = Field(default=1, ge=1)
    """With "full" of all layers: layers that are recomputed as one piece, of which only the first input is
    kept (Megatron-LM's uniform method)."""
    replicas: tuple[Replica, ...] | None = None
    """Its data-parallel ranks in order, where they lie on different chips; else all are on its own class."""

    @property
    def chunks(self) -> tuple[LayerRange, ...]:
        """First and last layer of every virtual stage of this rank, chunk 0 first."""
        if len(self.layers) == 2 and isinstance(self.layers[0], int):
            return (self.layers,)
        return self.layers

    @property
    def places(self) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """Node class, chip and hosts of each of its replicas; one entry where all are on its own class."""
        if self.replicas is None:
            return ((self.node_class, self.chip, self.hosts),)
        return tuple((r.node_class, r.chip, r.hosts) for r in self.replicas)

    @property
    def tensor_parallel_degrees(self) -> tuple[int, ...]:
        """Tensor-parallel degree of each of its data-parallel ranks."""
        if self.replicas is None:
            return (self.tensor_parallel,) * self.data_parallel
        return tuple(replica.tensor_parallel for replica in self.replicas)

    @property
    def longest_chunk(self) -> int:
        """Layers of its longest (virtual) stage; 0 where none has any."""
        return max(0, *(last - first + 1 for first, last in self.chunks))

    @property
    def num_layers(self) -> int:
        """Layers of all its chunks."""
        return sum(last - first + 1 for first, last in self.chunks)


class Pipeline(Data):
    """Replicas of one shape: the stages that they go through, and how much of the batch they run."""

    num_stages: int = Field(ge=1)
    """Stages of it; in the plan's list they follow those of the pipeline before."""
    microbatch_size: int = Field(ge=1)
    """Sequences of a micro-batch."""
    num_microbatches: int = Field(ge=1, le=MOST_SEQUENCES)
    """Micro-batches of a step on each of its replicas."""


class Plan(Data):
    """Which layers run on which chips, with which degrees and micro-batches."""

    target: TargetName
    """Launcher that the plan is made for."""
    tensor_parallel: int = Field(ge=1, le=MOST_RANKS)
    """Tensor-parallel degree."""
    context_parallel: int = Field(default=1, ge=1, le=MOST_RANKS)
    """Context-parallel degree."""
    expert_parallel: int = Field(default=1, ge=1, le=MOST_RANKS)
    """Expert-parallel degree, inside data x context parallel."""
    expert_tensor_parallel: int = Field(default=1, ge=1, le=MOST_RANKS)
    """Tensor-parallel degree of the experts; Megatron's default is the tensor-parallel degree."""
    data_parallel: int = Field(ge=1, le=MOST_RANKS)
    """Replicas of every stage."""
    microbatch_size: int = Field(ge=1, le=MOST_SEQUENCES)
    """Sequences of a micro-batch."""
    num_microbatches: int = Field(ge=1, le=MOST_SEQUENCES)
    """Micro-batches of a step on one replica."""
    virtual_stages: int = Field(default=1, ge=1)
    """Virtual stages of each pipeline rank."""
    microbatch_group_size: int | None = Field(default=None, ge=1)
    """With virtual stages: micro-batches that pass one of them before the next takes its turn; null is as
    many as there are stages (Megatron-LM's microbatch_group_size_per_vp_stage)."""
    prediction_stage: int | None = Field(default=None, ge=0)
    """Stage whose last virtual stage ends with the multi-token-prediction layers, the one before the last;
    null leaves them with the loss on the last stage."""
    sequence_parallel: bool = False
    """Whether the tensor-parallel ranks split the sequence between the matrix products."""
    dp_mode: DpMode = "distopt"
    """What the data-parallel ranks shard."""
    recompute_modules: tuple[SelectiveModule, ...] | None = Field(default=None, min_length=1)
    """What stages with selective recomputation run again; null takes what the software stack says."""
    rank_order: Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"] = "tp-cp-ep-dp-pp"
    """Axes of the ranks, fastest first."""
    stages: tuple[Stage, ...] = Field(min_length=1)
    """Stages in pipeline order."""
    pipelines: tuple[Pipeline, ...] | None = None
    """Pipelines of different shape or with different shares of the batch, each with all layers; `stages` then
    lists the stages of all of them, and the values above are those of the first."""
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
        if self.prediction_stage is not None and self.prediction_stage >= len(self.stages):
            raise ValueError(
                f"prediction_stage {self.prediction_stage}: there are {len(self.stages)} stages, from 0 on"
            )
        return self

    @model_validator(mode="after")
    def _replicas_match(self) -> Plan:
        for i, stage in enumerate(self.stages):
            if stage.replicas is None:
                continue
            if not len(stage.replicas) == stage.data_parallel == self.data_parallel:
                raise ValueError(
                    f"stages[{i}] lists {len(stage.replicas)} replicas, its data_parallel is "
                    f"{stage.data_parallel}, the plan's {self.data_parallel}; all three must agree"
                )
            first = stage.replicas[0]
            if (stage.node_class, stage.chip) != (first.node_class, first.chip):
                raise ValueError(
                    f"stages[{i}] is on {stage.node_class} ({stage.chip}), its first replica on "
                    f"{first.node_class} ({first.chip}); both must agree"
                )
            hosts = tuple(dict.fromkeys(host for replica in stage.replicas for host in replica.hosts))
            if stage.hosts != hosts:
                raise ValueError(
                    f"stages[{i}].hosts must list the hosts of its replicas in order: {', '.join(hosts)}"
                )
        return self

    @model_validator(mode="after")
    def _pipelines_match(self) -> Plan:
        if self.pipelines is None:
            return self
        counts = [pipeline.num_stages for pipeline in self.pipelines]
        if sum(counts) != len(self.stages):
            raise ValueError(f"pipelines have {sum(counts)} stages in all, stages lists {len(self.stages)}")
        if self.virtual_stages > 1 or self.mixes_chips:
            raise ValueError("pipelines go without virtual stages and without replicas of a stage")
        for i, stages in enumerate(self._stages_of_pipelines()):
            degrees = sorted({stage.data_parallel for stage in stages})
            if len(degrees) > 1:
                raise ValueError(f"pipelines[{i}]: its stages have data_parallel {degrees}; all must agree")
        return self

    def _stages_of_pipelines(self) -> list[tuple[Stage, ...]]:
        found, first = [], 0
        for pipeline in self.pipelines or ():
            found.append(self.stages[first : first + pipeline.num_stages])
            first += pipeline.num_stages
        return found

    @property
    def pipeline_plans(self) -> tuple[Plan, ...]:
        """Each pipeline as a plan of its own; the plan itself where it does not list any."""
        if self.pipelines is None:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "tensor_parallel": stages[0].tensor_parallel,
                    "data_parallel": stages[0].data_parallel,
                    "microbatch_size": pipeline.microbatch_size,
                    "num_microbatches": pipeline.num_microbatches,
                    "sequence_parallel": self.sequence_parallel
                    and max(stage.tensor_parallel for stage in stages) > 1,
                    "stages": stages,
                    "pipelines": None,
                }
            )
            for pipeline, stages in zip(self.pipelines, self._stages_of_pipelines(), strict=True)
        )

    @property
    def mixes_chips(self) -> bool:
        """Whether a stage lists its replicas one by one."""
        return any(stage.replicas is not None for stage in self.stages)

    @property
    def degrees_differ(self) -> bool:
        """Whether a stage has another tensor- or data-parallel degree than the plan."""
        own = (self.tensor_parallel, self.data_parallel)
        return any(of_stage != own for of_stage in self.stage_degrees)

    @property
    def stage_degrees(self) -> list[tuple[int, int]]:
        """Tensor and data parallelism of every stage."""
        return [(stage.tensor_parallel, stage.data_parallel) for stage in self.stages]

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
        if self.mixes_chips or self.degrees_differ or self.pipelines is not None:
            return self.context_parallel * sum(sum(s.tensor_parallel_degrees) for s in self.stages)
        return self.stage_size * len(self.stages)
