"""The commonest calls, written out, build what `dispatch` builds: the same entry of the log.

Both find their plan by the same key. What differs here would be another program for the same line,
or a wrong number. Does not cover what an op computes.
"""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.accelerator import loading
from jgpu.device import current
from jgpu.device.geometry import intern
from jgpu.device.recording.dispatch import dispatch
from jgpu.device.recording.entry import torch_dispatch
from jgpu.device.tensor import DeviceTensor, new_buffer, wrap

aten = torch.ops.aten
NUMBERS = st.sampled_from([0, 1, -2, 3, 0.0, -0.0, 0.5, 2.0, 1e-8, float("inf")])
DIMS = st.sampled_from([[0], [1], [0, 1], [-1], []])


def _tensor(shape, dtype, shown):
    made = torch.ones(2 * shape[0], shape[1], device="cuda", dtype=dtype)
    if shown == "part":
        return made[shape[0] :]
    if shown == "strided":
        return made[::2]
    if shown == "transposed":
        return torch.ones(shape[1], shape[0], device="cuda", dtype=dtype).t()
    return made[: shape[0]].clone()


TENSORS = st.builds(
    _tensor,
    st.sampled_from([(2, 3), (3, 3), (4, 1)]),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]),
    st.sampled_from(["whole", "part", "strided", "transposed"]),
)
LISTS = st.lists(TENSORS, min_size=1, max_size=3)


def _scaled(op):
    return st.tuples(st.just(op), st.tuples(TENSORS, NUMBERS), st.just({}))


CALLS = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                aten.relu.default,
                aten.exp.default,
                aten.neg.default,
                aten.sum.default,
                aten.sigmoid.default,
                aten.zero_.default,
            ]
        ),
        st.tuples(TENSORS),
        st.just({}),
    ),
    st.tuples(
        st.sampled_from([aten.add.Tensor, aten.sub.Tensor, aten.add_.Tensor, aten.sub_.Tensor]),
        st.tuples(TENSORS, TENSORS),
        st.one_of(st.just({}), st.fixed_dictionaries({"alpha": NUMBERS})),
    ),
    st.tuples(
        st.sampled_from([aten.add.Tensor, aten.mul_.Tensor, aten.mm.default]),
        st.builds(lambda each: (each, each), TENSORS),
        st.just({}),
    ),
    st.tuples(
        st.sampled_from([aten.add_.Tensor, aten.mul_.Tensor]),
        st.builds(lambda each: (each, each.detach()), TENSORS),
        st.just({}),
    ),
    st.tuples(
        st.sampled_from([aten.mul.Tensor, aten.div.Tensor, aten.eq.Tensor, aten.mm.default]),
        st.tuples(TENSORS, TENSORS),
        st.just({}),
    ),
    *map(_scaled, (aten.add.Scalar, aten.mul.Tensor, aten.pow.Tensor_Scalar, aten.mul_.Tensor)),
    st.tuples(
        st.sampled_from([aten.sum.dim_IntList, aten.mean.dim]),
        st.tuples(TENSORS, DIMS, st.booleans()),
        st.just({}),
    ),
    st.tuples(
        st.just(aten.addmm.default),
        st.tuples(TENSORS, TENSORS, TENSORS),
        st.one_of(st.just({}), st.fixed_dictionaries({"beta": NUMBERS, "alpha": NUMBERS})),
    ),
    st.tuples(
        st.sampled_from([aten.addcmul_.default, aten.addcdiv.default]),
        st.tuples(TENSORS, TENSORS, TENSORS),
        st.one_of(st.just({}), st.fixed_dictionaries({"value": NUMBERS})),
    ),
    st.tuples(
        st.sampled_from([aten._foreach_add.Scalar, aten._foreach_mul_.Scalar]),
        st.tuples(LISTS, NUMBERS),
        st.just({}),
    ),
    st.tuples(
        st.sampled_from([aten._foreach_add.List, aten._foreach_mul_.List]),
        st.builds(lambda each: (each, each), LISTS),
        st.just({}),
    ),
    st.tuples(
        st.just(aten._foreach_add.ScalarList),
        st.builds(lambda each: (each, [0.5] * len(each)), LISTS),
        st.just({}),
    ),
    st.tuples(st.just(aten.cat.default), st.tuples(LISTS, st.integers(-2, 1)), st.just({})),
)


