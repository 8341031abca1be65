"""A drain: what is under way ends, nothing begins, and afterwards everybody goes on."""

import pytest
from scheduler_driver import device_with

from jgpu.sched import (
    CellEnded,
    CellStarted,
    DrainChanged,
    MemoryMeasured,
    MoveLane,
    OpenLane,
    Restore,
    SessionClosed,
    SessionIdle,
    SessionOpened,
    Spill,
    SpillAsked,
    Start,
    TimePassed,
    Wait,
)

MS = 0.001
ON, OFF = DrainChanged(on=True), DrainChanged(on=False)


@pytest.fixture
def device():
    """A device with one lane and a session of each of two users."""
    device = device_with()
    device.tell(SessionOpened(1, "user1"))
    device.tell(SessionOpened(2, "user2"))
    device.actions.clear()
    return device


def under_way(device):
    return device.core.snapshot().under_way


def status(device, session):
    return next(each for each in device.core.snapshot().sessions if each.id == session)


def test_an_iteration_under_way_goes_on_to_its_end_and_no_other_begins(device):
    device.send(1, MS, MS, MS, ends=True)
    device.send(1, MS, ends=True)
    device.send(2, MS, ends=True)
    assert device.tell(ON) == []
    assert under_way(device) == (1,)
    assert device.finish(0) == [Start(1, 1, 2, 1, 0, 1)]
    assert device.finish(0) == []
    assert device.finish(0) == [Wait(1, ())]
    assert under_way(device) == ()
    assert [status(device, each).state for each in (1, 2)] == ["waiting", "waiting"]
    assert {start.work for start in device.started} == {1}


def test_works_of_an_open_iteration_are_taken_until_it_ends(device):
    device.send(1, MS)
    device.finish(0)
    device.tell(ON)
    assert under_way(device) == (1,)
    device.send(1, MS, ends=True)
    assert device.started[-1].work == 2
    device.finish(0)
    assert under_way(device) == ()
    device.send(1, MS)
    assert device.started[-1].work == 2


def test_an_iteration_that_rests_in_its_midst_is_over_with_its_cell_or_when_it_is_idle(device):
    for session, event in ((1, CellEnded(1)), (2, SessionIdle(2))):
        device.tell(OFF)
        device.send(session, MS)
        device.finish(0)
        device.tell(ON)
        assert under_way(device) == (session,)
        device.tell(event)
        assert under_way(device) == ()


def test_newcomers_wait_for_nobody_and_get_a_lane_when_the_drain_is_over(device):
    device.tell(ON)
    device.tell(SessionOpened(3, "user3"))
    device.tell(CellStarted(3))
    work = device.send(3, MS, ends=True)
    assert device.actions == [Wait(3, ())]
    shown = status(device, 3)
    assert (shown.state, shown.lane, shown.waits_for) == ("waiting", None, ())
    assert shown.waits_on == "drain"
    device.pass_time(60.0)
    assert device.tell(TimePassed()) == []
    assert device.tell(OFF) == [
        OpenLane(0, 0),
        Start(work, 3, 0, 1, 0, 1),
    ]


def test_whoever_waited_in_a_lane_goes_on_when_the_drain_is_over(device):
    device.send(1, MS, ends=True)
    device.send(1, MS, ends=True)
    device.tell(ON)
    device.finish(0)
    device.finish(0)  # it was in flight behind the first
    assert under_way(device) == ()
    waiting = device.send(1, MS, ends=True)
    assert device.tell(TimePassed()) == []
    assert [action.work for action in device.tell(OFF)] == [waiting]


def test_a_drain_takes_the_claim_of_whoever_waits_for_memory():
    device = device_with(capacity=100)
    for session in (1, 2):
        device.tell(SessionOpened(session, f"user{session}"))
    device.tell(MemoryMeasured(1, 0, 60, 0))
    device.tell(MemoryMeasured(2, 0, 0, 60))
    device.send(1, MS, ends=True)
    device.send(2, MS, ends=True)
    device.tell(ON)
    device.finish(0)
    device.actions.clear()
    for _ in range(50):  # nobody is spilled for somebody who may not begin
        device.pass_time(1.0)
        device.tell(TimePassed())
    assert device.actions == []


def test_memory_that_is_on_its_way_is_waited_for(device):
    device.measure(1, resident=10, kept=20)
    assert device.tell(SpillAsked(1, True))[-1] == Spill(1, "all")
    device.tell(ON)
    assert under_way(device) == (1,)
    device.copied(1)
    assert under_way(device) == ()
    device.tell(CellStarted(1))
    device.send(1, MS)
    assert not any(isinstance(action, Restore) for action in device.actions)
    assert any(isinstance(action, Restore) for action in device.tell(OFF))


def test_what_runs_of_a_session_that_is_gone_is_waited_for(device):
    device.send(1, MS, ends=True)
    device.tell(SessionClosed(1))
    device.tell(ON)
    assert under_way(device) == (1,)
    device.finish(0)
    assert under_way(device) == ()


def test_a_drain_told_twice_changes_nothing(device):
    device.send(1, MS)
    device.tell(ON)
    before = device.core.snapshot()
    assert device.tell(ON) == []
    assert device.core.snapshot() == before
    assert device.tell(OFF) == []
    assert device.tell(OFF) == []
    assert not any(isinstance(action, MoveLane) for action in device.actions)
