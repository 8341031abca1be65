"""What each visitor sees of what is on record, and how it is drawn."""

import time
from datetime import datetime

import pytest

from jgpu.broker.control.quotas.ledger.meter import SLICE_S, Charge
from jgpu.broker.control.quotas.ledger.store import Store
from jgpu.hub.page.now.values import memory_of
from jgpu.hub.page.record.values import (
    OTHERS,
    days_back,
    drawn,
    events_for,
    plot_of,
    stretches,
    usage_for,
)
from jgpu.hub.page.visitors import Visitor
from jgpu.wire.reports.records import EventReport, UsageRow
from jgpu.wire.reports.report import SessionReport

DAY_S = 86400.0
MEMBERS = {"user1": ("class1",), "user2": ("class1",), "user3": ("class2",)}
EVENTS = [
    EventReport(id=4, who="user3", about="user1", kind="evict", identity="uid 7", text="of user3"),
    EventReport(id=3, who="admin1", about="user:user2", kind="quota", text="user2: memory=4G"),
    EventReport(id=2, who="admin1", about="group:class1", kind="quota", text="class1"),
    EventReport(id=1, who="", about="user3", kind="spill", text="user3 for user1"),
]


def seen(visitor):
    return [
        (e.id, e.who, e.about, e.text, e.identity) for e in events_for(visitor, EVENTS, MEMBERS)
    ]


def test_administrators_see_all_and_readers_no_identities():
    assert seen(Visitor("admin1", reads=True, administers=True))[0][4] == "uid 7"
    found = seen(Visitor("reader1", reads=True))
    assert [row[4] for row in found] == [""] * 4
    assert found[0][3] == "of user3"


def test_others_see_what_concerns_them_without_words_that_name_others():
    assert seen(Visitor("user1")) == [(4, "", "user1", "", "")]
    assert seen(Visitor("tutor1", tutors=frozenset({"class1"}))) == [
        (4, "", "user1", "", ""),
        (3, "", "user:user2", "user2: memory=4G", ""),
        (2, "", "group:class1", "class1", ""),
    ]
    assert seen(Visitor("")) == []


def rows(*found):
    return [
        UsageRow(start=day * DAY_S, name=name, device_seconds=used) for day, name, used in found
    ]


def test_usage_of_others_is_one_sum_a_day():
    used = rows((0, "user1", 1.0), (0, "user2", 2.0), (0, "user3", 4.0), (1, "user3", 8.0))
    assert usage_for(Visitor("user1"), used, MEMBERS, "user") == rows(
        (0, OTHERS, 6.0), (0, "user1", 1.0), (1, OTHERS, 8.0)
    )
    tutor = Visitor("tutor1", tutors=frozenset({"class1"}))
    assert {row.name for row in usage_for(tutor, used, MEMBERS, "user")} == {
        "user1", "user2", OTHERS,
    }  # fmt: skip
    assert usage_for(Visitor("r", reads=True), used, MEMBERS, "user") == used


def test_of_groups_that_a_tutor_may_not_see_everybody_counts_once():
    members = MEMBERS | {"user3": ("class2", "class3"), "user4": ("class1", "class4")}
    used = rows((0, "user1", 1.0), (0, "user2", 2.0), (0, "user3", 4.0), (0, "user4", 8.0))
    tutor = Visitor("tutor1", tutors=frozenset({"class1", "class4"}))
    assert usage_for(tutor, used, members, "group") == rows(
        (0, "class1", 11.0), (0, "class4", 8.0), (0, OTHERS, 4.0)
    )


def test_a_picture_tells_eight_names_apart():
    used = rows(*((day, f"user{n}", 3600.0 * n) for day in (0, 1) for n in range(1, 12)))
    late = UsageRow(start=5 * DAY_S, name="late", device_seconds=1.0)
    plot = plot_of([*used, late], [0.0, DAY_S, 2 * DAY_S])
    assert [name for name, _, _ in plot.series][:2] == ["user11", "user10"]
    assert plot.total == 2 * 3600.0 * 66
    picture = drawn(plot)
    assert picture["days"] == [0.0, DAY_S]
    assert picture["names"] == [*(f"user{n}" for n in range(11, 3, -1)), "the rest"]
    assert picture["hours"][-1] == [6.0, 6.0]


def test_days_begin_at_midnight_here():
    now = 20 * DAY_S + 5000.0  # the tests' clock is UTC
    assert days_back(1, now) == [20 * DAY_S, 21 * DAY_S]
    assert days_back(14, now) == [day * DAY_S for day in range(7, 22)]
    assert stretches(days_back(14, now)) == [(7 * DAY_S, 21 * DAY_S, DAY_S)]
    months = stretches(days_back(100, now + 100 * DAY_S))  # a piece has at most 14 days
    assert [round((until - since) / DAY_S) for since, until, _ in months] == [14] * 7 + [2]


@pytest.fixture
def zone(monkeypatch):
    """Have the clock be another place's."""

    def choose(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield choose
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("place", "now", "short_or_long"),
    [
        ("Europe/Berlin", datetime(2026, 10, 27, 23, 30), {"2026-10-25": 25}),
        ("Europe/Berlin", datetime(2026, 3, 31, 0, 10), {"2026-03-29": 23}),
        ("America/Santiago", datetime(2026, 9, 8, 12), {"2026-09-06": 23}),  # has no midnight
        ("Australia/Lord_Howe", datetime(2026, 4, 7, 12), {"2026-04-05": 24.5}),
        ("UTC", datetime(2026, 10, 27, 23, 30), {}),
    ],
)
def test_each_day_has_what_was_used_on_it_where_clocks_are_changed(
    tmp_path, zone, place, now, short_or_long
):
    zone(place)
    edges = days_back(7, now.timestamp())
    slices = range(int(edges[0]) // SLICE_S - 300, int(edges[-1]) // SLICE_S + 300)
    store = Store(f"sqlite:///{tmp_path}/usage.sqlite")
    store.open(0.0)
    store.write(
        [
            Charge("run", 1, number, "user1", "", "", begin, begin + 1, 1.0)
            for number in slices
            for begin in [float(number * SLICE_S)]
        ],
        {},
    )
    found = [
        UsageRow(start=since + number * step, name=name, device_seconds=used)
        for since, until, step in stretches(edges)
        for number, name, used in store.usage(int(since), int(until), int(step), "", 1000)
    ]
    store.close()
    plot = plot_of(found, edges)
    days = [time.strftime("%Y-%m-%d", time.localtime(day)) for day in plot.days]
    assert days[-1] == f"{now:%Y-%m-%d}"
    assert len(set(days)) == 7
    hours = dict.fromkeys(days, 24) | short_or_long
    ((_, values, _),) = plot.series
    assert dict(zip(days, values, strict=True)) == {
        day: many * 3600 / SLICE_S for day, many in hours.items()
    }


def test_memory_is_in_one_place():
    away = SessionReport(
        id=1, resident_bytes=10, ephemeral_bytes=7, spilled_bytes=9, spilled_resident_bytes=4
    )
    found = memory_of(away, SessionReport(id=2, resident_bytes=1, ephemeral_bytes=2))
    assert (found.resident, found.ephemeral, found.spilled, found.sessions) == (7, 4, 9, 2)
    assert found.on_device + found.spilled == 20
