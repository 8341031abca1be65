"""Recurrent layers on a CUDA executor: `_cudnn_rnn`, with what torch does around it.

Torch keeps a layer's weights in one buffer that lies as cuDNN reads it, and the state of dropout in
another that is seeded from the default generator. Where torch would not take cuDNN, its own
composite does the layer step by step. What the device alone knows (whether it has cuDNN for a type,
how weights lie) the executor is asked for, once a layer.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.device import current, flags
from jgpu.device.errors import refused
from jgpu.device.geometry import intern
from jgpu.device.tensor import DeviceTensor, device, wrap
from jgpu.device.tracebacks import unseen
from jgpu.wire import limits
from jgpu.wire import messages as m

__all__ = ["install", "run_layers"]

#: cuDNN's number by the name of the op
_MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM: Final = _MODES["lstm"]
#: types that torch may have cuDNN for
_TYPES: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

#: answers of the device: elements of the buffer and the place of each weight, by the question
_layouts: dict[tuple[Any, ...], tuple[int, ...]] = {}
_MOST: Final = 1024


class _Dropout:
    """The state of dropout of all layers, natively one for each device."""

    state: Tensor | None = None
    #: connection, and how often the default generator had been seeded, when it was made
    made_at: tuple[int, int] = (0, 0)


def run_layers(op: Any, args: tuple[Any, ...]) -> Any:
    """`lstm`, `gru` or `rnn_*` by cuDNN; NotImplemented where torch would not take it."""
    mode = _MODES[op._schema.name[6:]]
    if op._schema.overload_name == "input":
        sequence, states, weights, biased, layers, dropout, train, both, batch_first = args
        sizes: list[int] = []
    else:
        sequence, batch_sizes, states, weights, biased, layers, dropout, train, both = args
        sizes, batch_first = [int(size) for size in batch_sizes.tolist()], False
    if not _may_be_cudnn(sequence, weights):
        return NotImplemented
    hx, cx = states if mode == _LSTM else (states, None)
    hidden, projection = hx.shape[2], 0
    if cx is not None and cx.shape[2] != hidden:
        hidden, projection = cx.shape[2], hidden
    each = (4 if biased else 2) + bool(projection)
    layer = (each, sequence.shape[-1], mode, hidden, projection, layers, both)
    layout = _layout(weights, layer)
    if not layout:
        return NotImplemented
    _check(sequence, weights, [hx] if cx is None else [hx, cx])
    made = torch.ops.aten._cudnn_rnn.default(
        sequence, weights, each, _packed(weights, layout), hx, cx, mode, hidden, projection,
        layers, batch_first, dropout, train, both, sizes, _state_of_dropout(dropout, train),
    )  # fmt: skip
    return (made[0], made[1], made[2]) if mode == _LSTM else (made[0], made[1])


def _may_be_cudnn(sequence: Any, weights: Sequence[Any]) -> bool:
    """As far as the tensors decide; the rest is the device's."""
    return (
        type(sequence) is DeviceTensor
        and all(type(weight) is DeviceTensor for weight in weights)
        and sequence.dtype in _TYPES
        and sequence.numel() > 0
        and torch._C._get_cudnn_enabled()
    )


def _check(sequence: Tensor, weights: Sequence[Tensor], states: Sequence[Tensor]) -> None:
    """What torch looks at before it calls cuDNN, in its words."""
    for kind, tensors in (("hidden", states), ("parameter", weights)):
        for tensor in tensors:
            if tensor.dtype is not sequence.dtype:
                raise RuntimeError(
                    f"Input and {kind} tensors are not the same dtype, found input tensor with "
                    f"{sequence.dtype} and {kind} tensor with {tensor.dtype}"
                )
    for name, state in zip(("hx", "cx"), states, strict=False):
        if not state.is_contiguous():
            raise RuntimeError(f"rnn: {name} is not contiguous")


def _refuse_too_large(weights: Sequence[Any], layer: tuple[Any, ...]) -> None:
    """Refuse here what the broker would not take as a question."""
    _, features, _, hidden, projection, layers, _ = layer
    if len(weights) > limits.MAX_WEIGHTS or layers > limits.MAX_LAYERS:
        raise refused(
            f"recurrent nets of {layers} layers and {len(weights)} weights",
            f"use {limits.MAX_LAYERS} layers and {limits.MAX_WEIGHTS} weights at most",
        )
    if max(features, hidden, projection) > limits.MAX_WIDTH:
        raise refused("recurrent nets of such a width", f"use {limits.MAX_WIDTH} at most")


