"""What is known, brief and alone goes a short way, and nothing but time tells."""

import os
import random
import socket
from inspect import isgenerator
from struct import pack, unpack
from time import monotonic

import pytest
import torch
from client import Client, add, add_in_place, bad_index, chain, rows_sum, scale
from faulty import replace_op

from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.devices import cpu, make_device
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.pump import Pump
from jgpu.broker.executor.session import ExecutorSession, SessionOwner
from jgpu.broker.flightpage import FlightPage, Kind, State
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena

CAPACITY = 1 << 24
WARM = 3


class Host:
    """A pump with clients, one thread, no process.

    `short`: there are short ways; `still`: time passes where a test says so.
    """

    def __init__(self, *, short=True, still=False):
        settings = ExecutorSettings(device="cpu", lanes=2, threads=1, capacity=CAPACITY)
        self.device = make_device(settings, None)
        self.page = FlightPage.unshared()
        self.device._page = self.page
        self.now = 1000.0
        clock = (lambda: self.now) if still else monotonic
        self.pump = Pump(self.device, settings, clock, self.page)
        self.clients, self.accounts = [], {}
        #: numbers of the works that went the short way
        self.went = []
        #: beside each of them, how much went before of which the core had not heard
        self.followed = []
        self.short = short
        ways = self.pump.turns.short
        self.untold = ways.others_heard.__self__
        ways.run, ways.upload = self._noting(ways.run), self._noting(ways.upload)

    def _noting(self, way):
        def noted(session, message, *more):
            if not (self.short and way(session, message, *more)):
                return False
            self.went.append(message.work)
            self.followed.append(len(self.untold._followed))
            return True

        return noted

    def connect(self, user="user1"):
        ours, theirs = socket.socketpair()
        number = len(self.clients) + 1
        client = Client(ours, Arena.create(1 << 20), number)
        account = self.accounts.setdefault(user, Account(user, CAPACITY))
        arena = Arena.adopt(os.dup(client.arena.descriptor), 1 << 20)
        connection = Connection(theirs, m.ClientMessage)
        owner = SessionOwner(user)
        session = ExecutorSession(number, owner, connection, arena, account, self.device)
        self.pump.adopt(session, 0)
        self.clients.append(client)
        return client

    def session(self, client):
        return self.pump.sessions[client.session]

    def settle(self):
        """Rounds of the pump until nothing is left to do."""
        for _ in range(2000):
            self.pump.turn(0.01)
            sessions = self.pump.sessions.values()
            # Whatever wakes the pump meanwhile, a helper's end among it, may leave a run untold.
            if not self.pump.turns.short.is_behind and not any(
                each.programs.helping
                or each.queue.outstanding
                or each.queue.cancel_requests
                or each.connection.inbox is not None
                for each in sessions
            ):
                break
        else:
            raise AssertionError("it does not end")
        self.pump.turn(0.0)
        self.pump.validate()

    def close(self):
        for client in self.clients:
            client.socket.close()
            client.arena.close()
        for _ in range(1000):
            self.pump.turn(0.01)
            if not self.pump.sessions:
                break
        self.pump.close()


@pytest.fixture
def hosts(monkeypatch):
    monkeypatch.setattr(cpu, "_BRIEF_S", 60.0)  # everything that is known is brief
    torch.set_grad_enabled(False)
    made = []

    def make(**how):
        made.append(Host(**how))
        return made[-1]

    yield make
    for host in made:
        host.close()
    torch.set_grad_enabled(True)


def heard(client):
    """All that a client was sent since, without what differs from run to run."""
    client.socket.setblocking(False)
    try:
        while data := client.socket.recv(1 << 20):
            client.inbox.extend(client.reader.feed(data))
    except BlockingIOError:
        pass
    client.socket.setblocking(True)
    found = [each for each in client.inbox if not isinstance(each, m.Ready | m.Ack)]
    client.inbox.clear()
    return [m.Synced(each.request) if isinstance(each, m.Synced) else each for each in found]


