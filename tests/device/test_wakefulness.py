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


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Control groups of the test: files by path, and what the process is in."""
    monkeypatch.setattr(wakefulness, "_GROUPS", tmp_path / "fs")
    monkeypatch.setattr(wakefulness, "_OWN", tmp_path / "own")

    def make(own, **files):
        (tmp_path / "own").write_text(own)
        for path, text in files.items():
            file = tmp_path / "fs" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    return make


def many_cores(monkeypatch, cores=8, load=1.0):
    monkeypatch.setattr(wakefulness.os, "sched_getaffinity", lambda pid: range(cores))
    monkeypatch.setattr(wakefulness.os, "getloadavg", lambda: (load, 0.0, 0.0))


@pytest.mark.parametrize(
    ("cores", "load", "spare"), [(8, 1.0, True), (8, 6.5, False), (3, 0.0, False)]
)
def test_cores_are_spare_where_there_are_many_that_rest(monkeypatch, groups, cores, load, spare):
    many_cores(monkeypatch, cores, load)
    assert has_cores_to_spare() is spare  # nothing is said of groups
    groups("0::/\n")
    assert has_cores_to_spare() is spare


@pytest.mark.parametrize(
    ("own", "files", "spare"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, True),
        ("0::/\n", {"cpu.max": "200000 100000"}, False),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "max 100000"}, True),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, False),
        ("0::/a\n", {"b/cpu.max": "150000 100000"}, True),
        ("0::/../c:d\n", {}, True),
        ("4:memory:/a\n3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1"}, True),
        ("4:memory:/a\n3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "50000"}, False),
        ("3:cpuset:/a\n", {"cpu/a/cpu.cfs_quota_us": "50000"}, True),
    ],
)
def test_nobody_whose_processor_time_is_rationed_has_any_to_spare(
    monkeypatch, groups, own, files, spare
):
    many_cores(monkeypatch)
    groups(own, **files)
    assert has_cores_to_spare() is spare
