"""Geometry that the device put right, and how often.

The first run of a program compares each output with what the client took it for. Where only strides
differ the executor lays the output out as expected, and no tensor is wrong; where more differs the
output is poisoned unless nobody leans on it. Either way the client is told, and what it records
next expects the truth.
"""

from collections.abc import Sequence

from jgpu.device.geometry import InternedGeometry, from_wire
from jgpu.device.recording.infer import OpPlan
from jgpu.wire import messages as m

__all__ = ["LearntGeometry"]


class LearntGeometry:
    """What the device told of outputs that had been inferred otherwise."""

    __slots__ = ("asked", "reshaped", "restrided")

    def __init__(self) -> None:
        #: outputs of other strides, which the executor laid out as expected
        self.restrided = 0
        #: outputs of another shape or type
        self.reshaped = 0
        #: ops whose outputs the device was asked for beforehand
        self.asked = 0

    def take(self, plans: Sequence[OpPlan], tensors: Sequence[m.TensorReport]) -> None:
        """Correct the plans of a program's ops by what its run told."""
        for tensor in tensors:
            plan = plans[tensor.op]
            if plan.outs is None or tensor.geometry is None:
                continue
            outs, truth = list(plan.outs), from_wire(tensor.geometry)
            guess = outs[tensor.index] if tensor.index < len(outs) else None
            if not isinstance(guess, InternedGeometry) or guess is truth:
                continue
            outs[tensor.index] = truth
            plan.settle(outs)
            if (truth.shape, truth.dtype) == (guess.shape, guess.dtype):
                self.restrided += 1
            else:
                self.reshaped += 1
