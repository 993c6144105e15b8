"""Text as compressed bytes, and back."""

from __future__ import annotations

import zlib


def packed(text: str) -> bytes:
    """Compressed text."""
    return zlib.compress(text.encode(), 1)


def unpacked(blob: bytes) -> str:
    """Text of `packed`."""
    return zlib.decompress(blob).decode()
