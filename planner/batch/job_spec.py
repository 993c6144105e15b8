"""What one entry of a jobs file may say, and the limits of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model

from planner.data.base import Data
from planner.data.chip import Precision
from planner.data.cluster import Cluster
from planner.data.explain import validated
from planner.data.model_spec import ModelSpec
from planner.data.options import Options
from planner.data.problem import TargetName
from planner.data.stack import SoftwareStack

OPTION_NAMES = tuple(Options.model_fields)
"""Fields of an entry that become options of its problem."""

RETRIES = 1
"""How often a job is tried again whose worker died, unless the entry says otherwise."""

GRACE_S = 30.0
"""A search that ignores its time limit for this long beyond half as much again is killed [s]; a guess."""


Kind = Literal["plan", "node_loss", "growth", "sweep", "fleet_split", "robustness"]
"""One plan; or a study, which asks for the plan as it stands and for variants of it."""


LostCount = Annotated[int, Field(ge=1)]


class Candidate(Data):
    """Nodes that may be bought."""

    add: str
    """Nodes in short form, such as `2x8 h100-sxm-80gb`."""
    price_usd: float | None = Field(default=None, gt=0)
    """Price of all of them [$]."""
    name: str | None = None
    """Name in the results; the nodes where absent."""


class Training(Data):
    """One of several trainings that share a cluster."""

    name: str | None = None
    """Name in the results; the model where absent."""
    model: str | ModelSpec
    """Shipped model, model file, or a model inline."""
    seq_length: int = Field(ge=1)
    """Tokens of a sequence."""
    global_batch_size: int = Field(ge=1)
    """Sequences of a training step."""
    precision: Precision = "bf16"
    """Number format of the matrix products."""
    tokens: float = Field(default=1.0, gt=0)
    """Tokens to train on in all, against those of the others: the slowest is the last one to finish."""
    weight: float = Field(default=1.0, gt=0)
    """What a token of it is worth, against those of the others, where their sum is wanted."""


if TYPE_CHECKING:
    Wishes = Data
else:
    Wishes = create_model(
        "Wishes",
        __base__=Data,
        **{name: (field.annotation | None, None) for name, field in Options.model_fields.items()},
    )
    """Every option of a problem, or none."""


class JobSpec(Wishes):
    """One entry of a jobs file: the fields of `hetplan plan`, all options, and the job's limits."""

    name: str | None = Field(default=None, min_length=1)
    """Name in the list of results; made of the other fields where absent."""
    kind: Kind = "plan"
    """What is asked."""
    lose: LostCount | dict[str, LostCount] | None = None
    """Of `node_loss`: each class without 1 to this many nodes; or nodes of each class, by its name, that are
    lost together. [default: 1]"""
    within: float | None = Field(default=None, ge=0)
    """Of `node_loss`: how much slower than the best the plan may be that changes least. [default: 0.05]"""
    draws: int | None = Field(default=None, ge=1, le=10_000)
    """Of `robustness`: how often chip, link and memory numbers are drawn. [default: 20]"""
    candidates: tuple[Candidate, ...] | None = None
    """Of `growth`: what may be bought; each is added alone."""
    values: dict[str, tuple[int, ...]] | None = None
    """Of `sweep`: values of global_batch_size and seq_length, each changed alone."""
    trainings: tuple[Training, ...] | None = None
    """Of `fleet_split`: what shares the cluster."""
    one_class: bool | None = None
    """Of `fleet_split`: whether every share lies on one class, as where classes are clusters apart.
    [default: false]"""
    node_step: int | None = Field(default=None, ge=1)
    """Of `fleet_split`: shares of a class are multiples of this, and the whole class. [default: 1]"""
    problem: str | None = None
    """Shipped problem or problem file; the fields below replace its own."""
    cluster: str | Cluster | None = None
    """Shipped cluster, cluster file, nodes in short form, or a cluster inline."""
    model: str | ModelSpec | None = None
    """Shipped model, model file, or a model inline."""
    seq_length: int | None = Field(default=None, ge=1)
    """Tokens of a sequence."""
    global_batch_size: int | None = Field(default=None, ge=1)
    """Sequences of a training step."""
    precision: Precision | None = None
    """Number format of the matrix products."""
    expert_imbalance: float | None = Field(default=None, ge=1)
    """Tokens that come to the busiest rank's experts, over an even share of all."""
    target: TargetName | None = None
    """Launcher that must be able to run the plan."""
    stack: str | SoftwareStack | None = None
    """Training software."""
    node_usd_per_hour: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Price of a node by chip or by class [$ an hour]; it changes no plan, and tells what plans cost."""
    timeout_s: float | None = Field(default=None, gt=0)
    """The job is killed after this time [s]; null: well after `time_limit_s`, or never without one."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Most memory that the job's process may take on this machine [GiB]."""
    retries: int | None = Field(default=None, ge=0, le=100)
    """How often to try again where the job's process dies."""

    def options(self) -> dict[str, Any]:
        """Options that the entry sets."""
        values = {name: getattr(self, name) for name in OPTION_NAMES}
        return {name: value for name, value in values.items() if value is not None}


_ALIASES = {
    "memory_reserve": "memory_reserve_fraction",
    "max_pp": "max_pipeline_parallel",
    "max_vp": "max_virtual_stages",
}
"""Flags of `hetplan plan` that are called otherwise in a problem's options."""


def _plain(key: str, value: Any) -> Any:
    """A wish written as the flag takes it, in the form of the options: `pin: tp=8`, `forbid: tp=8`."""
    if key not in ("pin", "forbid", "spare", "use") or isinstance(value, dict):
        return value
    wishes = [value] if isinstance(value, str) else value
    if key != "pin" or not isinstance(wishes, list):
        return wishes
    parts = [wish.partition("=") if isinstance(wish, str) else ("", "", "") for wish in wishes]
    if not all(number.isdecimal() for _, _, number in parts):
        return value  # refused below, as it stands
    return {name: int(number) for name, _, number in parts}


def job_spec(values: Any, where: str, prefix: str) -> JobSpec:
    """An entry from plain values, each value in range.

    Raises
    ------
    InstanceError
        On an unknown key or a wrong value, with the entry's place in the file.
    """
    if isinstance(values, dict):
        values = {_ALIASES.get(key, key): _plain(key, value) for key, value in values.items()}
    spec = validated(JobSpec, values, where, prefix)
    if wishes := spec.options():
        validated(Options, wishes, where, prefix)
    return spec


@dataclass(frozen=True)
class Limits:
    """How much a job may use before it is given up. None of them is part of the question itself.

    Parameters
    ----------
    time_limit_s
        Limit of the search [s]; None for none.
    timeout_s
        When the process is killed [s]; None for never.
    memory_gib
        Memory of the process [GiB]; None for no limit.
    retries
        More attempts where the process dies.
    """

    time_limit_s: float | None = None
    timeout_s: float | None = None
    memory_gib: float | None = None
    retries: int = RETRIES

    @property
    def kill_after_s(self) -> float | None:
        """When the process is killed [s]."""
        if self.timeout_s is not None or self.time_limit_s is None:
            return self.timeout_s
        return 1.5 * self.time_limit_s + GRACE_S


def limits_of(spec: JobSpec, options: Options) -> Limits:
    """Limits of an entry whose problem came out with these options."""
    return Limits(
        time_limit_s=options.time_limit_s,
        timeout_s=spec.timeout_s,
        memory_gib=spec.memory_gib,
        retries=RETRIES if spec.retries is None else spec.retries,
    )
