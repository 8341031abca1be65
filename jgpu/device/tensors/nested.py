"""Nested tensors: the jagged layout is torch's own class over tensors of the device.

Its two ops with kernels of their own are written out; all else that it does are ops on its values.
The strided layout is a kind of tensor of its own in torch's C++, and refused.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
from torch.nested._internal.nested_tensor import nested_view_from_values_offsets_lengths

from jgpu.device.errors import refused
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["KERNELS", "install", "refuse_strided"]


def refuse_strided() -> NoReturn:
    """Say what to do instead."""
    raise refused(
        "nested tensors of the strided layout", "make them with layout=torch.jagged, or pad them"
    )


def install() -> None:
    """Refuse the constructors' default layout, before torch makes half of it."""
    target: Any = torch.nested
    for name in ("nested_tensor", "as_nested_tensor"):
        setattr(target, name, unseen(_jagged_alone(getattr(target, name))))

    from torch.nested._internal import ops

    inner: Any = ops
    inner.jagged_scaled_dot_product_attention = unseen(
        _part_by_part(inner.jagged_scaled_dot_product_attention)
    )


def _part_by_part(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attention of jagged tensors; torch's own way makes strided ones, or asks CUDA's kernels."""

    @functools.wraps(original)
    def attend(
        query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kw: Any
    ) -> Any:
        ours = isinstance(getattr(query, "_values", None), DeviceTensor)
        if not ours or query._ragged_idx != query.dim() - 2:
            return original(query, key, value, attn_mask, *args, **kw)
        if attn_mask is not None:
            raise RuntimeError("Masks are not yet supported!")  # torch's own words
        parts = zip(query.unbind(), key.unbind(), value.unbind(), strict=True)
        made = [
            torch.nn.functional.scaled_dot_product_attention(*part, None, *args, **kw)
            for part in parts
        ]
        values = torch.cat(made, query._ragged_idx - 1)
        return nested_view_from_values_offsets_lengths(
            values,
            query.offsets(),
            query.lengths(),
            ragged_idx=query._ragged_idx,
            min_seqlen=query._maybe_min_seqlen,
            max_seqlen=query._maybe_max_seqlen,
        )

    return attend


def _jagged_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(given: Any, *args: Any, **kwargs: Any) -> Any:
        where = kwargs.get("device")
        if kwargs.get("layout") in (None, torch.strided) and (
            _is_ours(given) if where is None else torch.device(where).type == "cuda"
        ):
            refuse_strided()
        return original(given, *args, **kwargs)

    return call


def _is_ours(given: Any) -> bool:
    parts = given if isinstance(given, list | tuple) else (given,)
    return any(isinstance(part, DeviceTensor) for part in parts)


def _places(offsets: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each row of each part lies among the values, and whether there is one."""
    at = offsets[:-1, None] + torch.arange(most, device=offsets.device)
    return at, at < offsets[1:, None]


def _to_padded(
    values: torch.Tensor, offsets: Any, max_lengths: Any, padding_value: float = 0.0
) -> torch.Tensor:
    """[sum of lengths, ...] as [parts, longest, ...]; of one ragged dimension."""
    at, there = _places(_only(offsets), int(max_lengths[0]))
    if not values.shape[0]:
        return values.new_full((*at.shape, *values.shape[1:]), padding_value)
    rows = values[at.clamp(max=values.shape[0] - 1)]
    shown = there.view(*there.shape, *(1,) * (values.dim() - 1))
    return torch.where(shown, rows, torch.full_like(rows, padding_value))


def _from_padded(dense: torch.Tensor, offsets: Any, total_L: int | None = None) -> torch.Tensor:  # noqa: N803
    """The other way: rows that there are, one part after the other."""
    _, there = _places(_only(offsets), dense.shape[1])
    return dense[there]


def _only(offsets: Any) -> Any:
    if len(offsets) != 1:
        raise refused("nested tensors of several ragged dimensions", "pad all but one of them")
    return offsets[0]


#: by the name of an op
KERNELS: Final[dict[str, Callable[..., Any]]] = {
    "aten::_jagged_to_padded_dense_forward": _to_padded,
    "aten::_padded_dense_to_jagged_forward": _from_padded,
}
