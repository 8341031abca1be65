"""The view Now: what it says of a session that waits, and of a broker that is not there yet."""

import re

import pytest
from fake_hub import FakeHub
from page_parts import RunningPage, answers, free_port, start_page
from real_broker import real_broker, until

from jgpu.hub.page.now.values import PARTS, why
from jgpu.hub.page.views import SOMEBODY
from jgpu.hub.page.visitors import ADMIN, READ
from jgpu.wire.address import Address, admin_socket
from jgpu.wire.reports.report import SessionReport


@pytest.mark.parametrize(
    ("waits_on", "waits_for", "said"),
    [
        ("turn", ("user1",), "for its turn, behind user1"),
        ("memory", ("user1", SOMEBODY, SOMEBODY), "for memory, behind user1, 2 other users"),
        ("copy", (), "for a copy of its memory"),
        ("drain", (), "until the drain is over"),
        (
            "budget",
            ("user1",),
            "beyond its budget, until nobody else needs the device, behind user1",
        ),
        ("", (SOMEBODY,), f"for {SOMEBODY}"),  # another's notebook
        ("", (), ""),
    ],
)
def test_a_session_that_waits_says_why(waits_on, waits_for, said):
    assert why(SessionReport(id=1, waits_on=waits_on, waits_for=waits_for)) == said


@pytest.mark.parametrize(
    ("ahead", "said"),
    [(None, "for its turn"), (0, "for its turn"), (2, "for its turn, 2 ahead, behind user1")],
)
def test_who_waits_for_its_turn_says_how_many_come_before(ahead, said):
    row = SessionReport(id=1, waits_on="turn", ahead=ahead, waits_for=("user1",) if ahead else ())
    assert why(row) == said


def test_a_page_that_was_opened_before_the_broker_was_there_shows_it_once_it_is(tmp_path):
    hub, port = FakeHub(), free_port()
    admin = Address(admin_socket(tmp_path / "broker.sock"), "environment")
    token = hub.knows("reader1", READ)
    process = start_page(hub, admin, port)
    try:
        until(lambda: answers(port))
        page = RunningPage(hub, admin, port, process, {"reader1": token})
        text = page.get().text
        assert "Not known yet." in text
        assert "Nobody uses the GPU." not in text
        assert re.search('id="problem"[^>]*>[^<]*broker', text)
        events = page.stream()
        options = ("--device", "null", "--spool", str(tmp_path / "spool"))
        with real_broker(tmp_path, *options, private=False):
            seen = events.until("Nobody uses the GPU.")
        # Each part that comes finds the place that it is for.
        assert set(re.findall('hx-target="#([a-z]+)"', seen)) == set(PARTS)
        assert all(f'id="{name}"' in text for name in PARTS)
        events.close()
    finally:
        process.end()
        hub.close()


def test_without_a_broker_everything_that_is_asked_for_is_answered_by_a_sentence(tmp_path):
    hub, port = FakeHub(), free_port()
    admin = Address(admin_socket(tmp_path / "broker.sock"), "environment")
    process = start_page(hub, admin, port)
    try:
        until(lambda: answers(port))
        page = RunningPage(hub, admin, port, process, {"admin1": hub.knows("admin1", ADMIN)})
        looks = (
            "people",
            "people.csv",
            "people/edit?scope=default",
            "usage",
            "usage.csv",
            "events",
        )
        forms = {
            "quotas": "scope=default&weight=2", "policy": "policy=fair", "drain": "on=1",
        }  # fmt: skip
        said = [page.get(path, "admin1") for path in looks]
        said += [page.request("POST", p, page.tokens["admin1"], f) for p, f in forms.items()]
        assert [answer.status for answer in said] == [503] * 7 + [409] * 2
        assert all("There is no broker at" in answer.text for answer in said)
    finally:
        process.end()
        hub.close()


def test_a_record_that_cannot_be_read_is_not_an_empty_one(tmp_path):
    """Neither as a page, nor as a file that somebody goes on to reckon with."""
    hub, port = FakeHub(), free_port()
    (tmp_path / "spool" / "usage.sqlite").mkdir(parents=True)
    options = ("--device", "null", "--spool", str(tmp_path / "spool"))
    with real_broker(tmp_path, *options, private=False) as found:
        admin = Address(admin_socket(found.path), "environment")
        process = start_page(hub, admin, port)
        tokens = {"admin1": hub.knows("admin1", ADMIN), "reader1": hub.knows("reader1", READ)}
        try:
            until(lambda: answers(port))
            page = RunningPage(hub, admin, port, process, tokens)
            views = [page.get(path, who) for path in ("usage", "events") for who in tokens]
            assert ["ledger (sqlite)" in view.text for view in views] == [True, False] * 2
            assert ["cannot be read" in view.text for view in views] == [True] * 4
            assert "Nobody used the GPU" not in views[0].text
            assert [page.get("usage.csv", who).status for who in tokens] == [503] * 2
        finally:
            process.end()
            hub.close()
