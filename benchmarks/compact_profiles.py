"""Fold published layer times into `instances/tables/layer_profiles.csv`.

    python benchmarks/compact_profiles.py layer_times_sailor.csv

The input is the list of layer times of eth-easl/sailor (MIT), one line a layer. Equal layers become their
mean; embedding and head stay as they are. Points whose entries do not fit the model are left out, and so are
the times of updates: each is that of one layer's optimizer on its own, unfused (100 to 300 bytes a parameter
at the chips' memory rates, where a fused one moves 30), and the source's own simulator counts one of them for
a stage (its formulas in the planning benchmark, `opt350m/judge.py`).
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

from planner.data.catalog import shipped_name
from planner.data.layer_profile import PIECES
from planner.data.profile_formats import read_profile_table
from planner.data.profiles import shipped_profile_names
from planner.errors import InstanceError

MODELS = {
    "opt-350m": ("OPT-350", 24),
    "gpt-neo-2.7b": ("GPT-Neo-2.7", 32),
    "opt-30b": ("OPT-30", 48),
    "llama3-8b": ("LLAMA-3-8", 32),
}
"""Names and layers of the models in the list."""

HEADER = ("model", "chip", "tensor_parallel", "microbatch_size", "piece", "forward_ms", "backward_ms")

CHIPS = {"A100-40": "a100-sxm-40gb", "A100-80": "a100-sxm-80gb", "V100-16": "v100-sxm-16gb"}
"""Chips whose names here are no aliases of ours."""


def main(path: Path) -> None:
    """Write the folded table beside the other tables."""
    out = Path("instances/tables/layer_profiles.csv")
    assert set(MODELS) == set(shipped_profile_names())
    with path.open() as file:
        lines = list(csv.DictReader(file))
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*HEADER, "update_ms"))
        for name, (theirs, num_layers) in MODELS.items():
            for chip in sorted({line["chip"] for line in lines if line["model"] == theirs}):
                rows = [line for line in lines if (line["model"], line["chip"]) == (theirs, chip)]
                write_chip(writer, name, chip, rows, num_layers)


def write_chip(writer: object, name: str, chip: str, rows: list[dict[str, str]], num_layers: int) -> None:
    """Write the points of one model on one chip."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="") as file:
        part = csv.DictWriter(file, rows[0])
        part.writeheader()
        part.writerows(rows)
        file.flush()
        try:
            (profile,) = read_profile_table(Path(file.name), chip, num_layers)
        except InstanceError as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
            return
    ours = CHIPS.get(chip) or shipped_name("chips", chip)
    assert ours is not None, chip
    for point in profile.points:
        at = name, ours, point.tensor_parallel, point.microbatch_size
        for piece in PIECES:
            times = getattr(point, piece)
            writer.writerow((*at, piece, figure(times.forward_ms), figure(times.backward_ms), ""))


def figure(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
