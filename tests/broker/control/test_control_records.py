"""What a broker keeps on record: who did what, by which door, who may read it, and who used it."""

import contextlib
import itertools
import os
import pwd
import re
import signal
import sqlite3
import time

import pytest
from control_client import until

from jgpu.errors import BrokerRefused, ConfigError, QuotaExceeded
from jgpu.wire.address import Address
from jgpu.wire.messages import (
    AskEvents,
    AskQuotas,
    AskStatus,
    AskUsage,
    CellStarted,
    Drain,
    Evict,
    MakeSocket,
    NameUser,
    RemoveSocket,
    SetQuota,
    UsePolicy,
)
from jgpu.wire.reports.records import decode_events, decode_usage
from jgpu.wire.reports.report import decode, decode_quotas

ME = pwd.getpwuid(os.getuid()).pw_name
DAY_S = 86400.0


def events(broker, where=None, **fields):
    """The oldest first."""
    reply = broker.ask(AskEvents(**fields), where)
    return list(reversed(decode_events(reply.json).events))


def kinds(broker, where=None, **fields):
    return [event.kind for event in events(broker, where, **fields)]


def usage(broker, where=None, **fields):
    now = time.time()
    asked = {"since": now - DAY_S, "until": now + DAY_S, "step": 2 * DAY_S} | fields
    return [
        (row.name, row.device_seconds)
        for row in decode_usage(broker.ask(AskUsage(**asked), where).json).rows
    ]


def test_at_the_users_door_no_uid_reads_of_others_what_it_did_as_an_administrator(broker):
    """The hub's hooks are root's, and root in a container is root here as well."""
    broker.ask(NameUser(20001, "user1", ("class",)))
    broker.ask(MakeSocket("user2/", "user2", ()))
    broker.ask(SetQuota("group:class", (("weight", "2"),), new=True))
    broker.ask(SetQuota(f"user:{ME}", (("weight", "2"),), new=True))
    found = decode_events(broker.ask(AskEvents(), broker.users).json)
    assert not {"user1", "user2", "class"} & set(
        re.split(r"[^a-z0-9]", str([(e.about, e.text) for e in found.events]))
    )
    assert "Set: weight=2." in {event.text for event in found.events if event.about == ME}


def test_what_administrators_do_is_on_record_with_who_and_by_which_door(broker):
    client = broker.client()
    client.hello(user="user1")
    broker.ask(SetQuota("user:user1", (("weight", "3"), ("memory", "")), new=True))
    broker.ask(SetQuota("group:class", (("weight", "2"),), new=True))
    broker.ask(UsePolicy("fifo"))
    broker.ask(Evict(1))
    path = broker.ask(MakeSocket("server1", "user2")).path
    broker.ask(RemoveSocket("server1"))
    broker.ask(NameUser(54321, "user3"))
    found = events(broker)
    assert [(event.kind, event.about, event.text) for event in found[1:]] == [
        ("quota", "user1", "Set: weight=3, no memory."),
        ("quota", "group:class", "Set: weight=2."),
        ("policy", "", "The policy is fifo from now on, until the broker ends."),
        ("evict", "user1", "Asked for session 1 to give up its memory."),
        ("socket", "user2", f"The server server1 has the socket {path}."),
        ("socket", "user2", "The socket of the server server1 is gone."),
        ("name", "user3", "uid 54321 is user3."),
    ]
    assert (found[0].kind, found[0].who) == ("start", "")
    whose = {(event.who, event.identity, event.door) for event in found[1:]}
    assert whose == {(ME, f"uid {os.getuid()}", "administrators")}
    assert all(a.id < b.id and a.when <= b.when for a, b in itertools.pairwise(found))


def test_what_a_program_asks_for_somebody_is_on_record_under_their_name(broker):
    broker.ask(SetQuota("user:user1", (("weight", "3"),), new=True, by="tutor1"))
    broker.ask(UsePolicy("las", by="tutor1"))
    broker.ask(Drain(on=True, by="tutor1"))
    with pytest.raises(ConfigError):
        broker.ask(SetQuota("user:user1", (("weight", "much"),), by="tutor1"))
    with pytest.raises(BrokerRefused):  # at the users' door nobody speaks for others
        broker.ask(UsePolicy("las", by="tutor1"), broker.users)
    assert [(event.kind, event.who) for event in events(broker)[1:]] == [
        ("quota", "tutor1"),
        ("policy", "tutor1"),
        ("drain", "tutor1"),
        ("refusal", "tutor1"),
        ("refusal", ME),
    ]


