"""A tensor that is made of several device tensors, and whose ops are spelled out in dense ones.

Torch's C++ takes it for one more strided tensor of the backend; Python sees its real layout. A
subclass has handlers by the name of a method, a function or an op; the rest raises an error with an
alternative. The executor knows no such tensors, so nothing of theirs has to be checked there.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from jgpu.device.errors import refused
from jgpu.device.tensor import CUDA, as_tensor
from jgpu.device.tracebacks import unseen

__all__ = ["INSTEAD", "CompositeTensor", "one_by_one"]

INSTEAD = "convert with .to_dense() first, or keep it on the CPU"
_plain = torch._C.DisableTorchFunctionSubclass


class CompositeTensor(torch.Tensor):
    """Its subclasses are the sparse layouts."""

    #: by the name of a method, a function or an op
    handlers: ClassVar[dict[str, Callable[..., Any]]] = {}
    #: of these, what functions leave to torch's C++ and its derivatives; ops are spelled out
    derived: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        as_tensor(cls)

    is_cuda = True
    device = CUDA

    @classmethod
    @unseen
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """By name, if it is spelled out; else torch's own way, which ends in dispatch."""
        name = getattr(func, "__name__", "")
        handler = None if name in cls.derived else cls.handlers.get(name)
        if handler is not None:
            _refuse_out(kwargs)
            return handler(*args, **(kwargs or {}))
        if name.startswith("_foreach_"):
            return one_by_one(name.removeprefix("_foreach_"), *args, **(kwargs or {}))
        with _plain():
            return func(*args, **(kwargs or {}))

    @classmethod
    @unseen
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Ops that torch's C++ calls."""
        handler = cls.handlers.get(func._schema.name.removeprefix("aten::"))
        if handler is None:
            raise refused(f"{func._schema.name} of a sparse tensor", INSTEAD)
        _refuse_out(kwargs)
        return handler(*args, **(kwargs or {}))


def _refuse_out(keywords: Any) -> None:
    if keywords and keywords.get("out") is not None:
        raise refused("out= in an op on a sparse tensor", "use what it returns")


def one_by_one(name: str, *args: Any, **keywords: Any) -> Any:
    """The foreach form of a method: lists are walked side by side."""
    made = []
    for k in range(len(args[0])):
        each = [value[k] if isinstance(value, list | tuple) else value for value in args]
        made.append(getattr(each[0], name)(*each[1:], **keywords))
    return None if name.endswith("_") else made
