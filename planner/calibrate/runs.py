"""Measured training runs as they stand in a file: one JSON object a line, read but not interpreted.

What a missing value means is decided in `convert.py`; here a value is only checked for its type, so
that a broken file is refused with its line number, while a run with a null where a number must stand is
kept, to be skipped with the reason. Keys that we do not know are ignored on purpose: the files are other
people's, and grow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner.data.checks import MAX_CHIPS, MAX_LAYERS
from planner.data.explain import explained
from planner.data.read import decode, read_raw
from planner.errors import InstanceError
from planner.units import MIB

MAX_FILE_BYTES = 512 * MIB
"""Larger than any list of runs: the largest known is 2.5 MB."""


class Read(BaseModel):
    """A frozen record of someone else's file: unknown keys are ignored, null says what an absent key says."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {key: value for key, value in values.items() if value is not None or key not in optional}


class RunGroup(Read):
    """Nodes of one chip."""

    chip: str
    """Id of the chip."""
    num_chips: int = Field(ge=1, le=MAX_CHIPS)
    """Chips of the run."""
    chips_per_node: int | None = Field(default=None, ge=1)
    """Chips in one node; null takes the chip's usual node."""
    inter_node_gbit_per_s: float | None = Field(default=None, gt=0)
    """Rate of one node towards the others, where the source says it [Gbit/s]."""
    intra_node_gbit_per_s: float | None = Field(default=None, gt=0)
    """Rate that messages between two chips of a node reach, where the source says it [Gbit/s]."""


class RunCluster(Read):
    """Where it ran."""

    groups: tuple[RunGroup, ...] = Field(min_length=1)
    """Groups of alike nodes."""

    @property
    def num_chips(self) -> int:
        """Chips of all groups."""
        return sum(g.num_chips for g in self.groups)


class RunMoe(Read):
    """Experts of the model."""

    num_experts: int = Field(ge=1)
    """Routed experts of a layer."""
    top_k: int = Field(ge=1)
    """Routed experts that a token visits."""
    ffn_hidden_size: int = Field(ge=1)
    """Width of one routed expert."""
    shared_ffn_hidden_size: int = Field(default=0, ge=0)
    """Width of all shared experts."""
    first_dense_layers: int = Field(default=0, ge=0)
    """Leading dense layers."""
    moe_layer_freq: int = Field(default=1, ge=1)
    """2 where every second layer has experts."""
    local_experts: int | None = Field(default=None, ge=1)
    """Experts really held, where one chip ran alone."""


class RunModel(Read):
    """What was trained."""

    name: str
    """The source's name of the model."""
    num_layers: int = Field(ge=1, le=MAX_LAYERS)
    """Blocks."""
    hidden_size: int = Field(ge=1)
    """Width."""
    ffn_hidden_size: int | None = Field(default=None, ge=0)
    """Width of a dense feed-forward block."""
    num_attention_heads: int = Field(ge=1)
    """Query heads."""
    num_query_groups: int | None = Field(default=None, ge=1)
    """Key and value heads; null takes the query heads."""
    head_dim: int | None = Field(default=None, ge=1)
    """Width of a head; null takes hidden size / heads."""
    vocab_size: int | None = Field(default=None, ge=1)
    """Entries of the vocabulary."""
    moe: RunMoe | None = None
    """Experts; null where dense or unknown."""
    kind: str | None = None
    """`llama` or `gpt`, where the source says it."""
    tied_embeddings: bool | None = None
    """Whether the head shares the embedding's weights."""


class RunWorkload(Read):
    """What one step did."""

    seq_length: int = Field(ge=1)
    """Tokens of a sequence."""
    global_batch_size: int | None = Field(default=None, ge=1)
    """Sequences of a step."""
    precision: str | None = None
    """Number format."""


class RunDevice(Read):
    """One rank of a stage."""

    node: int = Field(ge=0)
    """Node, counted over the cluster."""
    chip: str
    """Its chip."""


class RunReplica(Read):
    """One data-parallel rank of a stage."""

    chip: str
    """Its chip."""
    tensor_parallel: int = Field(ge=1)
    """Chips that share its layers."""


class RunStage(Read):
    """One stage of an uneven or mixed layout."""

    num_layers: int = Field(ge=0)
    """Blocks of the stage."""
    embedding: bool = False
    """Whether it holds the embedding."""
    head: bool = False
    """Whether it holds the head."""
    tensor_parallel: int | None = Field(default=None, ge=1)
    """Its tensor-parallel degree."""
    devices: tuple[RunDevice, ...] | None = None
    """One entry a rank."""
    replicas: tuple[RunReplica, ...] | None = None
    """One entry a data-parallel rank."""


