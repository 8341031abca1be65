"""A drained executor: what is under way ends, cells that wait are told why, and go on afterwards.

And what it tells of itself unasked: where somebody follows, and what went to the host.
"""

import itertools
import time

import pytest
from client import DEADLINE_S, Executor, add, add_in_place

from jgpu.wire import messages as m

MIB = 1 << 20


@pytest.fixture(scope="module")
def executor():
    with Executor("cpu", lanes=1, threads=1, capacity=64 * MIB) as made:
        yield made


@pytest.fixture
def connect(executor):
    opened = []

    def open_one(user="user1", **adopt):
        opened.append(executor.connect(user, **adopt))
        return opened[-1]

    yield open_one
    executor.control.send(m.Drain(on=False))
    executor.control.send(m.Follow(on=False))
    for client in opened:
        client.close()
        executor.ended(client.session)


def drained(executor):
    """The first report in which nothing is under way."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        report = executor.report()
        if report.draining and not report.under_way:
            return report
    raise TimeoutError(report)


def test_work_that_comes_waits_and_is_told_why_once_and_runs_afterwards(executor, connect):
    one, other = connect("user1"), connect("user2")
    values = one.floats(1, 2, 3, 4)
    one.sync()
    executor.control.send(m.Drain())
    assert drained(executor).draining
    total = one.run(add(), [values, values])
    request = one.next_request()
    one.send(m.Download(one.next_work(), request, total, 0, 16))
    told = one.receive(m.Notice)
    assert "begins nothing new for now" in told.text
    assert drained(executor).under_way == ()
    report = executor.report()
    states = {row.id: (row.state, row.waits_for) for row in report.sessions}
    since = {row.id: row.waits_since for row in report.sessions}
    assert 0.0 <= time.time() - since[one.session] < DEADLINE_S
    assert since[other.session] is None
    assert states == {one.session: ("waiting", ()), other.session: ("idle", ())}
    executor.control.send(m.Drain(on=False))
    assert one.receive(m.Notice | m.Downloaded).request == request
    assert not executor.report().draining
    assert not one.failures


def test_an_iteration_under_way_takes_the_rest_of_its_works(executor, connect):
    client = connect()
    values, step = client.floats(1, 2, 3, 4), client.floats(1, 1, 1, 1)
    client.sync()
    client.run(add_in_place(), [values, step])
    report = executor.report()
    executor.control.send(m.Drain())
    for _ in range(3):
        client.run(add_in_place(), [values, step])
    # It rests in its midst, and is over half a second later, or with its cell.
    client.send(m.CellEnded())
    assert drained(executor).under_way == ()
    executor.control.send(m.Drain(on=False))
    assert client.read_floats(values, 4) == (5, 6, 7, 8)
    assert report.sessions


def test_a_drain_told_to_sessions_that_rest_is_over_at_once(executor, connect):
    client = connect()
    client.floats(1, 2)
    client.sync()
    executor.control.send(m.Drain())
    report = drained(executor)
    assert [row.ephemeral_bytes for row in report.sessions] == [8]


def test_whoever_follows_is_told_what_happens_and_nothing_where_nothing_does(executor, connect):
    client = connect()
    client.sync()
    executor.control.send(m.Follow())
    first = executor.control.receive(m.ReportIs)
    assert first.request == 0
    told = [first]
    client.upload(bytes(MIB))
    client.sync()
    while told[-1].sessions[-1].ephemeral_bytes != MIB:
        told.append(executor.control.receive(m.ReportIs))
    while told[-1].sessions[-1].state != "idle":
        told.append(executor.control.receive(m.ReportIs))
    assert all(report != before for before, report in itertools.pairwise(told))
    executor.control.send(m.Follow(on=False))
    executor.control.send(m.AskReport(1))
    while executor.control.receive(m.ReportIs).request == 0:
        pass  # what was on its way when it was told
    client.upload(bytes(MIB))
    client.sync()
    report = executor.report()
    assert (report.request, report.sessions[-1].ephemeral_bytes) == (1, 2 * MIB)


def test_what_went_to_the_host_is_told(executor, connect):
    client = connect()
    model, other = client.upload(bytes(2 * MIB)), client.upload(bytes(MIB))
    client.send(m.Tag((model,), m.RESIDENT))
    client.sync()
    executor.control.send(m.Evict(client.session, resident=False))
    told = executor.control.receive(m.Spilled)
    assert told == m.Spilled(client.session, MIB, 2 * MIB)
    assert client.download(other, 4) == bytes(4)
    client.sync()
    executor.control.send(m.Evict(client.session))
    assert executor.control.receive(m.Spilled) == m.Spilled(client.session, 3 * MIB, 0)


def test_what_is_counted_only_grows_and_tells_what_happened(executor, connect):
    client = connect()
    before = executor.report().measures
    values = client.floats(1, 2, 3, 4)
    client.sync()
    executor.control.send(m.Evict(client.session))
    assert executor.control.receive(m.Spilled).nbytes == 16
    client.run(add_in_place(), [values, values])
    client.send(m.CellEnded())
    assert client.read_floats(values, 4) == (2, 4, 6, 8)
    after = executor.report().measures
    assert (after.spills - before.spills, after.restores - before.restores) == (1, 1)
    assert after.spilled_bytes - before.spilled_bytes == 16
    assert after.restored_bytes - before.restored_bytes == 16
    assert sum(after.programs.counts) == sum(before.programs.counts) + 1
    assert after.programs.seconds > before.programs.seconds
    for name in ("waits", "iterations"):
        was, now = getattr(before, name), getattr(after, name)
        assert len(now.counts) == len(now.bounds) + 1
        assert sum(now.counts) > sum(was.counts)
