"""Whose memory goes to the host, when, and how it comes back."""

import pytest
from scheduler_driver import Device, device_with

from jgpu.sched import (
    CellStarted,
    Core,
    IllegalEvent,
    LanesConfigured,
    Limits,
    MemoryPart,
    MemoryShort,
    MemoryWanted,
    Restore,
    SessionClosed,
    SessionIdle,
    SessionOpened,
    SessionRestored,
    SessionSpilled,
    Spill,
    SpillAsked,
    TimePassed,
)

MS = 0.001


def device_of(capacity, *held, maximum=1):
    """A device with sessions 1, 2, ... of user1, user2, ... that keep these bytes, and rest."""
    device = device_with(maximum=maximum, capacity=capacity)
    for session, kept in enumerate(held, start=1):
        device.tell(SessionOpened(session, f"user{session}"))
        device.measure(session, kept=kept)
        device.pass_time(MS)
    device.actions.clear()
    return device


def copies(device):
    """Spills and restores among what was asked for so far."""
    return [each for each in device.actions if isinstance(each, Spill | Restore)]


def residence(device, session):
    (status,) = [each for each in device.core.snapshot().sessions if each.id == session]
    return status.residence


def run_one(device, session, live=0):
    """A whole iteration of one work, to its end."""
    device.send(session, MS, ends=True, live=live)
    device.pass_time(MS)
    return device.finish(0)


def test_the_longest_idle_goes_first_and_no_more_than_is_needed():
    device = device_of(100, 30, 30, 30)
    for session in (2, 1, 3):
        run_one(device, session)
        device.tell(SessionIdle(session))
    device.tell(SessionOpened(4, "user4"))
    device.send(4, MS, ends=True, live=40)
    assert copies(device) == [Spill(2, MemoryPart.KEPT)]
    assert device.started[-1].session != 4
    device.copied(2)
    assert device.started[-1].session == 4
    assert residence(device, 2) == "away"


def test_nobody_is_spilled_in_vain():
    device = device_of(100, 30, 30)
    device.measure(1, resident=40)
    device.tell(SessionOpened(3, "user3"))
    device.measure(3, resident=20)
    device.send(3, MS, live=50)
    assert copies(device) == []
    device.measure(1, resident=0)
    device.pass_time(MS)
    device.tell(TimePassed())
    assert copies(device) == [Spill(1, MemoryPart.KEPT)]


def test_what_is_away_comes_back_before_anything_runs_and_its_place_is_kept():
    device = device_of(100, 40)
    device.tell(SpillAsked(1))
    device.copied(1)
    device.send(1, MS, ends=True, live=10)
    assert copies(device) == [Spill(1, MemoryPart.KEPT), Restore(1)]
    assert device.started == []
    assert [each.waits_on for each in device.core.snapshot().sessions] == ["copy"]
    assert device.core.snapshot().committed == 50
    device.copied(1)
    assert [each.session for each in device.started] == [1]


def test_a_cell_s_start_begins_the_restore_where_there_is_room():
    device = device_of(100, 40)
    device.tell(SpillAsked(1))
    device.copied(1)
    device.tell(CellStarted(1))
    assert copies(device)[-1] == Restore(1)
    device.send(1, MS, ends=True, live=10)
    assert device.started == []
    device.copied(1)
    assert [each.session for each in device.started] == [1]


def test_a_cell_s_start_takes_no_room_from_others():
    device = device_of(100, 40)
    device.tell(SpillAsked(1))
    device.copied(1)
    device.tell(SessionOpened(2, "user2"))
    device.measure(2, resident=70)
    device.tell(CellStarted(1))
    assert copies(device) == [Spill(1, MemoryPart.KEPT)]


def test_models_are_only_moved_when_that_is_asked_for():
    device = device_of(100, 10)
    device.measure(1, resident=50)
    device.tell(SpillAsked(1, resident=True))
    assert copies(device) == [Spill(1, MemoryPart.ALL)]
    device.copied(1)
    status = device.core.snapshot().sessions[0]
    assert (status.resident, status.kept, status.spilled) == (0, 0, 60)
    run_one_back(device)


