"""The desk: what users may have, told to executors; counted once, judged, changed live."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jgpu.broker.control.listening.identity import Identity, Peer
from jgpu.broker.control.listening.shares import Shares
from jgpu.broker.control.quotas.desk import QuotaService
from jgpu.broker.control.quotas.groups import Groups
from jgpu.broker.control.quotas.requests import QuotaRequests
from jgpu.broker.control.quotas.scopes import QuotaSettings, Scope
from jgpu.broker.control.quotas.spec import QuotaSpec, make_spec
from jgpu.broker.control.registry import Registry
from jgpu.broker.control.reports.report import Viewer
from jgpu.errors import BrokerRefused, ConfigError, QuotaExceeded
from jgpu.wire.messages import (
    Adopt,
    AskQuotas,
    ReportIs,
    SetQuota,
    SetUser,
    Tell,
)
from jgpu.wire.reports.report import SessionReport

NOW = 1_000_000_000.0
ROOT, USER = Viewer("root", administrator=True), Viewer("user1", administrator=False)
DEFAULT = Scope("default")


def report(**used):
    """A report of the device-seconds of sessions, by s1=..., s2=..."""
    rows = tuple(
        SessionReport(id=int(name[1:]), state="idle", device_seconds=seconds)
        for name, seconds in used.items()
    )
    return ReportIs(1, (), rows, 0, "fair")


class Office:
    """A desk with a registry, a clock of the test's own, and what was sent to the executor."""

    def __init__(self, directory, specs=None, members=None, *, private=False):
        self.now, self.sent = NOW, []
        self.registry = Registry(Shares.of(100))
        settings = QuotaSettings(specs=specs or {}, members=members or {})
        self.desk = QuotaService(
            settings,
            self.registry,
            ledger=f"sqlite:///{directory}/usage.sqlite",
            directory=directory,
            interval_s=5.0,
            private=private,
            clock=lambda: self.now,
            groups=Groups(settings.members, lambda user: frozenset()),
        )
        self.desk.send = self.sent.append
        self.desk.ledger.tried.set()
        self.requests = QuotaRequests(self.desk, self.registry)

    def open(self, user="user1"):
        session = self.registry.admit(
            Peer(1, 1),
            user,
            ticket="",
            kernel_id="k",
            label="",
            now=0.0,
            identity=Identity("user", user),
        )
        self.adopt(session)
        return session.number

    def adopt(self, session):
        self.sent += [self.desk.before_adoption(session), Adopt]
        self.registry.adopted(session.number)
        self.desk.after_adoption(session)

    def use(self, **used):
        self.desk.measured(report(**used), "cpu")
        self.desk.look()
        return self.taken()

    def taken(self):
        sent, self.sent[:] = list(self.sent), []
        return sent

    def used(self, user="user1"):
        return self.desk.verdict(user).used_s


@pytest.fixture
def office(tmp_path):
    """Makes offices with a quota for all, and others by their scopes."""

    def make(default=None, *, members=None, private=False, **scopes):
        specs = {Scope.parse(name.replace("_", ":")): make_spec(s) for name, s in scopes.items()}
        specs |= {DEFAULT: make_spec(default or {})}
        return Office(tmp_path, specs, members, private=private)

    return make


BUDGET = {"device_seconds": 10, "period": "1h"}


def test_an_executor_is_told_of_a_user_before_it_gets_his_session(office):
    made = office({"memory": "1G"}, user_user1={"weight": 2, "resident": "512M"})
    made.open()
    expected = SetUser("user1", weight=2.0, limit=1 << 30, resident_limit=512 << 20)
    assert made.taken() == [expected, Adopt]
    made.open("user2")
    assert made.taken() == [SetUser("user2", weight=1.0, limit=1 << 30), Adopt]


def test_it_is_told_again_when_something_changes_and_only_then(office):
    made = office()
    made.open()
    made.taken()
    assert made.use(s1=1.0) == []
    asyncio.run(made.desk.set_live(Scope("user", "user1"), {"weight": "3", "memory": "1G"}))
    assert made.taken() == [SetUser("user1", weight=3.0, limit=1 << 30)]
    assert made.use(s1=1.0) == []
    asyncio.run(made.desk.set_live(Scope("user", "user1"), {}))
    assert made.taken() == [SetUser("user1")]