# -- weights ---------------------------------------------------------------------------------


def _layout(weights: Sequence[Any], layer: tuple[Any, ...]) -> tuple[int, ...]:
    """Elements of the buffer of all weights, and where in it each one lies; () without cuDNN."""
    session = current.session
    _refuse_too_large(weights, layer)
    shapes = tuple(intern(w.dtype, (*w.shape,), _rows(w.shape)).wire for w in weights)
    question = (shapes, *layer, flags.current())
    key = (session.connection.generation, *question)
    found = _layouts.get(key)
    if found is None:
        found = session.choose(lambda request: m.LayOutWeights(request, *question))
        if len(_layouts) >= _MOST:
            _layouts.clear()
        _layouts[key] = found
    return found


def _rows(shape: Sequence[int]) -> tuple[int, ...]:
    return (1,) if len(shape) == 1 else (shape[1], 1)


def _packed(weights: Sequence[DeviceTensor], layout: tuple[int, ...]) -> DeviceTensor:
    """The weights in one buffer, as cuDNN reads them: the one that they lie in, or a copy."""
    count, *places = layout
    first = weights[0]
    if all(
        weight._b is first._b and weight._o == place and weight._g.contiguous
        for weight, place in zip(weights, places, strict=True)
    ):
        return wrap(first._b, intern(first.dtype, (count,), (1,)))
    with torch.no_grad():
        made: Any = torch.zeros(count, dtype=first.dtype, device=device())
        for weight, place in zip(weights, places, strict=True):
            made.narrow(0, place, weight.numel()).view(weight.shape).copy_(weight)
    packed: DeviceTensor = made
    return packed


def _flatten(module: Any) -> None:
    """Move a module's weights into one buffer, as `flatten_parameters` does natively."""
    weights = module._flat_weights
    if len(weights) != len(module._flat_weights_names) or not weights:
        return
    if not all(type(weight) is DeviceTensor for weight in weights):
        return
    facts = current.session.device_facts()
    if not facts.has_cuda_kernels or not _may_be_cudnn(weights[0], weights):
        return
    one_type = len({weight.dtype for weight in weights}) == 1
    apart = len({(id(weight._b), weight._o) for weight in weights}) == len(weights)
    if not one_type or not apart:
        return
    each = (4 if module.bias else 2) + bool(module.proj_size)
    mode = _MODES[module.mode.lower()]
    layout = _layout(weights, (each, module.input_size, mode, module.hidden_size, module.proj_size,
                               module.num_layers, bool(module.bidirectional)))  # fmt: skip
    if not layout:
        return
    with torch.no_grad():
        packed = _packed(weights, layout)
        for weight, place in zip(weights, layout[1:], strict=True):
            shown: Any = packed.narrow(0, place, weight.numel()).view(weight.shape)
            if weight._b is not shown._b:
                weight.data = shown
    current.session.tag_resident([packed._b])


# -- dropout ---------------------------------------------------------------------------------


def _state_of_dropout(dropout: float, train: bool) -> Tensor | None:
    """The state that dropout between layers draws from; made anew after the generator was seeded.

    Its seed is drawn from the default generator, as natively, which waits once.
    """
    if not train or dropout == 0:
        return None
    session = current.session
    now = (session.connection.generation, session.generators.reseeded)
    if _Dropout.state is None or _Dropout.made_at != now:
        with torch.no_grad():
            seed = torch.empty((), dtype=torch.int64, device=device()).random_().item()
            _Dropout.state = torch.ops.aten._cudnn_init_dropout_state.default(
                dropout, train, seed, dtype=torch.uint8, device=device()
            )
        _Dropout.made_at = now
    return _Dropout.state


def install() -> None:
    """Have modules' weights packed as on CUDA."""
    base: Any = torch.nn.RNNBase
    original = base.flatten_parameters

    @functools.wraps(original)
    def flatten_parameters(self: Any) -> None:
        original(self)
        _flatten(self)

    base.flatten_parameters = unseen(flatten_parameters)
