"""Whatever happens, in whatever order: the invariants hold after every event."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scheduler_driver import Device, Held

from jgpu.sched import (
    CellEnded,
    CellStarted,
    Core,
    DrainChanged,
    LaneRetired,
    LanesConfigured,
    Limits,
    LoopTold,
    MemoryShort,
    MemoryWanted,
    PolicyChanged,
    SegmentsFinished,
    SessionClosed,
    SessionIdle,
    SessionOpened,
    SpillAsked,
    TimeCharged,
    TimePassed,
    UserConfigured,
    WorkCancelled,
)
from jgpu.sched.policies import BUILT_IN

USERS = st.sampled_from(["user1", "user2", "user3"])
SECONDS = st.sampled_from([0.0, 1e-7, 0.0001, 0.0005, 0.002, 0.02])
BYTES = st.sampled_from([0, 1, 10, 40, 70, 100, 130])


class Machine(RuleBasedStateMachine):
    """Random events of a few sessions on a small device; the device checks every action."""

    def __init__(self) -> None:
        super().__init__()
        self.device = Device(Core("fair", Limits(story_entries=8, listed_at_most=0)))
        self.opened: dict[int, str] = {}
        self.closed: set[int] = set()
        self.next_session = 0
        #: leases that have ended: (lane, epoch, work)
        self.past: list[tuple[int, int, int]] = []
        #: by session, what was charged beside the lanes
        self.beside_s: dict[int, float] = {}

    def teardown(self) -> None:
        """Let everything run out: whatever may run has run, and nothing is left in flight."""
        for session in self.opened.keys() - self.closed:
            self.device.tell(CellEnded(session))
            self.device.measure(session, resident=0, kept=0, transient=0, stale=0)
        self.device.tell(LanesConfigured(2, 1000))
        self.device.tell(DrainChanged(on=False))
        # What just failed to come back is tried again in a while, and somebody looks at that.
        self.device.pass_time(2 * Limits().retry_s)
        self.device.tell(TimePassed())
        for _ in range(10_000):
            for session in list(self.device.copying):
                self.device.copied(session)
            busy = [lane for lane, running in self.device.lanes.items() if running]
            if not busy:
                break
            self.device.pass_time(0.001)
            self.device.finish(busy[0])
        assert not self._retired()
        for work in self.device.works.values():
            if work.cancelled or (work.session in self.closed and not work.started):
                assert work.started == 0
            else:
                assert work.finished == len(work.seconds)

    def _session(self, number: int) -> int:
        return sorted(self.opened)[number % len(self.opened)]

    @rule(user=USERS, weight=st.sampled_from([1.0, 2.0]), priority=st.integers(0, 2))
    def opens(self, user, weight, priority):
        if len(self.opened.keys() - self.closed) < 6:
            self.next_session += 1
            self.opened[self.next_session] = user
            self.device.tell(SessionOpened(self.next_session, user, weight, priority))

    @rule(maximum=st.integers(1, 3), capacity=st.sampled_from([0, 60, 100, 100, 300]))
    def lanes_are_configured(self, maximum, capacity):
        self.device.tell(LanesConfigured(maximum, capacity))

    @precondition(lambda self: self.opened)
    @rule(number=st.integers(0, 7))
    def closes(self, number):
        session = self._session(number)
        self.closed.add(session)
        self.device.tell(SessionClosed(session))

    @precondition(lambda self: self.opened)
    @rule(
        number=st.integers(0, 7),
        seconds=st.lists(SECONDS, min_size=0, max_size=5),
        ends=st.booleans(),
        live=BYTES,
        again=st.integers(1, 3),
    )
    def sends(self, number, seconds, ends, live, again):
        session = self._session(number)
        for _ in range(again):
            work = self.device.send(session, *seconds, ends=ends, live=live)
            if session in self.closed or not seconds:
                del self.device.works[work]
                self.device.queues[session].remove(work)

    @precondition(lambda self: self.opened)
    @rule(number=st.integers(0, 7), seconds=SECONDS)
    def pays_for_what_is_computed_beside_the_lanes(self, number, seconds):
        session = self._session(number)
        self.device.tell(TimeCharged(session, seconds))
        if session not in self.closed:
            self.beside_s[session] = self.beside_s.get(session, 0.0) + seconds

    @precondition(lambda self: self.opened)
    @rule(ends=st.booleans(), seconds=st.lists(st.sampled_from([1e-7, 0.0001]), min_size=1))
    def all_send_a_little(self, ends, seconds):
        for session in sorted(self.opened.keys() - self.closed):
            self.device.send(session, *seconds[:4], ends=ends)

    @precondition(lambda self: any(self.device.lanes.values()))
    @rule(number=st.integers(0, 3), segments=st.integers(1, 4), seconds=SECONDS)
    def finishes(self, number, segments, seconds):
        busy = sorted(lane for lane, running in self.device.lanes.items() if running)
        lane = busy[number % len(busy)]
        start = self.device.lanes[lane][0].start
        self.device.pass_time(seconds)
        self.device.finish(lane, segments)
        if not self.device.lanes.get(lane) or self.device.lanes[lane][0].start is not start:
            self.past.append((start.lane, start.epoch, start.work))

    @precondition(lambda self: any(self.device.lanes.values()))
    @rule(number=st.integers(0, 3), segments=st.integers(1, 4), seconds=SECONDS)
    def overtakes_one_that_lacks_memory(self, number, segments, seconds):
        busy = sorted(lane for lane, running in self.device.lanes.items() if running)
        self.device.pass_time(seconds)
        self.device.overtake(busy[number % len(busy)], segments)

    @precondition(lambda self: self.past)
    @rule(number=st.integers(0, 50), count=st.integers(0, 3))
    def a_late_event_changes_nothing(self, number, count):
        lane, epoch, work = self.past[number % len(self.past)]
        if any(
            each.start.epoch == epoch and each.start.work == work
            for each in self.device.lanes.get(lane, ())
        ):
            return
        late = SegmentsFinished(lane, epoch, work, count, 0.1)
        self.device.tell(late)  # charges the time that has passed since the last event
        before = self.device.core.snapshot()
        assert self.device.tell(late) == []
        assert before == self.device.core.snapshot()

    @precondition(lambda self: self.opened)
    @rule(number=st.integers(0, 7), keep=st.integers(0, 3))
    def cancels(self, number, keep):
        session = self._session(number)
        queued = [
            work
            for work, sent in self.device.works.items()
            if sent.session == session and not sent.cancelled
        ][keep:]
        for work in queued:
            sent = self.device.works[work]
            if not sent.started and session not in self.closed:
                sent.cancelled = True
        self.device.tell(WorkCancelled(session, tuple(queued)))

    @precondition(lambda self: self.opened)
    @rule(
        number=st.integers(0, 7),
        resident=BYTES,
        kept=BYTES,
        transient=BYTES,
        stale=BYTES,
        freed=st.booleans(),
    )
    def is_measured(self, number, resident, kept, transient, stale, freed):
        session = self._session(number)
        if session in self.device.copying:
            self.device.measure(session, transient=transient)
            return
        kept //= 4
        changed = {"kept": kept, "stale": min(stale // 4, kept), "transient": transient}
        if freed:
            changed |= {"away_kept": 0, "away_resident": 0}
        self.device.measure(session, resident=resident // 4, **changed)

    @precondition(lambda self: self.device.copying)
    @rule(number=st.integers(0, 7), fails=st.booleans())
    def a_copy_is_over(self, number, fails):
        copying = sorted(self.device.copying)
        self.device.copied(copying[number % len(copying)], fails=fails)

    @precondition(lambda self: self.opened)
    @rule(number=st.integers(0, 7), resident=st.booleans())
    def a_spill_is_asked_for(self, number, resident):
        self.device.tell(SpillAsked(self._session(number), resident))

    @precondition(lambda self: self.opened)
    @rule(number=st.integers(0, 7), nbytes=BYTES)
    def memory_is_short(self, number, nbytes):
        self.device.tell(MemoryShort(self._session(number), 1 + nbytes))

    @precondition(lambda self: any(held.aside for held in self.device.memory.values()))
    @rule(number=st.integers(0, 7))
    def what_was_put_aside_is_wanted(self, number):
        with_aside = sorted(each for each, held in self.device.memory.items() if held.aside)
        session = with_aside[number % len(with_aside)]
        if session in self.device.copying or self.device.in_flight(session):
            return
        held = self.device.memory[session]
        held.away_kept, held.aside = held.away_kept + held.aside, 0
        self.device.tell(MemoryWanted(session, held.spilled))

    @precondition(lambda self: any(self.device.lanes.values()))
    @rule(number=st.integers(0, 3), kept=st.sets(st.integers(0, 7), max_size=1))
    def a_lane_is_retired(self, number, kept):
        retired = self._retired()
        busy = sorted(lane for lane, running in self.device.lanes.items() if running)
        lane = busy[number % len(busy)]
        if lane in retired:
            before = self.device.core.snapshot()
            assert self.device.tell(LaneRetired(lane)) == []
            assert [each.state for each in before.lanes if each.id == lane] == ["retired"]
            return
        self.device.retire(lane, kept=tuple(self._session(each) for each in kept))
        assert lane in self._retired()

    def _retired(self):
        lanes = self.device.core.snapshot().lanes
        return {lane.id for lane in lanes if lane.state == "retired"}

    @precondition(lambda self: self.opened)
    @rule(number=st.integers(0, 7), kind=st.sampled_from([CellStarted, CellEnded, SessionIdle]))
    def cell_or_idle(self, number, kind):
        self.device.tell(kind(self._session(number)))

    @rule(seconds=st.sampled_from([0.001, 0.05, 0.3]))
    def time_passes(self, seconds):
        self.device.pass_time(seconds)

    @rule(policy=st.sampled_from(sorted(BUILT_IN)))
    def policy_changes(self, policy):
        self.device.tell(PolicyChanged(policy))

    @rule(on=st.booleans())
    def a_drain_begins_or_ends(self, on):
        self.device.tell(DrainChanged(on))
        assert self.device.core.snapshot().draining == on

    @rule()
    def a_drain_comes_to_its_end(self):
        """Whatever is under way ends; then nothing is, and nothing begins."""
        self.device.tell(DrainChanged(on=True))
        for session in self.opened.keys() - self.closed:
            self.device.tell(CellEnded(session))
        # What cannot come back, or does not fit, in mid-iteration waits for others' boundaries.
        self.device.tell(LanesConfigured(3, 10_000))
        self.device.pass_time(2 * Limits().retry_s)
        self.device.tell(TimePassed())
        while self.device.copying or any(self.device.lanes.values()):
            for session in list(self.device.copying):
                self.device.copied(session)
            for lane in [each for each, running in self.device.lanes.items() if running]:
                self.device.finish(lane)
        assert self.device.core.snapshot().under_way == ()
        self.device.pass_time(10.0)
        assert self.device.tell(TimePassed()) == []

    @rule(user=USERS, weight=st.sampled_from([0.5, 1.0]), throttled=st.booleans())
    def a_user_is_configured(self, user, weight, throttled):
        self.device.tell(UserConfigured(user, weight, throttled))

    @precondition(lambda self: self.opened)
    @rule(number=st.integers(0, 7), left=st.sampled_from([None, 0, 5]), seconds=SECONDS)
    def a_loop_is_told(self, number, left, seconds):
        self.device.tell(LoopTold(self._session(number), left, seconds))

    @rule()
    def nothing_happens(self):
        self.device.tell(TimePassed())

    @invariant()
    def charges_are_the_busy_time(self):
        snapshot = self.device.core.snapshot()
        busy_s = self.device.busy_s
        charged = sum(user.device_seconds for user in snapshot.users)
        beside_s = sum(self.beside_s.values())
        assert charged == pytest.approx(snapshot.busy_seconds + beside_s, abs=1e-9)
        assert snapshot.busy_seconds <= busy_s + 1e-9
        for session in snapshot.sessions:
            used_s = self.device.used_s.get(session.id, 0.0) + self.beside_s.get(session.id, 0.0)
            assert session.device_seconds <= used_s + 1e-9

    @invariant()
    def whoever_waits_for_its_turn_has_a_place_of_its_own(self):
        snapshot = self.device.core.snapshot()
        for session in snapshot.sessions:
            assert (session.ahead is not None) == (session.waits_on == "turn")
        for lane in snapshot.lanes:
            rows = [each for each in snapshot.sessions if each.lane == lane.id]
            rows.sort(key=lambda row: row.queue_position)
            told = [row.ahead for row in rows if row.ahead is not None]
            assert told == [*range(min(told, default=0), max(told, default=-1) + 1)]
            if lane.running not in (None, *(row.id for row in rows if row.ahead is not None)):
                assert 0 not in told

    @invariant()
    def the_device_and_the_core_agree(self):
        snapshot = self.device.core.snapshot()
        for session in snapshot.sessions:
            held = self.device.memory.get(session.id, Held())
            assert (session.resident, session.kept) == (held.resident, held.kept)
            assert session.spilled == held.spilled
        assert {lane.id: lane.capacity for lane in snapshot.lanes} == self.device.capacity
        for lane in snapshot.lanes:
            running = self.device.lanes[lane.id]
            assert lane.running == (running[0].start.session if running else None)


def test_invariants_hold_after_every_event():
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=150,
            stateful_step_count=60,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
