"""A host's broker listens at two sockets; what comes by the users' concerns nobody else.

The tests run as the broker's own uid, and in CI as root: neither counts for anything there.
"""

import os

import pytest
from control_client import until

from jgpu.broker.control.listening.identity import login_name
from jgpu.errors import BrokerRefused
from jgpu.wire.address import Address
from jgpu.wire.messages import (
    AskQuotas,
    AskStatus,
    AskStop,
    Done,
    Evict,
    QuotasAre,
    SetQuota,
    UsePolicy,
    Welcome,
)
from jgpu.wire.reports.report import decode, decode_quotas

OWN = login_name(os.getuid())


def look(broker, where=None):
    return decode(broker.ask(AskStatus(), where).json)


@pytest.fixture
def two(broker):
    """Sessions of two users, opened by an administrator who speaks for them, and one's own."""
    for user in ("user1", "user2"):
        assert isinstance(broker.client().hello(user=user), Welcome)
    own = broker.client(broker.users).hello(user="user1")
    assert own.user == OWN  # at the users' door one is who one is
    until(lambda: len(look(broker).sessions) == 3)
    return broker


def test_at_the_administrators_door_everybody_is_seen_and_spoken_for(two):
    report = look(two)
    assert [row.user for row in report.sessions] == ["user1", "user2", OWN]
    assert report.ledger
    assert all(device.pid for device in report.devices)


def test_at_the_users_door_others_are_there_without_names(two):
    report = look(two, two.users)
    assert [row.user for row in report.sessions] == ["another user", "another user", OWN]
    assert [row.name for row in report.users] == [OWN]
    assert not report.ledger
    assert report.devices[0].pid is None


@pytest.mark.parametrize(
    "message",
    [
        UsePolicy("fifo"),
        SetQuota("user:user1", (("weight", "2"),), new=True),
        AskQuotas("user1"),
        AskStop(),
        Evict(1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nothing_of_others_is_changed_by_the_users_door(two, message):
    with pytest.raises(BrokerRefused, match=r"dministrator|There is no session 1 of yours"):
        two.ask(message, two.users)
    assert two.process.poll() is None


def test_a_refusal_says_where_administrators_are_heard(two):
    with pytest.raises(BrokerRefused, match=rf"speak to {two.address.path}, which is open to root"):
        two.ask(UsePolicy("fifo"), two.users)


def test_what_is_ones_own_is_steered_by_the_users_door(two):
    assert isinstance(two.ask(Evict(3), two.users), Done)
    rows = decode_quotas(two.ask(AskQuotas(), two.users).json).users
    assert [row.name for row in rows] == [OWN]


def test_an_administrator_steers_what_is_others(two):
    assert isinstance(two.ask(Evict(1)), Done)
    with pytest.raises(BrokerRefused, match=r"There is no session 99; `jgpu status`"):
        two.ask(Evict(99))
    assert isinstance(two.ask(UsePolicy("fifo")), Done)
    assert isinstance(two.ask(SetQuota("user:user1", (("weight", "2"),), new=True)), QuotasAre)


def test_a_private_broker_has_one_door_and_its_owner_administers(start_broker):
    broker = start_broker("--private").ready()
    assert not broker.address.path.with_name("admin.sock").exists()
    assert broker.client().hello(user="user2").user == "user2"
    assert isinstance(broker.ask(UsePolicy("fifo")), Done)


def test_the_administrators_socket_may_be_elsewhere(start_broker, tmp_path):
    folder = tmp_path / "admin"
    folder.mkdir()
    path = folder / "a.sock"
    option = f"--JgpuBroker.admin_socket_path={path}"
    broker = start_broker(option, wait=False)
    until(path.exists)
    where = Address(path, "environment")
    until(lambda: look(broker, where).devices[0].state == "ready")
    assert isinstance(broker.ask(UsePolicy("fifo"), where), Done)
    assert broker.users.path.exists()
    assert not broker.address.path.exists()
