"""Sessions that are interrupted or gone while a lane is at their ops: the pump in this process.

A lane stands still at a chosen op of a chosen work, before or in the midst of it, until the pump
has dealt with the interrupt, or with the session's end. What every buffer holds afterwards is
compared with a model that does the ops one by one.
"""

import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from client import DEADLINE_S, Client, program
from hypothesis import given, settings
from hypothesis import strategies as st

from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.devices.cpu import CpuDevice
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.pump import Pump
from jgpu.broker.executor.session import ExecutorSession, SessionOwner
from jgpu.broker.flightpage import FlightPage
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena
from jgpu.wire.program import Geometry, Op, Out, Slot, encode_program, program_hash

CAPACITY = 64 << 20
LENGTH = 2048
NBYTES = 4 * LENGTH
VECTOR = Geometry("float32", (LENGTH,), (1,))


# -- a lane that stands still where it is told to ---------------------------------------------


class Mark:
    """A view of the op's word, as `Record.mark`, that looks whether to stand still."""

    def __init__(self, record):
        self.record, self.view = record, record.record.mark()

    def __setitem__(self, place, op):
        self.record.page.pass_by(self.record.work, op, "before")
        self.view[place] = op
        self.record.page.pass_by(self.record.work, op, "inside")

    def __getitem__(self, place):
        return self.view[place]

    def release(self):
        self.view.release()


class WatchedRecord:
    """A record of the flight page, with such marks."""

    def __init__(self, page, record):
        self.page, self.record, self.work = page, record, 0

    def begin(self, session, work, *rest):
        self.work = work
        self.record.begin(session, work, *rest)

    def mark(self):
        return Mark(self)

    def __getattr__(self, name):
        return getattr(self.record, name)


class WatchedPage(FlightPage):
    """A flight page whose lanes stand still at one place."""

    def open(self, label):
        record = super().open(label)
        return WatchedRecord(self, record) if label.startswith("lane") else record

    def stand_still(self, *place):
        """At this place: (work, op, "before" or "inside")."""
        self.place, self.there, self.go = place, threading.Event(), threading.Event()

    place = None

    def pass_by(self, *place):
        if place == self.place:
            self.place = None
            self.there.set()
            assert self.go.wait(DEADLINE_S)


class LaneOnly(CpuDevice):
    """The pump does no job itself."""

    def submit(self, lane, jobs):
        self._outstanding += len(jobs)
        self._lanes[lane].put(jobs)

    def does_at_once(self, lane, jobs):
        return False


class Host:
    """A pump on `cpu` with clients, all in this process; its lanes have threads of their own."""

    def __init__(self, **more):
        chosen = ExecutorSettings(
            device="cpu", capacity=CAPACITY, lanes=1, threads=1, host_pool=CAPACITY, **more
        )
        self.page = WatchedPage.unshared()
        self.device = LaneOnly(chosen, self.page)
        self.pump = Pump(self.device, chosen)
        self.ended = []
        self.pump.on_ended = self.ended.append
        self.clients = []

    def connect(self, user="user1"):
        ours, theirs = socket.socketpair()
        number = len(self.clients) + 1
        client = Client(ours, Arena.create(1 << 16), number)
        connection = Connection(
            theirs, m.ClientMessage, on_blocked=lambda: self.pump.blocked(number)
        )
        arena = Arena.adopt(os.dup(client.arena.descriptor), 1 << 16)
        account = Account(user, CAPACITY)
        session = ExecutorSession(
            number, SessionOwner(user), connection, arena, account, self.device
        )
        client.duplicate = theirs
        self.pump.adopt(session, 0)
        self.clients.append(client)
        return client, session

    def turn_until(self, condition):
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            self.pump.turn(0.002)

    def settle(self):
        """Rounds until nothing is left to do."""
        self.turn_until(
            lambda: (
                not any(
                    s.queue.outstanding or s.programs.helping or s.movement.is_copying
                    for s in self.pump.sessions.values()
                )
            )
        )
        self.pump.turn(0.0)
        self.pump.validate()

    def reply(self, client, request):
        """The answer to a request; all rounds of the pump are made here."""
        found = []

        def look():
            try:
                while True:
                    client.fill(0.0005)
            except TimeoutError:
                pass
            except BlockingIOError:
                pass
            while client.inbox:
                message = client.inbox.popleft()
                if getattr(message, "request", None) == request:
                    found.append(message)
                else:
                    client.passed(message)
            return bool(found)

        self.turn_until(look)
        return found[0]

    def read(self, client, buffer):
        """A buffer's floats, or the failure's name."""
        answer = self.reply(client, client.ask(buffer, NBYTES))
        if isinstance(answer, m.Failed):
            return answer.error
        return torch.frombuffer(bytearray(answer.data), dtype=torch.float32).tolist()

    def close(self):
        for client in self.clients:
            client.socket.close()
        self.turn_until(lambda: not self.pump.sessions)
        self.pump.validate()
        assert self.pump.turns.free_bytes() == CAPACITY
        self.pump.close()
        for client in self.clients:
            client.close()