def known(host, client):
    """What is known of a session, anywhere, but for times."""
    session, turns = host.session(client), host.pump.turns
    forecast, course, cells = turns._forecasts[client.session], session.course, session.cells
    core = turns._core
    scheduled = core._table.sessions[client.session]
    flights = [entry for entry in host.page.entries() if entry.label.startswith("lane")]
    return {
        "buffers": {
            number: (buffer.nbytes, buffer.resident, buffer.poison, bytes_of(buffer))
            for number, buffer in session.table.buffers.items()
        },
        "table": (session.table.resident, session.table.kept, session.table.peak),
        "queue": (session.queue.next_number, session.queue.outstanding, session.queue.nbytes),
        "standing": (
            session.standing.lane, session.standing.riders, session.standing.leader,
            session.standing.at_boundary, session.standing.iterations,
        ),
        "course": (
            course._latest is None or course._latest.ends_iteration,
            course._work, len(course._runs), course.stops,
        ),
        "cells": (cells.running, cells.first_buffer, cells.failed_from, [*cells.times.seconds]),
        "forecast": (
            dict(forecast._made), forecast.made_bytes, forecast._peak, [*forecast._peaks],
            [*forecast._pending], forecast._told,
        ),
        "rest": (session.rest.is_told, session.rest.asked),
        "wait": session.wait.users,
        "gate": set(host.pump._dispatch._gate._begun),
        "runs": sum(turns.tallies.programs.now.counts),
        "told": set(session.programs.told),
        "core": (
            scheduled.state, scheduled.lane and scheduled.lane.id, scheduled.iteration_open,
            scheduled.iterations, scheduled.room.claim, scheduled.memory.kept,
            scheduled.memory.resident, scheduled.in_flight,
            [(line.what, line.why.split(" s")[0]) for line in core.story(client.session)],
        ),
        "core's": (core._last_work, core._turns._epoch),
        "waits": sum(core._turns.waits.now.counts),
        "users": sorted(core._ledger.active),
        "flight": [
            (entry.state, entry.session, entry.work, entry.kind, entry.program, entry.ops, entry.op)
            for entry in flights
        ],
    }  # fmt: skip


def bytes_of(buffer):
    return None if buffer.base is None else bytes(buffer.bytes().numpy())


def bits(*slots):
    return sum(1 << slot for slot in slots).to_bytes(1, "little")


def both(hosts, *steps, together=False):
    """Do the same on two hosts, of which one has the short way; returns it, and its client.

    After each step all that is known and was heard is compared. Where a step is a generator the
    usual way is through with what was sent when it yields. The short way is not, but where it
    yields True the pump reads what was sent, and no more. `together`: where the usual way is not,
    either, what comes behind something in flight has not begun to wait anew.
    """
    pair = [hosts(still=True), hosts(short=False, still=True)]
    clients = [host.connect() for host in pair]
    for number, step in enumerate(steps):
        seen = []
        for host, client in zip(pair, clients, strict=True):
            done = step(client)
            for heard_alone in done if isgenerator(done) else ():
                if not host.short:
                    host.settle()
                elif heard_alone:
                    host.pump.turn(0.0)
            host.settle()
            seen.append({**known(host, client), "heard": heard(client)})
        if together:
            del seen[0]["waits"]
        for what, value in seen[0].items():
            assert value == seen[1][what], f"{what} after step {number}"
    assert not pair[1].went
    return pair[0], clients[0], seen[0]


def uploaded(*values):
    return lambda client: client.floats(*values)


def ran(program, inputs, **kwargs):
    return lambda client: client.run(program, inputs, **kwargs)


def test_runs_are_known_as_if_they_had_gone_the_usual_way(hosts):
    warm = [ran(scale(), (1,), params=(2.0,), ends_iteration=True)] * WARM
    short, client, _ = both(
        hosts,
        uploaded(1, 2, 3, 4),
        *warm,
        ran(scale(), (1,), params=(3.0,), ends_iteration=True),
        *[ran(scale(), (1,), params=(5.0,), ends_iteration=False)] * 4,
        ran(scale(), (1,), params=(-0.0,), ends_iteration=True),
    )
    assert short.went[-6:] == list(range(client.work - 5, client.work + 1))


def test_a_wanted_value_is_told_and_a_download_answered(hosts):
    run = {"params": (2.0,), "wanted": (0,), "ends_iteration": True}

    def asks(client):
        client.run(scale(), (1,), **run)
        client.ask(client.buffers, 16)

    short, client, seen = both(
        hosts, uploaded(1, 2, 3, 4), *[ran(scale(), (1,), **run)] * WARM, asks, asks
    )
    assert short.went[-2:] == [client.work - 3, client.work - 1]
    value, answer = seen["heard"]
    assert isinstance(value, m.Value)
    assert unpack("4f", value.data) == unpack("4f", answer.data) == (2.0, 4.0, 6.0, 8.0)


def test_it_goes_so_behind_what_was_done_at_once_just_before_if_its_client_waits(hosts):
    run = {"params": (2.0,), "ends_iteration": True}

    def fed(**more):
        def step(client):
            client.floats(1, 2, 3, 4)
            client.run(scale(), (client.buffers,), **run, **more)

        return step

    short, client, seen = both(
        hosts,
        uploaded(1, 2, 3, 4),
        *[ran(scale(), (1,), wanted=(0,), **run)] * WARM,
        *[ran(scale(), (1,), **run)] * WARM,
        *[fed(), fed(wanted=(0,))] * 2,
        together=True,
    )
    assert client.work in short.went
    assert client.work - 2 not in short.went  # whose client may send ever more
    (value,) = seen["heard"]
    assert unpack("4f", value.data) == (2.0, 4.0, 6.0, 8.0)


