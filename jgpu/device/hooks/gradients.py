"""Gradients on another device than what they are gradients of, in the words of torch's engine.

Natively the engine compares devices where a backward begins and after each of its functions. It
leaves out tensors like ours, of which it cannot know where they are. Gradients come from outside of
torch in two places, and both are looked at here: what `backward` is given, and what a backward that
somebody wrote returns. As natively, one without dimensions is moved.

Does not cover hooks, whose results the engine compares by type.

In forward mode torch asks for the tangent of whatever it prints, and it prints tensors where it
looks for an overload: meta tensors, too, which the kernel infers with. They have none.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.autograd import forward_ad

from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["install", "of_roots"]

_PYTHON: Final = torch._C.DispatchKey.Python


def install() -> None:
    """Look at what functions of `torch.autograd.Function` return, and at whose tangent is asked."""
    written: Any = torch.autograd.function.BackwardCFunction
    for name in ("apply", "apply_boxed"):  # the second from torch 2.13 on
        if hasattr(written, name):
            setattr(written, name, unseen(_looked_at(getattr(written, name))))
    forward_ad.unpack_dual = unseen(_but_of_meta(forward_ad.unpack_dual))


def of_roots(outputs: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
    """What `backward` is given for its outputs, on the devices of these."""
    for out, gradient in zip(outputs, gradients, strict=True):
        if gradient is not None and (type(gradient) is DeviceTensor) is not (
            type(out) is DeviceTensor
        ):
            return tuple(
                _on(out.device, gradient, at, "") if isinstance(out, torch.Tensor) else gradient
                for at, (out, gradient) in enumerate(zip(outputs, gradients, strict=True))
            )
    return gradients


def _but_of_meta(unpack: Callable[..., Any]) -> Callable[..., Any]:
    """`unpack_dual`, of a meta tensor without asking where no dispatch of ours can be met.

    That is said thread by thread, while the level of forward mode is the whole process's.
    """

    @functools.wraps(unpack)
    def call(tensor: torch.Tensor, *, level: int | None = None) -> Any:
        if tensor.is_meta and torch._C._dispatch_tls_is_dispatch_key_excluded(_PYTHON):
            return forward_ad.UnpackedDualTensor(tensor, None)
        return unpack(tensor, level=level)

    return call


def _looked_at(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def call(self: Any, *args: Any) -> Any:
        result = apply(self, *args)
        values = result if isinstance(result, tuple) else (result,)
        met = any(type(each) is DeviceTensor for each in (*args, *values))
        return _placed(self, values) if met else result

    return call


def _placed(node: Any, values: tuple[Any, ...]) -> Any:
    """What a backward returns, on the devices of the inputs that its forward had."""
    needed = iter([at for at, edge in enumerate(node.next_functions) if edge[0] is not None])
    placed = []
    for value, is_needed in zip(values, node.needs_input_grad, strict=False):
        at = next(needed, None) if is_needed else None
        if at is not None and isinstance(value, torch.Tensor):
            function, place = node.next_functions[at]
            said = f"Function {node.name()} returned an "
            value = _on(function._input_metadata[place].device, value, at, said)
        placed.append(value)
    return (*placed, *values[len(placed) :])


def _on(where: torch.device, gradient: Any, at: int, said: str) -> Any:
    """The gradient, on this device."""
    if gradient is None or gradient.device == where or _is_wrapped(gradient):
        return gradient
    if gradient.dim() == 0:
        return gradient.to(where)
    raise RuntimeError(
        f"{said}invalid gradient at index {at} - expected device {where} but got {gradient.device}"
    )


def _is_wrapped(tensor: Any) -> bool:
    """Whether it belongs to a transform of `torch.func`, whose tensors the engine does not ask."""
    found: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return found
