"""How compressed sparse tensors are made: of dense ones, of other layouts, of the host's, of parts.

How many entries a dense tensor has only the device knows, so that takes one wait.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from jgpu.device.errors import refused
from jgpu.device.sparse import coo
from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.sparse.compressed import (
    CompressedTensor,
    assembled,
    at_entries,
    blocks_of,
    is_compressed,
    to_dense,
    values_of,
    wrapped,
)
from jgpu.device.sparse.pattern import BLOCKED, LAYOUTS, Pattern
from jgpu.device.tensor import CUDA, DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["compressed", "created", "from_host", "relaid", "sparsified"]


def _block(layout: torch.layout, size: Any) -> tuple[int, int]:
    if layout not in BLOCKED:
        if size is not None:
            raise RuntimeError(f"to_sparse for {layout} does not take a blocksize, got {size}")
        return 1, 1
    if size is None or len(size) != 2 or min(size) < 1:
        raise RuntimeError(f"to_sparse for {layout} needs a blocksize of two, got {size}")
    return int(size[0]), int(size[1])


class _Compressed(torch.autograd.Function):
    """A dense tensor compressed; its gradient is dense, with what the whole's has elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, dense: torch.Tensor, layout: Any, blocksize: Any, dense_dim: Any, kept: Any
    ) -> Any:
        return compressed(dense.detach(), layout, blocksize, dense_dim, kept=kept)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return to_dense(grad) if isinstance(grad, CompositeTensor) else grad, None, None, None, None


def compressed(
    dense: torch.Tensor, layout: torch.layout, blocksize: Any = None, dense_dim: Any = None,
    *, kept: torch.Tensor | None = None,
) -> CompressedTensor:  # fmt: skip
    """Compress a dense tensor: elements that are not 0, or where `kept` is true; waits once."""
    if dense.requires_grad and torch.is_grad_enabled():
        made: CompressedTensor = _Compressed.apply(dense, layout, blocksize, dense_dim, kept)
        return made
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
    mask = blocks_of(chosen, outline).flatten(1).any(1).view(batches, rows, columns)
    if not outline.by_rows:
        mask = mask.transpose(1, 2)
    per_batch = mask.sum((1, 2)).tolist()
    if len(set(per_batch)) > 1:
        raise RuntimeError("Expect the same number of specified elements per batch.")
    plain = mask.nonzero()[:, 2].reshape(*batch, per_batch[0] if per_batch else 0)
    ends = torch.nn.functional.pad(mask.sum(2).cumsum(1), (1, 0))
    pattern = Pattern(ends.reshape(*batch, -1), plain, layout, shape, (high, wide))
    return assembled(pattern, at_entries(dense, pattern))


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
    if is_compressed(whole) and (whole._p.blocked or whole._p.batch or layout in BLOCKED):
        if layout is torch.sparse_coo:
            raise refused("blocks or batches in coordinate form", "use .to_dense().to_sparse()")
        return _relaid_densely(whole, layout, blocksize)
    if layout in BLOCKED:
        return _relaid_densely(relaid(whole, torch.sparse_csr), layout, blocksize)
    _block(layout, blocksize)
    indices, values = _ordered(whole, by_rows=layout is not torch.sparse_csc)
    if layout is torch.sparse_coo:
        return coo.assembled(indices, values, whole.shape, True)
    lines, plain = indices if layout is torch.sparse_csr else indices.flip(0)
    count = whole.shape[0 if layout is torch.sparse_csr else 1]
    ends = torch.searchsorted(lines.contiguous(), torch.arange(count + 1, device=CUDA))
    pattern = Pattern(ends, plain.contiguous(), layout, tuple(whole.shape), (1, 1))
    return assembled(pattern, values)


