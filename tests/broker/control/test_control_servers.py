"""What a hub says of its users: a socket for each server, names for uids; and who cannot say it."""

import os
import shutil
import signal

import pytest
from control_client import until

from jgpu.broker.control import servers
from jgpu.broker.control.listening.identity import Identities, login_name
from jgpu.broker.control.quotas.groups import Groups
from jgpu.errors import BrokerRefused, ConfigError
from jgpu.wire.address import Address
from jgpu.wire.framing import FrameWriter
from jgpu.wire.limits import PROTOCOL
from jgpu.wire.messages import (
    AskQuotas,
    AskSockets,
    AskStatus,
    AskStop,
    Evict,
    HubQuota,
    LeaveSeat,
    MakeSocket,
    NameUser,
    Refused,
    RemoveSocket,
    SetQuota,
    TakeSeat,
    UsePolicy,
    Welcome,
)
from jgpu.wire.reports.report import decode, decode_quotas

OWN = login_name(os.getuid())


def make(broker, server="user1/lab", user="user1", groups=("class",)):
    path = broker.ask(MakeSocket(server, user, groups)).path
    return Address(type(broker.users.path)(path), "environment")


def look(broker, where=None):
    return decode(broker.ask(AskStatus(), where).json)


def open_session(broker, where, **fields):
    client = broker.client(where)
    welcome = client.hello(**fields)
    assert isinstance(welcome, Welcome), welcome
    client.receive()
    return client, welcome


def take_seat(broker, where):
    return broker.ask(TakeSeat(PROTOCOL, "kernel"), where).ticket


def test_whoever_comes_by_a_servers_socket_is_its_user_whatever_they_say(broker):
    where = make(broker)
    _, welcome = open_session(broker, where, user="user2")
    assert welcome.user == "user1"
    (row,) = look(broker).sessions
    assert row.user == "user1"
    assert [user.name for user in look(broker, where).users] == ["user1"]


def test_a_hubs_groups_select_quotas(broker):
    broker.ask(SetQuota("group:class", (("weight", "3"),), new=True))
    make(broker)
    row = decode_quotas(broker.ask(AskQuotas("user1")).json).users[0]
    assert (row.weight, row.groups) == (3.0, ("class",))
    make(broker, groups=())
    assert decode_quotas(broker.ask(AskQuotas("user1")).json).users[0].weight == 1.0


def quota_of(broker, user="user1"):
    return decode_quotas(broker.ask(AskQuotas(user)).json).users[0].quota


def test_a_hubs_quota_stands_below_what_is_set_and_outlives_the_broker(start_broker):
    broker = start_broker()
    make(broker)
    broker.ask(HubQuota("class", (("weight", "3"), ("sessions", "4"))))
    broker.ask(SetQuota("group:class", (("sessions", "2"),)))  # the group is known by now
    assert (quota_of(broker).weight, quota_of(broker).sessions) == (3.0, 2)
    broker.stop()
    broker = start_broker()
    assert (quota_of(broker).weight, quota_of(broker).sessions) == (3.0, 2)
    scopes = decode_quotas(broker.ask(AskQuotas()).json).scopes
    assert {(s.source, *s.settings.items()) for s in scopes} == {
        ("hub", ("weight", 3.0), ("sessions", 4)),
        ("live", ("sessions", 2)),
    }
    open_session(broker, make(broker))
    done = broker.ask(HubQuota("class", (("memory", "1G"), ("priority", "batch"))))
    assert done.text.startswith(
        "Of group:class the hub says: memory=1G, priority=batch. user1 has 1 of"
    )
    assert (quota_of(broker).weight, quota_of(broker).memory) == (1.0, 1 << 30)
    broker.ask(HubQuota("class"))
    assert quota_of(broker).memory == 0
    broker.stop()
    broker = start_broker()
    assert [s.source for s in decode_quotas(broker.ask(AskQuotas()).json).scopes] == ["live"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((("weight", "3"), ("speed", "9")), "There is no 'speed' in a quota"),
        ((("weight", "3"), ("memory", "much")), "memory: 'much' is no size"),
        ((("memory", "1G"), ("resident", "2G")), "resident is 2G, above memory"),
        ((("weight", ""),), "weight: '' is no number"),
    ],
)
def test_a_hubs_quota_that_is_none_is_refused_by_its_field_and_changes_nothing(
    broker, settings, said
):
    make(broker)
    broker.ask(HubQuota("class", (("weight", "2"),)))
    with pytest.raises(ConfigError, match=said):
        broker.ask(HubQuota("class", settings))
    with pytest.raises(ConfigError, match="is no scope"):
        broker.ask(HubQuota("", (("weight", "3"),)))
    assert quota_of(broker).weight == 2.0


