"""Runs: poison, memory that comes later, masks, wrongly claimed layouts, random numbers."""

import gc
import weakref
from threading import Event, Thread

import pytest
import torch
from faulty import replace_op
from sketch import CPU, Sketch, all_live, buffers, context, contiguous
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.accelerator import loading
from jgpu.broker.executor.programs import Buffer, Failure, RunContext, flags
from jgpu.broker.executor.programs.flags import FlagGate
from jgpu.broker.executor.programs.geometry import geometry_of
from jgpu.broker.executor.programs.running import rng
from jgpu.errors import ProgramError
from jgpu.wire.program import DeviceArgument, Dtype, Flags, Geometry, Op, Out, Param

SQUARE = contiguous(4, 4)
LONG = contiguous(4, dtype="int64")


class Calls(TorchDispatchMode):
    """The names of the ops that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def chain():
    """Input 0 doubled, its rows chosen by input 1, then doubled; input 0 gains 1 on the way."""
    sketch = Sketch(inputs=2)
    square, index = sketch.seen(0, SQUARE), sketch.seen(1, LONG)
    first = sketch.op("mul.Tensor", square, 2, outs=[SQUARE])
    chosen = sketch.op("index_select.default", square, 0, index, outs=[SQUARE])
    sketch.op("add_.Tensor", square, 1, outs=[None])
    last = sketch.op("mul.Tensor", sketch.seen(chosen, SQUARE), 2, outs=[SQUARE])
    sketch.op("add_.Tensor", square, sketch.seen(last, SQUARE), outs=[None])
    assert (first, chosen, last) == (2, 3, 4)
    return sketch


def run(definition, bufs, params=(), live=None, dead=b"", **kwargs):
    live = all_live(definition) if live is None else live
    return definition.run(bufs, params, live, dead, context(**kwargs))


def test_a_program_runs_step_by_step_first_and_compiled_afterwards():
    definition = chain().define()
    x, index = torch.rand(4, 4), torch.tensor([3, 0, 0, 1])
    for _ in range(3):
        bufs = buffers(x, index)
        outcome = run(definition, bufs)
        assert outcome.failures == []
        assert torch.equal(outcome.outputs[0], x * 2)
        assert torch.equal(outcome.outputs[2], x[index] * 2)
        assert torch.equal(bufs[0].base, x + 1 + x[index] * 2)


@pytest.mark.parametrize("earlier_runs", [0, 1, 2])
def test_a_failed_op_poisons_what_depends_on_it_and_nothing_else(earlier_runs):
    definition = chain().define()
    x = torch.rand(4, 4)
    for _ in range(earlier_runs):
        run(definition, buffers(x, torch.zeros(4, dtype=torch.int64)))
    bufs = buffers(x, torch.tensor([3, 0, 9, 1]))
    outcome = run(definition, bufs)
    (failure,) = outcome.failures
    assert (failure.work, failure.op, failure.error) == (1, 1, "IndexError")
    assert failure.name == "aten::index_select.default"
    assert torch.equal(outcome.outputs[0], x * 2)
    assert outcome.outputs[1] is failure
    assert outcome.outputs[2] is failure
    # the op after the failure that does not lean on it ran, the one that does was skipped whole
    assert torch.equal(bufs[0].base, x + 1)


def test_a_poisoned_input_poisons_what_is_made_of_it():
    definition = chain().define()
    x = torch.rand(4, 4)
    run(definition, buffers(x, torch.zeros(4, dtype=torch.int64)))
    poison = Failure(7, 2, "aten::mm.default", "RuntimeError", "earlier")
    bufs = [Buffer(0, x.clone()), Buffer(1, None, 32, poison=poison)]
    outcome = run(definition, bufs)
    assert outcome.failures == []
    assert torch.equal(outcome.outputs[0], x * 2)
    assert outcome.outputs[1:] == [poison, poison]
    assert torch.equal(bufs[0].base, x + 1)


def test_memory_that_runs_out_suspends_at_the_op_and_goes_on_there():
    definition = chain().define()
    x, index = torch.rand(4, 4), torch.tensor([3, 0, 0, 1])
    asked = []

    def allocate(op, nbytes):
        asked.append((op, nbytes))
        if op == 3 and asked.count((op, nbytes)) < 3:
            raise torch.OutOfMemoryError("no room")

    bufs = buffers(x, index)
    outcome = run(definition, bufs, allocate=allocate)
    assert (outcome.suspended.op, outcome.suspended.nbytes) == (3, 64)
    outcome = definition.resume(outcome.suspended, context(allocate=allocate))
    assert outcome.suspended.op == 3
    outcome = definition.resume(outcome.suspended, context(allocate=allocate))
    assert outcome.suspended is None
    assert outcome.failures == []
    # nothing that was updated in place was updated twice
    assert torch.equal(bufs[0].base, x + 1 + x[index] * 2)
    assert asked == [(0, 64), (1, 64), (2, 0), (3, 64), (3, 64), (3, 64), (4, 0)]


def test_memory_that_never_comes_is_the_op_s_failure():
    definition = chain().define()

    def allocate(op, nbytes):
        if op == 1:
            raise torch.OutOfMemoryError("no room")

    x = torch.rand(4, 4)
    bufs = buffers(x, torch.zeros(4, dtype=torch.int64))
    outcome = run(definition, bufs, allocate=allocate)
    outcome = definition.abandon(outcome.suspended, context())
    (failure,) = outcome.failures
    assert (failure.op, failure.error, failure.text) == (1, "OutOfMemoryError", "no room")
    assert torch.equal(outcome.outputs[0], x * 2)
    assert torch.equal(bufs[0].base, x + 1)


@pytest.mark.usefixtures("form")
def test_memory_that_runs_out_in_a_compiled_run_suspends_too(monkeypatch):
    definition = chain().define()
    x, index = torch.rand(4, 4), torch.tensor([3, 0, 0, 1])
    run(definition, buffers(x, index))
    run(definition, buffers(x, index))
    short = iter([True])

    def failing(call):
        def once(*args):
            if next(short, False):
                raise torch.OutOfMemoryError("no room")
            return call(*args)

        return once

    replace_op(monkeypatch, definition, 3, failing)
    bufs = buffers(x, index)
    outcome = run(definition, bufs)
    assert outcome.suspended.op == 3
    outcome = definition.resume(outcome.suspended, context())
    assert torch.equal(outcome.outputs[2], x[index] * 2)
    assert torch.equal(bufs[0].base, x + 1 + x[index] * 2)


def test_only_live_outputs_come_back_and_each_mask_has_its_function():
    definition = chain().define()
    x, index = torch.rand(4, 4), torch.tensor([3, 0, 0, 1])
    run(definition, buffers(x, index))
    for mask in range(8):
        outcome = run(definition, buffers(x, index), live=bytes([mask]))
        assert [output is not None for output in outcome.outputs] == [
            bool(mask >> k & 1) for k in range(3)
        ]
    assert len(definition._variants) == 8


def test_masks_without_number_share_one_function():
    sketch = Sketch(inputs=1)
    for _ in range(6):
        sketch.op("relu.default", sketch.seen(0, SQUARE), outs=[SQUARE])
    definition = sketch.define()
    x = torch.rand(4, 4) - 0.5
    run(definition, buffers(x))
    for mask in range(64):
        outcome = run(definition, buffers(x), live=bytes([mask]))
        for k, output in enumerate(outcome.outputs):
            assert (output is not None) == bool(mask >> k & 1)
            assert output is None or torch.equal(output, x.relu())
    assert len(definition._variants) == 9


@pytest.mark.parametrize("runs", [1, 2])
def test_dead_inputs_are_released_and_leave_nothing_behind(runs):
    definition = chain().define()
    for _ in range(runs):
        x, index = torch.rand(4, 4), torch.tensor([3, 0, 0, 1])
        bufs = buffers(x, index)
        kept = weakref.ref(bufs[0].base.untyped_storage())
        outcome = run(definition, bufs, live=b"\x01", dead=b"\x03")
        assert bufs[0].base is None
        assert bufs[1].base is None
        assert torch.equal(outcome.outputs[0], x * 2)
        gc.collect()
        assert kept() is None


def test_bytes_are_counted_per_mask():
    sketch = Sketch(inputs=1)
    a = sketch.op("relu.default", sketch.seen(0, SQUARE), outs=[SQUARE])
    b = sketch.op("relu.default", sketch.seen(a, SQUARE), outs=[SQUARE])
    c = sketch.op("relu.default", sketch.seen(b, SQUARE), outs=[SQUARE])
    sketch.op("sum.default", sketch.seen(c, SQUARE), outs=[contiguous()])
    definition = sketch.define()
    assert definition.slot_bytes() == (64, 64, 64, 4)
    assert definition.output_bytes(b"\x08") == 4
    assert definition.transient_bytes(b"\x08") == 128
    assert definition.transient_bytes(b"\x0f") == 196
    assert definition.plan.least_bytes == (64,)


def channels_last_convolution():
    """A convolution whose claimed stride is contiguous, and a row taken of it by that claim."""
    image = Geometry("float32", (2, 3, 8, 8), (192, 1, 24, 3))
    weight, made = contiguous(4, 3, 3, 3), contiguous(2, 4, 6, 6)
    sketch = Sketch(inputs=2)
    plain = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    seen = sketch.seen(0, image), sketch.seen(1, weight)
    slot = sketch.op("convolution.default", *seen, None, *plain, outs=[made])
    row = Geometry("float32", (2, 6, 6), (144, 6, 1), 36)
    sketch.op("mul.Tensor", sketch.seen(slot, row), 1.0, outs=[contiguous(2, 6, 6)])
    return sketch


def test_a_wrongly_claimed_stride_is_mended_and_reported():
    definition = channels_last_convolution().define()
    x = torch.rand(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    w = torch.rand(4, 3, 3, 3)
    native = torch.nn.functional.conv2d(x, w)
    assert native.stride() == (144, 1, 24, 4)
    for number in range(3):
        outcome = run(definition, buffers(x, w))
        assert outcome.outputs[0].stride() == (144, 36, 6, 1)
        assert torch.equal(outcome.outputs[0], native)
        assert torch.equal(outcome.outputs[1], native[:, 1])
        reported = [(t.op, t.index, t.geometry.stride) for t in outcome.learnt]
        assert reported == ([(0, 0, (144, 1, 24, 4))] if number == 0 else [])
    assert len(definition.learnt) == 1


def test_a_report_has_the_truth_about_every_output():
    definition = channels_last_convolution().define()
    bufs = buffers(torch.rand(2, 8, 8, 3).permute(0, 3, 1, 2), torch.rand(4, 3, 3, 3))
    run(definition, bufs)
    outcome = run(definition, bufs, report=True)
    strides = [(t.op, t.geometry.stride, t.nbytes) for t in outcome.learnt]
    assert strides == [(0, (144, 1, 24, 4), 1152), (1, (36, 6, 1), 288)]


def test_a_wrong_shape_fails_the_op_if_somebody_leans_on_it():
    sketch = Sketch(inputs=1)
    wrong = sketch.op("mm.default", *[sketch.seen(0, SQUARE)] * 2, outs=[contiguous(4, 5)])
    sketch.op("relu.default", sketch.seen(wrong, contiguous(4, 5)), outs=[contiguous(4, 5)])
    definition = sketch.define()
    for _ in range(2):
        outcome = run(definition, buffers(torch.rand(4, 4)))
        (failure,) = outcome.failures
        assert failure.op == 0
        assert "shape [4, 4]" in failure.text
        assert "shape [4, 5]" in failure.text
        assert outcome.outputs == [failure, failure]


def test_a_wrong_shape_that_nobody_reads_is_only_poisoned():
    sketch = Sketch(inputs=1)
    sketch.op("mm.default", *[sketch.seen(0, SQUARE)] * 2, outs=[contiguous(4, 5)])
    definition = sketch.define()
    for _ in range(3):
        outcome = run(definition, buffers(torch.rand(4, 4)))
        assert outcome.failures == []
        assert isinstance(outcome.outputs[0], Failure)
    assert run(definition, buffers(torch.rand(4, 4)), live=b"").outputs == [None]


def test_a_result_that_depends_on_data_is_compared_at_every_run():
    sketch = Sketch(inputs=1)
    found = contiguous(2, 1, dtype="int64")
    slot = sketch.op("nonzero.default", sketch.seen(0, contiguous(4)), outs=[found])
    sketch.op("mul.Tensor", sketch.seen(slot, found), 2, outs=[found])
    definition = sketch.define()
    fitting, other = torch.tensor([0.0, 1, 0, 1]), torch.tensor([1.0, 1, 0, 1])
    for x, fails in ((fitting, False), (other, True), (fitting, False)):
        outcome = run(definition, buffers(x))
        assert bool(outcome.failures) == fails
        if not fails:
            assert torch.equal(outcome.outputs[1], x.nonzero() * 2)


def test_uninitialised_memory_is_zero_even_if_what_would_overwrite_it_fails():
    sketch = Sketch(inputs=1)
    options = {"dtype": Dtype("float32"), "device": DeviceArgument()}
    size = (1 << 16,)
    big = contiguous(*size)
    sketch.op("empty.memory_format", size, **options, outs=[big])
    copied = sketch.op("empty.memory_format", size, **options, outs=[big])
    sketch.op("copy_.default", sketch.seen(copied, big), sketch.seen(0, big), outs=[None])
    definition = sketch.define()
    assert [step.zeroed for step in definition.plan.steps] == [True, False, False]
    poison = Failure(1, 0, "aten::mm.default", "RuntimeError", "earlier")
    for _ in range(3):
        torch.full(size, 7.0)
        good = run(definition, buffers(torch.ones(size)))
        assert good.outputs[0].count_nonzero() == 0
        assert torch.equal(good.outputs[1], torch.ones(size))
        bad = run(definition, [Buffer(0, None, 1 << 18, poison=poison)])
        assert bad.outputs[1].count_nonzero() == 0


def test_batches_of_a_dataset_share_a_program_by_their_offsets():
    sketch = Sketch(inputs=1, params=("int",))
    batch = contiguous(2, 3)
    seen = sketch.seen(0, batch, offset_param=0)
    sketch.op("mul.Tensor", seen, 1.0, outs=[batch])
    definition = sketch.define()
    data = torch.arange(12.0)
    for offset in (0, 6, 3):
        outcome = run(definition, buffers(data), (offset,))
        assert torch.equal(outcome.outputs[0].flatten(), data[offset : offset + 6])
    for offset in (-1, 7, 1 << 62, -(1 << 62)):
        with pytest.raises(ProgramError, match="outside of buffer"):
            run(definition, buffers(data), (offset,))


def test_rows_of_an_upload_are_laid_over_one_typed_base_as_many_as_they_are():
    row = contiguous(3)
    sketch = Sketch(inputs=1, params=("int",) * 4)
    rows = tuple(sketch.seen(0, row, offset_param=k) for k in range(4))
    sketch.op("stack.default", rows, 0, outs=[contiguous(4, 3)])
    definition = sketch.define()
    data = torch.arange(12.0)
    uploaded = Buffer(0, data.view(torch.uint8).clone())  # it arrives as bytes
    address, nbytes = uploaded.address, uploaded.nbytes
    order = (6, 0, 9, 6)
    for _ in range(3):  # by steps, by steps, compiled
        outcome = run(definition, [uploaded], order)
        assert torch.equal(outcome.outputs[0], torch.stack([data[k : k + 3] for k in order]))
    base = uploaded.base
    assert base.dtype is torch.float32
    with Calls() as calls:
        run(definition, [uploaded], order)
    assert calls.names == ["as_strided"] * 4 + ["stack"]
    assert uploaded.base is base
    assert (uploaded.address, uploaded.remeasure()) == (address, nbytes)
    assert torch.equal(uploaded.bytes().view(torch.float32), data)


def test_inputs_that_do_not_fit_are_refused_before_anything_runs():
    definition = chain().define()
    x, index = torch.rand(4, 4), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ProgramError, match="needs 64 bytes"):
        run(definition, buffers(x[0].clone(), index))
    with pytest.raises(ProgramError, match="takes 2 buffers"):
        run(definition, buffers(x))
    with pytest.raises(ProgramError, match="0 parameters"):
        run(definition, buffers(x, index), (1.0,))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("float", 1),
        ("float", True),
        ("int", 1.0),
        ("int", True),
        ("int", 1 << 64),
        ("int", -(1 << 63) - 1),
        ("complex", 1.0),
    ],
)
def test_parameters_have_their_kind(kind, wrong):
    sketch = Sketch(inputs=1, params=(kind,))
    made = SQUARE if kind != "complex" else contiguous(4, 4, dtype="complex64")
    sketch.op("mul.Tensor", sketch.seen(0, SQUARE), Param(0, kind), outs=[made])
    definition = sketch.define()
    with pytest.raises(ProgramError, match="is not of kind"):
        run(definition, buffers(torch.rand(4, 4)), (wrong,))


@pytest.mark.parametrize("given", [Param(0, "int"), 0xCBF29CE484222325])
@pytest.mark.parametrize("op", ["mul.Tensor", "bitwise_xor.Scalar", "remainder.Scalar"])
def test_unsigned_numbers_of_64_bits_are_as_torch_takes_them(op, given):
    x = torch.tensor([1, -7, 1 << 62, -(1 << 63)])
    sketch = Sketch(inputs=1, params=("int",) if isinstance(given, Param) else ())
    sketch.op(op, sketch.seen(0, geometry_of(x)), given, outs=[geometry_of(x)])
    definition = sketch.define()
    name, _, overload = op.partition(".")
    expected = getattr(getattr(torch.ops.aten, name), overload)(x, 0xCBF29CE484222325)
    for _ in range(3):
        params = (0xCBF29CE484222325,) if isinstance(given, Param) else ()
        assert torch.equal(run(definition, buffers(x), params).outputs[0], expected)


def test_complex_parameters_come_as_pairs():
    sketch = Sketch(inputs=1, params=("complex",))
    made = contiguous(4, 4, dtype="complex64")
    sketch.op("mul.Tensor", sketch.seen(0, SQUARE), Param(0, "complex"), outs=[made])
    definition = sketch.define()
    x = torch.rand(4, 4)
    for _ in range(2):
        assert torch.equal(run(definition, buffers(x), ((1.0, 2.0),)).outputs[0], x * (1 + 2j))


@pytest.mark.parametrize(
    "name", ["native_dropout.default", "rand_like.default", "bernoulli.default"]
)
def test_random_ops_draw_from_the_session_and_leave_the_default_generator_alone(name):
    sketch = Sketch(inputs=1)
    outs = [SQUARE]
    args = ()
    if name.startswith("native_dropout"):
        outs, args = [SQUARE, contiguous(4, 4, dtype="bool")], (0.5, True)
    sketch.op(name, sketch.seen(0, SQUARE), *args, outs=outs)
    definition = sketch.define()
    x = torch.full((4, 4), 0.5)
    op = getattr(torch.ops.aten, name.split(".")[0]).default
    torch.manual_seed(3)
    natives = [op(x, *args) for _ in range(3)]
    torch.manual_seed(99)
    state = torch.get_rng_state()
    session = RunContext(CPU, {0: torch.Generator().manual_seed(3)})
    for native in natives:
        outcome = definition.run(buffers(x), (), all_live(definition), b"", session)
        native = native if isinstance(native, tuple) else (native,)
        assert all(torch.equal(a, b) for a, b in zip(outcome.outputs, native, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("count", [1, 2, 5, 700])  # a normal number may be left, or a new state due
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_generators_change_states_whole(count, dtype):
    one, two = (torch.Generator().manual_seed(k) for k in (5, 6))
    torch.randn(count, dtype=dtype, generator=one)
    torch.rand(3, generator=two)
    before = [each.get_state() for each in (one, two)]
    for exchange in (rng._exchange, rng.exchange_states):
        exchange(one, two)
        assert torch.equal(one.get_state(), before[1])
        assert torch.equal(two.get_state(), before[0])
        assert (one.initial_seed(), two.initial_seed()) == (6, 5)
        exchange(one, two)
        assert torch.equal(one.get_state(), before[0])
        assert torch.equal(two.get_state(), before[1])
    rng._exchange(one, one)
    assert torch.equal(one.get_state(), before[0])


@pytest.mark.skipif(loading.load() is None, reason="the accelerator is not built here")
def test_what_is_no_generator_of_the_host_changes_nothing():
    one = torch.Generator().manual_seed(5)
    before = one.get_state()
    for other in (None, 3, object()):
        for pair in ((one, other), (other, one)):
            with pytest.raises(TypeError, match="generator of the host"):
                rng._exchange(*pair)
    assert torch.equal(one.get_state(), before)


def test_sessions_do_not_share_random_numbers():
    sketch = Sketch()
    sketch.op(
        "randn.default", (4, 4), dtype=Dtype("float32"), device=DeviceArgument(), outs=[SQUARE]
    )
    definition = sketch.define()
    generators = [torch.Generator().manual_seed(k) for k in (1, 2, 1)]
    for _ in range(3):
        one, two, again = (
            definition.run([], (), b"\x01", b"", RunContext(CPU, {0: g})).outputs[0]
            for g in generators
        )
        assert torch.equal(one, again)
        assert not torch.equal(one, two)


def test_a_session_without_the_generator_is_told():
    sketch = Sketch()
    sketch.op(
        "randn.default", (4, 4), dtype=Dtype("float32"), device=DeviceArgument(), outs=[SQUARE]
    )
    with pytest.raises(ProgramError, match="no generator"):
        sketch.define().run([], (), b"\x01", b"", RunContext(CPU, {}))


def test_flags_hold_for_their_program_only():
    sketch = Sketch(inputs=1, flags=Flags(deterministic=True))
    sketch.op("empty_like.default", sketch.seen(0, SQUARE), outs=[SQUARE])
    strict = sketch.define()
    plain = Sketch(inputs=1)
    plain.op("empty_like.default", plain.seen(0, SQUARE), outs=[SQUARE])
    lax = plain.define()
    for _ in range(2):
        # deterministic torch fills uninitialised memory with NaN, and so must this
        assert run(strict, buffers(torch.ones(4, 4))).outputs[0].isnan().all()
        assert run(lax, buffers(torch.ones(4, 4))).outputs[0].count_nonzero() == 0
    assert not torch.are_deterministic_algorithms_enabled()


def test_resizing_ops_grow_the_buffer_and_later_views_fit():
    sketch = Sketch(inputs=1)
    empty, grown = contiguous(0), contiguous(5, dtype="float32")
    sketch.op("arange.start_out", 0, 5, 1, out=sketch.seen(0, empty), outs=[None])
    sketch.op("mul.Tensor", sketch.seen(0, grown), 2, outs=[grown])
    definition = sketch.define()
    assert definition.plan.resized == (0,)
    for _ in range(3):
        bufs = buffers(torch.empty(0))
        outcome = run(definition, bufs)
        assert torch.equal(outcome.outputs[0], torch.arange(5.0) * 2)
        assert bufs[0].remeasure() == 20


def test_a_run_of_the_null_device_has_shapes_only():
    definition = chain().define("null")
    meta = [torch.empty(4, 4, device="meta"), torch.empty(4, dtype=torch.int64, device="meta")]
    for _ in range(3):
        bufs = [Buffer(k, t) for k, t in enumerate(meta)]
        live = all_live(definition)
        outcome = definition.run(bufs, (), live, b"", RunContext(torch.device("meta"), {}))
        assert outcome.failures == []
        assert [tuple(t.shape) for t in outcome.outputs] == [(4, 4)] * 3
        assert all(t.is_meta for t in outcome.outputs)


def test_a_program_is_ready_for_the_masks_that_a_function_was_compiled_for():
    definition = chain().define()
    live, dead = all_live(definition), b""
    bufs = [torch.rand(4, 4), torch.tensor([3, 0, 0, 1])]
    ready = []
    for _ in range(3):
        ready.append(definition.is_ready(live, dead, ()))
        run(definition, buffers(*bufs))
    assert ready == [False, False, True]  # step by step first, then compiled
    assert not definition.is_ready(live, b"\x01", ())
    assert not definition.is_ready(b"\x01", dead, ())
    assert not definition.is_ready(live, dead, (0,))


def test_a_program_whose_sizes_the_data_decide_is_never_ready():
    sketch = Sketch(inputs=1)
    found = contiguous(2, 1, dtype="int64")
    sketch.op("nonzero.default", sketch.seen(0, contiguous(4)), outs=[found])
    definition = sketch.define()
    for _ in range(4):
        assert run(definition, buffers(torch.tensor([0.0, 1, 0, 1]))).failures == []
        assert not definition.is_ready(all_live(definition), b"", ())


def test_what_a_run_took_is_remembered():
    definition = chain().define()
    assert definition.predicted_s is None
    definition.observe(1.0)
    assert definition.predicted_s == 1.0
    definition.observe(2.0)
    assert definition.predicted_s == 1.25


def test_runs_with_other_flags_wait_until_the_gate_is_empty():
    gate = FlagGate()
    strict, lax = Flags(deterministic=True), Flags()
    inside, leave, order = Event(), Event(), []

    def first():
        with gate.passing(strict):
            inside.set()
            leave.wait(10)
            order.append(("strict", torch.are_deterministic_algorithms_enabled()))

    def second():
        with gate.passing(lax):
            order.append(("lax", torch.are_deterministic_algorithms_enabled()))

    threads = [Thread(target=first), Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    # runs that agree pass meanwhile, where nobody waits
    with gate.passing(Flags(deterministic=True)):
        order.append(("agreeing", torch.are_deterministic_algorithms_enabled()))
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(10)
    assert order == [("agreeing", True), ("strict", True), ("lax", False)]


def test_a_run_that_waits_at_the_gate_is_passed_by_none_that_comes_later():
    gate, order = FlagGate(), []

    def come(flags):
        with gate.passing(flags):
            order.append(flags.deterministic)

    gate.enter(Flags())
    later = [Flags(deterministic=True), Flags(), Flags(), Flags(deterministic=True), Flags()]
    threads = [Thread(target=come, args=(flags,)) for flags in later]
    for count, thread in enumerate(threads, 1):
        thread.start()
        while len(gate._waiting) < count:
            assert not order
    gate.leave()
    for thread in threads:
        thread.join(10)
    assert order == [True, False, False, True, False]


def test_a_run_that_does_not_leave_the_gate_keeps_those_that_agree_for_a_while_alone(monkeypatch):
    monkeypatch.setattr(flags, "_PATIENCE_S", 0.0)
    gate, order = FlagGate(), []

    def come():
        with gate.passing(Flags(deterministic=True)):
            order.append("other")

    gate.enter(Flags())
    other = Thread(target=come)
    other.start()
    while not gate._waiting:
        assert not order
    with gate.passing(Flags()):
        order.append("agreeing")
    gate.leave()
    other.join(10)
    assert order == ["agreeing", "other"]


@pytest.mark.parametrize(
    "odd",  # each sets a switch, and then meets a word that torch does not know
    [
        Flags(deterministic=True, default_dtype="odd"),
        Flags(fp16_accumulation=True, linalg="__doc__"),
    ],
)
def test_flags_that_cannot_be_applied_leave_none_of_theirs_to_those_that_come_next(odd):
    gate, lax = FlagGate(), Flags()
    with gate.passing(lax):
        pass
    for come in (gate.enter, gate.enter_at_once):
        with pytest.raises((KeyError, TypeError)):
            come(odd)
        assert torch.are_deterministic_algorithms_enabled() == odd.deterministic
        assert torch._C._get_cublas_allow_fp16_accumulation() == odd.fp16_accumulation
        assert gate.is_open_to(lax)
        with gate.passing(lax):
            assert not torch.are_deterministic_algorithms_enabled()
            assert not torch._C._get_cublas_allow_fp16_accumulation()


def test_a_switch_that_was_not_reached_is_set_for_the_flags_that_come_next(monkeypatch):
    gate, few, many = FlagGate(), Flags(carveout=5), Flags(carveout=5, fp16_accumulation=True)

    def stopped(allowed):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(torch._C, "_set_cublas_allow_fp16_accumulation", stopped)
        with pytest.raises(KeyboardInterrupt):
            gate.enter(many)
    assert torch._C._get_sm_carveout_experimental() is None
    with gate.passing(few):
        assert torch._C._get_sm_carveout_experimental() == 5
        assert not torch._C._get_cublas_allow_fp16_accumulation()
    with gate.passing(Flags()):
        assert torch._C._get_sm_carveout_experimental() is None


def test_lanes_that_draw_at_once_each_have_their_own_numbers():
    sketch = Sketch(inputs=1)
    sketch.op("rand_like.default", sketch.seen(0, SQUARE), outs=[SQUARE])
    definition = sketch.define()
    x = torch.zeros(4, 4)

    def draw(seed, drawn):
        run = RunContext(CPU, {0: torch.Generator().manual_seed(seed)})
        for _ in range(50):
            drawn.append(definition.run(buffers(x), (), b"\x01", b"", run).outputs[0])

    alone = [[], []]
    for seed, drawn in enumerate(alone):
        draw(seed, drawn)
    together = [[], []]
    threads = [Thread(target=draw, args=pair) for pair in enumerate(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert len(other) == 50


@pytest.mark.parametrize("fails", [False, True])
def test_a_wanted_value_is_told_after_its_last_write_in_the_midst_of_a_run(fails):
    wide, row = contiguous(4, 5), contiguous(5)
    sketch = Sketch(inputs=2)
    total = sketch.op("sum.default", sketch.seen(0, wide), outs=[contiguous()])
    seen = sketch.seen(total, contiguous())
    sketch.op("add_.Tensor", seen, 1, outs=[None])
    large = sketch.op("mul.Tensor", sketch.seen(0, wide), 2, outs=[wide])
    chosen = sketch.op(
        "index_select.default", sketch.seen(0, wide), 0, sketch.seen(1, LONG), outs=[wide]
    )
    sums = sketch.op("sum.dim_IntList", sketch.seen(chosen, wide), [0], outs=[row])
    definition = sketch.define()
    fresh = {slot: slot - 2 for slot in (total, large, chosen, sums)}
    x, index = torch.rand(4, 5), torch.tensor([3, 0, 0, 1])
    bad = torch.tensor([3, 0, 9, 1])
    run(definition, buffers(x, index))  # the first run looks at every step and tells nothing
    told = []
    outcome = run(
        definition,
        buffers(x, bad if fails else index),
        wanted=(fresh[total], fresh[large], fresh[sums], 9),
        tell=lambda slot, tensor: told.append((slot, tensor.clone())),
    )
    values = dict(told)
    assert values.keys() == ({fresh[total]} if fails else {fresh[total], fresh[sums]})
    assert torch.equal(values[fresh[total]], x.sum() + 1)
    if fails:
        assert outcome.failures
    else:
        assert torch.equal(values[fresh[sums]], x[index].sum(0))


def test_a_value_that_may_be_seen_through_another_slot_is_told_last():
    sketch = Sketch(inputs=1)
    total = sketch.op("sum.default", sketch.seen(0, SQUARE), outs=[contiguous()])
    alias = sketch.op("view.default", sketch.seen(total, contiguous()), [1], outs=[contiguous(1)])
    sketch.op("add_.Tensor", sketch.seen(alias, contiguous(1)), 1, outs=[None])
    definition = sketch.define()
    x = torch.rand(4, 4)
    run(definition, buffers(x))
    told = {}
    run(definition, buffers(x), wanted=(0,), tell=lambda slot, tensor: told.update({slot: tensor}))
    assert torch.equal(told[0], x.sum() + 1)


def test_what_a_run_needs_beyond_its_claims_is_counted_from_then_on():
    """The data decides how large the result of `nonzero` is: the claim says nothing of it."""
    sketch = Sketch(inputs=1)
    square = sketch.seen(0, SQUARE)
    sketch.ops.append(Op("aten::nonzero.default", (square,), {}, (Out(sketch.made),)))
    sketch.made += 1
    sketch.op("mul.Tensor", square, 2, outs=[SQUARE])
    definition = sketch.define()
    live = all_live(definition)
    counted = definition.transient_bytes(live)
    run(definition, buffers(torch.zeros(4, 4)))
    assert definition.surplus_bytes == 0
    run(definition, buffers(torch.ones(4, 4)))
    found = 16 * 2 * 8  # both indices of each of 16 elements
    assert definition.surplus_bytes == found
    run(definition, buffers(torch.zeros(4, 4)))
    assert definition.surplus_bytes == found
    assert definition.transient_bytes(live) == counted  # what is known beforehand, as ever


def test_what_the_allocator_tells_of_a_first_run_counts_where_it_is_more():
    definition = chain().define()
    live = all_live(definition)
    counted, left = definition.transient_bytes(live), []

    def watch_peak():
        def peak(kept):
            left.append(kept)
            return counted + 1000

        return peak

    for _ in range(3):
        bufs = buffers(torch.rand(4, 4), torch.tensor([3, 0, 0, 1]))
        run(definition, bufs, watch_peak=watch_peak)
    assert left == [definition.output_bytes(live)]
    assert definition.surplus_bytes == 1000
