"""Calls that the accelerator carries out by itself are recorded as Python records them.

A mode that passes all on has every op go through Python. Does not cover composites at the autograd
key (`test_composed`), nor whether results are the native ones.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.accelerator import loading
from jgpu.device import current
from jgpu.device.recording.dispatch import dispatch
from jgpu.device.tensor import device

library = loading.load()
pytestmark = pytest.mark.skipif(library is None, reason="the accelerator is not built here")


class Passing(TorchDispatchMode):
    """Looks on, in Python."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def given(*shape, wanted=False):
    count = torch.Size(shape).numel()
    return torch.linspace(0.1, 0.9, count).view(shape).to("cuda").requires_grad_(wanted)


def entries():
    """What is in the log: plans, and which buffers of the calls each reads and makes."""
    numbers = {}

    def number(buffer):
        return numbers.setdefault(id(buffer), len(numbers))

    return [
        (plan, [number(each) for each in (*buffers, *outs)], [*offsets], [*params])
        for plan, buffers, offsets, outs, params, _ in current.session.log.entries
    ]


def recorded(call):
    torch.cuda.synchronize()
    made = call()  # held, so that no buffer takes another one's place
    found = entries()
    torch.cuda.synchronize()
    del made
    return found


x, w, wanted = given(4, 6), given(4, 6), given(4, 6, wanted=True)
picture, kernel_mean, kernel_var = given(2, 3, 4, 4, wanted=True), given(3), given(3)
rows, labels = torch.tensor([0, 2, 1]).cuda(), torch.tensor([0, 1, 2, 3]).cuda()
weights, biases = given(3, wanted=True), given(3, wanted=True)
room = torch.zeros(4, 6, device="cuda")


def put(index, value):
    room[index] = value
    return room


def normed(*, mean, training, weight=None, bias=None):
    var = None if mean is None else kernel_var
    return F.batch_norm(picture, mean, var, weight, bias, training)


