"""Prints the settings that Megatron-LM makes of command lines. Runs in Megatron's environment.

    python -m tests.megatron_check.read_words LINES.json

LINES.json lists pairs: words of a command line, and the ranks of the run. Prints a list of tables as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path

from . import standins, validate


def main() -> None:
    """Read all command lines, and print what they say."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    standins.install(9)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    found = []
    for words, world_size in json.loads(Path(sys.argv[1]).read_text()):
        standins.pretend_transformer_engine("2.9.0")
        args = validate.read_arguments(words, world_size)
        found.append(validate.settings(args, validate.transformer_config(args)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
