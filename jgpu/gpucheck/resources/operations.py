"""Runs one step of each model of a group and saves what each op returned.

    python operations.py HOW GROUP SCALE FILE [OP]

With `OP`, the first result of that op is changed a little, to try the comparison.
"""

import pickle
from pathlib import Path
from typing import Any

import identity  # type: ignore[import-not-found]
import place
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Their results are not initialised.
_EMPTY = ("aten::empty", "aten::new_empty")
#: Further results of such ops are states of generators, which nothing but their derivatives reads.
_ATTENTION = "attention"
#: Relative change, which every floating dtype can represent.
_CHANGE = 1 + 2**-7

#: dtype, shape and bytes
Output = tuple[str, tuple[int, ...], bytes]


class Recorder(TorchDispatchMode):
    """Keeps the name and the results of each op."""

    def __init__(self, changed: str) -> None:
        super().__init__()
        self._changed = changed
        self.calls: list[tuple[str, list[Output]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.name()
        if name.startswith("prim::") or name.startswith(_EMPTY):
            return made
        outputs = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        if _ATTENTION in name:
            outputs = outputs[:1]
        if name == self._changed and outputs:
            outputs[0].mul_(_CHANGE)
            self._changed = ""
        self.calls.append((name, [_read(output) for output in outputs]))
        return made


def _read(tensor: torch.Tensor) -> Output:
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = host.flatten().view(torch.uint8).numpy().tobytes() if host.numel() else b""
    return str(host.dtype)[6:], tuple(host.shape), data


def main(
    device: torch.device, group: str, scale: str, file: str, changed: str = ""
) -> dict[str, int]:
    """Save the calls of every model of the group; their number by model."""
    calls = {}
    for name, make in identity.MODELS[group].items():
        recorder = Recorder(changed)
        with recorder:
            identity.train(make, device, int(scale), 1, scaled="scaled" in name)
        calls[name] = recorder.calls
    Path(file).write_bytes(pickle.dumps(calls))
    return {name: len(each) for name, each in calls.items()}


if __name__ == "__main__":
    place.serve(main)