@pytest.mark.parametrize(
    ("over_budget", "throttled", "refused", "told"),
    [("warn", False, False, True), ("throttle", True, False, True), ("deny", False, True, False)],
)
def test_beyond_the_budget_the_executor_learns_what_the_quota_says(
    office, over_budget, throttled, refused, told
):
    made = office(BUDGET | {"over_budget": over_budget})
    first, second = made.open(), made.open()
    made.open("user2")
    made.taken()
    assert made.use(s1=6.0, s2=3.9, s3=9.9) == []
    sent = made.use(s1=6.0, s2=4.0, s3=9.9)
    orders = [order for order in sent if isinstance(order, SetUser)]
    assert [(o.throttled, bool(o.refusal)) for o in orders] in ([], [(throttled, refused)])
    assert bool(orders) == (throttled or refused)
    notices = [order for order in sent if isinstance(order, Tell)]
    assert [notice.session for notice in notices] == ([first, second] if told else [])
    for text in [order.refusal for order in orders if refused] + [n.text for n in notices]:
        assert text.startswith("user1 has used 10 of 10 device-seconds that may be used in any 1h.")
    assert made.use(s1=6.0, s2=4.0, s3=9.9) == []


def test_when_enough_of_it_is_long_enough_ago_the_user_is_within_it_again(office):
    made = office(BUDGET | {"over_budget": "deny"})
    made.open()
    made.taken()
    (order,) = made.use(s1=10.0)
    assert order.refusal
    made.now = made.desk.verdict("user1").free_at
    assert made.use(s1=10.0) == [SetUser("user1")]
    (order,) = made.use(s1=20.0)
    assert order.refusal


def test_a_session_that_comes_later_is_told_where_its_user_stands(office):
    made = office(BUDGET | {"over_budget": "warn"})
    made.open()
    made.use(s1=11.0)
    made.taken()
    number = made.open()
    order, _, notice = made.taken()
    assert not order.throttled
    assert notice.session == number
    assert "used 11 of 10" in notice.text


def test_a_quota_that_changes_while_cells_run_counts_at_once(office):
    made = office(BUDGET | {"over_budget": "deny"})
    made.open()
    made.use(s1=11.0)
    made.taken()
    asyncio.run(made.desk.set_live(Scope("user", "user1"), {"device_seconds": "1m"}))
    assert made.taken() == [SetUser("user1")]
    asyncio.run(made.desk.set_live(Scope("user", "user1"), {"device_seconds": "11"}))
    (order,) = made.taken()
    assert "used 11 of 11" in order.refusal
    asyncio.run(made.desk.set_live(Scope("user", "user1"), {"over_budget": "throttle"}))
    order, notice = made.taken()
    assert order == SetUser("user1", throttled=True)
    assert isinstance(notice, Tell)
    asyncio.run(made.desk.set_live(Scope("user", "user1"), {"device_seconds": "none"}))
    assert made.taken() == [SetUser("user1")]


def test_the_next_executor_is_told_everything_and_counts_from_nothing(office):
    made = office(BUDGET | {"over_budget": "throttle"})
    made.open()
    made.use(s1=6.0)
    made.desk.executor_gone()
    made.registry.executor_gone()
    made.taken()
    made.adopt(made.registry.sessions[1])
    assert made.taken() == [SetUser("user1"), Adopt]
    order, notice = made.use(s1=4.5)
    assert order == SetUser("user1", throttled=True)
    assert "used 10.5 of 10" in notice.text


