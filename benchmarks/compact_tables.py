"""Compact public operator measurements into `instances/tables/`.

Reads a folder of CSV and JSON files as their sources publish them (see `instances/tables/README.md`
for source, commit and licence of each) and writes two files that the cost model loads:

- `kernels.npz`: forward GEMM, causal attention and in-node collectives on dense grids, latency [ms];
- `relations.csv`: what training-shaped measurements say over those grids: latency of forward, dgrad and
  wgrad in a training loop over the isolated kernel's, backward over forward attention, grouped products.

Usage: `python benchmarks/compact_tables.py FOLDER_OF_MEASUREMENTS [instances/tables]`.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from planner.cost.kernels.grid import LogGrid

FloatGrid = np.ndarray

BIG_GEMM_FLOP = 1e11
"""Products below this are bound by launches; they say nothing of the sustained rate."""

BIG_BACKWARD_MS = 0.5
"""Attention backward passes below this were bound by the host in the source's eager loop."""

SUSTAINED_FLOP = 2e12
"""Products above this run long enough for the chip's power limit to set their rate."""

LONG_FLOP = 3e11
"""On Hopper products above this run at the power limit: of 156 on one H100 the rate in a loop does not follow
the isolated kernel's (slope of logarithms 0.1, below this 0.7)."""

DEEP = 14336
"""Depth of products from which writing the output hardly counts."""

SUSTAINED_TFLOP_PER_S = 1120.0
"""Rate that SimuMax's B200 holds in long 16-bit products (the median of those above SUSTAINED_FLOP); shorter
isolated kernels of the other source exceed it. Points that would exceed it say nothing of the kernel."""

LATENT = "latent_"
"""Before names of attention whose queries and keys are wider than its values."""

CUDNN_LATENT_MS = {
    "gb200": {2048: (0.310, 1.026), 4096: (0.982, 3.317), 8192: (3.355, 12.343), 16384: (12.320, 49.496)},
    "gb300": {2048: (0.254, 0.974), 4096: (0.813, 3.115), 8192: (2.886, 11.062), 16384: (10.755, 43.648)},
}
"""Forward and backward [ms] by tokens of causal 16-bit attention with 192 values a query and 128 a value, two
sequences of 128 heads, cuDNN 9.23 (NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/dsv3,
dsv3_20260529_181100.csv and dsv3_20260529_175553.csv; MIT)."""

LATENT_WIDTH = 160.0
"""Mean of the widths of its queries and values."""

LAYER_TOKENS, LAYER_MAPS = 15872, ((4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096))
"""Tokens and linear maps (from, to) of the layer that Transformer Engine's tutorial times."""

LAYER_NVFP4_MS = {"forward": 1.254, "dgrad": 1.305, "wgrad": 1.205}
"""Its products of NVFP4 on a B300, 100 in a row, casts apart [ms] (NVIDIA/TransformerEngine, commit 8f2e635,
docs/examples/gemm_profiling/gemm_profiling.rst; Apache-2.0)."""

LONGEST_SEQUENCE = 16384
"""Longest sequence of the attention grids [tokens]."""

COPY_BYTES_PER_S = {"a100_sxm": 1.55e12, "b200_sxm": 5.7e12}
"""Rate of copies; grouped products near it are bound by memory and say nothing of the kernel."""

DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


