"""Changes between two reports: applied to the first they give the second, whatever the two are."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from jgpu.errors import ProtocolError
from jgpu.wire.reports.changes import Changes, apply, changes, decode_changes
from jgpu.wire.reports.report import (
    BrokerReport,
    DeviceReport,
    LedgerReport,
    Report,
    SessionReport,
    UserReport,
)

BEFORE = Report(
    broker=BrokerReport(pid=1),
    devices=(DeviceReport(name="cpu", kind="cpu"),),
    sessions=(SessionReport(id=1, user="user1"), SessionReport(id=2, user="user2")),
    users=(UserReport(name="user1"), UserReport(name="user2")),
    ledger=LedgerReport(state="working"),
)
ROW = st.builds(SessionReport, id=st.integers(0, 5), state=st.sampled_from(["idle", "running"]))
PERSON = st.builds(UserReport, name=st.sampled_from("abcde"), sessions=st.integers(0, 2))
DEVICE = st.builds(
    DeviceReport, name=st.sampled_from("de"), kind=st.just("cpu"), restarts=st.integers(0, 1)
)
#: rows come twice now and then, and in any order
REPORTS = st.builds(
    Report,
    broker=st.builds(BrokerReport, pid=st.integers(0, 1)),
    devices=st.lists(DEVICE, max_size=3).map(tuple),
    sessions=st.lists(ROW, max_size=5).map(tuple),
    users=st.lists(PERSON, max_size=5).map(tuple),
    ledger=st.just(msgspec.UNSET) | st.builds(LedgerReport, state=st.sampled_from("ab")),
)
#: as a broker makes them: each row once, in its order
ORDERLY = REPORTS.map(
    lambda report: replace(
        report,
        devices=report.devices[:1],
        sessions=tuple({row.id: row for row in sorted(report.sessions, key=str)}.values()),
        users=tuple({row.name: row for row in sorted(report.users, key=str)}.values()),
    )
).map(
    lambda report: replace(
        report,
        sessions=tuple(sorted(report.sessions, key=lambda row: row.id)),
        users=tuple(sorted(report.users, key=lambda row: row.name)),
    )
)


def told(before, after):
    """The changes after they have been on their way."""
    return decode_changes(msgspec.json.encode(changes(before, after)))


@settings(max_examples=300, deadline=None)
@given(REPORTS, REPORTS)
def test_changes_between_any_two_reports_give_the_second(before, after):
    assert apply(before, told(before, after)) == after


@settings(max_examples=300, deadline=None)
@given(ORDERLY, ORDERLY)
def test_reports_as_brokers_make_them_are_never_told_whole(before, after):
    found = told(before, after)
    assert not found.whole
    assert apply(before, found) == after


def test_between_equal_reports_there_is_nothing():
    assert not changes(BEFORE, BEFORE)
    assert not changes(BEFORE, replace(BEFORE))
    assert msgspec.json.encode(changes(BEFORE, BEFORE)) == b"{}"


def test_only_rows_that_changed_are_told():
    waits = SessionReport(id=2, user="user2", state="waiting")
    new = SessionReport(id=3, user="user1")
    found = changes(BEFORE, replace(BEFORE, sessions=(waits, new), users=BEFORE.users[1:]))
    assert found == Changes(sessions=(waits, new), gone_sessions=(1,), gone_users=("user1",))


def test_a_ledger_that_may_not_be_seen_any_more_goes():
    found = told(BEFORE, replace(BEFORE, ledger=msgspec.UNSET))
    assert found == Changes(ledger=None)
    assert apply(BEFORE, found).ledger is msgspec.UNSET


def test_a_reader_passes_over_changes_of_what_it_does_not_know():
    data = b'{"later": [1], "broker": {"pid": 7, "later": 1}}'
    assert apply(BEFORE, decode_changes(data)) == replace(BEFORE, broker=BrokerReport(pid=7))


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"sessions": 1}'])
def test_what_tells_no_changes_is_a_sentence(data):
    with pytest.raises(ProtocolError, match=r"of the broker|The broker|at unix:/b .*same version"):
        decode_changes(data, "unix:/b")
