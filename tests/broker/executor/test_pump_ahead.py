"""The pump in this process over the real `cuda` device, recorded calls and CPU kernels.

Streams go on when a test says so; what is looked at is who has to wait meanwhile.
"""

import os
import socket
import time
from functools import partial
from struct import pack, unpack
from threading import Event, Thread, current_thread

import pytest
import torch
from client import Client, add, program, scale, vector

from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.devices.cuda import CudaDevice
from jgpu.broker.executor.devices.fake import RecordingCalls
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.programs import KINDS, gate
from jgpu.broker.executor.programs import definition as definition_module
from jgpu.broker.executor.programs.kinds import Capabilities
from jgpu.broker.executor.programs.running.compile import compile_plan
from jgpu.broker.executor.pump import Pump
from jgpu.broker.executor.session import ExecutorSession, SessionOwner
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena
from jgpu.wire.program import (
    Flags,
    Geometry,
    Op,
    Out,
    Slot,
    encode_program,
    program_hash,
)

CAPACITY = 1 << 24


def doubled_where(length=4):
    """b = a + a; c = b with the number p where the mask is set; d = c + c"""
    return program(
        3,
        [
            Op("aten::add.Tensor", (Slot(0, 0), Slot(0, 0)), {}, (Out(3, 0),)),
            Op("aten::masked_fill.Tensor", (Slot(3, 0), Slot(1, 1), Slot(2, 2)), {}, (Out(4, 0),)),
            Op("aten::add.Tensor", (Slot(4, 0), Slot(4, 0)), {}, (Out(5, 0),)),
        ],
        [vector(length), vector(length, "bool"), Geometry("float32", (), ())],
    )


class Host:
    """A pump with clients, one thread, no process."""

    def __init__(self):
        self.calls = RecordingCalls(1 << 30)
        settings = ExecutorSettings(device="cuda", capacity=CAPACITY, lanes=2)
        self.device = CudaDevice(settings, self.calls)
        # Programs for the host's kernels, which are those that there are.
        self.pump = Pump(self.device, ExecutorSettings(device="cpu", lanes=2))
        self.clients = []
        self.accounts = {}

    def connect(self, user):
        ours, theirs = socket.socketpair()
        number = len(self.clients) + 1
        client = Client(ours, Arena.create(1 << 20), number)
        account = self.accounts.setdefault(user, Account(user, CAPACITY))
        connection = Connection(theirs, m.ClientMessage)
        arena = Arena.adopt(os.dup(client.arena.descriptor), 1 << 20)
        session = ExecutorSession(
            number, SessionOwner(user), connection, arena, account, self.pump.device
        )
        client.duplicate = theirs
        self.pump.adopt(session, 0)
        self.clients.append(client)
        return client

    def turn(self, rounds=5):
        """Rounds of the pump; streams stand still."""
        for _ in range(rounds):
            self.pump.turn(0.0)
            while any(each.programs.helping for each in self.pump.sessions.values()):
                self.pump.turn(0.01)
        self.pump.validate()

    def go_on(self, session=None):
        """Let everything on the streams be over, or on that of one session's lane."""
        for _ in range(20):
            if session is None:
                self.calls.advance_all()
            else:
                lane = self.pump.sessions[session.session].standing.lane
                stream = self.device._lanes[lane].stream
                self.calls.advance(stream, len(stream.pending))
            self.turn(1)

    def until(self, holds):
        """Rounds until another thread has done its part."""
        deadline = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline
            self.pump.turn(0.01)

    def hear(self, client, kind):
        """What has come for a client; nothing is waited for."""
        client.socket.setblocking(False)
        found = []
        try:
            data = client.socket.recv(1 << 20)
        except BlockingIOError:
            data = b""
        finally:
            client.socket.setblocking(True)
        client.inbox.extend(client.reader.feed(data))
        while client.inbox:
            message = client.inbox.popleft()
            if isinstance(message, kind):
                found.append(message)
            else:
                client.passed(message)
        return found

    def close(self):
        for client in self.clients:
            client.socket.close()
        deadline = time.monotonic() + 10
        while self.pump.sessions:
            assert time.monotonic() < deadline
            self.go_on()
        assert not self.device.uses
        self.pump.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setitem(KINDS, "cpu", Capabilities(torch.device("cpu"), ("CPU",), runs_ahead=True))
    made = Host()
    yield made
    made.close()