def rows_of(path: Path) -> list[dict[str, str]]:
    """All rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def gemm_grids(folder: Path) -> dict[str, FloatGrid]:
    """Latency grids [m, n, k] by chip and number format, NaN where nobody measured."""
    points: dict[tuple[str, str], dict[tuple[int, int, int], float]] = defaultdict(dict)
    for row in rows_of(folder / "gemm_fwd_aiconfigurator.csv"):
        key = (row["chip"], DTYPES[row["dtype"]])
        points[key][int(row["m"]), int(row["n"]), int(row["k"])] = float(row["latency_ms"])
    out: dict[str, FloatGrid] = {}
    for (chip, dtype), values in sorted(points.items()):
        axes = [np.array(sorted({key[i] for key in values})) for i in range(3)]
        grid = np.full([len(a) for a in axes], np.nan, dtype=np.float32)
        for key, latency in values.items():
            grid[tuple(int(np.searchsorted(a, x)) for a, x in zip(axes, key, strict=True))] = latency
        out[f"gemm/{chip}/{dtype}"] = grid
        for name, axis in zip("mnk", axes, strict=True):
            out[f"gemm/{chip}/{dtype}/{name}"] = axis.astype(np.int32)
    return out


def attention_grids(folder: Path) -> dict[str, FloatGrid]:
    """Latency grids [seq, batch x heads]: median over the ways to make the product and over groups.

    At one product of batch and heads the latency hardly depends on how it is made (5% on H100).
    """
    points: dict[tuple[str, int], dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(folder / "attention_fwd_causal_aiconfigurator.csv"):
        product = int(row["batch"]) * int(row["q_heads"])
        points[row["chip"], int(row["head_dim"])][int(row["seq_len"]), product].append(
            float(row["latency_ms"])
        )
    out: dict[str, FloatGrid] = {}
    for (chip, head_dim), values in sorted(points.items()):
        seqs = np.array(sorted({s for s, _ in values}))
        heads = np.array(sorted({h for _, h in values}))
        grid = np.full((len(seqs), len(heads)), np.nan, dtype=np.float32)
        for (s, h), latencies in values.items():
            grid[np.searchsorted(seqs, s), np.searchsorted(heads, h)] = np.median(latencies)
        out[f"attention/{chip}/{head_dim}"] = grid
        out[f"attention/{chip}/{head_dim}/seq"] = seqs.astype(np.int32)
        out[f"attention/{chip}/{head_dim}/heads"] = heads.astype(np.int32)
    return out


def collective_grids(folder: Path) -> dict[str, FloatGrid]:
    """Latency grids [ranks, bytes] by chip and operation; bytes = the full (gathered) buffer.

    Where several library versions were measured the fastest counts. V100 comes from vTrain.
    """
    points: dict[tuple[str, str], dict[tuple[int, int], float]] = defaultdict(dict)
    for row in rows_of(folder / "nccl_intranode_aiconfigurator.csv"):
        key = (int(row["num_gpus"]), int(row["bytes"]))
        table = points[row["chip"], OPS[row["op"]]]
        table[key] = min(float(row["latency_ms"]), table.get(key, np.inf))
    for row in rows_of(folder / "nccl_allreduce_vtrain.csv"):
        if row["chip"] == "v100":
            key = (int(row["num_gpus"]), int(row["bytes"]))
            points["v100", row["op"]][key] = float(row["latency_ms"])
    out: dict[str, FloatGrid] = {}
    for (chip, op), values in sorted(points.items()):
        ranks = np.array(sorted({n for n, _ in values}))
        sizes = np.array(sorted({b for _, b in values}))
        grid = np.full((len(ranks), len(sizes)), np.nan, dtype=np.float32)
        for (n, b), latency in values.items():
            grid[np.searchsorted(ranks, n), np.searchsorted(sizes, b)] = latency
        keep = ~np.isnan(grid).any(axis=0)
        out[f"collective/{chip}/{op}"] = grid[:, keep]
        out[f"collective/{chip}/{op}/ranks"] = ranks.astype(np.int32)
        out[f"collective/{chip}/{op}/bytes"] = sizes[keep].astype(np.int64)
    return out


def scale_grids(folder: Path) -> dict[str, FloatGrid]:
    """Fraction of the adapters' rate reached [nodes, bytes] (SimAI ratio tables)."""
    out: dict[str, FloatGrid] = {}
    for table in ("allreduce_nic", "alltoall"):
        rows = [
            r for r in rows_of(folder / "collective_efficiency_vs_scale_simai.csv") if r["table"] == table
        ]
        nodes = np.array(sorted({int(r["nodes_of_8"]) for r in rows}))
        sizes = np.array(sorted({int(r["bytes"]) for r in rows}))
        grid = np.full((len(nodes), len(sizes)), np.nan, dtype=np.float32)
        for r in rows:
            grid[np.searchsorted(nodes, int(r["nodes_of_8"])), np.searchsorted(sizes, int(r["bytes"]))] = (
                float(r["efficiency_vs_peak"])
            )
        out[f"scale/{table}"] = grid
        out[f"scale/{table}/nodes"] = nodes.astype(np.int32)
        out[f"scale/{table}/bytes"] = sizes.astype(np.int64)
    return out


