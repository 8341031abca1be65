"""`torch.cond`, `while_loop`, `scan`, `associative_scan` and `map` with device tensors.

Natively torch's compiler makes graphs of their functions, which nothing on the device passes
through (`compiling`). Here they are what they mean: branches and loops of Python, recorded and
differentiated op by op.

With tensors of the host alone, and inside of `vmap` or a trace, they are torch's own.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["install"]


def install() -> None:
    """Replace each function wherever torch shows it."""
    package: Any = sys.modules["torch._higher_order_ops"]
    for name, plain in _PLAIN.items():
        module: Any = sys.modules[f"{package.__name__}.{name}"]
        original = getattr(module, name)
        shown = [each for each in (torch, package, module) if vars(each).get(name) is original]
        made = _either_way(original, plain)
        for each in shown:
            setattr(each, name, made)


def _either_way(original: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        ours = any(isinstance(leaf, DeviceTensor) for leaf in tree_leaves((args, kwargs)))
        if not ours or torch._C._len_torch_dispatch_stack():
            return original(*args, **kwargs)
        return plain(*args, **kwargs)

    return unseen(call)


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return _apart((true_fn if pred else false_fn)(*operands), operands)


def _while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    carried = tuple(carried_inputs)
    while cond_fn(*carried):
        carried = tuple(body_fn(*carried))
    return _apart(carried, carried_inputs)


def _scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    if not tree_leaves(xs):
        return init, []
    carry, made = init, []
    for row in _rows(xs, dim, reverse):
        carry, each = combine_fn(carry, row)
        made.append(each)
    if reverse:
        made.reverse()
    return _apart(carry, init), _stacked(made, dim)


def _associative_scan(
    combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """The generic mode, which is made of ops, is right for elementwise functions, too."""
    return associative_scan(combine_fn, xs, dim, reverse, "generic")


def _map(f: Any, xs: Any, *args: Any) -> Any:
    return _stacked([f(row, *args) for row in _rows(xs)])


_PLAIN: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "associative_scan": _associative_scan,
    "map": _map,
}


def _rows(xs: Any, dim: int = 0, reverse: bool = False) -> list[Any]:
    """The tree, of slices of its tensors, one after the other."""
    leaves, shape = tree_flatten(xs)
    slices = zip(*(leaf.unbind(dim) for leaf in leaves), strict=True)
    rows = [tree_unflatten(row, shape) for row in slices]
    if not rows:
        raise RuntimeError("Leading dimensions of mapped xs cannot be 0.")
    return rows[::-1] if reverse else rows


def _stacked(made: list[Any], dim: int = 0) -> Any:
    def stack(*each: Any) -> Any:
        if each[0] is None:
            return None
        joined = torch.stack(each)
        return joined.movedim(0, dim) if dim < joined.dim() else joined

    return tree_map(stack, *made)


def _apart(made: Any, given: Any) -> Any:
    """What is returned is nothing that was given, as natively."""
    known = {id(leaf) for leaf in tree_leaves(given)}

    def copied(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) and id(leaf) in known else leaf

    return tree_map(copied, made)
