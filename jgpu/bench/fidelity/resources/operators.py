"""PyTorch's database of operators: forward, first gradient, in-place and `out=` forms."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from carrying import carry, gradients, leaves_with_grad, widened
from judging import SEED, as_there, compared
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import DecorateInfo
from torch.utils._pytree import tree_map_only

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64,
)  # fmt: skip
#: types that kernels compute in single precision: who rounds less is nearer to double
HALVES = (torch.bfloat16, torch.float16)
#: What torch computes more coarsely on CUDA by its own choice, in halves, and how far off that is:
#: a loss in pieces, whose gradients are summed up in half there and in single precision on the CPU.
COARSE = {"linear_cross_entropy": {"rtol": 1.6e-2, "atol": 2e-2}}
#: what they return was never written
UNINITIALISED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "resize_", "resize_as_",
}  # fmt: skip

#: whose tensor arguments CUDA wants on the host, too
HOST_ARGUMENTS = {"tensor_split"}

Found = Iterator[tuple[str, str, str]]


@cache
def _entries() -> dict[str, Any]:
    return {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op
            for op in op_db}  # fmt: skip


def cases() -> Iterator[tuple[str, torch.dtype]]:
    """Every entry with every dtype that it supports, of those that are tried."""
    for name, op in _entries().items():
        supported = op.supported_dtypes("cpu")
        for dtype in DTYPES:
            if dtype in supported:
                yield name, dtype


def samples(entry: str, dtype: torch.dtype) -> Iterator[Callable[[], Found]]:
    """For each sample a function that compares all its variants."""
    op = _entries()[entry]
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    tolerance = _tolerance(op, dtype)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=differentiable):
        yield partial(_compare, op, sample, differentiable, tolerance, dtype)


def _tolerance(op: Any, dtype: torch.dtype) -> dict[str, float]:
    """What the database allows of this entry and dtype; nothing: torch's own defaults."""
    found: dict[str, float] = {}
    if dtype in HALVES:
        found |= COARSE.get(op.name.rpartition(".")[2], {})
    for info in op.decorators:
        if not isinstance(info, DecorateInfo) or info.device_type not in (None, "cpu"):
            continue
        for decorator in info.decorators:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                each = decorator.d[dtype]
                found = {
                    "rtol": max(found.get("rtol", 0.0), each.rtol),
                    "atol": max(found.get("atol", 0.0), each.atol),
                }
    return found


def _compare(
    op: Any, sample: Any, differentiable: bool, tolerance: dict[str, float], dtype: torch.dtype
) -> Found:
    values = op.name not in UNINITIALISED
    halved = dtype if dtype in HALVES else None
    yield from _forward(op, sample, differentiable, tolerance, values, halved)
    if op.get_inplace() is not None and not sample.broadcasts_input:
        yield from _inplace(op, sample, tolerance, values)
    if op.supports_out:
        yield from _out(op, sample, tolerance, values, halved)


def _carried(op: Any, sample: Any, device: str) -> tuple[Any, Any, Any]:
    arguments = "cpu" if op.name in HOST_ARGUMENTS else device
    return (
        carry(sample.input, device),
        carry(sample.args, arguments),
        carry(sample.kwargs, arguments),
    )


def _in_double(op: Any, sample: Any) -> tuple[Any, Any]:
    """The inputs in double precision, and what natively comes of them; single if double raises."""
    try:
        return _in(op, sample, torch.float64)
    except RuntimeError:
        return _in(op, sample, torch.float32)


def _in(op: Any, sample: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    torch.manual_seed(SEED)
    first, args, kwargs = inputs = widened(_carried(op, sample, "cpu"), dtype)
    return inputs, op(first, *args, **kwargs)


def _forward(
    op: Any,
    sample: Any,
    differentiable: bool,
    tolerance: dict[str, float],
    values: bool,
    halved: torch.dtype | None,
) -> Found:
    kept: dict[str, Any] = {}

    def call(device: str) -> Any:
        first, args, kwargs = inputs = _carried(op, sample, device)
        with as_there(device):
            kept[device] = inputs, op(first, *args, **kwargs)
        return kept[device][1]

    def grads(device: str) -> Any:
        torch.manual_seed(SEED)  # forward and backward, the same in each run
        call(device)
        inputs, result = kept.pop(device)
        result = sample.output_process_fn_grad(result)
        with as_there(device):
            return gradients(result, leaves_with_grad(inputs), drawn=halved)

    def grads_in_double() -> Any:
        inputs, result = _in_double(op, sample)
        result = sample.output_process_fn_grad(result)
        return gradients(result, leaves_with_grad(inputs), drawn=halved)

    yield from compared(
        "forward", lambda: call("cpu"), lambda: call("cuda"), tolerance, values=values,
        wider=(lambda: _in_double(op, sample)[1]) if halved else None,
    )  # fmt: skip
    if differentiable and "cpu" in kept and "cuda" in kept:
        yield from compared(
            "gradient",
            lambda: grads("cpu"),
            lambda: grads("cuda"),
            tolerance,
            values=values,
            wider=grads_in_double if halved else None,
        )


def _inplace(op: Any, sample: Any, tolerance: dict[str, float], values: bool) -> Found:
    def call(device: str) -> Any:
        with torch.no_grad():
            first, args, kwargs = _carried(op, sample, device)
            with as_there(device):
                result = op.get_inplace()(first, *args, **kwargs)
        return result, first

    yield from compared(
        "inplace", lambda: call("cpu"), lambda: call("cuda"), tolerance, values=values
    )


def _out(
    op: Any,
    sample: Any,
    tolerance: dict[str, float],
    values: bool,
    halved: torch.dtype | None,
) -> Found:
    try:
        with torch.no_grad():
            first, args, kwargs = _carried(op, sample, "cpu")
            expected = op(first, *args, **kwargs)
    except Exception:
        return  # fails natively, with which "forward" has compared it

    def call(device: str) -> Any:
        with torch.no_grad():
            out = tree_map_only(torch.Tensor, lambda t: _room_for(t, device), expected)
            if isinstance(out, tuple):
                out = tuple(out)
            first, args, kwargs = _carried(op, sample, device)
            with as_there(device):
                return op(first, *args, **kwargs, out=out), out

    yield from compared(
        "out", lambda: call("cpu"), lambda: call("cuda"), tolerance, values=values,
        wider=(lambda: (_in_double(op, sample)[1],) * 2) if halved else None,
    )  # fmt: skip


def _room_for(result: torch.Tensor, device: str) -> torch.Tensor:
    made = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=device)
    return made.fill_(0)