class Kernels:
    """The grids of one chip as functions of shape, for comparing other measurements with them."""

    def __init__(self, arrays: dict[str, FloatGrid], chip: str) -> None:
        attention = f"attention/{chip}/128"
        wide = f"attention/{chip}/256"
        self._gemm = {
            form: LogGrid([arrays[f"{gemm}/{a}"] for a in "mnk"], arrays[gemm] * 1e-3, (0.5,) * 3, (1.0,) * 3)
            for form in ("bf16", "fp8", "nvfp4")
            if (gemm := f"gemm/{chip}/{form}") in arrays
        }
        self._attention, self._wide = (
            LogGrid(
                [arrays[f"{name}/{a}"] for a in ("seq", "heads")], arrays[name] * 1e-3, (1.0, 0.0), (2.0, 1.0)
            )
            if name in arrays
            else None
            for name in (attention, wide)
        )

    def gemm_s(self, m: float, n: float, k: float, form: str = "bf16") -> float:
        """Latency of C[m, n] = A[m, k] B[k, n] in a number format [s]; of 8 bits with one scale a tensor."""
        return float(self._gemm[form].latency_s(m, n, k))

    def attention_s(self, seq: float, heads: float) -> float:
        """Latency of causal attention at head width 128 [s], as `planner.cost.kernels.tables.attention_s` has
        it."""
        assert self._attention is not None
        inside = min(seq, LONGEST_SEQUENCE)
        return float(self._attention.latency_s(inside, heads * seq / inside)) * seq / inside

    def latent_attention_s(self, seq: float, heads: float) -> float:
        """The same at the mean width of latent attention [s], between the grids of two widths."""
        low = self.attention_s(seq, heads)
        if self._wide is None:
            return low * LATENT_WIDTH / 128
        inside = min(seq, LONGEST_SEQUENCE)
        high = float(self._wide.latency_s(inside, heads * seq / inside)) * seq / inside
        weight = math.log(LATENT_WIDTH / 128) / math.log(2)
        return float(low ** (1 - weight) * high**weight)


def gemm_passes(m: int, n: int, k: int) -> dict[str, tuple[int, int, int]]:
    """Shapes of the three products of a linear map from k to n over m tokens."""
    return {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (n, k, m)}


