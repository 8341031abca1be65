"""The usage ledger: what is used is counted once, whatever the database does meanwhile."""

import asyncio
import contextlib
import logging
import math
import resource
import sqlite3
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jgpu.broker.control.quotas.ledger import charges as ledger_module
from jgpu.broker.control.quotas.ledger import store as store_module
from jgpu.broker.control.quotas.ledger.charges import LedgerState, UsageLedger
from jgpu.broker.control.quotas.ledger.leftovers import (
    Leftovers,
    find_leftovers,
    leave,
    read_leftovers,
)
from jgpu.broker.control.quotas.ledger.meter import SLICE_S, Charge, Meter
from jgpu.broker.control.quotas.ledger.problems import (
    LedgerBroken,
    LedgerProblem,
    SettingKey,
    StoredSetting,
)
from jgpu.broker.control.quotas.ledger.store import (
    CHARGES,
    EVENTS,
    SETTINGS,
    TIMED_SETTINGS,
    Store,
    check_url,
)
from jgpu.broker.control.quotas.ledger.usage import UsageHistory
from jgpu.errors import ConfigError
from jgpu.wire import limits
from jgpu.wire.reports.report import LedgerReport

NOW = 1_000_000_000.0
RUN = "a" * 32
GARBAGE = b"this is no database, however long one looks at it. " * 40


def charge(seconds=1.5, session=1, run=RUN, user="user1", end=NOW, number=7):
    return Charge(run, session, number, user, "cpu (shared)", "kernel", end - 5, end, seconds)


def url(path):
    return f"sqlite:///{path}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A lock is waited for only briefly."""
    monkeypatch.setattr(store_module, "_LOCK_TIMEOUT_S", 0.01)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


