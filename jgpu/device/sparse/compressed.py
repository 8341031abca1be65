"""Compressed sparse tensors (CSR, CSC, BSR, BSC): three device tensors under one face.

`CompressedTensor` holds a pattern (compressed and plain indices, layout, shape) and values. How one
is made is in `conversions`, ops on them are in `compressed_ops`.

Autograd sees the whole tensor: `values_of` and `assembled` are the two ways through its face, each
the other's derivative. An op takes values by `values_of` and gives a result by `assembled`, or has
an autograd function, or is left to torch's C++, which derives it and dispatches to the handlers.
"""

from typing import Any

import torch

from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.sparse.pattern import Pattern
from jgpu.device.tensor import device

__all__ = [
    "CompressedTensor",
    "assembled",
    "at_entries",
    "blocks_of",
    "is_compressed",
    "masked",
    "title",
    "to_dense",
    "to_host",
    "transposed",
    "values_of",
    "wrapped",
]


class CompressedTensor(CompositeTensor):
    """A pattern and values [batch ..., entries, (block rows, block columns), dense ...]."""

    _p: Pattern
    #: without a history of autograd's; see `values_of`
    _v: torch.Tensor

    is_sparse = False
    is_sparse_csr = property(lambda self: self._p.layout is torch.sparse_csr)
    layout = property(lambda self: self._p.layout)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Ops that torch's C++ calls below its autograd."""
        with torch.no_grad():
            return super().__torch_dispatch__(func, types, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """As torch prints it."""
        text = repr(to_host(self.detach())).replace(" size=", " device='cuda:0', size=", 1)
        if self.grad_fn is not None:
            text = f"{text[:-1]}, grad_fn=<{type(self.grad_fn).__name__}>)"
        elif self.requires_grad:
            text = f"{text[:-1]}, requires_grad=True)"
        return f"Parameter containing:\n{text}" if getattr(self, "_is_param", False) else text


def is_compressed(value: Any) -> bool:
    """Whether it is a compressed sparse tensor on the device."""
    return isinstance(value, CompressedTensor)


def title(whole: Any) -> str:
    """The layout as torch's messages name it."""
    return "Sparse" + str(whole.layout).rpartition("_")[2].title()


def wrapped(pattern: Pattern, values: torch.Tensor) -> CompressedTensor:
    """A compressed tensor of these parts, without a history of autograd's."""
    made = torch.Tensor._make_wrapper_subclass(
        CompressedTensor, pattern.shape, dtype=values.dtype, device=device(), requires_grad=False
    )
    made._p, made._v = pattern, values
    result: CompressedTensor = made
    return result


# -- the two ways of autograd -----------------------------------------------------------------


class _Values(torch.autograd.Function):
    """From the whole to its values; the gradient has the same pattern."""

    @staticmethod
    def forward(ctx: Any, whole: Any) -> torch.Tensor:
        ctx.pattern = whole._p
        values: torch.Tensor = whole._v.detach()
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return assembled(ctx.pattern, grads[0])


class _Assembled(torch.autograd.Function):
    """From values to the whole; of a dense gradient, the values at the entries remain."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, values: torch.Tensor) -> CompressedTensor:
        ctx.pattern = pattern
        return wrapped(pattern, values.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if is_compressed(grad) and _same_place(grad._p, ctx.pattern):
            return None, values_of(grad)
        dense = to_dense(grad) if isinstance(grad, CompositeTensor) else grad
        return None, at_entries(dense, ctx.pattern)


def _same_place(one: Pattern, other: Pattern) -> bool:
    return one is other or (
        one.layout is other.layout
        and one.shape == other.shape
        and one.block == other.block
        and one.compressed is other.compressed
        and one.plain is other.plain
    )


def _recorded(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def values_of(whole: Any) -> torch.Tensor:
    """The values, through autograd."""
    values: torch.Tensor = _Values.apply(whole) if _recorded(whole) else whole._v
    return values


def assembled(pattern: Pattern, values: torch.Tensor) -> CompressedTensor:
    """A compressed tensor of these parts, through autograd."""
    if not _recorded(values):
        return wrapped(pattern, values.detach() if values.requires_grad else values)
    made: CompressedTensor = _Assembled.apply(pattern, values)
    return made


# -- dense and back ---------------------------------------------------------------------------


def blocks_of(dense: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """A dense tensor of the pattern's shape as blocks [all, block rows, block columns, ...]."""
    (batches, rows, columns), (high, wide) = pattern.grid, pattern.block
    apart = dense.reshape(batches, rows, high, columns, wide, *pattern.dense)
    return apart.transpose(2, 3).reshape(batches * rows * columns, high, wide, *pattern.dense)


def at_entries(dense: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Elements of a dense tensor at the entries, shaped like values."""
    blocks = blocks_of(dense, pattern).index_select(0, pattern.flat())
    inner = pattern.block if pattern.blocked else ()
    return blocks.reshape(*pattern.plain.shape, *inner, *pattern.dense)


def masked(dense: torch.Tensor, mask: Any) -> CompressedTensor:
    """`dense.sparse_mask(mask)`, of a tensor or a pattern."""
    pattern = mask._p if is_compressed(mask) else mask
    return assembled(pattern, at_entries(dense, pattern))


def transposed(whole: Any, *, conjugate: bool = False) -> CompressedTensor:
    """Rows for columns, over the same indices."""
    pattern, values = whole._p, values_of(whole)
    if pattern.blocked:
        at = len(pattern.batch) + 1
        values = values.transpose(at, at + 1)
    return assembled(pattern.turned(), values.conj() if conjugate else values)


def to_dense(whole: Any, dtype: Any = None, **keywords: Any) -> torch.Tensor:
    """The dense tensor; entries of one place add up."""
    if not is_compressed(whole):
        made: torch.Tensor = whole.to_dense()
        return made
    pattern: Pattern = whole._p
    (batches, rows, columns), (high, wide) = pattern.grid, pattern.block
    blocks = values_of(whole).reshape(pattern.plain.numel(), high, wide, *pattern.dense)
    room = blocks.new_zeros((batches * rows * columns, high, wide, *pattern.dense))
    room = room.index_add(0, pattern.flat(), blocks)
    apart = room.view(batches, rows, columns, high, wide, *pattern.dense)
    dense = apart.transpose(2, 3).reshape(pattern.shape)
    return dense if dtype is None else dense.to(dtype)


def to_host(whole: Any) -> torch.Tensor:
    """The same on the host; waits."""
    pattern = whole._p
    return torch.sparse_compressed_tensor(
        pattern.compressed.cpu(), pattern.plain.cpu(), values_of(whole).cpu(), pattern.shape,
        layout=pattern.layout, check_invariants=False,
    )  # fmt: skip
