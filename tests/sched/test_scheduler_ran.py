"""A work that ran alone, told of in one event, leaves what it leaves told of in two."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_driver import Device, device_with
from test_scheduler_shortway import alone
from test_scheduler_turns import MS

from jgpu.sched import (
    CellEnded,
    CellStarted,
    Core,
    DrainChanged,
    IllegalEvent,
    LanesConfigured,
    Limits,
    LoopTold,
    MemoryMeasured,
    PolicyChanged,
    Segment,
    SegmentsFinished,
    SessionClosed,
    SessionIdle,
    SessionOpened,
    SpillAsked,
    Start,
    TimeCharged,
    TimePassed,
    UserConfigured,
    WorkArrived,
    WorkRan,
)

NUMBERS = st.integers(1, 3)
SECONDS = st.sampled_from([0.0, 1e-7, 0.0001, 0.0013, 0.02, 0.3])
BYTES = st.sampled_from([0, 0, 1, 10, 40, 70, 100])
POLICIES = st.sampled_from(["fair", "fair", "las", "srtf", "fifo", "priority"])
#: what happens to two cores alike; "runs" is told of in one event to one, in two to the other
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("runs"), NUMBERS, SECONDS, BYTES, st.booleans(), SECONDS, SECONDS),
        st.tuples(st.just("runs"), st.just(1), SECONDS, BYTES, st.booleans(), SECONDS, SECONDS),
        st.tuples(st.just("sends"), NUMBERS, SECONDS, BYTES, st.booleans()),
        st.tuples(st.just("finishes"), st.integers(0, 3), SECONDS),
        st.tuples(st.just("passes"), SECONDS),
        st.tuples(
            st.just("tells"),
            st.one_of(
                st.builds(CellStarted, NUMBERS),
                st.builds(CellEnded, NUMBERS),
                st.builds(SessionIdle, NUMBERS),
                st.builds(LoopTold, NUMBERS, st.sampled_from([None, 0, 5])),
                st.builds(TimeCharged, NUMBERS, SECONDS),
                st.builds(MemoryMeasured, NUMBERS, BYTES, st.just(0), BYTES),
                st.builds(UserConfigured, st.sampled_from(["user1", "user2"]), st.just(2.0)),
                st.builds(PolicyChanged, POLICIES),
                st.builds(LanesConfigured, st.integers(1, 3), st.sampled_from([150, 300])),
                st.just(TimePassed()),
            ),
        ),
    ),
    max_size=40,
)
PRIORITIES = st.tuples(*[st.integers(0, 2)] * 3)


def plain(core):
    """All that a core knows, but for how many events it was told and what these were called."""
    snapshot = core.snapshot()
    table, ledger = core._table, core._ledger
    sessions = {
        number: [
            each.state, each.residence, each.share, each.virtual_s, each.arrival, each.in_flight,
            each.in_flight_s, each.lane and each.lane.id, each.iteration_open, each.lead_s,
            [work.id for work in (*each.queue, *each.started)],
            {**vars_of(each.room), "claims": [work.id for work in each.room.claims]},
            vars_of(each.memory), vars_of(each.progress), vars_of(each.waiting),
            [(line.now, line.what, line.why) for line in each.story],
        ]
        for number, each in table.sessions.items()
    }  # fmt: skip
    lanes = {
        number: [
            lane.capacity, lane.state, [*lane.members], [*lane.waiting], lane.suspended,
            lane.holder and lane.holder.id, lane.epoch, lane.used_s, lane.look_at_s,
            lane.protected, len(lane.in_flight), lane.segments, lane.in_flight_s,
        ]
        for number, lane in table.lanes.items()
    }  # fmt: skip
    users = {
        name: [
            user.weight, user.part, user.share, user.urgent, user.urgent_until, user.throttled,
            user.device_seconds, user.virtual_s, user.in_flight_s, [*user.active], user.idle_since,
            user.floor_s,
        ]
        for name, user in ledger.users.items()
    }  # fmt: skip
    return {
        "sessions": sessions,
        "lanes": lanes,
        "users": users,
        "ledger": (
            [*ledger.active], [*ledger._fading], ledger.floor_s, ledger.busy_s, ledger.beside_s,
            ledger.now, ledger.version,
        ),
        "table": (
            [*table.unplaced], [*table.awaiting_growth], table.held, table.committed, table.changed,
            table.maximum, table.closing,
        ),
        "counts": (
            core._jobs, core._version, core._arrivals, core._last_work, core._finishing.worked_s,
            core._finishing.iterations.now, core._turns.waits.now, core._turns._epoch,
            core._journal.now,
        ),
        "shown": snapshot,
    }  # fmt: skip


def vars_of(slotted):
    return {name: getattr(slotted, name) for name in slotted.__slots__}


class Pair:
    """Two devices to which the same happens, but that one is told in one event what ran."""

    def __init__(self, priorities):
        self.one, self.two = (
            Device(Core("fair", Limits(story_entries=6))),
            Device(Core("fair", Limits(story_entries=6))),
        )
        self.ran = 0
        for device in (self.one, self.two):
            device.tell(LanesConfigured(2, 300))
            for number, priority in enumerate(priorities, 1):
                user = "user1" if number == 1 else "user2"
                device.tell(SessionOpened(number, user, 1.0, priority))

    def do(self, kind, *given):
        getattr(self, kind)(*given)
        assert plain(self.one.core) == plain(self.two.core)
        assert without_causes(self.one.actions) == without_causes(self.two.actions)

    def both(self, call):
        for device in (self.one, self.two):
            call(device)

    def passes(self, seconds):
        self.both(lambda device: device.pass_time(seconds))

    def tells(self, event):
        if isinstance(event, MemoryMeasured):
            held = {"resident": event.resident // 4, "transient": event.transient}
            self.both(lambda device: device.measure(event.session, **held))
        else:
            self.both(lambda device: device.tell(event))

    def sends(self, session, seconds, live, ends):
        self.both(lambda device: device.send(session, seconds, ends=ends, live=live))

    def finishes(self, number, seconds):
        busy = sorted(lane for lane, running in self.one.lanes.items() if running)
        if busy:
            self.passes(seconds)
            self.both(lambda device: device.finish(busy[number % len(busy)]))

    def runs(self, session, predicted_s, live, ends, elapsed_s, measured_s):
        one, two = self.one, self.two
        lane = one.core.would_start(session, live)
        if lane is None or not one.core.has_turn(session):
            return
        self.ran += 1
        works = next(one._ids), next(two._ids)
        ran = WorkRan(session, works[0], predicted_s, live, ends, lane, elapsed_s, measured_s)
        asked = would_start(one.core, session)
        done = one.core.handle(ran, one.now)
        assert would_start(one.core, session) == asked  # so more may run before it is told of
        segments = (Segment(predicted_s, live),)
        (start,) = two.core.handle(WorkArrived(session, works[1], segments, ends), two.now)
        assert isinstance(start, Start)
        finished = SegmentsFinished(lane, start.epoch, start.work, 1, measured_s)
        assert without_causes(done) == without_causes(
            two.core.handle(finished, two.now + elapsed_s)
        )
        for device in (one, two):
            device.now += elapsed_s
            device.core.validate()
            for action in done:
                device._do(action)


def would_start(core, session):
    """What a core says of the next work of a session, whatever it needs."""
    return [core.would_start(session, claim) for claim in range(0, 320, 10)], core.has_turn(session)


def without_causes(actions):
    return [(type(each).__name__, each._said) for each in actions]


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(STEPS, PRIORITIES)
def test_whatever_else_happens_one_event_is_two(steps, priorities):
    pair = Pair(priorities)
    for number in (1, 2, 3):
        pair.do("sends", number, 0.001, 10, True)
        pair.do("finishes", 0, 0.001)
    for step in steps:
        pair.do(*step)
    for _ in range(100):  # what was started ends, and what is decided then is the same
        if not any(pair.one.lanes.values()):
            break
        pair.do("finishes", 0, 0.001)
    for number in (1, 2, 3, 1, 1):
        pair.do("runs", number, 0.001, 10, True, 0.001, 0.001)
        pair.do("sends", number, 0.001, 10, False)
        pair.do("sends", 1 + number % 3, 0.001, 10, True)
        pair.do("finishes", 0, 0.001)
        pair.do("finishes", 0, 0.001)


def test_it_is_charged_and_counted_and_starts_nothing():
    device = alone()
    core = device.core
    before = core.snapshot().sessions[0]
    assert core.handle(WorkRan(1, 7, MS, 60, True, 0, 0.5, 0.25), device.now) == []
    core.validate()
    after = core.snapshot().sessions[0]
    assert after.device_seconds - before.device_seconds == pytest.approx(0.5)
    assert after.iterations == before.iterations + 1
    assert core._journal.now == device.now + 0.5


def ran(**changed):
    given = {"session": 1, "work": 7, "predicted_s": MS, "live_bytes": 0, "ends_iteration": True}
    given |= {"lane": 0, "elapsed_s": MS, "measured_s": MS}
    return WorkRan(**(given | changed))


@pytest.mark.parametrize(
    "event",
    [
        ran(work=1),
        ran(lane=1),
        ran(live_bytes=61),
        ran(live_bytes=-1),
        ran(predicted_s=-1.0),
        ran(elapsed_s=float("nan")),
        ran(measured_s=float("inf")),
    ],
    ids=str,
)
def test_what_cannot_have_run_so_is_refused_and_changes_nothing(event):
    device = alone()
    before = plain(device.core)
    with pytest.raises(IllegalEvent):
        device.core.handle(event, device.now)
    assert plain(device.core) == before


@pytest.mark.parametrize("event", [DrainChanged(True), SpillAsked(1), LanesConfigured(1, 10)])
def test_nothing_runs_so_where_something_is_to_be_decided(event):
    device = alone()
    device.tell(event)
    with pytest.raises(IllegalEvent):
        device.core.handle(ran(), device.now)


def test_who_has_not_the_turn_is_told_of_in_two():
    device = device_with(capacity=100)
    for number in (1, 2):
        device.tell(SessionOpened(number, f"user{number}"))
        device.send(number, MS, ends=True)
        device.finish(0)
    assert not device.core.has_turn(1)
    assert device.core.has_turn(2)
    assert device.core.would_start(1, 0) == 0
    with pytest.raises(IllegalEvent):
        device.core.handle(ran(), device.now)


def test_of_somebody_who_is_gone_it_changes_nothing():
    device = alone()
    device.tell(SessionClosed(1))
    assert not device.core.has_turn(1)
    before = plain(device.core)
    assert device.core.handle(ran(), device.now) == []
    assert plain(device.core) == before
