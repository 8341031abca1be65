"""Names, imports, policies by name, states, stories and snapshots."""

import ast
import importlib
import pkgutil
import sys
from dataclasses import replace
from pathlib import Path

import processes
import pytest
from scheduler_driver import Device, device_with

import jgpu.sched
from jgpu.errors import ConfigError
from jgpu.sched import (
    CellEnded,
    CellStarted,
    Core,
    IllegalTransition,
    LanesConfigured,
    Limits,
    MemoryMeasured,
    PolicyChanged,
    SessionOpened,
    Snapshot,
    Start,
    WorkCancelled,
    load_policy,
    policies,
)
from jgpu.sched.lanes.waiting import WaitingMembers
from jgpu.sched.policies.fair import Fair
from jgpu.sched.policies.fifo import Fifo
from jgpu.sched.reports.snapshot import LaneStatus, SessionStatus, UserStatus
from jgpu.sched.sessions.session import ScheduledSession
from jgpu.sched.sessions.user import User
from jgpu.sched.sessions.work import ScheduledWork
from jgpu.sched.states import (
    LANE_MOVES,
    SESSION_MOVES,
    WORK_MOVES,
    LaneState,
    SessionState,
    WorkState,
    check_move,
)

MS = 0.001
ROOT = Path(jgpu.sched.__file__).parent
FORBIDDEN = {"asyncio", "datetime", "logging", "random", "socket", "threading", "time", "torch"}
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(jgpu.sched.__path__, "jgpu.sched.")
)


