"""Copying and pickling of device tensors, and `torch.save` and `torch.load`.

Each follows torch's own code. A device tensor reduces to torch's rebuild functions over the storage
of its buffer: `copy.copy` gives a tensor over that storage, and a pickler writes the storage as one
of CUDA, located at "cuda:0". The files hold only names of torch's, so that `weights_only=True` and
`map_location` work, and machines with and without a shared device read each other's files. A sparse
tensor reduces to the device tensors that it consists of.
"""

import copy
import functools
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from jgpu.device.geometry import intern
from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.tensor import DeviceTensor, wrap
from jgpu.device.tensors.storage import Storage, storage_of
from jgpu.device.tracebacks import unseen
from jgpu.wire import program as wire

__all__ = ["deepcopy", "install", "reduce"]

#: what this package keeps in a tensor's dictionary; everything else there belongs to the notebook
_OWN = frozenset(("_b", "_g", "_o", "_i", "_v", "_c", "_p", "_is_param"))


def install() -> None:
    """Register how a storage is read onto the device, and patch two rebuild functions."""
    from torch import _tensor, serialization

    serialization.register_package(5, lambda storage: None, _reserve)
    utils: Any = torch._utils
    set_metadata = utils.set_tensor_metadata
    rebuild_type: Any = _tensor._rebuild_from_type_v2

    @functools.wraps(set_metadata)
    def set_tensor_metadata(tensor: Any, metadata: Any) -> None:
        set_metadata(tensor, metadata)
        if type(tensor) is DeviceTensor:
            old = tensor._g
            conj, neg = wire.CONJ * tensor.is_conj(), wire.NEG * tensor.is_neg()
            tensor._g = intern(old.dtype, old.shape, old.stride, conj | neg)

    @functools.wraps(rebuild_type)
    def rebuild_from_type(func: Any, new_type: Any, args: Any, state: Any) -> Any:
        """A device tensor is a `torch.Tensor` already; `as_subclass` would make a view of it."""
        made = func(*args)
        if new_type is torch.Tensor and isinstance(made, DeviceTensor | CompositeTensor):
            new_type = type(made)
        return rebuild_type(lambda: made, new_type, (), state)

    for name in (name for name in dir(torch) if name.startswith("_validate_sparse_")):
        setattr(torch, name, _over_host_tensors(getattr(torch, name)))
    utils.set_tensor_metadata = unseen(set_tensor_metadata)
    _tensor._rebuild_from_type_v2 = unseen(rebuild_from_type)


def _over_host_tensors(validate: Any) -> Any:
    """A check of the parts of a sparse tensor that was read, which reads its indices."""

    @functools.wraps(validate)
    def checked(*args: Any, **keywords: Any) -> Any:
        args = tuple(arg.cpu() if isinstance(arg, DeviceTensor) else arg for arg in args)
        return validate(*args, **keywords)

    return unseen(checked)


def _reserve(storage: Any, location: str) -> Storage | None:
    """A device storage for bytes that follow later in the file; None leaves the rest to torch."""
    if not getattr(storage, "_torch_load_uninitialized", False):
        return None
    if location.partition(":")[0] != "cuda":
        return None
    device = torch.serialization._validate_device(location, "cuda")
    made = torch.UntypedStorage(storage.nbytes(), device=device)
    assert isinstance(made, Storage)
    return made


def deepcopy(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """Copy as `Parameter.__deepcopy__` and `Tensor.__deepcopy__` do."""
    if getattr(tensor, "_is_param", False):
        return _deepcopy_parameter(tensor, memo)
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment.  If you were attempting to deepcopy a module, this may be "
            "because of a torch.nn.utils.weight_norm usage, see "
            "https://github.com/pytorch/pytorch/pull/103001"
        )
    found: torch.Tensor | None = memo.get(id(tensor))
    if found is not None:
        return found
    with torch.no_grad():
        if isinstance(tensor, DeviceTensor):
            made = _over_copied_storage(tensor, memo)
        else:
            made = tensor.clone()
        if tensor.requires_grad:
            made.requires_grad_()
        if tensor.grad is not None:
            made.grad = tensor.grad.__deepcopy__(memo)
        _copy_attributes(tensor, made, memo)
    memo[id(tensor)] = made
    return made


