"""What the accelerator does of a program is what the function in Python does, to the bit."""

import json
import sys
from pathlib import Path

import processes
import pytest
import torch
from assembled import both
from sketch import Sketch, buffers, context, contiguous

from jgpu.accelerator import loading
from jgpu.broker.executor.programs.checking.guards import check_range
from jgpu.broker.executor.programs.geometry import ViewSpec
from jgpu.broker.executor.programs.kinds import KINDS
from jgpu.broker.executor.programs.running import assembly
from jgpu.broker.executor.programs.running import compile as compiling
from jgpu.wire.program import (
    CONJ,
    NEG,
    Complex,
    DeviceArgument,
    Dtype,
    GeneratorArg,
    Geometry,
    HostScalar,
    Param,
)

pytestmark = pytest.mark.skipif(loading.load() is None, reason="the accelerator is not built here")

LINE = contiguous(4)
FACTORY = {"dtype": Dtype("float32"), "device": DeviceArgument()}
X = torch.tensor([0.5, -1.25, 3.0, 0.125])


def sketches():
    """Programs by hand, with each sort of argument: name, sketch, parameters."""

    def one(name, *args, out=LINE, params=(), kinds=(), **kwargs):
        sketch = Sketch(inputs=1, params=kinds)
        given = [sketch.seen(0, LINE) if arg is X else arg for arg in args]
        sketch.op(name, *given, outs=[out], **kwargs)
        return sketch, params

    def given(kind, value, **kwargs):
        return one("mul.Tensor", X, Param(0, kind), params=(value,), kinds=(kind,), **kwargs)

    wave, pair, rows = contiguous(4, dtype="complex64"), contiguous(2), contiguous(2, 2)
    double = {"params": (0.1,), "kinds": ("float",)}
    yield "number for a tensor", *one("mul.Tensor", X, 2)
    yield "number that is given", *given("float", 0.3)
    yield "int that is given", *given("int", 3)
    yield "truth that is given", *given("bool", True)
    yield "complex that is given", *given("complex", (0.5, 2.0), out=wave)
    yield "complex", *one("mul.Tensor", X, Complex(0.5, -1.0), out=wave)
    yield "host scalar", *one("mul.Tensor", X, HostScalar(0, "float", "float64"), **double)
    yield "named number", *one("add.Tensor", X, X, alpha=Param(0, "float"), **double)
    wide = {"out": contiguous(dtype="float64"), "dtype": Dtype("float64")}
    yield "dtype", *one("sum.dim_IntList", X, (0,), **wide)
    yield "text", *one("div.Tensor_mode", X, 0.3, rounding_mode="floor")
    yield "nothing", *one("clamp.default", X, None, 1.0)
    yield "factory", *one("full.default", (4,), 2.5, **FACTORY)
    yield "unset", *one("empty.memory_format", (4,), **FACTORY)
    yield "draws", *one("bernoulli.p", X, 0.5)
    yield "draws by name", *one("rand.generator", (4,), generator=GeneratorArg(0), **FACTORY)
    yield "draws in place", *one("normal_.default", X, 0.0, 1.0, out=None)
    sketch = Sketch(inputs=1)
    weights = sketch.op("abs.default", sketch.seen(0, LINE), outs=[LINE])
    few = sketch.seen(weights, LINE), 2, True
    sketch.op("multinomial.default", *few, outs=[contiguous(2, dtype="int64")])
    yield "draws a few", sketch, ()
    sketch = Sketch(inputs=1)
    kept = contiguous(4, dtype="bool")
    sketch.op("native_dropout.default", sketch.seen(0, LINE), 0.5, True, outs=[LINE, kept])
    yield "draws unasked", sketch, ()
    sketch = Sketch(inputs=1)
    first = sketch.op("neg.default", sketch.seen(0, rows), outs=[rows])
    turned = sketch.seen(first, Geometry("float32", (2, 2), (1, 2)))
    sketch.op("mm.default", turned, sketch.seen(first, rows), outs=[rows])
    yield "another view", sketch, ()
    sketch = Sketch(inputs=1)
    made = sketch.op("mul.Tensor", sketch.seen(0, LINE), Complex(0.0, 1.0), outs=[wave])
    turned = sketch.seen(made, Geometry("complex64", (4,), (1,), 0, CONJ))
    sketch.op("add.Tensor", turned, 1, outs=[wave])
    yield "a view by a bit", sketch, ()
    sketch = Sketch(inputs=1)
    seen = sketch.seen(0, LINE), sketch.seen(0, pair)
    parts = sketch.op("_foreach_mul.Scalar", seen, 2.0, outs=[LINE, pair])
    seen = sketch.seen(parts[0], LINE), sketch.seen(parts[1], pair)
    sketch.op("cat.default", seen, outs=[contiguous(6)])
    yield "lists of tensors", sketch, ()
    sketch = Sketch(inputs=1, params=("float", "float"))
    seen = sketch.seen(0, LINE), sketch.seen(0, pair)
    numbers = Param(1, "float"), Param(0, "float")
    sketch.op("_foreach_add_.ScalarList", seen, numbers, outs=[])
    yield "numbers in a list", sketch, (0.25, 4.0)
    sketch = Sketch(inputs=1)
    sketch.op("topk.default", sketch.seen(0, LINE), 2, outs=[pair, None])
    yield "left out", sketch, ()