def run_one_back(device):
    device.send(1, MS, ends=True)
    device.copied(1)
    status = device.core.snapshot().sessions[0]
    assert (status.resident, status.kept, status.spilled) == (50, 10, 0)
    assert [each.session for each in device.started] == [1]


def test_what_a_failed_cell_left_goes_before_what_idle_ones_keep():
    device = device_of(100, 30, 30, 30)
    device.measure(3, stale=20)
    device.tell(SessionOpened(4, "user4"))
    device.send(4, MS, live=30)
    assert copies(device) == [Spill(3, MemoryPart.STALE)]
    device.copied(3)
    assert device.started[-1].session == 4
    assert residence(device, 3) == "here"
    device.tell(SessionClosed(4))
    device.finish(0)
    device.memory[3].away_kept, device.memory[3].aside = device.memory[3].aside, 0
    device.tell(MemoryWanted(3, 20))
    device.send(3, MS)
    device.copied(3)
    assert device.started[-1].session == 3


def test_sessions_at_work_take_turns_with_memory_that_is_for_one_of_them_only():
    device = device_of(100, 60, 0)
    device.measure(2, transient=60)
    device.tell(CellStarted(1))
    device.send(1, MS, MS, ends=True)
    device.send(2, MS, ends=True, live=60)
    device.pass_time(1.9)
    device.tell(TimePassed())
    assert copies(device) == []
    device.pass_time(0.2)
    device.tell(TimePassed())
    assert residence(device, 1) == "yielding"
    device.send(1, MS, ends=True)
    device.finish(0)
    device.finish(0)
    assert copies(device) == [Spill(1, MemoryPart.KEPT)]
    device.copied(1)
    assert device.started[-1].session == 2
    device.finish(0)
    device.measure(2, transient=0)
    device.tell(SessionIdle(2))
    assert copies(device)[-1] == Restore(1)
    device.copied(1)
    assert device.started[-1].session == 1


def test_who_waits_for_each_of_their_works_gives_memory_up_as_others_do():
    device = device_of(100, 60, 0)
    device.measure(2, transient=60)
    device.tell(CellStarted(1))
    run_one(device, 1)
    device.send(2, MS, ends=True, live=60)
    began = device.now
    while device.now < began + 3:
        device.pass_time(0.1)  # what it computes on the host in between
        device.send(1, MS, ends=True)
        if copies(device):
            break
        device.finish(0)
    assert copies(device) == [Spill(1, MemoryPart.KEPT)]
    assert device.now == pytest.approx(began + 2.05, abs=0.1)
    device.copied(1)
    assert device.started[-1].session == 2


def test_who_comes_back_after_a_pause_has_their_memory_as_long_as_anybody():
    device = device_of(100, 60, 0)
    device.measure(2, transient=60)
    for _ in range(30):
        run_one(device, 1)
        device.pass_time(0.1)
    device.tell(SessionIdle(1))
    device.pass_time(5)
    device.tell(CellStarted(1))
    device.send(1, MS, ends=True)
    came = device.now
    device.send(2, MS, ends=True, live=60)
    while not copies(device) and device.now < came + 3:
        device.finish(0)
        device.pass_time(0.1)
        device.send(1, MS, ends=True)
    assert device.now == pytest.approx(came + 2.05, abs=0.1)


def test_a_spill_that_found_no_room_is_not_asked_for_again_at_once():
    device = device_of(100, 60)
    device.tell(SessionOpened(2, "user2"))
    device.send(2, MS, live=60)
    assert copies(device) == [Spill(1, MemoryPart.KEPT)]
    device.copied(1, fails=True)
    device.pass_time(1.0)
    device.tell(TimePassed())
    assert copies(device) == [Spill(1, MemoryPart.KEPT)]
    device.pass_time(1.1)
    device.tell(TimePassed())
    assert copies(device) == [Spill(1, MemoryPart.KEPT)] * 2