@contextmanager
def hosted(**more):
    host = Host(**more)
    try:
        yield host
    finally:
        if host.page.place is None and hasattr(host.page, "go"):
            host.page.go.set()
        host.close()


# -- works and their model --------------------------------------------------------------------


@dataclass
class Run:
    """A work: ops over four inputs and what they made, by slot: (kind, one, other)."""

    ops: list
    ends: bool

    def made(self):
        return sum(kind == "add" for kind, _, _ in self.ops)

    def program(self):
        slots, ops = 4, []
        for kind, one, other in self.ops:
            args = (Slot(one % slots, 0), Slot(other % slots, 0))
            ops.append(
                Op(
                    f"aten::{kind}.Tensor",
                    args,
                    {},
                    (Out(slots, 0) if kind == "add" else Out(-1, 0),),
                )
            )
            slots += kind == "add"
        return program(4, ops, [VECTOR])

    def touched(self, op):
        """Input slots that an op reads or writes."""
        slots = 4 + sum(kind == "add" for kind, _, _ in self.ops[:op])
        _, one, other = self.ops[op]
        return {each % slots for each in (one, other) if each % slots < 4}

    def written(self, op):
        """The slot that an op writes or makes."""
        slots = 4 + sum(kind == "add" for kind, _, _ in self.ops[:op])
        kind, one, _ = self.ops[op]
        return slots if kind == "add" else one % slots

    def do(self, inputs, count):
        """Values by slot after the first ops; the inputs are changed in place."""
        values = list(inputs)
        for kind, one, other in self.ops[:count]:
            a, b = values[one % len(values)], values[other % len(values)]
            if kind == "add":
                values.append(a + b)
            else:
                getattr(a, kind)(b)
        return values


