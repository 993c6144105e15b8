"""The cluster: classes of identical nodes, and the links between them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from planner.data.base import Data
from planner.units import BYTES_PER_GBIT, US

Transport = Literal["rdma", "host_staged", "tcp"]
ETHERNET_MTU_BYTES = 1500
"""Largest packet of Ethernet where nobody asked for larger ones (IEEE 802.3)."""
RateBasis = Literal["rated", "measured"]


class NodeClass(Data):
    """Nodes that are all alike; the planner counts them and never tells them apart."""

    name: str = Field(min_length=1)
    """Name of the class, unique in the cluster."""
    chip: str
    """Id of the chip in these nodes."""
    num_nodes: int = Field(ge=1)
    """How many nodes."""
    chips_per_node: int = Field(ge=1)
    """Chips in one node."""
    nics_per_node: int = Field(ge=0)
    """Network adapters of one node; 0 where the node is alone."""
    nic_gbit_per_s: float = Field(ge=0)
    """Rate of one adapter, one way [Gbit/s]."""
    latency_us: float = Field(default=5.0, ge=0)
    """Latency of a message between two nodes of the class [us]."""
    nic_make: str | None = None
    """Maker of the adapters, such as mellanox or broadcom; null where unknown."""
    transport: Transport = "rdma"
    """How data leaves a node: device-direct RDMA, staged through the host, or TCP."""
    rate_basis: RateBasis = "rated"
    """Whether the rate is the adapters' own, or what large messages were measured to reach."""
    nodes_per_switch: int | None = Field(default=None, ge=1)
    """Nodes that reach each other at the adapters' full rate: those of one leaf switch, or of one switch a
    rail where adapter i of every node goes to switch i; null where all nodes do."""
    oversubscription: float = Field(default=1.0, ge=1)
    """Rate into such a group of nodes over the rate out of it."""
    intra_node_bandwidth_gb_per_s: float | None = Field(default=None, gt=0)
    """One-way bandwidth of a chip inside the node [GB/s]; null takes the chip's."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Usable memory of a chip, where these nodes differ from the chip's own figure [GiB]."""
    hosts: tuple[str, ...] | None = None
    """Host names in order; null lets the planner invent them."""
    price_usd_per_hour: float | None = Field(default=None, ge=0)
    """Price of one node [$/h]."""
    power_kw: float | None = Field(default=None, ge=0)
    """Power that one node draws while it trains [kW]."""
    pace_chips: int | None = Field(default=None, ge=1)
    """Chips whose slowest sets the pace, where these nodes are some of a larger class; null takes those of
    this class."""
    note: str = ""
    """Anything a reader should know."""

    @model_validator(mode="after")
    def _hosts_match(self) -> NodeClass:
        if self.hosts is not None:
            if len(self.hosts) != self.num_nodes:
                raise ValueError(f"hosts lists {len(self.hosts)} names, num_nodes is {self.num_nodes}")
            if len(set(self.hosts)) != len(self.hosts):
                raise ValueError("hosts lists a name twice")
        return self

    @model_validator(mode="after")
    def _oversubscription_has_a_place(self) -> NodeClass:
        if self.oversubscription > 1 and self.nodes_per_switch is None:
            raise ValueError(
                f"oversubscription {self.oversubscription:g} needs nodes_per_switch, the nodes that it joins"
            )
        return self

    @property
    def num_chips(self) -> int:
        """Chips of the whole class."""
        return self.num_nodes * self.chips_per_node

    @property
    def num_pacing_chips(self) -> int:
        """Chips whose slowest sets the pace."""
        return self.pace_chips or self.num_chips

    @property
    def node_bandwidth_bytes_per_s(self) -> float:
        """All adapters of one node together, one way [bytes/s]."""
        return self.nics_per_node * self.nic_gbit_per_s * BYTES_PER_GBIT

    @property
    def latency_s(self) -> float:
        """Latency of a message between two nodes of the class [s]."""
        return self.latency_us * US


class Link(Data):
    """How two classes reach each other, where it is not simply the slower of their adapters."""

    between: tuple[str, str]
    """Names of the two classes."""
    gbit_per_s: float = Field(gt=0)
    """Rate that one node of either class gets towards the other, one way [Gbit/s]."""
    latency_us: float = Field(default=5.0, ge=0)
    """Latency of a message [us]."""
    transport: Transport = "rdma"
    """How data travels."""
    rate_basis: RateBasis = "rated"
    """Whether the rate is the adapters' own, or what large messages were measured to reach."""
    note: str = ""
    """Anything a reader should know."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Rate of one node, one way [bytes/s]."""
        return self.gbit_per_s * BYTES_PER_GBIT

    @property
    def latency_s(self) -> float:
        """Latency of a message [s]."""
        return self.latency_us * US


