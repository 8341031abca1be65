"""Where users stand, for those who watch: found out anew when it may be another, and not before."""

import asyncio

import pytest

from jgpu.broker.control.listening.identity import Identity, Peer
from jgpu.broker.control.listening.shares import Shares
from jgpu.broker.control.quotas.desk import QuotaService
from jgpu.broker.control.quotas.requests import QuotaRequests
from jgpu.broker.control.quotas.scopes import QuotaSettings, Scope
from jgpu.broker.control.registry import Registry
from jgpu.broker.control.reports import reporting
from jgpu.broker.control.reports.reporting import Reporter
from jgpu.wire.messages import ReportIs
from jgpu.wire.reports.report import SessionReport


class Counted(QuotaRequests):
    """Counts how often it is asked."""

    asked = 0

    def standing(self, name):
        self.asked += 1
        return super().standing(name)


@pytest.fixture
def made(tmp_path):
    """A reporter, its desk and what it asks."""
    registry = Registry(Shares.of(16))
    url = f"sqlite:///{tmp_path}/l"
    desk = QuotaService(QuotaSettings(), registry, ledger=url, directory=tmp_path, interval_s=9.0)
    quotas = Counted(desk, registry)
    return Reporter(None, registry, None, desk, quotas, None), desk, quotas


def test_where_a_user_stands_is_found_out_once_until_something_is_said(made):
    reporter, desk, quotas = made
    for _ in range(3):
        assert reporter._standing("user1").weight == 1.0
    assert quotas.asked == 1
    asyncio.run(desk.set_live(Scope("user", "user1"), {"weight": "3"}))
    assert [reporter._standing("user1").weight for _ in range(3)] == [3.0] * 3
    assert quotas.asked == 2
    desk.groups.register("user1", ("class",))
    reporter.forget()
    assert reporter._standing("user1").groups == ("class",)


def test_of_whoever_has_a_session_it_is_found_out_at_each_look(made):
    reporter, desk, quotas = made
    peer, identity = Peer(1, 1), Identity("uid", "1")
    reporter._registry.admit(
        peer, "user1", ticket="", kernel_id="", label="", now=0.0, identity=identity
    )
    desk.on_change = reporter.looked
    for user in ("user1", "user2"):
        reporter._standing(user)
    desk.look()
    for user in ("user1", "user2"):
        reporter._standing(user)
    assert quotas.asked == 3


def test_what_a_session_used_to_its_end_counts_at_once_where_its_user_stands(made):
    reporter, desk, _ = made
    session = reporter._registry.admit(
        Peer(1, 1),
        "user1",
        ticket="",
        kernel_id="",
        label="",
        now=0.0,
        identity=Identity("uid", "1"),
    )
    desk.on_use = reporter.used
    desk.before_adoption(session)
    desk.measured(
        ReportIs(0, (), (SessionReport(id=session.number, device_seconds=2.0),), 0, "fair"), "cpu"
    )
    assert reporter._standing("user1").used_in_period == 2.0
    desk.session_ended(session.number, 5.0, "cpu")
    reporter._registry.end(session.number)
    assert reporter._standing("user1").used_in_period == 5.0


def test_where_users_stand_is_remembered_of_so_many(made, monkeypatch):
    monkeypatch.setattr(reporting, "_USERS", 5)
    reporter, _, _ = made
    for number in range(20):
        reporter._standing(f"user{number}")
    assert len(reporter._stands) <= 5