@given(
    st.lists(
        st.tuples(st.sampled_from(["report", "end", "restart"]), st.floats(0, 50)), max_size=25
    )
)
def test_each_second_counts_once_over_reports_ends_and_restarts(tmp_path_factory, steps):
    made = Office(tmp_path_factory.getbasetemp())
    number, total, told = made.open(), 0.0, 0.0
    for what, seconds in steps:
        if what == "restart":
            made.desk.executor_gone()
            made.registry.executor_gone()
            made.adopt(made.registry.sessions[number])
            total = 0.0
            continue
        total += seconds
        told += seconds
        if what == "report":
            made.desk.measured(report(**{f"s{number}": total}), "cpu")
        else:
            made.desk.session_ended(number, total, "cpu")
            made.registry.ended(number, total)
            number, total = made.open(), 0.0
    assert math.isclose(made.used(), told, abs_tol=1e-6)
    made.desk.look()
    unwritten = made.desk.ledger.report().unwritten_device_seconds
    assert math.isclose(unwritten, told, abs_tol=1e-6)


def test_classes_of_sessions(office):
    made = office(user_user1={"priority": "interactive"}, user_user3={"priority": "batch"})
    assert [made.desk.priority("user1", asked) for asked in ("", "normal", " Batch ")] == [0, 1, 2]
    assert made.desk.priority("user2", "") == 1
    assert made.desk.priority("user3", "") == 2
    with pytest.raises(QuotaExceeded, match="the most urgent that user2 may have is normal"):
        made.desk.priority("user2", "interactive")
    with pytest.raises(QuotaExceeded, match="no priority 'urgent'; it is one of interactive, no"):
        made.desk.priority("user2", "urgent")


def test_in_ones_own_broker_any_class_may_be_asked_for_unless_it_is_said_otherwise(office):
    made = office(private=True, user_user2={"priority": "normal"})
    assert [made.desk.priority("user1", asked) for asked in ("", "interactive")] == [1, 0]
    with pytest.raises(QuotaExceeded):
        made.desk.priority("user2", "interactive")


def test_the_nearer_a_budgets_end_the_sooner_the_next_look(office):
    made = office(BUDGET)
    made.open()
    assert made.desk._delay_s() == 5.0
    made.use(s1=8.0)
    assert made.desk._delay_s() == 2.0
    made.use(s1=9.99)
    assert made.desk._delay_s() == 0.25
    made.use(s1=10.0)
    assert made.desk._delay_s() == 5.0


# -- over restarts ---------------------------------------------------------------------------


def test_what_is_set_until_a_moment_is_told_to_the_executor_when_it_ends(office):
    made = office()
    made.open()
    made.taken()
    scope = Scope("user", "user1")
    asyncio.run(made.desk.set_live(scope, {"weight": "2"}))
    asyncio.run(made.desk.set_live(scope, {"weight": "5", "memory": "1G"}, NOW + 60))
    assert made.taken() == [
        SetUser("user1", weight=2.0),
        SetUser("user1", weight=5.0, limit=1 << 30),
    ]
    made.now = NOW + 59
    assert made.use(s1=1.0) == []
    assert made.desk._delay_s() == pytest.approx(1.0)
    made.now = NOW + 60
    assert made.use(s1=1.0) == [SetUser("user1", weight=2.0)]
    assert made.desk.scopes.timed == {}


def change(made, scope, **settings):
    request = SetQuota(scope, tuple(settings.items()), new=True)
    return asyncio.run(made.requests.change(request, ROOT)).notes


def holding(*rows):
    """A report of sessions that have a model and something else."""
    sessions = tuple(
        SessionReport(id=number, resident_bytes=model, ephemeral_bytes=more)
        for number, (model, more) in enumerate(rows, start=1)
    )
    return ReportIs(1, (), sessions, 0, "fair")


