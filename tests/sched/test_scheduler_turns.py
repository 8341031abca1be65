"""Whose turn it is, and what is started: whole action lists."""

import pytest
from scheduler_driver import device_with

from jgpu.sched import (
    CellEnded,
    CellStarted,
    CloseLane,
    Core,
    IllegalEvent,
    LanesConfigured,
    MemoryMeasured,
    MoveLane,
    OpenLane,
    PolicyChanged,
    Segment,
    SegmentsFinished,
    SessionClosed,
    SessionIdle,
    SessionOpened,
    Start,
    Wait,
    WorkArrived,
    WorkCancelled,
)

MS = 0.001
HALF = 0.0005


def two_users(**options):
    """A device with one lane and a session of each of two users."""
    device = device_with(**options)
    device.tell(SessionOpened(1, "user1"))
    device.tell(SessionOpened(2, "user2"))
    device.actions.clear()
    return device


def status(device, session):
    """What the snapshot says of a session."""
    return next(each for each in device.core.snapshot().sessions if each.id == session)


def finish_until_switch(device, lane=0):
    """Finish segments until another session's start; return how many were finished."""
    holder = device.started[-1].session
    done = 0
    while device.started[-1].session == holder:
        device.pass_time(MS)
        device.finish(lane)
        done += 1
    return done


def test_nothing_runs_before_the_device_is_known():
    core = Core()
    assert core.handle(SessionOpened(1, "user1"), 0.0) == []
    assert core.handle(WorkArrived(1, 1, (Segment(MS, 0),), False), 0.0) == [Wait(1, ())]
    assert core.handle(LanesConfigured(1, 1000), 1.0) == [OpenLane(0, 0), Start(1, 1, 0, 1, 0, 1)]
    core.validate()


def test_two_segments_are_always_in_flight_when_there_are_two():
    device = two_users()
    device.send(1, 5 * MS, 5 * MS, 5 * MS)
    assert device.actions == [OpenLane(0, 0), Start(1, 1, 0, 2, 0, 1)]
    assert device.finish(0) == [Start(1, 1, 2, 1, 0, 1)]
    assert device.finish(0) == []
    assert device.finish(0) == []
    assert status(device, 1).state == "idle"


def test_no_more_than_a_millisecond_is_in_flight():
    device = two_users()
    for _ in range(12):
        device.send(1, 0.1 * MS)
    assert len(device.started) == 10
    assert device.finish(0) == [Start(11, 1, 0, 1, 0, 1)]


def test_segments_of_unknown_duration_count_as_nominal():
    device = two_users()
    device.send(1, 0.0, 0.0, 0.0)
    assert device.started == [Start(1, 1, 0, 2, 0, 1)]


def test_several_starts_of_one_work_may_finish_together():
    device = two_users()
    device.send(1, HALF, HALF, HALF)
    device.finish(0)
    assert device.started == [Start(1, 1, 0, 2, 0, 1), Start(1, 1, 2, 1, 0, 1)]
    device.tell(SegmentsFinished(0, 1, 1, 2, MS))
    assert status(device, 1).state == "idle"


def test_who_comes_second_waits_and_is_told_once_for_whom():
    device = two_users()
    for _ in range(3):
        device.send(1, HALF, ends=True)
    device.actions.clear()
    device.send(2, HALF, ends=True)
    device.send(2, HALF, ends=True)
    assert device.actions == [Wait(2, ("user1",))]
    assert status(device, 2).state == "waiting"
    assert (status(device, 2).waits_on, status(device, 2).waits_for) == ("turn", ("user1",))
    assert status(device, 2).queue_position == 1
    assert status(device, 1).queue_position == 0


def test_a_turn_ends_when_its_quantum_is_over_and_an_iteration_ends():
    device = two_users()
    for number in range(40):
        device.send(1, MS, ends=number % 4 == 3)
    device.send(2, MS, ends=True)
    # 10 ms are over in the third iteration; its end is at 12 ms, two works ahead of the device
    assert finish_until_switch(device) == 11
    assert device.started[-1] == Start(41, 2, 0, 1, 0, 2)


def test_a_turn_is_at_least_one_measured_iteration_long():
    device = two_users()
    for number in range(60):
        device.send(1, MS, ends=number % 15 == 14)
    for _ in range(15):
        device.pass_time(MS)
        device.finish(0)
    assert status(device, 1).iteration_s == pytest.approx(15 * MS)
    device.send(2, MS, ends=True)
    assert finish_until_switch(device) == 14