def onechip_relations(folder: Path, kernels: dict[str, Kernels]) -> dict[tuple[str, str, str], list[float]]:
    """Ratios of the single-H100 and single-H200 measurements (PyTorch, cuBLAS, cuDNN) to the grids."""
    out: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    names = {"forward": "fwd_ms", "dgrad": "dgrad_ms", "wgrad": "wgrad_ms"}
    data = json.loads((folder / "onechip_ops_h100_h200.json").read_text())
    for chip, table in (("h100-sxm-80gb", "h100_sxm"), ("h200-sxm-141gb", "h200_sxm")):
        narrow: list[tuple[int, float]] = []
        wide_ms = {(r["m"], r["n"], r["k"]): r["fwd_ms"] for r in data[chip]["gemm"] if r["name"] != "fp8"}
        for row in data[chip]["gemm"]:
            m, n, k = row["m"], row["n"], row["k"]
            if row["name"] == "fp8":
                ratio = row["fwd_ms"] * 1e-3 / kernels[table].gemm_s(m, n, k, "fp8")
                out[table, "gemm", "fp8_forward"].append(ratio)
                narrow.append((k, row["fwd_ms"] / wide_ms[m, n, k]))
            flop = 2 * m * n * k
            if flop < BIG_GEMM_FLOP or "dgrad_ms" not in row:
                continue
            for name, shape in gemm_passes(m, n, k).items():
                seconds = row[names[name]] * 1e-3
                out[table, "gemm", name].append(seconds / kernels[table].gemm_s(*shape))
                if flop >= LONG_FLOP:
                    # What wgrad writes is as much for few tokens as for many.
                    by = f"long_wgrad_tflop_per_s_{m}" if name == "wgrad" else f"long_{name}_tflop_per_s"
                    out[table, "gemm", by].append(flop / seconds / 1e12)
        deep = [share for k, share in narrow if k >= DEEP]
        out[table, "gemm", "fp8_over_bf16"] = deep
        # To write a value of the output takes as long as so many products more.
        out[table, "gemm", "fp8_output_depth"] = [
            (share / float(np.median(deep)) - 1) * k for k, share in narrow if k < DEEP
        ]
        for row in data[chip]["attention"]:
            backward_ms = row["fwd_bwd_ms"] - row["fwd_ms"]
            if row["backend"] != "cudnn" or row["d"] != 128 or backward_ms < BIG_BACKWARD_MS:
                continue
            isolated = kernels[table].attention_s(row["s"], row["b"] * row["heads"])
            out[table, "attention", f"forward_{row['s']}"].append(row["fwd_ms"] * 1e-3 / isolated)
            out[table, "attention", f"backward_over_forward_{row['s']}"].append(backward_ms / row["fwd_ms"])
    moe = json.loads((folder / "onechip_moe_ops_h100.json").read_text())["h100-sxm-80gb"]
    for row in moe["grouped_gemm"]:
        experts = row["local_experts"]
        m = row["rows"] / experts
        for prefix, n, k in (
            ("fc1", 2 * row["moe_ffn"], row["hidden"]),
            ("fc2", row["hidden"], row["moe_ffn"]),
        ):
            for name, shape in gemm_passes(m, n, k).items():  # type: ignore[arg-type]
                measured = row[f"{prefix}_{names[name]}"] * 1e-3
                ratio = measured / (experts * kernels["h100_sxm"].gemm_s(*shape))
                out["h100_sxm", "grouped_gemm", name].append(ratio)
                # Few rows an expert hide one another's launches, many of them meet the power limit.
                nearest = 2 ** round(np.log2(m))
                out["h100_sxm", "grouped_gemm", f"{name}_{nearest}"].append(ratio)
    return out


def simumax_relations(folder: Path, kernels: dict[str, Kernels]) -> dict[tuple[str, str, str], list[float]]:
    """Ratios of SimuMax's measured efficiencies (Transformer Engine) to the grids, A100-PCIe and B200.

    SimuMax counts 2.5 forward products for attention's backward and no causal half.
    """
    out: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    names = {"fwd": "forward", "dgrad": "dgrad", "wgrad": "wgrad"}
    attention: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    paired: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in rows_of(folder / "op_efficiency_simumax.csv"):
        table = {"a100_pcie": "a100_sxm", "b200_sxm": "b200_sxm"}[row["chip"]]
        peak = float(row["peak_tflops"]) * 1e12
        m, k, groups = int(row["m_or_seq"]), int(row["k_or_qk_dim"]), int(row["batch_or_groups"])
        rate = peak * float(row["efficiency"])
        if row["op"] == "attention_causal_fullflops":
            if m <= 16384 and int(row["q_heads"]) < 16:
                continue
            width = k + int(row["v_dim"])
            flop = 2 * groups * m * m * int(row["q_heads"]) * width
            key = (table, str(m), row["q_heads"], row["kv_heads"], LATENT if k != int(row["v_dim"]) else "")
            seconds = flop * (1.0 if row["stage"] == "fwd" else 2.5) / rate
            attention[key][row["stage"]] = seconds
            if row["stage"] == "fwd":
                kernel = kernels[table].latent_attention_s if key[-1] else kernels[table].attention_s
                isolated = kernel(m, groups * int(row["q_heads"]))
                out[table, "attention", f"{key[-1]}forward_{m}"].append(seconds / isolated)
            continue
        n = int(row["n"])
        flop = 2 * m * n * k * (groups if row["op"] == "grouped_gemm" else 1)
        if row["op"] == "gemm" and flop < BIG_GEMM_FLOP:
            continue
        isolated = kernels[table].gemm_s(m, n, k) * (groups if row["op"] == "grouped_gemm" else 1)
        if row["op"] == "gemm" and row["stage"] == "wgrad":
            paired[table, row["m_or_seq"], row["n"], row["k_or_qk_dim"]][row["out_dtype"]] = flop / rate
            if row["out_dtype"] != "fp32":
                continue
        if row["op"] == "grouped_gemm":
            # Here the source lists the linear map's shape for every pass, not the product's.
            isolated = groups * kernels[table].gemm_s(*gemm_passes(m, n, k)[names[row["stage"]]])
        if table == "b200_sxm":
            if row["op"] == "gemm":
                # Products alone: their rate is the power limit's, whatever the kernel could do.
                if row["stage"] != "wgrad" and flop > SUSTAINED_FLOP:
                    out[table, "gemm", "sustained_tflop_per_s"].append(rate / 1e12)
                continue
            if flop / isolated > SUSTAINED_TFLOP_PER_S * 1e12:
                continue
        if row["op"] == "grouped_gemm":
            output = m * n if row["stage"] != "wgrad" else 0
            weight = k * n * (4 if row["stage"] == "wgrad" else 1)
            moved = 2 * groups * (m * k + output + weight + (m * n if row["stage"] == "wgrad" else 0))
            if moved / COPY_BYTES_PER_S[table] > 0.7 * flop / rate:
                continue
        out[table, row["op"], names[row["stage"]]].append(flop / rate / isolated)
    for (table, seq, *_, latent), both in attention.items():
        if len(both) == 2:
            out[table, "attention", f"{latent}backward_over_forward_{seq}"].append(both["bwd"] / both["fwd"])
    for (table, *_), both in paired.items():
        if len(both) == 2:
            out[table, "gemm", "wgrad_fp32_over_bf16"].append(both["fp32"] / both["bf16"])
    return out


