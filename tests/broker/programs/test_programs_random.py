"""Programs at random: sound ones compute what torch computes, unsound ones are only refused."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorder import Recorder
from sketch import CPU, all_live

from jgpu.broker.executor.programs import Buffer, Prober, RunContext, define
from jgpu.broker.executor.programs.checking import ops
from jgpu.errors import ProgramError
from jgpu.wire.program import (
    Complex,
    DeviceArgument,
    Dtype,
    GeneratorArg,
    Geometry,
    HostTensor,
    Layout,
    MemoryFormat,
    Op,
    Out,
    Param,
    Program,
    Slot,
    View,
    encode_program,
)

UNARY = ["relu", "sigmoid", "neg", "exp", "t", "flip_", "abs_", "clone", "tanh_", "row", "column"]
BINARY = ["add", "mul", "sub", "add_", "mul_", "mm", "maximum", "cat", "where", "copy_"]


def unary(name, x, number):
    if name == "t":
        return x.t()
    if name == "flip_":
        return x.copy_(x.flip(0))
    if name == "row":
        return x[1:].repeat(2, 1)[: x.shape[0]]
    if name == "column":
        return x.sum(1, keepdim=True).expand(4, 4).contiguous()
    if name.endswith("_"):
        return getattr(x, name)()
    return getattr(torch, name)(x) * number


def binary(name, x, y, number):
    if name == "cat":
        return torch.cat([x[:2], y[2:]])
    if name == "where":
        return torch.where(x > 0, x, y)
    if name in ("add", "add_"):
        return getattr(x, name)(y, alpha=number)
    if name == "copy_":
        return x.copy_(y.clone())
    return getattr(x, name)(y)


step = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 7), st.just(0)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 7), st.integers(0, 7)),
)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(step, min_size=1, max_size=14),
    live=st.binary(min_size=4, max_size=4),
    number=st.sampled_from([0.5, -1.25, 2.0]),
)
def test_programs_compute_what_torch_computes(steps, live, number):
    torch.manual_seed(0)
    tensors = [torch.randn(4, 4), torch.randn(4, 4).t()]
    with Recorder(lift=True) as recorder, torch.no_grad():
        for name, one, other in steps:
            x, y = tensors[one % len(tensors)], tensors[other % len(tensors)]
            made = unary(name, x, number) if name in UNARY else binary(name, x, y, number)
            tensors.append(made)
    recording = recorder.recording()
    if not recording.ops:
        return
    definition = define(recording.data, "cpu")
    for mask in (all_live(definition), live, live, b"", b""):
        bufs = [Buffer(k, t.clone()) for k, t in enumerate(recording.inputs)]
        mask = mask.ljust(definition.fresh // 8 + 1, b"\0")
        outcome = definition.run(bufs, recording.params, mask, b"", RunContext(CPU, {}))
        assert outcome.failures == []
        for buffer, after in zip(bufs, recording.after, strict=False):
            assert torch.equal(buffer.bytes(), after)
        for k, output in enumerate(outcome.outputs):
            assert (output is not None) == bool(mask[k // 8] >> k % 8 & 1)
            after = recording.after[definition.inputs + k]
            assert output is None or torch.equal(output, after) or after.isnan().any()


NAMES = sorted(
    name if "." in name else f"{name}.default"
    for name in ops._registered()
    if not name.endswith("_out") and ".out" not in name
)
small = st.integers(-2, 5)
geometry = st.one_of(
    st.lists(st.integers(0, 4), max_size=4).map(
        lambda shape: Geometry(
            "float32", tuple(shape), tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
        )
    ),
    st.builds(
        lambda dtype, pairs, offset, bits: Geometry(
            dtype, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), offset, bits
        ),
        st.sampled_from(["float32", "int64", "bool", "complex64", "float64", "bfloat16", "x"]),
        st.lists(st.tuples(st.integers(0, 1 << 40) | small.map(abs), small.map(abs)), max_size=4),
        small.map(abs) | st.integers(0, 1 << 61),
        st.integers(0, 3),
    ),
)
leaf = st.one_of(
    st.builds(Slot, st.integers(0, 3), st.integers(0, 3)),
    st.builds(Slot, st.integers(0, 3), st.integers(0, 3)),
    st.builds(Slot, st.integers(0, 3), st.integers(0, 3)),
    st.none(),
    st.booleans(),
    small,
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.sampled_from(["mean", "floor", "x", "L"]),
    st.builds(Param, st.integers(0, 1), st.sampled_from(["float", "int"])),
    st.builds(Complex, st.floats(), st.floats()),
    st.builds(Dtype, st.sampled_from(["float32", "int64", "nope"])),
    st.builds(Layout, st.sampled_from(["strided", "sparse_coo"])),
    st.builds(MemoryFormat, st.sampled_from(["channels_last", "nope"])),
    st.just(DeviceArgument()),
    st.builds(GeneratorArg, st.integers(0, 2)),
    st.just(HostTensor("int64", (2,), b"\1" + b"\0" * 15)),
    st.just(HostTensor("float32", (1 << 61, 1 << 61), b"")),
)
argument = leaf | st.lists(leaf, max_size=4).map(tuple)


@st.composite
def operation(draw, made):
    name = draw(st.sampled_from(NAMES))
    try:
        arguments = ops.resolve(name, "cpu").arguments
    except ProgramError:
        arguments = ()
    args = tuple(draw(_fitting(a)) for a in arguments if not a.kwarg_only and a.required)
    kwargs = {a.name: draw(argument) for a in arguments if a.kwarg_only and a.required}
    outs = tuple(Out(made + k, draw(st.integers(0, 3))) for k in range(draw(st.integers(0, 3))))
    return Op(name, args, kwargs, outs)


def _fitting(argument_):
    """Mostly what the schema asks for."""
    slot = st.builds(Slot, st.integers(0, 3), st.integers(0, 3))
    fitting = {
        "tensor": slot,
        "tensors": st.lists(slot, max_size=3).map(tuple),
        "optional_tensors": st.lists(slot | st.none(), max_size=3).map(tuple),
        "int": small,
        "ints": st.lists(small, max_size=4).map(tuple),
        "float": st.floats(),
        "number": st.floats() | small,
        "bool": st.booleans(),
        "bools": st.lists(st.booleans(), max_size=3).map(tuple),
    }.get(argument_.kind, argument)
    return st.one_of(fitting, fitting, fitting, argument)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_unsound_programs_are_refused_and_the_rest_fails_by_itself(data):
    geometries = tuple(data.draw(st.lists(geometry, min_size=4, max_size=4)))
    made = 4
    program_ops = []
    for _ in range(data.draw(st.integers(1, 3))):
        op = data.draw(operation(made))
        made += len(op.outs)
        program_ops.append(op)
    views = tuple(View(k) for k in range(4))
    program = Program(4, ("float", "int"), geometries, views, tuple(program_ops))
    try:
        definition = define(encode_program(program), "cpu")
    except ProgramError:
        return
    if max(definition.plan.least_bytes) > 1 << 20 or sum(definition.slot_bytes()) > 1 << 24:
        return
    for _ in range(2):
        bufs = [
            Buffer(k, torch.zeros(max(n, 8), dtype=torch.uint8))
            for k, n in enumerate(definition.plan.least_bytes)
        ]
        run = RunContext(CPU, {k: torch.Generator() for k in range(3)})
        outcome = definition.run(bufs, (0.5, 1), all_live(definition), b"", run)
        assert len(outcome.outputs) == definition.fresh


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_probes_at_random_answer_or_refuse(data):
    op = data.draw(operation(4))
    inputs = data.draw(st.lists(geometry, min_size=4, max_size=4))
    try:
        outputs, error = Prober("cpu", most_bytes=1 << 20).probe(op, inputs, (0.5, 1))
    except ProgramError:
        return
    assert error is None or (isinstance(error[0], str) and isinstance(error[1], str))
    assert all(output is None or isinstance(output, Geometry) for output in outputs)
