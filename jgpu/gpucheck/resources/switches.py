"""A matrix product and a convolution under each switch that changes arithmetic on CUDA.

    python switches.py HOW SCALE

By switch: how it reads afterwards, and a digest of what was computed.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import place
import torch
import torch.nn.functional as F

#: what is set and read: object, attribute, value
_ATTRIBUTES: dict[str, tuple[Any, str, Any]] = {
    "TF32 in products": (torch.backends.cuda.matmul, "allow_tf32", True),
    "no TF32 in products": (torch.backends.cuda.matmul, "allow_tf32", False),
    "TF32 in cuDNN": (torch.backends.cudnn, "allow_tf32", True),
    "no TF32 in cuDNN": (torch.backends.cudnn, "allow_tf32", False),
    "no reduced precision of float16": (
        torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False,
    ),
    "no reduced precision of bfloat16": (
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False,
    ),
    "accumulation in float16": (torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
    "no cuDNN": (torch.backends.cudnn, "enabled", False),
    "deterministic cuDNN": (torch.backends.cudnn, "deterministic", True),
    "TF32 by the newer interface": (torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "IEEE by the newer interface": (torch.backends.cuda.matmul, "fp32_precision", "ieee"),
}  # fmt: skip


@contextlib.contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[Any]:
    """Set one, and have it as it was."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield getattr(owner, name)
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def deterministic() -> Iterator[Any]:
    """Only what gives the same each time."""
    torch.use_deterministic_algorithms(True)
    try:
        yield torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def precision(value: str) -> Iterator[Any]:
    """The switch that speaks of both."""
    torch.set_float32_matmul_precision(value)
    try:
        yield torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision("highest")


def computed(device: torch.device, scale: int) -> list[str]:
    """Digests, by types."""
    side = 16 * scale
    with place.host():
        draw = torch.Generator().manual_seed(3)
        x = torch.randn(side, 8 * side, generator=draw)
        image = torch.randn(2, 4 * scale, 9, 9, generator=draw)
        kernel = torch.randn(4 * scale, 4 * scale, 3, 3, generator=draw)
    found = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        on, picture, weights = (each.to(device, dtype) for each in (x, image, kernel))
        found.append(place.digest(on @ on.T))
        if dtype is torch.float32 or scale > 1:
            found.append(place.digest(F.conv2d(picture, weights)))
    rows = torch.arange(64, device=device) % 7
    ones = torch.full((64, 3), 0.1, device=device)
    found.append(place.digest(torch.zeros(7, 3, device=device).index_add(0, rows, ones)))
    return found


def main(device: torch.device, scale: str) -> dict[str, Any]:
    """All of them, each for itself."""
    ways: dict[str, Callable[[], Any]] = {"nothing": contextlib.nullcontext}
    for name, setting in _ATTRIBUTES.items():
        ways[name] = partial(attribute, *setting)
    ways["deterministic"] = deterministic
    for word in ("high", "medium"):
        ways[f"precision {word}"] = partial(precision, word)
    found = {}
    for name, way in ways.items():
        try:
            with way() as read:
                found[name] = [str(read), *computed(device, int(scale))]
        except Exception as error:
            found[name] = [f"{type(error).__name__}: {error}"[:300]]
    return found


if __name__ == "__main__":
    place.serve(main)
