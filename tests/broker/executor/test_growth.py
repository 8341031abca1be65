"""Tables of the executor, each filled past its bound: it holds, and others notice nothing."""

import contextlib
import socket
import time
from threading import Event
from types import SimpleNamespace

import pytest
from client import Executor, add_in_place, chain, matmul
from test_pump import Host

from jgpu.broker.executor.aside import HelperThread
from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.orders import Orders
from jgpu.broker.executor.programs import define
from jgpu.broker.executor.programs.checking import inference
from jgpu.broker.executor.programs.running import callables
from jgpu.broker.executor.scheduling.forecast import Forecast
from jgpu.broker.executor.works.early import FOLLOWERS
from jgpu.broker.executor.works.transfers import UploadWork
from jgpu.errors import FrameError
from jgpu.wire import limits
from jgpu.wire import messages as m
from jgpu.wire.framing import HEADER, MAGIC, FrameReader
from jgpu.wire.program import (
    Geometry,
    Op,
    Out,
    Program,
    Slot,
    View,
    encode_program,
    program_hash,
)

ACCOUNT = SimpleNamespace(account=SimpleNamespace(capacity=1 << 30))


@pytest.fixture
def host():
    made = Host()
    yield made
    made.close()


@pytest.fixture(scope="module")
def executor():
    with Executor("cpu", lanes=2, threads=1) as made:
        yield made


def test_a_forecast_forgets_what_was_dropped_between_two_works():
    forecast = Forecast(1 << 30)
    for number in range(1, 5000):
        work = UploadWork(ACCOUNT, m.Upload(number, number, 100, 0, data=b""))
        work.before = [m.Free((number - 1,))]
        assert forecast.live_bytes(work) == 100
    assert len(forecast._made) == 1


def test_downloads_behind_one_work_are_counted(executor):
    client, other = executor.connect("user1"), executor.connect("user2")
    source = client.upload(bytes(4 * 256 * 256))
    one = client.floats(1, 1, 1, 1)
    for _ in range(10):
        client.run(matmul(256, ops=20), [source], live=b"")
    client.run(add_in_place(), [one, one])
    requests = [client.ask(one, 16) for _ in range(4 * FOLLOWERS)]
    assert {client.reply(request).data for request in requests} == {client.download(one, 16)}
    assert other.read_floats(other.floats(1, 2), 2) == (1, 2)


def test_a_work_is_followed_by_few_downloads(host):
    device = host.pump.device
    device.reads_directly, device.read_now = True, device.read  # as on `cpu`
    client = host.connect("user1")
    buffer = client.upload(bytes(16))
    host.settle()
    session = host.pump.sessions[1]
    program = chain(4, 3)
    client.defined.add(program_hash(encode_program(program)))  # so the client claims
    client.run(program, [buffer])
    held = [client.ask(buffer, 4) for _ in range(FOLLOWERS + 5)]
    for _ in range(50):
        host.pump.turn(0.0)
    assert len(session.queue.received[0].followers) == FOLLOWERS
    assert session.queue.outstanding == 1 + 5
    client.send(m.Define(encode_program(program)))
    client.send(m.Run(2, program_hash(encode_program(program)), (buffer,), 2, b""))
    for _ in range(3):
        host.settle()
    for request in held:
        assert client.reply(request).data == bytes(4)


def test_what_a_session_was_told_is_forgotten_in_time(host):
    client = host.connect("user1")
    source = client.floats(1, 2)
    client.run(chain(2, 1), [source])
    host.settle()
    session = host.pump.sessions[1]
    session.programs.told.update(number.to_bytes(16, "big") for number in range(9000))
    for ops in range(2, 4):
        client.run(chain(2, ops), [source])
    host.settle()
    assert len(session.programs.told) <= 3
    assert not client.failures


@pytest.fixture
def held(host, monkeypatch):
    """No probe ends before this is set."""
    made = Event()
    prober = host.pump._probes._prober
    monkeypatch.setattr(prober, "ask", lambda *question: (made.wait(60) and (None,), None))
    yield made
    made.set()


def ask_often(client, count):
    """So many probes, each another one."""
    for size in range(1, count + 1):
        tall = Geometry("float32", (size, client.session), (client.session, 1))
        op = Op("aten::relu.default", (Slot(0, 0),), {}, ())
        client.send(m.Probe(size, op, (tall,)))


def turns(host, count=20):
    for _ in range(count):
        host.pump.turn(0.0)


def test_a_session_with_enough_to_be_helped_with_is_not_read(host, held):
    client, other = host.connect("user1"), host.connect("user2")
    session = host.pump.sessions[1]
    ask_often(client, 200)
    client.send(m.CellStarted("unread"))
    other.send(m.CellStarted("read"))
    turns(host)
    assert 64 <= session.programs.helping < 64 + 32
    assert (session.cells.running, host.pump.sessions[2].cells.running) == ("", "read")
    held.set()
    host.settle()
    assert session.cells.running == "unread"
    assert session.programs.helping == 0