def test_a_lane_passes_on_at_once_when_its_holder_has_no_work():
    device = two_users()
    device.send(1, MS)
    device.send(2, MS)
    device.send(2, MS)
    assert device.started == [Start(1, 1, 0, 1, 0, 1), Start(2, 2, 0, 1, 0, 2)]


def test_a_turn_without_a_boundary_ends_at_the_hard_cap_under_any_policy():
    device = two_users(policy="fifo")
    for _ in range(150):
        device.send(1, MS)
    device.send(2, MS)
    device.tell(CellStarted(1))  # a later job than that of session 2 now
    device.tell(PolicyChanged("fair"))
    device.tell(SessionClosed(2))
    device.tell(SessionOpened(3, "user1"))
    device.send(3, MS)
    # user1 owes nothing to itself, so session 3 comes at the cap of 100 ms
    assert finish_until_switch(device) == 99


def test_a_user_who_is_owed_time_is_let_in_between_works():
    device = two_users()
    for number in range(60):
        device.send(1, MS, ends=number % 50 == 49)
    device.send(2, MS, ends=True)
    # no iteration has ended, but user2 is owed more than 10 ms
    assert finish_until_switch(device) in {9, 10}
    assert [entry.why for entry in device.core.story(2)][-1].startswith("owed ")


def test_a_work_is_never_interrupted():
    device = two_users()
    device.send(1, *[MS] * 50)
    device.send(1, MS)
    device.send(2, MS)
    assert finish_until_switch(device) == 49


def test_a_switch_needs_room_for_the_suspended_iteration():
    device = two_users(capacity=100)
    device.tell(MemoryMeasured(1, 0, 0, 60))
    device.tell(MemoryMeasured(2, 0, 0, 60))
    for _ in range(5):
        device.send(1, MS)
    device.send(2, MS)
    while device.lanes[0]:
        device.pass_time(MS)
        device.finish(0)
    assert status(device, 2).waits_for == ("user1",)
    # the cell ends, and with it the iteration
    assert device.tell(CellEnded(1)) == [Start(6, 2, 0, 1, 0, 2)]
    assert status(device, 1).iterations == 1


def test_a_suspended_iteration_goes_on_where_it_was():
    device = two_users()
    device.tell(MemoryMeasured(1, 0, 0, 60))
    device.tell(MemoryMeasured(2, 0, 0, 60))
    device.send(1, MS)
    device.send(2, MS)
    device.send(2, MS)
    lane = device.core.snapshot().lanes[0]
    assert (lane.capacity, lane.suspended, lane.running) == (60, 60, 1)
    device.finish(0)
    device.finish(0)
    device.finish(0)
    device.send(1, MS, ends=True)
    lane = device.core.snapshot().lanes[0]
    assert (lane.capacity, lane.suspended, lane.running) == (60, 60, 1)
    device.tell(CellEnded(2))
    assert device.core.snapshot().lanes[0].suspended == 0


def test_an_idle_lane_fetches_who_waits_elsewhere():
    device = device_with(maximum=2)
    for session in (1, 2, 3):
        device.tell(SessionOpened(session, f"user{session}"))
        for _ in range(3):
            device.send(session, MS, ends=True)
    assert status(device, 3).lane == 0
    device.finish(1)
    device.finish(1)
    assert device.finish(1) == [MoveLane(3, 1), Start(7, 3, 0, 1, 1, 3), Start(8, 3, 0, 1, 1, 3)]


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [(110, [MoveLane(3, 0), Start(5, 3, 0, 1, 0, 3)]), (109, [])],
)
def test_an_idle_lane_fetches_past_an_iteration_under_way_if_memory_allows(capacity, expected):
    device = device_with(maximum=2, capacity=capacity)
    for session, transient in ((1, 40), (2, 30), (3, 30)):
        device.tell(SessionOpened(session, f"user{session}"))
        device.tell(MemoryMeasured(session, 0, 0, transient))
    device.send(1, MS)
    for _ in range(3):
        device.send(2, MS)
    device.send(3, MS)
    assert status(device, 3).lane == 1
    assert device.finish(0) == expected


