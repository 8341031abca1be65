"""The program form: canonical bytes, a hash of the content alone, and what is no program."""

import math
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import values_of

from jgpu.errors import ProgramError
from jgpu.wire import limits, program
from jgpu.wire.program import (
    NO_SLOT,
    Arg,
    Complex,
    DeviceArgument,
    Dtype,
    Flags,
    GeneratorArg,
    Geometry,
    HostScalar,
    HostTensor,
    Layout,
    MemoryFormat,
    Op,
    Out,
    Param,
    Program,
    Slot,
    View,
    decode_program,
    encode_program,
    program_hash,
    slots_of,
    validate_form,
)

MATRIX = Geometry("float32", (4, 3), (3, 1))
ROW = Geometry("float32", (3,), (1,), offset=6, bits=program.NEG)
ADD = Op("aten::add.Tensor", (Slot(0, 0), Slot(1, 1)), {"alpha": Param(0, "float")}, (Out(2, 0),))
#: A program with every kind of argument.
RICH = Program(
    inputs=2,
    params=("float", "int", "bool", "complex"),
    geometries=(MATRIX, ROW),
    views=(View(0), View(1, offset_param=1)),
    ops=(
        ADD,
        Op(
            "aten::full",
            ((4, 3), 1.5, Complex(0.0, -1.0)),
            {
                "dtype": Dtype("float32"),
                "layout": Layout("strided"),
                "device": DeviceArgument(),
                "memory_format": MemoryFormat("channels_last"),
                "generator": GeneratorArg(1),
                "pin_memory": False,
                "names": None,
            },
            (Out(3, 0),),
        ),
        Op("aten::cat", ((Slot(2, 0), Slot(3, 0)), "text"), {}, (Out(4, 0), Out(NO_SLOT))),
        Op(
            "aten::index.Tensor",
            (Slot(4, 0), (None, HostTensor("int64", (2,), bytes(16)))),
            {"scale": HostScalar(3, "complex", "float64"), "flag": Param(2, "bool")},
            (Out(5, -1),),
        ),
    ),
    flags=Flags(deterministic=True),
)


def digest(value):
    return program_hash(encode_program(value))


def replace(value, **changes):
    return msgspec.structs.replace(value, **changes)


# -- round trip ----------------------------------------------------------------------------------


def test_a_program_with_every_kind_of_argument_travels():
    assert decode_program(encode_program(RICH)) == RICH
    assert RICH.fresh == 4
    assert decode_program(encode_program(Program(0, (), (), (), ()))).fresh == 0


def constant_of(value):
    """The argument `value`, through bytes."""
    made = Program(0, (), (), (), (Op("aten::x", (value,), {}, ()),))
    return decode_program(encode_program(made)).ops[0].args[0]


@given(values_of(Arg))
def test_every_argument_comes_back_with_its_type(value):
    made = Op("aten::x", (value,), {"k": value}, ())
    data = msgspec.msgpack.encode(made)
    back = msgspec.msgpack.decode(data, type=Op)
    assert type(back.args[0]) is type(value)
    assert msgspec.msgpack.encode(back) == data


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -math.nan, -0.0, 5e-324, 1.0])
def test_floats_keep_every_bit(value):
    back = constant_of(value)
    assert type(back) is float
    assert struct.pack("d", back) == struct.pack("d", value)


@pytest.mark.parametrize("value", [True, False, 0, 1, -1, (1 << 64) - 1, -(1 << 63)])
def test_whole_numbers_and_truth_values_stay_apart(value):
    assert type(constant_of(value)) is type(value)
    assert constant_of(value) == value


@st.composite
def programs(draw):
    """Well-formed programs: slots are made in order and used after."""
    geometries = tuple(draw(st.lists(st.sampled_from([MATRIX, ROW]), min_size=1, max_size=3)))
    params = tuple(draw(st.lists(st.sampled_from(["int", "float", "bool", "complex"]), max_size=4)))
    offsets = [-1, *(index for index, kind in enumerate(params) if kind == "int")]
    which = st.integers(0, len(geometries) - 1)
    view = st.builds(View, which, st.sampled_from(offsets))
    views = tuple(draw(st.lists(view, min_size=1, max_size=3)))
    inputs = made = draw(st.integers(0, 3))
    ops = []
    for _ in range(draw(st.integers(0, 5))):
        leaf = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.just("mean"))
        if made:
            leaf |= st.builds(Slot, st.integers(0, made - 1), st.integers(0, len(views) - 1))
        if params:
            leaf |= st.integers(0, len(params) - 1).map(lambda i: Param(i, params[i]))
        arg = leaf | st.lists(leaf, max_size=3).map(tuple)
        args, kwargs = draw(st.lists(arg, max_size=3)), draw(st.dictionaries(st.text("ab"), arg))
        outs = []
        for fresh in draw(st.lists(st.booleans(), max_size=2)):
            outs.append(Out(made if fresh else NO_SLOT, draw(which)))
            made += fresh
        ops.append(Op("aten::x", tuple(args), kwargs, tuple(outs)))
    return Program(inputs, params, geometries, views, tuple(ops), draw(values_of(Flags)))