def _deepcopy_parameter(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """A parameter with a copy of the values, without gradient, attributes and hooks."""
    found: torch.Tensor | None = memo.get(id(tensor))
    if found is None:
        values = tensor.data.clone(memory_format=torch.preserve_format)
        found = memo[id(tensor)] = nn.Parameter(values, tensor.requires_grad)
    return found


def _over_copied_storage(tensor: DeviceTensor, memo: dict[Any, Any]) -> torch.Tensor:
    """The same view of a copy of the storage, which all tensors over this storage share."""
    copied = copy.deepcopy(storage_of(tensor._b), memo)
    shown = tensor._g
    plain = intern(shown.dtype, shown.shape, shown.stride)
    made: torch.Tensor = wrap(copied._b, plain, tensor._o)
    if tensor.is_conj():  # torch computes these two, into a new storage
        made = made.conj_physical()
    return made.neg() if tensor.is_neg() else made


def _copy_attributes(tensor: torch.Tensor, made: torch.Tensor, memo: dict[Any, Any]) -> None:
    copied = copy.deepcopy(_attributes(tensor), memo)
    own = {name: value for name, value in made.__dict__.items() if name in _OWN}
    made.__dict__ = {**own, **copied} if own else copied


def _attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """The notebook's attributes: the dictionary itself where it has nothing else.

    A pickler and `copy.deepcopy` know the dictionary of a tensor that is its own attribute.
    """
    found = tensor.__dict__
    if _OWN.isdisjoint(found):
        return found
    return {name: value for name, value in found.items() if name not in _OWN}


def reduce(tensor: torch.Tensor, protocol: Any) -> Any:
    """Reduce as `Parameter.__reduce_ex__` and `Tensor.__reduce_ex__` do."""
    attributes = _attributes(tensor)
    hooks: OrderedDict[Any, Any] = OrderedDict()
    if getattr(tensor, "_is_param", False):
        given = (tensor.data, tensor.requires_grad, hooks)
        if not attributes:
            return torch._utils._rebuild_parameter, given
        return torch._utils._rebuild_parameter_with_state, (*given, attributes)
    if isinstance(tensor, DeviceTensor):
        function, args = _reduce_plain(tensor, hooks)
    else:  # torch reads the parts of a sparse tensor
        function, args = torch.Tensor._reduce_ex_internal(tensor, protocol)
    if not attributes:
        return function, args
    return torch._tensor._rebuild_from_type_v2, (function, torch.Tensor, args, attributes)


def _reduce_plain(tensor: DeviceTensor, hooks: Any) -> tuple[Any, tuple[Any, ...]]:
    """`Tensor._reduce_ex_internal`, which takes an empty device tensor for one of a subclass."""
    torch.utils.hooks.warn_if_has_hooks(tensor)
    storage: Any = storage_of(tensor._b)
    shown = tensor._g
    newer = shown.dtype in torch.storage._new_dtypes()
    if not newer:
        storage = torch.storage.TypedStorage(
            wrap_storage=storage, dtype=shown.dtype, _internal=True
        )
    args: tuple[Any, ...] = (
        storage, tensor._o, shown.shape, shown.stride, tensor.requires_grad, hooks,
    )  # fmt: skip
    if newer:
        args = (*args, shown.dtype)
    metadata = torch._utils.get_tensor_metadata(tensor)
    if metadata:
        args = (*args, metadata)
    rebuild = torch._utils._rebuild_tensor_v3 if newer else torch._utils._rebuild_tensor_v2
    return rebuild, args