def test_a_restore_that_found_no_room_is_tried_again_in_a_while():
    device = device_of(100, 60)
    device.tell(SpillAsked(1))
    device.copied(1)
    device.send(1, MS)
    device.copied(1, fails=True)
    device.pass_time(0.04)
    device.tell(TimePassed())
    assert copies(device) == [Spill(1, MemoryPart.KEPT), Restore(1)]
    device.pass_time(0.02)
    device.tell(TimePassed())
    assert copies(device) == [Spill(1, MemoryPart.KEPT), Restore(1), Restore(1)]
    device.copied(1)
    assert [each.session for each in device.started] == [1]


def test_nobody_holds_still_for_one_whose_restore_just_failed():
    limits = Limits(patience_s=0.010)
    device = Device(Core(limits=limits))
    device.tell(LanesConfigured(1, 100))
    for session in (1, 2):
        device.tell(SessionOpened(session, f"user{session}"))
    device.measure(1, kept=60)
    device.tell(SpillAsked(1))
    device.copied(1)
    device.send(1, MS)
    device.copied(1, fails=True)
    device.pass_time(0.02)
    device.send(2, MS, ends=True)
    assert [each.session for each in device.started] == [2]
    device.pass_time(0.04)
    device.finish(0)
    device.copied(1)
    assert [each.session for each in device.started] == [2, 1]


def test_who_can_be_helped_is_helped_though_another_waits_longer():
    device = device_of(100, 30)
    device.tell(SessionOpened(2, "user2"))
    device.measure(2, resident=40)
    for session, live in ((3, 70), (4, 70), (5, 40)):
        device.tell(SessionOpened(session, f"user{session}"))
        device.send(session, MS, ends=True, live=live)
        device.pass_time(2 * MS)
    device.tell(TimePassed())
    assert copies(device) == [Spill(1, MemoryPart.KEPT)]
    device.copied(1)
    assert device.started[-1].session == 5


def test_memory_that_is_wanted_in_mid_iteration_comes_back_where_the_session_is():
    device = device_of(100, 20, 60)
    device.measure(1, stale=20)
    device.tell(SessionOpened(3, "user3"))
    device.send(3, MS, ends=True, live=40)
    device.copied(1)
    device.finish(0)
    device.tell(SessionClosed(3))
    device.send(1, MS)
    device.finish(0)
    device.measure(2, kept=90)
    device.memory[1].away_kept, device.memory[1].aside = 20, 0
    device.pass_time(MS)
    device.tell(MemoryWanted(1, 20))
    device.send(1, MS, ends=True)
    assert residence(device, 1) == "away"
    assert copies(device)[-1] == Spill(2, MemoryPart.KEPT)
    device.copied(2)
    assert copies(device)[-1] == Restore(1)
    device.copied(1)
    assert device.started[-1].session == 1


def test_who_is_short_in_the_midst_of_a_work_has_those_who_rest_give_up_what_they_keep():
    device = device_of(1000, 30, 30, 30)
    device.measure(1, stale=10)
    run_one(device, 2)
    run_one(device, 3)
    device.tell(SessionIdle(2))
    device.tell(SessionOpened(4, "user4"))
    device.send(4, MS)
    device.tell(MemoryShort(4, 10))
    assert copies(device) == [Spill(1, MemoryPart.STALE)]
    device.copied(1)
    device.measure(1, stale=0)
    device.tell(MemoryShort(4, 70))
    assert copies(device)[1:] == [
        Spill(1, MemoryPart.KEPT),
        Spill(2, MemoryPart.KEPT),
        Spill(3, MemoryPart.KEPT),
    ]
    device.tell(MemoryShort(9, 1))
    with pytest.raises(IllegalEvent, match="short of 0 bytes"):
        device.tell(MemoryShort(4, 0))