class Cluster(Data):
    """Node classes and the links between them."""

    id: str = Field(min_length=1)
    """Name used in problems."""
    classes: tuple[NodeClass, ...] = Field(min_length=1)
    """Classes of identical nodes."""
    links: tuple[Link, ...] = ()
    """Links between classes; a pair not listed gets the slower side's adapters."""
    mtu_bytes: int = Field(default=ETHERNET_MTU_BYTES, ge=576, le=65535)
    """Largest packet between nodes, of which TCP's headers take their part; 9001 within a network of Amazon
    EC2."""
    basis: Literal["measured", "stated", "datasheet", "recalled", "chosen"] = "chosen"
    """What the figures rest on."""
    source: str = ""
    """Where the figures come from."""
    note: str = ""
    """Anything a reader should know."""
    assumptions: tuple[str, ...] = ()
    """What was filled in because nobody said it."""

    @model_validator(mode="after")
    def _names_are_known(self) -> Cluster:
        names = [c.name for c in self.classes]
        if len(set(names)) != len(names):
            raise ValueError("two classes share a name")
        for link in self.links:
            for name in link.between:
                if name not in names:
                    raise ValueError(f"link between {link.between}: no class is named {name!r}")
            if len(set(link.between)) == 1:
                raise ValueError(
                    f"link between {link.between}: nodes of one class reach each other through its own "
                    "adapters; state nic_gbit_per_s, latency_us and transport of the class"
                )
        pairs = [frozenset(link.between) for link in self.links]
        if len(set(pairs)) != len(pairs):
            twice = next(pair for pair in pairs if pairs.count(pair) > 1)
            raise ValueError(f"two links between {' and '.join(sorted(twice))}; keep one")
        hosts = [h for c in self.classes for h in c.hosts or ()]
        if len(set(hosts)) != len(hosts):
            raise ValueError("two classes list the same host")
        return self

    @property
    def num_chips(self) -> int:
        """Chips of the whole cluster."""
        return sum(c.num_chips for c in self.classes)

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole cluster."""
        return sum(c.num_nodes for c in self.classes)

    def class_index(self, name: str) -> int:
        """Position of a class by its name; KeyError where there is none."""
        for i, node_class in enumerate(self.classes):
            if node_class.name == name:
                return i
        raise KeyError(name)

    def hosts_of(self, class_index: int) -> tuple[str, ...]:
        """Host names of a class, in order; `node000` ... counted over the cluster where invented."""
        node_class = self.classes[class_index]
        if node_class.hosts is not None:
            return node_class.hosts
        taken = {h for c in self.classes for h in c.hosts or ()}
        start = sum(c.num_nodes for c in self.classes[:class_index])
        width = max(3, len(str(self.num_nodes - 1)))
        names = tuple(f"node{start + i:0{width}d}" for i in range(node_class.num_nodes))
        return tuple(f"{node_class.name}-{n}" if n in taken else n for n in names)

    def rate_is_measured(self, a: int, b: int) -> bool:
        """Whether the rate between two classes (or within one) is what large messages reached."""
        first, second = self.classes[a], self.classes[b]
        for link in self.links if a != b else ():
            if set(link.between) == {first.name, second.name}:
                return link.rate_basis == "measured"
        return first.rate_basis == second.rate_basis == "measured"

    def link_between(self, a: int, b: int) -> tuple[float, float, Transport]:
        """Rate of one node [bytes/s], latency [s] and transport between two classes (or within one)."""
        first, second = self.classes[a], self.classes[b]
        if a == b:
            return first.node_bandwidth_bytes_per_s, first.latency_s, first.transport
        for link in self.links:
            if set(link.between) == {first.name, second.name}:
                return link.bandwidth_bytes_per_s, link.latency_s, link.transport
        order: tuple[Transport, ...] = ("rdma", "host_staged", "tcp")
        transport = max(first.transport, second.transport, key=order.index)
        return (
            min(first.node_bandwidth_bytes_per_s, second.node_bandwidth_bytes_per_s),
            max(first.latency_s, second.latency_s),
            transport,
        )
