"""What is said beforehand of where a work would start; `Device.send` holds the core to it."""

import pytest
from scheduler_driver import device_with
from test_scheduler_turns import MS, two_users

from jgpu.sched import (
    DrainChanged,
    MemoryMeasured,
    PolicyChanged,
    SessionOpened,
    SpillAsked,
    UserConfigured,
)


def alone(capacity=100):
    """One session that has its lane, of 60 bytes, and nothing to do."""
    device = device_with(capacity=capacity)
    device.tell(SessionOpened(1, "user1"))
    device.tell(MemoryMeasured(1, 0, 20, 60))
    device.send(1, MS, ends=True, live=60)
    device.finish(0)
    return device


def test_whoever_is_alone_and_has_a_lane_starts_at_once():
    device = alone()
    for _ in range(3):
        assert device.core.would_start(1, 60) == 0
        device.send(1, MS, ends=False, live=60)
        device.finish(0)
    assert device.promises == 3


def test_so_does_whoever_shares_a_lane_with_those_who_rest():
    device = two_users()
    for session in (1, 2, 1, 2):
        device.send(session, MS, ends=True)
        device.finish(0)
    assert device.promises == 2  # of the first work of each nothing is certain


def test_nothing_is_certain_before_there_is_a_lane():
    device = device_with(capacity=100)
    assert device.core.would_start(1, 0) is None
    device.tell(SessionOpened(1, "user1"))
    assert device.core.would_start(1, 0) is None


@pytest.mark.parametrize(
    "event",
    [
        DrainChanged(True),
        SpillAsked(1, False),
        UserConfigured("user1", 1.0, throttled=True),
        PolicyChanged("pack"),
        MemoryMeasured(1, 90, 0, 60),
    ],
    ids=lambda event: type(event).__name__,
)
def test_nothing_is_certain_where_something_is_to_be_decided(event):
    device = alone()
    device.tell(event)
    assert device.core.would_start(1, 0) is None


def test_nothing_is_certain_of_what_needs_more_than_the_lane_has():
    assert alone().core.would_start(1, 61) is None


def test_nothing_is_certain_while_anybody_has_something_to_run():
    device = two_users()
    for session in (1, 2):
        device.send(session, MS, ends=True)
        device.finish(0)
    device.send(1, MS)
    assert device.core.would_start(1, 0) is None
    assert device.core.would_start(2, 0) is None


def test_nothing_is_certain_in_the_midst_of_an_iteration_of_another():
    device = two_users()
    for session in (2, 1):
        device.send(session, MS, ends=session == 2)
        device.finish(0)
    assert device.core.would_start(1, 0) == 0
    assert device.core.would_start(2, 0) is None
