"""Quotas in a real control process with a scripted executor: what reaches whom, over restarts."""

import contextlib
import json
import sqlite3
import time

import msgspec
import pytest
from control_client import until

from jgpu.errors import BrokerRefused, ConfigError, QuotaExceeded
from jgpu.wire.messages import (
    AskEvents,
    AskQuotas,
    CellStarted,
    Notice,
    Quit,
    Ready,
    Refused,
    SetQuota,
    Sync,
    Synced,
    Welcome,
)


@pytest.fixture
def start(start_broker, tmp_path):
    """A broker that counts often, with these configuration lines; `orders()` is what it ordered."""

    def made(*config, wait=True):
        broker = start_broker(
            config=[
                "c.JgpuBroker.usage_interval = 0.02",
                "c.JgpuBroker.executor_environment = "
                f"{{'SCRIPT_ORDERS': {str(tmp_path / 'orders')!r}}}",
                *config,
            ]
        )
        return broker.ready() if wait else broker

    return made


@pytest.fixture
def orders(tmp_path):
    def read():
        path = tmp_path / "orders"
        return path.read_text().splitlines() if path.exists() else []

    return read


def open_session(broker, **fields):
    client = broker.client()
    assert isinstance(client.hello(**fields), Welcome)
    assert isinstance(client.receive(), Ready)
    return client


def use(client, seconds):
    """Use so many device-seconds, the first time instead of the half that is always reported."""
    client.send(CellStarted(f"uses {seconds}"))
    client.send(Sync(1, 1))
    assert isinstance(client.receive(), Synced | Notice)


def quotas(broker, user=""):
    return json.loads(broker.ask(AskQuotas(user)).json)


def set_quota(broker, scope, **settings):
    return json.loads(broker.ask(SetQuota(scope, tuple(settings.items()), True)).json)


def row(broker, user="user1"):
    return next(row for row in quotas(broker)["users"] if row["name"] == user)


def test_a_configured_quota_is_told_before_the_session_is_adopted(start, orders):
    broker = start(
        "c.JgpuBroker.groups = {'seminar': ['user1']}",
        "c.JgpuBroker.group_quotas = {'seminar': {'memory': '1G', 'weight': 2}}",
    )
    open_session(broker, user="user1", priority="batch")
    user, adopt = orders()
    assert user.startswith("SetUser(user='user1', weight=2.0, limit=1073741824")
    assert adopt.startswith("Adopt(session=1, user='user1'")
    assert "weight=2.0, limit=1073741824" in adopt
    assert "priority=2" in adopt


def test_beyond_a_budget_the_user_is_told_in_his_cell_and_the_executor_throttles(start, orders):
    broker = start("c.JgpuBroker.default_quota = {'device_seconds': 3, 'period': '1h'}")
    client, other = open_session(broker, user="user1"), open_session(broker, user="user2")
    client.send(CellStarted("uses 3.5"))
    notice = client.receive()
    assert isinstance(notice, Notice)
    assert "user1 has used 3.5 of 3 device-seconds that may be used in any 1h" in notice.text
    assert any("'user1'" in line and "throttled=True" in line for line in orders())
    assert not any("'user2'" in line and "throttled=True" in line for line in orders())
    other.send(Sync(1, 7))
    assert other.receive() == Synced(7)
    status = {row["name"]: row for row in broker.status()["users"]}
    assert status["user1"]["state"] == "throttled"
    assert status["user1"]["used_in_period"] == pytest.approx(3.5)
    assert status["user1"]["quota"]["device_seconds"] == 3.0
    assert status["user2"]["state"] == "within"


def test_what_is_set_live_reaches_the_executor_and_survives_a_restart(start, orders):
    broker = start()
    open_session(broker, user="user1")
    set_quota(broker, "user:user1", memory="2G", device_seconds="1h")
    until(lambda: any("limit=2147483648" in line for line in orders()))
    broker.stop()
    again = start()
    assert row(again)["quota"]["memory"] == 2 << 30
    assert row(again)["quota"]["device_seconds"] == 3600.0
    set_quota(again, "user:user1", memory="")
    assert row(again)["quota"]["memory"] == 0
    again.stop()
    assert [r["settings"] for r in quotas(start())["scopes"]] == [{"device_seconds": 3600.0}]


def test_what_is_set_for_a_while_is_felt_by_a_running_session_and_ends_by_itself(start, orders):
    broker = start()
    open_session(broker, user="user1")
    request = SetQuota("user:user1", (("weight", "7"),), new=True, until=time.time() + 1.0)
    broker.ask(request)

    def weights():
        return [line.split("weight=")[1][:3] for line in orders() if line.startswith("SetUser")]

    assert [r["until"] for r in quotas(broker)["scopes"]] == [request.until]
    until(lambda: weights()[-1] == "1.0")
    assert time.time() >= request.until
    assert weights() == ["1.0", "7.0", "1.0"]
    assert quotas(broker)["scopes"] == []
    events = json.loads(broker.ask(AskEvents()).json)["events"]
    told = [event["text"] for event in events if event["kind"] == "quota"]
    assert told[0] == "What was set for a time has ended: weight=7."
    assert told[1].startswith("Set: weight=7, until 2")
    with pytest.raises(ConfigError, match="that is past"):
        broker.ask(msgspec.structs.replace(request, until=time.time() - 1))