def test_who_waits_elsewhere_and_is_owed_time_may_take_a_turn_over():
    device = device_with(maximum=2)
    for session in (1, 2, 3):
        device.tell(SessionOpened(session, f"user{session}"))
    for _ in range(60):
        device.send(1, MS, ends=True)
    for number in range(60):
        device.send(2, MS, ends=number % 50 == 49)
    for _ in range(5):
        device.send(3, MS, ends=True)
    assert status(device, 3).lane == 0
    device.tell(MemoryMeasured(3, 0, 0, 0))
    while not any(start.session == 3 for start in device.started):
        device.pass_time(MS)
        device.finish(0)
        device.finish(1)
    assert status(device, 3).lane == 0


def test_a_finished_lane_closes_when_its_sessions_are_idle_for_long():
    device = two_users()
    device.send(1, MS, ends=True)
    device.tell(SessionIdle(1))
    assert status(device, 1).lane == 0
    device.finish(0)
    assert device.tell(SessionIdle(1)) == [CloseLane(0)]
    assert device.tell(SessionIdle(2)) == []
    device.send(1, MS, ends=True)
    assert device.actions[-2:] == [OpenLane(0, 0), Start(2, 1, 0, 1, 0, 2)]


def test_a_closed_session_finishes_what_was_started_and_no_more():
    device = two_users()
    device.send(1, HALF, HALF, HALF)
    device.send(1, HALF)
    assert device.tell(SessionClosed(1)) == []
    assert device.finish(0) == [Start(1, 1, 2, 1, 0, 1)]
    assert device.core.snapshot().sessions[0].id == 2
    device.finish(0)
    assert device.finish(0) == [CloseLane(0)]
    assert device.core.story(1) == ()
    assert device.core.snapshot().users[0].device_seconds == pytest.approx(device.busy_s)


def test_a_closed_session_that_was_put_aside_leaves_its_lane():
    device = two_users()
    device.tell(MemoryMeasured(1, 5, 5, 10))
    device.send(1, HALF)
    device.send(2, HALF)
    assert device.core.snapshot().lanes[0].suspended == 10
    device.tell(SessionClosed(1))
    device.tell(MemoryMeasured(1, 1, 1, 10))
    assert device.core.snapshot().committed == 22
    device.finish(0)
    assert device.core.snapshot().committed == 10
    assert device.core.snapshot().lanes[0].sessions == (2,)


def test_events_about_unknown_sessions_and_leases_change_nothing():
    device = two_users()
    before = device.core.snapshot()
    for event in (
        SessionClosed(9),
        CellStarted(9),
        CellEnded(9),
        SessionIdle(9),
        WorkArrived(9, 1, (Segment(MS, 0),), True),
        WorkCancelled(9, (1,)),
        MemoryMeasured(9, 1, 1, 1),
        SegmentsFinished(7, 1, 1, 1, MS),
    ):
        assert device.tell(event) == []
    assert device.core.snapshot() == before


def test_a_late_event_of_an_old_lease_changes_nothing():
    device = two_users()
    device.send(1, MS)
    device.finish(0)
    assert device.tell(SegmentsFinished(0, 1, 1, 1, MS)) == []


def test_only_queued_works_are_cancelled():
    device = two_users()
    works = [device.send(1, HALF) for _ in range(4)]
    device.tell(WorkCancelled(1, tuple(works)))
    for work in works[2:]:
        device.works[work].cancelled = True
    assert device.finish(0) == []
    assert device.finish(0) == []
    assert device.tell(WorkCancelled(1, tuple(works))) == []
    assert status(device, 1).state == "idle"


def test_a_session_whose_waiting_works_are_cancelled_waits_no_more():
    device = two_users()
    device.send(1, HALF, HALF)
    work = device.send(2, HALF)
    device.works[work].cancelled = True
    assert status(device, 2).state == "waiting"
    device.tell(WorkCancelled(2, (work,)))
    assert status(device, 2).state == "idle"
    device.finish(0)
    assert device.finish(0) == []


def test_a_boundary_may_be_told_after_the_work_before_it():
    device = two_users()
    device.send(1, MS)
    device.tell(WorkArrived(1, 100, (), True))  # while the work is in flight
    device.finish(0)
    assert status(device, 1).iterations == 1
    device.tell(WorkArrived(1, 101, (), True))  # twice at the same place is one boundary
    assert status(device, 1).iterations == 1
    device.tell(WorkArrived(1, 102, (), False))  # nothing at all
    device.core.handle(WorkArrived(1, 103, (Segment(MS, 0),), False), device.now)
    device.core.handle(SegmentsFinished(0, 1, 103, 1, MS), device.now)
    device.tell(WorkArrived(1, 104, (), True))  # after the work has finished
    assert status(device, 1).iterations == 2