SKETCHES = {name: (sketch, params) for name, sketch, params in sketches()}


@pytest.mark.parametrize("name", SKETCHES)
def test_each_sort_of_argument_is_the_same(name):
    sketch, params = SKETCHES[name]
    ours, plain, is_straight = both(sketch.define(), [X], params)
    assert is_straight
    assert ours.failures == []
    assert ours == plain


@pytest.mark.parametrize(("op", "is_assembled"), [("neg.default", True), ("histc.default", False)])
def test_a_device_that_runs_ahead_has_instructions_unless_an_op_waits(op, is_assembled):
    sketch = Sketch(inputs=1)
    bins = () if is_assembled else (4, 0, 1)  # least and largest number are read
    sketch.op(op, sketch.seen(0, LINE), *bins, outs=[LINE if is_assembled else contiguous(4)])
    plan = sketch.define("cuda-on-host").plan
    keep, clamps = [True, True], KINDS["cuda-on-host"].trusts_values
    compiled = compiling.compile_plan(plan, keep, set(), clamps=clamps, ahead=True)
    assert (compiled.straight is not None) == is_assembled


def test_what_fails_fails_at_its_step_and_leaves_what_there_was():
    sketch = Sketch(inputs=2)
    rows, at = contiguous(4, 2), contiguous(3, dtype="int64")
    x = sketch.seen(0, rows)
    kept = sketch.op("neg.default", x, outs=[rows])
    taken = sketch.op("index_select.default", x, 0, sketch.seen(1, at), outs=[contiguous(3, 2)])
    sketch.op("neg.default", sketch.seen(taken, contiguous(3, 2)), outs=[contiguous(3, 2)])
    sketch.op("add_.Tensor", x, sketch.seen(kept, rows), outs=[None])
    definition = sketch.define()
    x = torch.rand(4, 2)
    both(definition, [x, torch.tensor([0, 1, 2])])
    definition._variants.clear()
    ours, plain, is_straight = both(definition, [x, torch.tensor([0, 9, 2])])
    assert is_straight
    assert [(each.op, each.error) for each in ours.failures] == [(1, "IndexError")]
    assert ours == plain
    assert ours.last == 3  # what does not lean on it was done


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("lies", ["in rows", "apart", "empty", "many"])
def test_indices_are_looked_at_without_python_where_they_are_few_and_right(
    dtype, lies, monkeypatch
):
    looked = []

    def counted(*told):
        looked.append(told)
        check_range(*told)

    monkeypatch.setattr(assembly, "check_range", counted)
    count = {"empty": 0, "many": 5000}.get(lies, 6)
    stride = 2 if lies == "apart" else 1
    sketch = Sketch(inputs=2)
    name, grad = str(dtype).removeprefix("torch."), contiguous(count, 2)
    at = Geometry(name, (count,), (stride,))
    given = sketch.seen(0, grad), sketch.seen(1, at), 4, -1, False
    made = sketch.op("embedding_dense_backward.default", *given, outs=[contiguous(4, 2)])
    sketch.op("neg.default", sketch.seen(made, contiguous(4, 2)), outs=[contiguous(4, 2)])
    definition, x = sketch.define(), torch.rand(count, 2)
    right = torch.arange(stride * count, dtype=dtype) // stride % 4
    ours, plain, is_straight = both(definition, [x, right])
    assert is_straight
    assert ours == plain
    assert ours.failures == []
    assert bool(looked) is (lies in ("apart", "many"))
    for wrong in (-1, 4):
        if count:
            right[stride * (count - 1)] = wrong
            definition._variants.clear()
            ours, plain, is_straight = both(definition, [x, right])
            assert is_straight
            assert [(each.op, each.error) for each in ours.failures] == [(0, "IndexError")]
            assert str(wrong) in ours.failures[0].text
            assert ours == plain


APART, TURNED = Geometry("float32", (2,), (3,)), Geometry("float32", (2, 2), (1, 2))