def rows(path):
    """(user, session, device-seconds) of all rows."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT user, session, device_seconds FROM jgpu_charges ORDER BY 1, 2, slice"
        )
        return found.fetchall()


# -- the meter -------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["measured", "again", "executor gone", "taken", "later"]),
        st.integers(1, 3),
        st.floats(0, 100),
    ),
    max_size=40,
)


@given(steps)
def test_whatever_happens_the_charges_are_what_was_told(steps):
    meter, totals, used = Meter(RUN), {}, dict.fromkeys((1, 2, 3), 0.0)
    written, now = {}, NOW
    for session in used:
        meter.opened(session, f"user{session}", "")
    for what, session, amount in steps:
        if what == "measured":
            totals[session] = totals.get(session, 0.0) + amount
            used[session] += meter.measured(session, totals[session], "cpu", now)
        elif what == "again":
            assert meter.measured(session, totals.get(session, 0.0), "cpu", now) == 0.0
        elif what == "executor gone":
            meter.executor_gone()
            totals.clear()
        elif what == "taken":
            written |= {charge.key: charge for charge in meter.take()}
        else:
            now += amount * 10
    written |= {charge.key: charge for charge in meter.take()}
    told = sum(amount for what, _, amount in steps if what == "measured")
    assert math.isclose(sum(used.values()), told, abs_tol=1e-6)
    for session, seconds in used.items():
        own = [charge for charge in written.values() if charge.session == session]
        assert math.isclose(sum(c.device_seconds for c in own), seconds, abs_tol=1e-6)
        assert all(c.start <= c.end and c.end // SLICE_S == c.slice for c in own)


def test_a_session_is_charged_by_slices_and_unknown_ones_not_at_all():
    meter = Meter(RUN)
    assert meter.measured(1, 5.0, "cpu", NOW) == 0.0
    meter.opened(1, "user1", "k")
    meter.measured(1, 1.0, "cpu", 0.0)
    meter.measured(1, 3.0, "cpu", SLICE_S - 1.0)
    meter.measured(1, 3.5, "cpu", SLICE_S + 1.0)
    assert [(c.slice, c.device_seconds, c.start, c.end) for c in meter.take()] == [
        (0, 3.0, -1.0, SLICE_S - 1.0),
        (1, 0.5, SLICE_S + 0.5, SLICE_S + 1.0),
    ]
    meter.ended(1)
    assert meter.measured(1, 9.0, "cpu", NOW) == 0.0
    assert meter.take() == []


# -- usage -----------------------------------------------------------------------------------


def test_usage_of_earlier_runs_counts_at_the_time_it_was_used():
    usage = UsageHistory()
    usage.load([("user1", NOW - 3500, 2.0), ("user1", NOW - 4000, 4.0), ("user2", NOW, 1.0)])
    assert usage.window("user1", 3600.0).used(NOW) == 2.0
    usage.add("user1", 0.5, NOW)
    assert usage.window("user1", 3600.0).used(NOW) == 2.5
    assert usage.window("user1", 7200.0).used(NOW) == 6.5
    assert usage.users == {"user1", "user2"}


def test_a_horizon_that_moves_back_takes_in_what_lies_before_and_nothing_twice():
    usage = UsageHistory()
    usage.add("user1", 1.0, NOW)
    assert usage.window("user1", 3600.0).used(NOW) == 1.0
    usage.load_older([("user1", NOW, 1.0), ("user1", NOW - 86_000, 3.0), ("user2", NOW, 2.0)])
    assert usage.window("user1", 86_400.0).used(NOW) == 4.0
    assert usage.window("user2", 86_400.0).used(NOW) == 2.0


def test_what_is_older_than_any_period_is_forgotten():
    usage = UsageHistory()
    usage.add("user1", 1.0, NOW)
    usage.add("user2", 1.0, NOW + 10 * SLICE_S)
    usage.forget(NOW + 5 * SLICE_S)
    assert usage.users == {"user2"}
    assert [(c.user, c.session, c.device_seconds) for c in usage.carried("b")] == [
        ("user2", 0, 1.0)
    ]


# -- the store -------------------------------------------------------------------------------


def test_rows_and_settings_are_there_for_the_next_run(path):
    store = Store(url(path))
    assert store.open(0.0).usage == []
    store.write(
        [charge(), charge(2.0, session=2)],
        {SettingKey("user", "user1", "weight"): StoredSetting("2")},
    )
    loaded = Store(url(path)).open(NOW - 10)
    assert loaded.usage == [("user1", NOW, 1.5), ("user1", NOW, 2.0)]
    assert loaded.settings == {SettingKey("user", "user1", "weight"): StoredSetting("2")}
    assert Store(url(path)).open(NOW + SLICE_S).usage == []


def test_what_is_set_for_good_and_until_a_moment_are_two_rows(path):
    lasting, timed = SettingKey("default", "", "memory"), SettingKey("default", "", "memory", True)
    store = Store(url(path))
    store.open(0.0)
    store.write([], {lasting: StoredSetting("4G"), timed: StoredSetting("8G", NOW)})
    assert Store(url(path)).open(0.0).settings == {
        lasting: StoredSetting("4G"),
        timed: StoredSetting("8G", NOW),
    }
    store.write([], {timed: None})
    assert Store(url(path)).open(0.0).settings == {lasting: StoredSetting("4G")}


def test_a_ledger_of_the_version_before_is_gone_on_with_in_place(path):
    """The tables as they were made before anything could be set until a moment."""
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.executescript(
            "CREATE TABLE jgpu_charges (run VARCHAR(32) NOT NULL, session INTEGER NOT NULL, "
            "slice BIGINT NOT NULL, user VARCHAR(64) NOT NULL, device VARCHAR(256) NOT NULL, "
            "kernel_id VARCHAR(256) NOT NULL, start FLOAT NOT NULL, end FLOAT NOT NULL, "
            "device_seconds FLOAT NOT NULL, PRIMARY KEY (run, session, slice, user));"
            "CREATE TABLE jgpu_quotas (kind VARCHAR(8) NOT NULL, name VARCHAR(64) NOT NULL, "
            "field VARCHAR(16) NOT NULL, value VARCHAR(64) NOT NULL, "
            "PRIMARY KEY (kind, name, field));"
            "INSERT INTO jgpu_quotas VALUES ('user', 'user1', 'weight', '2');"
            f"INSERT INTO jgpu_charges VALUES ('r', 1, 7, 'user1', 'c', 'k', {NOW - 5}, {NOW}, 3);"
        )
    store = Store(url(path))
    loaded = store.open(0.0)
    assert loaded.usage == [("user1", NOW, 3.0)]
    assert loaded.settings == {SettingKey("user", "user1", "weight"): StoredSetting("2")}
    timed = SettingKey("user", "user1", "memory", timed=True)
    store.write([charge()], {timed: StoredSetting("1G", NOW)})
    assert store.open(0.0).settings[timed] == StoredSetting("1G", NOW)


def test_writing_a_row_twice_changes_nothing_and_a_newer_one_takes_its_place(path):
    store = Store(url(path))
    store.open(0.0)
    for seconds in (1.0, 1.0, 4.0):
        store.write([charge(seconds)], {SettingKey("default", "", "memory"): StoredSetting("4G")})
    store.write([], {SettingKey("default", "", "memory"): None})
    assert rows(path) == [("user1", 1, 4.0)]
    assert store.open(0.0).settings == {}


def test_many_rows_are_one_transaction(path):
    store = Store(url(path))
    store.open(0.0)
    store.write([charge(session=number) for number in range(1203)], {})
    assert len(rows(path)) == 1203


def test_a_file_of_garbage_is_moved_aside_whole(path):
    path.write_bytes(GARBAGE)
    with pytest.raises(LedgerBroken, match=r"not a database; the file is .*broken-"):
        Store(url(path)).open(0.0)
    (kept,) = path.parent.iterdir()
    assert kept.read_bytes() == GARBAGE
    path.write_bytes(GARBAGE)
    with pytest.raises(LedgerBroken):
        Store(url(path)).open(0.0)
    assert [file.read_bytes() for file in path.parent.iterdir()] == [GARBAGE] * 2
    assert Store(url(path)).open(0.0).usage == []


def test_what_lies_beside_a_broken_file_goes_with_it(path):
    path.write_bytes(GARBAGE)
    path.with_name("ledger.sqlite-wal").write_bytes(b"beside")
    moved = Store(url(path)).move_aside()
    assert moved.with_name(moved.name + "-wal").read_bytes() == b"beside"
    assert Store("sqlite://").move_aside() is None


@pytest.mark.parametrize("made", [url("/proc/no/ledger"), url("/dev/full")])
def test_a_place_where_nothing_can_be_is_a_problem_and_stays_as_it_is(made):
    with pytest.raises(LedgerProblem):
        Store(made).open(0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ledger is '', which SQLAlchemy cannot use"),
        ("no url", "ledger is 'no url'"),
        ("oracle9://user1:secret@host/x", "'oracle9://user1:***@host/x'"),
    ],
)
def test_a_url_that_no_ledger_can_have_is_one_sentence_without_its_password(text, said):
    with pytest.raises(ConfigError) as caught:
        check_url(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_urls_that_work_are_accepted(path):
    check_url(url(path))


# -- the ledger ------------------------------------------------------------------------------


class Owner:
    """What the ledger tells."""

    def __init__(self):
        self.usage = None
        self.settings = None
        self.carried = []

    def ledger_horizon(self):
        return 0.0

    def ledger_opened(self, usage, settings):
        self.usage, self.settings = usage, settings

    def ledger_begun_anew(self):
        return "b" * 32, self.carried


def make(path, owner=None, **options):
    return UsageLedger(url(path), path.parent, RUN, owner or Owner(), interval_s=0.01, **options)


def run(work):
    return asyncio.run(work())


@contextlib.contextmanager
def locked(path):
    with contextlib.closing(sqlite3.connect(path, timeout=0)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.rollback()


def test_what_is_kept_is_written_and_read_by_the_next_run(path):
    async def work():
        ledger = make(path)
        ledger.keep([charge(1.0)])
        ledger.keep([charge(2.0)])
        ledger.keep_setting(SettingKey("default", "", "weight"), StoredSetting("2"))
        assert ledger.report().unwritten_rows == 2
        assert await ledger.attempt()
        assert ledger.report() == LedgerReport(state="working", url=url(path))
        await ledger.close()
        owner = Owner()
        following = make(path, owner)
        assert await following.attempt()
        assert owner.usage == [("user1", NOW, 2.0)]
        assert owner.settings == {SettingKey("default", "", "weight"): StoredSetting("2")}
        assert await following.usage_since(0.0) == [("user1", NOW, 2.0)]
        await following.close()

    run(work)


def test_a_locked_ledger_keeps_what_is_used_says_so_once_and_writes_it_later(path, caplog):
    async def work():
        ledger = make(path)
        assert await ledger.attempt()
        ledger.keep([charge(2.0)])
        with locked(path):
            for _ in range(2):
                assert not await ledger.attempt()
            assert ledger.state is LedgerState.FAILING
            assert "database is locked" in ledger.report().text
            assert ledger.report().unwritten_device_seconds == 2.0
            ledger.keep([charge(3.0)])
        assert await ledger.attempt()
        assert ledger.report().text == ""
        await ledger.close()

    with caplog.at_level(logging.WARNING, "jgpu.broker"):
        run(work)
    assert rows(path) == [("user1", 1, 3.0)]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "cannot be used: database is locked" in said[0]
    assert "works again" in said[1]


def test_a_full_disk_is_survived(path):
    async def work():
        ledger = make(path)
        assert await ledger.attempt()
        ledger.keep([charge(session=number) for number in range(2000)])
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limit[1]))
        try:
            assert not await ledger.attempt()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert ledger.report().unwritten_rows == 2000
        assert await ledger.attempt()
        await ledger.close()

    run(work)
    assert len(rows(path)) == 2000


def test_a_ledger_that_may_only_be_read_is_survived_and_the_next_run_writes(path):
    async def work():
        owner = Owner()
        writable = make(path)
        writable.keep([charge(1.0)])
        await writable.close()
        ledger = UsageLedger(
            f"sqlite:///file:{path}?mode=ro&uri=true", path.parent, RUN, owner, interval_s=0.01
        )
        ledger.keep([charge(2.0, session=2)])
        assert not await ledger.attempt()
        assert owner.usage == [("user1", NOW, 1.0)]
        assert "readonly database" in ledger.report().text
        await ledger.close()
        await make(path).close()

    run(work)
    assert rows(path) == [("user1", 1, 1.0), ("user1", 2, 2.0)]


def test_a_ledger_that_becomes_garbage_is_moved_aside_and_begun_anew_with_all_that_is_known(
    path, caplog
):
    async def work():
        owner = Owner()
        ledger = make(path, owner)
        ledger.keep([charge(2.0)])
        assert await ledger.attempt()
        path.write_bytes(GARBAGE)
        owner.carried = [charge(5.0, session=0, run="b" * 32)]
        ledger.keep([charge(3.0)])
        assert not await ledger.attempt()
        assert await ledger.attempt()
        assert "broken-" in ledger.report().text
        await ledger.close()

    run(work)
    assert rows(path) == [("user1", 0, 5.0)]
    (kept,) = [file for file in path.parent.iterdir() if ".broken-" in file.name]
    assert kept.read_bytes() == GARBAGE
    assert "The usage ledger was broken: file is not a database" in caplog.text


def test_the_task_writes_at_once_where_a_setting_changed(path):
    async def work():
        owner = Owner()
        ledger = UsageLedger(url(path), path.parent, RUN, owner, interval_s=3600.0)
        written = asyncio.Event()
        task = asyncio.create_task(ledger.run())
        ledger.keep([charge()])
        ledger.keep_setting(SettingKey("default", "", "weight"), StoredSetting("2"))
        works = ledger._works
        ledger._works = lambda: (works(), written.set())
        async with asyncio.timeout(10):
            await written.wait()
        task.cancel()
        assert ledger.report().unwritten_rows == 0
        await ledger.close()

    run(work)
    assert rows(path) == [("user1", 1, 1.5)]


def test_what_cannot_be_written_at_the_end_is_written_by_the_next_run(path):
    async def work():
        ledger = make(path)
        assert await ledger.attempt()
        ledger.keep([charge(2.0)])
        ledger.keep_setting(SettingKey("default", "", "weight"), StoredSetting("2"))
        with locked(path):
            await ledger.close()
        assert rows(path) == []
        (file,) = find_leftovers(path.parent)
        assert file.stat().st_mode & 0o777 == 0o600
        (path.parent / "usage-unwritten-x.json").write_bytes(b"{")
        owner = Owner()
        following = make(path, owner)
        assert await following.attempt()
        assert owner.usage == [("user1", NOW, 2.0)]
        assert owner.settings == {SettingKey("default", "", "weight"): StoredSetting("2")}
        assert [f.name for f in find_leftovers(path.parent)] == ["usage-unwritten-x.json"]
        await following.close()

    run(work)


def test_what_can_be_written_nowhere_is_said(path, caplog):
    async def work():
        ledger = UsageLedger(url("/proc/x/y"), path.parent / "no", RUN, Owner(), interval_s=0.01)
        ledger.keep([charge(2.0)])
        await ledger.close()

    run(work)
    assert "2 device-seconds and 0 settings could not be written anywhere" in caplog.text


def test_leftovers_are_what_they_were(tmp_path):
    left = Leftovers([charge()], [(SettingKey("user", "user1", "weight"), None)])
    assert read_leftovers(leave(tmp_path, RUN, left)) == left
    assert find_leftovers(tmp_path / "no") == []


def test_leftovers_of_the_version_before_are_read(tmp_path):
    file = tmp_path / "usage-unwritten-a.json"
    file.write_text(
        '{"charges":[],"settings":[[["user","user1","weight"],"2"],[["default","","memory"],null]]}'
    )
    assert read_leftovers(file).kept == {
        SettingKey("user", "user1", "weight"): StoredSetting("2"),
        SettingKey("default", "", "memory"): None,
    }


def test_a_database_that_hangs_holds_nobody_up_who_stops(path, monkeypatch):
    release = threading.Event()

    class Hanging:
        shown = "hanging"

        def write(self, charges, settings):
            release.wait(60)

    async def work():
        monkeypatch.setattr(ledger_module, "_FLUSH_S", 0.05)
        ledger = make(path)
        assert await ledger.attempt()
        ledger._store = Hanging()
        ledger.keep([charge()])
        await ledger.close()
        assert len(find_leftovers(path.parent)) == 1

    run(work)
    release.set()


def test_every_name_that_a_hub_may_tell_fits_the_ledger():
    """SQLite takes any length; other databases would refuse the row, and all that go with it."""
    columns = [
        CHARGES.c.user, SETTINGS.c.name, TIMED_SETTINGS.c.name, EVENTS.c.who, EVENTS.c.about,
    ]  # fmt: skip
    assert [column.type.length for column in columns] == [limits.MAX_NAME] * 5
