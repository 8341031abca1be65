"""`cuda` means the shared device: patches of the callables that take a device.

Patches rather than a function mode: a mode is per thread, is popped inside backward's callbacks,
loses to `set_default_device`, and costs a microsecond on every call down to `.shape`. A patched
callable costs a sixth of that, and only where a device is taken.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.device import tensor as tensors
from jgpu.device.hooks.naming import translate
from jgpu.device.hooks.plain import LISTS, NUMBERS, are_mere_numbers, is_mere_data
from jgpu.device.likenative import warned
from jgpu.device.recording.copies import upload, upload_fresh
from jgpu.device.sparse import conversions, coo
from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.sparse.pattern import LAYOUTS
from jgpu.device.tensors import nested, pinned, rng, storage
from jgpu.device.tracebacks import hide, seam, unseen

__all__ = ["install"]

_Device = torch.device
_Backend = tensors.Backend


def _taking_device(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs:
                where = kwargs.get("device")
                if where is not None:
                    kwargs["device"] = where = translate(where)
                    if of_numbers and where is _Backend.device and are_mere_numbers(args, kwargs):
                        kwargs["device"] = _HOST
                        return upload_fresh(function(*args, **kwargs))
                if kwargs.get("pin_memory"):
                    del kwargs["pin_memory"]
                    return pinned.made_pinned(call(*args, **kwargs))
            if warns and not _is_quiet(name, args):
                made = storage.tensor_of(name, function, args, kwargs) if reads else None
                if made is not None:
                    return made
                return warned.as_caller(function, args, kwargs)
            result = function(*args, **kwargs)
            if "generator" in kwargs:
                rng.check_drawn(result, kwargs["generator"])
        except BaseException as error:
            hide(error, sys._getframe())
            raise
        return result

    name = function.__name__
    warns = name in _WARNING
    reads = name in _READING
    of_numbers = name in _OF_NUMBERS
    return seam(call)


#: constructors that lay numbers out on the host first, and bring them to the device then
_OF_NUMBERS: Final = frozenset({"tensor", "as_tensor"})
_HOST: Final = torch.device("cpu")


#: constructors that warn of what they are given, or of themselves
_WARNING: Final = frozenset({"tensor", "new_tensor", "as_tensor", "asarray", "frombuffer", "range"})

#: constructors that take storages, too
_READING: Final = _WARNING - {"frombuffer", "range"}


def _is_quiet(name: str, args: tuple[Any, ...]) -> bool:
    """Whether torch warns of no such data: numbers, or lists of numbers."""
    value = args[-1] if args else None
    while type(value) in LISTS and value:
        value = value[0]
    if isinstance(value, torch.Tensor):
        return name.startswith("as")
    return type(value) in NUMBERS and name != "range"


def _taking_positional(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and kwargs.get("device") is not None:
            kwargs["device"] = translate(kwargs["device"])
        elif len(args) > 1 and type(args[1]) in (str, _Device, int):
            args = (args[0], translate(args[1]), *args[2:])
        return function(*args, **kwargs)

    return call


@unseen
def _cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **kw: Any) -> Any:
    """`Tensor.cuda()`"""
    where = tensors.device() if device is None else translate(device)
    if not kw and is_mere_data(self):
        return upload(self)
    if _is_sparse(self):
        return conversions.from_host(self)
    return torch.Tensor.to(self, where, non_blocking=non_blocking, **kw)


def _uploading(to: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.to`, whose plainest form is `Tensor.cuda`."""

    @functools.wraps(to)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if len(args) == 2 and not kwargs and type(args[1]) in (str, _Device):
                where = translate(args[1])
                if where is _Backend.device and is_mere_data(args[0]):
                    return upload(args[0])
            if _is_sparse(args[0]) or args[0].is_nested:
                where, dtype, *_ = torch._C._nn._parse_to(*args[1:], **kwargs)
                of_host = where is not None and where.type == "cuda"
                if of_host and args[0].layout is not torch.jagged:
                    if args[0].is_nested:
                        nested.refuse_strided()
                    return conversions.from_host(args[0], dtype)
            return to(*args, **kwargs)
        except BaseException as error:
            hide(error, sys._getframe())
            raise

    return seam(call)