def test_of_a_group_with_a_name_that_no_report_could_tell_nothing_is_said(broker):
    """Hubs allow 255 letters; `group:` before it is too much for a scope's name."""
    broker.ask(HubQuota("g" * 250, (("weight", "2"),)))
    with pytest.raises(BrokerRefused, match="255 letters is too long"):
        broker.ask(HubQuota("g" * 255, (("weight", "2"),)))
    (scope,) = decode_quotas(broker.ask(AskQuotas()).json).scopes
    assert scope.scope == f"group:{'g' * 250}"


def test_a_servers_socket_lies_where_nobody_else_gets(broker):
    path = make(broker).path
    assert path.stat().st_mode & 0o777 == 0o666
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700
    assert make(broker).path == path
    assert make(broker, "user1/other").path.parent != path.parent


@pytest.mark.parametrize(
    "message",
    [
        MakeSocket("user2/lab", "user2"),
        RemoveSocket("user1/lab"),
        AskSockets(),
        NameUser(1, "user2"),
        HubQuota("class", (("weight", "2"),)),
        UsePolicy("fifo"),
        SetQuota("user:user1", (("weight", "2"),)),
        AskQuotas("user2"),
        AskStop(),
        Evict(1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_no_server_and_no_user_says_what_a_hub_says(broker, message):
    where = make(broker)
    open_session(broker, None, user="user2")
    for door in (where, broker.users):
        with pytest.raises(BrokerRefused, match=r"dministrator|There is no session 1 of yours"):
            broker.ask(message, door)


def test_anothers_ticket_is_nothing_at_ones_own_socket(broker):
    first, second = make(broker, "user1/lab", "user1"), make(broker, "user2/lab", "user2")
    ticket = take_seat(broker, first)
    client, _ = open_session(broker, first, ticket=ticket)
    broker.ask(LeaveSeat(ticket), second)
    broker.ask(LeaveSeat(ticket), broker.users)
    report = look(broker)
    assert [row.state for row in report.sessions] != ["lost"]
    assert (len(report.sessions), report.broker.seats) == (1, 1)
    broker.ask(LeaveSeat(ticket), first)
    assert client.receive() is None
    until(lambda: not look(broker).sessions)


def test_limits_count_for_each_server_though_all_share_a_uid(start_broker):
    broker = start_broker("--JgpuBroker.max_user_sessions=2", "--max-sessions", "16").ready()
    first, second = make(broker, "user1/lab", "user1"), make(broker, "user2/lab", "user2")
    for where in (first, first, second):
        open_session(broker, where)
    assert "may have 2" in broker.client(first).hello().text
    open_session(broker, second)


def test_what_came_by_a_socket_that_is_removed_ends_with_it(broker):
    where, other = make(broker), make(broker, "user2/lab", "user2")
    open_session(broker, where)
    open_session(broker, other)
    assert broker.ask(AskSockets()).servers == ("user1/lab", "user2/lab")
    broker.ask(RemoveSocket("user1/lab"))
    assert not where.path.parent.exists()
    until(lambda: [row.user for row in look(broker).sessions] == ["user2"])
    assert broker.ask(AskSockets()).servers == ("user2/lab",)
    assert "none" in broker.ask(RemoveSocket("user1/lab")).text


@pytest.mark.parametrize("again", [False, True])
def test_who_knocked_at_a_socket_before_it_was_removed_is_nobody_afterwards(broker, again):
    late, asker = broker.client(make(broker)), broker.client(make(broker))
    broker.ask(RemoveSocket("user1/lab"))
    if again:
        make(broker, user="user2")
    refused = late.hello()
    assert isinstance(refused, Refused), refused
    assert "server has ended" in refused.text
    asker.socket.sendall(FrameWriter().encode(AskStatus(), 0))
    assert isinstance(asker.control_reply(), Refused)
    assert not look(broker).sessions


def test_a_server_that_is_anothers_now_has_another_socket_and_nothing_of_before(broker):
    where = make(broker, "lab", "user1")
    open_session(broker, where)
    make(broker, "lab", "user2")
    until(lambda: not look(broker).sessions)
    assert open_session(broker, where)[1].user == "user2"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_sockets_and_names_are_there_again_with_the_broker(start_broker, end):
    before = start_broker().ready()
    where, gone = make(before), make(before, "user2/lab", "user2")
    before.ask(NameUser(os.getuid(), "user7", ("seven",)))
    folder = where.path.parent.stat().st_ino
    before.process.send_signal(end)
    before.process.wait(15)
    shutil.rmtree(gone.path.parent)  # as a cleaner would
    after = start_broker().ready()
    until(where.path.exists)
    assert where.path.parent.stat().st_ino == folder  # what is mounted leads here again
    assert open_session(after, where)[1].user == "user1"
    assert open_session(after, after.users)[1].user == "user7"
    assert after.ask(AskSockets()).servers == ("user1/lab",)


def test_a_socket_that_its_server_removes_is_made_again(broker):
    where = make(broker)
    before = where.path.stat().st_ino
    where.path.unlink()
    until(lambda: where.path.exists() and where.path.stat().st_ino != before)
    assert open_session(broker, where)[1].user == "user1"


def test_a_uid_has_the_name_that_a_hub_gives_it(broker):
    assert open_session(broker, broker.users)[1].user == OWN
    broker.ask(NameUser(os.getuid(), "user7", ("seven",)))
    assert open_session(broker, broker.users)[1].user == "user7"
    assert "seven" in decode_quotas(broker.ask(AskQuotas("user7")).json).users[0].groups
    broker.ask(NameUser(os.getuid()))
    assert open_session(broker, broker.users)[1].user == OWN


def test_of_too_many_uids_the_one_that_was_named_longest_ago_is_forgotten(monkeypatch, tmp_path):
    """A hub's new users of many years later are named all the same."""
    monkeypatch.setattr(servers, "_MOST", 3)

    def make_servers():
        identities = Identities(lambda uid: f"login{uid}")
        made = (tmp_path, tmp_path / "record", None, identities, Groups({}), None, None)
        return servers.Servers(*made), identities

    hub, identities = make_servers()
    for uid in (1, 2, 3, 1, 4, 5):
        hub.name(uid, f"user{uid}", ("class",))
    named = {uid: identities.name(uid) for uid in (1, 2, 3, 4, 5)}
    assert named == {1: "user1", 2: "login2", 3: "login3", 4: "user4", 5: "user5"}
    again, identities = make_servers()
    again.reopen()
    assert {uid: identities.name(uid) for uid in named} == named


def test_a_record_that_cannot_be_read_costs_names_and_nothing_else(start_broker, tmp_path):
    broker = start_broker().ready()
    make(broker)
    broker.stop()
    (tmp_path / "spool" / "servers.json").write_text("{")
    again = start_broker().ready()
    assert again.ask(AskSockets()).servers == ()
    assert "servers.json cannot be read" in again.log.read_text()
    assert open_session(again, make(again))[1].user == "user1"


@pytest.mark.parametrize(("server", "user"), [("", "user1"), ("lab", "")])
def test_half_a_name_is_refused(broker, server, user):
    with pytest.raises(BrokerRefused, match="the server's name and its user's"):
        broker.ask(MakeSocket(server, user))