def test_a_quota_below_what_is_in_use_says_what_is_over_and_by_how_much(office):
    made = office(members={"class": frozenset({"user2"})})
    for user in ("user1", "user1", "user2"):
        made.open(user)
    made.desk.measured(holding((1 << 30, 2 << 30), (0, 1 << 30), (1 << 20, 0)), "cpu")
    assert change(made, "user:user1", memory="1536M") == (
        "user1 holds 4 GiB, 2.5 GiB more than the 1.5 GiB that user1 may have "
        "now. What is there can be read, written and saved; more is given once it is less.",
    )
    assert change(made, "user:user1", resident="512M", weight="2") == (
        "The models and optimizers of user1 hold 1 GiB, 512 MiB more than the 512 MiB "
        "that they may hold now. What is there can be read, written and saved; more is given once "
        "it is less.",
    )
    assert change(made, "default", sessions="1") == (
        "user1 has 2 sessions, 1 more than user1 may have now. They go on; another one begins "
        "once there are fewer.",
    )
    assert change(made, "group:class", memory="1K", priority="batch") == (
        "user2 holds 1 MiB, 1 MiB more than the 1 KiB that user2 may have "
        "now. What is there can be read, written and saved; more is given once it is less.",
        "user2 has 1 of 1 sessions in a class more urgent than batch. They keep it to their end.",
    )


def test_a_quota_that_holds_says_nothing(office):
    made = office()
    made.open()
    made.desk.measured(holding((1 << 30, 1 << 30)), "cpu")
    settings = {"memory": "2G", "resident": "1G", "sessions": "1", "priority": "normal"}
    assert change(made, "user:user1", **settings) == ()
    assert change(made, "user:user2", memory="1") == ()
    made.desk.executor_gone()
    assert change(made, "default", memory="1") == ()


def test_of_many_who_have_more_than_they_may_some_are_named_and_all_are_counted(office):
    made = office()
    for number in range(20):
        made.open(f"user{number}")
    made.desk.measured(holding(*[(1 << 20, 0)] * 20), "cpu")
    notes = change(made, "default", memory="1K")
    assert len(notes) == 17
    assert notes[-1] == "And 4 more are like this."


def test_a_group_that_there_is_none_of_is_said_wherever_quotas_are_listed(office):
    made = office(members={"class": frozenset({"user1"})}, group_semnar={"weight": 2})
    made.desk.scopes.set_live(Scope("group", "class"), {"weight": 2})
    report = asyncio.run(made.requests.list(AskQuotas(), ROOT))
    (note,) = report.notes
    assert note.startswith("There is no group 'semnar' on this host, in the configuration or at a")
    made.desk.groups.register("user9", ["semnar"])
    assert asyncio.run(made.requests.list(AskQuotas(), ROOT)).notes == ()
    assert asyncio.run(made.requests.list(AskQuotas(), USER)).notes == ()


def test_whoever_comes_after_a_moment_has_what_counts_then_though_nobody_looked(office):
    made = office()
    asyncio.run(made.desk.set_live(DEFAULT, {"weight": "5"}, NOW + 60))
    made.now = NOW + 61
    made.open()
    assert made.taken() == [SetUser("user1"), Adopt]


def test_what_is_set_for_good_ends_what_was_set_until_a_moment(office):
    made = office()
    asyncio.run(made.desk.set_live(DEFAULT, {"weight": "5", "sessions": "3"}, NOW + 60))
    asyncio.run(made.desk.set_live(DEFAULT, {"weight": "2"}))
    assert (made.desk.quota("user1").weight, made.desk.quota("user1").sessions) == (2.0, 3)
    asyncio.run(made.desk.set_live(DEFAULT, {"sessions": ""}))
    assert made.desk.quota("user1").sessions == 0
    assert made.desk.scopes.timed == {}


def test_what_was_set_until_a_moment_is_there_after_a_restart_unless_it_is_over(office):
    async def scenario():
        made = office()
        await made.desk.ledger.attempt()
        await made.desk.set_live(DEFAULT, {"weight": "2"})
        await made.desk.set_live(DEFAULT, {"weight": "5"}, NOW + 60)
        await made.desk.set_live(DEFAULT, {"sessions": "3"}, NOW + 30)
        await made.desk.ledger.close()
        again = office()
        again.now = NOW + 40
        await again.desk.ledger.attempt()
        assert (again.desk.quota("user1").weight, again.desk.quota("user1").sessions) == (5.0, 0)
        again.now = NOW + 60
        again.desk.look()
        assert again.desk.quota("user1").weight == 2.0
        await again.desk.ledger.close()
        last = office()
        await last.desk.ledger.attempt()
        assert last.desk.scopes.timed == {}
        assert last.desk.quota("user1").weight == 2.0
        await last.desk.ledger.close()

    asyncio.run(scenario())