def test_views_whose_places_come_with_each_run_go_so_too(hosts):
    def sums(*places, **more):
        return ran(rows_sum(2), (1,), params=places, wanted=(0,), **more)

    warm = [sums(0, 1)] * WARM
    outside = sums(1, 3)
    short, client, seen = both(
        hosts, uploaded(1, 2, 4, 8), *warm, sums(2, 1), sums(0, 2), outside, sums(2, 2)
    )
    assert short.went[-3:] == [client.work - 3, client.work - 2, client.work]
    assert seen["heard"] == [m.Value(client.buffers, pack("2f", 8.0, 16.0))]


def test_what_ends_with_a_run_and_what_was_forgotten_before_is_freed(hosts):
    def step(client):
        forgotten = client.buffers
        ends = client.floats(1, 2, 3, 4)
        client.run(chain(ops=3), (ends,), live=bits(2), dead=bits(0), free=(forgotten,))

    def runs(client):
        forgotten, ends = client.buffers - 1, client.buffers
        client.run(chain(ops=3), (ends,), live=bits(2), dead=bits(0), free=(forgotten,))

    steps = [uploaded(1), *[step, uploaded(1, 2, 3, 4), runs] * 4]
    short, client, seen = both(hosts, *steps, together=True)
    assert short.went[-1] == client.work
    assert [*seen["buffers"]][-1] == client.buffers
    assert not {client.buffers - 3, client.buffers - 4} & seen["buffers"].keys()


def test_what_is_written_in_place_counts_for_an_interrupt(hosts):
    def tags(client):
        client.send(m.Tag((1,), m.RESIDENT))

    short, _, seen = both(
        hosts,
        uploaded(1, 2, 3, 4),
        uploaded(1, 1, 1, 1),
        tags,
        *[ran(add_in_place(), (1, 2), ends_iteration=True)] * WARM,
        ran(add_in_place(), (1, 2)),
        lambda client: client.cancel(),
        ran(add_in_place(), (1, 2), ends_iteration=True),
    )
    assert len(short.went) >= 2
    assert unpack("4f", seen["buffers"][1][3]) == (6.0, 7.0, 8.0, 9.0)


def test_an_op_that_fails_is_told_with_its_place_and_what_it_spoiled(hosts):
    def indices(*values):
        return lambda client: client.upload(pack(f"{len(values)}q", *values))

    short, client, seen = both(
        hosts,
        uploaded(1, 2, 3, 4),
        indices(0, 1, 2, 3),
        indices(0, 1, 2, 9),
        *[ran(bad_index(), (1, 2), ends_iteration=True)] * WARM,
        ran(bad_index(), (1, 2), wanted=(0,), ends_iteration=True),
        ran(bad_index(), (1, 2), wanted=(0,), ends_iteration=True),
        ran(bad_index(), (1, 3), wanted=(0,), ends_iteration=True),
    )
    (failed, value) = seen["heard"]
    assert (failed.work, failed.op, failed.error) == (client.work, 0, "IndexError")
    assert failed.buffers == (client.buffers,)
    assert value == m.Value(client.buffers, b"")
    assert short.went[-1] == client.work  # it was begun there
    poisoned = client.buffers

    short, client, seen = both(
        hosts,
        uploaded(1, 2, 3, 4),
        indices(0, 9, 2, 3),
        indices(0, 1, 2, 3),
        *[ran(bad_index(), (1, 3), ends_iteration=True)] * WARM,
        *[ran(add(), (1, 4), ends_iteration=True)] * WARM,
        ran(bad_index(), (1, 2), ends_iteration=True),
        lambda client: client.run(add(), (1, client.buffers), ends_iteration=True),
    )
    assert poisoned
    assert client.work not in short.went  # it had a poisoned input, which is not as ever


def test_an_allocation_that_fails_makes_a_work_that_goes_on_where_it_failed(hosts, monkeypatch):
    def starve(host, client):
        """The next kernel of the program gets no memory, once."""
        (definition,) = host.pump.definitions._cache
        short = iter([True])

        def starving(call):
            def once(*args, **kwargs):
                if next(short, False):
                    raise torch.OutOfMemoryError("CUDA out of memory.")
                return call(*args, **kwargs)

            return once

        replace_op(monkeypatch, definition, 0, starving)

    host = hosts()
    client = host.connect()
    client.floats(1, 2, 3, 4)
    for _ in range(WARM + 1):
        client.run(chain(ops=2), (1,), live=bits(1), ends_iteration=True)
        host.settle()
    assert host.went
    assert heard(client) == []
    starve(host, client)
    made = client.run(chain(ops=2), (1,), live=bits(1), ends_iteration=True)
    host.settle()
    assert heard(client) == []
    assert unpack("4f", known(host, client)["buffers"][made + 1][3]) == (4.0, 8.0, 12.0, 16.0)
    assert host.session(client).course.halted is None