def is_compiled(definition):
    return all(definition._variants.values())


def given(client):
    """Uploads for `doubled_where`."""
    return [
        client.floats(1, 2, 3, 4),
        client.upload(bytes([0, 1, 0, 1])),
        client.floats(10),
    ]


EXPECTED = (4.0, 20.0, 12.0, 20.0)


def test_an_op_that_waits_holds_up_its_own_lane_alone(host):
    slow, other = host.connect("user1"), host.connect("user2")
    ones, twos = other.floats(1, 1, 1, 1), other.floats(2, 2, 2, 2)
    inputs = given(slow)
    host.go_on()
    first = slow.run(doubled_where(), inputs)
    asked = slow.ask(first + 2, 16)
    host.turn()
    assert host.device._lanes[host.pump.sessions[1].standing.lane].aside is not None
    total = other.run(add(), [ones, twos])
    told = other.ask(total, 16)
    host.turn()
    host.go_on(other)
    (reply,) = host.hear(other, m.Downloaded)
    assert reply.request == told
    assert unpack("4f", reply.data) == (3, 3, 3, 3)
    assert host.hear(slow, m.Downloaded) == []
    host.go_on()
    (reply,) = host.hear(slow, m.Downloaded)
    assert reply.request == asked
    assert unpack("4f", reply.data) == EXPECTED


def test_it_does_so_in_the_compiled_form_too(host):
    client = host.connect("user1")
    inputs = given(client)
    for run in range(5):
        if run == 3:
            definition = host.pump.definitions.get(program_hash(encode_program(doubled_where())))
            host.until(partial(is_compiled, definition))
        first = client.run(doubled_where(), inputs)
        asked = client.ask(first + 2, 16)
        host.turn()
        assert host.hear(client, m.Downloaded) == []
        host.go_on()
        (reply,) = host.hear(client, m.Downloaded)
        assert reply.request == asked
        assert unpack("4f", reply.data) == EXPECTED


def test_a_program_is_compiled_on_another_thread_and_walked_meanwhile(host, monkeypatch):
    threads, held = [], Event()

    def compile_later(*args, **kwargs):
        threads.append(current_thread())
        assert held.wait(10)
        return compile_plan(*args, **kwargs)

    monkeypatch.setattr(definition_module, "compile_plan", compile_later)
    client = host.connect("user1")
    number = client.floats(1, 2, 3, 4)
    for run in range(5):
        if run == 4:
            held.set()
            definition = host.pump.definitions.get(program_hash(encode_program(scale())))
            host.until(partial(is_compiled, definition))
        number = client.run(scale(), [number], (2.0,))
        host.turn()
        host.go_on()
    asked = client.ask(number, 16)
    host.turn()
    host.go_on()
    (reply,) = host.hear(client, m.Downloaded)
    assert reply.request == asked
    assert unpack("4f", reply.data) == (32, 64, 96, 128)
    assert len(threads) == 1, "it is compiled once"
    assert current_thread() not in threads