def imported(path):
    """Return the names of all modules that a file imports, at whatever place."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.stem)
def test_no_module_knows_clocks_chance_sockets_or_torch(path):
    names = imported(path)
    assert not {name.split(".")[0] for name in names} & FORBIDDEN
    ours = {name for name in names if name.split(".")[0] == "jgpu"}
    assert all(name == "jgpu.errors" or name.startswith("jgpu.sched") for name in ours)


def test_importing_the_scheduler_brings_in_no_torch():
    code = "import sys, jgpu.sched; sys.exit('torch' in sys.modules)"
    assert processes.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["jgpu.sched", *MODULES])
def test_public_names_exist_and_are_sorted(name):
    module = importlib.import_module(name)
    if name.startswith("jgpu.sched.simulate"):
        return
    assert all(hasattr(module, public) for public in module.__all__)
    capitals = [public for public in module.__all__ if public.isupper()]
    others = [public for public in module.__all__ if public not in capitals]
    assert module.__all__ == sorted(capitals) + sorted(others, key=lambda n: (n.islower(), n))
    assert module.__doc__


# --- policies


def test_policies_are_chosen_by_name():
    assert isinstance(load_policy("fair"), Fair)
    assert isinstance(load_policy("fifo"), Fifo)
    assert Core("fifo").snapshot().policy == "fifo"


def test_policies_of_other_packages_are_found_and_come_first(monkeypatch):
    class Point:
        name = "fair"
        value = "jgpu.sched.policies.fifo:Fifo"

    policies.known_policies.cache_clear()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point])
    assert isinstance(load_policy("fair"), Fifo)
    assert isinstance(load_policy("fifo"), Fifo)
    policies.known_policies.cache_clear()


def test_every_built_in_policy_is_published():
    text = (ROOT.parents[1] / "pyproject.toml").read_text()
    assert policies.BUILT_IN
    for name, place in policies.BUILT_IN.items():
        assert f'{name} = "{place}"' in text


def test_an_unknown_policy_is_refused_and_changes_nothing():
    device = device_with()
    with pytest.raises(
        ConfigError,
        match=r"no scheduling policy 'best'; there are: fair, fifo, las, pack, priority, srtf\.",
    ):
        device.tell(PolicyChanged("best"))
    assert device.core.snapshot().policy == "fair"


def test_fair_orders_by_user_then_session_then_arrival():
    busy, fresh = User("user1", virtual_s=1.0), User("user2", weight=2.0, in_flight_s=1.0)
    sessions = [
        ScheduledSession(1, busy, [], arrival=1),
        ScheduledSession(2, fresh, [], arrival=4, virtual_s=0.2),
        ScheduledSession(3, fresh, [], arrival=3, in_flight_s=0.1),
        ScheduledSession(4, fresh, [], arrival=2, virtual_s=0.1),
    ]
    fair = Fair()
    assert [each.id for each in sorted(sessions, key=fair.rank)] == [4, 3, 2, 1]
    for candidates in (sessions, sessions[::-1]):
        assert fair.choose(candidates) == (4, "least virtual time")


def test_a_policy_need_only_rank():
    class Youngest(policies.Policy):
        name, reason = "youngest", "came last"

        def rank(self, session):
            return (-session.arrival,)

    young, old = (ScheduledSession(n, User("user1"), [], arrival=n) for n in (2, 1))
    assert Youngest().choose([old, young]) == (2, "came last")
    assert Youngest().preempts(old, young, Limits()) == ""
    assert not Youngest().outranks(old, young, Limits())
    assert Fifo().outranks(young, old, Limits())


def test_a_policy_that_ranks_or_chooses_otherwise_says_its_bound_anew():
    class Backwards(Fair):
        name = "backwards"

        def rank(self, session):
            return (-super().rank(session)[0],)

    assert Fair.is_bounded
    assert not Backwards.is_bounded
    bounded = {name for name in policies.BUILT_IN if policies.load_policy(name).is_bounded}
    assert bounded == {"fair", "pack"}


def test_a_session_shows_policies_what_they_may_see():
    device = Device()
    device.tell(LanesConfigured(1, 1000))
    device.tell(SessionOpened(1, "user1"))
    for _ in range(2):
        device.send(1, 5 * MS, ends=True)
        device.pass_time(5 * MS)
        device.finish(0)
    (session,) = device.core._table.sessions.values()
    names = [name for name in vars(policies.SessionView) if not name.startswith("_")]
    shown = {name: getattr(session, name) for name in names}
    assert (shown["id"], shown["user"].name, shown["arrival"]) == (1, "user1", 1)
    assert shown["iterations"] == 2
    assert shown["iteration_s"] == pytest.approx(5 * MS)
    assert shown["device_seconds"] == shown["attained_s"] == pytest.approx(10 * MS)
    assert shown["remaining_s"] is None


# --- states


@pytest.mark.parametrize("table", [SESSION_MOVES, WORK_MOVES, LANE_MOVES])
def test_every_state_has_its_row_and_the_last_one_leads_nowhere(table):
    states = type(next(iter(table)))
    assert set(table) == set(states)
    assert list(table.values())[-1] == frozenset()


def test_an_illegal_transition_raises_with_the_story():
    device = device_with()
    device.tell(SessionOpened(1, "user1"))
    session = ScheduledSession(1, User("user1"), device.core.story(1))
    with pytest.raises(IllegalTransition) as caught:
        session.become(SessionState.RUNNING)
    assert str(caught.value) == (
        "session 1 cannot go from idle to running; its story:\n"
        "  0.000000 #2 SessionOpened: opens (for user1)"
    )
    work = ScheduledWork(5, (MS,), ends_iteration=False, claim=0)
    with pytest.raises(IllegalTransition, match=r"work 5 cannot .* story: \(none\)"):
        work.become(WorkState.FINISHED)


# --- what is shown


def test_events_and_actions_are_frozen_and_name_their_cause():
    event = SessionOpened(1, "user1", cause=7)
    assert event.cause == 7
    assert event == SessionOpened(1, "user1") != SessionOpened(1, "user2")
    assert len({event, SessionOpened(1, "user1"), SessionOpened(1, "user2")}) == 2
    assert Start(1, 1, 0, 1, 0, 1) != event
    with pytest.raises(AttributeError, match="immutable"):
        event.user = "user2"
    assert not hasattr(event, "__dict__")
    device = device_with()
    device.tell(event)
    device.send(1, MS)
    assert [action.cause for action in device.actions[-2:]] == [3, 3]


def test_a_story_tells_what_happened_and_why_and_is_bounded():
    device = device_with()
    device.tell(SessionOpened(1, "user1"))
    device.tell(SessionOpened(2, "user2"))
    device.tell(CellStarted(2))
    device.send(1, MS, MS, MS)
    works = [device.send(2, MS), device.send(2, MS)]
    device.tell(WorkCancelled(2, (works[1],)))
    device.works[works[1]].cancelled = True
    for _ in range(3):
        device.finish(0)
    device.tell(CellEnded(2))
    assert [(entry.event, entry.what, entry.why) for entry in device.core.story(2)] == [
        ("SessionOpened", "opens", "for user2"),
        ("CellStarted", "begins a cell", "told by the client"),
        ("WorkArrived", "joins lane 0", "the lane that fits best"),
        ("WorkArrived", "waits", "for user1"),
        ("WorkCancelled", "loses 1 works", "cancelled"),
        ("SegmentsFinished", "has the turn in lane 0", "least virtual time"),
        ("CellEnded", "ends a cell", "told by the client"),
    ]
    for _ in range(200):
        device.tell(CellStarted(2))
    assert len(device.core.story(2)) == 64
    assert device.core.story(3) == ()


def counted(*seconds):
    """Counts of these times."""
    histogram = jgpu.sched.Histogram()
    for each in seconds:
        histogram.note(each)
    return histogram.now


def test_times_are_counted_by_buckets_with_their_bounds():
    shown = counted(0.0, 0.0001, 0.00011, 300.0, 300.5)
    assert len(shown.counts) == len(jgpu.sched.BOUNDS_S) + 1
    assert (shown.counts[:2], shown.counts[-2:]) == ((2, 1), (1, 1))
    assert sum(shown.counts) == 5
    assert shown.seconds == pytest.approx(600.50021)


def test_waits_are_counted_when_they_are_over_and_iterations_when_they_end():
    device = device_with()
    device.tell(SessionOpened(1, "user1"))
    device.tell(SessionOpened(2, "user2"))
    device.send(1, MS, MS, MS, ends=True)
    device.send(2, MS, ends=True)
    device.pass_time(MS)
    (shown,) = (each for each in device.core.snapshot().sessions if each.id == 2)
    assert shown.waits_since == 0.0
    device.finish(0)
    device.pass_time(MS)
    while device.lanes[0]:
        device.finish(0)
    snapshot = device.core.snapshot()
    assert snapshot.iterations == counted(3 * MS, MS)
    assert snapshot.waits == counted(0.0, 2 * MS)
    assert all(each.waits_since is None for each in snapshot.sessions)


def status(session, state, **others):
    """What a snapshot says of a session of `user<session>`, nothing of which is told yet."""
    plain = SessionStatus(
        id=session,
        user=f"user{session}",
        state=state,
        residence="here",
        priority="normal",
        waits_for=(),
        waits_on="",
        waits_since=None,
        lane=None,
        resident=0,
        kept=0,
        transient=0,
        spilled=0,
        device_seconds=0.0,
        iterations=0,
        iteration_s=0.0,
        iteration_median_s=0.0,
        iteration_p95_s=0.0,
        queue_position=0,
        ahead=None,
    )
    return replace(plain, **others)


def test_the_distribution_of_iteration_times_is_that_of_the_last_ones():
    device = Device(Core(limits=Limits(iterations_kept=40)))
    device.tell(LanesConfigured(1, 1000))
    device.tell(SessionOpened(1, "user1"))
    for number in range(60):
        device.send(1, number * MS, ends=True)
        device.finish(0)
    (shown,) = device.core.snapshot().sessions
    assert shown.iterations == 60
    assert shown.iteration_median_s == pytest.approx(39 * MS)
    assert shown.iteration_p95_s == pytest.approx(57 * MS)


def test_a_snapshot_is_a_copy_of_everything_worth_showing():
    device = device_with(capacity=1000)
    device.tell(SessionOpened(1, "user1", 2.0))
    device.tell(SessionOpened(2, "user2"))
    device.tell(SessionOpened(3, "user3"))
    device.tell(MemoryMeasured(1, 10, 20, 30))
    device.send(1, MS, MS, MS, ends=True)
    device.send(2, MS)
    device.pass_time(MS)
    device.finish(0)
    assert device.core.snapshot() == Snapshot(
        policy="fair",
        capacity=1000,
        committed=60,
        busy_seconds=MS,
        cut_off=False,
        draining=False,
        under_way=(1,),
        waits=counted(0.0),
        iterations=counted(),
        lanes=(LaneStatus(0, "open", 30, 0, (1, 2), 1),),
        sessions=(
            status(1, "running", lane=0, resident=10, kept=20, transient=30, device_seconds=MS),
            replace(
                status(2, "waiting", waits_for=("user1",), waits_on="turn", waits_since=0.0),
                lane=0,
                queue_position=1,
                ahead=1,
            ),
            status(3, "idle"),
        ),
        users=(
            UserStatus("user1", 2.0, False, MS),
            UserStatus("user2", 1.0, False, 0.0),
            UserStatus("user3", 1.0, False, 0.0),
        ),
    )
    assert device.started[-1] == Start(1, 1, 2, 1, 0, 1)


def test_a_session_s_charge_can_be_asked_for_after_it_closed():
    core = jgpu.sched.Core()
    core.handle(jgpu.sched.LanesConfigured(1, 1000), 0.0)
    core.handle(jgpu.sched.SessionOpened(1, "user1"), 0.0)
    charged_s = core.charge_of(1)
    (start,) = (
        action
        for action in core.handle(
            jgpu.sched.WorkArrived(1, 7, (jgpu.sched.Segment(0.5, 0),), ends_iteration=True), 1.0
        )
        if isinstance(action, jgpu.sched.Start)
    )
    core.handle(jgpu.sched.SessionClosed(1), 1.25)
    core.handle(jgpu.sched.SegmentsFinished(start.lane, start.epoch, 7, 1, 0.5), 1.5)
    assert charged_s() == 0.5


def test_only_a_bounded_policy_has_a_bound():
    with pytest.raises(NotImplementedError):
        Fifo().bound(ScheduledSession(1, User("user1"), []))


def test_those_who_come_and_go_unasked_for_leave_no_more_behind_than_a_few():
    waiting, session = WaitingMembers(), ScheduledSession(1, User("user1"), [], arrival=1)
    assert waiting.first(Fair(), 0, lambda each: True) is None
    for _ in range(200):
        waiting.join(session)
        del waiting[session.id]
    waiting.join(session)
    waiting.validate()
    assert waiting.first(Fair(), 0, lambda each: True) is session
    waiting.validate()


@pytest.mark.parametrize("old", LaneState)
def test_a_lane_goes_where_the_table_of_states_leads_and_nowhere_else(old):
    for new in LaneState:
        if new in LANE_MOVES[old]:
            assert check_move(LANE_MOVES, "lane 3", old, new) is new
        else:
            with pytest.raises(IllegalTransition, match="lane 3 cannot go from"):
                check_move(LANE_MOVES, "lane 3", old, new)
