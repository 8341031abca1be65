"""Types that CUDA's kernels take and the CPU's do not: computed in a wider one, and rounded.

Which these are was found by asking torch's own tests for the types of every op on either device.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.tables import Function, into, kernel, named

__all__: list[str] = []

#: The type in which one is computed.
_WIDER: Final = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}

#: Ops whose kernels on the CPU take no halves, with the overload that writes into a tensor.
_OF_HALVES: Final = {
    "avg_pool3d": "out",
    "avg_pool3d_backward": "grad_input",
    "multi_margin_loss": "out",
    "multi_margin_loss_backward": "grad_input",
    "multilabel_margin_loss_forward": "output",
    "multilabel_margin_loss_backward": "grad_input",
    "_upsample_bilinear2d_aa": "out",
    "_upsample_bilinear2d_aa_backward": "grad_input",
    "_upsample_bicubic2d_aa": "out",
    "_upsample_bicubic2d_aa_backward": "grad_input",
}


def _widened(value: Any) -> Any:
    return value.to(_WIDER.get(value.dtype, value.dtype)) if isinstance(value, Tensor) else value


def _of_halves(op: torch._ops.OpOverload) -> Function:
    """The op, whose results are rounded to the type of its halves."""

    def function(*given: Any) -> Any:
        halves = {each.dtype for each in given if isinstance(each, Tensor)} & _WIDER.keys()
        if not halves:
            return op(*given)
        dtype = halves.pop()
        made = op(*map(_widened, given))
        if isinstance(made, Tensor):
            return made.to(dtype)
        return tuple(each.to(dtype) for each in made)

    return function


def _with_outs(function: Function, count: int) -> Function:
    def written(*given: Any) -> Any:
        made = function(*given[:-count])
        if isinstance(made, Tensor):
            return into(given[-1], made)
        return tuple(into(out, each) for out, each in zip(given[-count:], made, strict=True))

    return written


for _name, _out in _OF_HALVES.items():
    for _op in named(_name):
        _function = _of_halves(_op)
        kernel(_name)(_function)
        kernel(f"{_name}.{_out}")(_with_outs(_function, len(_op._schema.returns)))


# -- Fourier transforms of halves ----------------------------------------------------------------


def _powers_of_two(sizes: Sequence[int]) -> None:
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half "
            f"precision, but got a signal size of{list(sizes)}"
        )


def _transform(name: str, halves: torch.dtype) -> Function:
    (op,) = named(name)

    def function(given: Tensor, dims: Sequence[int], *rest: Any) -> Tensor:
        if given.dtype not in (torch.float16, torch.complex32):
            whole: Tensor = op(given, dims, *rest)
            return whole
        sizes = [given.shape[dim] for dim in dims]
        if name == "_fft_c2r":
            sizes[-1] = rest[-1]
        _powers_of_two(sizes)
        made: Tensor = op(_widened(given), dims, *rest)
        return made.to(halves)

    return function


for _name, _halves in (
    ("_fft_r2c", torch.complex32),
    ("_fft_c2c", torch.complex32),
    ("_fft_c2r", torch.float16),
):
    kernel(_name)(_transform(_name, _halves))
    kernel(f"{_name}.out")(_with_outs(_transform(_name, _halves), 1))


# -- truth values and whole numbers --------------------------------------------------------------


@kernel("abs")
def _abs(given: Tensor) -> Tensor:
    return given.clone() if given.dtype is torch.bool else torch.ops.aten.abs.default(given)


@kernel("trace")
def _trace(given: Tensor) -> Tensor:
    wide = given.to(torch.int64) if given.dtype is torch.bool else given
    made: Tensor = torch.ops.aten.trace.default(wide)
    return made


@kernel("histc")
def _histogram(given: Tensor, bins: int, low: Any, high: Any) -> Tensor:
    """Of whole numbers counts of their own type."""
    wide = given if given.is_floating_point() else given.to(torch.float64)
    made: Tensor = torch.ops.aten.histc.default(wide, bins, low, high)
    return made.to(given.dtype)
