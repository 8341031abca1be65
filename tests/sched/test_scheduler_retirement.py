"""A lane whose op does not end is given up: where everybody goes, and what stays counted."""

import pytest
from scheduler_driver import device_with

from jgpu.sched import (
    CellEnded,
    CloseLane,
    Core,
    IllegalEvent,
    LaneRetired,
    LanesConfigured,
    MemoryMeasured,
    MoveLane,
    OpenLane,
    ResizeLane,
    Segment,
    SessionClosed,
    SessionOpened,
    SpillAsked,
    Start,
    TimePassed,
    WorkArrived,
)

HALF = 0.0005
TINY = 0.00001


def crowd(sessions=2, maximum=1, capacity=1000, transient=0):
    """A device with sessions of as many users, who need as much transient memory each."""
    device = device_with(maximum, capacity)
    for session in range(1, sessions + 1):
        device.tell(SessionOpened(session, f"user{session}"))
        device.measure(session, transient=transient)
    return device


def lane_of(device, number):
    """What the snapshot says of a lane."""
    return next(each for each in device.core.snapshot().lanes if each.id == number)


def status(device, session):
    """What the snapshot says of a session."""
    return next(each for each in device.core.snapshot().sessions if each.id == session)


def test_what_had_not_begun_is_started_again_in_a_new_lane():
    device = crowd(transient=100)
    stuck = device.send(1, HALF, ends=True)
    behind = device.send(2, TINY, ends=True)
    assert [start.work for start in device.started] == [stuck, behind]
    device.tell(SessionClosed(1))
    device.actions.clear()
    device.retire(0)
    assert [each for each in device.actions if not isinstance(each, Start)] == [
        OpenLane(1, 100),
        MoveLane(2, 1),
    ]
    assert device.started[-1] == Start(behind, 2, 0, 1, 1, device.started[-1].epoch)
    assert lane_of(device, 0).state == "retired"
    assert lane_of(device, 0).sessions == (1,)
    device.finish(1)
    assert device.works[behind].finished == 1


def test_the_stuck_work_is_counted_until_it_ends_after_all():
    device = crowd(capacity=300, transient=100)
    device.measure(1, resident=50, kept=20)
    device.send(1, HALF, ends=True)
    device.tell(SessionClosed(1))
    device.retire(0)
    assert device.core.snapshot().committed == 170
    device.send(2, HALF, ends=True)
    assert device.core.snapshot().committed == 270
    device.actions.clear()
    device.finish(0)
    assert device.actions == [CloseLane(0)]
    assert device.core.snapshot().committed == 100


def test_who_does_not_fit_beside_it_waits_and_comes_in_when_it_has_ended():
    device = crowd(capacity=150, transient=100)
    device.send(1, HALF, ends=True)
    device.tell(SessionClosed(1))
    device.retire(0)
    work = device.send(2, HALF, ends=True)
    device.pass_time(10.0)
    device.tell(TimePassed())
    assert status(device, 2).waits_for == ("user1",)
    assert device.core.snapshot().cut_off
    assert not device.works[work].started
    device.finish(0)
    assert device.works[work].started == 1
    assert not device.core.snapshot().cut_off


def test_all_lanes_there_may_be_can_be_retired_and_as_many_open_again():
    device = crowd(sessions=4, maximum=2)
    for session in (1, 2):
        device.send(session, HALF, ends=True)
        device.tell(SessionClosed(session))
    device.retire(0)
    device.retire(1)
    for session in (3, 4):
        device.send(session, HALF, ends=True)
    assert [start.lane for start in device.started] == [0, 1, 2, 3]
    device.tell(LanesConfigured(1, 1000))
    assert [each.state for each in device.core.snapshot().lanes] == [
        "retired", "retired", "open", "closing",
    ]  # fmt: skip
    device.retire(3)
    for lane in (0, 1, 2, 3):
        device.finish(lane)
    assert [each.id for each in device.core.snapshot().lanes] == [2]


def in_mid_iteration():
    """Session 2 is in mid-iteration while lane 0 is at a work of session 1 that does not end."""
    device = crowd(sessions=3)
    device.measure(2, transient=40)
    device.send(2, TINY)
    device.finish(0)
    device.send(1, TINY)
    assert lane_of(device, 0).suspended == 40
    device.tell(SessionClosed(1))
    return device


def test_an_iteration_under_way_goes_on_in_a_new_lane():
    device = in_mid_iteration()
    behind = device.send(2, HALF)
    device.actions.clear()
    device.retire(0)
    assert [each for each in device.actions if not isinstance(each, Start)] == [
        OpenLane(1, 40),
        MoveLane(2, 1),
        ResizeLane(0, 0),
    ]
    assert device.started[-1] == Start(behind, 2, 0, 1, 1, device.started[-1].epoch)
    assert lane_of(device, 1).suspended == 0
    device.finish(1)
    device.tell(CellEnded(2))
    device.finish(0)
    assert device.core.snapshot().committed == 40