def cudnn_relations(kernels: dict[str, Kernels]) -> dict[tuple[str, str, str], list[float]]:
    """Ratios of latent attention, as cuDNN's own benchmark times it, to the grids."""
    out = {}
    for table, times in CUDNN_LATENT_MS.items():
        for seq, (forward_ms, backward_ms) in times.items():
            isolated = kernels[table].latent_attention_s(seq, 2 * 128)
            out[table, "attention", f"{LATENT}forward_{seq}"] = [forward_ms * 1e-3 / isolated]
            out[table, "attention", f"{LATENT}backward_over_forward_{seq}"] = [backward_ms / forward_ms]
    return out


def transformer_engine_relations(kernels: dict[str, Kernels]) -> dict[tuple[str, str, str], list[float]]:
    """Ratios of products with operands already in NVFP4, as Transformer Engine times them, to the grid."""
    out = {}
    for name, measured_ms in LAYER_NVFP4_MS.items():
        shapes = (gemm_passes(LAYER_TOKENS, n, k)[name] for k, n in LAYER_MAPS)
        isolated_s = sum(kernels["b300_sxm"].gemm_s(*shape, "nvfp4") for shape in shapes)
        out["b300_sxm", "gemm", f"nvfp4_{name}"] = [measured_ms * 1e-3 / isolated_s]
    return out


def write_relations(folder: Path, arrays: dict[str, FloatGrid], path: Path) -> None:
    """Write the median of every relation, with its spread and number of points."""
    kernels = {
        c: Kernels(arrays, c)
        for c in ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")
    }
    relations = onechip_relations(folder, kernels)
    for found in (
        simumax_relations(folder, kernels),
        cudnn_relations(kernels),
        transformer_engine_relations(kernels),
    ):
        for key, values in found.items():
            relations[key].extend(values)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["table", "op", "pass", "median", "p10", "p90", "points"])
        for (table, op, name), values in sorted(relations.items()):
            low, median, high = np.percentile(values, [10, 50, 90])
            writer.writerow([table, op, name, f"{median:.4f}", f"{low:.4f}", f"{high:.4f}", len(values)])


def main(folder: Path, out: Path) -> None:
    """Write the compact tables."""
    arrays: dict[str, FloatGrid] = {}
    for part in (gemm_grids, attention_grids, collective_grids, scale_grids):
        arrays.update(part(folder))
    np.savez_compressed(out / "kernels.npz", **{k.replace("/", "|"): v for k, v in arrays.items()})
    write_relations(folder, arrays, out / "relations.csv")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent.parent / "instances/tables"),
    )
