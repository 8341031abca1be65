"""Host and device tensors in one op: which may meet, and torch's words for those that may not.

Natively a wrapper that torch generates for each CUDA kernel compares the devices of all arguments.
Which ops have it, and what it is called, follows from `native_functions.yaml`, which comes with
torch. Ops without it compute elementwise and take host tensors of no dimensions as numbers; a few
look themselves, in words of their own. Composites are left to torch, so that the op that they reach
first says it. Each error ends with a line that says what to do.

Not covered: transfers, and sparse layouts, which say it themselves.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from jgpu.device.recording.ops import HOST_ARGUMENTS, OpInfo
from jgpu.device.tensor import DeviceTensor, device

__all__ = [
    "check",
    "check_attention",
    "check_cell",
    "check_recurrent",
    "compares",
    "is_composite",
    "mixed_devices",
]

_ONE_DEVICE: Final = "Expected all tensors to be on the same device, but "
#: What torch takes batch norm apart into for this device, as for none of its own.
_BATCH_NORM: Final = ("aten::_native_batch_norm_legit", "aten::native_batch_norm")
#: A declaration: name, signature, and the lines up to the next one.
_ENTRY: Final = r"^- func: ([\w.]+)(\(.*)\n((?:[ #].*\n|\n)*)"
#: Names and values of the tensors among an op's arguments
_Given = list[tuple[str, torch.Tensor]]


class _Declared(NamedTuple):
    """What `native_functions.yaml` says of an op."""

    #: the wrapper of its CUDA kernel; empty where there is no such kernel
    wrapper: str
    #: whether the wrapper compares devices
    compares: bool


def check(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what native CUDA would raise for these arguments; return where it would compute.

    Of a composite only what it looks at itself; the first op that it reaches says the rest.
    """
    given = list(_tensors(info, args, kwargs))
    look = _OWN_WORDS.get(info.name.partition(".")[0])
    if look is not None:
        look(given)
    if is_composite(info):
        return
    declared = _declared(_named_on_cuda(info.name, given))
    if declared.compares:
        _compare(declared.wrapper, given)
        return
    moved = info.name in HOST_ARGUMENTS
    for name, tensor in given:
        if not _is_ours(tensor) and (_is_written(info, name) or (tensor.dim() and not moved)):
            raise mixed_devices(*_values(given))


def compares(info: OpInfo) -> bool:
    """Whether the op takes no host tensor at all, not even one of no dimensions."""
    return _declared(info.name).compares


def is_composite(info: OpInfo) -> bool:
    """Whether natively the op only calls others, by a kernel in C++ that there is here, too."""
    if _declared(info.name).wrapper:
        return False
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    return torch._C._dispatch_has_kernel_for_dispatch_key(info.func.name(), key)


def mixed_devices(*tensors: torch.Tensor) -> RuntimeError:
    """Elementwise ops' error: they name devices, not arguments."""
    host = next(tensor for tensor in tensors if not _is_ours(tensor))
    found = f"found at least two devices, cuda:0 and {host.device}!"
    return RuntimeError(_ONE_DEVICE + found + _hint(tensors))


def check_recurrent(sequence: Any, states: Any, weights: Any) -> None:
    """What the layers of LSTM, GRU and RNN look at first."""
    for kind, tensors in (("hidden", states), ("parameter", weights)):
        for tensor in tensors:
            if _is_ours(tensor) != _is_ours(sequence):
                raise RuntimeError(
                    f"Input and {kind} tensors are not at the same device, found input tensor at "
                    f"{_place(sequence)} and {kind} tensor at {_place(tensor)}"
                    + _hint((sequence, *states, *weights))
                )


def check_cell(
    step: Any, hidden: Any, weights: Sequence[Any], biases: Sequence[Any] | None
) -> None:
    """What the products of an LSTM's or GRU's cell look at: CUDA's, or linear layers elsewhere."""
    pairs = list(zip((step, hidden), weights, strict=True))
    if _is_ours(step):
        for tensor, weight in pairs:
            _compare("wrapper_CUDA_mm", [("self", tensor), ("mat2", weight)])
        return
    for (tensor, weight), bias in reversed(list(zip(pairs, biases or (None, None), strict=True))):
        if bias is None:
            _compare("wrapper_CUDA_mm", [("self", tensor), ("mat2", weight)])
        else:
            _compare("wrapper_CUDA_addmm", [("self", bias), ("mat1", tensor), ("mat2", weight)])


