"""torchvision, also where its C++ ops do not fit the torch that is installed.

The package index has torchvision for CUDA's torch, whose library of ops a CPU's torch cannot load;
models and transforms need none of them, but its import does not get past the first. Declared
before, it does.
"""

import contextlib
import sys

import torch

__all__ = ["torchvision"]

_library = None
with contextlib.suppress(RuntimeError):
    import torchvision
if "torchvision" not in sys.modules:
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]
    _library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
