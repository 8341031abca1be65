"""The log of what happened: bounded for each who fills it, forgotten in time, kept till written."""

import asyncio
import contextlib
import sqlite3

from jgpu.broker.control.listening.identity import Identities
from jgpu.broker.control.quotas.ledger import charges as ledger_module
from jgpu.broker.control.quotas.ledger.charges import UsageLedger
from jgpu.broker.control.quotas.ledger.leftovers import find_leftovers
from jgpu.broker.control.quotas.ledger.store import Store
from jgpu.broker.control.reports.audit import _COUNTED, Audit
from jgpu.wire.reports.records import EventReport


class Log:
    """An audit with a clock that stands until it is moved."""

    def __init__(self):
        self.now, self.kept = 1000.0, []
        self.audit = Audit(self.kept.append, Identities(), clock=lambda: self.now)

    def note(self, times, kind="refusal", identity="uid 1"):
        for _ in range(times):
            self.audit.note(kind, "No.", identity=identity)


def test_of_one_kind_and_identity_so_many_a_minute_are_kept_and_the_others_counted():
    log = Log()
    log.note(50)
    log.note(1, identity="uid 2")
    log.note(1, kind="evict")
    assert len(log.kept) == 22
    log.now += 59.0
    log.note(1)
    assert len(log.kept) == 22
    log.now += 2.0
    log.note(2)
    assert [event.text for event in log.kept[22:]] == [
        "No. (31 more like it before were left out.)",
        "No.",
    ]


def test_of_all_together_so_many_a_minute_are_kept():
    log = Log()
    for number in range(100):
        log.note(20, identity=f"uid {number}")
    assert len(log.kept) == 600
    log.now += 61.0
    log.note(1, identity="uid 99")
    assert log.kept[-1].text == "No. (20 more like it before were left out.)"


def test_numbers_grow_though_the_clock_stands_or_goes_back():
    log = Log()
    log.note(3)
    log.now -= 500.0
    log.note(3)
    numbers = [event.id for event in log.kept]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 6


def test_identities_that_are_counted_are_few():
    log = Log()
    for number in range(3 * _COUNTED):
        log.note(1, identity=f"uid {number}")
    assert len(log.audit._counts) == _COUNTED


def test_what_users_say_is_made_fit_for_a_terminal():
    log = Log()
    log.audit.note("claim", "a\nb" + "x" * 2000, about="\x1b[31m", who="\n")
    (event,) = log.kept
    assert (event.about, event.who) == ("\ufffd[31m", "\ufffd")
    assert len(event.text) == 1000
    assert event.text.isprintable()


# -- in the ledger -------------------------------------------------------------------------------


def event(number, when=0.0, **fields):
    return EventReport(id=number, when=when, **({"kind": "quota", "text": "Set."} | fields))


def stored(path):
    store = Store(f"sqlite:///{path}")
    store.open(0.0)
    return store


def test_events_are_read_newest_first_of_one_user_or_all(tmp_path):
    store = stored(tmp_path / "l")
    given = [event(1, who="user1"), event(2, about="user1"), event(3, who="user2")]
    store.write([], {}, given)
    store.write([], {}, given)  # again, as after a write of which nothing is known
    assert store.events(0, 10) == given[::-1]
    assert store.events(3, 1) == [given[1]]
    assert store.events(0, 10, "user1") == [given[1], given[0]]


def test_events_that_are_too_old_or_too_many_are_forgotten(tmp_path):
    store = stored(tmp_path / "l")
    store.write([], {}, [event(number, when=float(number)) for number in range(1, 11)])
    store.forget_events(3.0, 100)
    assert [each.id for each in store.events(0, 100)] == list(range(10, 2, -1))
    store.forget_events(0.0, 2)
    assert [each.id for each in store.events(0, 100)] == [10, 9]


class Owner:
    def ledger_horizon(self):
        return 0.0

    def ledger_opened(self, usage, settings):
        pass


def make_ledger(path, tmp_path, **options):
    return UsageLedger(f"sqlite:///{path}", tmp_path, "r" * 32, Owner(), interval_s=9.0, **options)


def test_a_ledger_forgets_old_events_as_it_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_module, "_EVENTS_BETWEEN", 3)
    monkeypatch.setattr(ledger_module.time, "time", lambda: 1000.0)

    async def run():
        ledger = make_ledger(tmp_path / "l", tmp_path, keep_events_s=10.0)
        left = []
        for number in range(1, 7):
            ledger.keep_event(event(number, when=980.0 if number < 5 else 995.0))
            left.append([each.id for each in await ledger.read(lambda store: store.events(0, 9))])
        await ledger.close()
        return left

    # At the first, and after every three.
    assert asyncio.run(run()) == [[], [2], [3, 2], [], [5], [6, 5]]


def test_events_that_could_not_be_written_are_few_and_wait_for_the_next_run(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_module, "_MOST_EVENTS", 5)

    async def run(path, *events):
        ledger = make_ledger(path, tmp_path)
        for each in events:
            ledger.keep_event(each)
        await ledger.attempt()
        await ledger.close()
        return ledger

    ledger = asyncio.run(run("/proc/none/l", *(event(number) for number in range(1, 9))))
    assert [each.id for each in ledger.unwritten_events] == [4, 5, 6, 7, 8]
    assert "oldest events are lost" in ledger.note
    assert len(find_leftovers(tmp_path)) == 1
    asyncio.run(run(tmp_path / "l"))
    assert find_leftovers(tmp_path) == []
    with contextlib.closing(sqlite3.connect(tmp_path / "l")) as connection:
        found = connection.execute("SELECT id FROM jgpu_events ORDER BY id").fetchall()
    assert found == [(4,), (5,), (6,), (7,), (8,)]
