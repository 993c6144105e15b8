"""Shows both launch directories of a plan to the real Megatron-Bridge and Megatron-LM, without a GPU.

    python -m tests.bridge_check --lm DIR --bridge DIR [--lm DIR --bridge DIR ...] [--json FILE]

Prints ALIKE or what differs, a line a field. `--json` writes what Megatron-Bridge built of each plan. Exit
status: 0 alike; 1 refused; 2 they differ.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path

from tests.megatron_check.refusal import Refused

from . import stand_ins


def main() -> int:
    """Compare as the command line says; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bridge_check")
    parser.add_argument("--lm", action="append", required=True, type=Path, help="directory for Megatron-LM")
    parser.add_argument("--bridge", action="append", required=True, type=Path, help="for Megatron-Bridge")
    parser.add_argument("--json", type=Path, help="where to write what Megatron-Bridge built")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    stand_ins.install()
    from .built import by_megatron_bridge, by_megatron_lm
    from .differences import differences

    status, tables = 0, {}
    for script, bridge in zip(options.lm, options.bridge, strict=True):
        try:
            ours, launch = by_megatron_lm(script)
            theirs = by_megatron_bridge(bridge, launch.world_size)
        except Refused as refusal:
            print(f"{bridge}: REFUSED {refusal}")
            status = max(status, 1)
            continue
        tables[str(bridge)] = theirs
        wrong = differences(ours, theirs)
        for sentence in wrong:
            print(f"{bridge}: DIFFERS {sentence}")
            status = 2
        if not wrong:
            print(f"{bridge}: ALIKE in {len(ours)} fields")
    if options.json is not None:
        options.json.write_text(json.dumps(tables))
    return status


if __name__ == "__main__":
    sys.exit(main())
