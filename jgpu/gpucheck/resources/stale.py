"""Fills memory with a pattern and gives it back; looks for the pattern in what is never written.

    python stale.py shared write|look

"write": how many bytes it had. "look": by name, bytes that are not zero.
"""

from collections.abc import Callable
from typing import Any

import place
import torch

PATTERN = 0x5A
SIZES = (512, 4096, 1 << 16, 1 << 20, 3 << 20, 24 << 20)


def write(device: torch.device) -> dict[str, int]:
    """Blocks of many sizes, each full of the pattern, and given back."""
    count = 0
    for _ in range(4):
        made = [torch.full((size,), PATTERN, dtype=torch.uint8, device=device) for size in SIZES]
        count += sum(int((each == PATTERN).sum()) for each in made)
        del made
    return {"bytes": count}


def strided(device: torch.device, size: int) -> torch.Tensor:
    """Between two elements lies what nobody has written."""
    made = torch.empty_strided((2,), (size - 1,), dtype=torch.uint8, device=device)
    return made.as_strided((size,), (1,))


def resized(device: torch.device, size: int) -> torch.Tensor:
    """It grows beyond what it had."""
    return torch.ones(1, dtype=torch.uint8, device=device).fill_(0).resize_(size)


MAKERS: dict[str, Callable[[torch.device, int], torch.Tensor]] = {
    "empty": lambda device, size: torch.empty(size, dtype=torch.uint8, device=device),
    "empty_like": lambda device, size: torch.empty_like(
        torch.zeros(size, dtype=torch.uint8, device=device)
    ),
    "new_empty": lambda device, size: torch.zeros(1, dtype=torch.uint8, device=device).new_empty(
        size
    ),
    "empty_strided": strided,
    "resize_": resized,
}


def padded(device: torch.device) -> int:
    """Attention's sums are padded."""
    q = torch.zeros(1, 1, 5, 8, device=device)
    _, sums, _, _ = torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, True)
    whole = torch.as_strided(sums, (sums.untyped_storage().nbytes() // 4,), (1,))
    return int((whole.view(torch.uint8) == PATTERN).sum())


def look(device: torch.device) -> dict[str, Any]:
    """Twice each, since the second comes by another way."""
    found: dict[str, Any] = {}
    for name, make in MAKERS.items():
        found[name] = sum(int((make(device, size) != 0).sum()) for size in SIZES for _ in range(2))
    try:
        found["attention's padding"] = padded(device)
    except (RuntimeError, NotImplementedError) as error:
        found["attention's padding"] = f"{type(error).__name__}: {error}"[:300]
    return found


def main(device: torch.device, what: str) -> dict[str, Any]:
    """One of the two."""
    return write(device) if what == "write" else look(device)


if __name__ == "__main__":
    place.serve(main)
