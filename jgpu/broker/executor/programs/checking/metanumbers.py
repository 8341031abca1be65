"""Meta kernels that take numbers of the host, which are 0-dim CPU tensors, only as meta tensors.

Many meta kernels are written in Python and refuse a CPU tensor next to meta tensors, while native
kernels take it as a number.
"""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["with_meta_numbers"]


def with_meta_numbers(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `call` so that it tries CPU tensors as they are first, and then as meta tensors."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception:
            if not any(map(_is_on_host, (*args, *kwargs.values()))):
                raise
        named = {name: _moved(value) for name, value in kwargs.items()}
        return call(*map(_moved, args), **named)

    return wrapped


def _is_on_host(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_on_host, value))
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _moved(value: Any) -> Any:
    if isinstance(value, list):
        return [_moved(item) for item in value]
    return value.to("meta") if isinstance(value, torch.Tensor) else value