def test_what_is_set_until_tomorrow_survives_a_restart(start):
    broker = start()
    tomorrow = time.time() + 86400.0
    broker.ask(SetQuota("user:user1", (("memory", "1G"),), new=True, until=tomorrow))
    broker.stop()
    again = start()
    (scope,) = quotas(again)["scopes"]
    assert (scope["source"], scope["until"]) == ("live", tomorrow)
    assert row(again)["quota"]["memory"] == 1 << 30


def test_what_was_used_is_counted_once_over_a_restart(start):
    broker = start()
    client = open_session(broker, user="user1")
    use(client, 2.25)
    until(lambda: row(broker)["used_in_period"] == 2.25)
    use(client, 1.0)
    client.send(Quit())
    until(lambda: not broker.status()["sessions"])
    assert row(broker)["used_in_period"] == 3.25
    other = open_session(broker, user="user2")
    use(other, 4.0)
    broker.stop()
    again = start()
    until(lambda: quotas(again)["ledger"]["state"] == "working")
    assert row(again)["used_in_period"] == 3.25
    assert row(again, "user2")["used_in_period"] == 4.0


def test_what_was_used_is_counted_once_over_a_restart_of_the_executor(start):
    broker = start()
    client = open_session(broker, user="user1")
    use(client, 2.0)
    until(lambda: row(broker)["used_in_period"] == 2.0)
    client.send(CellStarted("crash"))
    until(lambda: broker.status()["devices"][0]["restarts"] == 1)
    broker.ready()
    until(lambda: row(broker)["used_in_period"] == 2.5)  # what the next one reports of it


def test_no_more_sessions_than_the_quota_allows(start):
    broker = start("c.JgpuBroker.user_quotas = {'user1': {'sessions': 1}}")
    open_session(broker, user="user1")
    refused = broker.client().hello(user="user1")
    assert isinstance(refused, Refused)
    assert refused.reason == QuotaExceeded.reason
    assert "user1 has 1 sessions on the shared device; user1 may have 1." in refused.text
    assert isinstance(broker.client().hello(user="user2"), Welcome)


def test_a_class_that_is_too_urgent_is_refused_at_the_door(start):
    broker = start()
    refused = broker.client().hello(user="user1", priority="interactive")
    assert "the most urgent that user1 may have is normal" in refused.text
    refused = broker.client().hello(user="user1", priority="urgent")
    assert "There is no priority 'urgent'" in refused.text


def test_wrong_requests_are_sentences(start):
    broker = start()
    for scope, settings, error, said in (
        ("user:user1", {"weight": "0"}, ConfigError, "weight is 0"),
        ("user:user1", {"speed": "1"}, ConfigError, "no 'speed'"),
        ("everybody", {"weight": "1"}, ConfigError, "is no scope"),
    ):
        with pytest.raises(error, match=said):
            set_quota(broker, scope, **settings)
    with pytest.raises(ConfigError, match="no user 'nobody9'"):
        quotas(broker, "nobody9")
    assert quotas(broker)["scopes"] == []
    assert BrokerRefused.reason == "refused"


def test_a_ledger_of_garbage_is_moved_aside_and_a_locked_one_waited_for(start, tmp_path):
    (tmp_path / "spool").mkdir(mode=0o700)
    file = tmp_path / "spool" / "usage.sqlite"
    file.write_bytes(b"no ledger at all " * 500)
    broker = start()
    until(lambda: quotas(broker)["ledger"]["state"] == "working")
    assert "The usage ledger was broken: file is not a database" in broker.log.read_text()
    (kept,) = file.parent.glob("usage.sqlite.broken-*")
    assert kept.read_bytes() == b"no ledger at all " * 500
    with contextlib.closing(sqlite3.connect(file, timeout=0)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        client = open_session(broker, user="user1")
        use(client, 2.0)
        until(lambda: broker.status()["ledger"]["state"] == "failing")
        assert "database is locked" in broker.status()["ledger"]["text"]
        assert row(broker)["used_in_period"] == 2.0
        use(client, 1.0)
        until(lambda: row(broker)["used_in_period"] == 3.0)
        connection.rollback()
    until(lambda: broker.status()["ledger"]["state"] == "working")
    until(lambda: not broker.status()["ledger"]["unwritten_rows"])
    with contextlib.closing(sqlite3.connect(file)) as connection:
        (total,) = connection.execute("SELECT sum(device_seconds) FROM jgpu_charges").fetchone()
    assert total == 3.0
    assert broker.log.read_text().count("cannot be used: database is locked") == 1


def test_a_broker_whose_ledger_cannot_be_anywhere_serves_all_the_same(start, tmp_path):
    broker = start("c.JgpuBroker.ledger = 'sqlite:////dev/full'")
    client = open_session(broker, user="user1")
    use(client, 2.0)
    until(lambda: row(broker)["used_in_period"] == 2.0)
    assert broker.status()["ledger"]["state"] == "failing"
    client.send(Quit())
    broker.stop()
    assert list((tmp_path / "spool").glob("usage-unwritten-*.json"))
    again = start()
    until(lambda: quotas(again)["ledger"]["state"] == "working")
    assert row(again)["used_in_period"] == 2.0
