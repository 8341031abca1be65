"""Waking the pump: who has the interpreter's lock meanwhile, and what a closed descriptor does."""

import select
import sys
from threading import Lock, Thread

import pytest

from jgpu.broker.executor.devices.wake import Wake

#: seconds that a thread which waits for the interpreter's lock lets another have it
FOR_LONG = 1000.0
#: so often that whoever gave the lock up would lose it at least once
OFTEN = 20_000


@pytest.fixture
def wake():
    return Wake()


@pytest.fixture
def no_forced_switch():
    before = sys.getswitchinterval()
    sys.setswitchinterval(FOR_LONG)
    yield
    sys.setswitchinterval(before)


def test_whoever_wakes_the_pump_keeps_the_interpreters_lock(wake, no_forced_switch):
    began, ran = Lock(), []
    began.acquire()

    def other():
        with began:
            ran.append("the other")

    thread = Thread(target=other)
    thread.start()
    began.release()  # it may go on, and wants the lock from here on
    for _ in range(OFTEN):
        wake.clear()
        wake.signal()
    seen = list(ran)
    thread.join(10)
    wake.close()
    assert seen == []
    assert ran == ["the other"]


def test_a_signal_wakes_once_until_the_pump_has_looked(wake):
    poll = select.epoll()
    poll.register(wake.fd, select.EPOLLIN | select.EPOLLET)
    heard = []
    for act in (wake.signal, wake.signal, wake.clear, wake.signal):
        act()
        heard.append(len(poll.poll(0)))
    poll.close()
    wake.close()
    assert heard == [1, 0, 0, 1]


def test_a_signal_to_a_closed_descriptor_is_an_error(wake):
    wake.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        wake.signal()