def test_what_was_set_meanwhile_stands_above_what_the_ledger_says(office):
    async def scenario():
        before = office()
        await before.desk.ledger.attempt()
        await before.desk.set_live(DEFAULT, {"weight": "5", "memory": "1G"}, NOW + 60)
        await before.desk.set_live(DEFAULT, {"sessions": "3"})
        await before.desk.ledger.close()
        made = office()
        await made.desk.set_live(DEFAULT, {"weight": "3"})
        await made.desk.set_live(DEFAULT, {"sessions": "9"}, NOW + 60)
        await made.desk.ledger.attempt()
        quota = made.desk.quota("user1")
        assert (quota.weight, quota.memory, quota.sessions) == (3.0, 1 << 30, 9)
        made.now = NOW + 60
        quota = made.desk.quota("user1")
        assert (quota.weight, quota.memory, quota.sessions) == (3.0, 0, 3)
        await made.desk.ledger.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("until", [NOW, NOW - 1, -1.0, math.inf, math.nan, NOW + 1e10])
def test_a_moment_that_is_past_or_none_is_refused_in_words(office, until):
    made = office()
    request = SetQuota("default", (("weight", "2"),), until=until)
    with pytest.raises(ConfigError, match=r"A setting cannot end at .*; that is past, or too far"):
        asyncio.run(made.requests.change(request, ROOT))
    assert made.desk.scopes.listed() == []


@pytest.mark.parametrize("settings", [(), (("weight", ""),), (("weight", "2"), ("memory", ""))])
def test_what_is_taken_out_has_no_moment(office, settings):
    made = office()
    with pytest.raises(ConfigError, match="taken out for good"):
        asyncio.run(made.requests.change(SetQuota("default", settings, until=NOW + 9), ROOT))


def test_usage_and_live_settings_are_there_after_a_restart(office):
    async def first(made):
        await made.desk.ledger.attempt()
        await made.desk.set_live(Scope("user", "user1"), {"device_seconds": "5", "period": "2h"})
        made.open()
        made.use(s1=4.0)
        await made.desk.ledger.close()

    async def second(made):
        await made.desk.ledger.attempt()
        assert made.used() == 4.0
        assert made.desk.quota("user1").device_seconds == 5.0
        made.open()
        made.taken()
        order, _ = made.use(s1=1.0)
        assert order.throttled
        await made.desk.ledger.close()

    asyncio.run(first(office()))
    asyncio.run(second(office()))


def test_what_was_set_while_the_ledger_was_not_open_stands(office):
    async def work():
        before = office()
        await before.desk.ledger.attempt()
        await before.desk.set_live(DEFAULT, {"weight": "2", "memory": "1G"})
        before.desk.ledger.keep_setting(("user", "user1", "weight"), "heavy")
        await before.desk.ledger.close()
        made = office()
        await made.desk.set_live(DEFAULT, {"weight": "3"})
        await made.desk.ledger.attempt()
        assert made.desk.scopes.live == {DEFAULT: QuotaSpec(weight=3.0, memory=1 << 30)}
        await made.desk.ledger.close()

    asyncio.run(work())


def test_a_longer_period_counts_what_is_on_record_from_before(office):
    async def work():
        before = office()
        before.now = NOW - 20 * 86400
        await before.desk.ledger.attempt()
        before.open()
        before.use(s1=4.0)
        await before.desk.ledger.close()
        made = office()
        await made.desk.ledger.attempt()
        made.open()
        made.use(s1=1.0)
        assert made.used() == 1.0
        await made.desk.set_live(DEFAULT, {"period": "30d"})
        assert made.used() == 5.0
        await made.desk.set_live(DEFAULT, {"period": "29d"})
        assert made.used() == 5.0
        await made.desk.ledger.close()

    asyncio.run(work())