def test_a_users_notebooks_together_have_a_bound_and_little_always_passes(host, held):
    clients = [host.connect("user1") for _ in range(8)]
    small, other = host.connect("user1"), host.connect("user2")
    for client in clients:
        ask_often(client, 40)  # 10 MiB each
        client.send(m.CellStarted("done"))
    for client in (small, other):
        client.send(m.CellStarted("read"))
    turns(host)
    account = host.accounts["user1"]
    assert 64 << 20 <= account.waiting_bytes < (64 << 20) + 8 * (32 * 256 << 10)
    cells = [session.cells.running for session in host.pump.sessions.values()]
    assert cells[8:] == ["read", "read"]
    assert "" in cells[:8]
    held.set()
    host.settle()
    assert [session.cells.running for session in host.pump.sessions.values()][:8] == ["done"] * 8


def test_accounts_of_users_without_a_session_go(host):
    ours, theirs = socket.socketpair()
    orders = Orders(host.pump, Connection(theirs, m.ExecutorOrder))
    kept = orders._account("with a bill")
    kept.owed_s = 1.0
    for number in range(10_000):
        orders._account(f"user{number}")
    assert len(orders._accounts) <= 4096
    assert orders._account("with a bill") is kept
    host.pump._streams._epoll.unregister(theirs.fileno())
    ours.close()
    theirs.close()


def test_an_aside_remembers_few_who_are_gone():
    done = []
    aside = HelperThread("growth", lambda: None)
    for number in range(2000):
        aside.put(number, lambda: None, done.append)
    aside.close()
    aside.collect()
    assert len(done) == 2000
    assert len(aside._tasks) == 0
    aside.put(1, lambda: None, done.append)
    assert len(aside._spent) <= 256 + 1


def test_whoever_has_little_to_do_aside_does_not_wait_for_whoever_has_much():
    order, gate = [], Event()
    aside = HelperThread("growth", lambda: None)
    aside.put(1, gate.wait, lambda result: None, whose="greedy")

    def work(name, seconds):
        def task():
            order.append(name)
            ends = time.thread_time() + seconds
            while time.thread_time() < ends:
                pass

        return task

    for _ in range(50):
        aside.put(1, work("greedy", 0.005), lambda result: None, whose="greedy")
    for _ in range(10):
        aside.put(2, work("other", 0.0), lambda result: None, whose="other")
    gate.set()
    aside.close()
    assert len(order) == 60
    assert max(place for place, name in enumerate(order) if name == "other") < 15


def test_keys_of_long_lists_are_not_kept():
    def concatenated(count, size):
        row = Geometry("float32", (size,), (1,))
        made = Geometry("float32", (size * count,), (1,))
        op = Op("aten::cat.default", ([Slot(0, 0)] * count,), {}, (Out(1, 1),))
        views = (View(0), View(1))
        return encode_program(Program(1, (), (row, made), views, (op,)))

    define(concatenated(2, 3), "cpu")
    before = len(inference._known), len(callables._known)
    for size in range(1, 21):
        define(concatenated(2000, size), "cpu")
    assert (len(inference._known), len(callables._known)) == before


def test_a_reader_holds_no_more_than_a_frame():
    reader = FrameReader(m.ClientMessage)
    head = HEADER.pack(MAGIC, limits.MAX_FRAME_BYTES, 1, 0, 0)
    assert list(reader.feed(head + bytes(limits.MAX_FRAME_BYTES - 1))) == []
    assert len(reader.held) == HEADER.size + limits.MAX_FRAME_BYTES - 1
    with pytest.raises(FrameError, match="checksum"):
        list(reader.feed(b"x"))


def test_a_client_that_does_not_read_is_ended(executor):
    client, other = executor.connect("user1"), executor.connect("user2")
    buffer = client.upload(bytes(32 << 10))
    with contextlib.suppress(ConnectionError):  # it may be ended before its last request
        for _ in range(1200):  # 38 MB, more than may wait and what the socket holds
            client.ask(buffer, 32 << 10)
    assert executor.ended(client.session).text == "The client does not read what it is sent."
    assert other.read_floats(other.floats(1, 2), 2) == (1, 2)


def test_generators_are_few(executor):
    client, other = executor.connect("user1"), executor.connect("user2")
    for index in range(1, limits.MAX_GENERATORS + 2):
        client.send(m.Seed(client.next_work(), 1, index))
    assert f"{limits.MAX_GENERATORS}" in client.receive(m.Refused).text
    assert other.read_floats(other.floats(1, 2), 2) == (1, 2)