def entry_of(call):
    """What a call appends to the log, or the type of its error; and what it returns."""
    session = current.session
    session.cut()
    try:
        result = call()
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        return type(error), str(error)
    if not session.log:
        return "not recorded", result if isinstance(result, bool) else None
    plan, buffers, offsets, outs, params, _ = session.log.entries[-1]
    returned = result if isinstance(result, list) else [result]
    numbers = [(type(each), repr(each)) for each in params]
    return (
        id(plan),
        [id(each) for each in buffers],
        list(offsets),
        [each.nbytes for each in outs],
        numbers,
        [(each._g, each._o) for each in returned if isinstance(each, DeviceTensor)],
    )


@given(CALLS)
def test_both_forms_append_the_same_entry(call):
    func, args, kwargs = call
    types = (DeviceTensor,)
    # The first time no plan is known, and the written-out form has `dispatch` make one.
    first = entry_of(lambda: torch_dispatch(DeviceTensor, func, types, args, dict(kwargs)))
    again = entry_of(lambda: torch_dispatch(DeviceTensor, func, types, args, dict(kwargs)))
    other = entry_of(lambda: dispatch(func, args, dict(kwargs)))
    assert first == again == other


class _AsTold(TorchDispatchMode):
    """Notes what torch tells of a call, which leaves out what is as by default; nothing is done."""

    def __init__(self):
        super().__init__()
        self.args, self.kwargs = (), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.args, self.kwargs = args, kwargs or {}
        raise StopIteration


@given(CALLS)
def test_a_call_that_torch_makes_appends_what_dispatch_does(call):
    func, args, kwargs = call
    with contextlib.suppress(StopIteration), _AsTold() as told:
        func(*args, **kwargs)
    first = entry_of(lambda: dispatch(func, told.args, dict(told.kwargs)))
    # By the accelerator, where there is one; the second time it has seen the op.
    called = [entry_of(lambda: func(*args, **kwargs)) for _ in range(2)]
    assert called == [first, first]


@pytest.mark.skipif(loading.load() is None, reason="the accelerator is not built here")
def test_what_is_common_never_reaches_python(monkeypatch):
    x = torch.ones(4, 4, device="cuda")
    w = torch.ones(4, 4, device="cuda", requires_grad=True)
    norm = torch.nn.LayerNorm(4).to("cuda")

    def step():
        y = (norm(x * 2.0 + w) @ w.t()).softmax(-1)
        (y.view(2, 8)[0].sum() + y.unbind(1)[2].mean() + torch.cat([x, w])[1:3].sum()).backward()
        w.grad.zero_().add_(1).mul_(torch.zeros_like(w))
        if w.sum() > 0 and float(x[0, 0]) > 0:
            x[0, 0].item()
        return [each.add(1) for each in torch._foreach_mul([w.detach(), x], [1.0, 2.0])]

    for _ in range(3):
        step()
    reached = []

    def python(cls, func, types, args=(), kwargs=None):
        reached.append(str(func))
        return torch_dispatch(cls, func, types, args, kwargs)

    monkeypatch.setattr(DeviceTensor, "__torch_dispatch__", classmethod(python))
    step()
    assert reached == []


