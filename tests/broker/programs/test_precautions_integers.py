"""The one quotient that does not exist wraps around, in every form of division."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sketch import Sketch, all_live, buffers, context

from jgpu.broker.executor.programs.geometry import geometry_of
from jgpu.wire.program import HostScalar, Param

LEAST = {torch.int32: -(1 << 31), torch.int64: -(1 << 63)}
BITS = {torch.int32: 32, torch.int64: 64}


def wrapped(number, dtype):
    """A whole number as its last bits say it."""
    least = 1 << (BITS[dtype] - 1)
    return (number + least) % (2 * least) - least


def expected(op, mode, x, y, dtype):
    """By Python's unbounded integers."""
    if op == "remainder":
        return x % y
    towards_zero = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    if op == "fmod":
        return x - towards_zero * y
    return wrapped(towards_zero if mode == "trunc" else x // y, dtype)


FORMS = [
    *(("div", "Tensor_mode", mode) for mode in ("trunc", "floor")),
    *(("div", "Scalar_mode", mode) for mode in ("trunc", "floor")),
    *((op, overload, None) for op in ("remainder", "fmod") for overload in ("Tensor", "Scalar")),
    ("floor_divide", "default", "floor"),
    ("floor_divide", "Scalar", "floor"),
]


def three_runs(sketch, *tensors, params=()):
    """The first fresh tensor, or the first input, after a run step by step and two compiled."""
    definition, results = sketch.define(), []
    for _ in range(3):
        given_ = buffers(*tensors)
        outcome = definition.run(given_, params, all_live(definition), b"", context())
        assert not outcome.failures
        results.append(outcome.outputs[0] if outcome.outputs else given_[0].base)
    assert all(torch.equal(result, results[0]) for result in results)
    return results[0]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", LEAST)
@pytest.mark.parametrize(("op", "overload", "mode"), FORMS)
def test_every_form_of_division(op, overload, mode, dtype, in_place):
    least = LEAST[dtype]
    x = torch.tensor([least, least + 1, -7, 0, 5, least, -least - 1], dtype=dtype)
    y = torch.tensor([-1, -1, -1, -1, 3, 2, -1], dtype=dtype)
    if "Scalar" in overload:
        y = torch.full_like(y, -1)
    sketch = Sketch(1 if "Scalar" in overload else 2)
    geometry = geometry_of(x)
    divisor = -1 if "Scalar" in overload else sketch.seen(1, geometry)
    named = {"rounding_mode": mode} if op == "div" else {}
    if in_place and op == "floor_divide" and overload == "default":
        overload = "Tensor"
    name = f"{op}{'_' * in_place}.{overload}"
    outs = (None,) if in_place else (geometry,)
    sketch.op(name, sketch.seen(0, geometry), divisor, outs=outs, **named)
    found = three_runs(sketch, x, *([] if "Scalar" in overload else [y]))
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    assert found.tolist() == [expected(op, mode, a, b, dtype) for a, b in pairs]


numbers = st.sampled_from([-(1 << 63), -(1 << 31), -2, -1, 1, 2, (1 << 32) - 1, (1 << 63) - 1])
dtypes = st.sampled_from([torch.int64, torch.int32])


@given(
    x=st.lists(numbers, min_size=1, max_size=3),
    y=st.lists(numbers, min_size=1, max_size=3),
    dtypes=st.tuples(dtypes, dtypes),
    flat=st.tuples(st.booleans(), st.booleans()),
)
def test_types_and_shapes_are_those_of_the_kernel(x, y, dtypes, flat):
    """A divisor is cast to the common type first, where it may become -1 or cease to be it."""
    x, y = (
        torch.tensor(
            wrapped(values[0], dtype) if single else [wrapped(v, dtype) for v in values],
            dtype=dtype,
        )
        for values, dtype, single in zip((x, y), dtypes, flat, strict=True)
    )
    if x.dim() and y.dim():
        x = x[:, None]
    common = torch.result_type(x, y)
    pairs = torch.broadcast_tensors(x.to(common), y.to(common))
    assume(pairs[1].all())
    reference = [
        expected("div", "trunc", a, b, common)
        for a, b in zip(*(side.flatten().tolist() for side in pairs), strict=True)
    ]
    sketch = Sketch(2)
    result = torch.empty(pairs[0].shape, dtype=common)
    sketch.op(
        "div.Tensor_mode",
        *(sketch.seen(k, geometry_of(side)) for k, side in enumerate((x, y))),
        outs=(geometry_of(result),),
        rounding_mode="trunc",
    )
    found = three_runs(sketch, x, y)
    assert found.dtype is common
    assert found.flatten().tolist() == reference


@pytest.mark.parametrize(
    ("overload", "divisor"),
    [("Scalar", Param(0, "int")), ("default", HostScalar(0, "int", "int64"))],
)
def test_a_divisor_that_only_the_run_knows(overload, divisor):
    x = torch.tensor([-(1 << 63), 9])
    sketch = Sketch(1, params=("int",))
    geometry = geometry_of(x)
    sketch.op(f"floor_divide.{overload}", sketch.seen(0, geometry), divisor, outs=(geometry,))
    assert three_runs(sketch, x, params=(-1,)).tolist() == [-(1 << 63), -9]


def test_an_integer_over_a_tensor():
    y = torch.tensor([-1, 2])
    sketch = Sketch(1)
    sketch.op("remainder.Scalar_Tensor", -(1 << 63), sketch.seen(0, geometry_of(y)),
              outs=(geometry_of(y),))  # fmt: skip
    assert three_runs(sketch, y).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("divisor", "dtype", "needed"),
    [
        (2, "int64", False),
        (-1, "int64", True),
        (-1, "float32", False),
        ((1 << 32) - 1, "int32", True),
    ],
)
def test_what_cannot_overflow_runs_unguarded(divisor, dtype, needed):
    sketch = Sketch(1)
    geometry = geometry_of(torch.empty(3, dtype=getattr(torch, dtype)))
    sketch.op("floor_divide.Scalar", sketch.seen(0, geometry), divisor, outs=(geometry,))
    (step,) = sketch.define().plan.steps
    assert (step.precaution is not None) == needed


def test_division_by_zero_raises_as_in_torch():
    sketch = Sketch(1)
    geometry = geometry_of(torch.empty(1, dtype=torch.int64))
    sketch.op("floor_divide.Scalar", sketch.seen(0, geometry), 0, outs=(geometry,))
    definition = sketch.define()
    outcome = definition.run(buffers(torch.ones(1, dtype=torch.int64)), (), b"\1", b"", context())
    assert [f.text for f in outcome.failures] == ["ZeroDivisionError"]