def _is_sparse(tensor: torch.Tensor) -> bool:
    """Whether it is a host tensor of a layout that has a device class."""
    plain = tensor.layout is torch.strided or tensor.layout is torch.jagged
    return not plain and not isinstance(tensor, CompositeTensor)


def _known_to_torchscript() -> None:
    """Let TorchScript, which looks builtins up by object, find our wrappers, too."""
    from torch.jit import _builtins

    original: Callable[..., Any] = _builtins._find_builtin

    def find(function: Any) -> Any:
        found = original(function)
        return original(inspect.unwrap(function)) if found is None else found

    _builtins._find_builtin = find


def _refuse_pointers() -> None:
    """Refuse DLPack in functions that do not call the tensor's methods."""
    from torch.utils import dlpack

    target: Any = torch
    module: Any = dlpack
    original = module.to_dlpack

    @functools.wraps(original)
    def to_dlpack(tensor: torch.Tensor) -> Any:
        return tensor.__dlpack__() if isinstance(tensor, tensors.DeviceTensor) else original(tensor)

    target.to_dlpack = module.to_dlpack = unseen(to_dlpack)


def install() -> None:
    """Patch torch once; `activate` calls it."""
    _known_to_torchscript()
    _refuse_pointers()
    _install_constructors()
    _install_tensor_methods()
    pinned.install()
    _install_default_device()
    _install_default_dtype()


def _install_constructors() -> None:
    import torch.utils._device as devices

    originals: set[Any] = devices._device_constructors()
    patched: dict[Any, Any] = {}
    for function in originals:
        name = function.__name__
        owner: Any = torch
        if name.startswith("fft_"):
            owner, name = torch.fft, name.removeprefix("fft_")
        elif name == "nested_tensor":
            owner = torch.nested
        found: Any = getattr(owner, name, None)
        if found is function:
            patched[function] = _taking_device(function)
            setattr(owner, name, patched[function])
    target: Any = torch
    target.sparse_coo_tensor = coo.created(torch.sparse_coo_tensor)
    target.sparse_compressed_tensor = conversions.created(torch.sparse_compressed_tensor)
    for layout in LAYOUTS:
        name = f"{str(layout).removeprefix('torch.')}_tensor"
        setattr(target, name, conversions.created(getattr(torch, name), layout))
    # Like-factories take a device, too, but never a default one.
    for name in (
        "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like",
        "randint_like", "normal", "frombuffer", "from_file",
    ):  # fmt: skip
        setattr(torch, name, _taking_device(getattr(torch, name)))
    # DeviceContext gets the new objects; the originals stay (TorchScript looks them up).
    everything = originals | set(patched.values())
    devices._device_constructors = lambda: everything  # type: ignore[assignment]


def _install_tensor_methods() -> None:
    tensor: Any = torch.Tensor
    base: Any = torch._C.TensorBase
    tensor.to = _uploading(_taking_positional(base.to))
    tensor.cuda = _cuda
    for name in (
        "new_tensor",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_zeros",
        "new_ones",
    ):
        setattr(tensor, name, _taking_device(getattr(tensor, name)))
    parse = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        device, dtype, non_blocking, memory_format = parse(*args, **kwargs)
        return translate(device), dtype, non_blocking, memory_format

    torch._C._nn._parse_to = unseen(parse_to)


def _install_default_dtype() -> None:
    """Drop inferred results: they may depend on the default dtype."""
    from jgpu.device.recording.dispatch import forget_plans

    original = torch.set_default_dtype

    def set_default_dtype(d: Any) -> None:
        original(d)
        forget_plans()

    torch.set_default_dtype = unseen(functools.wraps(original)(set_default_dtype))


def _install_default_device() -> None:
    import torch.utils._device as devices

    context: Any = devices.DeviceContext
    original = context.__init__

    def init(self: Any, device: Any) -> None:
        original(self, translate(device))

    context.__init__ = unseen(init)
    get_default = torch.get_default_device

    def get_default_device() -> torch.device:
        found = get_default()
        return tensors.CUDA if found.type == "cuda" else found

    torch.get_default_device = unseen(functools.wraps(get_default)(get_default_device))