def test_a_boundary_may_be_told_while_its_work_is_queued():
    device = two_users()
    device.send(1, HALF, HALF)
    device.send(1, HALF)
    device.tell(CellEnded(1))
    device.tell(CellEnded(1))
    for _ in range(3):
        device.finish(0)
    assert status(device, 1).iterations == 1


def test_fifo_serves_the_job_that_arrived_first_and_fills_its_gaps():
    device = two_users(policy="fifo")
    device.tell(CellStarted(2))
    device.tell(CellStarted(1))
    for _ in range(4):
        device.send(1, MS)
    device.send(2, MS)
    assert device.finish(0) == [Start(5, 2, 0, 1, 0, 2)]
    assert device.core.story(2)[-1].why == "arrived earlier"
    assert device.finish(0) == [Start(3, 1, 0, 1, 0, 3)]


def test_the_policy_may_change_while_work_is_in_flight():
    device = two_users()
    device.tell(CellStarted(2))
    device.tell(CellStarted(1))
    for _ in range(4):
        device.send(1, MS)
    device.send(2, MS)
    device.tell(PolicyChanged("fifo"))
    assert device.core.snapshot().policy == "fifo"
    assert device.finish(0) == [Start(5, 2, 0, 1, 0, 2)]


def test_a_work_that_lacks_memory_in_its_midst_is_overtaken_by_another_sessions():
    device = two_users()
    device.send(1, MS, ends=True)
    device.send(2, MS, ends=True)
    assert [start.session for start in device.started] == [1, 2]
    device.send(2, MS, ends=True)
    assert device.overtake(0) == [Start(3, 2, 0, 1, 0, 2)]
    assert status(device, 1).state == "running"
    assert device.overtake(0) == []
    assert device.finish(0) == []
    assert [status(device, number).iterations for number in (1, 2)] == [1, 2]


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (SessionOpened(1, "user1"), "opened twice"),
        (SessionOpened(5, ""), "No user can be ''"),
        (SessionOpened(5, "user1", 0.0), "with a weight of 0.0"),
        (SessionOpened(5, "user1", float("nan")), "with a weight of nan"),
        (WorkArrived(1, 1, (Segment(MS, 0),), True), "arrived after work 2"),
        (WorkArrived(1, 9, (Segment(-MS, 0),), True), "Work 9 arrived with"),
        (WorkArrived(1, 9, (Segment(MS, -1),), True), "Work 9 arrived with"),
        (MemoryMeasured(1, 0, -1, 0), "less than nothing"),
        (LanesConfigured(0, 1), "No device has 0 lanes"),
        (LanesConfigured(1, -1), "-1 bytes"),
        (SegmentsFinished(0, 1, 2, 1, MS), "at work 1 in lane 0, but work 2 finished"),
        (SegmentsFinished(0, 1, 1, 2, MS), "but 1 were in flight"),
        (SegmentsFinished(0, 1, 1, 1, float("nan")), "finished in nan s"),
    ],
)
def test_what_cannot_have_happened_is_refused_and_changes_nothing(event, sentence):
    device = two_users()
    device.send(1, MS)
    device.send(1, MS)
    before = device.core.snapshot()
    with pytest.raises(IllegalEvent, match=sentence):
        device.tell(event)
    device.core.validate()
    assert device.core.snapshot() == before


def test_a_clock_that_goes_backwards_charges_nothing():
    device = two_users()
    device.send(1, MS)
    device.pass_time(MS)
    device.tell(CellStarted(2))
    device.now -= 0.0005
    device.tell(CellStarted(2))
    assert device.core.snapshot().busy_seconds == pytest.approx(MS)


def test_each_running_session_pays_its_part_of_the_busy_time():
    device = device_with(maximum=2)
    device.tell(SessionOpened(1, "user1"))
    device.tell(SessionOpened(2, "user2"))
    device.send(1, 4 * MS)
    device.pass_time(2 * MS)
    device.send(2, 2 * MS)
    device.pass_time(2 * MS)
    device.finish(0)
    device.finish(1)
    assert status(device, 1).device_seconds == pytest.approx(3 * MS)
    assert status(device, 2).device_seconds == pytest.approx(1 * MS)
    assert device.core.snapshot().busy_seconds == pytest.approx(4 * MS)
