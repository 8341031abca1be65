"""Watchers of a real broker: what they are told, by which door, how many, and how slowly."""

import contextlib
import os
import pwd
import socket
from pathlib import Path

import pytest
from control_client import until

from jgpu.errors import BrokerUnreachable, QuotaExceeded
from jgpu.wire.address import Address
from jgpu.wire.asking import connect
from jgpu.wire.messages import (
    AskQuotas,
    AskStatus,
    CellStarted,
    MakeSocket,
    Quit,
    RemoveSocket,
    SetQuota,
    UsePolicy,
)
from jgpu.wire.reports.report import decode
from jgpu.wire.reports.watching import Subscription, watch

DEADLINE_S = 15.0


@pytest.fixture
def watching():
    """`watching(broker)` is a watcher's reports; closed at the end."""
    opened = contextlib.ExitStack()

    def start(address):
        reports = watch(address, DEADLINE_S, every_s=DEADLINE_S)
        opened.callback(reports.close)
        return reports

    with opened:
        yield start


def told(reports, condition, most=200):
    """The first report for which the condition holds; others may come before it."""
    for report, _ in zip(reports, range(most), strict=False):
        if condition(report):
            return report
    raise AssertionError("it was not told")


def states(report):
    return {row.id: row.state for row in report.sessions}


def test_a_watcher_is_told_the_report_and_then_what_happens(broker, watching):
    reports = watching(broker.address)
    assert next(reports).sessions == ()
    client = broker.client()
    client.hello(user="user1")
    told(reports, lambda report: states(report) == {1: "running"})
    client.receive()
    client.send(CellStarted("uses 2.5"))
    told(reports, lambda report: report.sessions[0].device_seconds == 2.5)
    broker.ask(SetQuota("user:user1", (("weight", "3"),), new=True))
    told(reports, lambda report: [row.weight for row in report.users] == [3.0])
    client.send(Quit())
    report = told(reports, lambda report: not report.sessions)
    assert [(row.name, row.ended_sessions) for row in report.users] == [("user1", 1)]


def test_where_nothing_happens_nothing_is_told(broker, watching):
    client = broker.client()
    client.hello(user="user1")
    reports = watching(broker.address)
    before = told(reports, lambda report: states(report) == {1: "running"} and report.users)
    for _ in range(5):
        broker.ask(AskStatus())
        broker.ask(AskQuotas())
    # Time has passed, of which nothing is told: the next thing that is, is the quota.
    broker.ask(SetQuota("user:user1", (("weight", "3"),), new=True))
    changed = next(reports)
    while changed.users == before.users:  # what was on its way
        changed = next(reports)
    assert changed.sessions[0].age_seconds == before.sessions[0].age_seconds
    assert changed.sessions == before.sessions


def test_what_a_watcher_knows_is_what_the_status_says(broker, watching):
    reports = watching(broker.address)
    clients = [broker.client() for _ in range(5)]
    for number, client in enumerate(clients):
        client.hello(user=f"user{number}")
    report = told(reports, lambda report: list(states(report).values()) == ["running"] * 5)
    asked = decode(broker.ask(AskStatus()).json)
    assert {row.id: row.user for row in report.sessions} == {
        row.id: row.user for row in asked.sessions
    }
    assert report.users == asked.users
    assert report.devices == asked.devices
    assert [row.since for row in report.sessions] == [row.since for row in asked.sessions]


def test_by_the_users_door_a_watcher_sees_their_own(broker, watching):
    mine, all_of_it = watching(broker.users), watching(broker.address)
    assert not next(mine).ledger
    assert next(all_of_it).ledger
    own, other = broker.client(broker.users), broker.client()
    own.hello(label="lesson.ipynb")
    other.hello(user="user2", label="secret.ipynb")
    me = pwd.getpwuid(os.getuid()).pw_name
    everything = told(all_of_it, lambda report: len(report.sessions) == 2)
    assert [row.user for row in everything.sessions] == [me, "user2"]
    seen = told(mine, lambda report: len(report.sessions) == 2)
    assert [(row.user, row.label) for row in seen.sessions] == [
        (me, "lesson.ipynb"),
        ("another user", ""),
    ]
    assert [row.name for row in seen.users] == [me]


def test_whoever_reads_nothing_is_told_the_latest_and_not_all_there_was(broker):
    with connect(broker.address, DEADLINE_S) as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        subscription = Subscription()
        stream.sendall(subscription.request)
        clients = [broker.client() for _ in range(30)]
        for number, client in enumerate(clients):
            client.hello(user=f"user{number}", label="x" * 1000)
        for client in clients:
            client.close()
        until(lambda: not broker.status()["sessions"])
        broker.ask(UsePolicy("fifo"))
        seen = []
        while not seen or seen[-1].sessions or len(seen[-1].users) < 30:
            seen += subscription.feed(stream.recv(1 << 16))
        assert len(seen) < 60  # of some hundred changes
        assert [row.ended_sessions for row in seen[-1].users] == [1] * 30


def test_so_many_may_watch_and_no_more(broker, watching):
    streams = [watching(broker.users) for _ in range(16)]
    for reports in streams:
        next(reports)
    with pytest.raises(QuotaExceeded, match=r"16 connections watch .* who may have 16 of 64"):
        next(watching(broker.users))
    streams[0].close()

    def another():
        with contextlib.suppress(QuotaExceeded):
            return next(watching(broker.users))

    until(another, "room for another watcher")
    assert broker.status()["broker"]["pid"] == broker.process.pid


def test_whoever_says_more_is_dropped_and_so_is_whoever_goes(broker):
    for say in (b"x", b""):
        with connect(broker.address, DEADLINE_S) as stream:
            subscription = Subscription()
            stream.sendall(subscription.request)
            while subscription.report is None:
                list(subscription.feed(stream.recv(1 << 16)))
            if say:
                stream.sendall(say)
                with contextlib.suppress(ConnectionResetError):
                    while stream.recv(1 << 16):
                        pass
    assert broker.status()["sessions"] == []


def test_watchers_at_a_servers_socket_go_with_it(broker, watching):
    path = broker.ask(MakeSocket("server1", "user1")).path
    reports = watching(Address(Path(path), "environment"))
    first = next(reports)
    assert [(row.name, row.sessions) for row in first.users] == [("user1", 0)]
    assert first.broker.asker == "user1"
    broker.ask(RemoveSocket("server1"))
    with pytest.raises(BrokerUnreachable):
        told(reports, lambda report: False)


def test_a_broker_that_stops_ends_its_watchers(broker, watching):
    reports = watching(broker.address)
    next(reports)
    assert broker.stop() == 0
    with pytest.raises(BrokerUnreachable):
        told(reports, lambda report: False)


def test_the_next_executor_is_followed_as_well(broker, watching):
    reports = watching(broker.address)
    client = broker.client()
    client.hello(user="user1")
    client.receive()
    told(reports, lambda report: states(report) == {1: "running"})
    client.send(CellStarted("crash"))
    told(reports, lambda report: report.devices[0].restarts == 1)
    told(reports, lambda report: states(report) == {1: "running"})
    client.receive()
    again = broker.client()
    again.hello(user="user2")
    again.receive()
    again.send(CellStarted("uses 4"))
    told(reports, lambda report: [row.device_seconds for row in report.sessions][-1] == 4.0)