def test_what_was_freed_while_it_was_away_is_not_restored():
    device = device_of(100, 60)
    device.tell(SpillAsked(1))
    device.copied(1)
    device.measure(1, away_kept=0)
    assert residence(device, 1) == "here"
    run_one(device, 1)
    assert copies(device) == [Spill(1, MemoryPart.KEPT)]


def test_what_needs_all_there_is_beside_what_comes_back_gets_it():
    device = device_of(100, 60)
    device.tell(SpillAsked(1))
    device.copied(1)
    device.measure(1, transient=90)
    device.send(1, MS)
    assert copies(device)[-1] == Restore(1)
    assert device.capacity == {0: 40}


def test_an_estimate_that_could_never_be_had_beside_others_models_gives_way_to_what_is_known():
    device = device_of(100, 40)
    device.tell(SessionOpened(2, "user2"))
    device.measure(2, resident=30)
    device.tell(SpillAsked(1))
    device.copied(1)
    device.measure(1, transient=90)
    device.pass_time(MS)
    device.send(1, MS, ends=True, live=10)
    device.pass_time(1.9)
    device.tell(TimePassed())
    assert device.capacity == {}
    device.pass_time(0.2)
    device.tell(TimePassed())
    device.tell(TimePassed())
    assert device.capacity == {0: 10}
    assert copies(device)[-1] == Restore(1)
    device.copied(1)
    device.finish(0)
    device.measure(1, transient=20)
    assert device.capacity == {0: 20}


def test_in_mid_iteration_the_next_work_waits_for_room_that_others_can_make():
    device = device_of(100, 60)
    device.tell(SessionOpened(2, "user2"))
    device.send(2, MS, live=10)
    device.finish(0)
    device.pass_time(MS)
    device.send(2, MS, live=60)
    assert copies(device) == [Spill(1, MemoryPart.KEPT)]
    assert len(device.started) == 1
    device.copied(1)
    assert len(device.started) == 2
    assert device.capacity == {0: 60}
    assert device.core.snapshot().committed == 60


def test_in_mid_iteration_nobody_waits_for_what_nobody_can_make_or_for_ever():
    device = device_of(100, 0)
    device.measure(1, resident=60)
    device.tell(SessionOpened(2, "user2"))
    device.send(2, MS, live=10)
    device.finish(0)
    device.send(2, MS, live=60)
    assert len(device.started) == 2
    device.finish(0)
    device.measure(1, resident=0, kept=60)
    device.tell(SpillAsked(1))
    device.copied(1, fails=True)
    device.send(2, MS, live=90)
    assert len(device.started) == 2
    device.pass_time(3.9)
    device.tell(TimePassed())
    assert len(device.started) == 2
    device.pass_time(0.2)
    device.tell(TimePassed())
    assert len(device.started) == 3


def test_nothing_of_others_is_started_behind_an_iteration_that_may_leave_more_than_was_seen():
    device = device_of(100, 0, 0)
    device.send(1, MS, ends=True, live=40)
    device.send(2, MS, ends=True, live=40)
    assert [each.session for each in device.started] == [1]
    device.measure(1, kept=40)
    device.finish(0)
    assert [each.session for each in device.started] == [1, 2]
    assert device.core.snapshot().committed == 80


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (SessionSpilled(1, 0, 0, 0), "was spilled while here"),
        (SessionRestored(1, 0, 0, 0), "was restored while here"),
        (SessionSpilled(1, -1, 0, 0), "less than nothing"),
        (MemoryWanted(1, 0), "wants 0 bytes back"),
    ],
)
def test_copies_that_nobody_asked_for_cannot_have_happened(event, sentence):
    device = device_of(100, 60)
    with pytest.raises(IllegalEvent, match=sentence):
        device.tell(event)


def test_events_about_strangers_change_nothing():
    device = Device(Core("fair", Limits()))
    device.tell(LanesConfigured(1, 100))
    for event in (
        SessionSpilled(9, 0, 0, 0),
        SessionRestored(9, 0, 0, 0),
        MemoryWanted(9, 1),
        SpillAsked(9),
    ):
        assert device.tell(event) == []