CALLS = {
    "converted": lambda: x.to(torch.float64),
    "halved": lambda: wanted.half(),
    "copied as it lies": lambda: x.t().to(torch.float64, copy=True),
    "converted to integers": lambda: x.long(),
    "copied": lambda: room.copy_(w),
    "copied from another type": lambda: room.copy_(rows[:1]),
    "copied into a part": lambda: put(slice(1, 3), w[:2]),
    "rows": lambda: x[rows],
    "elements": lambda: x[rows, rows],
    "columns": lambda: x[:, rows],
    "rows and their gradient": lambda: wanted[rows].sum().backward(),
    "zeros like it": lambda: x.new_zeros(3, 4),
    "converted where it is": lambda: x.to("cuda", torch.float64),
    "an empty tensor": lambda: torch.empty(3, 4, device="cuda"),
    "an empty tensor of a type": lambda: torch.empty(3, device="cuda", dtype=torch.int32),
    "an empty tensor, its channels last": lambda: torch.empty(
        2, 3, 4, 5, device="cuda", memory_format=torch.channels_last
    ),
    "an empty tensor of strides": lambda: torch.empty_strided((3, 4), (1, 3), device="cuda"),
    "one empty element": lambda: torch.empty((), device="cuda"),
    "no element": lambda: torch.empty(0, 3, device="cuda"),
    "zeros": lambda: torch.zeros(3, 4, device="cuda"),
    "zeros that want gradients": lambda: torch.zeros(3, device="cuda", requires_grad=True),
    "integers": lambda: torch.full((3,), 2, device="cuda"),
    "numbers of the default type": lambda: torch.full((3,), 0.5, device="cuda:0"),
    "random numbers": lambda: torch.randn(3, 4, device="cuda"),
    "random integers": lambda: torch.randint(0, 5, (3,), device="cuda"),
    "rows put": lambda: room.index_put_((rows,), w[:3]),
    "columns put": lambda: put((slice(None), rows), w[:, :3]),
    "chosen by a mask, put": lambda: room.index_put_((x > 0.5,), w[0, 0]),
    "gelu of tanh": lambda: F.gelu(x, approximate="tanh"),
    "gelu of tanh and its gradient": lambda: F.gelu(wanted, approximate="tanh").sum().backward(),
    "divided and rounded": lambda: torch.div(x, w, rounding_mode="floor"),
    "batch norm": lambda: normed(mean=kernel_mean, training=True),
    "batch norm of weights": lambda: normed(
        mean=kernel_mean, training=True, weight=weights, bias=biases
    ),
    "batch norm by what is known": lambda: normed(mean=kernel_mean, training=False),
    "batch norm of nothing known": lambda: normed(mean=None, training=True),
    "instance norm": lambda: F.instance_norm(picture),
    "batch norm and its gradient": lambda: normed(mean=kernel_mean, training=True).sum().backward(),
    "loss of labels": lambda: F.cross_entropy(wanted, labels),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_is_recorded_alike_and_without_python(call):
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    before = library.counts()
    alone = recorded(call)
    after = library.counts()
    with Passing():
        in_python = recorded(call)
    assert alone == in_python != []
    assert after[1] == before[1], "some of it went on into Python"
    assert after[0] > before[0]


both = given(6)
LEFT = {
    "a copy within one buffer": lambda: room[:2].copy_(room[2:]),
    "rows by an index of the host": lambda: x[torch.tensor([0, 1])],
    "a mask": lambda: x[x > 0.5],
    "from the host": lambda: room.copy_(torch.ones(4, 6)),
    "to the host": lambda: x.to("cpu", torch.float64),
    "statistics in one buffer": lambda: F.batch_norm(picture, both[:3], both[3:], training=True),
}


@pytest.mark.parametrize("call", LEFT.values(), ids=LEFT)
def test_what_has_to_be_looked_at_goes_into_python(call):
    for _ in range(2):
        call()
    before = library.counts()[1]
    call()
    assert library.counts()[1] > before


EMPTY, STRIDED = torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default
FACTORIES = {
    "of a size": (EMPTY, ([2, 3, 4, 5],), {}),
    "of no dimension": (EMPTY, ([],), {}),
    "of a type": (EMPTY, ([3],), {"dtype": torch.int64}),
    "of the default type, said": (EMPTY, ([3],), {"dtype": torch.float32}),
    "of a layout": (EMPTY, ([3],), {"layout": torch.strided}),
    "in order of channels": (EMPTY, ([2, 3, 4, 5],), {"memory_format": torch.channels_last}),
    "of strides": (STRIDED, ([2, 3], [1, 2]), {}),
    "of strides and a type": (STRIDED, ([2, 3], [1, 2]), {"dtype": torch.float16}),
}


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize(("func", "args", "kwargs"), FACTORIES.values(), ids=FACTORIES)
def test_an_empty_tensor_is_recorded_as_python_records_it(func, args, kwargs, default):
    given = {**kwargs, "device": device(), "pin_memory": False}
    kwargs = {each.name: given[each.name] for each in func._schema.arguments if each.name in given}
    torch.set_default_dtype(default)
    try:
        in_python = recorded(lambda: dispatch(func, args, kwargs))
        before = library.counts()
        alone = recorded(lambda: func(*args, **kwargs))
        after = library.counts()
        made = func(*args, **kwargs)
        twin = func(*args, **{**kwargs, "device": "cpu"})
    finally:
        torch.set_default_dtype(torch.float32)
    assert alone == in_python != []
    assert (after[0] - before[0], after[1] - before[1]) == (1, 0)
    assert (made.dtype, made.shape, made.stride()) == (twin.dtype, twin.shape, twin.stride())


def test_an_empty_tensor_of_inference_mode_is_one():
    with torch.inference_mode():
        made = [torch.empty(3, device="cuda") for _ in range(3)]
    assert all(each.is_inference() for each in made)
    assert not torch.empty(3, device="cuda").is_inference()


def test_an_empty_tensor_that_cannot_be_raises_each_time():
    for _ in range(3):
        with pytest.raises(RuntimeError, match="negative dimension"):
            torch.empty(-1, device="cuda")
    assert torch.zeros(2, device="cuda").tolist() == [0, 0]
