"""Register a notebook's kernels so that they run for device tensors as for tensors of CUDA.

A device tensor has the dispatch keys of PrivateUse1, while a notebook names those of CUDA. Both get
the kernel: the first for the dispatcher, the second for code that asks which keys have one. Each
`torch.library.Library` with such kernels owns a second library, which is reset together with it.

For tensors that Python deals with, torch calls the function that was registered last for an op and
a key, even after its library is destroyed. So what torch gets is one function for each op and key,
which calls the last kernel whose library still exists.

Kernels of C++ extensions are not registered here. They need a real GPU and stay refused.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.device.library import routing
from jgpu.device.recording.casts import Uncast
from jgpu.device.tracebacks import unseen

__all__ = ["install"]

_PAIRS: Final = (
    ("CUDA", "PrivateUse1"),
    ("AutogradCUDA", "AutogradPrivateUse1"),
    ("AutocastCUDA", "AutocastPrivateUse1"),
)
#: the key of the other name, by key
_OTHER: Final = {key: other for pair in _PAIRS for key, other in (pair, pair[::-1])}
#: the device's key for what a notebook names, by key
_OF_DEVICE: Final = dict(_PAIRS)
_AUTOCAST: Final = frozenset({"AutocastCUDA", "AutocastPrivateUse1"})
#: keys for which this package itself registers kernels for torch's own ops at any time
_OWN: Final = frozenset({"AutogradPrivateUse1", "AutocastPrivateUse1"})


class Registrations:
    """What a `torch.library.Library` registered; torch calls `destroy` when it destroys that."""

    def __init__(self) -> None:
        self.is_registered = True
        self._mirror: Any = None
        self._overridden: set[str] = set()

    def mirror(self, name: str, key: str, fn: Any, *, with_keyset: bool) -> None:
        """Register a kernel for one more key."""
        if self._mirror is None:
            namespace = name.partition("::")[0]
            self._mirror = torch._C._dispatch_library("IMPL", namespace, "", __file__, 0)
        with warnings.catch_warnings():  # torch has warned of the notebook's own registration
            warnings.simplefilter("ignore")
            self._mirror.impl(name, key, fn, with_keyset)

    def override(self, name: str) -> None:
        """Route calls of an op of torch's own to the kernel registered for the device's key."""
        if name not in self._overridden:
            self._overridden.add(name)
            self.mirror(name, "Python", routing.override(name), with_keyset=True)

    def destroy(self) -> None:
        """Deregister the kernels."""
        self.is_registered = False
        if self._mirror is not None:
            self._mirror.reset()


class Kernels:
    """The kernels of one op for one key, in the order of their registration."""

    def __init__(self, key: str) -> None:
        self._known: list[tuple[Registrations, Callable[..., Any]]] = []

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._last()(*args, **kwargs)

        def cast(*args: Any, **kwargs: Any) -> Any:
            with Uncast():  # below, a kernel of autocast excludes the key of CUDA alone
                return self._last()(*args, **kwargs)

        #: what torch gets
        self.call = unseen(cast if key in _AUTOCAST else call)

    def add(self, owner: Registrations, fn: Callable[..., Any]) -> None:
        """Have `fn` called while its owner is registered."""
        self._known.append((owner, fn))

    def _last(self) -> Callable[..., Any]:
        while not self._known[-1][0].is_registered and len(self._known) > 1:
            self._known.pop()
        return self._known[-1][1]


_kernels: dict[tuple[str, str], Kernels] = {}


def install() -> None:
    """Patch the methods of `torch.library.Library`, and `get_kernel` where torch has it."""
    library: Any = torch.library.Library
    library.impl = _registering(library.impl)
    library.define = _completing(library.define)
    inner: Any = torch._C
    name = "_any_output_is_alias_to_input_or_output"
    if hasattr(inner, name):
        setattr(inner, name, routing.comparing_storages(getattr(inner, name)))
    module: Any = torch.library
    if hasattr(module, "get_kernel"):
        module.get_kernel = unseen(_of_device(module.get_kernel))


def _registering(impl: Callable[..., Any]) -> Callable[..., Any]:
    """`Library.impl`, which has the kernel run for device tensors, too."""

    @functools.wraps(impl)
    def register(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        key = dispatch_key or self.dispatch_key or "CompositeImplicitAutograd"
        if not callable(fn) or (self.ns == "aten" and key in _OWN):
            impl(self, op_name, fn, dispatch_key, **options)
            return
        name = f"{self.ns}::{self._resolve_op_name(op_name, 'impl').rpartition('::')[2]}"
        kernels = _kernels.setdefault((name, key), Kernels(key))
        given = fn if fn is torch.library.fallthrough_kernel else kernels.call
        impl(self, op_name, given, dispatch_key, **options)
        owner = _registrations_of(self)
        kernels.add(owner, fn)
        if other := _OTHER.get(key):
            with_keyset = options.get("with_keyset", False)
            owner.mirror(name, other, given, with_keyset=with_keyset)
        if routing.is_routed_key(name, key):
            if self.ns == "aten":
                owner.override(name)
            else:
                routing.route(name)

    return unseen(register)


def _registrations_of(library: Any) -> Registrations:
    handles: list[Any] = library._registration_handles
    found = next((each for each in handles if type(each) is Registrations), None)
    if found is None:
        handles.append(found := Registrations())
    return found


def _completing(define: Callable[..., Any]) -> Callable[..., Any]:
    """`Library.define`, which routes an op whose kernels were registered before its schema."""

    @functools.wraps(define)
    def complete(self: Any, schema: str, *args: Any, **kwargs: Any) -> Any:
        made = define(self, schema, *args, **kwargs)
        routing.complete(f"{self.ns}::{schema.partition('(')[0]}")
        return made

    return unseen(complete)


def _of_device(get_kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.library.get_kernel`, where CUDA's keys mean the device's."""

    @functools.wraps(get_kernel)
    def get(op: Any, dispatch_key: Any) -> Any:
        named = getattr(dispatch_key, "name", dispatch_key)
        return get_kernel(op, _OF_DEVICE.get(named, dispatch_key))

    return get
