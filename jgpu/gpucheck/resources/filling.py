"""Fills the device's memory, asks for more, and goes on; or holds some of it beside that.

    python filling.py shared fill|hold

"fill": true by name, or what was wrong. "hold" answers each line with a digest of what it holds.
"""

import json
import sys
from typing import Any

import place
import torch
import torch.nn.functional as F

PARTS = 64


def fill(device: torch.device) -> dict[str, Any]:
    """Nearly all of it, then work of libraries that want memory of their own, then too much."""
    free, total = torch.cuda.mem_get_info()
    part = total // PARTS // 4
    found: dict[str, Any] = {"memory is told": 0 < free <= total or (free, total)}
    draw = torch.Generator().manual_seed(1)
    a = torch.randn(64, 64, generator=draw)
    image, kernel = (torch.randn(2, 4, 9, 9, generator=draw) for _ in range(2))
    kernel = kernel[:, :, :3, :3].contiguous()
    sizes = [part] * int(0.9 * PARTS)
    kept = [torch.full((size,), float(k), device=device) for k, size in enumerate(sizes)]
    torch.cuda.synchronize()
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close((a.to(device) @ a.to(device)).cpu(), a @ a, **close)
    found["a product in full memory"] = True
    made = F.conv2d(image.to(device), kernel.to(device)).cpu()
    torch.testing.assert_close(made, F.conv2d(image, kernel), **close)
    found["a convolution in full memory"] = True
    right = a @ a.T + 64 * torch.eye(64)
    lower = torch.linalg.cholesky(right.to(device)).cpu()
    torch.testing.assert_close(lower @ lower.T, right, rtol=1e-3, atol=1e-2)
    found["a factorization in full memory"] = True
    found["too much is refused on its line"] = refused(device, 2 * total)
    found["what was there is whole"] = all(
        bool((each == float(k)).all().item()) for k, each in enumerate(kept)
    )
    for _ in range(3):  # fragments: every second block goes, and larger ones come
        del kept[::2]
        kept.extend(torch.full((2 * part,), 7.0, device=device) for _ in range(len(kept) // 4))
    found["fragments are used"] = float(kept[-1].sum().item()) == 14.0 * part or "another sum"
    kept.clear()
    whole = torch.zeros(part * PARTS // 2, device=device)
    found["and all of it again"] = float(whole.sum().item()) == 0.0 or "another sum"
    return found


def refused(device: torch.device, nbytes: int) -> Any:
    """True, if it is refused right where it is asked for."""
    try:
        made = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        return True
    return f"{made.numel()} bytes were given"


def hold(device: torch.device) -> None:
    """A few tensors that are not worked with."""
    held = [torch.arange(1 << 18, device=device) + k for k in range(8)]
    for _ in sys.stdin:
        print(json.dumps({"digest": place.digest(*held)}), flush=True)


if __name__ == "__main__":
    _, how, what = sys.argv
    torch.set_num_threads(1)
    with place.computing(how) as device:
        if what == "hold":
            hold(device)
        else:
            print(json.dumps(fill(device)))