class RunPlan(Read):
    """How it was laid out."""

    tensor_parallel: int | None = Field(default=None, ge=1)
    """Tensor-parallel degree."""
    pipeline_parallel: int | None = Field(default=None, ge=1)
    """Stages."""
    context_parallel: int | None = Field(default=None, ge=1)
    """Context-parallel degree."""
    expert_parallel: int | None = Field(default=None, ge=1)
    """Expert-parallel degree."""
    expert_tensor_parallel: int | None = Field(default=None, ge=1)
    """Tensor-parallel degree of the experts."""
    virtual_stages: int | None = Field(default=None, ge=1)
    """Virtual stages of a rank."""
    data_parallel: int | None = Field(default=None, ge=1)
    """Replicas."""
    dp_mode: str | None = None
    """What the replicas shard."""
    microbatch_size: int | None = Field(default=None, ge=1)
    """Sequences of a micro-batch."""
    recompute: str | None = None
    """none, selective or full."""
    sequence_parallel: bool | None = None
    """Whether the tensor-parallel ranks split the sequence."""
    optimizer_shard_size: int | None = Field(default=None, ge=1)
    """Ranks that share the optimizer state, where not all do."""
    stages: tuple[RunStage, ...] | None = None
    """Stages, where the layout is uneven or mixed."""
    shard_of_one_rank_only: bool = False
    """Whether one chip computed the shard of one rank, without any collective."""


class Measured(Read):
    """What was measured."""

    step_s: float | None = Field(default=None, gt=0)
    """Time of one step [s]."""
    peak_memory_gib: float | None = Field(default=None, gt=0)
    """Peak memory of the fullest chip [GiB]."""
    failed: bool = False
    """Whether the run did not finish."""


class Run(Read):
    """One measured run."""

    id: str
    """Unique name."""
    source: str
    """Who published it: the suite."""
    software: str = ""
    """Training software, in the source's words."""
    quality: str = "high"
    """high, medium or low."""
    cluster: RunCluster
    """Where it ran."""
    model: RunModel
    """What was trained."""
    workload: RunWorkload
    """What one step did."""
    plan: RunPlan
    """How it was laid out."""
    measured: Measured
    """What was measured."""
    memory_kind: Literal["allocated", "reserved", "device"] | None = None
    """What the memory figure counts: allocated, reserved, device; null where the source does not say."""
    notes: str | None = None
    """What else the source says."""
    unstated: tuple[str, ...] = ()
    """Fields that must be known and are null; placeholders stand in their place."""

    @property
    def text(self) -> str:
        """Software and notes, for patterns."""
        return f"{self.software} | {self.notes or ''}"


def read_runs(path: str | Path) -> tuple[Run, ...]:
    """All runs of a file, in its order.

    Raises
    ------
    InstanceError
        Where the file is missing, unreadable, too large or empty, or a line is no run; the line is named.
    """
    path = Path(path)
    runs = tuple(_parse(line, f"{path}: line {number}") for number, line in _lines(path))
    if not runs:
        raise InstanceError("the file holds no run; expected one JSON object a line", str(path))
    return runs


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of every line that is not blank."""
    where = str(path)
    text = decode(read_raw(path, where, "JSON-lines file of runs", MAX_FILE_BYTES), where)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def _parse(line: str, where: str) -> Run:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InstanceError(f"is no JSON: {error.msg} at column {error.colno}", where) from None
    except ValueError:  # Python reads no whole number that long
        raise InstanceError("holds a number of more than 4300 digits", where) from None
    except RecursionError:
        raise InstanceError("is nested too deeply", where) from None
    if not isinstance(record, dict):
        raise InstanceError(f"is a JSON {type(record).__name__}, expected an object", where)
    record.pop("unstated", None)
    try:
        return Run.model_validate(record)
    except ValidationError as error:
        nulls = [e for e in error.errors() if e["input"] is None and e["type"] in PLACEHOLDERS]
        for null in nulls:
            _put(record, null["loc"], PLACEHOLDERS[null["type"]])
        record["unstated"] = [".".join(map(str, null["loc"])) for null in nulls]
        try:
            return Run.model_validate(record)
        except ValidationError:
            raise explained(Run, error, where) from None


PLACEHOLDERS = {"int_type": 1, "string_type": "unstated"}
"""What stands for a number or a word that is null."""


def _put(record: Any, location: tuple[int | str, ...], value: Any) -> None:
    """Put a value where an error was found."""
    *parents, last = location
    for parent in parents:
        record = record[parent]
    record[last] = value