@settings(deadline=None)
@given(programs())
def test_well_formed_programs_travel_and_their_bytes_are_canonical(made):
    data = encode_program(made)
    back = decode_program(data)
    assert encode_program(back) == data
    assert back.fresh == made.fresh


@settings(deadline=None)
@given(values_of(Program))
def test_any_program_of_the_right_types_is_a_program_or_a_program_error(made):
    data = encode_program(made)
    try:
        back = decode_program(data)
    except ProgramError:
        return
    assert encode_program(back) == data


# -- the hash ------------------------------------------------------------------------------------


def test_the_hash_is_this_one():
    """Both ends must agree on it: a change here is a change of the form, and has to be meant."""
    assert digest(RICH).hex() == "f30e9ee004f24013ca426192c78b1b7c"
    assert len(digest(RICH)) == 16


def test_the_order_in_which_arguments_were_named_does_not_matter():
    names = {"alpha": 1, "beta": 2.0, "gamma": None}
    there = Program(0, (), (), (), (Op("aten::x", (), names, ()),))
    again = Program(0, (), (), (), (Op("aten::x", (), dict(reversed(names.items())), ()),))
    assert list(names) != list(reversed(names))
    assert digest(there) == digest(again)


@settings(deadline=None)
@given(programs(), programs())
def test_equal_content_has_an_equal_hash_and_other_content_another(one, other):
    assert digest(one) == digest(decode_program(encode_program(one)))
    assert (digest(one) == digest(other)) == (encode_program(one) == encode_program(other))


