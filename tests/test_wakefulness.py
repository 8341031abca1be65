"""Waiting awake: for how long, where, and what comes of it."""

from itertools import pairwise

import pytest

from jgpu import wakefulness
from jgpu.wakefulness import Wakefulness, has_cores_to_spare


class Stream:
    """Something comes with the look of this number; a look takes 10 us, others what is said."""

    def __init__(self, comes_with=0):
        self.comes_with = comes_with
        self.looks = []
        #: seconds that somebody else has the core with each offer, the last one again and again
        self.taken = [0.0]
        self.offers = 0
        self.now = 0.0
        self.spare = True
        self.waiting = Wakefulness(lambda: self.spare, self.clock, self.offer)

    def clock(self):
        return self.now

    def offer(self):
        self.offers += 1
        self.now += self.taken.pop(0) if len(self.taken) > 1 else self.taken[0]

    def poll(self, timeout):
        self.now += 10e-6
        self.looks.append(timeout)
        return [(3, 1)] if len(self.looks) == self.comes_with else []

    def look(self):
        """What comes of one wait, and how often one looked."""
        before = len(self.looks)
        found = self.waiting.look(self.poll)
        return found, len(self.looks) - before


def test_one_stays_awake_until_something_comes_and_offers_the_core_after_each_look():
    stream = Stream(comes_with=5)
    assert stream.look() == ([(3, 1)], 5)
    assert stream.looks == [0] * 5
    assert stream.offers == 4


def test_one_stays_awake_for_a_moment_alone():
    found, looks = Stream().look()
    assert not found
    assert looks == pytest.approx(20, abs=1)


def test_without_cores_to_spare_one_does_not_look_at_all():
    stream = Stream(comes_with=1)
    stream.spare = False
    assert stream.look() == (None, 0)


def test_whether_there_are_cores_to_spare_is_asked_once_a_second():
    asked = []
    stream = Stream()
    stream.waiting = Wakefulness(lambda: bool(asked.append(stream.now)), stream.clock, stream.offer)
    for stream.now in (0.0, 0.5, 0.9, 1.5, 2.0, 2.6):
        assert stream.look() == (None, 0)
    assert asked == [0.0, 1.5, 2.6]


def test_whoever_wanted_the_core_is_left_it_for_a_while_longer_each_time():
    stream = Stream()
    stream.taken = [0.003]
    began = []
    while len(began) < 10:
        stream.now += 0.001
        if stream.look()[1]:
            began.append(stream.now)
    rests = [after - before for before, after in pairwise(began)]
    wanted = [0.01 * 2**k for k in range(7)] + [1.0, 1.0]
    assert rests == pytest.approx(wanted, abs=0.005)


def test_a_wait_that_was_answered_awake_makes_the_next_rest_short_again():
    stream = Stream()
    stream.taken = [0.003]
    for _ in range(8):
        stream.look()
        stream.now += 2.0
    stream.taken, stream.comes_with = [0.0], len(stream.looks) + 2
    assert stream.look() == ([(3, 1)], 2)
    stream.taken = [0.003]
    assert stream.look() == (None, 1)
    stream.now += 0.011
    assert stream.look() == (None, 1)


def test_whoever_is_awake_in_vain_again_and_again_sleeps_at_once_for_a_while():
    stream = Stream()
    looks = [stream.look()[1] for _ in range(20)]
    assert 0 not in looks[:16]
    assert looks[16:] == [0] * 4
    stream.now += 0.011
    assert [stream.look()[1] > 0 for _ in range(2)] == [True, False]  # one is enough from now on


class Waits(Stream):
    """Waits that take what is said from their beginning, for whoever looks, naps or sleeps."""

    def __init__(self):
        super().__init__()
        self.naps = []
        self.comes = 0.0

    def poll(self, timeout):
        self.now += 1e-6
        if timeout:  # falls asleep
            self.now = max(self.now, self.comes)
        self.looks.append(timeout)
        return self.now >= self.comes

    def nap(self, seconds):
        self.naps.append(seconds)
        self.now = min(self.now + seconds, max(self.now, self.comes))

    def wait(self, takes, after="program"):
        """Naps of one wait, in microseconds, and whether it ended awake."""
        self.naps.clear()
        self.now += 0.001
        self.comes = self.now + takes
        assert self.waiting.wait(self.poll, 1000, after, self.nap)
        return [round(1e6 * each) for each in self.naps], self.looks[-1] == 0


def test_what_takes_long_is_slept_through_until_shortly_before_it_comes():
    stream = Waits()
    assert stream.wait(0.0006) == ([], False)
    for _ in range(20):
        (nap,), awake = stream.wait(0.0006)
        assert 470 < nap < 490
        assert awake


def test_what_comes_while_one_may_be_awake_is_not_slept_through():
    stream = Waits()
    assert [stream.wait(0.00015) for _ in range(3)] == [([], True)] * 3


def test_the_median_of_the_last_three_is_expected():
    stream = Waits()
    stream.wait(0.0006)
    assert stream.wait(0.0003)[1]  # the nap ends where something comes
    took = (0.0008, 0.0007, 0.0008, 0.0005, 0.0009)
    naps = [stream.wait(takes)[0][0] for takes in took]
    assert naps == pytest.approx([480, 480, 580, 680, 580], abs=10)


def test_what_is_there_already_was_not_waited_for():
    stream = Waits()
    stream.wait(0.0006)
    for _ in range(3):
        assert stream.wait(0.0) == ([], True)
    assert stream.wait(0.0006)[0][0] == pytest.approx(480, abs=10)


def test_each_wait_is_expected_by_what_it_comes_after_and_few_are_kept():
    stream = Waits()
    for _ in range(2):
        stream.wait(0.0006, "one")
        stream.wait(0.0012, "other")
    assert stream.wait(0.0006, "one")[0][0] < 490 < 1000 < stream.wait(0.0012, "other")[0][0]
    for number in range(300):
        stream.wait(0.0006, number)
    assert len(stream.waiting._took) <= 256


def test_what_takes_very_long_is_not_expected():
    stream = Waits()
    stream.wait(0.0006)
    stream.wait(0.02)
    assert stream.wait(0.02) == ([], False)


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
    ("cores", "load", "spare"),
    [
        (8, 1.0, True),
        (8, 6.5, False),
        (4, 2.0, True),
        (4, 2.5, False),
        (2, 9.0, True),
        (1, 0, False),
    ],
)
def test_both_ends_need_a_core_and_of_many_some_are_left_to_others(
    monkeypatch, groups, cores, load, spare
):
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
