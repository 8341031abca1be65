"""How many come before a session whose turn has not come, which is told to its user."""

from scheduler_driver import device_with
from test_scheduler_turns import HALF, MS, finish_until_switch, status, two_users

from jgpu.sched import DrainChanged, MemoryMeasured, SessionOpened, UserConfigured


def three_users():
    """One lane; the second and the third user wait while the first one's session runs."""
    device = two_users()
    device.tell(SessionOpened(3, "user3"))
    for session in (1, 2, 3):
        for _ in range(3):
            device.send(session, HALF, ends=True)
    return device


def ahead(device):
    """Of each session."""
    return {each.id: each.ahead for each in device.core.snapshot().sessions}


def test_whoever_has_the_device_is_ahead_of_those_who_wait():
    device = three_users()
    assert ahead(device) == {1: None, 2: 1, 3: 2}
    # It comes as it was told: the second, then the third.
    finish_until_switch(device)
    assert device.started[-1].session == 2
    while status(device, 3).state == "waiting":
        assert ahead(device)[3] >= 1
        device.finish(0)
    assert ahead(device)[3] is None


def test_an_open_iteration_has_the_turn_while_its_notebook_thinks():
    device = device_with(capacity=100)
    for session in (1, 2):
        device.tell(SessionOpened(session, f"user{session}"))
        device.tell(MemoryMeasured(session, 0, 0, 60))
    device.send(1, MS, live=60)
    device.finish(0)
    device.send(2, MS, live=60)
    assert (status(device, 1).state, status(device, 2).waits_on) == ("idle", "turn")
    assert ahead(device) == {1: None, 2: 1}


def test_between_two_turns_both_are_before_whoever_waits():
    device = three_users()
    while status(device, 2).state == "waiting":
        device.finish(0)
    # The device is at the last of the first one's work; the second one's follows at once.
    (lane,) = device.core.snapshot().lanes
    assert (lane.running, status(device, 2).state) == (1, "running")
    assert ahead(device) == {1: None, 2: None, 3: 2}


def test_whoever_waits_for_something_else_has_no_number_and_is_ahead_of_nobody():
    device = three_users()
    device.tell(UserConfigured("user2", 1.0, throttled=True))
    assert status(device, 2).waits_on == "budget"
    assert ahead(device) == {1: None, 2: None, 3: 1}
    device.tell(DrainChanged(True))
    assert status(device, 3).waits_on == "drain"
    assert ahead(device) == {1: None, 2: None, 3: None}


def test_whoever_waits_for_memory_has_a_place_and_no_number():
    device = device_with(capacity=100)
    for session in (1, 2):
        device.tell(SessionOpened(session, f"user{session}"))
    device.tell(MemoryMeasured(1, 50, 0, 0))
    device.tell(MemoryMeasured(2, 0, 0, 60))
    device.send(2, MS)
    shown = status(device, 2)
    assert (shown.waits_on, shown.queue_position, shown.ahead) == ("memory", 1, None)
