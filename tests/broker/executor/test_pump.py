"""The pump in this process, on `null`: every invariant after every round, whatever clients send."""

import os
import socket
import time
from threading import Thread

import pytest
import torch
from client import Client, add, chain, scale
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.devices.null import NullDevice
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.programs import Buffer
from jgpu.broker.executor.pump import Pump
from jgpu.broker.executor.session import ExecutorSession, SessionOwner
from jgpu.broker.executor.works.hostonly import FREED_AT_ONCE, MANY
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire import limits
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena
from jgpu.wire.program import Geometry, Op

CAPACITY = 1 << 16


class Host:
    """A pump with clients, one thread, no process."""

    def __init__(self):
        settings = ExecutorSettings(
            device="null", capacity=CAPACITY, lanes=2, host_pool=CAPACITY, spill_after_s=20.0
        )
        self.now = time.monotonic()
        self.pump = Pump(NullDevice(settings), settings, self.clock)
        self.ended = []
        self.pump.on_ended = self.ended.append
        self.accounts = {}
        self.clients = []

    def clock(self):
        """A clock that goes on a little whenever somebody looks."""
        self.now += 1e-5
        return self.now

    def connect(self, user):
        ours, theirs = socket.socketpair()
        number = len(self.clients) + 1
        client = Client(ours, Arena.create(1 << 16), number)
        account = self.accounts.setdefault(user, Account(user, CAPACITY))
        connection = Connection(
            theirs, m.ClientMessage, on_blocked=lambda: self.pump.blocked(number)
        )
        arena = Arena.adopt(os.dup(client.arena.descriptor), 1 << 16)
        session = ExecutorSession(
            number, SessionOwner(user), connection, arena, account, self.pump.device
        )
        client.duplicate = theirs
        self.pump.adopt(session, 0)
        self.clients.append(client)
        return client

    def settle(self):
        """Rounds until nothing is left to do."""
        for _ in range(1000):
            self.now += 0.05
            self.pump.turn(0.002)
            self.pump.validate()
            busy = [
                s
                for s in self.pump.sessions.values()
                if s.programs.helping or s.movement.is_copying
            ]
            if not busy:
                break
        self.pump.turn(0.0)
        self.pump.validate()

    def close(self):
        for client in self.clients:
            client.socket.close()
        self.settle()
        assert not self.pump.sessions
        for account in self.accounts.values():
            assert not account.sessions
        assert self.pump.turns.free_bytes() == CAPACITY
        self.pump.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def host():
    made = Host()
    yield made
    made.close()


class Noted:
    """What the device is given and the core is told, in order, and when it was by the clock."""

    def __init__(self, host, monkeypatch):
        self.lines, self.told = [], []
        device, core = host.pump.device, host.pump.turns._core
        submit, handle = device.submit, core.handle

        def note_submit(lane, jobs):
            self.lines.append("runs")
            self.began = host.now
            submit(lane, jobs)

        def note_event(event, now):
            self.lines.append(type(event).__name__)
            self.told.append((event, now))
            return handle(event, now)

        monkeypatch.setattr(device, "submit", note_submit)
        monkeypatch.setattr(core, "handle", note_event)


def test_what_comes_to_an_idle_device_runs_before_the_scheduler_hears_of_it(host, monkeypatch):
    client = host.connect("user1")
    client.upload(b"1234")
    host.settle()
    session, noted = host.pump.sessions[1], Noted(host, monkeypatch)
    paid_s = session.standing.charged_s()
    client.upload(b"5678")
    host.pump.turn(0.0)
    assert noted.lines[:2] == ["runs", "WorkArrived"]
    assert noted.lines.count("runs") == 1
    arrived = noted.told[0]
    finished = next(each for each in noted.told if type(each[0]).__name__ == "SegmentsFinished")
    assert arrived[0].work == finished[0].work
    assert arrived[1] == noted.began  # it is charged from its begin to its end
    assert session.standing.charged_s() - paid_s == pytest.approx(finished[1] - arrived[1])
    assert finished[1] > arrived[1]
    host.pump.validate()


def test_what_comes_behind_it_is_decided_by_the_scheduler(host, monkeypatch):
    clients = [host.connect("user1"), host.connect("user2")]
    for client in clients:
        client.upload(b"1234")
        host.settle()
    noted = Noted(host, monkeypatch)
    for client in clients:
        client.upload(b"5678")
    host.pump.turn(0.0)
    assert noted.lines[:4] == ["runs", "WorkArrived", "WorkArrived", "runs"]
    assert sorted(event.session for event, _ in noted.told[:2]) == [1, 2]
    host.pump.validate()


