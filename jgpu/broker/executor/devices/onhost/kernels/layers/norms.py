"""Normalisation: cuDNN's, that of several processes, and statistics of halves.

CUDA keeps the statistics of halves in float32, the CPU in the type of the parameters: here the
CPU's kernels get floats, and what they return is rounded where CUDA's returns halves.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.tables import Function, into, kernel, named

__all__: list[str] = []

_HALVES: Final = (torch.float16, torch.bfloat16)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64 if tensor.dtype is torch.float64 else torch.float32)


def _others(tensor: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _along(channels: Tensor, like: Tensor) -> Tensor:
    """A number for each channel, as `like` is broadcast by it."""
    return _wide(channels).view(1, -1, *[1] * (like.dim() - 2))


# -- cuDNN ---------------------------------------------------------------------------------------


@kernel("cudnn_batch_norm")
def _cudnn(
    given: Tensor, weight: Tensor, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, factor: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, mean and inverse deviation of each channel, and nothing in reserve."""
    if bias is None:
        raise RuntimeError("cudnn_batch_norm: Expected tensor for argument #3 'bias' to be defined")
    wide = _wide(given)
    reserve = torch.empty(0, dtype=torch.uint8)
    if training:
        mean, var = wide.mean(_others(given)), wide.var(_others(given), correction=0)
        _follow(running_mean, mean, factor)
        count = given.numel() // given.shape[1]
        _follow(running_var, var * (count / max(count - 1, 1)), factor)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, var = _wide(running_mean), _wide(running_var)
    inverse = (var + eps).rsqrt()
    made = (wide - _along(mean, given)) * _along(inverse * _wide(weight), given)
    output = torch.empty_like(given).copy_(made + _along(bias, given))
    if not training:
        return output, weight.new_empty(0), weight.new_empty(0), reserve
    return output, mean.to(weight.dtype), inverse.to(weight.dtype), reserve


def _follow(running: Tensor | None, now: Tensor, factor: float) -> None:
    if running is not None:
        running.copy_(_wide(running) * (1 - factor) + now * factor)


