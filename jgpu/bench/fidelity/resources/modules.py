"""PyTorch's database of modules: parameters, forward in training and evaluation, gradients."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from carrying import carry, gradients, leaves_with_grad, widened
from judging import SEED, as_there, compared
from torch.testing._internal.common_modules import module_db

Found = Iterator[tuple[str, str, str]]


@cache
def _entries() -> dict[str, Any]:
    return {info.name: info for info in module_db}


def cases() -> Iterator[tuple[str, torch.dtype]]:
    """Every module with every dtype of its own."""
    for name, info in _entries().items():
        for dtype in info.supported_dtypes("cpu"):
            yield name, dtype


def samples(entry: str, dtype: torch.dtype) -> Iterator[Callable[[], Found]]:
    """For each input, in training and in evaluation, a function that compares."""
    info = _entries()[entry]
    for training in (True, False):
        torch.manual_seed(SEED)
        for given in info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        ):
            if given.forward_input is not None:
                yield partial(_compare, info, given, dtype, training)


def _compare(info: Any, given: Any, dtype: torch.dtype, training: bool) -> Found:
    kept: dict[str, Any] = {}

    def call(device: str) -> Any:
        constructor = given.constructor_input
        module = info.module_cls(*constructor.args, **constructor.kwargs)
        module.to(dtype)
        module.train(training)
        if device == "cuda":
            module.cuda()
        torch.manual_seed(SEED)
        args, kwargs = inputs = tuple(
            carry(each, device) for each in (given.forward_input.args, given.forward_input.kwargs)
        )
        with as_there(device):
            result = module(*args, **kwargs)
        kept[device] = (module, inputs, result)
        return result, dict(module.named_buffers())

    def grads(device: str) -> Any:
        call(device)  # forward and backward, the same in each run
        module, inputs, result = kept.pop(device)
        named = [p for p in module.parameters() if p.requires_grad]
        with as_there(device):
            return gradients(result, named + leaves_with_grad(inputs))

    def grads_in_double() -> Any:
        constructor = given.constructor_input
        module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).double()
        module.train(training)
        torch.manual_seed(SEED)
        args, kwargs = inputs = widened(
            carry((given.forward_input.args, given.forward_input.kwargs), "cpu")
        )
        result = module(*args, **kwargs)
        named = [p for p in module.parameters() if p.requires_grad]
        return gradients(result, named + leaves_with_grad(inputs), drawn=dtype)

    word = "training" if training else "evaluation"
    yield from compared(f"forward in {word}", lambda: call("cpu"), lambda: call("cuda"), {})
    if "cpu" in kept and "cuda" in kept:
        yield from compared(
            f"gradient in {word}", lambda: grads("cpu"), lambda: grads("cuda"), {},
            wider=grads_in_double if dtype is torch.float32 else None,
        )  # fmt: skip
