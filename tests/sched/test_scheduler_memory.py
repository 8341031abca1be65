"""Which session gets which lane, and what is done when memory is short."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_driver import Device, Lab, Notebook, device_with

from jgpu.sched import (
    CellEnded,
    CloseLane,
    Core,
    LanesConfigured,
    Limits,
    MemoryMeasured,
    MoveLane,
    OpenLane,
    ResizeLane,
    SessionClosed,
    SessionIdle,
    SessionOpened,
    Start,
    Wait,
    WorkCancelled,
)
from jgpu.sched.lanes.lane import Lane
from jgpu.sched.lanes.memory import Placement, committed_bytes, find_lane
from jgpu.sched.states import LaneState

MS = 0.001


def device_of(capacity, *sizes, maximum=3):
    """A device with sessions 1, 2, ... of user1, user2, ... that need these transient bytes."""
    device = device_with(maximum=maximum, capacity=capacity)
    for session, size in enumerate(sizes, start=1):
        device.tell(SessionOpened(session, f"user{session}"))
        device.tell(MemoryMeasured(session, 0, 0, size))
    device.actions.clear()
    return device


def status(device, session):
    """What the snapshot says of a session."""
    return next(each for each in device.core.snapshot().sessions if each.id == session)


def lanes(device):
    """Capacity and sessions of each lane."""
    return {lane.id: (lane.capacity, lane.sessions) for lane in device.core.snapshot().lanes}


# --- FindLane


def test_committed_bytes_are_what_sessions_hold_and_lanes_may_need():
    assert committed_bytes(7, []) == 7
    assert committed_bytes(7, [Lane(0, 10), Lane(1, 20, suspended=5)]) == 42


@pytest.mark.parametrize(
    ("need", "committed", "maximum", "expected"),
    [
        (30, 60, 3, (None, 30)),  # a lane of its own
        (30, 60, 2, (1, 40)),  # as many lanes as there may be: the one that fits best
        (30, 90, 3, (1, 40)),  # no memory for another lane: the one that fits best
        (50, 60, 2, (0, 50)),  # none is large enough: the smallest grows
        (50, 80, 2, (1, 50)),  # the smallest cannot grow so far: the next one
        (50, 100, 2, None),  # nobody can grow
        (10, 101, 3, None),  # the condition is broken already
    ],
)
def test_find_lane(need, committed, maximum, expected):
    table = [Lane(0, 20), Lane(1, 40)]
    found = find_lane(need, committed, 100, maximum, table)
    if expected is None:
        assert found is None
    else:
        assert isinstance(found, Placement)
        lane_id = None if found.lane is None else found.lane.id
        assert (lane_id, found.capacity) == expected


def test_find_lane_leaves_closing_lanes_alone():
    assert find_lane(5, 40, 100, 1, [Lane(0, 40, state=LaneState.CLOSING)]) is None


# --- places


def test_sessions_open_lanes_share_the_best_one_and_grow_the_smallest():
    device = device_of(1000, 100, 300, 90, 400, maximum=2)
    for session in (1, 2, 3, 4):
        device.send(session, MS)
        device.send(session, MS)
    assert lanes(device) == {0: (400, (1, 3, 4)), 1: (300, (2,))}
    assert device.actions == [
        OpenLane(0, 100),
        Start(1, 1, 0, 1, 0, 1),
        Start(2, 1, 0, 1, 0, 1),
        OpenLane(1, 300),
        Start(3, 2, 0, 1, 1, 2),
        Start(4, 2, 0, 1, 1, 2),
        Wait(3, ("user1",)),
        ResizeLane(0, 400),
        Wait(4, ("user1",)),
    ]


def test_idle_sessions_give_their_place_up_when_others_need_it():
    device = device_of(100, 60, 30, 90)
    device.send(1, MS, ends=True)
    device.send(2, MS, ends=True)
    device.finish(0)
    device.finish(1)
    device.actions.clear()
    device.send(3, MS, ends=True)
    assert device.actions == [
        CloseLane(0),
        CloseLane(1),
        OpenLane(0, 90),
        Start(3, 3, 0, 1, 0, 3),
    ]
    assert [entry.what for entry in device.core.story(1)][-1] == "leaves lane 0"


def test_a_lane_shrinks_to_what_is_left_when_the_condition_breaks():
    device = device_of(100, 50, 5, maximum=1)
    device.send(1, MS, ends=True)
    device.finish(0)
    device.send(2, MS)
    assert lanes(device) == {0: (50, (1, 2))}
    assert device.tell(MemoryMeasured(1, 60, 0, 50)) == [ResizeLane(0, 5)]
    assert lanes(device) == {0: (5, (2,))}


def test_who_waits_for_memory_is_told_for_whom():
    device = device_of(100, 60, 60, 0, 0)
    device.tell(MemoryMeasured(3, 10, 0, 0))
    device.tell(MemoryMeasured(4, 0, 10, 0))
    device.send(1, MS)
    device.tell(MemoryMeasured(1, 0, 0, 60))
    device.actions.clear()
    device.send(2, 40 * MS, live=70)
    assert device.actions == [ResizeLane(0, 70), Wait(2, ("user1",))]


def test_resident_memory_of_others_is_waited_for_too():
    device = device_of(100, 0, 60, 0)
    device.tell(MemoryMeasured(1, 50, 0, 0))
    device.send(2, MS)
    assert device.waits == [Wait(2, ("user1",))]
    assert status(device, 2).queue_position == 1
    assert status(device, 2).lane is None
    assert device.tell(SessionClosed(1)) == [OpenLane(0, 60), Start(1, 2, 0, 1, 0, 1)]


def test_who_waits_for_memory_may_take_its_work_back():
    device = device_of(100, 0, 60)
    device.tell(MemoryMeasured(1, 50, 0, 0))
    work = device.send(2, MS)
    device.works[work].cancelled = True
    device.tell(WorkCancelled(2, (work,)))
    assert status(device, 2).state == "idle"
    device.send(2, MS)
    device.tell(SessionClosed(2))
    assert [each.id for each in device.core.snapshot().sessions] == [1]


def test_a_smaller_session_may_pass_one_that_waits_for_memory():
    device = device_of(100, 0, 90, 95, 10)
    device.tell(MemoryMeasured(1, 50, 0, 0))
    device.send(2, MS)
    device.send(3, MS)
    device.send(4, MS)
    assert device.started == [Start(3, 4, 0, 1, 0, 1)]


def test_what_can_never_fit_gets_all_there_is_beside_its_own():
    device = device_of(100, 500)
    device.tell(MemoryMeasured(1, 30, 10, 500))
    device.send(1, MS)
    assert lanes(device) == {0: (60, (1,))}


# --- what is learnt on the way


def test_work_claims_memory_before_it_is_measured():
    device = device_of(100, 0)
    device.send(1, MS, live=30)
    device.send(1, MS, live=70)
    device.send(1, MS, live=20, ends=True)
    assert lanes(device) == {0: (70, (1,))}
    device.finish(0)
    device.finish(0)
    # of the claims only that of the last work is left, and the lane can shrink to it
    assert device.tell(MemoryMeasured(1, 75, 0, 0)) == [ResizeLane(0, 20)]


def test_the_claim_of_an_open_iteration_holds_until_its_boundary():
    device = device_of(100, 0, 80)
    device.send(1, MS, live=50)
    device.finish(0)
    device.send(2, MS)
    assert status(device, 2).state == "waiting"
    assert device.tell(CellEnded(1))[-1] == Start(2, 2, 0, 1, 0, 2)


def test_a_session_that_outgrows_its_lane_at_a_boundary_looks_for_another():
    device = device_of(100, 30, 60)
    device.send(2, MS)
    device.send(1, MS, ends=True)
    device.finish(1)
    assert lanes(device) == {0: (60, (2,)), 1: (30, (1,))}
    device.actions.clear()
    device.tell(MemoryMeasured(1, 0, 0, 50))
    assert lanes(device) == {0: (60, (2,))}
    device.send(1, MS)
    assert device.actions == [
        CloseLane(1),
        MoveLane(1, 0),
        Wait(1, ("user2",)),
    ]


def test_a_session_grows_its_lane_where_there_is_room():
    device = device_of(100, 30)
    device.send(1, MS, ends=True)
    device.finish(0)
    assert device.tell(MemoryMeasured(1, 0, 0, 50)) == [ResizeLane(0, 50)]


def test_a_suspended_iteration_that_grows_counts_more():
    device = device_of(100, 20, 20, maximum=1)
    device.send(1, MS)
    device.send(2, MS)
    device.tell(MemoryMeasured(1, 0, 0, 30))
    assert device.core.snapshot().committed == 60
    device.tell(MemoryMeasured(1, 0, 0, 10))
    assert device.core.snapshot().committed == 40


def test_measured_growth_beyond_the_capacity_lets_nobody_begin():
    device = device_of(100, 40, 40)
    for _ in range(3):
        device.send(1, MS)
        device.send(2, MS, ends=True)
    device.tell(MemoryMeasured(1, 40, 0, 40))  # 120 of 100 bytes
    assert device.finish(1) == []
    assert device.finish(1) == [CloseLane(1), MoveLane(2, 0), Wait(2, ("user1",))]
    device.finish(0)
    device.finish(0)
    assert device.finish(0) == []
    assert device.tell(MemoryMeasured(1, 0, 0, 40)) == [Start(6, 2, 0, 1, 0, 3)]


def test_idle_places_go_first_when_the_condition_breaks():
    device = device_of(100, 30, 30, 30)
    for session in (1, 2, 3):
        device.send(session, MS, ends=True)
        device.send(session, MS, ends=True)
    device.finish(0)
    device.finish(0)
    device.actions.clear()
    device.tell(MemoryMeasured(3, 30, 0, 30))
    assert device.actions == [CloseLane(0)]


# --- lanes come and go


def test_lanes_beyond_the_maximum_close_at_the_next_boundary():
    device = device_of(1000, 10, 10, maximum=2)
    for session in (1, 2):
        device.send(session, MS, ends=True)
        device.send(session, MS, ends=True)
        device.send(session, MS, ends=True)
    device.tell(LanesConfigured(1, 1000))
    assert [lane.state for lane in device.core.snapshot().lanes] == ["open", "closing"]
    device.tell(LanesConfigured(1, 1000))
    assert device.finish(1) == []
    assert device.finish(1) == [CloseLane(1), MoveLane(2, 0), Wait(2, ("user1",))]
    while device.lanes[0]:
        device.finish(0)
    assert all(sent.finished == 1 for sent in device.works.values())


def test_lane_numbers_are_used_again_but_epochs_never():
    device = device_of(1000, 10, 10)
    device.send(1, MS, ends=True)
    device.finish(0)
    device.tell(SessionIdle(1))
    device.send(2, MS, ends=True)
    assert device.started == [Start(1, 1, 0, 1, 0, 1), Start(2, 2, 0, 1, 0, 2)]


# --- patience


def test_a_large_session_is_not_starved_by_small_ones():
    device = device_with(maximum=3, capacity=100, validate=False)
    small = [
        Notebook(session, f"user{session}", (MS,) * 4, reads=500, transient=40)
        for session in (1, 2)
    ]
    large = Notebook(9, "user9", (MS,) * 4, transient=90, begins_at=0.02)
    lab = Lab(device, *small, large)
    lab.run(0.25)
    assert not any(start.session == 9 for start in device.started)
    lab.run(0.30)
    assert any(start.session == 9 for start in device.started)
    lab.run(2.0)
    shares = lab.user_seconds()
    assert shares["user9"] > 0.27 * sum(shares.values())


def starving_third(*sizes):
    """Sessions with works left, and a last one that has waited for memory for too long."""
    device = device_of(100, *sizes)
    for session in range(1, len(sizes)):
        for _ in range(4):
            device.send(session, MS, ends=True)
    device.send(len(sizes), MS, ends=True)
    device.pass_time(0.3)
    return device


def test_others_hold_still_at_their_boundaries_for_the_starving_one():
    device = starving_third(30, 30, 30, 90)
    device.finish(0)
    assert device.finish(0) == [CloseLane(0), Wait(1, ("user4",))]
    assert (status(device, 1).waits_on, status(device, 1).waits_for) == ("memory", ("user4",))
    assert status(device, 1).lane is None
    device.finish(1)
    device.actions.clear()
    device.finish(1)
    # the lane of session 3 can grow now; who was set aside comes after
    assert device.actions[:2] == [CloseLane(1), ResizeLane(2, 90)]
    while any(device.lanes.values()):
        device.finish(min(lane for lane, running in device.lanes.items() if running))
    assert all(sent.finished == 1 for sent in device.works.values())


def test_nobody_holds_still_for_one_whom_it_would_not_help():
    device = device_of(100, 40, 40, 90)
    device.send(1, MS)  # an iteration under way with nothing to run
    device.finish(0)
    device.send(2, MS, ends=True)
    device.send(3, MS, ends=True)
    device.pass_time(0.3)
    device.send(2, MS, ends=True)
    device.send(2, MS, ends=True)
    device.finish(1)
    assert status(device, 2).state == "running"
    # suspended ones count as well
    device.tell(SessionOpened(4, "user4"))
    device.tell(LanesConfigured(1, 100))
    device.send(4, MS, ends=True)
    assert status(device, 3).state == "waiting"


def test_a_starving_session_that_goes_away_sets_the_others_free():
    device = starving_third(30, 30, 30, 90)
    device.finish(0)
    device.finish(0)
    assert device.tell(SessionClosed(4)) == [
        OpenLane(0, 30),
        Start(3, 1, 0, 1, 0, 4),
        Start(4, 1, 0, 1, 0, 4),
    ]


# --- properties


SIZES = st.lists(st.sampled_from([0, 10, 35, 60, 90]), min_size=2, max_size=6)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    sizes=SIZES,
    held=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    maximum=st.integers(1, 3),
    policy=st.sampled_from(["fair", "fifo"]),
)
def test_the_device_is_never_overcommitted(sizes, held, maximum, policy):
    device = Device(Core(policy), validate=False)
    device.tell(LanesConfigured(maximum, 100 + sum(held)))
    notebooks = [
        Notebook(session, f"user{session % 3}", (MS,) * 3, transient=size, reads=1 + session % 3)
        for session, size in enumerate(sizes)
    ]
    lab = Lab(device, *notebooks)
    for session, size in enumerate(held[: len(sizes)]):
        lab.held[session] = size
    for step in range(1, 13):
        lab.run(step * 0.1)
        device.core.validate()
        snapshot = device.core.snapshot()
        needs = {each.id: each.transient for each in snapshot.sessions}
        total = sum(each.resident + each.kept for each in snapshot.sessions)
        for lane in snapshot.lanes:
            total += max(needs[session] for session in lane.sessions) + lane.suspended
        assert total <= snapshot.committed <= snapshot.capacity


@settings(max_examples=8, deadline=None, derandomize=True)
@given(sizes=SIZES, maximum=st.integers(1, 3))
def test_nobody_starves(sizes, maximum):
    limits = Limits(longest_wait_s=0.1, patience_s=0.05)
    device = Device(Core("fair", limits), validate=False)
    device.tell(LanesConfigured(maximum, 100))
    notebooks = [
        Notebook(session, f"user{session % 3}", (MS,) * 3, transient=size, reads=1 + session % 3)
        for session, size in enumerate(sizes)
    ]
    lab = Lab(device, *notebooks)
    before = [0] * len(sizes)
    for step in range(1, 4):
        # the longest wait for a turn, some patience for memory, and turns of all others
        lab.run(step * (0.1 * len(sizes) + 0.3))
        now = [notebook.iterations for notebook in notebooks]
        assert all(more > less for more, less in zip(now, before, strict=True))
        before = now