def test_while_a_program_is_tried_alone_nothing_runs_before_the_scheduler_hears_of_it(
    host, monkeypatch
):
    client = host.connect("user1")
    client.upload(b"1234")
    host.settle()
    noted = Noted(host, monkeypatch)
    host.pump.turns.trials.set(m.TryAlone((m.Suspect(b"p" * 32),)))
    client.upload(b"5678")
    host.pump.turn(0.0)
    assert noted.lines[:2] == ["WorkArrived", "runs"]
    host.pump.validate()


def test_the_scheduler_has_heard_at_the_end_of_a_round_of_what_an_interrupt_held_up(host):
    client = host.connect("user1")
    client.upload(b"1234")
    client.cancel()
    client.send(m.Sync(client.next_work(), client.next_request()))
    for _ in range(5):
        host.pump.turn(0.0)
        host.pump.validate()
    assert host.pump.sessions[1].queue.outstanding == 0


def test_a_session_is_idle_running_idle(host):
    client = host.connect("user1")
    host.settle()
    (status,) = host.pump.turns.snapshot().sessions
    assert status.state == "idle"
    client.upload(b"1234")
    host.settle()
    assert host.pump.sessions[1].table.used == 4
    (status,) = host.pump.turns.snapshot().sessions
    assert (status.state, status.device_seconds > 0) == ("idle", True)


def holding(host, client, count):
    """So many buffers of four bytes, that a session has; their numbers."""
    first = client.new(count)
    made = [Buffer(number, torch.empty(1, device="meta")) for number in range(first, first + count)]
    host.pump.sessions[client.session].table.add_made(made)
    return [buffer.id for buffer in made]


@pytest.mark.parametrize("with_run", [False, True])
def test_many_buffers_are_freed_a_few_at_a_time_behind_what_came_before(
    host, monkeypatch, with_run
):
    client = host.connect("user1")
    drop, freed = ExecutorSession.drop, []

    def note(session, numbers, port):
        freed.append(len(numbers))
        drop(session, numbers, port)

    monkeypatch.setattr(ExecutorSession, "drop", note)
    kept, *others = holding(host, client, 3 * FREED_AT_ONCE)
    last = client.floats(1.0)
    if with_run:
        made = client.run(scale(1), [kept], params=(2.0,), free=(*others, last))
    else:
        made = client.run(scale(1), [last], params=(2.0,))
        client.send(m.Free((*others, last)))
    request = client.next_request()
    client.send(m.Sync(client.next_work(), request))
    host.settle()
    assert isinstance(client.reply(request), m.Synced)
    session = host.pump.sessions[client.session]
    assert session.table.buffers.keys() == {kept, made}
    assert max(freed) <= FREED_AT_ONCE
    assert sum(freed) >= len(others) + 1


def test_buffers_that_are_freed_when_an_interrupt_comes_are_freed_all_the_same(host):
    client = host.connect("user1")
    client.send(m.Free(tuple(holding(host, client, 2 * FREED_AT_ONCE + 1))))
    client.cancel()
    host.settle()
    assert not host.pump.sessions[client.session].table.buffers


def test_a_session_that_ends_with_many_buffers_is_emptied_between_others_work(host, monkeypatch):
    discard, freed = NullDevice.discard, []

    def note(device, buffers):
        gone = [*buffers]
        freed.append(len(gone))
        discard(device, gone)

    monkeypatch.setattr(NullDevice, "discard", note)
    client, neighbour = host.connect("user1"), host.connect("user2")
    holding(host, client, MANY + 2 * FREED_AT_ONCE)
    session = host.pump.sessions[client.session]
    client.send(m.Quit())
    host.pump.turn(0.0)
    assert host.pump.sessions[client.session] is session
    assert session.table.used > 0
    x = neighbour.floats(1.0)
    while client.session in host.pump.sessions:
        host.pump.turn(-1.0)
        host.pump.validate()
    host.settle()
    assert not session.table.buffers
    assert sum(freed) == MANY + 2 * FREED_AT_ONCE
    assert max(freed) <= MANY
    assert host.pump.sessions[neighbour.session].table.buffers.keys() == {x}


def charged(host, number):
    return {s.id: s.device_seconds for s in host.pump.turns.snapshot().sessions}[number]


