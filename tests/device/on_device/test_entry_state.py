"""Modes, subclasses and transforms find an op's call, and the state it was called in, as natively.

For ops whose state at entry the accelerator notes, and for those that torch's own kernel notes.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode, enable_reentrant_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

SIDES = pytest.mark.parametrize("where", ["cpu", "cuda"])


def given(where, *shape):
    count = torch.Size(shape).numel()
    return torch.linspace(-1, 1, count).view(shape).to(where).requires_grad_()


class Seen(TorchDispatchMode):
    """The ops that come by."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


class Differentiating(TorchDispatchMode):
    """What each op makes of a tensor that wants a gradient, in the state it was called in."""

    def __init__(self):
        super().__init__()
        self.wanted = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves = [each.detach().requires_grad_() for each in args if isinstance(each, torch.Tensor)]
        with enable_reentrant_dispatch():
            made = func(*leaves, *args[len(leaves) :], **(kwargs or {}))
            self.wanted.append(made.requires_grad)
        return func(*args, **(kwargs or {}))


# the last of them without a note of ours
CALLS = {
    "sin": lambda x: x.sin(),
    "sum": lambda x: x.sum(1),
    "product": lambda x: x * x,
    "larger": lambda x: torch.maximum(x, x),
    "erfinv": lambda x: x.erfinv(),
}


@SIDES
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_mode_goes_back_to_the_state_that_an_op_was_called_in(call, where):
    x = given(where, 2, 3)
    call(x)  # its plan is not made below a mode
    with Differentiating() as mode:
        call(x)
        with torch.no_grad():
            call(x)
        with torch.inference_mode():
            call(x)
    assert mode.wanted == [True, False, False]


COMPOSITES = {
    "linear": (lambda x: F.linear(x, x, x[0]), ["select", "t", "addmm"]),
    "matmul": (lambda x: x @ x, ["mm"]),
    "chunk": (lambda x: x.chunk(2), ["split"]),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), ["native_layer_norm"]),
    "softmax": (lambda x: x.softmax(1), ["_softmax"]),
    "square": (lambda x: x.square(), ["pow"]),
    "outer": (lambda x: x[0].outer(x[1]), ["select", "select", "mul"]),
    "erfinv": (lambda x: x.erfinv(), ["erfinv"]),
}


@SIDES
@pytest.mark.parametrize(("call", "ops"), COMPOSITES.values(), ids=COMPOSITES)
def test_each_of_nested_modes_sees_the_same_ops(call, ops, where):
    x = given(where, 4, 4)
    with Seen() as outer, Seen() as inner:
        call(x)
    assert [name for name in inner.names if name not in ("view", "detach")] == ops
    assert outer.names == inner.names


class Called(TorchFunctionMode):
    """The functions that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@SIDES
def test_a_mode_of_functions_sees_composites_whole(where):
    x = given(where, 4, 4)
    with Called() as mode:
        torch.chunk(F.linear(x, x), 2)
    assert mode.names == ["linear", "chunk"]


def loss(x, w):
    hidden = F.layer_norm(F.linear(x, w), (4,)).chunk(2, -1)[0]
    return (hidden.softmax(-1) @ w[:2]).square().sum()


TRANSFORMED = {
    "grad": lambda x, w: torch.func.grad(loss, argnums=(0, 1))(x, w),
    "vmap": lambda x, w: torch.func.vmap(loss, (0, None))(x, w),
    "vmap of grad": lambda x, w: torch.func.vmap(torch.func.grad(loss), (0, None))(x, w),
    "jvp": lambda x, w: torch.func.jvp(loss, (x, w), (x.sin(), w.cos())),
    "twice": lambda x, w: torch.func.grad(lambda y: torch.func.grad(loss)(y, w).sum())(x),
    "functionalize": lambda x, w: torch.func.functionalize(loss)(x, w),
}


@pytest.mark.parametrize("call", TRANSFORMED.values(), ids=TRANSFORMED)
def test_transforms_pass_through_composites_as_on_the_host(call):
    results, ops = [], []
    for where in ("cuda", "cpu"):
        x, w = given(where, 3, 4).detach(), given(where, 4, 4).detach()
        results.append(call(x, w))
        with Seen() as mode:
            call(x, w)
        ops.append(mode.names)
    torch.testing.assert_close(*results, check_device=False)
    assert ops[0] == ops[1]
