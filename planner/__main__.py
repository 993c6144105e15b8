"""Where the program `hetplan` begins, also as `python -m planner`.

Most of its start is the loading of modules. Ctrl-C in it ends the program with one line, as it does later.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

from planner.garbage import collect_rarely


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: nothing has begun that would have to be put in order."""
    os.write(2, b"hetplan: error: interrupted\n")
    os._exit(130)


def main() -> int:
    """Run the command line of this process and return its exit code."""
    before = signal.signal(signal.SIGINT, _leave)
    from planner.cli import main as run

    signal.signal(signal.SIGINT, before)
    collect_rarely()
    code = run()
    # What is left goes with the process: to collect it first took a tenth of a second.
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(main())