def test_what_was_computed_for_a_session_that_ended_is_paid_by_the_next_of_its_user(host):
    for user in ("user1", "user1", "user2"):
        host.connect(user)
    host.settle()
    first = host.pump.sessions[1]
    host.pump.turns.charge(first, 0.5)
    host.pump.end(first, "")
    host.pump.turns.charge(first, 0.25)
    assert [charged(host, number) for number in (2, 3)] == [0.25, 0.0]
    second = host.pump.sessions[2]
    host.pump.end(second, "")
    host.pump.turns.charge(second, 2.0)
    host.settle()
    assert [ended.device_seconds for ended in host.ended] == [0.5, 0.25]
    host.connect("user1")
    assert charged(host, 4) == 2.0
    assert charged(host, 3) == 0.0


class Clients(RuleBasedStateMachine):
    """Clients that keep to the protocol, in any order."""

    def __init__(self):
        super().__init__()
        self.host = Host()
        self.buffers = {}

    @precondition(lambda self: len(self.host.clients) < 4)
    @rule(user=st.sampled_from(["user1", "user2"]))
    def connects(self, user):
        client = self.host.connect(user)
        self.buffers[client.session] = []

    def one(self, choice):
        alive = [c for c in self.host.clients if c.session in self.buffers]
        return alive[choice % len(alive)] if alive else None

    @rule(choice=st.integers(0, 3), size=st.integers(0, CAPACITY * 2 // 3))
    def uploads(self, choice, size):
        client = self.one(choice)
        if client is not None:
            number = client.new()
            client.send(m.Upload(client.next_work(), number, size, 0, data=bytes(min(size, 64))))
            self.buffers[client.session].append(number)

    @rule(choice=st.integers(0, 3), ends=st.booleans(), live=st.integers(0, 7))
    def runs(self, choice, ends, live):
        client = self.one(choice)
        if client is not None:
            source = client.upload(bytes(4000))
            program = chain(1000, 3)
            first = client.run(program, [source], live=bytes([live]), ends_iteration=ends)
            made = [first + k for k in range(3) if live >> k & 1]
            self.buffers[client.session] += [source, *made]

    @rule(choice=st.integers(0, 3))
    def adds_what_may_be_poisoned(self, choice):
        client = self.one(choice)
        if client is not None and len(self.buffers[client.session]) >= 2:
            pair = self.buffers[client.session][-2:]
            self.buffers[client.session].append(client.run(add(1), pair, dead=b"\x01"))
            self.buffers[client.session].remove(pair[0])

    @rule(choice=st.integers(0, 3), resident=st.booleans())
    def tags_and_frees(self, choice, resident):
        client = self.one(choice)
        if client is not None:
            kept = self.buffers[client.session]
            client.send(m.Tag(tuple(kept), int(resident)))
            client.send(m.Free(tuple(kept[::2])))
            del kept[::2]

    @rule(choice=st.integers(0, 3))
    def asks(self, choice):
        client = self.one(choice)
        if client is not None and self.buffers[client.session]:
            client.ask(self.buffers[client.session][-1], 0)
            client.send(m.Sync(client.next_work(), client.next_request()))

    @rule(choice=st.integers(0, 3))
    def cancels(self, choice):
        client = self.one(choice)
        if client is not None:
            client.cancel()

    @rule(choice=st.integers(0, 3))
    def cells(self, choice):
        client = self.one(choice)
        if client is not None:
            client.send(m.CellStarted("[1]"))
            client.send(m.CellEnded(failed=client.work % 2 == 0))
            client.send(m.Loop(client.work))

    @rule(choice=st.integers(0, 3), resident=st.booleans())
    def is_spilled(self, choice, resident):
        client = self.one(choice)
        if client is not None and client.session in self.host.pump.sessions:
            session = self.host.pump.sessions[client.session]
            if not session.life.has_ended:
                self.host.pump.turns.evict(session, resident=resident)

    @rule(seconds=st.sampled_from([0.2, 3.0, 30.0]))
    def time_passes(self, seconds):
        self.host.now += seconds

    @rule(choice=st.integers(0, 3))
    def leaves(self, choice):
        client = self.one(choice)
        if client is not None:
            client.socket.close()
            del self.buffers[client.session]

    @rule()
    def turns(self):
        self.host.pump.turn(0.0)

    @rule()
    def settles(self):
        self.host.settle()

    @invariant()
    def is_valid(self):
        self.host.pump.validate()

    def teardown(self):
        for client in self.host.clients:
            if client.session in self.buffers:
                client.send(m.Sync(client.next_work(), 1 << 40))
        self.host.settle()
        for client in self.host.clients:
            refused = [n for n in self.host.ended if n.session == client.session and n.text]
            assert not refused
        self.host.close()


def test_whatever_clients_do_the_books_balance():
    run_state_machine_as_test(
        Clients, settings=settings(max_examples=60, stateful_step_count=25, deadline=None)
    )


@given(data=st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_junk_ends_its_session_alone(data):
    host = Host()
    client, neighbour = host.connect("user1"), host.connect("user2")
    client.socket.sendall(data)
    neighbour.upload(b"1234")
    host.settle()
    assert host.pump.sessions[2].table.used == 4
    host.close()


#: messages past a limit, each by what it is of a client and its first free buffer
PAST_LIMITS = {
    "frees": lambda c: m.Free(tuple(range(limits.MAX_SLOTS + 1))),
    "tags": lambda c: m.Tag(tuple(range(limits.MAX_SLOTS + 1)), m.RESIDENT),
    "inputs": lambda c: m.Run(1, bytes(16), (1,) * (limits.MAX_SLOTS + 1), 1, b""),
    "live outputs": lambda c: m.Run(1, bytes(16), (), 1, bytes(limits.MAX_SLOTS // 8 + 1)),
    "dead inputs": lambda c: m.Run(1, bytes(16), (), 1, b"", bytes(limits.MAX_SLOTS // 8 + 1)),
    "parameters": lambda c: m.Run(1, bytes(16), (), 1, b"", params=(1,) * (limits.MAX_SLOTS + 1)),
    "freed by a run": lambda c: m.Run(1, bytes(16), (), 1, b"", free=(9,) * (limits.MAX_SLOTS + 1)),
    "wanted values": lambda c: m.Run(1, bytes(16), (), 1, b"", wanted=(0,) * 9),
    "bytes in a frame": lambda c: m.Upload(1, 1, 1 << 16, data=bytes(limits.INLINE_BYTES + 1)),
    "a random state": lambda c: m.SetRng(1, bytes(limits.INLINE_BYTES + 1)),
    "a label": lambda c: m.CellStarted("x" * (limits.MAX_TEXT + 1)),
    "an op's list": lambda c: m.Probe(
        1, Op("aten::cat", (tuple(range(limits.MAX_LIST + 1)),), {}, ()), ()
    ),
    "a name": lambda c: m.Probe(1, Op("x" * (limits.MAX_NAME + 1), (), {}, ()), ()),
    "dimensions": lambda c: m.Probe(
        1, Op("aten::neg", (), {}, ()), (Geometry("int8", (1,) * 65, (1,) * 65),)
    ),
    "layers": lambda c: m.LayOutWeights(
        1, (), 2, 1, 0, 1, 0, layers=limits.MAX_LAYERS + 1, bidirectional=False
    ),
    "kernels": lambda c: m.ChooseAttention(
        *(1, *(Geometry("float32", (), ()),) * 3, None, 0.0, False, None, False),
        *((False,) * 4, (0,) * 17, ()),
    ),
    "generators": lambda c: m.Seed(1, 1, limits.MAX_GENERATORS),
}


@pytest.mark.parametrize("past", PAST_LIMITS)
def test_a_client_that_goes_past_a_limit_loses_its_own_session_alone(host, past, monkeypatch):
    client, neighbour = host.connect("user1"), host.connect("user2")
    if past == "generators":
        monkeypatch.setattr(limits, "MAX_GENERATORS", 1)
    x = neighbour.floats(3.0)
    host.settle()
    frame = client.writer.encode(PAST_LIMITS[past](client), client.reader.seen)
    thread = Thread(target=client.socket.sendall, args=(frame,))  # more than a socket holds
    thread.start()
    while thread.is_alive():
        host.pump.turn(0.002)
    host.settle()
    assert [each.session for each in host.ended] == [client.session]
    assert client.receive(m.Refused).reason == "protocol"
    made = neighbour.run(scale(1), [x], params=(2.0,))
    host.settle()  # until the program is known
    host.settle()
    assert host.pump.sessions[neighbour.session].table.buffers.keys() == {x, made}


def test_a_client_that_makes_too_many_buffers_loses_its_own_session_alone(host, monkeypatch):
    client, neighbour = host.connect("user1"), host.connect("user2")
    monkeypatch.setattr("jgpu.broker.executor.session.MAX_BUFFERS", 20)
    holding(host, client, 20)
    x = client.floats(1.0)
    neighbour.floats(1.0)
    host.settle()
    assert not host.ended
    client.run(scale(1), [x], params=(2.0,))
    host.settle()
    assert [each.session for each in host.ended] == [client.session]
    assert "at most 20 buffers" in client.receive(m.Refused).text
    assert host.pump.sessions[neighbour.session].table.used == 4