# -- uploads ---------------------------------------------------------------------------------------

#: a session that has its lane, and a run that is known
KNOWN = [
    uploaded(1, 2, 3, 4),
    *[ran(scale(), (1,), params=(2.0,), wanted=(0,), ends_iteration=True)] * (WARM + 1),
]


def scaled(client, buffer, **more):
    """A run that is known, of whose value somebody waits."""
    client.run(
        scale(), (buffer,), params=(2.0,), **{"wanted": (0,), "ends_iteration": True, **more}
    )


def test_uploads_are_known_as_if_they_had_gone_the_usual_way(hosts):
    short, client, seen = both(
        hosts,
        *KNOWN,
        uploaded(1),
        uploaded(1, 2, 3, 4),
        *[lambda client: client.upload(bytes(range(256)) * 16)] * 11,
        lambda client: scaled(client, client.buffers),
        uploaded(5),
    )
    large = client.work - 12  # the first of them needs more than the lane has
    usual = {*range(1, client.work + 1)} - {*short.went}
    assert usual == {*range(1, WARM + 1), large}
    assert seen["buffers"][client.buffers][3] == pack("f", 5)
    assert seen["table"][1] > 10 * 4096


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("size", [16, 4096])
def test_a_run_that_is_waited_for_goes_so_behind_uploads_that_came_with_it(hosts, count, size):
    def fed(client):
        made = [client.upload(pack("4f", *range(4)) * (size // 16)) for _ in range(count)]
        yield
        scaled(client, made[-1])

    large = [lambda client: client.upload(bytes(size))] * 2  # the lane grows
    short, client, seen = both(hosts, *KNOWN, *large, *[fed] * 9)
    since = client.work - 9 * (count + 1) + 1
    assert [work for work in short.went if work >= since] == list(range(since, client.work + 1))
    (value,) = seen["heard"]
    assert unpack("4f", value.data) == (0.0, 2.0, 4.0, 6.0)


def test_uploads_that_come_together_are_told_of_like_those_that_ride(hosts):
    def many(client):
        for k in range(7):
            client.floats(k, k)

    short, client, seen = both(hosts, *KNOWN, many, lambda client: scaled(client, 1), together=True)
    first = client.work - 7
    assert {first, first + 4} <= set(short.went)  # a work, and four that ride behind it
    assert first + 5 not in short.went
    assert client.work in short.went
    assert seen["standing"][1] == 0


def test_what_comes_behind_an_upload_finds_it_done(hosts):
    def behind(*rest):
        def step(client):
            client.floats(1, 2, 3, 4)
            yield
            for each in rest:
                each(client)
                yield

        return step

    def ask(client):
        client.ask(client.buffers, 16)

    def sync(client):
        client.send(m.Sync(client.next_work(), client.next_request(), True))

    def tags(client):
        client.send(m.Tag((client.buffers,), m.RESIDENT))

    def frees(client):
        client.send(m.Free((client.buffers,)))

    def ends(client):
        client.send(m.IterationEnded())

    def fails(client):
        client.send(m.CellEnded(True))

    def begins(client):
        client.send(m.CellStarted("one"))

    short, _, seen = both(
        hosts,
        *KNOWN,
        *map(behind, (ask, sync, tags, frees, ends, begins, fails)),
        behind(begins, uploaded(3), fails),
        behind(lambda client: client.cancel()),
        behind(lambda client: scaled(client, client.buffers), ask),
        behind(frees, uploaded(7), tags),
        behind(lambda client: scaled(client, client.buffers, wanted=())),
        lambda client: client.upload(bytes(5000), piece=3000),
        ask,
    )
    assert len([work for work in short.went if work > len(KNOWN)]) >= 13
    assert seen["heard"][-1].data == bytes(16)


def test_whatever_comes_together_is_known_as_if_it_had_come_one_by_one(hosts):
    chance = random.Random(7)

    def several(kinds, given):
        def step(client):
            for kind in kinds:
                if kind != "upload" or len(kinds) == 1:
                    yield
                if kind == "upload":
                    client.upload(given)
                elif kind == "run":
                    scaled(client, 1)
                elif kind == "free":
                    client.send(m.Free((client.buffers,)))
                elif kind == "tag":
                    client.send(m.Tag((client.buffers,), m.RESIDENT))
                elif kind == "ends":
                    client.send(m.IterationEnded())
                else:
                    client.ask(1, 16)

        return step

    def some():
        kinds = ["upload"] * chance.randrange(4)
        kinds += ["run"] * chance.randrange(4)
        kinds += chance.choices(["free", "tag", "ends", "ask"], k=chance.randrange(3))
        return several(kinds, bytes(chance.choice([4, 700, 4096])))

    short, client, _ = both(hosts, *KNOWN, *[some() for _ in range(60)])
    assert len(short.went) > client.work // 2


def test_an_op_that_fails_behind_an_upload_is_told_as_ever(hosts):
    def fed(place):
        def step(client):
            indices = client.upload(pack("4q", 0, 1, 2, place))
            yield
            client.run(bad_index(), (1, indices), wanted=(0,), ends_iteration=True)

        return step

    def uploads(client):
        client.upload(pack("4q", 0, 1, 2, 3))

    warm = ran(bad_index(), (1, 2), wanted=(0,), ends_iteration=True)
    short, client, seen = both(
        hosts, uploaded(1, 2, 3, 4), uploads, *[warm] * (WARM + 1), fed(3), fed(9), fed(2)
    )
    assert short.went[-6:] == list(range(client.work - 5, client.work + 1))
    assert unpack("4f", seen["buffers"][client.buffers][3]) == (1.0, 2.0, 3.0, 3.0)


# -- told of together ------------------------------------------------------------------------------


def test_what_follows_before_the_core_has_heard_is_known_as_ever(hosts):
    def several(client):
        for _ in range(client.chance.choice([1, 3, 20])):
            kind = client.chance.choice(["run", "run", "run", "upload", "uploads", "ask", "free"])
            if kind == "run":
                scaled(
                    client,
                    1,
                    wanted=client.chance.choice([(), (0,)]),
                    ends_iteration=client.chance.random() < 0.7,
                )
            elif kind == "ask":
                client.ask(client.buffers, 4)
            elif kind == "free":
                client.send(m.Free((client.buffers - 1,)))
            else:
                for _ in range(1 + (kind == "uploads")):
                    client.upload(bytes(client.chance.choice([4, 16])))
            yield True

    def begins(client):
        client.chance = random.Random(11)

    unasked = [lambda client: scaled(client, 1, wanted=())] * (WARM + 1)
    short, client, _ = both(hosts, *KNOWN, *unasked, begins, *[several] * 40)
    assert len(short.went) > client.work // 2
    assert max(short.followed) > 4


def test_the_core_charges_and_counts_it_as_if_told_at_once(hosts, monkeypatch):
    """Two pumps of which one tells of each run as soon as it is over; time is the same to both."""
    seen = []
    for prompt in (False, True):
        host = hosts(still=True)
        client, core = host.connect(), host.pump.turns._core
        for step in KNOWN:
            step(client)
            host.settle()
        (definition,) = host.pump.definitions._cache

        def slow(call, host=host):
            def slowed(*args, **kwargs):
                host.now += 0.0001
                return call(*args, **kwargs)

            return slowed

        replace_op(monkeypatch, definition, 0, slow)
        core._turns.waits.note(0.0)
        for k in range(60):
            host.now += 0.0001 if k % 7 else 0.003
            if k % 3 == 0:
                client.upload(bytes(8))
            scaled(client, 1, wanted=(0,), ends_iteration=k % 5 != 1)
            host.pump.turn(0.0)
            if prompt:
                host.pump.turns.short.catch_up()
        host.pump.turn(0.0)
        host.pump.validate()
        user, ledger = core._ledger.users["user1"], core._ledger
        session = core._table.sessions[client.session]
        assert len(host.went) >= 80
        assert prompt == (max(host.followed) <= 1)
        seen.append(
            {
                "charged": (user.device_seconds, user.virtual_s, session.virtual_s),
                "busy": (ledger.busy_s, ledger.now, user.idle_since, user.floor_s),
                "iterations": (session.iterations, session.iteration_open),
                "room": (session.room.claim, session.room.need),
                "last": (core._last_work, core._journal.now, core._journal.cause),
                "worked": core._turns.waits.now,
                "story": [str(line) for line in core.story(client.session)],
            }
        )
    assert seen[0] == seen[1]


def test_no_more_than_a_few_are_told_of_together(hosts):
    host = hosts(still=True)
    client = host.connect()
    for step in KNOWN:
        step(client)
        host.settle()
    for _ in range(30):
        scaled(client, 1)
        host.pump.turn(0.0)
        assert client.work in host.went
    assert max(host.followed) == 8
    host.pump.turn(0.0)
    assert not host.pump.turns.short.is_behind


def test_the_core_hears_of_it_in_a_while_whoever_sends_meanwhile(hosts):
    host = hosts(still=True)
    client = host.connect()
    for step in KNOWN:
        step(client)
        host.settle()
    scaled(client, 1)
    for seconds in (0.0, 0.0015, 0.001):
        host.pump.turn(0.0)
        assert host.pump.turns.short.is_behind
        host.now += seconds
        client.send(m.Memory(client.next_request()))
    host.pump.turn(0.0)
    assert not host.pump.turns.short.is_behind
    host.settle()


def test_others_find_the_core_informed(warmed):
    host, client = warmed
    other = host.connect("user2")
    for _ in range(4):
        scaled(client, 1, wanted=())
        host.pump.turn(0.0)
    assert host.pump.turns.short.is_behind
    iterations = host.pump.turns._core._table.sessions[client.session].iterations
    shown = host.pump.turns.snapshot().sessions
    assert not host.pump.turns.short.is_behind
    (own,) = [each for each in shown if each.id == client.session]
    assert own.iterations > iterations
    scaled(client, 1, wanted=())
    host.pump.turn(0.0)
    other.floats(1)
    host.pump.turn(0.0)
    assert own.iterations + 1 == host.pump.turns._core._table.sessions[client.session].iterations
    host.settle()


def refused(hosts, *messages):
    """What a client is told at its end that sends these, with a short way and without."""
    told = []
    for host in (hosts(), hosts(short=False)):
        client = host.connect()
        for step in KNOWN:
            step(client)
            host.settle()
        heard(client)
        went = len(host.went)
        client.send_all(messages)
        for _ in range(20):
            host.pump.turn(0.0)
        assert client.session not in host.pump.sessions
        assert host.pump.turns._core._table.sessions == {}
        told.append((heard(client), host.went[went:]))
    assert told[0][0] == told[1][0]
    return told[0]


def upload_of(work, buffer, size, data, offset=0):
    return m.Upload(work, buffer, size, offset, data=data)


FIRST = len(KNOWN) + 1


@pytest.mark.parametrize(
    "message",
    [
        upload_of(FIRST, 90, 3, b"four"),  # more than there is room for
        upload_of(FIRST, 90, 8, b"four", 4),  # a second piece of nothing
        upload_of(FIRST, 1, 4, b"four"),  # of a buffer that has another size
        upload_of(FIRST + 1, 90, 4, b"four"),  # a gap
        upload_of(FIRST - 1, 90, 4, b"four"),  # a number that was there
    ],
)
def test_an_upload_that_cannot_be_ends_its_session_as_ever(hosts, message):
    told, went = refused(hosts, message)
    assert isinstance(told[-1], m.Refused)
    assert went == []
    # The same behind one that went the short way.
    later = upload_of(message.work + 1, message.buffer, message.size, message.data, message.offset)
    told, went = refused(hosts, upload_of(FIRST, 80, 4, b"four"), later)
    assert isinstance(told[-1], m.Refused)
    assert went == [FIRST]


def test_a_session_may_end_behind_an_upload(hosts):
    assert refused(hosts, upload_of(FIRST, 80, 4, b"four"), m.Quit()) == ([], [FIRST])


def test_uploads_that_are_not_as_ever_go_the_usual_way(hosts):
    def over(client):  # of a buffer that is there
        client.send(upload_of(client.next_work(), 1, 16, pack("4f", 4, 3, 2, 1)))

    def wrong(client):
        client.upload(pack("4q", 9, 9, 9, 9))

    def spoilt(client):
        client.run(bad_index(), (1, client.buffers))

    def again(client):  # of one that holds nothing
        client.send(upload_of(client.next_work(), client.buffers, 16, pack("4f", 4, 3, 2, 1)))

    def noted(client):  # behind a note, which waits for what is in hand
        client.run(chain(length=8), (client.floats(*range(8)),))
        client.send(m.Free((client.buffers,)))
        client.floats(1)

    short, _, seen = both(
        hosts,
        *KNOWN,
        over,
        wrong,
        spoilt,
        again,
        lambda client: client.upload(bytes(4097)),
        lambda client: client.upload(b""),
        lambda client: client.upload_arena(bytes(16)),
        noted,
        over,
        together=True,
    )
    assert [work for work in short.went if work >= FIRST] == [FIRST + 7]  # it begins `noted`
    assert unpack("4f", seen["buffers"][1][3]) == (4.0, 3.0, 2.0, 1.0)


@pytest.fixture
def warmed(hosts):
    """A host whose client's next run of `scale` would go the short way."""
    host = hosts()
    client = host.connect()
    client.floats(1, 2, 3, 4)
    for _ in range(WARM):
        client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
        host.settle()
    client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
    host.settle()
    assert host.went[-1:] == [client.work]
    return host, client


def runs_short(host, client, **kwargs):
    kwargs = {"params": (2.0,), "ends_iteration": True, **kwargs}
    inputs = kwargs.pop("inputs", (1,))
    program = kwargs.pop("program", scale())
    client.run(program, inputs, **kwargs)
    host.settle()
    return client.work in host.went


def warmed_beside(host, client):
    """Another user's client, whose next run of `scale` would go the short way, too."""
    other = host.connect("user2")
    other.floats(1, 2, 3, 4)
    other.run(scale(), (1,), params=(2.0,), ends_iteration=True)
    host.settle()
    assert runs_short(host, client)
    assert runs_short(host, other) or runs_short(host, other)
    return other


def uploads_short(host, client):
    client.floats(1, 2)
    host.settle()
    return client.work in host.went


def test_what_is_not_as_ever_goes_the_usual_way(warmed):
    host, client = warmed
    assert runs_short(host, client)
    assert not runs_short(host, client, report=True)
    assert not runs_short(host, client, live=b"\x00")  # masks of which nothing is known
    client.run(chain(), (1,))  # a program of which nothing is known
    host.settle()
    assert client.work not in host.went
    client.send(m.Free((1000,)))
    client.run(scale(), (1,), params=(2.0,), ends_iteration=True)  # behind a note
    host.settle()
    assert runs_short(host, client)


def test_a_function_that_broke_its_word_is_not_called_again(warmed, monkeypatch):
    host, client = warmed
    (definition,) = host.pump.definitions._cache
    assert runs_short(host, client, wanted=(0,)) or runs_short(host, client, wanted=(0,))

    def otherwise(op):
        return lambda x, y: op(x, y).double()

    with monkeypatch.context() as patch:
        replace_op(patch, definition, 0, otherwise)
        assert runs_short(host, client)  # and goes on there, step by step
    assert definition._broken
    heard(client)
    for wanted in ((), (0,)):  # masks that know their function
        assert not runs_short(host, client, wanted=wanted)
    assert heard(client)[-1] == m.Value(client.buffers, pack("4f", 2, 4, 6, 8))


def test_masks_are_known_again_where_too_many_were_seen(warmed):
    host, client = warmed
    (definition,) = host.pump.definitions._cache
    key = (b"\x01", b"", ())
    assert definition.straight(*key) is not None
    for wanted in range(100):
        assert definition.straight(b"\x01", b"", (wanted,) * 2) is None
    assert len(definition._masks) <= 64
    assert definition.straight(*key).variant is definition._variants[key]
    assert runs_short(host, client)


def test_nobody_goes_before_others_who_have_work(warmed, monkeypatch):
    host, client = warmed
    other = warmed_beside(host, client)
    assert uploads_short(host, client)
    assert uploads_short(host, other)
    for each in (other, client):  # of whom one sees what the other has brought
        each.floats(1, 2)
        each.run(scale(), (1,), params=(2.0,), wanted=(0,), ends_iteration=True)
    host.settle()
    for each in (other, client):
        assert unpack("2f", host.session(each).table.buffers[each.buffers - 1].bytes().numpy())
        assert heard(each)[-1] == m.Value(each.buffers, pack("4f", 2, 4, 6, 8))
    monkeypatch.setattr(type(host.device), "at_work", lambda device: False)
    host.device._outstanding += 1  # a thread is at something
    client.floats(1, 2)
    host.pump.turn(0.0)
    host.device._outstanding -= 1
    host.settle()
    assert client.work not in host.went
    monkeypatch.setattr(cpu, "_BRIEF_S", 0.0)  # a thread does it
    monkeypatch.setattr(cpu, "_BRIEF_ALONE_S", 0.0)
    assert not runs_short(host, client)


def test_others_are_heard_between_runs_that_come_together(warmed):
    host, client = warmed
    other = warmed_beside(host, client)
    ways, order = host.pump.turns.short, []
    way = ways.run

    def noted(session, message, *more):
        order.append((session.number, way(session, message, *more)))
        return order[-1][1]

    ways.run = noted
    for _ in range(3):
        client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
    host.pump.turn(0.0)
    other.run(scale(), (1,), params=(2.0,), ends_iteration=True)
    host.settle()
    assert order[:2] == [(1, True), (2, True)]
    assert [number for number, _ in order] == [1, 2, 1, 1]


def test_each_round_is_a_sign_of_life_whatever_was_read_already(warmed):
    host, client = warmed
    session = host.session(client)

    def signs():
        before = host.page.pump_sign().since_ns
        host.pump.turn(0.0)
        return host.page.pump_sign().since_ns > before

    for _ in range(4):  # which go the short way, one a round
        client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
    for _ in range(3):
        assert signs()
        assert session.connection.inbox is not None
    host.settle()
    for _ in range(220):  # more than are dealt with in a few rounds
        client.send(m.Free(()))
    for _ in range(3):
        assert signs()
        assert session.connection.inbox is not None
    host.settle()
    for _ in range(20):  # each is there before the core has heard of the last
        client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
        assert signs()
        assert client.work in host.went


def test_a_limit_holds_here_too(warmed):
    host, client = warmed
    account = host.accounts["user1"]
    account.limit = account.used
    assert not runs_short(host, client)
    (failed,) = heard(client)
    assert failed.error == "OutOfMemoryError"
    assert not uploads_short(host, client)
    (failed,) = heard(client)
    assert (failed.error, failed.buffers) == ("OutOfMemoryError", (client.buffers,))
    account.limit = account.used + 8
    assert uploads_short(host, client)
    assert not uploads_short(host, client)
    (failed,) = heard(client)
    assert failed.work == client.work
    account.limit = 0
    assert runs_short(host, client)
    account.refusal, account.refused_as = "no more", "BudgetExceeded"
    assert not runs_short(host, client)
    (failed,) = heard(client)
    assert (failed.error, failed.text) == ("BudgetExceeded", "no more")


def test_who_has_lost_their_lane_is_given_one_the_usual_way(warmed):
    host, client = warmed
    session = host.session(client)
    session.rest.since -= 60.0
    host.pump.turns.look_around()  # it has rested for long
    assert not host.device._lanes
    assert not runs_short(host, client)
    assert heard(client) == []
    assert runs_short(host, client)
    session.rest.since -= 60.0
    host.pump.turns.look_around()
    assert not uploads_short(host, client)
    assert uploads_short(host, client)


def test_one_goes_so_and_the_core_hears_of_it_before_the_pump_waits(warmed):
    host, client = warmed
    teller = host.pump.turns._teller
    for _ in range(3):
        client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
    host.pump.turn(0.0)
    assert client.work - 2 in host.went
    assert client.work - 1 not in host.went  # others would wait for all of them
    assert client.work not in host.went
    host.pump.turn(0.0)
    assert host.went[-2:] == [client.work - 2, client.work - 1]  # others had nothing
    host.settle()
    assert host.went[-1] == client.work
    for _ in range(2):
        client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
        host.pump.turn(0.0)
        assert host.went[-1] == client.work
        assert teller.untold is not None  # who was answered comes first
        host.pump.turn(0.0)
        assert teller.untold is None
        assert not host.session(client).queue.outstanding
        assert host.device.poll_interval_s() is None
        host.pump.validate()
        client.floats(1)
        client.floats(2)
        host.pump.turn(0.0)
        assert host.went[-2:] == [client.work - 1, client.work]
        host.pump.turn(0.0)
        assert teller.untold is None
        host.pump.validate()


def test_drained_devices_begin_nothing_the_short_way(warmed):
    host, client = warmed
    host.pump.turns.drain(on=True)
    client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
    for _ in range(20):
        host.pump.turn(0.0)
    client.floats(1)
    for _ in range(20):
        host.pump.turn(0.0)
    assert not {client.work, client.work - 1} & {*host.went}
    assert host.session(client).queue.outstanding == 2
    host.pump.turns.drain(on=False)
    host.settle()
    assert runs_short(host, client)


def test_whoever_breaks_the_protocol_is_ended_as_ever(warmed):
    host, client = warmed
    client.work += 1  # a gap
    client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
    for _ in range(20):
        host.pump.turn(0.0)
    assert client.session not in host.pump.sessions
    refused = heard(client)[-1]
    assert isinstance(refused, m.Refused)
    assert "was due" in refused.text


def test_a_fault_in_its_midst_would_name_its_culprit(warmed, monkeypatch):
    """While its op runs, the page says whose it is."""
    host, client = warmed
    seen = []
    (definition,) = host.pump.definitions._cache

    def looking(call):
        def looked(*args, **kwargs):
            seen.extend(each for each in host.page.entries() if each.state is State.WORKS)
            return call(*args, **kwargs)

        return looked

    replace_op(monkeypatch, definition, 0, looking)
    assert runs_short(host, client)
    (entry,) = seen
    assert (entry.session, entry.work, entry.kind) == (client.session, client.work, Kind.PROGRAM)
    assert (entry.program, entry.op, entry.name) == (definition.hash, 0, "aten::mul.Tensor")
    assert all(each.state is State.RESTS for each in host.page.entries() if each.work)


class Looks:
    """What the pump asks when it may stay awake; nothing ever comes then."""

    def __init__(self, device):
        self.device, self.count = device, 0

    def wait(self, poll, timeout, after, nap):
        assert not self.device.at_work()  # or the lanes' threads would wait for the interpreter
        self.count += 1
        return poll(timeout)


@pytest.mark.parametrize("short", [False, True])
def test_the_pump_stays_awake_once_after_it_has_heard_somebody(hosts, short):
    host = hosts(short=short)
    client = host.connect()
    looks = host.pump._streams._wakefulness = Looks(host.device)
    client.floats(1, 2, 3, 4)
    for _ in range(WARM + 1):
        client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
        host.settle()
    host.pump.turn(0.0)  # without waiting there is nothing to stay awake for
    looks.count = 0
    client.run(scale(), (1,), params=(2.0,), ends_iteration=True)
    host.settle()
    host.pump.turn(0.001)
    assert looks.count >= 1
    looks.count = 0
    for _ in range(3):
        host.pump.turn(0.001)
    assert looks.count == 0  # once for each time that somebody was heard
