"""Bytes in words, as torch prints them in its messages."""

from __future__ import annotations

__all__ = ["size_text"]


def size_text(nbytes: int) -> str:
    """Return a size as "1.50 GiB", "2.00 MiB" or "512 bytes"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"