@pytest.mark.parametrize(
    ("name", "given", "claim"),
    [
        ("mse_loss.default", (LINE, LINE), contiguous()),  # in a storage of all that was summed
        ("neg.default", (TURNED,), contiguous(2, 2)),
        ("neg.default", (contiguous(2),), APART),
        ("neg.default", (contiguous(2, 0),), Geometry("float32", (2, 0), (5, 1))),
    ],
    ids=["larger", "turned", "apart", "empty"],
)
def test_what_lies_otherwise_than_claimed_is_laid_out_without_python(
    name, given, claim, monkeypatch
):
    laid_out = []

    def counted(self, tensor, restrided=ViewSpec.restrided):
        laid_out.append(self)
        return restrided(self, tensor)

    monkeypatch.setattr(ViewSpec, "restrided", counted)
    sketch = Sketch(inputs=1)
    made = sketch.op(name, *(sketch.seen(0, each) for each in given), outs=[claim])
    sketch.op("neg.default", sketch.seen(made, claim), outs=[claim])
    ours, plain, is_straight = both(sketch.define(), [X])
    assert is_straight
    assert ours.failures == []
    assert ours == plain
    # The run that met it first, and the plain one; each op whose result keeps the strides, too.
    assert len(laid_out) == 2 * (1 + (claim == APART or claim.shape == (2, 0)))
    assert len(ours.outputs[0][0]) == laid_out[0].nbytes


def test_an_index_that_a_bit_negates_is_looked_at_as_the_kernel_sees_it():
    sketch = Sketch(inputs=2)
    square, at = contiguous(1, 2, 2), Geometry("int64", (1, 2, 2), (4, 2, 1), 0, NEG)
    given = sketch.seen(0, square), sketch.seen(0, square)
    sizes = (1, 1), (1, 1), (0, 0), (1, 1), False
    sketch.op(
        "max_pool2d_with_indices_backward.default", *given, *sizes, sketch.seen(1, at),
        outs=[square],
    )  # fmt: skip
    definition, x = sketch.define(), torch.rand(1, 2, 2)
    both(definition, [x, torch.zeros(4, dtype=torch.int64)])
    for number in (3, -4):
        definition._variants.clear()
        ours, plain, is_straight = both(definition, [x, torch.full((4,), number)])
        assert is_straight
        assert [each.error for each in ours.failures] == ["IndexError"]
        assert str(-number) in ours.failures[0].text
        assert ours == plain
    definition._variants.clear()
    ours, plain, is_straight = both(definition, [x, torch.tensor([0, -1, -2, -3])])
    assert is_straight
    assert ours == plain
    assert ours.failures == []


def test_nothing_is_held_once_it_is_over():
    sketch = Sketch(inputs=1)
    made = sketch.op("neg.default", sketch.seen(0, LINE), outs=[LINE])
    sketch.op("neg.default", sketch.seen(made, LINE), outs=[LINE])
    definition = sketch.define()
    for _ in range(3):
        bufs = buffers(X)
        kept = bufs[0].base.untyped_storage()
        before = torch._C._storage_Use_Count(kept._cdata)
        outcome = definition.run(bufs, (), b"\x02", b"\x01", context())
        assert bufs[0].base is None
        assert torch._C._storage_Use_Count(kept._cdata) == before - 1
        assert torch.equal(outcome.outputs[1], X)


def test_a_lane_that_asks_for_the_function_while_another_writes_it_has_it_whole(monkeypatch):
    sketch = Sketch(inputs=1)
    made = sketch.op("full.default", (4,), 0.0, **FACTORY, outs=[LINE])
    sketch.op("add_.Tensor", sketch.seen(made, LINE), sketch.seen(0, LINE), outs=[None])
    definition = sketch.define()
    both(definition, [X])
    definition._variants.clear()
    definition.run(buffers(X), (), b"\x01", b"", context())
    (variant,) = definition._variants.values()
    prologue, others = compiling._Writer._prologue, []

    def met(self):
        prologue(self)
        if not others:
            others.append(None)
            others[0] = variant.written

    monkeypatch.setattr(compiling._Writer, "_prologue", met)
    mark = memoryview(bytearray(8)).cast("q")
    for written in (variant.written, *others):
        (found,) = written.function([X], (), {}, None, None, mark)
        assert torch.equal(found, X)


def compare(every, turn):
    command = [sys.executable, Path(__file__).with_name("assembled.py")]
    options = ["--every", str(every), "--turn", str(turn)]
    done = processes.run([*command, *options], check=True, capture_output=True, text=True)
    told, total, differing = json.loads(done.stdout)
    assert differing == []
    assert told > total / 2 > 50


def test_operators_of_the_database_are_the_same():
    compare(24, 7)


@pytest.mark.long
@pytest.mark.parametrize("turn", range(12))
def test_every_operator_of_the_database_is_the_same(turn):
    compare(12, turn)