def test_a_program_that_cannot_be_compiled_is_walked(host, monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise SyntaxError("too deep")

    monkeypatch.setattr(definition_module, "compile_plan", refuse)
    client = host.connect("user1")
    number = client.floats(1, 2, 3, 4)
    for _ in range(2):
        number = client.run(scale(), [number], (2.0,))
        host.turn()
        host.go_on()
    definition = host.pump.definitions.get(program_hash(encode_program(scale())))
    host.until(partial(getattr, definition, "_broken"))
    number = client.run(scale(), [number], (2.0,))
    asked = client.ask(number, 16)
    host.turn()
    host.go_on()
    (reply,) = host.hear(client, m.Downloaded)
    assert unpack("4f", reply.data) == (8, 16, 24, 32)
    assert reply.request == asked
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert said == ["a program could not be compiled"]


def test_an_interrupt_ends_a_program_before_the_op_that_waits(host):
    client = host.connect("user1")
    inputs = given(client)
    host.go_on()
    first = client.run(doubled_where(), inputs)
    host.turn()
    request = client.cancel()
    host.turn()
    host.go_on()
    assert request in [each.request for each in host.hear(client, m.Synced)]
    asked = client.ask(first + 2, 16)
    host.turn()
    host.go_on()
    (failed,) = [each for each in host.hear(client, m.Failed) if each.request == asked]
    assert failed.error == "WorkCancelled"
    assert failed.op == 1, "the op that waits was not begun"


def test_a_session_may_end_while_its_program_waits(host):
    client, other = host.connect("user1"), host.connect("user2")
    inputs = given(client)
    host.go_on()
    client.run(doubled_where(), inputs)
    host.turn()
    client.socket.close()
    host.turn()
    host.go_on()
    assert list(host.pump.sessions) == [2]
    number = other.floats(5, 5, 5, 5)
    asked = other.ask(number, 16)
    host.turn()
    host.go_on()
    (reply,) = host.hear(other, m.Downloaded)
    assert reply.request == asked


def test_another_thread_under_other_flags_holds_up_only_those_who_need_others(host):
    mine, theirs = Flags(), Flags(cudnn_deterministic=True)
    client = host.connect("user1")
    number = client.floats(1, 2, 3, 4)
    twice = client.run(scale(), [number], (2.0,))
    host.turn()
    host.go_on()
    inside, leave = Event(), Event()

    def probe():
        with gate.passing(theirs):
            inside.set()
            leave.wait(10)

    thread = Thread(target=probe)
    thread.start()
    try:
        assert inside.wait(10)
        again = client.run(scale(), [twice], (2.0,))
        asked = client.ask(again, 16)
        host.turn()
        host.go_on()
        assert host.hear(client, m.Downloaded) == [], "it waits, and the pump does not"
        assert not gate.is_open_to(mine)
    finally:
        leave.set()
        thread.join(10)
    host.go_on()
    (reply,) = host.hear(client, m.Downloaded)
    assert reply.request == asked
    assert unpack("4f", reply.data) == (4, 8, 12, 16)


def test_a_wanted_value_is_told_before_the_rest_of_the_program_is_over(host):
    client = host.connect("user1")
    number = client.upload(pack("4f", 1, 2, 3, 4))
    for _ in range(4):
        first = client.run(scale(), [number], (3.0,), wanted=(0,))
        host.turn()
        assert host.hear(client, m.Value) == []
        host.go_on()
        (value,) = host.hear(client, m.Value)
        assert value.buffer == first
        assert unpack("4f", value.data) == (3, 6, 9, 12)


def test_a_wanted_value_of_a_run_that_failed_has_to_be_asked_for(host):
    client = host.connect("user1")
    number = client.floats(1, 2, 3, 4)
    index = client.upload(pack("4q", 0, 1, 2, 9))
    look = program(
        2,
        [Op("aten::index_select.default", (Slot(0, 0), 0, Slot(1, 1)), {}, (Out(2, 0),))],
        [vector(4), vector(4, "int64")],
    )
    first = client.run(look, [number, index], wanted=(0,))
    host.turn()
    host.go_on()
    messages = host.hear(client, (m.Value, m.Failed))
    assert [type(each) for each in messages] == [m.Failed, m.Value]
    assert messages[1] == m.Value(first, b"")


def behind_a_wait(host, client):
    """A program that waits for its stream, one that makes a number, and a third; all in one lane.

    Returns the buffer of the number.
    """
    inputs = given(client)
    number = client.floats(1, 2, 3, 4)
    for _ in range(2):  # the first time nobody knows what they write
        host.turn()
        host.go_on()
        client.run(doubled_where(), inputs)
        made = client.run(scale(), [number], (5.0,))
        client.run(add(), [number, number])
    return made


def test_a_download_follows_its_last_writer_and_not_what_was_sent_behind_it(host):
    client = host.connect("user1")
    made = behind_a_wait(host, client)
    asked = client.ask(made, 16)
    synced = client.next_request()
    client.send(m.Sync(client.next_work(), synced))
    heard, left = [], []
    for _ in range(30):  # an event of the stream at a time
        lane = host.device._lanes[host.pump.sessions[1].standing.lane]
        host.calls.advance(lane.stream, 1)
        host.turn(1)
        heard += [each.request for each in host.hear(client, (m.Downloaded, m.Synced))]
        if heard == [asked] and not left:
            left.append(host.pump.sessions[1].queue.outstanding)
    assert heard == [asked, synced]
    assert left == [2], "the program behind it, and the wait, are not over"


def test_a_download_behind_its_writer_has_the_writers_bytes(host):
    client = host.connect("user1")
    asked = client.ask(behind_a_wait(host, client), 16)
    host.turn()
    host.go_on()
    (reply,) = host.hear(client, m.Downloaded)
    assert reply.request == asked
    assert unpack("4f", reply.data) == (5, 10, 15, 20)


def test_a_download_whose_writer_was_interrupted_is_told_so(host):
    client = host.connect("user1")
    asked = client.ask(behind_a_wait(host, client), 16)
    host.turn()
    client.cancel()
    host.turn()
    host.go_on()
    failed = [each for each in host.hear(client, m.Failed) if each.request == asked]
    assert [each.error for each in failed] == ["WorkCancelled"]
    assert host.hear(client, m.Downloaded) == []


def test_a_download_of_a_number_that_failed_says_why(host):
    client = host.connect("user1")
    inputs = given(client)
    number, index = client.floats(1, 2, 3, 4), client.upload(pack("4q", 0, 1, 2, 9))
    host.go_on()
    client.run(doubled_where(), inputs)
    look = program(
        2,
        [Op("aten::index_select.default", (Slot(0, 0), 0, Slot(1, 1)), {}, (Out(2, 0),))],
        [vector(4), vector(4, "int64")],
    )
    asked = client.ask(client.run(look, [number, index]), 16)
    host.turn()
    host.go_on()
    failed = [each for each in host.hear(client, m.Failed) if each.request == asked]
    assert [each.error for each in failed] == ["IndexError"]


@pytest.mark.parametrize("freed", [True, False])
def test_a_wrong_value_that_only_the_device_saw_is_no_early_number(host, monkeypatch, freed):
    kind = Capabilities(torch.device("cpu"), ("CPU",), trusts_values=True, runs_ahead=True)
    monkeypatch.setitem(KINDS, "cpu", kind)
    client = host.connect("user1")
    inputs = given(client)
    number, index = client.floats(1, 2, 3, 4), client.upload(pack("4q", 0, 1, 2, 9))
    right = client.upload(pack("4q", 0, 1, 2, 3))
    look = program(
        2,
        [Op("aten::index_select.default", (Slot(0, 0), 0, Slot(1, 1)), {}, (Out(2, 0),))],
        [vector(4), vector(4, "int64")],
    )
    client.run(look, [number, right])
    client.run(scale(), [number], (2.0,))
    host.turn()
    host.go_on()
    client.run(doubled_where(), inputs)
    looked = client.run(look, [number, index])
    asked = client.ask(looked, 16)
    if freed:
        client.send(m.Free((looked,)))
    client.run(scale(), [number], (2.0,))
    host.turn()
    assert any(work.followers for work in host.pump.sessions[1].queue.offered)
    host.go_on()
    assert host.hear(client, m.Downloaded) == []
    failed = [*host.hear(client, m.Failed), *client.failures]
    assert [each.error for each in failed if each.request == asked] == ["IndexError"]


def test_a_lane_is_given_what_it_has_room_for_before_streams_are_read(host, monkeypatch):
    client = host.connect("user1")
    numbers = client.floats(1, 2, 3, 4)
    host.go_on()
    for _ in range(4):
        client.run(add(), [numbers, numbers])
    host.turn()
    queue, connection = host.pump.sessions[1].queue, host.pump.sessions[1].connection
    assert 0 < queue.launched < len(queue.offered)
    noted = []

    def noting(word, call):
        return lambda *given: (noted.append(word), call(*given))[1]

    monkeypatch.setattr(host.device, "submit", noting("given", host.device.submit))
    monkeypatch.setattr(connection, "receive", noting("read", connection.receive))
    host.calls.advance_all()
    client.send(m.Memory(client.next_request()))
    host.pump.turn(0.0)
    assert noted[:2] == ["given", "read"]