@kernel("cudnn_batch_norm_backward")
def _cudnn_backward(
    given: Tensor, grad: Tensor, weight: Tensor, running_mean: Any, running_var: Any,
    mean: Tensor, inverse: Tensor, eps: float, reserve: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of the training alone: cuDNN has no other."""
    dims, wide = _others(given), _wide(grad)
    scaled = (_wide(given) - _along(mean, given)) * _along(inverse, given)
    of_bias, of_weight = wide.sum(dims), (wide * scaled).sum(dims)
    count = given.numel() // given.shape[1]
    inner = wide - _along(of_bias, given) / count - scaled * _along(of_weight, given) / count
    of_given = inner * _along(_wide(weight) * _wide(inverse), given)
    return (
        torch.empty_like(given).copy_(of_given), of_weight.to(weight.dtype),
        of_bias.to(weight.dtype),
    )  # fmt: skip


@kernel("cudnn_batch_norm.out")
def _cudnn_into(*given: Any) -> tuple[Tensor, ...]:
    *plain, output, mean, inverse, reserve = given
    places = (output, mean, inverse, reserve)
    return tuple(into(*pair) for pair in zip(places, _cudnn(*plain), strict=True))


# -- root mean square ----------------------------------------------------------------------------


@kernel("_fused_rms_norm")
def _rms_norm(
    given: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Output, and the inverse root of each row's mean square."""
    wide, dims = _wide(given), tuple(range(-len(shape), 0))
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    inverse = (wide.square().mean(dims, keepdim=True) + least).rsqrt()
    made = wide * inverse if weight is None else wide * inverse * _wide(weight)
    return torch.empty_like(given).copy_(made), inverse


@kernel("_fused_rms_norm_backward")
def _rms_norm_backward(
    grad: Tensor, given: Tensor, shape: list[int], inverse: Tensor, weight: Tensor | None,
    wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    dims = tuple(range(-len(shape), 0))
    scaled = _wide(given) * inverse
    inner = _wide(grad) if weight is None else _wide(grad) * _wide(weight)
    of_given = inverse * (inner - scaled * (inner * scaled).mean(dims, keepdim=True))
    of_weight = None
    if wanted[1] and weight is not None:
        rows = tuple(range(given.dim() - len(shape)))
        each = _wide(grad) * scaled
        of_weight = (each.sum(rows) if rows else each).to(weight.dtype)
    return torch.empty_like(given).copy_(of_given) if wanted[0] else None, of_weight


# -- of several processes ------------------------------------------------------------------------


@kernel("batch_norm_stats")
def _stats(given: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide, dims = _wide(given), _others(given)
    return wide.mean(dims), (wide.var(dims, correction=0) + eps).rsqrt()


@kernel("batch_norm_elemt")
def _elements(
    given: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    made = (_wide(given) - _along(mean, given)) * _along(inverse, given)
    made = made if weight is None else made * _along(weight, given)
    made = made if bias is None else made + _along(bias, given)
    return torch.empty_like(given).copy_(made)


@kernel("batch_norm_elemt.out")
def _elements_out(*given: Any) -> Tensor:
    return into(given[-1], _elements(*given[:-1]))


@kernel("batch_norm_gather_stats_with_counts")
def _gathered(
    given: Tensor, means: Tensor, inverses: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None, momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of statistics (processes, channels) those of all samples together."""
    shares = _wide(counts).view(-1, 1)
    total = shares.sum()
    mean = (_wide(means) * shares).sum(0) / total
    own = _wide(inverses) ** -2 - eps
    squares = ((own + (_wide(means) - mean) ** 2) * shares).sum(0)
    _follow(running_mean, mean, momentum)
    _follow(running_var, squares / (total - 1), momentum)
    return mean, (squares / total + eps).rsqrt()


@kernel("batch_norm_gather_stats")
def _gathered_alike(
    given: Tensor, means: Tensor, inverses: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None, momentum: float, eps: float, count: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    counts = torch.full((means.shape[0],), float(count), dtype=_wide(means).dtype)
    rest = running_mean, running_var, momentum, eps, counts
    made: tuple[Tensor, Tensor] = _gathered(given, means, inverses, *rest)
    return made


def _into_both(function: Function) -> Function:
    def written(*given: Any) -> tuple[Tensor, ...]:
        made = function(*given[:-2])
        return tuple(into(out, each) for out, each in zip(given[-2:], made, strict=True))

    return written


kernel("batch_norm_stats.out")(_into_both(_stats))
kernel("batch_norm_gather_stats.out")(_into_both(_gathered_alike))
kernel("batch_norm_gather_stats_with_counts.out")(_into_both(_gathered))


@kernel("batch_norm_backward_reduce")
def _reduced(
    grad: Tensor, given: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None,
    of_input: bool, of_weight: bool, of_bias: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    wide, dims = _wide(grad), _others(given)
    sums = wide.sum(dims)
    moved = (wide * (_wide(given) - _along(mean, given))).sum(dims)
    dtype = mean.dtype if weight is None else weight.dtype
    return (
        sums if of_input else None, moved if of_input else None,
        (moved * _wide(inverse)).to(dtype) if of_weight else None,
        sums.to(dtype) if of_bias else None,
    )  # fmt: skip


@kernel("batch_norm_backward_elemt")
def _elements_backward(
    grad: Tensor, given: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None,
    sums: Tensor, moved: Tensor, counts: Tensor,
) -> Tensor:  # fmt: skip
    total = _wide(counts).sum()
    scaled = (_wide(given) - _along(mean, given)) * _along(_wide(inverse) ** 2 * moved, given)
    inner = _wide(grad) - _along(sums, given) / total - scaled / total
    factor = _wide(inverse) if weight is None else _wide(inverse) * _wide(weight)
    return torch.empty_like(given).copy_(inner * _along(factor, given))


# -- statistics of halves ------------------------------------------------------------------------

#: Ops whose results of halves CUDA keeps in float32, with the arguments whose types the results
#: have: of None the type of the statistics.
_STATISTICS: Final[dict[str, Sequence[str | None]]] = {
    "native_layer_norm": ("input", None, None),
    "native_layer_norm_backward": ("input", "weight", "bias"),
    "native_batch_norm": ("input", None, None),
    "native_batch_norm_backward": ("input", "weight", "weight"),
    "batch_norm_backward": ("input", "weight", "weight"),
    "_native_batch_norm_legit": ("input", None, None),
    "_native_batch_norm_legit.no_stats": ("input", None, None),
    "_native_batch_norm_legit_no_training": ("input", None, None),
    "_native_batch_norm_legit_functional":
        ("input", None, None, "running_mean", "running_var"),
    "_batch_norm_with_update": ("input", None, None, None),
    "_batch_norm_no_update": ("input", None, None, None),
    "_batch_norm_with_update_functional":
        ("input", None, None, None, "running_mean", "running_var"),
}  # fmt: skip
#: The CPU's kernel multiplies out what CUDA's subtracts first, and leaves a rounding where it is 0.
_CANCELLING: Final = (torch.ops.aten.native_layer_norm_backward.default,)
#: Arguments that a forward may write though its schema does not say so.
_WRITTEN: Final = ("running_mean", "running_var")


def _of_halves(op: torch._ops.OpOverload, types: Sequence[str | None]) -> Function:
    names = [argument.name for argument in op._schema.arguments]

    def function(*given: Any) -> Any:
        held = dict(zip(names, given, strict=True))
        if held["input"].dtype not in _HALVES:
            return op(*given)
        to = torch.float64 if op in _CANCELLING else torch.float32
        wide = {name: each.to(to) if _is_float(each) else each for name, each in held.items()}
        made = op(*wide.values())
        for name in _WRITTEN:
            if held.get(name) is not None and wide[name] is not held[name]:
                held[name].copy_(wide[name])
        return tuple(map(_rounded, made, types, [held] * len(types)))

    return function


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _rounded(made: Tensor | None, name: str | None, held: dict[str, Any]) -> Tensor | None:
    if made is None or name is None:
        return made
    like = held[name] if held[name] is not None else held["input"]
    return made.to(like.dtype)


for _name, _types in _STATISTICS.items():
    for _op in named(_name):
        kernel(_name)(_of_halves(_op, _types))
