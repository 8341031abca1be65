"""Ops that the kernel itself answers: their results are Python values or tensors of the host.

Five sorts: what the data decides (`equal`, `allclose`: one wait each), what the wrappers know
(`is_set_to`: no wait), ops whose sizes come from host tensors of lengths (packed sequences, CTC),
which are taken apart here so that the device sees plain sizes and nobody waits; ops whose
kernels are CUDA's alone, where the executor has other ones; and bags' sparse gradients.
"""

from itertools import groupby
from typing import Any

import torch

from jgpu.device import current
from jgpu.device.geometry import contiguous_stride
from jgpu.device.likenative import listed
from jgpu.device.recording import copies
from jgpu.device.recording.ops import WITH_NUMBERS
from jgpu.device.tensor import DeviceTensor

__all__ = ["ANSWERS"]


def _equal(first: Any, second: Any) -> bool:
    """`torch.equal`, with its one wait."""
    if tuple(first.shape) != tuple(second.shape):
        return False
    if first.numel() == 0:
        return True
    same: Any = torch.eq(first, second).all()
    return bool(copies.item(same))


def _allclose(first: Any, second: Any, *args: Any, **kwargs: Any) -> bool:
    """`torch.allclose`, with its one wait."""
    close: Any = torch.isclose(first, second, *args, **kwargs).all()
    return bool(copies.item(close))


def _is_set_to(first: Any, second: Any) -> bool:
    """Whether two tensors show the same bytes in the same way."""
    if not (isinstance(first, DeviceTensor) and isinstance(second, DeviceTensor)):
        return False
    return (first._b, first._o, first._g) == (second._b, second._o, second._g)


def _not_left_aligned(*_: Any) -> bool:
    """Whether padded rows could become a nested tensor: never, the device knows none.

    `nn.TransformerEncoder` then goes on with the padded tensor and its mask (`composed.encoders`).
    """
    return False


def _assert(value: Any, message: str = "") -> None:
    """`torch._assert_async`; it is told here and now, at the price of a wait."""
    if not bool(copies.item(value)):
        text = "Expected Tensor with single nonzero value, but got zero"
        raise RuntimeError(message or text)


def _pack_padded_sequence(padded: Any, lengths: torch.Tensor, batch_first: bool) -> Any:
    """Packed rows on the device, and how many sequences each step has on the host."""
    if isinstance(lengths, DeviceTensor):
        raise RuntimeError(  # noqa: TRY004 - torch's own class and words
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D cuda:0 {copies.type_name(lengths).removesuffix('Tensor')} tensor"
        )
    # torch's own op, on the host, tells the batch sizes and raises what there is to raise
    frame = torch.zeros((), dtype=torch.uint8, device="cpu").expand(tuple(padded.shape[:2]))
    _, sizes = torch.ops.aten._pack_padded_sequence(frame, lengths, batch_first)
    steps = padded.transpose(0, 1) if batch_first else padded
    blocks, start = [], 0
    for count, run in groupby(sizes.tolist()):
        block = steps.narrow(0, start, len(list(run)))
        start += block.shape[0]
        blocks.append(block.narrow(1, 0, count).contiguous().view(-1, *steps.shape[2:]))
    return torch.cat(blocks), sizes


def _embedding_bag_backward(
    grad: Any, indices: Any, offsets: Any, bags: Any, sizes: Any, maxima: Any, rows: int,
    by_count: bool, mode: int, sparse: bool, *rest: Any,
) -> Any:  # fmt: skip
    """Sparse gradients, which torch's own composite makes; dense ones are an op like any other."""
    if not sparse:
        return NotImplemented
    if indices.numel() and not bags.numel():  # which bag each index is in: the forward left it out
        begins = offsets.new_zeros(indices.numel() + 1)
        begins.index_add_(0, offsets, torch.ones_like(offsets))
        bags = begins.cumsum(0)[:-1] - 1
    return torch.ops.aten._embedding_bag_sparse_backward.default(
        grad, indices, offsets, bags, sizes, rows, by_count, mode, *rest
    )


def _ctc_loss(log_probs: Any, targets: Any, inputs: Any, labels: Any, *rest: Any) -> Any:
    """CTC with tensors of lengths, which every device's kernel wants on the host."""
    return torch.ops.aten._ctc_loss.default(
        log_probs, targets, _integers(inputs), _integers(labels), *rest
    )


def _ctc_loss_backward(
    grad: Any, log_probs: Any, targets: Any, inputs: Any, labels: Any, *rest: Any
) -> Any:
    return torch.ops.aten._ctc_loss_backward.default(
        grad, log_probs, targets, _integers(inputs), _integers(labels), *rest
    )


def _integers(lengths: torch.Tensor) -> list[int]:
    host = copies.download(lengths) if isinstance(lengths, DeviceTensor) else lengths
    return [int(length) for length in host.tolist()]


def _zeros(size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """Zeros without a storage do not exist on the device; these have one."""
    return torch.ops.aten.zeros.default(size, dtype=dtype, device=device)


#: by the op's full name
def _widened(name: str) -> Any:
    """Products of half precision in single (`mm.dtype` and its kin), whose kernels are CUDA's.

    Elsewhere they are products of the factors in single precision.
    """

    def product(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if current.session.device_facts().has_cuda_kernels:
            return NotImplemented
        *factors, dtype = args
        made = getattr(torch.ops.aten, name)(*(each.to(dtype) for each in factors), **kwargs)
        return made if out is None else out.copy_(made)

    return product


def _new_tangent(first: Any, second: Any, *, self_num_batch_dims: int = 0) -> Any:
    """Zeros laid out as `second`, with the batch dimensions of `first` before: a tangent."""
    batch = tuple(first.shape[:self_num_batch_dims])
    count = second.numel()
    outer = [count * step for step in contiguous_stride(batch)]
    made = first.new_empty_strided((*batch, *second.shape), (*outer, *second.stride()))
    return made.zero_()


ANSWERS: dict[str, Any] = (
    {
        "aten::equal": _equal,
        "aten::allclose": _allclose,
        "aten::is_set_to": _is_set_to,
        "aten::_nested_tensor_from_mask_left_aligned": _not_left_aligned,
        "aten::_assert_async": _assert,
        "aten::_assert_async.msg": _assert,
        "aten::_pack_padded_sequence": _pack_padded_sequence,
        "aten::_embedding_bag_backward": _embedding_bag_backward,
        "aten::_ctc_loss.Tensor": _ctc_loss,
        "aten::_ctc_loss_backward.Tensor": _ctc_loss_backward,
        "aten::_efficientzerotensor": _zeros,
        "aten::_new_zeros_with_same_feature_meta": _new_tangent,
    }
    | {
        f"aten::{base}.{overload}": _widened(base)
        for base in ("mm", "addmm", "bmm", "baddbmm")
        for overload in ("dtype", "dtype_out")
    }
    | {f"aten::{name}.Tensor": listed.with_numbers(name) for name in WITH_NUMBERS}
)