def _relaid_densely(whole: Any, layout: torch.layout, blocksize: Any) -> CompressedTensor:
    present = wrapped(whole._p, torch.ones_like(whole._v, dtype=torch.bool))
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
        (rows, columns), values, ordered = together._i, together.values(), True
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
    to_sparse: Any = torch._C.TensorBase.to_sparse
    return to_sparse(dense) if sparse_dim is None else to_sparse(dense, sparse_dim)


# -- from the host, and by torch's constructors -------------------------------------------------


def _block_of(values: torch.Tensor, plain: torch.Tensor, layout: torch.layout) -> tuple[int, int]:
    at = plain.dim()
    return (values.shape[at], values.shape[at + 1]) if layout in BLOCKED else (1, 1)


class _Uploaded(torch.autograd.Function):
    """A sparse tensor of the host on the device; its gradient is copied to the host."""

    @staticmethod
    def forward(ctx: Any, host: Any, dtype: Any) -> Any:
        ctx.dtype = host.dtype
        return from_host(host, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].cpu().to(ctx.dtype), None


def from_host(host: torch.Tensor, dtype: torch.dtype | None = None) -> Any:
    """A sparse tensor of the host, in any layout, copied to the device."""
    if isinstance(host, CompositeTensor):
        return host if dtype is None else host.to(dtype)
    if host.requires_grad and torch.is_grad_enabled():
        return _Uploaded.apply(host, dtype)
    if host.layout not in LAYOUTS:
        return coo.from_host(host, dtype)
    first, second = (f"{name}_indices" for name in LAYOUTS[host.layout])
    ends, plain, values = getattr(host, first)(), getattr(host, second)(), host.values()
    shape, block = tuple(host.shape), _block_of(values, plain, host.layout)
    pattern = Pattern(ends.to(CUDA), plain.to(CUDA), host.layout, shape, block)
    return assembled(pattern, (values if dtype is None else values.to(dtype)).to(CUDA))


def created(original: Callable[..., Any], fixed: torch.layout | None = None) -> Callable[..., Any]:
    """A constructor of torch's, whose tensor may be ours.

    It is called over stand-ins on the host. It infers the size, checks, warns and raises as in
    native PyTorch. It needs the indices themselves, which takes a wait, only to infer the size or
    where invariants are checked.
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
        if not theirs and torch.device(device or torch.get_default_device()).type == "cpu":
            return original(
                *parts, dtype=dtype, device=device, requires_grad=requires_grad, **keywords
            )
        ends, plain = (_whole_numbers(part) for part in parts[:2])
        second = torch.as_tensor(values, device=CUDA)
        second = second if dtype is None else second.to(dtype)
        stand_in = torch.zeros((), dtype=second.dtype, device="cpu").expand(second.shape)
        checked = keywords.get("check_invariants")
        if checked is None:
            checked = torch.sparse.check_sparse_tensor_invariants.is_enabled()
        known = _known if checked or size is None else _stand_in
        host = original(known(ends), known(plain), stand_in, device="cpu", **keywords)
        shape, block = tuple(host.shape), _block_of(second, plain, host.layout)
        made = assembled(Pattern(ends, plain, host.layout, shape, block), second)
        return made.requires_grad_() if requires_grad else made

    @functools.wraps(original)
    def of_fixed_layout(*args: Any, **keywords: Any) -> Any:
        names = [f"{name}_indices" for name in LAYOUTS[fixed or torch.sparse_csr]]
        given = [keywords.pop(name) for name in names[len(args) :] if name in keywords]
        return construct(*args, *given, **keywords)

    return unseen(construct if fixed is None else of_fixed_layout)


def _known(indices: torch.Tensor) -> torch.Tensor:
    return indices.cpu()


def _stand_in(indices: torch.Tensor) -> torch.Tensor:
    return torch.zeros((), dtype=indices.dtype, device="cpu").expand(indices.shape)


def _whole_numbers(indices: Any) -> torch.Tensor:
    made = torch.as_tensor(indices, device=CUDA)
    return made if made.dtype in (torch.int32, torch.int64) else made.to(torch.int64)
