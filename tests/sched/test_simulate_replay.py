"""Recordings played again: a simulated broker is recorded, and its recording simulated."""

import io
import random

import pytest

from jgpu.errors import ConfigError
from jgpu.sched import Core, IllegalEvent, Limits, events
from jgpu.sched.reports.recording import EventRecorder, read_recording
from jgpu.sched.simulate.clock import Clock
from jgpu.sched.simulate.device import Hardware, SimulatedDevice
from jgpu.sched.simulate.jobs import Cell, JobMemory, SimulatedJob
from jgpu.sched.simulate.loop import LoopPace, TrainingLoop
from jgpu.sched.simulate.player import replayed_cells
from jgpu.sched.simulate.replay import read_scripts
from jgpu.sched.simulate.results import Log, mean

MS = 0.001


class Recorded:
    """A core that is recorded."""

    def __init__(self, policy, limits=None):
        self.core = Core(policy, limits)
        self.sink = io.StringIO()
        self.recorder = EventRecorder(self.sink, policy, limits)

    def handle(self, event, now):
        self.recorder.note(event, now)
        return self.core.handle(event, now)

    def lines(self):
        return self.sink.getvalue().splitlines()


def record(jobs, policy="fair", hardware=None, limits=None):
    """Return the recording of a run, and the log of its cells."""
    clock, log, core = Clock(), Log(), Recorded(policy, limits)
    device = SimulatedDevice(clock, core, hardware or Hardware())
    for session, job in enumerate(jobs, start=1):
        TrainingLoop(clock, device, session, job, log, LoopPace())
    clock.run()
    return core.lines(), log


def scripts(lines):
    header, recorded = read_recording(lines, "run.jsonl")
    return read_scripts(header, recorded, "run.jsonl")


def refused(lines):
    with pytest.raises(ConfigError) as caught:
        scripts(lines)
    return str(caught.value)


def a_class(ahead=3, cells=3, memory=None):
    chance = random.Random(3)
    return [
        SimulatedJob(
            f"job{n}",
            f"user{n}",
            chance.uniform(0, 1),
            tuple(
                Cell(20, n * 2 * MS, think_s=chance.expovariate(2), host_s=1 * MS, ahead=ahead)
                for _ in range(cells)
            ),
            memory or JobMemory(),
        )
        for n in range(1, 5)
    ]


def by_session(cells):
    return sorted((each.session, each.began_s, each.ended_s) for each in cells)


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_recording_under_its_own_policy_gives_the_same_cells(ahead):
    lines, log = record(a_class(ahead))
    recording = scripts(lines)
    assert (recording.policy, recording.lanes, recording.limits) == ("fair", 1, Limits())
    assert not recording.policy_changed
    live = [pytest.approx(each, abs=1e-6) for each in by_session(log.cells)]
    assert by_session(recording.cells) == live
    again, device = replayed_cells(recording)
    assert by_session(again) == live
    assert device.busy_s > 0


def test_a_recording_is_run_under_another_policy_with_other_lanes():
    lines, _ = record(a_class(), limits=Limits(quantum_s=0.02))
    recording = scripts(lines)
    assert recording.limits.quantum_s == 0.02
    times = {
        policy: mean([each.took_s for each in replayed_cells(recording, policy, 1)[0]])
        for policy in ("fair", "fifo", "srtf")
    }
    assert times["fifo"] != times["fair"]
    cells, device = replayed_cells(recording, "fair", 2, 1000)
    assert device.hardware.lanes == 2
    assert len(cells) == 12


def test_spills_follow_anew():
    memory = JobMemory(resident=10, kept=300, transient=100)
    hardware = Hardware(capacity=1000, look_s=0.1, link_bytes_per_s=100_000)
    lines, log = record(a_class(memory=memory), hardware=hardware)
    assert any("SessionSpilled" in line for line in lines)
    cells, device = replayed_cells(scripts(lines))
    assert device.spilled_bytes > 0
    assert len(cells) == len(log.cells)


def played(*told, policy="fair"):
    """The lines of a recording of these (seconds, event)."""
    sink = io.StringIO()
    recorder = EventRecorder(sink, policy)
    recorder.note(events.LanesConfigured(1, 1000), 0.0)
    recorder.note(events.SessionOpened(1, "user1"), 0.0)
    for now, event in told:
        recorder.note(event, now)
    return sink.getvalue().splitlines()


def work(number, *seconds, session=1, ends=True):
    segments = tuple(events.Segment(each, 0) for each in seconds)
    return events.WorkArrived(session, number, segments, ends)


def finished(number, epoch=1, count=1, measured_s=0.01):
    return events.SegmentsFinished(0, epoch, number, count, measured_s)