def test_a_ledger_that_is_begun_anew_gets_all_that_is_known(office, tmp_path):
    async def work():
        made = office()
        await made.desk.ledger.attempt()
        made.open()
        made.use(s1=4.0)
        await made.desk.set_live(DEFAULT, {"weight": "2"})
        await made.desk.ledger.attempt()
        (tmp_path / "usage.sqlite").write_bytes(b"garbage" * 1000)
        made.use(s1=5.0)
        assert not await made.desk.ledger.attempt()
        made.use(s1=6.0)
        await made.desk.ledger.close()
        again = office()
        await again.desk.ledger.attempt()
        assert again.used() == 6.0
        assert again.desk.quota("user1").weight == 2.0
        await again.desk.ledger.close()

    asyncio.run(work())


# -- jgpu quota ------------------------------------------------------------------------------


def test_an_administrator_sees_all_and_a_user_himself(office):
    made = office(BUDGET, user_user2={"weight": 2}, members={"seminar": frozenset({"user1"})})
    made.open()
    made.use(s1=11.0)
    seen = asyncio.run(made.requests.list(AskQuotas(), ROOT))
    assert [row.name for row in seen.users] == ["user1", "user2"]
    assert [row.scope for row in seen.scopes] == ["default", "user:user2"]
    assert seen.ledger.unwritten_device_seconds == 11.0
    row = seen.users[0]
    assert (row.state, row.used_in_period, row.weight) == ("throttled", 11.0, 1.0)
    assert (row.groups, row.sessions) == (("seminar",), 1)
    assert row.quota.device_seconds == 10.0
    assert row.free_at > NOW
    own = asyncio.run(made.requests.list(AskQuotas(), USER))
    assert [row.name for row in own.users] == ["user1"]
    assert own.scopes == ()
    assert not own.ledger
    assert asyncio.run(made.requests.list(AskQuotas("user1"), USER)) == own


@pytest.mark.parametrize(
    ("request_", "viewer", "error", "said"),
    [
        (AskQuotas("user2"), USER, BrokerRefused, "only an administrator sees others'"),
        (AskQuotas("nobody9"), ROOT, ConfigError, "no user 'nobody9'"),
        (SetQuota("default", (("weight", "2"),)), USER, BrokerRefused, "may set quotas"),
        (SetQuota("default", ()), USER, BrokerRefused, "may set quotas"),
        (SetQuota("user:typo9", (("weight", "2"),)), ROOT, ConfigError, "no user 'typo9'"),
        (SetQuota("group:typo9", (("weight", "2"),)), ROOT, ConfigError, "no group 'typo9'"),
        (SetQuota("default", (("weight", "nan"),)), ROOT, ConfigError, "weight is nan"),
        (SetQuota("default", (("speed", "2"),)), ROOT, ConfigError, "no 'speed'"),
        (SetQuota("default", (("speed", ""),)), ROOT, ConfigError, "no 'speed'"),
        (SetQuota("everybody", (("weight", "2"),)), ROOT, ConfigError, "is no scope"),
    ],
)
def test_what_may_not_be_asked_or_set_is_a_sentence_and_changes_nothing(
    office, request_, viewer, error, said
):
    made = office()
    ask = made.requests.list if isinstance(request_, AskQuotas) else made.requests.change
    with pytest.raises(error, match=said):
        asyncio.run(ask(request_, viewer))
    assert made.desk.scopes.live == {}


def test_users_and_groups_that_will_come_can_be_set_when_said_so(office):
    made = office(members={"seminar": frozenset()})
    for scope, new in (("user:nobody9", True), ("group:seminar", False), ("user:root", False)):
        asyncio.run(made.requests.change(SetQuota(scope, (("weight", "2"),), new), ROOT))
    assert {str(scope) for scope in made.desk.scopes.live} == {
        "user:nobody9",
        "group:seminar",
        "user:root",
    }
    asyncio.run(made.requests.change(SetQuota("user:nobody9", ()), ROOT))
    assert Scope("user", "nobody9") not in made.desk.scopes.live