def changes(value):
    """Every way to change one thing in `value`, with types that the place allows."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield from (-value, math.nextafter(value, math.inf), math.nan)
    elif isinstance(value, str):
        yield value + "x"
    elif isinstance(value, bytes):
        yield from (value + b"\0", b"\1" + value[1:])
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield value[:index] + value[index + 1 :]
            yield from ((*value[:index], new, *value[index + 1 :]) for new in changes(item))
        yield from [value[::-1]] if value[::-1] != value else []
    elif isinstance(value, dict):
        for key, item in value.items():
            without = {k: v for k, v in value.items() if k != key}
            yield from ({**without, key: new} for new in changes(item))
            yield from (without, {**without, key + "x": item})
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from (replace(value, **{field: new}) for new in changes(getattr(value, field)))


def test_every_single_change_makes_another_hash():
    seen = {encode_program(RICH): digest(RICH)}
    for changed in changes(RICH):
        seen[encode_program(changed)] = digest(changed)
    assert len(seen) > 150
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize(
    "alike",
    [
        (1, 1.0, True, "1", (1,), None),
        (0, 0.0, -0.0, False, "", (), None),
        (math.inf, -math.inf, math.nan, "inf"),
        (Dtype("x"), Layout("x"), MemoryFormat("x"), "x"),
        (Slot(0, 1), Param(0, "int"), GeneratorArg(0), Complex(0.0, 1.0), DeviceArgument()),
        (HostScalar(0, "int", "int64"), HostScalar(0, "int", "int32"), Param(0, "int")),
    ],
)
def test_arguments_that_look_alike_are_different_programs(alike):
    made = [Program(1, ("int",), (), (), (Op("aten::x", (v,), {}, ()),)) for v in alike]
    assert len({digest(each) for each in made}) == len(alike)


# -- the parts of an op --------------------------------------------------------------------------


def test_the_tensor_arguments_of_an_op_come_in_order():
    op = Op("aten::x", (Slot(1, 0), (2, Slot(0, 0), None)), {"out": Slot(2, 1), "dim": (1,)}, ())
    assert [slot.slot for slot in slots_of(op)] == [1, 0, 2]


# -- what is no program --------------------------------------------------------------------------


def with_op(**changed):
    return replace(RICH, ops=(replace(ADD, **changed),))


REFUSED = {
    "Unknown parameter kind 'text'": replace(RICH, params=("text",)),
    "as many strides as sizes": replace(RICH, geometries=(MATRIX, replace(ROW, stride=()))),
    "A view names a geometry": replace(RICH, views=(View(2),)),
    "Run parameter 9 of kind int": replace(RICH, views=(View(0, offset_param=9),)),
    "Run parameter 0 of kind int": replace(RICH, views=(View(0, offset_param=0),)),
    "uses slot 2 before it is made": with_op(args=(Slot(2, 0),)),
    "uses slot 7 before it is made": with_op(kwargs={"out": (1, Slot(7, 0))}),
    "uses a view that is not in the table": with_op(args=(Slot(0, 2),)),
    "Run parameter 4 of kind int": with_op(args=(Param(4, "int"),)),
    "Run parameter 1 of kind float": with_op(args=((Param(1, "float"),),)),
    "Run parameter 3 of kind bool": with_op(kwargs={"a": HostScalar(3, "bool", "bool")}),
    "returns a geometry that is not in the table": with_op(outs=(Out(2, 2),)),
    "must make slot 2 next": with_op(outs=(Out(3, 0),)),
    "must make slot 3 next": with_op(outs=(Out(2, 0), Out(2, 0))),
    "must make slot 2 next.": with_op(outs=(Out(0, 0),)),
    "uses a slot whose sizes are not known yet": replace(
        RICH, ops=(*RICH.ops, Op("aten::relu", (Slot(5, 0),), {}, (Out(6, 0),)))
    ),
    "at most 65536 slots, not 65537": Program(limits.MAX_SLOTS + 1, (), (), (), ()),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_program_that_contradicts_itself_is_refused(sentence):
    with pytest.raises(ProgramError, match=sentence):
        validate_form(REFUSED[sentence])
    with pytest.raises(ProgramError, match=sentence):
        decode_program(encode_program(REFUSED[sentence]))


def test_the_most_slots_that_a_program_may_have():
    validate_form(Program(limits.MAX_SLOTS, (), (), (), ()))
    last = limits.MAX_SLOTS - 1
    full = with_op(outs=(Out(last, 0), Out(last + 1, 0)))
    with pytest.raises(ProgramError, match="at most 65536 slots"):
        validate_form(replace(full, inputs=last))


@pytest.mark.parametrize(
    "changed",
    [
        replace(RICH, inputs=-1),
        replace(RICH, inputs=1 << 31),
        replace(RICH, geometries=(replace(MATRIX, shape=(-1, 3)),)),
        replace(RICH, geometries=(replace(MATRIX, shape=(1 << 62, 3)),)),
        replace(RICH, geometries=(replace(MATRIX, stride=(-1, 1)),)),
        replace(RICH, geometries=(replace(MATRIX, offset=-1),)),
        replace(RICH, geometries=(replace(MATRIX, bits=4),)),
        replace(RICH, geometries=(replace(MATRIX, shape=(1,) * 65, stride=(1,) * 65),)),
        replace(RICH, views=(View(-1),)),
        replace(RICH, views=(View(0, -2),)),
        with_op(name="x" * (limits.MAX_NAME + 1)),
        with_op(args=(None,) * 65),
        with_op(args=((None,) * (limits.MAX_LIST + 1),)),
        with_op(args=(((1,),),)),
        with_op(args=({"a": 1},)),
        with_op(args=(b"bytes",)),
        with_op(args=("x" * (limits.MAX_NAME + 1),)),
        with_op(args=(Param(-1, "int"),)),
        with_op(args=(Param(0, "text"),)),
        with_op(args=(Slot(-1, 0),)),
        with_op(args=(GeneratorArg(-1),)),
        with_op(args=(HostTensor("int8", (1,), bytes(limits.INLINE_BYTES + 1)),)),
        with_op(kwargs={f"k{index}": 1 for index in range(33)}),
        with_op(outs=(Out(-2, 0),)),
        with_op(outs=(Out(2, -2),)),
        replace(RICH, ops=(ADD,) * (limits.MAX_OPS + 1)),
        replace(RICH, flags=replace(Flags(), matmul_precision="x" * (limits.MAX_NAME + 1))),
    ],
)
def test_a_value_past_its_limit_is_refused(changed):
    with pytest.raises(ProgramError, match="These bytes are not a program"):
        decode_program(encode_program(changed))


@given(st.binary(max_size=300))
def test_random_bytes_are_no_program(data):
    with pytest.raises(ProgramError, match="These bytes are not a program"):
        decode_program(data)


@settings(deadline=None)
@given(st.integers(0), st.integers(1, 255))
def test_one_changed_byte_is_another_program_or_none(place, change):
    data = bytearray(encode_program(RICH))
    data[place % len(data)] ^= change
    try:
        changed = decode_program(bytes(data))
    except ProgramError:
        return
    assert encode_program(changed) != encode_program(RICH)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encode_program(RICH)[:-1],
        encode_program(RICH) + b"\x00",
        b"\x91" * 1_000_000,
        b"\x96\x00\x90\x90\x90" + b"\x91\x94\xa1a" + b"\x91" * 1_000_000,
        msgspec.msgpack.encode([0, [], [], [], [], [], 1]),
        msgspec.msgpack.encode({"inputs": 0}),
        b"\x96\x00\xdd\xff\xff\xff\xff",
        b"\x95\x00\x91\xa2\xff\xff\x90\x90\x90",
    ],
)
def test_bytes_that_are_no_program_are_refused(data):
    with pytest.raises(ProgramError, match="These bytes are not a program"):
        decode_program(data)