def test_what_is_only_tried_changes_nothing_and_is_not_on_record(broker):
    known = SetQuota("user:user1", (("weight", "3"),), new=True)
    broker.ask(known)
    before = decode_quotas(broker.ask(AskQuotas()).json)
    for settings in ((("weight", "4"), ("memory", "4G")), (("weight", ""),), ()):
        broker.ask(SetQuota("user:user1", settings, trial=True))
    after = decode_quotas(broker.ask(AskQuotas()).json)
    assert (after.scopes, after.users) == (before.scopes, before.users)
    assert kinds(broker) == ["start", "quota"]
    for scope, settings in (
        ("user:user1", (("memory", "1G"), ("resident", "2G"))),
        ("user:user1", (("nothing", "1"),)),
        ("user:nobody9", (("weight", "2"),)),
    ):
        for trial in (True, False):
            with pytest.raises(ConfigError):
                broker.ask(SetQuota(scope, settings, trial=trial))


def test_a_list_of_a_whole_class_is_on_record_whole(broker):
    for number in range(60):
        broker.ask(SetQuota(f"user:user{number}", (("weight", "2"),), new=True))
    assert kinds(broker).count("quota") == 60


def test_what_is_refused_is_on_record(broker):
    refused = (
        (UsePolicy("fifo"), "change the policy"),
        (SetQuota("default", (("weight", "9"),)), "may set quotas"),
        (MakeSocket("x", "y"), "say who a hub's users are"),
    )
    for request, text in refused:
        with pytest.raises(BrokerRefused, match=text):
            broker.ask(request, broker.users)
    found = [event for event in events(broker) if event.kind == "refusal"]
    assert [(event.who, event.door) for event in found] == [(ME, "users")] * 3
    for event, (_, text) in zip(found, refused, strict=True):
        assert text in event.text
    assert broker.status()["broker"]["refusals"] == {"refused": 3}
    shown = decode(broker.ask(AskStatus(), broker.users).json)
    assert shown.broker.refusals == {}


def test_tickets_and_names_of_others_are_on_record_and_of_no_use(broker):
    ticket = broker.take_seat(user="user1", kernel_id="secret")
    path = broker.ask(MakeSocket("server2", "user2")).path
    client = broker.client(Address(type(broker.log)(path), "environment"))
    client.hello(ticket=ticket, user="user1")
    (row,) = broker.status()["sessions"]
    assert (row["user"], row["kernel_id"]) == ("user2", "")
    forged = [event for event in events(broker) if event.kind in ("ticket", "claim")]
    assert [(e.kind, e.who, e.identity, e.door, e.about) for e in forged] == [
        ("ticket", "user2", "socket server2", "server", "user1"),
        ("claim", "user2", "socket server2", "server", "user1"),
    ]


def test_students_see_what_concerns_them_without_others_names(broker):
    socket = Address(type(broker.log)(broker.ask(MakeSocket("s2", "user2")).path), "environment")
    broker.ask(SetQuota("user:user2", (("weight", "3"),), new=True))
    broker.ask(SetQuota("user:user3", (("weight", "3"),), new=True))
    ticket = broker.take_seat(user="user3")
    broker.client(socket).hello(ticket=ticket)
    found = events(broker, socket)
    assert [(e.kind, e.who, e.about, e.identity) for e in found] == [
        ("socket", "an administrator", "user2", ""),
        ("quota", "an administrator", "user2", ""),
        ("ticket", "user2", "another user", ""),
    ]
    assert not any("user3" in event.text for event in found)
    assert kinds(broker, socket, user="user2") == ["socket", "quota", "ticket"]
    with pytest.raises(BrokerRefused, match="You are user2"):
        events(broker, socket, user="user3")
    assert kinds(broker, user="user3") == ["quota", "ticket"]


def test_events_are_read_page_by_page(broker):
    for weight in range(1, 8):
        broker.ask(SetQuota("user:user1", (("weight", str(weight)),), new=True))
    newest = decode_events(broker.ask(AskEvents(limit=3)).json).events
    assert [event.text for event in newest] == [f"Set: weight={n}." for n in (7, 6, 5)]
    before = decode_events(broker.ask(AskEvents(newest[-1].id, 3)).json).events
    assert [event.text for event in before] == [f"Set: weight={n}." for n in (4, 3, 2)]


def test_an_end_of_the_executor_is_on_record(broker):
    client = broker.client()
    client.hello(user="user1")
    client.receive()
    client.send(CellStarted("crash"))
    until(lambda: "fault" in kinds(broker), "the fault")
    (fault,) = [event for event in events(broker) if event.kind == "fault"]
    assert fault.who == ""
    assert "SIGKILL" in fault.text or "killed" in fault.text


