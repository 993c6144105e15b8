"""A problem: cluster, model, workload, target and software, checked against each other once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from planner.data.base import Data
from planner.data.chip import Chip
from planner.data.cluster import Cluster, NodeClass
from planner.data.layer_profile import LayerProfile
from planner.data.model_spec import ModelSpec
from planner.data.options import Options
from planner.data.stack import SoftwareStack
from planner.data.workload import Workload
from planner.units import GIB

USUAL_SEQUENCES, USUAL_TOKENS = 8, 65_536
"""Sequences, and tokens, up to which micro-batches are looked at where nobody says otherwise: 8 sequences of
8,192 tokens. On more no product of a layer gets faster, while the pipeline fills longer. A guess, of what the
search covers."""

TargetName = Literal["megatron-lm", "megatron-bridge", "flagscale", "unrestricted"]


class ProfileSource(Data):
    """A layer profile in someone else's format."""

    file: str
    """Table of layer times (.csv), or folder with one JSON file a point; relative to the problem's file."""
    model: str | None = None
    """Name of the model in the table, where it holds several."""
    chip: str | None = None
    """Chip of the folder; null takes the folder's name."""
    value_bytes: float = Field(default=4.0, gt=0)
    """Bytes of an activation value as it was computed: 4 in fp32, else 2."""


class ProblemFile(Data):
    """A problem as it stands in a file: names of shipped instances, or the objects inline."""

    name: str = ""
    """Name shown in tables; the file's name where absent."""
    cluster: str | Cluster
    """Id of a shipped cluster, nodes in short form (`4x8 h100-sxm-80gb, ...`), or a cluster inline."""
    model: str | ModelSpec
    """Id of a shipped model, or a model inline."""
    workload: Workload
    """Sequence length, batch and precision."""
    target: TargetName = "megatron-lm"
    """Launcher that must be able to run the plan."""
    stack: str | SoftwareStack = "megatron-core"
    """Id of a shipped software stack, or one inline."""
    chips: tuple[Chip, ...] = ()
    """Chips that are not shipped, for use in the cluster."""
    profiles: tuple[LayerProfile | ProfileSource | str, ...] = ()
    """Measured layer times that replace the operator model: inline, a file, or the name of shipped ones."""
    options: Options = Options()
    """Limits and wishes."""
    note: str = ""
    """Anything a reader should know."""


class Problem(Data):
    """A problem with every name resolved; in hand, it is valid."""

    name: str
    """Name shown in tables."""
    cluster: Cluster
    """Node classes and links."""
    chips: dict[str, Chip]
    """Chip of every id that the cluster names."""
    model: ModelSpec
    """The network."""
    workload: Workload
    """Sequence length, batch and precision."""
    target: TargetName = "megatron-lm"
    """Launcher that must be able to run the plan."""
    stack: SoftwareStack = Field(default_factory=lambda: SoftwareStack(id="megatron-core"))
    """Training software."""
    options: Options = Options()
    """Limits and wishes."""
    profiles: tuple[LayerProfile, ...] = ()
    """Measured layer times by chip, which replace the operator model."""

    @model_validator(mode="after")
    def _chips_are_known(self) -> Problem:
        for node_class in self.cluster.classes:
            if node_class.chip not in self.chips:
                raise ValueError(f"class {node_class.name}: chip {node_class.chip!r} is not given")
        return self

    @model_validator(mode="after")
    def _spare_classes_exist(self) -> Problem:
        names = [node_class.name for node_class in self.cluster.classes]
        for name in self.options.spare:
            if name not in names:
                raise ValueError(
                    f"options.spare: no class is named {name!r}; the cluster has {', '.join(names)}"
                )
        for name in self.options.use:
            if name not in names or name in self.options.spare:
                raise ValueError(
                    f"options.use: {name!r} is "
                    + ("spared as well" if name in names else f"no class of the cluster, {', '.join(names)}")
                )
        if set(names) <= set(self.options.spare):
            raise ValueError("options.spare: keeps every class idle; leave one out")
        return self

    @property
    def most_microbatch_size(self) -> int:
        """Largest micro-batch that is looked at [sequences]."""
        wished, length = self.options.max_microbatch_size, self.workload.seq_length
        return wished or max(USUAL_SEQUENCES, USUAL_TOKENS // length)

    def chip_of(self, class_index: int) -> Chip:
        """Chip in the nodes of a class."""
        return self.chips[self.cluster.classes[class_index].chip]

    def profile_of(self, class_index: int) -> LayerProfile | None:
        """Measured layer times of a class's chip; None where the operator model prices it."""
        chip = self.cluster.classes[class_index].chip
        return next((profile for profile in self.profiles if profile.chip == chip), None)

    def usable_memory_bytes(self, class_index: int) -> float:
        """Memory of one chip of a class before the reserve is taken off [bytes]."""
        node_class: NodeClass = self.cluster.classes[class_index]
        if node_class.memory_gib is not None:
            return node_class.memory_gib * GIB
        return self.chip_of(class_index).memory_bytes

    def fast_domain_chips(self, class_index: int) -> int:
        """Chips that fast links join for a job: a node's, or as many nodes of a rack as make a power of two.

        Jobs take racks in segments of 16 of their 18 nodes, so that groups of powers of two stay inside: "The
        recommended max segment size is 16" (docs.coreweave.com, Slurm Block Topology, of NVL72 racks).
        """
        on_node, in_rack = (
            self.cluster.classes[class_index].chips_per_node,
            self.chip_of(class_index).scale_up_chips,
        )
        if in_rack is None or in_rack <= on_node:
            return on_node
        return on_node << ((in_rack // on_node).bit_length() - 1)

    @property
    def least_fast_domain_chips(self) -> int:
        """Chips that fast links join on every class of the cluster."""
        return min(self.fast_domain_chips(i) for i in range(len(self.cluster.classes)))

    def memory_limit_bytes(self, class_index: int) -> float:
        """Memory that a plan may reserve on one chip of a class [bytes]."""
        return (1 - self.options.memory_reserve_fraction) * self.usable_memory_bytes(class_index)
