"""Brief jobs are done on the thread that submits them: which, and what becomes of the others."""

from threading import Event, get_ident

import pytest

from jgpu.broker.executor.devices import cpu
from jgpu.broker.executor.devices.cpu import CpuDevice
from jgpu.broker.settings import ExecutorSettings

ALONE_S = cpu._BRIEF_ALONE_S
BESIDE_S = cpu._BRIEF_S


class Job:
    """Takes so long, by experience; notes its thread."""

    measured_s = 0.0
    over_ns = 0

    def __init__(self, known_s):
        self.seconds = known_s
        self.thread = None
        self.finished = Event()

    def known_s(self):
        return self.seconds

    def launch(self, port):
        self.thread = get_ident()

    def finish(self):
        self.finished.set()

    def broke(self, error):
        raise error


class Clock:
    """What the device takes for the time."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(cpu, "perf_counter", made)
    return made


@pytest.fixture
def device():
    made = CpuDevice(ExecutorSettings(device="cpu", lanes=2))
    for lane in range(2):
        made.open_lane(lane)
    yield made
    made.close()


def is_done_here(device, lane, *known_s):
    """Whether jobs that take so long are done by the caller; both ways they are told of, once."""
    jobs = [Job(seconds) for seconds in known_s]
    device.submit(lane, jobs)
    here = [job.thread == get_ident() for job in jobs]
    if here[0]:  # the pump does not sleep over what it did itself
        assert device.poll_interval_s() == 0.0
    for job in jobs:
        assert job.finished.wait(10)
    told = []
    while len(told) < len(jobs):
        told += device.completions()
    assert told == [(lane, job) for job in jobs]
    assert device.poll_interval_s() is None
    assert len(set(here)) == 1
    return here[0]


def test_a_lane_that_is_alone_for_a_while_has_longer_jobs_done_here(device, clock):
    assert not is_done_here(device, 0, ALONE_S)
    clock.now += cpu._WHILE_S / 2
    assert not is_done_here(device, 0, ALONE_S)
    clock.now += cpu._WHILE_S
    assert is_done_here(device, 0, ALONE_S)
    assert is_done_here(device, 0, ALONE_S / 2, ALONE_S / 2)
    assert not is_done_here(device, 0, ALONE_S, ALONE_S / 2)
    # Another lane has work: neither keeps the other waiting.
    assert not is_done_here(device, 1, ALONE_S)
    clock.now += cpu._WHILE_S / 2
    assert not is_done_here(device, 0, ALONE_S)
    assert not is_done_here(device, 1, ALONE_S)
    clock.now += 2 * cpu._WHILE_S
    assert is_done_here(device, 1, ALONE_S)


def test_the_briefest_jobs_are_done_here_in_any_lane(device, clock):
    for lane in (0, 1, 0):
        assert is_done_here(device, lane, BESIDE_S)
        assert not is_done_here(device, lane, BESIDE_S, BESIDE_S)


def test_a_job_of_which_nothing_is_known_has_a_thread_of_its_own(device, clock):
    clock.now += 2 * cpu._WHILE_S
    assert is_done_here(device, 0, BESIDE_S)
    clock.now += 2 * cpu._WHILE_S
    assert not is_done_here(device, 0, 0.0)
    assert not is_done_here(device, 0, BESIDE_S, 0.0)


def test_nothing_is_done_here_while_a_lane_works(device, clock):
    begun, go_on = Event(), Event()

    class Long(Job):
        def launch(self, port):
            begun.set()
            assert go_on.wait(10)

    long, brief = Long(0.0), Job(BESIDE_S)
    device.submit(0, [long])
    assert begun.wait(10)
    device.submit(1, [brief])
    assert brief.finished.wait(10)
    assert brief.thread != get_ident()
    go_on.set()
    assert long.finished.wait(10)


def test_what_is_over_keeps_nobody_from_being_done_here_though_it_was_not_told(device, clock):
    jobs = [Job(BESIDE_S) for _ in range(3)]
    for job in jobs:
        assert device.does_at_once(0, [job])
        device.submit(0, [job])
        assert job.thread == get_ident()
    assert device.completions() == [(0, job) for job in jobs]
