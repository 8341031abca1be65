"""Bytes of many sizes to the device and back, and how fast the largest are.

    python copying.py HOW MOST

Sizes that came back as something else, and GB/s there and back: natively from pinned memory.
"""

import time
from typing import Any

import place
import torch

TIMES = 3


def main(device: torch.device, most: str) -> dict[str, Any]:
    """From 4 bytes on, by sixteens."""
    wrong, size = [], 4
    while size < int(most):
        for count in (size, size + 1, size * 3 + 7):
            with place.host():
                source = (torch.arange(count) % 253).to(torch.uint8)
            if not torch.equal(source.to(device).cpu(), source):
                wrong.append(count)
        size *= 16
    with place.host():
        source = torch.zeros(int(most), dtype=torch.uint8)
    if device.type == "cuda":
        source = source.pin_memory()
    there, back = [], []
    for _ in range(TIMES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        copied = source.to(device, non_blocking=True)
        torch.cuda.synchronize()
        middle = time.perf_counter()
        copied.cpu()
        end = time.perf_counter()
        there.append(int(most) / (middle - begin) / 1e9)
        back.append(int(most) / (end - middle) / 1e9)
        del copied
    return {"wrong": wrong, "there": max(there), "back": max(back)}


if __name__ == "__main__":
    place.serve(main)