def test_a_step_waits_for_the_work_that_ended_before_it():
    lines = played(
        (1.0, events.CellStarted(1)),
        (1.1, work(1, 0.01)),
        (1.2, finished(1)),
        (1.25, work(2, 0.01, 0.01)),
        (1.26, events.MemoryMeasured(1, 1, 2, 3)),
        (1.5, finished(2, epoch=1, count=2)),
        (1.6, events.CellEnded(1)),
    )
    (script,) = [each for each in scripts(lines).scripts if each.session == 1]
    steps = [(round(step.gap_s, 6), step.after) for step in script.steps]
    assert steps == [(0, -1), (1, -1), (0.1, -1), (0.05, 0), (0.01, -1), (0.1, 1)]
    assert [step.seconds for step in script.steps if step.seconds] == [
        (pytest.approx(0.1),),
        (pytest.approx(0.125), pytest.approx(0.125)),
    ]
    cells, _ = replayed_cells(scripts(lines))
    assert by_session(cells) == [(1, pytest.approx(1.0), pytest.approx(1.6))]


def ran(number, began, ended, session=1):
    return events.WorkRan(session, number, 0.01, 0, True, 0, ended - began, 0.01)


def test_what_was_told_of_in_one_event_is_the_same_steps():
    first = (1.0, events.CellStarted(1)), (1.1, work(1, 0.01)), (1.2, finished(1))
    last = (1.6, events.CellEnded(1))
    one = played(*first, (1.25, ran(2, 1.25, 1.5)), last)
    two = played(*first, (1.25, work(2, 0.01)), (1.5, finished(2)), last)
    assert scripts(one).scripts == scripts(two).scripts
    assert scripts(one).cells == scripts(two).cells
    assert scripts(one).events == scripts(two).events - 1
    unknown = played(*first, (1.25, ran(2, 1.25, 1.5, session=9)), last)
    assert scripts(unknown).scripts == scripts(played(*first, last)).scripts
    assert refused(played(*first, (1.25, ran(1, 1.25, 1.5)))) == (
        "run.jsonl, line 7: Work 1 ran after work 1."
    )


def test_a_work_that_another_sessions_overtook_took_until_it_ended():
    lines = played(
        (0.5, events.SessionOpened(2, "user2")),
        (1.0, work(1, 0.01)),
        (1.0, work(2, 0.01, session=2)),
        (1.2, finished(2, epoch=2)),
        (1.5, finished(1)),
        (1.6, events.CellEnded(1)),
    )
    took = [step.seconds for each in scripts(lines).scripts for step in each.steps if step.seconds]
    assert took == [(pytest.approx(0.3),), (pytest.approx(0.2),)]


def test_works_that_never_ended_are_left_out_and_unknown_ends_mean_nothing():
    lines = played(
        (1.0, work(1, 0.01)),
        (1.1, work(2, 0.01)),
        (1.1, work(3, 0.01)),
        (1.1, work(4, ends=True)),
        (1.2, events.WorkCancelled(1, (3,))),
        (1.3, finished(1)),
        (1.3, finished(9)),
        (1.4, events.SegmentsFinished(5, 1, 1, 1, 0.01)),
        (1.5, events.CellEnded(1)),
        (1.6, events.PolicyChanged("fifo")),
        (1.7, events.UserConfigured("user1", 2.0)),
    )
    recording = scripts(lines)
    assert recording.policy_changed
    works = [step for each in recording.scripts for step in each.steps if step.seconds]
    assert len(works) == 1
    # a session without cells is one job, from its first work to its last
    assert by_session(recording.cells) == [(1, pytest.approx(1.0), pytest.approx(1.3))]
    assert len(replayed_cells(recording)[0]) == 1


def test_what_a_retired_lane_gave_back_began_when_it_was_started_again():
    lines = played(
        (0.0, events.SessionOpened(2, "user2")),
        (1.0, work(1, 0.01)),
        (1.0, work(2, 0.01, session=2)),
        (3.0, events.SessionClosed(1)),
        (3.0, events.LaneRetired(0, (2,))),
        (3.5, events.SegmentsFinished(1, 3, 2, 1, 0.5)),
        (9.0, finished(1)),
    )
    found = {script.session: script.steps for script in scripts(lines).scripts}
    assert [step.seconds for step in found[2] if step.seconds] == [(0.5,)]
    assert [step.seconds for step in found[1] if step.seconds] == [(8.0,)]


def test_what_the_core_refuses_is_said_with_its_line():
    assert refused(played((1.0, work(1, 0.01)), (1.1, work(1, 0.01)))) == (
        "run.jsonl, line 5: Work 1 arrived after work 1."
    )
    assert "line 4: There is no scheduling policy 'best'" in refused(
        played((1.0, events.PolicyChanged("best")))
    )
    lines, _ = record([SimulatedJob("job", "user1", 0.0, (Cell(1, 1.0),))])
    assert "it never says what the device has" in refused([lines[0], *lines[2:]])


def test_a_recording_of_an_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match="no scheduling policy 'best'"):
        scripts(['{"recording": "jgpu.sched", "version": 1, "policy": "best"}'])


def test_limits_that_are_none_are_refused():
    line = '{"recording":"jgpu.sched","version":1,"policy":"fair","limits":{"quantum_s":"x"}}'
    with pytest.raises(ConfigError, match="line 1: limits is"):
        scripts([line])


def test_an_illegal_event_is_an_error_of_the_core_as_well():
    with pytest.raises(IllegalEvent):
        Core().handle(events.LanesConfigured(0, 0), 0.0)
