"""Compressed sparse tensors (CSR, CSC, BSR, BSC): three device tensors under one face.

`CompressedTensor` holds a pattern (compressed and plain indices, layout, shape) and values.
Batches, blocks and dense dimensions are laid out as torch lays them out; what is said of blocks
holds for CSR and CSC with blocks of one by one. Ops on them are in `compressed_ops`.

Autograd sees the whole tensor: `values_of` and `assembled` are the two ways through its face, each
the other's derivative. An op takes values by `values_of` and gives a result by `assembled`, or is a
function of autograd's of its own, or is left to torch's C++, which derives it and comes back by
dispatch.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch

from jgpu.device.errors import refused
from jgpu.device.sparse import coo
from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.tensor import CUDA, DeviceTensor, device
from jgpu.device.tracebacks import unseen

__all__ = [
    "LAYOUTS",
    "CompressedTensor",
    "Pattern",
    "assembled",
    "compressed",
    "created",
    "from_host",
    "is_compressed",
    "masked",
    "relaid",
    "sparsified",
    "title",
    "to_dense",
    "to_host",
    "transposed",
    "values_of",
]

#: the names of the compressed and the plain indices of a layout
LAYOUTS: Final = {
    torch.sparse_csr: ("crow", "col"),
    torch.sparse_csc: ("ccol", "row"),
    torch.sparse_bsr: ("crow", "col"),
    torch.sparse_bsc: ("ccol", "row"),
}
_BLOCKED: Final = (torch.sparse_bsr, torch.sparse_bsc)
_OTHER_WAY: Final = {
    torch.sparse_csr: torch.sparse_csc,
    torch.sparse_csc: torch.sparse_csr,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where entries stand: compressed [batch ..., lines + 1], plain [batch ..., entries]."""

    compressed: torch.Tensor
    plain: torch.Tensor
    layout: torch.layout
    #: of the whole: batch, rows, columns, dense dimensions
    shape: tuple[int, ...]
    #: rows and columns of one entry
    block: tuple[int, int]

    @property
    def by_rows(self) -> bool:
        """Whether rows are compressed."""
        return LAYOUTS[self.layout][0] == "crow"

    @property
    def blocked(self) -> bool:
        """Whether values have two dimensions of blocks."""
        return self.layout in _BLOCKED

    @property
    def batch(self) -> tuple[int, ...]:
        """Extents of the batch."""
        return tuple(self.plain.shape[:-1])

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns."""
        count = len(self.batch)
        return self.shape[count], self.shape[count + 1]

    @property
    def dense(self) -> tuple[int, ...]:
        """Extents of the dense dimensions."""
        return self.shape[len(self.batch) + 2 :]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Batches, rows of blocks, columns of blocks."""
        (rows, columns), (high, wide) = self.matrix, self.block
        return prod(self.batch), rows // max(high, 1), columns // max(wide, 1)

    def places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column of each entry (of each block), [batch ..., entries]."""
        count = self.plain.shape[-1]
        numbers = torch.arange(count, device=CUDA).expand(self.plain.shape).contiguous()
        ends = self.compressed[..., 1:].to(torch.int64).contiguous()
        lines = torch.searchsorted(ends, numbers, right=True)
        plain = self.plain.to(torch.int64)
        return (lines, plain) if self.by_rows else (plain, lines)

    def flat(self) -> torch.Tensor:
        """One number per entry: where its block stands among all, [batch * entries]."""
        batches, high, wide = self.grid
        rows, columns = self.places()
        place = (rows * wide + columns).reshape(batches, -1)
        if batches > 1:
            place = place + (torch.arange(batches, device=CUDA) * (high * wide)).view(-1, 1)
        return place.reshape(-1)

    def turned(self) -> "Pattern":
        """Of the transposed matrix: the same indices, read the other way."""
        at = len(self.batch)
        rows, columns = self.matrix
        shape = (*self.shape[:at], columns, rows, *self.dense)
        other = _OTHER_WAY[self.layout]
        return Pattern(self.compressed, self.plain, other, shape, self.block[::-1])


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
        """Ops that torch's C++ calls, whose own autograd stands above."""
        with torch.no_grad():
            return super().__torch_dispatch__(func, types, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """As torch prints it."""
        text = repr(to_host(self.detach())).replace(" size=", " device='cuda:0', size=", 1)
        if self.grad_fn is not None:
            return f"{text[:-1]}, grad_fn=<{type(self.grad_fn).__name__}>)"
        return f"{text[:-1]}, requires_grad=True)" if self.requires_grad else text

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Of its own values; the pattern is never changed."""
        made = memo.get(id(self))
        if made is None:
            made = memo[id(self)] = _wrapped(self._p, self._v.clone())
            made.requires_grad_(self.requires_grad)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a sparse tensor of the host; loading moves nothing."""
        return to_host(self.detach()).__reduce_ex__(protocol)


def is_compressed(value: Any) -> bool:
    """Whether it is a compressed sparse tensor on the device."""
    return isinstance(value, CompressedTensor)


def title(whole: Any) -> str:
    """The layout as torch's messages name it."""
    return "Sparse" + str(whole.layout).rpartition("_")[2].title()


def _wrapped(pattern: Pattern, values: torch.Tensor) -> CompressedTensor:
    made = torch.Tensor._make_wrapper_subclass(
        CompressedTensor, pattern.shape, dtype=values.dtype, device=device(), requires_grad=False
    )
    made._p, made._v = pattern, values
    result: CompressedTensor = made
    return result


# -- the two ways of autograd -----------------------------------------------------------------


class _Values(torch.autograd.Function):
    """From the whole to its values; a gradient comes back in the same pattern."""

    @staticmethod
    def forward(ctx: Any, whole: Any) -> torch.Tensor:
        ctx.pattern = whole._p
        values: torch.Tensor = whole._v.detach()
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return assembled(ctx.pattern, grads[0])


class _Assembled(torch.autograd.Function):
    """From values to the whole; of a dense gradient, what stands at the entries comes back."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, values: torch.Tensor) -> CompressedTensor:
        ctx.pattern = pattern
        return _wrapped(pattern, values.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if is_compressed(grad) and _same_place(grad._p, ctx.pattern):
            return None, values_of(grad)
        dense = to_dense(grad) if isinstance(grad, CompositeTensor) else grad
        return None, _at_entries(dense, ctx.pattern)


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
        return _wrapped(pattern, values.detach() if values.requires_grad else values)
    made: CompressedTensor = _Assembled.apply(pattern, values)
    return made


# -- dense and back ---------------------------------------------------------------------------


def _blocks_of(dense: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """A dense tensor of the pattern's shape as blocks [all, block rows, block columns, ...]."""
    (batches, rows, columns), (high, wide) = pattern.grid, pattern.block
    apart = dense.reshape(batches, rows, high, columns, wide, *pattern.dense)
    return apart.transpose(2, 3).reshape(batches * rows * columns, high, wide, *pattern.dense)


def _at_entries(dense: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """What stands at the entries, shaped like values."""
    blocks = _blocks_of(dense, pattern).index_select(0, pattern.flat())
    inner = pattern.block if pattern.blocked else ()
    return blocks.reshape(*pattern.plain.shape, *inner, *pattern.dense)


def masked(dense: torch.Tensor, mask: Any) -> CompressedTensor:
    """`dense.sparse_mask(mask)`, of a tensor or a pattern."""
    pattern = mask._p if is_compressed(mask) else mask
    return assembled(pattern, _at_entries(dense, pattern))


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


def _block(layout: torch.layout, size: Any) -> tuple[int, int]:
    if layout not in _BLOCKED:
        if size is not None:
            raise RuntimeError(f"to_sparse for {layout} does not take a blocksize, got {size}")
        return 1, 1
    if size is None or len(size) != 2 or min(size) < 1:
        raise RuntimeError(f"to_sparse for {layout} needs a blocksize of two, got {size}")
    return int(size[0]), int(size[1])


def compressed(
    dense: torch.Tensor, layout: torch.layout, blocksize: Any = None, dense_dim: Any = None,
    *, kept: torch.Tensor | None = None,
) -> CompressedTensor:  # fmt: skip
    """A dense tensor compressed: what is not zero, or where `kept` is true, by one wait."""
    count = dense.dim() - 2 - int(dense_dim or 0)
    if count < 0:
        raise RuntimeError(
            f"to_sparse: {layout} needs two dimensions beside the dense ones, got {dense.dim()}"
        )
    high, wide = _block(layout, blocksize)
    shape, batch = tuple(dense.shape), tuple(dense.shape[:count])
    if shape[count] % high or shape[count + 1] % wide:
        raise RuntimeError(
            f"to_sparse: a tensor of size {list(shape[count : count + 2])} cannot be divided into "
            f"blocks of {[high, wide]}"
        )
    nothing = torch.zeros((*batch, 0), dtype=torch.int64, device=CUDA)
    outline = Pattern(nothing, nothing, layout, shape, (high, wide))
    batches, rows, columns = outline.grid
    chosen = dense.detach().ne(0) if kept is None else kept
    mask = _blocks_of(chosen, outline).flatten(1).any(1).view(batches, rows, columns)
    if not outline.by_rows:
        mask = mask.transpose(1, 2)
    per_batch = mask.sum((1, 2)).tolist()
    if len(set(per_batch)) > 1:
        raise RuntimeError("Expect the same number of specified elements per batch.")
    plain = mask.nonzero()[:, 2].reshape(*batch, per_batch[0] if per_batch else 0)
    ends = torch.nn.functional.pad(mask.sum(2).cumsum(1), (1, 0))
    pattern = Pattern(ends.reshape(*batch, -1), plain, layout, shape, (high, wide))
    return assembled(pattern, _at_entries(dense, pattern))


def relaid(
    whole: Any, layout: torch.layout | None = None, blocksize: Any = None, dense_dim: Any = None
) -> Any:
    """Any sparse tensor in another layout; explicit zeros stay."""
    layout = layout or torch.sparse_coo
    mine = whole.layout
    if layout is torch.strided:
        return to_dense(whole)
    if layout is mine and (not is_compressed(whole) or blocksize in (None, whole._p.block)):
        return whole
    if is_compressed(whole) and (whole._p.blocked or whole._p.batch or layout in _BLOCKED):
        if layout is torch.sparse_coo:
            raise refused("blocks or batches in coordinate form", "use .to_dense().to_sparse()")
        return _relaid_densely(whole, layout, blocksize)
    if layout in _BLOCKED:
        return _relaid_densely(relaid(whole, torch.sparse_csr), layout, blocksize)
    _block(layout, blocksize)
    indices, values = _ordered(whole, by_rows=layout is not torch.sparse_csc)
    if layout is torch.sparse_coo:
        return coo.make(indices, values, whole.shape, True)
    lines, plain = indices if layout is torch.sparse_csr else indices.flip(0)
    count = whole.shape[0 if layout is torch.sparse_csr else 1]
    ends = torch.searchsorted(lines.contiguous(), torch.arange(count + 1, device=CUDA))
    pattern = Pattern(ends, plain.contiguous(), layout, tuple(whole.shape), (1, 1))
    return assembled(pattern, values)


def _relaid_densely(whole: Any, layout: torch.layout, blocksize: Any) -> CompressedTensor:
    present = _wrapped(whole._p, torch.ones_like(whole._v, dtype=torch.bool))
    dense, dimensions = to_dense(whole), len(whole._p.dense)
    return compressed(dense, layout, blocksize, dimensions, kept=to_dense(present))


def _ordered(whole: Any, *, by_rows: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices [2, entries] and values of a matrix, row by row or column by column."""
    if is_compressed(whole):
        rows, columns = whole._p.places()
        values, ordered = values_of(whole), whole._p.by_rows
    else:
        together = whole.coalesce()
        if together.sparse_dim() != 2:
            raise RuntimeError(
                f"Only 2D sparse tensors can be compressed, got {together.sparse_dim()}"
            )
        (rows, columns), values, ordered = together._i, together._v, True
    if ordered is not by_rows:
        key = rows * whole.shape[1] + columns if by_rows else columns * whole.shape[0] + rows
        order = key.argsort(stable=True)
        rows, columns, values = rows[order], columns[order], values.index_select(0, order)
    return torch.stack([rows, columns]), values


def sparsified(
    dense: torch.Tensor, sparse_dim: int | None = None, *, layout: Any = None,
    blocksize: Any = None, dense_dim: Any = None,
) -> Any:  # fmt: skip
    """`to_sparse` of a dense tensor."""
    if layout in LAYOUTS:
        return compressed(dense, layout, blocksize, dense_dim)
    if layout is torch.strided:
        return dense
    if dense_dim:
        raise refused("to_sparse with dense_dim", "give the number of sparse dimensions")
    return coo.sparsified(dense, sparse_dim)


# -- host and construction --------------------------------------------------------------------


def to_host(whole: Any) -> torch.Tensor:
    """The same on the host; waits."""
    pattern = whole._p
    return torch.sparse_compressed_tensor(
        pattern.compressed.cpu(), pattern.plain.cpu(), values_of(whole).cpu(), pattern.shape,
        layout=pattern.layout, check_invariants=False,
    )  # fmt: skip


def _block_of(values: torch.Tensor, plain: torch.Tensor, layout: torch.layout) -> tuple[int, int]:
    at = plain.dim()
    return (values.shape[at], values.shape[at + 1]) if layout in _BLOCKED else (1, 1)


def from_host(host: torch.Tensor, dtype: torch.dtype | None = None) -> Any:
    """A sparse tensor of the host, in whatever layout, copied to the device."""
    if isinstance(host, CompositeTensor):
        return host if dtype is None else host.to(dtype)
    if host.layout not in LAYOUTS:
        return coo.from_host(host, dtype)
    first, second = (f"{name}_indices" for name in LAYOUTS[host.layout])
    ends, plain, values = getattr(host, first)(), getattr(host, second)(), host.values()
    shape, block = tuple(host.shape), _block_of(values, plain, host.layout)
    pattern = Pattern(ends.to(CUDA), plain.to(CUDA), host.layout, shape, block)
    return assembled(pattern, (values if dtype is None else values.to(dtype)).to(CUDA))


def created(original: Callable[..., Any], fixed: torch.layout | None = None) -> Callable[..., Any]:
    """A constructor of torch's, whose tensor may be ours.

    It is called over the indices and a stand-in for the values, on the host, so that sizes are
    inferred and mistakes are told as torch does it; that takes one wait.
    """

    @functools.wraps(original)
    def construct(
        compressed_indices: Any, plain_indices: Any, values: Any, size: Any = None, *,
        dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
        **keywords: Any,
    ) -> Any:  # fmt: skip
        parts = (compressed_indices, plain_indices, values)
        if layout is not None:
            keywords["layout"] = layout
        if size is not None:
            keywords["size"] = size
        theirs = any(isinstance(part, DeviceTensor) for part in parts)
        if not theirs and (device is None or torch.device(device).type == "cpu"):
            return original(
                *parts, dtype=dtype, device=device, requires_grad=requires_grad, **keywords
            )
        ends, plain = (_whole_numbers(part) for part in parts[:2])
        second = torch.as_tensor(values, device=CUDA)
        second = second if dtype is None else second.to(dtype)
        stand_in = torch.zeros((), dtype=second.dtype).expand(second.shape)
        host = original(ends.cpu(), plain.cpu(), stand_in, **keywords)
        shape, block = tuple(host.shape), _block_of(second, plain, host.layout)
        made = assembled(Pattern(ends, plain, host.layout, shape, block), second)
        return made.requires_grad_() if requires_grad else made

    @functools.wraps(original)
    def of_fixed_layout(*args: Any, **keywords: Any) -> Any:
        names = [f"{name}_indices" for name in LAYOUTS[fixed or torch.sparse_csr]]
        given = [keywords.pop(name) for name in names[len(args) :] if name in keywords]
        return construct(*args, *given, **keywords)

    return unseen(construct if fixed is None else of_fixed_layout)


def _whole_numbers(indices: Any) -> torch.Tensor:
    made = torch.as_tensor(indices, device=CUDA)
    return made if made.dtype in (torch.int32, torch.int64) else made.to(torch.int64)
