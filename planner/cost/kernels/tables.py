"""The shipped measurements: grids of isolated kernels, and how training differs from them.

Files and their sources: `instances/tables/README.md`. Loaded when first asked for, once.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from planner.cost.elementwise import Curve, Values, maximum, minimum
from planner.cost.kernels.grid import Floats, LogGrid
from planner.units import GIB, MS, US

GEMM_BELOW = (0.5, 0.5, 0.5)
"""Throughput of a product falls with the root of a dimension below 512 (grouped products of 128 and 256
rows on one H100, `relations.csv`); above the grid it stays."""

LARGE_FLOP = 1e11
"""Work of a product that counts as large (guess: such products take 0.1 ms or more, so that starts hardly
count)."""

ATTENTION_BELOW = (1.0, 0.0)
"""Attention over fewer than 1,024 tokens is bound by its reads; over few heads, by its longest row
(guess)."""


@lru_cache(maxsize=1)
def _arrays() -> Any:
    """The archive of grids; an array is read when first asked for."""
    with resources.as_file(resources.files("planner.instances") / "tables" / "kernels.npz") as path:
        return np.load(path)


def _array(name: str) -> Any:
    return _arrays()[name.replace("/", "|")]


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(name.replace("|", "/") for name in _arrays().files)


@lru_cache(maxsize=1)
def _relations() -> dict[tuple[str, str, str], float]:
    text = (resources.files("planner.instances") / "tables" / "relations.csv").read_text()
    return {
        (row["table"], row["op"], row["pass"]): float(row["median"])
        for row in csv.DictReader(text.splitlines())
    }


def relation(table: str, op: str, name: str) -> float:
    """A training-shaped factor over the isolated kernels; KeyError where nobody measured it."""
    return _relations()[table, op, name]


def has_relation(table: str, op: str, name: str) -> bool:
    """Whether somebody measured it."""
    return (table, op, name) in _relations()


@lru_cache(maxsize=64)
def _curve(table: str, op: str, name: str) -> Curve | None:
    """A relation by the size it was measured at; None where it was not parted by sizes."""
    prefix = f"{name}_"
    points = sorted(
        (int(key[2][len(prefix) :]), value)
        for key, value in _relations().items()
        if key[:2] == (table, op) and key[2].startswith(prefix) and key[2][len(prefix) :].isdigit()
    )
    return Curve(*zip(*points, strict=True)) if points else None


def attention_relation(table: str, name: str, seq_length: Values) -> Values:
    """A relation of attention, interpolated between the sequence lengths where it was measured."""
    curve = _curve(table, "attention", name)
    assert curve is not None, f"attention/{table}/{name} is not in relations.csv"
    return curve.at(seq_length)


def gemm_relation(table: str, name: str, size: Floats) -> Floats:
    """A relation of products, interpolated between the sizes by which it was measured."""
    curve = _curve(table, "gemm", name)
    assert curve is not None, f"gemm/{table}/{name} is not in relations.csv"
    return np.asarray(curve.at(size))


def grouped_relation(table: str, name: str, rows: Values) -> Values:
    """A relation of grouped products by the rows of one; the same for all where it was not parted by rows."""
    curve = _curve(table, "grouped_gemm", name)
    if curve is None:
        return relation(table, "grouped_gemm", name) + 0.0 * rows
    return curve.at(maximum(rows, 1.0))


def gemm_table_exists(table: str, precision: str) -> bool:
    """Whether products in a number format were measured."""
    return f"gemm/{table}/{precision}" in _names()


@lru_cache(maxsize=64)
def gemm_grid(table: str, precision: str) -> LogGrid:
    """Latency of C[m, n] = A[m, k] B[k, n] by m, n, k."""
    name = f"gemm/{table}/{precision}"
    return LogGrid([_array(f"{name}/{a}") for a in "mnk"], _array(name) * MS, GEMM_BELOW, (1.0, 1.0, 1.0))


@lru_cache(maxsize=64)
def usual_flop_per_s(table: str, precision: str) -> float:
    """Rate of large products, which nothing but their multiplications holds up: the median [FLOP/s]."""
    name = f"gemm/{table}/{precision}"
    m, n, k = (np.asarray(_array(f"{name}/{a}"), dtype=np.float64) for a in "mnk")
    flop = 2 * m[:, None, None] * n[None, :, None] * k
    rates = flop / (_array(name) * MS)
    return float(np.nanmedian(rates[flop >= LARGE_FLOP]))


@lru_cache(maxsize=16)
def attention_head_dims(table: str) -> tuple[int, ...]:
    """Head widths at which causal attention was measured, ascending."""
    prefix = f"attention/{table}/"
    return tuple(
        sorted(int(n[len(prefix) :]) for n in _names() if n.startswith(prefix) and n.count("/") == 2)
    )


@lru_cache(maxsize=64)
def _attention_grid(table: str, head_dim: int) -> tuple[LogGrid, float]:
    """Latency by tokens of a sequence and batch x query heads, and the longest sequence measured."""
    name = f"attention/{table}/{head_dim}"
    seqs = _array(f"{name}/seq")
    grid = LogGrid([seqs, _array(f"{name}/heads")], _array(name) * MS, ATTENTION_BELOW, (2.0, 1.0))
    return grid, float(seqs[-1])


def attention_s(table: str, head_dim: int, seq: Values, heads: Values) -> Values:
    """Isolated forward of causal attention [s].

    A sequence beyond the measured ones offers as many blocks of queries as more heads would: it is taken
    as the longest measured one with heads in proportion.

    Parameters
    ----------
    heads
        Batch x query heads.
    """
    grid, longest = _attention_grid(table, head_dim)
    inside = minimum(seq, longest)
    return grid.latency_s(inside, heads * seq / inside) * (seq / inside)


def collective_table_exists(table: str, op: str) -> bool:
    """Whether a collective was measured inside a node."""
    return f"collective/{table}/{op}" in _names()


@lru_cache(maxsize=64)
def collective_grid(table: str, op: str) -> tuple[LogGrid, int]:
    """Latency of a collective by ranks and bytes of the full buffer; the most ranks measured."""
    name = f"collective/{table}/{op}"
    ranks, sizes = (_array(f"{name}/{axis}") for axis in ("ranks", "bytes"))
    return LogGrid([ranks, sizes], _array(name) * MS, (0.0, 0.0), (0.0, 1.0)), int(ranks[-1])


@lru_cache(maxsize=16)
def pair_bytes_per_s(table: str) -> float:
    """What each of two ranks sends in the largest all-reduce measured between them [bytes/s]."""
    name = f"collective/{table}/all_reduce"
    largest = float(_array(f"{name}/bytes")[-1])
    grid, _ = collective_grid(table, "all_reduce")
    return largest / float(grid.latency_s(2.0, largest))


@dataclass(frozen=True)
class CollectiveFit:
    """Line through another source's latencies of a collective inside a node."""

    bytes_per_s: float
    """Rate of a rank's link."""
    step_s: float
    """Latency of each step of the ring."""
    fixed_s: float
    """Latency of the launch."""


