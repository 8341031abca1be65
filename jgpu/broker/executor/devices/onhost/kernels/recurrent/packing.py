"""Where the weights of recurrent layers lie in the one buffer that cuDNN reads.

First all matrices, layer by layer and direction by direction: of the input, of the state, and the
projection. Then all biases, two for each, for which there is room also where a layer has none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.tables import kernel

__all__ = ["GRU", "LSTM", "RELU", "TANH", "Layers", "Weights", "gradients", "packed", "unpacked"]

RELU, TANH, LSTM, GRU = range(4)
#: gates by cuDNN's number of the cell
_GATES: Final = (1, 1, 4, 3)


class Weights(NamedTuple):
    """Of one layer in one direction; its biases are zeros where the layer has none."""

    of_input: Tensor
    of_state: Tensor
    bias_of_input: Tensor
    bias_of_state: Tensor
    #: (shown, hidden), if the layer projects its state
    projection: Tensor | None


@dataclass(frozen=True, slots=True)
class Layers:
    """What recurrent layers are made of; sizes in elements."""

    mode: int
    features: int
    hidden: int
    #: 0 without a projection
    projection: int
    layers: int
    directions: int

    @property
    def shown(self) -> int:
        """Elements of the state that the next step and the next layer see."""
        return self.projection or self.hidden

    @property
    def count(self) -> int:
        """Layers, each direction by itself."""
        return self.layers * self.directions

    def matrices(self, place: int) -> list[tuple[int, int]]:
        """Shapes of the matrices of one layer in one direction."""
        rows = _GATES[self.mode] * self.hidden
        first = place < self.directions
        features = self.features if first else self.shown * self.directions
        shapes = [(rows, features), (rows, self.shown)]
        return [*shapes, (self.shown, self.hidden)] if self.projection else shapes

    def biases(self) -> list[tuple[int]]:
        """Shapes of its two biases."""
        return [(_GATES[self.mode] * self.hidden,)] * 2

    def elements(self) -> int:
        """Elements of the whole buffer."""
        shapes = [shape for place in range(self.count) for shape in self.matrices(place)]
        return sum(map(math.prod, [*shapes, *self.biases() * self.count]))


def unpacked(buffer: Tensor, layers: Layers) -> list[Weights]:
    """Views of the buffer, one layer and direction after another."""
    if buffer.numel() < layers.elements():
        raise RuntimeError(
            f"weight_buf has {buffer.numel()} elements, {layers.elements()} are needed"
        )
    taken = 0

    def take(shape: Sequence[int]) -> Tensor:
        nonlocal taken
        taken += math.prod(shape)
        return buffer[taken - math.prod(shape) : taken].view(shape)

    matrices = [[take(shape) for shape in layers.matrices(k)] for k in range(layers.count)]
    biases = [[take(shape) for shape in layers.biases()] for _ in range(layers.count)]
    return [
        Weights(of[0], of[1], bias[0], bias[1], of[2] if layers.projection else None)
        for of, bias in zip(matrices, biases, strict=True)
    ]


def _listed(weights: Sequence[Weights], each: int, layers: Layers) -> list[Tensor]:
    """The same in the order of torch's list, in which biases may be missing."""
    listed = []
    for found in weights:
        listed += [found.of_input, found.of_state]
        if each >= 4:
            listed += [found.bias_of_input, found.bias_of_state]
        if found.projection is not None:
            listed.append(found.projection)
    if len(listed) != each * layers.count:
        raise RuntimeError(f"weight_stride0 is {each}, which does not fit the layers")
    return listed


def packed(weights: Sequence[Tensor], each: int, layers: Layers) -> Tensor:
    """A buffer of these weights, copied."""
    buffer = torch.zeros(layers.elements(), dtype=weights[0].dtype)
    for view, weight in zip(_listed(unpacked(buffer, layers), each, layers), weights, strict=True):
        view.copy_(weight)
    return buffer


def gradients(buffer: Tensor, each: int, layers: Layers) -> list[Tensor]:
    """Gradients in the order of torch's list: views, or copies where biases are left out."""
    listed = _listed(unpacked(buffer, layers), each, layers)
    return listed if each >= 4 else [view.clone() for view in listed]


@kernel("_cudnn_rnn_flatten_weight")
def _flatten(
    weights: Sequence[Tensor],
    each: int,
    features: int,
    mode: int,
    hidden: int,
    projection: int,
    layers: int,
    batch_first: bool,
    bidirectional: bool,
) -> Tensor:
    """Copies weights into one buffer and makes them views of it."""
    described = Layers(mode, features, hidden, projection, layers, 1 + bidirectional)
    buffer = packed(weights, each, described)
    views = _listed(unpacked(buffer, described), each, described)
    for weight, view in zip(weights, views, strict=True):
        weight.set_(view)  # type: ignore[call-overload]
    return buffer