READ = [
    *((torch.float32, number) for number in (0.1, -0.0, float("inf"), float("nan"), 1e-45)),
    *((torch.float64, number) for number in (0.1, 5e-324, -1e300)),
    *((torch.int64, number) for number in (0, -1, 2**63 - 1, -(2**63))),
    *((torch.int32, number) for number in (7, -(2**31))),
    *((torch.bool, number) for number in (True, False)),
    *((torch.float16, number) for number in (0.1, float("-inf"))),
    *((torch.uint8, number) for number in (0, 255)),
    (torch.complex64, 1 - 2j),
]


class _Through(TorchDispatchMode):
    """Changes nothing, and has each op go by way of Python."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("dtype", "number"), READ)
def test_a_number_is_read_as_natively_by_either_way(dtype, number):
    host = torch.tensor([1, number], dtype=dtype)
    there = host.cuda()
    for read in (
        torch.Tensor.item,
        bool,
        *((complex,) if dtype.is_complex else (float,)),
        lambda x: x.clone()[None].item(),
    ):
        native = read(host[1])
        found = [read(there[1]), read(there[1:].view(1, 1)), read(there[1].clone())]
        with _Through():
            found.append(read(there[1].clone()))
        assert [(type(each), repr(each)) for each in found] == [(type(native), repr(native))] * 4


def test_what_is_no_one_number_is_told_as_natively():
    for shape in ((2,), (0,), (1, 3)):
        told = []
        for device in ("cpu", "cuda"):
            with pytest.raises(RuntimeError) as caught:
                torch.ones(shape, device=device).item()
            told.append(str(caught.value))
        assert told[0] == told[1]


@pytest.mark.parametrize("form", ["written out", "dispatch"])
def test_numbers_of_different_types_are_never_taken_for_one_another(form):
    x, func = torch.ones(3, device="cuda", dtype=torch.int64), aten.add.Scalar
    dtypes = []
    for number in (1, 1.0, 1, 1.0):
        if form == "dispatch":
            made = dispatch(func, (x, number), {})
        else:
            made = torch_dispatch(DeviceTensor, func, (DeviceTensor,), (x, number))
        dtypes.append(made.dtype)
    assert dtypes == [torch.int64, torch.float32] * 2


@pytest.mark.parametrize("second", [True, 2 + 1j, None, "a string"])
def test_what_is_no_plain_number_is_left_to_dispatch(second):
    func = aten.clamp.default if second is None else aten.mul.Tensor
    args = torch.ones(3, device="cuda"), second
    found = [
        entry_of(lambda: torch_dispatch(DeviceTensor, func, (DeviceTensor,), args)),
        entry_of(lambda: dispatch(func, args, {})),
    ]
    assert found[0] == found[1]


def test_a_view_of_a_detached_part_begins_where_the_part_does():
    whole = torch.arange(12, device="cuda", dtype=torch.float32)
    for _ in range(3):  # known from the second time on
        parts = [each.detach() for each in (whole, whole[4:], whole[4:].view(2, 4))]
        assert [(each._o, each._g.shape) for each in parts] == [(0, (12,)), (4, (8,)), (4, (2, 4))]
        assert parts[2].detach()[1].tolist() == [8, 9, 10, 11]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=4),
    st.booleans(),
    st.sampled_from([torch.float32, torch.int64, torch.complex64]),
)
def test_a_tensor_shows_what_its_geometry_says_wherever_it_begins(pairs, rows, dtype):
    shape = tuple(size for size, _ in pairs)
    stride = torch.empty(shape, device="meta").stride() if rows else tuple(k for _, k in pairs)
    geometry = intern(dtype, shape, stride)
    buffer = new_buffer(geometry.nbytes + 5 * dtype.itemsize, current.session.buffers.graveyard)
    twin = torch.empty_strided(shape, stride, device="meta")
    for offset in (0, 5, 0):  # the second at the beginning finds what the first has kept
        made = wrap(buffer, geometry, offset)
        assert (made.shape, made.stride(), made.storage_offset()) == (shape, stride, offset)
        assert made.is_contiguous() == twin.is_contiguous()
        assert made.dtype is dtype
