"""What a run is given: the accelerator says the same of it as Python, and shows the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sketch import Sketch, contiguous

from jgpu.accelerator import loading
from jgpu.broker.executor.programs import Buffer, Failure
from jgpu.broker.executor.programs.inputs import InputCheck
from jgpu.errors import ProgramError
from jgpu.wire.program import CONJ, Geometry, Param

pytestmark = pytest.mark.skipif(loading.load() is None, reason="the accelerator is not built here")

ROW = contiguous(4)
TURNED = Geometry("float32", (2, 3), (1, 2), 1, 0)
PAIR = contiguous(2, dtype="complex64")
MIRRORED = Geometry("complex64", (2,), (1,), 0, CONJ)
FAILURE = Failure(1, 0, "aten::add", "RuntimeError", "It failed.")


def straight():
    """Every view lies where the program says; numbers of each kind come with the run."""
    sketch = Sketch(inputs=3, params=["int", "float", "bool", "complex"])
    row, turned, pair = sketch.seen(0, ROW), sketch.seen(1, TURNED), sketch.seen(2, MIRRORED)
    sketch.op("mul.Scalar", row, Param(0, "int"), outs=[ROW])
    sketch.op("add.Scalar", turned, Param(1, "float"), outs=[contiguous(2, 3)])
    sketch.op("mul.Scalar", row, Param(2, "bool"), outs=[ROW])
    sketch.op("mul.Scalar", pair, Param(3, "complex"), outs=[PAIR])
    return sketch.define()


def lifted():
    """Two views lie where the run says."""
    sketch = Sketch(inputs=3, params=["int", "int"])
    row, turned = sketch.seen(0, ROW, 0), sketch.seen(1, TURNED)
    mirrored = sketch.seen(2, MIRRORED, 1)
    sketch.op("relu.default", row, outs=[ROW])
    sketch.op("neg.default", turned, outs=[contiguous(2, 3)])
    sketch.op("neg.default", mirrored, outs=[PAIR])
    return sketch.define()


CHECKS = {make.__name__: InputCheck(make().plan) for make in (straight, lifted)}
NUMBERS = {
    "int": st.sampled_from([0, 0, 0, 1, 2, 5, -1, 1 << 40, -(1 << 63), (1 << 64) - 1]),
    "float": st.sampled_from([0.5, float("nan")]),
    "bool": st.booleans(),
    "complex": st.just((1.0, -2.0)),
}
MISFITS = st.sampled_from([-(1 << 63) - 1, 1 << 64, 1 << 200, True, 0.0, (0.0, 1.0), 3])


@st.composite
def buffers(draw, number):
    nbytes = 4 * draw(st.sampled_from([24, 40, 14, 12, 0, 1, 4, 6]))
    base = torch.arange(nbytes, dtype=torch.uint8)
    if nbytes % 8 == 0 and nbytes and draw(st.booleans()):
        base = base.view(draw(st.sampled_from([torch.float32, torch.complex64])))
    poison = FAILURE if draw(st.integers(0, 15)) == 15 else None
    return Buffer(number, None if poison else base, nbytes, poison=poison)


@st.composite
def runs(draw):
    check = CHECKS[draw(st.sampled_from(sorted(CHECKS)))]
    there = draw(st.sampled_from([(0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 2), (1,), ()]))
    table = {number: draw(buffers(number)) for number in there}
    numbers = [draw(st.sampled_from(there or (0,))) for _ in range(3)]
    kinds = check._plan.params
    spoiled = draw(st.integers(0, 3)) == 3
    params = [draw(NUMBERS[kind] | MISFITS if spoiled else NUMBERS[kind]) for kind in kinds]
    if draw(st.integers(0, 15)) == 15:
        (numbers if draw(st.booleans()) else params).append(1)
    return check, table, tuple(numbers), tuple(params)


def shown(tensor):
    return (
        tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj(),
        tensor.requires_grad, tensor.is_inference(), torch._C._dispatch_keys(tensor),
        tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes(),
    )  # fmt: skip


@given(runs(), st.booleans())
def test_both_forms_let_the_same_in_and_show_the_same_of_it(run, ours_first):
    check, table, numbers, params = run
    ours = check.fitting(table, numbers, params)
    plain = check.fitting_in_python(table, numbers, params)
    if plain is None:
        assert ours is None
        return
    assert list(map(id, ours)) == list(map(id, plain))
    forms = [check.seen, check.seen_in_python][:: 1 if ours_first else -1]
    for _ in range(3):
        first, second = ([*map(shown, form(plain, params))] for form in forms)
        assert first == second


def test_what_was_seen_before_is_the_same_tensor_and_an_offset_makes_another():
    check, storage = CHECKS["lifted"], torch.zeros(40)
    table = {k: Buffer(k, storage.clone()) for k in range(3)}
    fit = check.fitting(table, (0, 1, 2), (3, 0))
    first, again = check.seen(fit, (3, 0)), check.seen(fit, (4, 0))
    assert first[1] is again[1]
    assert [first[0].storage_offset(), again[0].storage_offset()] == [3, 4]
    assert {t.untyped_storage().data_ptr() for t in (first[0], again[0])} == {table[0].address}


def test_what_is_not_on_the_device_is_an_error():
    check, table = CHECKS["straight"], {k: Buffer(k, torch.zeros(12)) for k in range(3)}
    params = (1, 0.5, True, (1.0, 0.0))
    fit = check.fitting(table, (0, 1, 2), params)
    table[1].release()
    for form in (check.seen, check.seen_in_python):
        with pytest.raises(RuntimeError, match="not on the device"):
            form(fit, params)


def test_why_something_does_not_fit_is_said_by_the_check():
    check, table = CHECKS["lifted"], {k: Buffer(k, torch.zeros(12)) for k in range(3)}
    assert check.fitting(table, (0, 1, 2), (9, 0)) is None
    with pytest.raises(ProgramError, match="Offset 9 is outside of buffer 0"):
        check.check([*table.values()], (9, 0))


@pytest.mark.parametrize("wrong", [(), (None,), (None, {}, (), ()), (1, {}, (), ()), ({}, 1, 2, 3)])
def test_the_library_takes_nothing_else(wrong):
    with pytest.raises((TypeError, ValueError)):
        loading.load().fitting(*wrong)
    with pytest.raises((TypeError, ValueError)):
        loading.load().seen_of(*wrong[:3])