_runs = st.lists(
    st.builds(
        Run,
        st.lists(
            st.tuples(
                st.sampled_from(["add", "add", "mul_", "add_"]),
                st.integers(0, 20),
                st.integers(0, 20),
            ),
            min_size=1,
            max_size=5,
        ),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def first_values():
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(LENGTH, generator=generator) for _ in range(4)]


def ends_at(runs, strike, begun, resident, older):
    """(run, ops of it): where works end that are struck in run `strike`; older ones are done."""
    if strike < older:
        return older - 1, len(runs[older - 1].ops)
    first = max((k + 1 for k in range(strike) if runs[k].ends), default=0)
    done = [(k, op) for k in range(first, strike) for op in range(len(runs[k].ops))]
    done += [(strike, op) for op in range(begun)]
    if not any(runs[k].written(op) in resident for k, op in done):
        return strike, begun
    last = next((k for k in range(strike, len(runs)) if runs[k].ends), len(runs) - 1)
    return last, len(runs[last].ops)


def model(runs, end, count):
    """The four buffers, and by run what it made, where `end` is stopped after so many ops."""
    inputs, made = first_values(), []
    for k, run in enumerate(runs):
        if k > end:
            made.append(["WorkCancelled"] * run.made())
            continue
        ops = count if k == end else len(run.ops)
        values = run.do(inputs, ops)
        last = {}
        for op in range(len(run.ops)):
            last[run.written(op)] = op
        made.append(
            [
                values[slot].tolist() if last[slot] < ops else "WorkCancelled"
                for slot in range(4, 4 + run.made())
            ]
        )
    return [each.tolist() for each in inputs], made


def begin(host, client, session, runs, resident, place):
    """Send everything, and let the lane come to a place; returns buffers and first fresh ones."""
    inputs = [client.upload(each.numpy().tobytes()) for each in first_values()]
    client.send(m.Tag(tuple(inputs[k] for k in resident), m.RESIDENT))
    work = client.work + 1 + place[0]
    host.page.stand_still(work, *place[1:])
    firsts = [client.run(run.program(), inputs, ends_iteration=run.ends) for run in runs]
    host.turn_until(host.page.there.is_set)
    return inputs, firsts


@settings(max_examples=50, deadline=None)
@given(
    _runs, st.data(), st.sets(st.integers(0, 3), max_size=2), st.sampled_from(["before", "inside"])
)
def test_an_interrupted_session_ends_before_its_model_changes_or_when_its_iteration_ends(
    runs, data, resident, where
):
    strike = data.draw(st.integers(0, len(runs) - 1), label="strike")
    op = data.draw(st.integers(0, len(runs[strike].ops) - 1), label="op")
    older = data.draw(st.integers(0, len(runs)), label="older")
    with hosted() as host:
        client, session = host.connect()
        inputs, firsts = begin(host, client, session, runs, resident, (strike, op, where))
        # What is asked for early is answered as all else: with its value, or why there is none.
        last = client.work
        asked = [
            client.ask(first, NBYTES) for first, run in zip(firsts, runs, strict=True) if run.made()
        ]
        request = client.cancel(last - len(runs) + older if older else 0)
        host.turn_until(lambda: session.queue.cancel_requests)
        late = client.upload(bytes(NBYTES))
        host.page.go.set()
        assert isinstance(host.reply(client, request), m.Synced)
        host.settle()
        begun = op + (where == "inside")
        end, count = ends_at(runs, strike, begun, resident, older)
        expected, made = model(runs, end, count)
        assert [host.read(client, buffer) for buffer in inputs] == expected
        for first, values in zip(firsts, made, strict=True):
            assert [host.read(client, first + k) for k in range(len(values))] == values
        assert {failure.error for failure in client.failures} <= {"WorkCancelled"}
        told = {number for failure in client.failures for number in failure.buffers}
        cancelled = {
            first + k
            for first, values in zip(firsts, made, strict=True)
            for k, value in enumerate(values)
            if value == "WorkCancelled"
        }
        assert told >= cancelled
        assert not told & set(inputs)
        # Work that comes later is right, and the sums are.
        assert host.read(client, late) == [0.0] * LENGTH
        later = Run([("add", 0, 1), ("add_", 0, 4)], ends=True)
        values = [torch.tensor(each) for each in expected]
        fresh = client.run(later.program(), inputs, ends_iteration=True)
        after = later.do(values, 2)
        assert host.read(client, fresh) == after[4].tolist()
        assert host.read(client, inputs[0]) == after[0].tolist()
        host.settle()
        assert session.table.resident == NBYTES * len(resident)
        assert asked is not None


@settings(max_examples=50, deadline=None)
@given(_runs, st.data(), st.sampled_from(["before", "inside"]))
def test_of_a_session_that_is_gone_nothing_is_held_but_what_its_op_in_progress_uses(
    runs, data, where
):
    strike = data.draw(st.integers(0, len(runs) - 1), label="strike")
    op = data.draw(st.integers(0, len(runs[strike].ops) - 1), label="op")
    with hosted() as host:
        client, session = host.connect()
        inputs, _ = begin(host, client, session, runs, {0}, (strike, op, where))
        client.socket.close()
        host.turn_until(lambda: session.life.has_ended)
        in_progress = op if where == "inside" else op - 1
        if in_progress >= 0:
            used = {inputs[k] for k in runs[strike].touched(in_progress)}
            assert set(session.table.buffers) == used
            assert session.account.used == NBYTES * len(used)
            assert host.pump.turns.free_bytes() == CAPACITY - NBYTES * len(used)
        session.table.validate()
        host.pump.turns.validate()
        host.page.go.set()
        host.turn_until(lambda: host.ended)
        assert (session.account.sessions, session.table.buffers) == ([], {})
        neighbour, _ = host.connect("user2")
        buffer = neighbour.upload(bytes(NBYTES))
        assert host.read(neighbour, buffer) == [0.0] * LENGTH


# -- by hand ----------------------------------------------------------------------------------


CHAIN = Run([("add", 0, 1), ("add_", 4, 4), ("add_", 2, 4), ("add", 2, 4)], ends=True)


def test_values_that_were_told_are_those_of_the_buffers():
    """What is told unasked in the midst of a run that is stopped later is what its buffer holds."""
    small = Geometry("float32", (4,), (1,))
    twice = Op("aten::add.Tensor", (Slot(0, 0), Slot(0, 0)), {}, (Out(1, 0),))
    more = Op("aten::add_.Tensor", (Slot(0, 0), Slot(0, 0)), {}, (Out(-1, 0),))
    told = program(1, [twice, more, more], [small])
    with hosted() as host:
        client, _ = host.connect()
        values = []
        client.passed = lambda message: values.append(message)
        total = client.floats(1, 2, 3, 4)
        for _ in range(2):
            client.run(told, [total], ends_iteration=True)
        host.settle()
        host.page.stand_still(client.work + 1, 2, "before")
        first = client.run(told, [total], wanted=(0,), ends_iteration=True)
        host.turn_until(host.page.there.is_set)
        request = client.cancel()
        host.turn_until(lambda: host.pump.sessions[1].queue.cancel_requests)
        host.page.go.set()
        assert host.reply(client, request)
        (value,) = [each for each in values if isinstance(each, m.Value)]
        held = host.reply(client, client.ask(first, 16))
        assert (value.buffer, value.data) == (first, held.data)


def test_a_stopped_run_teaches_nothing():
    with hosted() as host:
        client, session = host.connect()
        begin(host, client, session, [CHAIN], (), (0, 2, "before"))
        request = client.cancel()
        host.turn_until(lambda: session.queue.cancel_requests)
        host.page.go.set()
        assert host.reply(client, request)
        host.settle()
        definition = host.pump.definitions.get(program_hash(encode_program(CHAIN.program())))
        assert definition.predicted_s is None
        assert definition.surplus_bytes == 0
        assert definition.learnt == ()
        assert session.standing.iterations == 0


def test_an_interrupt_stops_what_waits_for_memory_in_its_midst_while_memory_is_on_its_way():
    check_waiting(lambda host, client: client.cancel())


def test_the_end_of_a_session_stops_what_waits_for_memory_in_its_midst():
    check_waiting(lambda host, client: client.socket.close())


def check_waiting(act):
    with hosted() as host:
        resting, rested = host.connect("user1")
        resting.upload(bytes(1 << 16))
        resting.send(m.IterationEnded())
        client, session = host.connect("user2")
        copy, going = host.device.copy_out, threading.Event()

        def copy_late(*arguments):
            assert going.wait(DEADLINE_S)
            copy(*arguments)

        host.device.copy_out = copy_late
        host.settle()

        def allocate(op, nbytes):
            if op == 3:
                raise torch.OutOfMemoryError("injected")

        host.device.allocate = allocate
        inputs = [client.upload(each.numpy().tobytes()) for each in first_values()]
        run = Run(CHAIN.ops, ends=False)
        first = client.run(run.program(), inputs)
        behind = client.run(CHAIN.program(), inputs, ends_iteration=True)
        host.turn_until(lambda: rested.movement.is_copying and session.course.halted is not None)
        request = act(host, client)
        if request is None:
            host.turn_until(lambda: host.ended)
            assert session.account.sessions == []
        else:
            assert isinstance(host.reply(client, request), m.Synced)
            expected, ((made, _), _) = model([run, CHAIN], 0, 3)
            assert [host.read(client, buffer) for buffer in inputs] == expected
            assert host.read(client, first) == made
            lost = [first + 1, behind, behind + 1]
            assert [host.read(client, buffer) for buffer in lost] == ["WorkCancelled"] * 3
        assert rested.movement.is_copying
        going.set()


def test_what_is_put_off_behind_a_work_that_waits_ends_after_it_when_its_session_is_gone():
    """The works of a session finish in their order, whenever the later ones come to the lane."""
    with hosted() as host:
        client, session = host.connect()

        def allocate(op, nbytes):
            if op == 1:
                host.page.pass_by("short")
                raise torch.OutOfMemoryError("injected")

        host.device.allocate = allocate
        inputs = [client.upload(each.numpy().tobytes()) for each in first_values()]
        run = Run([("add", 0, 1), ("add", 0, 1)], ends=False)
        host.page.stand_still("short")
        for _ in range(3):
            client.run(run.program(), inputs)
        host.turn_until(host.page.there.is_set)
        client.socket.close()
        host.turn_until(lambda: session.life.has_ended)
        host.page.go.set()
        host.turn_until(lambda: host.ended)
        assert session.account.sessions == []
