"""Trial of an op on stand-ins for its arguments, before it is queued on a stream.

A trial answers two questions. What does the kernel return? Shapes and types must match those of
the meta kernel, or the op is waited for; strides are the kernel's. Does the kernel refuse the call
for any values? CUDA checks sizes, types and numbers on the host, so the launch raises such
an error. On a stream it would break the device, as a failed check of values does.
"""

from contextlib import suppress
from typing import Any, Final, TypeAlias

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from jgpu.broker.executor.devices.onhost.kernels import KERNELS, DeviceAssert
from jgpu.broker.executor.devices.onhost.shadows import Seen
from jgpu.broker.executor.devices.onhost.tasks import HostCall, Op

__all__ = [
    "Strides",
    "attempt",
    "is_small",
    "key_of",
    "laid_out",
    "refused_whatever_values",
    "shaped",
]

Strides: TypeAlias = tuple[tuple[int, ...] | None, ...]
_has_kernel: Any = torch._C._dispatch_has_computed_kernel_for_dispatch_key
_META: Final = torch.device("meta")
_HOST: Final = torch.device("cpu")
#: bytes of arguments beyond which nothing is tried
_MOST_BYTES: Final = 4 << 20


def shaped(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an op's meta kernel; tensors of the host among its arguments may be anywhere.

    A tensor of the host without dimensions is a number. Some of torch's references refuse one in
    places where CUDA's kernels take it.
    """
    args, kwargs = _on_meta((args, kwargs), least=1)
    try:
        return op(*args, **kwargs)
    except RuntimeError:
        leaves = tree_leaves((args, kwargs))
        if all(leaf.is_meta for leaf in leaves if _is_tensor(leaf)):
            raise
        args, kwargs = _on_meta((args, kwargs), least=0)
        with suppress(Exception):
            return op(*args, **kwargs)
        raise


def _on_meta(tree: Any, least: int) -> Any:
    """Tensors of the host of at least so many dimensions as shadows.

    Without generators: geometry depends on none, and some of torch's references refuse them.
    """

    def shadow(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() >= least and not leaf.is_meta:
            return leaf.to(_META)
        return None if isinstance(leaf, torch.Generator) else leaf

    return tree_map(shadow, tree)


def key_of(call: HostCall) -> Any:
    """Return the key of a trial's result: op, structure and geometries of the arguments."""
    blocks: dict[int, int] = {}

    def part(leaf: Any) -> Any:
        if isinstance(leaf, Seen):
            shared = blocks.setdefault(id(leaf.block), len(blocks))
            bits = leaf.conj, leaf.neg
            return leaf.dtype, leaf.shape, leaf.stride, leaf.offset, bits, leaf.held, shared
        if isinstance(leaf, torch.Tensor):
            return leaf.dtype, tuple(leaf.shape)
        return repr(leaf)

    leaves, structure = tree_flatten((call.args, call.kwargs))
    return call.op, call.dtype, structure, tuple(map(part, leaves))


def laid_out(result: Any, strides: Strides) -> Any:
    """Shadows of results that nothing else has, as the kernel lays them out."""
    left = iter(strides)

    def lay(leaf: Any) -> Any:
        stride = next(left, None)
        if stride is None or stride == leaf.stride():
            return leaf
        return torch.empty_strided(leaf.shape, stride, dtype=leaf.dtype, device=_META)

    return tree_map(lay, result)


def is_small(call: HostCall) -> bool:
    """Whether a trial of the call costs little."""
    leaves = tree_leaves((call.args, call.kwargs))
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Seen)) <= _MOST_BYTES


def attempt(call: HostCall) -> Strides | None:
    """Compare a call on zeros with the same on meta; None if the op must be waited for.

    Raises what the kernel raises if no value is the reason.
    """
    args, kwargs = _stand_ins(call, _META)
    try:
        said = shaped(call.op, args, kwargs)
    except NotImplementedError:
        return None
    except Exception:  # it raises once more, on the line that launches
        return ()
    args, kwargs = _stand_ins(call, _HOST)
    try:
        made = call.call(args, kwargs)
    except Exception as refused:
        if isinstance(refused, NotImplementedError) and not _has_host_kernel(call.op):
            raise NotImplementedError(f"{call.op} has no version for the host.") from None
        if _depends_on_values(call, refused):
            return ()
        raise
    if _described(said) != _described(made):
        return None
    if call.op._schema.is_mutable or any(each.alias_info for each in call.op._schema.returns):
        return ()
    given = {
        leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)
    }
    return tuple(
        leaf.stride() if _is_tensor(leaf) and leaf.untyped_storage()._cdata not in given else None
        for leaf in tree_leaves(made)
    )


def refused_whatever_values(call: HostCall) -> Exception | None:
    """Return what the kernel raises for the call's sizes, types or numbers, if it does."""
    refused = _refusal(call, 0)
    return None if refused is None or _depends_on_values(call, refused) else refused


def _depends_on_values(call: HostCall, refused: Exception) -> bool:
    """Whether an error that zeros caused is a check of values: ones pass, or a kernel asserts."""
    if isinstance(refused, DeviceAssert):
        return True
    again = _refusal(call, 1)
    return again is None or isinstance(again, DeviceAssert)


def _refusal(call: HostCall, value: int) -> Exception | None:
    """Return what the kernel raises where all elements of the device's tensors are `value`."""
    try:
        call.call(*_stand_ins(call, _HOST, value))
    except Exception as error:
        return error
    return None


def _has_host_kernel(op: Op) -> bool:
    return op not in KERNELS and bool(_has_kernel(op.name(), "CPU"))


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _stand_ins(call: HostCall, device: torch.device, value: int = 0) -> Any:
    """Return the arguments with tensors of one value; those of one block share a storage.

    A storage is as long as that of the device, because ops such as `as_strided` reach past a
    geometry. Only what the geometries span is filled.
    """
    storages: dict[int, torch.Tensor] = {}

    def stand_in(leaf: Any) -> Any:
        if isinstance(leaf, Seen):
            storage = storages.get(id(leaf.block))
            if storage is None or storage.numel() < leaf.nbytes:
                held = max(leaf.held, leaf.nbytes)
                storage = torch.empty(held, dtype=torch.uint8, device=device)
                storages[id(leaf.block)] = storage
            if device == _HOST:
                spanned = storage[: leaf.nbytes]
                (spanned.view(leaf.dtype) if value else spanned).fill_(value)
            return leaf.over(storage)
        if isinstance(leaf, torch.device):
            return device
        return None if isinstance(leaf, torch.Generator) else leaf

    return tree_map(stand_in, (call.args, call.kwargs))


def _described(result: Any) -> list[Any]:
    return [
        (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else None
        for leaf in tree_leaves(result)
    ]
