"""Waiting awake: for how long, where, and what comes of it."""

import pytest

from jgpu.device import wakefulness
from jgpu.device.wakefulness import Wakefulness, has_cores_to_spare


class Stream:
    """Something comes with the look of this number; a look takes 10 us."""

    def __init__(self, comes_with):
        self.comes_with = comes_with
        self.looks = []
        self.now = 0.0

    def clock(self):
        return self.now

    def poll(self, timeout_ms):
        self.now += 10e-6
        self.looks.append(timeout_ms)
        return [(3, 1)] if len(self.looks) == self.comes_with else []


def test_one_stays_awake_until_something_comes():
    stream = Stream(comes_with=5)
    assert Wakefulness(lambda: True, stream.clock).wait(stream.poll, None)
    assert stream.looks == [0] * 5


def test_one_stays_awake_for_a_moment_alone_and_then_sleeps_for_the_whole_time():
    stream = Stream(comes_with=0)
    assert not Wakefulness(lambda: True, stream.clock).wait(stream.poll, 1000.0)
    assert len(stream.looks) == pytest.approx(21, abs=1)
    assert set(stream.looks[:-1]) == {0}
    assert stream.looks[-1] == 1000.0


@pytest.mark.parametrize(("spare", "timeout_ms"), [(False, None), (True, 0.1)])
def test_without_cores_to_spare_or_time_one_sleeps_at_once(spare, timeout_ms):
    stream = Stream(comes_with=1)
    assert Wakefulness(lambda: spare, stream.clock).wait(stream.poll, timeout_ms)
    assert stream.looks == [timeout_ms]


def test_whether_there_are_cores_to_spare_is_asked_once_a_second():
    stream, asked = Stream(comes_with=0), []
    waiting = Wakefulness(lambda: bool(asked.append(stream.now)), stream.clock)
    for stream.now in (0.0, 0.5, 0.9, 1.5, 2.0, 2.6):
        waiting.wait(stream.poll, None)
    assert asked == [0.0, 1.5, 2.6]


@pytest.mark.parametrize(
    ("cores", "load", "ration", "spare"),
    [
        (8, 1.0, "max 100000", True),
        (8, 6.5, "max 100000", False),
        (3, 0.0, "max 100000", False),
        (8, 1.0, "200000 100000", False),
        (8, 1.0, None, True),
    ],
)
def test_cores_are_spare_where_there_are_many_that_rest_and_nobody_rations_them(
    monkeypatch, tmp_path, cores, load, ration, spare
):
    file = tmp_path / "cpu.max"
    if ration is not None:
        file.write_text(ration + "\n")
    monkeypatch.setattr(wakefulness, "_RATION", file)
    monkeypatch.setattr(wakefulness.os, "sched_getaffinity", lambda pid: range(cores))
    monkeypatch.setattr(wakefulness.os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert has_cores_to_spare() is spare
