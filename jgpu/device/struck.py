"""What a signal struck, told by its frames: whether an error raised there would tear for good.

- Functions that change a state of torch's or put it back, as `TorchDispatchMode.__exit__` does.
  Python calls handlers where a function begins: nothing has been put back by then, and nobody will.
- An import that torch or this package began in the midst of a call, as torch's dispatcher does at
  its first op. What is left of it cannot be imported again: ops would be registered twice, and
  modules that were through miss their parts.
- The end of `import torch`, where this package registers the device: torch, too, is imported once.

Imports that others wrote are left alone: Ctrl-C ends `import pandas`, and what that imports, as it
does natively.
"""

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import _GeneratorContextManager
from dis import opmap
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from jgpu.device.tracebacks import OURS, TORCH

__all__ = ["would_tear"]

_DEVICE: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: whose beginnings and ends change a state of the whole process or thread; none of them waits
_BLOCKS: Final = (
    TorchDispatchMode,
    TorchFunctionMode,
    torch.no_grad,
    torch.enable_grad,
    torch.set_grad_enabled,
    torch.inference_mode,
    torch.amp.autocast_mode.autocast,
    warnings.catch_warnings,
)


def _codes(cls: type, *names: str) -> Iterator[CodeType]:
    for name in names:
        code = getattr(getattr(cls, name), "__code__", None)
        if code is not None:  # else it is C's: nothing strikes inside
            yield code


_STATES: Final = frozenset(
    (
        *(code for cls in _BLOCKS for code in _codes(cls, "__enter__", "__exit__")),
        *_codes(torch.set_grad_enabled, "__init__"),  # as a function, also what `finally` calls
        *_codes(torch.nn.Module, "register_forward_pre_hook"),
        *_codes(RemovableHandle, "remove"),
    )
)
_WHOLE_TORCH: Final = ("<module>", torch.__file__)
_GENERATORS: Final = frozenset(_codes(_GeneratorContextManager, "__enter__", "__exit__"))

_ASKED: Final = importlib.import_module.__code__.co_filename
_IMPORTS: Final = frozenset(
    (_ASKED, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
)
_WRITTEN: Final = (opmap["IMPORT_NAME"], opmap["IMPORT_FROM"])


def would_tear(frame: FrameType | None) -> bool:
    """Whether an error raised in the frame would leave something torn for good."""
    importing = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename in _IMPORTS:
            importing = frame
        elif importing is not None:
            if _is_torchs(importing, frame):
                return True
            importing = None
        if code in _STATES or (code in _GENERATORS and _is_ours(frame)):
            return True
        if (code.co_name, code.co_filename) == _WHOLE_TORCH:
            return True
        frame = frame.f_back
    return False


def _is_ours(block: FrameType) -> bool:
    """Whether a block made by `contextmanager` is one of the device's."""
    generator = getattr(block.f_locals.get("self"), "gen", None)
    code = getattr(generator, "gi_code", None)
    return code is not None and code.co_filename.startswith(_DEVICE)


def _is_torchs(importing: FrameType, importer: FrameType) -> bool:
    """Whether torch or this package began the import in the midst of a call."""
    code = importer.f_code
    if code.co_filename.startswith((OURS, TORCH)):
        return code.co_name != "<module>"  # else whoever imports that module began this one
    if importing.f_code.co_filename == _ASKED or code.co_code[importer.f_lasti] in _WRITTEN:
        return False
    names = importing.f_locals  # C's code asks: of a module by name, or of names in a module
    name: Any = names.get("name") or getattr(names.get("module"), "__name__", "")
    return str(name).partition(".")[0] in ("torch", "jgpu")
