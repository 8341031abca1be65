"""Route calls of ops that have kernels in Python to these kernels, past `__torch_dispatch__`.

Torch's dispatcher calls Python first for tensors such as the device's, and excludes the keys above
it (autograd, autocast) while Python decides. A kernel of a notebook would run in that state, and
without autocast. So such an op gets another kernel at the key for Python, which
passes the call on to the device's key with the dispatcher's state as it is. All other calls (modes,
tensors of other classes) take torch's way into Python.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _pop_mode_temporarily

from jgpu.device.errors import no_kernel
from jgpu.device.recording.ops import FOREIGN
from jgpu.device.tensor import DeviceTensor, device_tensors
from jgpu.device.tracebacks import unseen

__all__ = ["are_plain", "comparing_storages", "complete", "is_routed_key", "override", "route"]

_Call = Callable[..., Any]
_keys: Any = torch._C.DispatchKey
_below_python: Any = torch._C._dispatch_keyset_full_after(_keys.Python)
_above_python: Any = torch._C._dispatch_keyset_full() - _below_python.add(_keys.Python)
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

#: keys by which a notebook registers kernels for the device
_DEVICE: Final = frozenset({"PrivateUse1", "CUDA"})
_COMPOSITE: Final = frozenset({
    "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
})  # fmt: skip

#: Keys whose kernels the dispatcher may choose for a device tensor. Its own choice, the device's
#: fallback, must not be reached: torch would call the last kernel that there was.
_FOR_DEVICE: Final = ("PrivateUse1", *sorted(_COMPOSITE))

#: Names of ops that are routed. They stay so, for what they are routed to is looked up.
_routed: set[str] = set()
#: names of ops that have a kernel, and no schema so far
_incomplete: set[str] = set()
#: libraries that hold the kernels for Python, by namespace
_libraries: dict[str, Any] = {}


def is_routed_key(name: str, key: str) -> bool:
    """Whether a kernel for `key` of the op `name` may be the one for device tensors.

    The device's own kernels of torch's ops take precedence over kernels composed of other ops.
    """
    return key in _DEVICE or (key in _COMPOSITE and not name.startswith("aten::"))


def route(name: str) -> None:
    """Have calls of an op of a library reach its kernels, from now on or from its definition on."""
    if name not in _routed:
        _incomplete.add(name)
        complete(name)


def complete(name: str) -> None:
    """Route the op if it has a kernel and a schema."""
    if name not in _incomplete:
        return
    try:
        into_python = torch._C._dispatch_get_computed_kernel_for_dispatch_key(name, "Python")
    except RuntimeError:
        return
    _incomplete.discard(name)
    _routed.add(name)
    namespace = name.partition("::")[0]
    library: Any = _libraries.get(namespace)
    if library is None:
        library = torch._C._dispatch_library("IMPL", namespace, "", __file__, 0)
        _libraries[namespace] = library

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if are_plain(args, kwargs):
            if not any(_has_kernel(name, key) for key in _FOR_DEVICE):
                raise no_kernel(name, FOREIGN)
            return _overload(name).redispatch(keys & _below_python, *args, **kwargs)
        return into_python.call_boxed(keys, *args, **kwargs)

    library.impl(name, "Python", unseen(call), True)


@functools.cache
def override(name: str) -> _Call:
    """The kernel for Python of an op of torch's own, for as long as a notebook overrides it.

    Torch's ops take numbers as tensors, which neither `redispatch` nor torch's own kernel for
    Python does if Python calls it.
    """

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        op = _overload(name)
        if are_plain(args, kwargs):
            return op._op_dk(_keys.PrivateUse1, *args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_above_python):
            return _call_python(op, args, kwargs)

    return unseen(call)


def _overload(name: str) -> Any:
    namespace, _, full = name.partition("::")
    base, _, overload = full.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def are_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether no mode is on, and no argument of a class other than the device's is Python's."""
    if _modes():
        return False
    given = _dealt_with_by_python([*args, *kwargs.values()] if kwargs else args)
    return all(type(each) is DeviceTensor for each in given)


def _dealt_with_by_python(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if torch._C._dispatch_keys(value).has(_keys.Python):
                yield value
        elif isinstance(value, list | tuple):
            yield from _dealt_with_by_python(value)


def _call_python(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `__torch_dispatch__` of the innermost mode, or of the arguments' classes."""
    given = list(_dealt_with_by_python([*args, *kwargs.values()]))
    types = tuple(dict.fromkeys(type(each) for each in given))
    if _modes():
        with _pop_mode_temporarily() as mode:
            made = mode.__torch_dispatch__(op, types, args, kwargs)
        if made is not NotImplemented:
            return made
    for cls in types:
        made = cls.__torch_dispatch__(op, types, args, kwargs)
        if made is not NotImplemented:
            return made
    named = ", ".join(each.__qualname__ for each in types)
    raise TypeError(
        f"Multiple dispatch failed for '{op}'; all __torch_dispatch__ handlers returned "
        f"NotImplemented: {named}"
    )


def comparing_storages(is_alias: Callable[..., bool]) -> Callable[..., bool]:
    """Torch's test whether an output of a custom op aliases an input or another output.

    The wrappers of two device tensors over one buffer share no storage of torch's.
    """

    @functools.wraps(is_alias)
    def compare(args: Any, kwargs: Any, outputs: Any) -> bool:
        if is_alias(args, kwargs, outputs):
            return True
        seen = {id(each._b) for each in device_tensors([*args, *kwargs.values()])}
        for each in device_tensors(outputs):
            if id(each._b) in seen:
                return True
            seen.add(id(each._b))
        return False

    return unseen(compare)
