"""Programs that ended executors: what the page says of it, and how the next one refuses them."""

import ctypes
import signal
import time

import pytest
from client import Executor, add, add_in_place, chain, matmul, scale

from jgpu.broker.control.executors.endings import read_end
from jgpu.broker.executor.programs import question_of
from jgpu.broker.flightpage import Kind, State
from jgpu.wire import messages as m
from jgpu.wire.program import Flags, Geometry, Op, Slot, encode_program, program_hash

SIZE, OPS = 1500, 40
#: several seconds on any core
LONG = matmul(SIZE, ops=OPS)
TEXT = "This program has ended the shared device twice."


def hash_of(program):
    return program_hash(encode_program(program))


def working(page, kind, session, deadline_s=30.0):
    """The record that is at a session's work of this kind, as soon as there is one."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        for entry in page.entries():
            if (entry.state, entry.kind, entry.session) == (State.WORKS, kind, session) and (
                entry.op >= 0
            ):
                return entry
    raise TimeoutError(f"session {session} runs no {kind.name}")


def fault(executor, entry, number):
    """Have the kernel end the process for what one of its threads did."""
    assert ctypes.CDLL(None).tgkill(executor.process.pid, entry.native_id, number) == 0
    return executor.process.wait(30)


@pytest.mark.parametrize(
    "number", [signal.SIGSEGV, pytest.param(signal.SIGFPE, marks=pytest.mark.slow)]
)
def test_a_fault_of_a_lanes_thread_names_session_program_and_op(number):
    with Executor("cpu", lanes=2, threads=1, capacity=1 << 30) as executor:
        bystander, culprit = executor.connect("user1"), executor.connect("user2")
        for client in (bystander, culprit):
            client.run(LONG, [client.upload_arena(bytes(4 * SIZE * SIZE))])
        working(executor.page, Kind.PROGRAM, bystander.session)
        entry = working(executor.page, Kind.PROGRAM, culprit.session)
        status = fault(executor, entry, number)
        end = read_end(executor.process.pid, status, executor.page, executor.page.fault())
    assert end.how == f"was ended by signal {number} ({number.name})"
    assert (end.culprit.session, end.culprit.work) == (culprit.session, culprit.work)
    assert (end.culprit.program, end.culprit.name) == (hash_of(LONG), "aten::mm.default")
    assert entry.op <= end.culprit.op < OPS


def test_what_the_host_kills_leaves_all_that_ran_as_suspects():
    with Executor("cpu", lanes=2, threads=1, capacity=1 << 30) as executor:
        clients = [executor.connect(user) for user in ("user1", "user2", "user3")]
        for client in clients[:2]:
            client.run(LONG, [client.upload_arena(bytes(4 * SIZE * SIZE))])
        for client in clients[:2]:
            working(executor.page, Kind.PROGRAM, client.session)
        executor.process.kill()
        status = executor.process.wait(30)
        end = read_end(executor.process.pid, status, executor.page, executor.page.fault())
    assert end.culprit is None
    assert {entry.session for entry in end.suspects} == {clients[0].session, clients[1].session}
    assert {entry.name for entry in end.suspects} == {"aten::mm.default"}


# -- the executor that follows ---------------------------------------------------------------


@pytest.fixture
def refuse(cpu):
    """Tell the executor what is not run any more; nothing, afterwards."""

    def tell(*programs):
        cpu.control.send(m.RefusePrograms(programs))
        cpu.report()

    yield tell
    tell()


def test_a_refused_program_is_not_run_for_whom_it_is_refused_and_says_why_once(connect, refuse):
    client, other = connect("user1"), connect("user2")
    refuse(m.RefusedProgram(hash_of(add()), TEXT, 0, "aten::add.Tensor", ("user1",)))
    a, b = client.floats(1, 2, 3, 4), client.floats(1, 1, 1, 1)
    first = client.run(add(), [a, b])
    again = client.run(add(), [first, b])
    failure = client.download(again, 16)
    assert (failure.error, failure.name, failure.text) == (
        "ProgramRefused", "aten::add.Tensor", TEXT,
    )  # fmt: skip
    assert [f.buffers for f in client.failures] == [(first,)]
    doubled = client.run(scale(), [a], (2.0,))
    assert client.read_floats(doubled, 4) == (2, 4, 6, 8)
    total = other.run(add(), [other.floats(1, 2, 3, 4), other.floats(1, 1, 1, 1)])
    assert other.read_floats(total, 4) == (2, 3, 4, 5)


def test_a_program_refused_for_everybody_is_not_even_checked(connect, refuse):
    program = chain(4, 3)
    refuse(m.RefusedProgram(hash_of(program), TEXT))
    for user in ("user1", "user2"):
        client = connect(user)
        made = client.run(program, [client.floats(1, 1, 1, 1)])
        assert client.download(made, 16).error == "ProgramRefused"
        assert client.unknown == []
    refuse()
    client = connect("user1")
    made = client.run(program, [client.floats(1, 1, 1, 1)])
    assert client.read_floats(made, 4)


def test_a_refused_program_is_refused_in_the_midst_of_an_iteration_too(connect, refuse):
    client = connect("user1")
    a, b = client.floats(1, 2, 3, 4), client.floats(1, 1, 1, 1)
    client.run(add_in_place(), [a, b], live=b"")
    client.memory()
    refuse(m.RefusedProgram(hash_of(add_in_place()), TEXT))
    client.run(add_in_place(), [a, b], live=b"", ends_iteration=True)
    client.sync()
    assert [f.error for f in client.failures] == ["ProgramRefused"]
    assert client.read_floats(a, 4) == (2, 3, 4, 5)


def test_a_question_that_ended_an_executor_is_not_tried_again(cpu, connect, refuse):
    client = connect("user1")
    op = Op("aten::mm.default", (Slot(0, 0), Slot(1, 1)), {}, ())
    square = Geometry("float32", (5, 5), (5, 1))
    key = question_of(op, (square, square), (), Flags())
    refuse(m.RefusedProgram(key, TEXT, 0, "aten::mm"))
    request = client.next_request()
    client.send(m.Probe(request, op, (square, square)))
    assert client.reply(request).error == ("ProgramRefused", TEXT)
    refuse()
    request = client.next_request()
    client.send(m.Probe(request, op, (square, square)))
    assert client.reply(request).outputs == (square,)
    (asked,) = [
        e for e in cpu.page.entries() if (e.session, e.kind) == (client.session, Kind.PROBE)
    ]
    assert (asked.program, asked.name) == (key, "aten::mm.default")


def test_users_who_are_held_off_compute_and_try_nothing_until_they_may_again(cpu, connect):
    client = connect("user9")
    cpu.control.send(m.SetUser("user9", refusal="Wait.", refused_as="HeldOff"))
    cpu.report()
    a = client.floats(1, 2, 3, 4)
    made = client.run(scale(), [a], (2.0,), ends_iteration=True)
    failure = client.download(made, 16)
    assert (failure.error, failure.text) == ("HeldOff", "Wait.")
    request = client.next_request()
    op = Op("aten::mm.default", (Slot(0, 0), Slot(1, 1)), {}, ())
    square = Geometry("float32", (6, 6), (6, 1))
    client.send(m.Probe(request, op, (square, square)))
    assert client.reply(request).error == ("ProgramRefused", "Wait.")
    assert client.read_floats(a, 4) == (1, 2, 3, 4)
    cpu.control.send(m.SetUser("user9"))
    cpu.report()
    client.defined.clear()  # the definition was not looked at
    assert client.read_floats(client.run(scale(), [a], (2.0,)), 4) == (2, 4, 6, 8)
