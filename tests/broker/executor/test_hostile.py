"""Random bytes and random well-formed messages at a live session: nobody else notices."""

import contextlib
import os

import pytest
from client import add
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jgpu.wire import messages as m
from jgpu.wire.framing import HEADER, MAGIC
from jgpu.wire.program import Flags, Geometry, Op, Out, Slot, encode_program, program_hash

PROGRAM = encode_program(add())
HASH = program_hash(PROGRAM)

naturals = st.one_of(st.integers(0, 6), st.integers(0, 1 << 62))
ids = st.lists(st.integers(0, 6), max_size=6).map(tuple)
works = st.integers(0, 6)
geometries = st.builds(
    Geometry,
    st.sampled_from(["float32", "int64", "bool", "nonsense"]),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    naturals,
    st.integers(0, 3),
)
ops = st.builds(
    Op,
    st.sampled_from(["aten::add.Tensor", "aten::mm.default", "aten::from_file", "x"]),
    st.lists(
        st.one_of(st.builds(Slot, works, works), st.integers(-(1 << 63), (1 << 63) - 1), st.none()),
        max_size=3,
    ).map(tuple),
    st.just({}),
    st.lists(st.builds(Out, st.integers(-1, 5), st.integers(-1, 5)), max_size=2).map(tuple),
)
clients = st.one_of(
    st.builds(m.Define, st.one_of(st.just(PROGRAM), st.binary(max_size=50))),
    st.builds(
        m.Run,
        works,
        st.one_of(st.just(HASH), st.binary(min_size=16, max_size=16)),
        ids,
        naturals,
        st.binary(max_size=20),
        st.binary(max_size=4),
        st.lists(st.one_of(st.integers(-5, 5), st.floats(), st.booleans()), max_size=3).map(tuple),
        ids,
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        m.Upload,
        works,
        st.integers(0, 6),
        st.one_of(st.integers(0, 100), naturals),
        st.one_of(st.just(0), naturals),
        st.one_of(st.none(), st.binary(max_size=100)),
        st.one_of(st.integers(0, 100), naturals),
        st.one_of(st.integers(0, 100), naturals),
    ),
    st.builds(
        m.Download,
        works,
        naturals,
        st.integers(0, 6),
        naturals,
        naturals,
        st.one_of(st.none(), naturals),
    ),
    st.builds(m.Sync, works, naturals),
    st.builds(m.Free, ids),
    st.builds(m.Tag, ids, st.integers(0, 1)),
    st.builds(
        m.Probe,
        naturals,
        ops,
        st.lists(geometries, max_size=3).map(tuple),
        st.just(()),
        st.just(Flags()),
    ),
    st.builds(
        m.ChooseAttention,
        naturals,
        *([geometries] * 3),
        st.one_of(st.none(), geometries),
        st.floats(),
        st.booleans(),
        st.one_of(st.none(), st.floats()),
        st.booleans(),
        st.tuples(*([st.booleans()] * 4)),
        *([st.lists(st.integers(0, 15), max_size=5).map(tuple)] * 2),
    ),
    st.builds(
        m.ChooseNorm,
        naturals,
        geometries,
        *([st.one_of(st.none(), geometries)] * 4),
        st.booleans(),
        st.floats(),
    ),
    st.builds(
        m.LayOutWeights,
        naturals,
        st.lists(geometries, max_size=5).map(tuple),
        st.integers(2, 5),
        st.integers(0, 9),
        st.integers(0, 3),
        *([st.integers(0, 9)] * 2),
        st.integers(1, 3),
        st.booleans(),
    ),
    st.builds(m.Seed, works, st.integers(-(1 << 63), (1 << 63) - 1), naturals),
    st.builds(m.GetRng, works, naturals, naturals),
    st.builds(m.SetRng, works, st.binary(max_size=6000), naturals),
    st.builds(m.Memory, naturals),
    st.builds(m.CellStarted, st.text(max_size=10)),
    st.builds(m.CellEnded, st.booleans()),
    st.builds(m.Loop, st.integers(0, 1 << 62)),
    st.builds(m.Cancel, naturals),
    st.builds(m.Resynced, naturals),
)


@pytest.fixture(scope="module")
def neighbour(cpu):
    client = cpu.connect("user2")
    client.source = client.floats(1, 2, 3, 4)
    yield client
    client.close()
    cpu.ended(client.session)


def goes_on(neighbour):
    total = neighbour.run(add(), [neighbour.source, neighbour.source])
    assert neighbour.read_floats(total, 4) == (2, 4, 6, 8)
    neighbour.send(m.Free((total,)))


def attack(cpu, neighbour, send):
    """Let a session misbehave, and see it end and its memory come back."""
    used = cpu.report().used
    client = cpu.connect("user1")
    with contextlib.suppress(ConnectionError):
        send(client)
    goes_on(neighbour)
    client.close()
    cpu.ended(client.session)
    goes_on(neighbour)
    neighbour.sync()
    assert cpu.report().used <= used


relaxed = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@relaxed
@given(messages=st.lists(clients, min_size=1, max_size=12), numbered=st.booleans())
def test_random_messages(cpu, neighbour, messages, numbered):
    def send(client):
        for message in messages:
            if numbered and hasattr(message, "work"):
                fields = [getattr(message, name) for name in type(message).__struct_fields__[1:]]
                message = type(message)(client.next_work(), *fields)
            client.send(message)

    attack(cpu, neighbour, send)


@relaxed
@given(data=st.binary(min_size=1, max_size=500))
def test_random_bytes(cpu, neighbour, data):
    attack(cpu, neighbour, lambda client: client.socket.sendall(data))


@relaxed
@given(data=st.binary(max_size=60), at=st.integers(0, 60), value=st.integers(0, 255))
def test_a_damaged_frame(cpu, neighbour, data, at, value):
    def send(client):
        frame = bytearray(client.writer.encode(m.Upload(1, 1, len(data), 0, data=data), 0))
        frame[at % len(frame)] = value
        client.socket.sendall(frame)

    attack(cpu, neighbour, send)


def test_a_frame_that_is_too_long_is_refused_before_it_comes(cpu, neighbour):
    client = cpu.connect("user1")
    client.socket.sendall(HEADER.pack(MAGIC, 1 << 30, 1, 0, 0))
    assert "larger than a frame" in client.receive(m.Refused).text
    client.close()
    cpu.ended(client.session)


def test_an_acknowledgement_of_what_was_never_sent_is_refused(cpu):
    client = cpu.connect("user1")
    client.socket.sendall(client.writer.encode(m.Memory(1), 1000))
    assert "never sent" in client.receive(m.Refused).text
    client.close()
    cpu.ended(client.session)


def test_a_flood_of_junk_is_cut_off(cpu, neighbour):
    client = cpu.connect("user1")
    with pytest.raises(ConnectionError):
        client.socket.sendall(os.urandom(64 << 20))
    client.close()
    cpu.ended(client.session)
    goes_on(neighbour)
