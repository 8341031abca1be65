"""Drains of a real broker around the scripted executor, and what is said of what would be lost."""

import contextlib

import pytest
from control_client import until

from jgpu.broker.control.reports.drains import DrainProgress as Shown
from jgpu.broker.control.reports.drains import drain_of
from jgpu.errors import BrokerRefused
from jgpu.wire.messages import CellStarted, Drain, Ready, ReportIs, Resync, Welcome
from jgpu.wire.reports.report import SessionReport

GIB = 1 << 30


def report(*sessions, draining=True, under_way=()):
    return ReportIs(1, (), sessions, 0, "fair", draining=draining, under_way=under_way)


def test_while_the_device_was_not_told_nothing_is_over():
    for latest in (None, report(draining=False)):
        assert drain_of(latest, ready=True).state == "draining"


def test_what_is_under_way_is_waited_for():
    shown = drain_of(report(under_way=tuple(range(1, 11))), ready=True)
    assert (shown.state, shown.waits_for) == ("draining", tuple(range(1, 11)))
    assert "session 1, 2, 3, 4, 5, 6, 7, 8 and 2 more" in shown.text


def test_what_stopping_would_cost_is_said_exactly():
    rows = [
        SessionReport(id=1, resident_bytes=GIB, ephemeral_bytes=2 * GIB),
        SessionReport(id=2, ephemeral_bytes=GIB // 2, spilled_bytes=GIB // 2),
        SessionReport(id=3),
    ]
    text = drain_of(report(*rows), ready=True).text
    assert "interrupts nobody" in text
    assert "2 sessions keep" in text
    assert "1 GiB of models and optimizers, 2 GiB else, and 512 MiB that are on" in text
    assert "1 session keeps" in drain_of(report(rows[1]), ready=True).text
    assert "Nothing is lost" in drain_of(report(rows[2]), ready=True).text


def test_without_an_executor_nothing_runs():
    assert drain_of(report(draining=False), ready=False) == Shown(
        "drained", (), "Nothing runs, for the device's process is not there."
    )


def drain(broker):
    shown = broker.status()["broker"]
    return shown["drain"], shown["drain_waits_for"]


def test_a_drain_is_seen_by_everybody_and_made_by_administrators(broker):
    assert drain(broker) == ("", [])
    with pytest.raises(BrokerRefused, match="Only an administrator may drain the device"):
        broker.ask(Drain(), broker.users)
    assert drain(broker) == ("", [])
    assert "No iteration begins" in broker.ask(Drain()).text
    assert "already" in broker.ask(Drain()).text
    until(lambda: drain(broker) == ("drained", []), "the end of the drain")
    assert "whoever waits goes on" in broker.ask(Drain(on=False)).text
    assert "not being drained" in broker.ask(Drain(on=False)).text
    assert drain(broker) == ("", [])


def test_new_kernels_start_and_wait_meanwhile(broker):
    client = broker.client()
    client.hello(user="user1")
    client.receive()
    client.send(CellStarted("is under way"))
    broker.ask(Drain())
    until(lambda: drain(broker) == ("draining", [1]), "a session that is waited for")
    broker.take_seat(user="user2")
    other = broker.client()
    assert isinstance(other.hello(user="user2"), Welcome)
    assert isinstance(other.receive(), Ready)
    client.send(CellStarted("is over"))
    until(lambda: drain(broker) == ("drained", []), "the end of the drain")


def test_the_next_executor_is_drained_as_well(broker):
    client = broker.client()
    client.hello(user="user1")
    client.receive()
    broker.ask(Drain())
    client.send(CellStarted("crash"))
    with contextlib.suppress(AssertionError):
        until(lambda: isinstance(client.receive(), Resync))
    until(lambda: broker.status()["devices"][0]["restarts"] == 1, "another executor")
    until(lambda: broker.status()["devices"][0]["state"] == "ready", "another executor")
    until(lambda: "Lost would be" in broker.status()["broker"]["drain_text"], "what it keeps")
    assert drain(broker) == ("drained", [])