def test_an_iteration_without_work_has_the_turn_in_its_new_lane():
    device = in_mid_iteration()
    device.retire(0)
    assert lane_of(device, 1).sessions == (2,)
    assert lane_of(device, 1).suspended == 0
    work = device.send(2, HALF, ends=True)
    assert device.started[-1] == Start(work, 2, 0, 1, 1, device.started[-1].epoch)


def test_one_of_two_iterations_under_way_waits_in_the_lane_of_the_other():
    device = crowd(sessions=3)
    for session in (2, 3):
        device.measure(session, transient=10 * session)
        device.send(session, TINY)
        device.finish(0)
    device.send(1, TINY)
    device.retire(0)
    assert lane_of(device, 1).sessions == (2, 3)
    assert (lane_of(device, 1).capacity, lane_of(device, 1).suspended) == (30, 30)
    works = [device.send(session, TINY, ends=True) for session in (3, 2)]
    assert [device.works[work].started for work in works] == [1, 1]


def test_parts_of_a_work_that_had_not_begun_are_started_again():
    device = crowd(sessions=3)
    device.send(3, 0.0004, ends=True)
    device.send(1, 0.0001, ends=True)
    work = device.send(2, 0.0004, 0.0004, HALF, HALF, ends=True)
    device.finish(0)
    assert device.works[work].started == 2
    device.retire(0)
    assert [(each.first, each.count, each.lane) for each in device.started[-1:]] == [(0, 2, 1)]


def test_a_living_session_whose_op_ends_after_all_goes_on_elsewhere():
    device = crowd(sessions=1)
    device.send(1, HALF)
    device.retire(0)
    behind = device.send(1, HALF, ends=True)
    assert not device.works[behind].started
    device.finish(0)
    assert device.works[behind].started == 1
    assert [each.state for each in device.core.snapshot().lanes] == ["open"]
    device = crowd(sessions=1)
    device.send(1, HALF, ends=True)
    device.retire(0)
    behind = device.send(1, HALF, ends=True)
    device.finish(0)
    assert device.works[behind].started == 1


def test_a_closed_session_loses_what_it_had_not_begun():
    device = crowd(sessions=3)
    device.send(1, HALF, ends=True)
    device.send(2, TINY, ends=True)
    device.tell(SessionClosed(2))
    device.retire(0)
    assert [each.id for each in device.core.snapshot().lanes] == [0]
    assert [each.id for each in device.core.snapshot().sessions] == [1, 3]


def test_nobody_waits_for_memory_that_a_stuck_session_was_to_give_up():
    device = crowd(sessions=2, capacity=200)
    device.measure(1, kept=150)
    device.send(1, HALF)
    device.tell(SpillAsked(1))
    assert status(device, 1).residence == "yielding"
    device.retire(0)
    assert status(device, 1).residence == "here"
    device.tell(SpillAsked(1))
    assert status(device, 1).residence == "here"
    device.measure(2, transient=100)
    work = device.send(2, HALF, ends=True)
    for _ in range(3):
        device.pass_time(5.0)
        device.tell(TimePassed())
    assert status(device, 1).residence == "here"
    # What was estimated cannot be had, so it goes by what the work is known to need.
    assert device.works[work].started == 1


def test_an_event_about_a_lane_that_is_at_nothing_changes_nothing():
    device = crowd()
    assert device.tell(LaneRetired(7)) == []
    work = device.send(1, HALF, ends=True)
    device.finish(0)
    assert device.works[work].finished == 1
    before = device.core.snapshot()
    assert device.tell(LaneRetired(0)) == []
    assert device.core.snapshot() == before


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ((9,), "gave back works that it does not have"),
        ((1,), "gave back work 1, its own"),
        ((2,), "kept work 3, but none before it"),
    ],
)
def test_what_cannot_have_been_given_back_is_an_error_of_the_executor(returned, sentence):
    core = Core()
    core.handle(LanesConfigured(1, 1000), 0.0)
    core.handle(SessionOpened(1, "user1"), 0.0)
    core.handle(SessionOpened(2, "user2"), 0.0)
    core.handle(MemoryMeasured(1, 0, 0, 0), 0.0)
    for work, session in ((1, 1), (2, 2), (3, 2)):
        core.handle(WorkArrived(session, work, (Segment(TINY, 0),), True), 0.0)
    with pytest.raises(IllegalEvent, match=sentence):
        core.handle(LaneRetired(0, returned), 0.0)
    core.validate()
    assert core.snapshot().lanes[0].state == "open"
