"""Compares two files of `operations.py`: what differs first, by model; "" where nothing does.

python differences.py HOW NATIVE SHARED
"""

import pickle
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import place
import torch

#: name of an op, and its results as `operations` saves them
Call = tuple[str, list[tuple[str, tuple[int, ...], bytes]]]
_MOST_NAMES = 6


def first_difference(native: list[Call], shared: list[Call]) -> str:
    """Return in words which op differs first, in its results or by its absence.

    The last ops before it that only one side calls are named, too: the two sides may prepare
    arguments in other ways, or take other kernels.
    """
    matcher = SequenceMatcher(None, [*map(_kind, native)], [*map(_kind, shared)], autojunk=False)
    others = ""
    for tag, begin, end, at, until in matcher.get_opcodes():
        if tag != "equal":
            others = (
                f"; before it, at op {begin}, native PyTorch calls {_names(native[begin:end])} and "
                f"jgpu calls {_names(shared[at:until])}"
            )
            continue
        for place_, (one, other) in enumerate(
            zip(native[begin:end], shared[at:until], strict=True), begin
        ):
            text = _result_that_differs(one, other)
            if text:
                return f"op {place_} of {len(native)}, {one[0]}: {text}{others}"
    return ""


def _kind(call: Call) -> Any:
    name, outputs = call
    return name, tuple((dtype, shape) for dtype, shape, _ in outputs)


def _names(calls: list[Call]) -> str:
    names = [name for name, _ in calls[-_MOST_NAMES:]]
    return ", ".join(names) or "nothing"


def _result_that_differs(one: Call, other: Call) -> str:
    for number, (native, shared) in enumerate(zip(one[1], other[1], strict=True)):
        if native == shared:
            continue
        dtype, shape, _ = native
        a, b = _tensor(native), _tensor(shared)
        differ = (a != b) & ~(a.isnan() & b.isnan())
        if not differ.any():
            continue  # other bits of NaN
        largest = (a - b).abs().max().item()
        return (
            f"result {number} ({dtype}, shape {shape}) differs in {int(differ.sum())} of "
            f"{differ.numel()} elements, by at most {largest:g}"
        )
    return ""


def _tensor(output: tuple[str, tuple[int, ...], bytes]) -> torch.Tensor:
    dtype, shape, data = output
    made = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype))
    return made.reshape(shape).to(torch.complex128 if made.is_complex() else torch.float64)


def main(device: torch.device, native: str, shared: str) -> dict[str, str]:
    """Compare model by model."""
    one, other = (pickle.loads(Path(file).read_bytes()) for file in (native, shared))
    return {name: first_difference(one[name], other[name]) for name in one}


if __name__ == "__main__":
    place.serve(main)
