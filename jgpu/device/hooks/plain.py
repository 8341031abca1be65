"""What is so plain that it comes to the device without torch's dispatcher.

The dispatcher's first call to a device like this one imports much, and each of its calls takes a
few. So it is gone around where nobody but us would see that: no mode, transform or tracer.
"""

from typing import Any, Final

import torch

__all__ = ["LISTS", "NUMBERS", "are_mere_numbers", "is_mere_data"]

NUMBERS: Final = (int, float, bool, complex)
LISTS: Final = (list, tuple)
_MERE: Final = (torch.Tensor, torch.nn.Parameter)

# looked up once: numbers come to the device at each step
_inference = torch.is_inference_mode_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state


def are_mere_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether nobody but us would see how numbers, or lists of them, come to the device.

    They go as any upload then. By torch's dispatcher they would in three steps: an empty tensor,
    a copy into it, and an alias of that. `kwargs` has a device; a dtype may be beside it.
    """
    if len(args) != 1 or len(kwargs) != (2 if "dtype" in kwargs else 1):
        return False
    value = args[0]
    while type(value) in LISTS and value:
        value = value[0]
    return (
        type(value) in NUMBERS
        and not (_inference() or _dispatch_modes() or _function_modes())
        and _transforms() is None
        and _tracing() is None
    )


def is_mere_data(tensor: torch.Tensor) -> bool:
    """Whether nobody but us would see a tensor's upload: neither autograd, a mode nor a transform.

    While `torch.jit.trace` records, sizes of tensors are tensors, too, and uploads are recorded.
    Inside a transform of `torch.func` what is made of a host tensor is wrapped, and shows no bytes.
    """
    return (
        type(tensor) in _MERE
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and not (_inference() or _dispatch_modes() or _function_modes())
        and _transforms() is None
        and _tracing() is None
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
