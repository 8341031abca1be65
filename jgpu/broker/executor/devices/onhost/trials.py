"""A trial of an op on zeros: whether its kernel returns what the meta kernel says, and how it lies.

Shapes and types must agree, or the op is waited for; strides are the kernel's.
"""

from typing import Any, Final, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map

from jgpu.broker.executor.devices.onhost.shadows import Seen
from jgpu.broker.executor.devices.onhost.tasks import HostCall

__all__ = ["Strides", "attempt", "key_of", "laid_out", "on_meta"]

Strides: TypeAlias = tuple[tuple[int, ...] | None, ...]
_META: Final = torch.device("meta")
_HOST: Final = torch.device("cpu")
#: bytes of arguments beyond which nothing is tried
_MOST_BYTES: Final = 4 << 20


def on_meta(tree: Any) -> Any:
    """Tensors of the host among arguments as shadows; a number may be anywhere.

    Without generators: geometry depends on none, and some of torch's references refuse them.
    """

    def shadow(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() and not leaf.is_meta:
            return leaf.to(_META)
        return None if isinstance(leaf, torch.Generator) else leaf

    return tree_map(shadow, tree)


def key_of(call: HostCall) -> Any:
    """What a trial depends on."""

    def part(leaf: Any) -> Any:
        if isinstance(leaf, Seen):
            return leaf.dtype, leaf.shape, leaf.stride, leaf.offset, leaf.conj, leaf.neg
        return type(leaf).__name__ if isinstance(leaf, torch.Tensor) else repr(leaf)

    named = tuple((name, *map(part, tree_leaves(value))) for name, value in call.kwargs.items())
    return call.op, call.dtype, tuple(map(part, tree_leaves(call.args))), named


def laid_out(result: Any, strides: Strides) -> Any:
    """Shadows of results that nothing else has, as the kernel lays them out."""
    left = iter(strides)

    def lay(leaf: Any) -> Any:
        stride = next(left, None)
        if stride is None or stride == leaf.stride():
            return leaf
        return torch.empty_strided(leaf.shape, stride, dtype=leaf.dtype, device=_META)

    return tree_map(lay, result)


def attempt(call: HostCall) -> Strides | None:
    """Compare a call on zeros with the same on meta."""
    seen = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Seen)]
    if sum(leaf.nbytes for leaf in seen) > _MOST_BYTES:
        return ()
    args, kwargs = tree_map(lambda leaf: _zeros(leaf, _META), (call.args, call.kwargs))
    try:
        said = call.op(*on_meta(args), **on_meta(kwargs))
    except NotImplementedError:
        return None
    except Exception:  # it raises once more, on the line that launches
        return ()
    args, kwargs = tree_map(lambda leaf: _zeros(leaf, _HOST), (call.args, call.kwargs))
    try:
        made = call.call(args, kwargs)
    except NotImplementedError:
        raise NotImplementedError(f"{call.op} has no version for the host.") from None
    except Exception:  # zeros may be no numbers for it
        return ()
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


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _zeros(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, Seen):
        storage = torch.zeros(leaf.nbytes, dtype=torch.uint8, device=device)
        return leaf.over(storage)
    if isinstance(leaf, torch.device):
        return device
    return None if isinstance(leaf, torch.Generator) else leaf


def _described(result: Any) -> list[Any]:
    return [
        (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else None
        for leaf in tree_leaves(result)
    ]
