"""A storage lives where its kernel made it, and is looked for there."""

from types import SimpleNamespace

import pytest
import torch

from jgpu.broker.executor.devices.cuda import CudaDevice
from jgpu.broker.executor.devices.fake import RecordingCalls
from jgpu.broker.executor.programs import Buffer
from jgpu.broker.executor.programs.precautions.language import PRECAUTIONS, Attempt
from jgpu.broker.settings import ExecutorSettings

#: stands for a device that is not the host
ELSEWHERE = torch.device("meta")


class Elsewhere(RecordingCalls):
    """A device whose memory is not the host's."""

    def __init__(self):
        super().__init__()
        self.torch_device = ELSEWHERE


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_what_was_spilled_comes_back_to_where_it_lived(place):
    device = CudaDevice(ExecutorSettings(device="cuda", lanes=1), Elsewhere())
    buffer = Buffer(1, torch.zeros(8, dtype=torch.int64, device=place))
    buffer.release()
    device.make_room(buffer)
    assert buffer.base.device.type == place
    assert buffer.bytes().device.type == place
    device.close()


def test_a_buffer_is_restored_nowhere_else():
    buffer = Buffer(1, torch.zeros(8))
    buffer.release()
    with pytest.raises(AssertionError, match="lives where it was made"):
        buffer.restore(torch.zeros(32, dtype=torch.uint8, device=ELSEWHERE))


def backward(kernel, seed_on, dropout):
    name = f"_scaled_dot_product_{kernel}_attention_backward"
    found = PRECAUTIONS[name]
    assert found.devices == ("cuda",)
    names = ("query", "philox_seed", "philox_offset", "dropout_p")
    arguments = [SimpleNamespace(name=n, default=None, kwarg_only=False) for n in names]
    info = SimpleNamespace(name=f"aten::{name}", arguments=arguments, call=lambda *given: "ran")
    seed = torch.zeros(2, dtype=torch.int64, device=seed_on)
    given = (torch.zeros(1, device=ELSEWHERE), seed, seed, dropout)
    return found.rule(Attempt(info, given, {}))


@pytest.mark.parametrize(("kernel", "place"), [("efficient", "cpu"), ("flash", "meta")])
def test_a_random_state_that_the_kernel_would_look_for_elsewhere_is_refused(kernel, place):
    other = {"cpu": "meta", "meta": "cpu"}[place]
    assert backward(kernel, place, 0.1) == "ran"
    assert backward(kernel, other, 0.0) == "ran"  # nobody reads it
    with pytest.raises(RuntimeError, match=f"philox_seed is on {other} where .* on {place}"):
        backward(kernel, other, 0.1)


def test_the_arguments_that_are_looked_at_are_those_of_the_ops():
    for kernel in ("efficient", "flash"):
        op = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention_backward").default
        names = {argument.name for argument in op._schema.arguments}
        assert {"query", "philox_seed", "philox_offset", "dropout_p"} <= names
