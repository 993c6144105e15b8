"""Write `data/profile.json`: what the judge reads of a published planner's measurements.

    python -m benchmarks.opt350m.compact FOLDER

The folder is the profile folder of eth-easl/sailor (branch sosp25_ae, commit 16eebd4, MIT). Of its 26
layers the second to the last block are equal, so four entries a point hold them all. Degrees that span
nodes are left out, as is all that is not OPT-350M.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.opt350m.profile import DEGREES, FILE

MODEL, ZONE = "OPT-350", "us-central1-a"
CHIPS = {"a100-sxm-40gb": "A100-40", "v100-sxm-16gb": "V100-16"}
LAYERS = {"embedding": 0, "first_block": 1, "block": 2, "head": 25}
SIZES = ("params_floats", "act_output_floats", "act_mem_floats")
ABOUT = {
    "source": "eth-easl/sailor, branch sosp25_ae, commit 16eebd4: all_layer_times.json, "
    "model_memory_info.json, multizone_bandwidths_het.json",
    "licence": "MIT, copyright (c) 2023 - present ETH Zurich",
    "times_s": "chip: tensor degree: micro-batch: layer: [forward, backward, update]",
    "floats": "tensor degree: layer: [parameters, output, kept for the backward pass]; one sequence",
    "fits": "[sender, its chips, receiver, its chips, c2, c1, c0]: GB/s over the log2 of MB",
    "blocks": "block 1 is first_block; blocks 2 to 24 are equal",
}


def distinct(layers: dict[str, Any], where: str) -> dict[str, Any]:
    """The four distinct layers of 26."""
    blocks = {json.dumps(layers[str(i)]) for i in range(2, 25)}
    assert len(blocks) == 1 and len(layers) == 26, where
    return {name: layers[str(index)] for name, index in LAYERS.items()}


def times_of(points: dict[str, Any], chip: str) -> dict[str, Any]:
    """Layer times of a chip by degree and micro-batch."""
    return {
        str(degree): {
            size: distinct(points[size][str(degree)], f"{chip} {size} {degree}")
            for size in sorted(points, key=int)
            if str(degree) in points[size]
        }
        for degree in DEGREES
    }


def sizes_of(layers: dict[str, Any], where: str) -> dict[str, Any]:
    """Counts of floats of the distinct layers."""
    return distinct({i: [layer[key] for key in SIZES] for i, layer in layers.items()}, where)


def main(folder: Path) -> None:
    """Write the file."""
    times = json.loads((folder / "all_layer_times.json").read_text())[MODEL]
    sizes = json.loads((folder / "model_memory_info.json").read_text())[MODEL]
    fits = json.loads((folder / "bandwidth/multizone_bandwidths_het.json").read_text())[ZONE]
    kept = {
        "about": ABOUT,
        "times_s": {chip: times_of(times[theirs], chip) for chip, theirs in CHIPS.items()},
        "floats": {str(degree): sizes_of(sizes[str(degree)], f"{degree}") for degree in DEGREES},
        "fits": [
            [sender, n, receiver, k, *fits[theirs][str(n)][ZONE][others][str(k)][0]]
            for sender, theirs in CHIPS.items()
            for receiver, others in CHIPS.items()
            for n in DEGREES
            for k in DEGREES
        ],
    }
    FILE.write_text(json.dumps(kept, separators=(",", ":")).replace('],["', '],\n["') + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
