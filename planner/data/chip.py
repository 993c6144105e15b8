"""A type of accelerator: what its datasheet or its driver says."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from planner.data.base import Data
from planner.units import GB, GIB, MIB, TFLOP

Backend = Literal["cuda", "rocm", "ascend", "gaudi", "tpu", "neuron", "musa", "maca", "xpu"]
Precision = Literal["fp16", "bf16", "fp8", "fp8_block", "mxfp8", "nvfp4"]
HALF_PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16")
"""Those of 16 bits; of the others products read fewer."""


class Chip(Data):
    """One accelerator as the host sees it: memory, peak rates, link to its neighbours in the node."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")
    """Name used in clusters and plans, such as `h100-sxm-80gb`."""
    name: str
    """The vendor's own name."""
    vendor: str
    """Who makes it."""
    backend: Backend
    """Programming platform, which decides the communication library and the launch environment."""
    aliases: tuple[str, ...] = ()
    """Other spellings that are understood."""
    memory_gib: float = Field(gt=0)
    """Nominal memory [GiB]."""
    memory_mib_reported: float | None = Field(default=None, gt=0)
    """Memory that the driver reports, where known [MiB]."""
    bf16_tflop_per_s: float | None = Field(default=None, gt=0)
    """Dense bf16 peak with fp32 accumulation [TFLOP/s]; null where the chip has no bf16."""
    fp16_tflop_per_s: float | None = Field(default=None, gt=0)
    """Dense fp16 peak [TFLOP/s]."""
    fp8_tflop_per_s: float | None = Field(default=None, gt=0)
    """Dense fp8 peak [TFLOP/s]; null where the chip has no fp8."""
    sustained_tflop_per_s: float | None = Field(default=None, gt=0)
    """Rate of long 16-bit products at the power limit, where somebody measured it [TFLOP/s]."""
    best_matmul_tflop_per_s: float | None = Field(default=None, gt=0)
    """Rate of the fastest 16-bit product that anybody found on it [TFLOP/s]."""
    power_limit_w: float | None = Field(default=None, gt=0)
    """Power limit of the board where it is below that of the chip's usual build [W]."""
    memory_bandwidth_gb_per_s: float = Field(gt=0)
    """Peak memory bandwidth [GB/s]."""
    memory_reached_gb_per_s: float | None = Field(default=None, gt=0)
    """Memory bandwidth that reads and writes reach, where somebody measured it on this chip [GB/s]."""
    intra_node_bandwidth_gb_per_s: float = Field(gt=0)
    """One-way bandwidth of one chip to its neighbours in the node [GB/s]."""
    peer_bandwidth_gb_per_s: float | None = Field(default=None, gt=0)
    """One-way bandwidth to a single neighbour in the node, where links join the chips in pairs and no switch
    lets one neighbour use all of them; null where one does, or where all share the host's bridges [GB/s]."""
    intra_node_kind: str = ""
    """What that link is."""
    nics_per_node: int | None = Field(default=None, ge=0)
    """Network adapters that a usual node of this chip has; null where unknown."""
    nic_gbit_per_s: float | None = Field(default=None, ge=0)
    """Rate of one such adapter [Gbit/s]."""
    chips_per_node: int = Field(ge=1)
    """Chips that a usual node of this chip has."""
    scale_up_chips: int | None = Field(default=None, ge=1)
    """Chips that the fast links join where they reach beyond one node (72 in an NVL72 rack)."""
    own_lanes: bool = False
    """Whether chips of a usual node reach its processor over PCIe lanes that no switch shares among them."""
    switch_reduces: bool = False
    """Whether the switches between the chips of a node add up what they pass on (NVLink SHARP)."""
    host_launch_factor: float = Field(default=1.0, gt=0)
    """Time that the processor of its usual node takes to launch an operator, over that of an x86 one."""
    compute_capability: float | None = None
    """CUDA compute capability, where there is one."""
    has_block_scales: bool = False
    """Without a compute capability, which tells: whether products take a scale for each 32 values (MXFP8)."""
    device_name_pattern: str | None = None
    """Regular expression that the device name on a host must match, for the preflight check."""
    confidence: Literal["datasheet", "whitepaper", "third_party", "guess"]
    """How far the figures can be trusted."""
    source: str
    """Where the figures come from."""
    note: str = ""
    """Anything a reader should know."""

    @field_validator("device_name_pattern")
    @classmethod
    def _pattern_is_one_of_grep(cls, pattern: str | None) -> str | None:
        """The preflight check hands it to a shell, whose extended expressions know less than Python's."""
        if pattern is None:
            return None
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern[:60]!r} is no regular expression: {error}") from None
        if "(?" in pattern or re.search(r"\\[a-zA-Z]", pattern) or not pattern.isprintable():
            raise ValueError(f"{pattern[:60]!r} is no extended regular expression, as `grep -E` takes")
        return pattern

    @property
    def memory_bytes(self) -> float:
        """Usable memory: what the driver reports where known, else nominal [bytes]."""
        if self.memory_mib_reported is not None:
            return self.memory_mib_reported * MIB
        return self.memory_gib * GIB

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        """Peak memory bandwidth [bytes/s]."""
        return self.memory_bandwidth_gb_per_s * GB

    def reached_memory_bytes_per_s(self, efficiency: float) -> float:
        """Memory bandwidth that reads and writes reach: measured, else a share of the peak [bytes/s]."""
        if self.memory_reached_gb_per_s is not None:
            return self.memory_reached_gb_per_s * GB
        return self.memory_bandwidth_bytes_per_s * efficiency

    def peak_flop_per_s(self, precision: Precision) -> float | None:
        """Dense peak in a precision [FLOP/s], None where the chip lacks it."""
        if precision == "bf16":
            peak = self.bf16_tflop_per_s
        elif precision == "fp16":
            peak = self.fp16_tflop_per_s
        elif precision == "nvfp4":
            peak = 2 * self.fp8_tflop_per_s if self.fp8_tflop_per_s and self.has_fp4 else None
        else:
            peak = self.fp8_tflop_per_s
        return None if peak is None else peak * TFLOP

    @property
    def has_fp4(self) -> bool:
        """Whether the chip multiplies 4-bit floats (NVIDIA Blackwell and later)."""
        return self.compute_capability is not None and self.compute_capability >= 10.0
