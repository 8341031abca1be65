"""Ops that take halves and give floats: softmax, and products with a type for their result."""

from typing import Any

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.tables import Function, into, kernel

__all__: list[str] = []

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


def _softmax(name: str) -> Function:
    own = getattr(aten, name).default

    def function(given: Tensor, dim: int, to_float: bool) -> Tensor:
        if to_float and given.dtype not in _HALVES:
            raise RuntimeError("conversion is supported for Half and BFloat16 type only")
        # one rounding less than a softmax that is converted afterwards
        made: Tensor = own(given.to(torch.float32) if to_float else given, dim, False)
        return made

    return function


def _softmax_backward(name: str) -> Function:
    own = getattr(aten, name).default

    def function(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        made: Tensor = own(grad, output, dim, grad.dtype)
        return made.to(dtype)

    return function


def _with_out(function: Function) -> Function:
    def written(*args: Any) -> Tensor:
        return into(args[-1], function(*args[:-1]))

    return written


for _name in ("_softmax", "_log_softmax"):
    kernel(_name)(_softmax(_name))
    kernel(f"{_name}.out")(_with_out(_softmax(_name)))
    kernel(f"{_name}_backward_data")(_softmax_backward(f"{_name}_backward_data"))
    kernel(f"{_name}_backward_data.out")(_with_out(_softmax_backward(f"{_name}_backward_data")))


# -- products ------------------------------------------------------------------------------------


def _checked(given: Tensor, dtype: torch.dtype) -> None:
    if dtype is not given.dtype and not (dtype is torch.float32 and given.dtype in _HALVES):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Of matrices or of batches of them; summed in the wider type."""
    _checked(left, dtype)
    if left.dim() == 2:
        return left.to(dtype).mm(right.to(dtype))
    return left.to(dtype).bmm(right.to(dtype))


def _sum(
    added: Tensor, left: Tensor, right: Tensor, dtype: torch.dtype, beta: Any, alpha: Any
) -> Tensor:
    _checked(left, dtype)
    whole = aten.addmm.default if left.dim() == 2 else aten.baddbmm.default
    wide = (each.to(dtype) for each in (added, left, right))
    made: Tensor = whole(*wide, beta=beta, alpha=alpha)
    return made


for _plain in ("mm", "bmm"):
    kernel(f"{_plain}.dtype")(_product)
    kernel(f"{_plain}.dtype_out")(_with_out(_product))
for _added in ("addmm", "baddbmm"):
    kernel(f"{_added}.dtype")(_sum)
    kernel(f"{_added}.dtype_out")(_with_out(_sum))
