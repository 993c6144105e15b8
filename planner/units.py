"""Powers of ten and of 1024, and how quantities are shown.

Inside the code every quantity is in seconds, bytes, FLOP, tokens, dollars or watts. Files carry a
datasheet's units with the unit in the key; they are converted through the constants below.
"""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30

KB = 10**3
MB = 10**6
GB = 10**9

TFLOP = 10**12
BILLION = 10**9
TRILLION = 10**12

MS = 1e-3
US = 1e-6
DAY_S = 86_400

BITS_PER_BYTE = 8
BYTES_PER_GBIT = GB / BITS_PER_BYTE

LEAST_SHOWN_S = 0.05 * US
"""Shorter times are shown as none."""


def format_seconds(seconds: float) -> str:
    """Seconds with the unit a reader expects: `12.3 s`, `45.6 ms`, `7.8 us`."""
    if abs(seconds) >= 1.0:
        return f"{seconds:.2f} s"
    if abs(seconds) >= MS:
        return f"{seconds / MS:.2f} ms"
    return f"{seconds / US:.1f} us"


def format_gib(size_bytes: float) -> str:
    """Bytes in GiB with one decimal, `61.4 GiB`; in MiB where that would be nothing, `12.5 MiB`."""
    if 0 < abs(size_bytes) < 0.05 * GIB:
        return f"{size_bytes / MIB:.1f} MiB"
    return f"{size_bytes / GIB:.1f} GiB"


def format_percent(fraction: float) -> str:
    """A fraction in percent with one decimal: `4.2%`; what rounds to nothing has no sign."""
    return f"{round(100 * fraction, 1) + 0.0:.1f}%"


def format_change(fraction: float) -> str:
    """The same with the sign of a gain or loss: `+4.2%`."""
    return f"{round(100 * fraction, 1) + 0.0:+.1f}%"