@lru_cache(maxsize=1)
def _fits() -> dict[tuple[str, str], CollectiveFit]:
    text = (resources.files("planner.instances") / "tables" / "collective_fits.csv").read_text()
    return {
        (row["table"], row["op"]): CollectiveFit(
            float(row["gib_per_s"]) * GIB, float(row["step_us"]) * US, float(row["fixed_us"]) * US
        )
        for row in csv.DictReader(text.splitlines())
    }


def collective_fit(table: str, op: str) -> CollectiveFit | None:
    """The other source's line, None where there is only one."""
    return _fits().get((table, op))


@lru_cache(maxsize=2)
def scale_grid(name: str) -> LogGrid:
    """Fraction of the adapters' rate that a collective reaches, by nodes and bytes of the buffer.

    A buffer takes no longer than a larger one, to which it could be padded: where a few measured fractions
    say otherwise (0.05 and 0.11 for 16 and 32 MiB among 16 nodes), the smaller buffer's is raised.
    """
    full = f"scale/{name}"
    sizes, reached = _array(f"{full}/bytes"), np.array(_array(full))
    for i in range(len(sizes) - 2, -1, -1):
        reached[:, i] = np.fmax(reached[:, i], reached[:, i + 1] * sizes[i] / sizes[i + 1])
    return LogGrid([_array(f"{full}/nodes"), sizes], reached, (0.0, 0.5), (0.0, 0.0))
