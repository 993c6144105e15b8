"""When this process began, as the time limit counts from there."""

from __future__ import annotations

import os
import time

_IMPORTED_S = time.monotonic()

_START_FIELD = 22
"""Field of /proc/PID/stat that holds the start [clock ticks after boot]; proc_pid_stat(5)."""


def since_process_start_s() -> float:
    """Wall-clock time since the process began [s]; since this module's import where the system hides it."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat, open("/proc/uptime") as up:
            # The command's name, field 2, may hold spaces; it ends at the last parenthesis.
            fields = stat.read().rpartition(")")[2].split()
            started_s = int(fields[_START_FIELD - 3]) / os.sysconf("SC_CLK_TCK")
            return max(0.0, float(up.read().split()[0]) - started_s)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic() - _IMPORTED_S