def check_attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What `scaled_dot_product_attention` looks at first; a mask is looked at by the kernel."""
    names = ("query", "key", "value", "attn_mask")
    found = dict(zip(names, args, strict=False)) | kwargs
    given = [(n, found[n]) for n in names if isinstance(found.get(n), torch.Tensor)]
    query, key, value = (_place(tensor) for _, tensor in given[:3])
    if not query == key == value:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query} key.device: {key} and value.device: {value} instead.{_hint(_values(given))}"
        )
    if any(not _is_ours(tensor) for _, tensor in given):
        raise mixed_devices(*_values(given))


# -- words of torch's own --------------------------------------------------------------------


def _compare(wrapper: str, given: _Given) -> None:
    """The generated comparison: every tensor with the first."""
    common = _place(given[0][1])
    for name, tensor in given:
        if _place(tensor) != common:
            raise RuntimeError(
                f"{_ONE_DEVICE}got {name} is on {_place(tensor)}, different from other tensors on "
                f"{common} (when checking argument in method {wrapper}){_hint(_values(given))}"
            )


def _convolution(given: _Given) -> None:
    """It compares types, of which the device is a part."""
    tensors = dict(given)
    first = tensors["input"]
    for name in ("weight", "bias"):
        other = tensors.get(name)
        if other is not None and _type_of(other) != _type_of(first):
            apart = _is_ours(other) != _is_ours(first)
            hint = _hint(_values(given)) if apart else ""
            # the CPU's library, which takes its own kind of tensors, is chosen by the input alone
            more = (
                "" if _is_ours(first) else
                f" or input should be a MKLDNN tensor and {name} is a dense tensor"
            )  # fmt: skip
            raise RuntimeError(
                f"Input type ({_type_of(first)}) and {name} type ({_type_of(other)}) should be the "
                f"same{more}{hint}"
            )


def _masked_fill(given: _Given) -> None:
    tensors = dict(given)
    mask, own = _place(tensors["mask"]), _place(tensors["self"])
    if mask != own:
        raise RuntimeError(
            f"expected self and mask to be on the same device, but got mask on {mask} and self on "
            f"{own}{_hint(_values(given))}"
        )


def _index(given: _Given) -> None:
    """Indices may be on the host; the indexed tensor is not, nor what is put into it."""
    if not _is_ours(given[0][1]):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            + _hint(_values(given))
        )
    for name, tensor in given:
        if name == "values" and not _is_ours(tensor) and tensor.dim():
            raise mixed_devices(*_values(given))


#: by the op's name without its overload
_OWN_WORDS: Final = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution,
    "aten::masked_fill": _masked_fill,
    "aten::masked_fill_": _masked_fill,
} | {name.partition(".")[0]: _index for name in HOST_ARGUMENTS if "index" in name}


def _hint(tensors: Iterable[torch.Tensor]) -> str:
    """A line that says what to do."""
    on_gpu = [_is_ours(tensor) for tensor in tensors if _is_weight(tensor)]
    if not on_gpu:
        said = 'One of the tensors is on the CPU: x = x.cuda(), or x.to("cuda"), moves it.'
    elif all(on_gpu):
        said = "The model is on the GPU, and a tensor given to it is not: x = x.cuda() moves it."
    else:
        said = "The model is on the CPU, and its input on the GPU: model.cuda() moves the model."
    return f"\n{said}"


def _is_weight(tensor: torch.Tensor) -> bool:
    """A parameter, or a view of one as `linear` makes it."""
    shown = tensor if tensor._base is None else tensor._base
    return isinstance(shown, torch.nn.Parameter)


def _values(given: _Given) -> list[torch.Tensor]:
    return [tensor for _, tensor in given]


def _is_ours(tensor: torch.Tensor) -> bool:
    """Whether it is the device's, also inside a transform of `torch.func`, which has wrapped it."""
    return isinstance(tensor, DeviceTensor) or tensor.device == device()


def _place(tensor: torch.Tensor) -> str:
    return "cuda:0" if _is_ours(tensor) else str(tensor.device)


def _type_of(tensor: torch.Tensor) -> str:
    """The legacy type's name, as `Tensor.type()` has it on CUDA."""
    name = torch.empty(0, dtype=tensor.dtype, device="cpu").type()
    return name.replace("torch.", "torch.cuda.") if _is_ours(tensor) else name


def _tensors(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of each tensor, in the order that the generated comparison has."""
    named = [(argument.name, value) for argument, value in zip(info.arguments, args, strict=False)]
    named += kwargs.items()
    named.sort(key=lambda each: (each[0] not in info.out_names, info.positions[each[0]]))
    for name, value in named:
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, torch.Tensor):
                yield name, each


def _is_written(info: OpInfo, name: str) -> bool:
    return info.positions[name] in info.writes


def _named_on_cuda(name: str, given: _Given) -> str:
    """Which op CUDA would take: cuDNN's, if the input is there."""
    if not name.startswith(_BATCH_NORM) or "backward" in name:
        return name
    return "cudnn_batch_norm" if _is_ours(given[0][1]) else "native_batch_norm"


# -- what torch declares ---------------------------------------------------------------------


@cache
def _declared(name: str) -> _Declared:
    """What is declared of an op; of one that torch does not declare, that it compares nothing."""
    name = name.removeprefix("aten::")
    entries = _entries()
    if name not in entries:
        return _Declared("", compares=False)
    signature, lines = entries[name]
    delegate = re.search(r"structured_delegate: ([\w.]+)", lines)
    kernels = entries[delegate[1]][1] if delegate is not None else lines
    if re.search(r"^    [\w, ]*\bCUDA\b.*:", kernels, re.MULTILINE) is None:
        return _Declared("", compares=False)
    base, _, overload = name.partition(".")
    if re.search(r"\*, .*\([a-z]!\)", signature):  # it writes keywords alone
        base += "_out"
    if delegate is not None or "structured: True" in lines:
        wrapper = f"wrapper_CUDA_{base}" + (f"_{overload}" if overload else "")
    else:
        wrapper = f"wrapper_CUDA_{overload}_{base}"
    return _Declared(wrapper, compares="device_check: NoCheck" not in lines)


@cache
def _entries() -> dict[str, tuple[str, str]]:
    """Signature and further lines of all ops of torch, by name and overload."""
    found = find_spec("torchgen")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        file = Path(folder) / "packaged/ATen/native/native_functions.yaml"
        if file.is_file():
            entries = re.finditer(_ENTRY, file.read_text(), re.MULTILINE)
            return {entry[1]: (entry[2], entry[3]) for entry in entries}
    return {}