def test_whoever_is_refused_again_and_again_does_not_fill_the_record(broker):
    for _ in range(30):
        with pytest.raises(BrokerRefused):
            broker.ask(UsePolicy("fifo"), broker.users)
    broker.ask(UsePolicy("fifo"))
    found = kinds(broker)
    assert found.count("refusal") == 20
    assert found[-1] == "policy"


def test_the_record_outlives_the_broker(start_broker):
    first = start_broker().ready()
    first.ask(SetQuota("user:user1", (("weight", "3"),), new=True))
    assert first.stop() == 0
    second = start_broker().ready()
    assert kinds(second) == ["start", "quota", "stop", "start"]


def test_a_ledger_of_the_version_before_is_gone_on_with(start_broker, tmp_path):
    spool = tmp_path / "spool"
    spool.mkdir(mode=0o700)
    now = time.time()
    with contextlib.closing(sqlite3.connect(spool / "usage.sqlite")) as connection:
        connection.execute(
            "CREATE TABLE jgpu_charges (run VARCHAR(32) NOT NULL, session INTEGER NOT NULL, slice "
            'BIGINT NOT NULL, "user" VARCHAR(64) NOT NULL, device VARCHAR(256) NOT NULL, '
            'kernel_id VARCHAR(256) NOT NULL, start FLOAT NOT NULL, "end" FLOAT NOT NULL, '
            'device_seconds FLOAT NOT NULL, PRIMARY KEY (run, session, slice, "user"))'
        )
        row = ("r", 1, int(now // 300), "user1", "cpu", "k", now - 5, now, 2.5)
        connection.execute(f"INSERT INTO jgpu_charges VALUES ({','.join('?' * 9)})", row)
        connection.commit()
    broker = start_broker().ready()
    assert kinds(broker) == ["start"]
    assert usage(broker) == [("user1", 2.5)]


def test_a_ledger_that_cannot_be_used_stops_nobody_and_what_waits_is_told(start_broker):
    broker = start_broker(config=["c.JgpuBroker.ledger = 'sqlite:////proc/none/x.sqlite'"]).ready()
    broker.ask(UsePolicy("fifo"))
    answer = decode_events(broker.ask(AskEvents()).json)
    assert [event.kind for event in answer.events] == ["policy", "start"]
    assert "cannot be read" in answer.note
    now = time.time()
    told = decode_usage(broker.ask(AskUsage(now - 60, now, 60.0)).json)
    assert (told.rows, "cannot be read" in told.note) == ((), True)
    assert broker.ask(AskStatus())


def test_usage_is_told_by_user_and_group_and_to_others_their_own(broker):
    for user, seconds in (("user1", 2), ("user2", 3)):
        client = broker.client()
        client.hello(user=user)
        client.receive()
        client.send(CellStarted(f"uses {seconds}"))
    broker.ask(NameUser(54321, "user1", ("class", "late")))
    until(lambda: usage(broker) == [("user1", 2.0), ("user2", 3.0)], "the usage")
    assert usage(broker, by="group") == [("", 3.0), ("class", 2.0), ("late", 2.0)]
    assert usage(broker, broker.users) == []
    path = broker.ask(MakeSocket("s2", "user2")).path
    assert usage(broker, Address(type(broker.log)(path), "environment")) == [("user2", 3.0)]


def test_usage_of_no_time_or_too_many_steps_is_refused(broker):
    for fields, text in (
        ({"since": 10.0, "until": 5.0}, "from one time until a later one"),
        ({"since": float("nan")}, "from one time until a later one"),
        ({"until": float("inf")}, "from one time until a later one"),
        ({"since": -1.0}, "from one time until a later one"),
        ({"step": float("inf")}, "from one time until a later one"),
        ({"step": 60.0}, "2880 steps; ask for 1000 at most"),
    ):
        with pytest.raises((BrokerRefused, QuotaExceeded), match=text):
            usage(broker, **fields)


def test_days_that_are_over_are_told_without_asking_an_executor_that_may_not_answer(broker):
    """It is waited for a second each time, and a year is some twenty questions."""
    client = broker.client()
    client.hello(user="user1")
    client.receive()
    executor = broker.status()["devices"][0]["pid"]
    os.kill(executor, signal.SIGSTOP)
    try:
        now, began = time.time(), time.monotonic()
        for day in range(1, 61):
            usage(broker, since=now - (day + 1) * DAY_S, until=now - day * DAY_S)
        assert time.monotonic() - began < 30  # 60 s and more, if it were asked
    finally:
        os.kill(executor, signal.SIGCONT)
