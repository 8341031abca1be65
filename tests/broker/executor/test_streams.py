"""The rules between streams, with the real `cuda` device over recorded calls and CPU kernels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jgpu.broker.executor.devices.cuda import CudaDevice
from jgpu.broker.executor.devices.fake import RecordingCalls, StreamRuleBroken
from jgpu.broker.executor.programs import Buffer
from jgpu.broker.executor.selftest import self_test
from jgpu.broker.settings import ExecutorSettings


class Job:
    """Reads some buffers, makes one, retires some."""

    measured_s = 0.0

    def __init__(self, number, inputs=(), retire=(), careless=False):
        self.number = number
        self.inputs = inputs
        self.retired = retire
        self.careless = careless
        self.made = None
        self.finished = False
        self.error = None

    def known_s(self):
        return 0.0

    def launch(self, port):
        if not self.careless:
            port.use(self.inputs)
        total = torch.zeros(8)
        for buffer in self.inputs:
            total = total + buffer.bytes().view(torch.float32)
        self.made = Buffer(self.number, total)
        port.made([self.made])
        port.retire(self.retired)

    def finish(self):
        self.finished = True

    def broke(self, error):
        self.error = error


@pytest.fixture
def calls():
    return RecordingCalls()


@pytest.fixture
def device(calls):
    made = CudaDevice(ExecutorSettings(device="cuda", lanes=3), calls)
    for lane in range(3):
        made.open_lane(lane)
    yield made
    made.close()


def submit(device, lane, job):
    device.submit(lane, [job])
    if job.error is not None:
        raise job.error
    return job


def test_a_lane_alone_waits_for_nothing(calls, device):
    first = submit(device, 0, Job(1))
    submit(device, 0, Job(2, [first.made], [first.made]))
    assert calls.log == ["record 2", "record 2", "release", "record 2"]


def test_a_buffer_of_another_lane_is_waited_for(calls, device):
    first = submit(device, 0, Job(1))
    calls.log.clear()
    submit(device, 1, Job(2, [first.made]))
    assert calls.log == ["record 1", "wait 1", "record 1"]
    calls.log.clear()
    submit(device, 1, Job(3, [first.made]))
    assert "wait 1" not in calls.log, "once is enough"


def test_a_buffer_of_another_lane_is_dropped_when_its_last_use_is_over(calls, device):
    first = submit(device, 0, Job(1))
    second = submit(device, 1, Job(2, [first.made], [first.made]))
    assert "release" not in calls.log
    calls.advance_all()
    assert device.completions() == [(0, first), (1, second)]
    assert calls.log[-1] == "release"
    assert first.made.base is None


def test_jobs_are_finished_in_order_as_their_events_are_reached(calls, device):
    jobs = [submit(device, 0, Job(k)) for k in range(3)]
    assert device.completions() == []
    stream = calls.streams[2]
    calls.advance(stream, 3)
    assert device.completions() == [(0, jobs[0]), (0, jobs[1])]
    assert device.poll_interval_s() is not None
    calls.advance_all()
    assert device.completions() == [(0, jobs[2])]
    assert device.poll_interval_s() is None
    assert all(job.measured_s > 0 for job in jobs)


class Sending(Job):
    """Sends its result early, and notes in `log` when it was sent and when the job was finished."""

    def __init__(self, number, log):
        super().__init__(number)
        self.log = log

    def launch(self, port):
        super().launch(port)
        storage = self.made.base.untyped_storage()
        assert port.tell(storage, lambda data: self.log.append(f"value {self.number}"))

    def finish(self):
        self.log.append(f"end {self.number}")


def test_a_value_is_sent_after_the_end_of_each_earlier_job_of_its_lane(calls, device):
    log = []
    for number in (1, 2):
        submit(device, 0, Sending(number, log))
    calls.advance_all()
    device.completions()
    assert log == ["value 1", "end 1", "value 2", "end 2"]


def test_a_value_is_sent_before_the_end_of_its_own_job(calls, device):
    log = []
    job = submit(device, 0, Sending(1, log))
    stream = device._lanes[0].stream
    calls.advance(stream, 2)
    device.completions()
    assert log == ["value 1"]
    calls.advance_all()
    device.completions()
    assert log == ["value 1", "end 1"]
    assert job.error is None


def test_the_device_tells_when_a_job_was_over_however_late_the_host_looks(calls):
    """The recorded calls reach an event a millisecond; the host looks when all are over."""
    device = CudaDevice(
        ExecutorSettings(device="cuda", lanes=1), calls, iter((5_000_000, 90_000_000)).__next__
    )
    device.open_lane(0)
    jobs = [submit(device, 0, Job(k)) for k in range(3)]
    calls.advance_all()
    assert [job for _, job in device.completions()] == jobs
    assert [job.over_ns for job in jobs] == [6_000_000, 7_000_000, 8_000_000]
    later = submit(device, 0, Job(3))
    calls.advance_all()
    assert device.completions() == [(0, later)]
    assert later.over_ns == 91_000_000
    device.close()


def test_the_record_catches_a_use_without_a_wait(device):
    first = submit(device, 0, Job(1))
    with pytest.raises(StreamRuleBroken, match="may still use"):
        submit(device, 1, Job(2, [first.made], careless=True))


def test_the_record_catches_a_drop_without_an_event(device):
    first = submit(device, 0, Job(1))
    submit(device, 1, Job(2, [first.made]))
    with pytest.raises(StreamRuleBroken, match="goes back to stream"):
        device.discard([first.made])


def test_the_self_test_goes_through_the_same_calls_in_every_lane(calls):
    device = CudaDevice(ExecutorSettings(device="cuda", lanes=3), calls)
    submit_alone = device.submit

    def submit_and_advance(lane, jobs):
        submit_alone(lane, jobs)
        calls.advance_all()

    device.submit = submit_and_advance
    self_test(device, lanes=3)
    assert [calls.log.count(f"record {stream}") for stream in range(3)] == [2, 2, 2]
    assert not device.uses
    device.close()


_steps = st.lists(
    st.tuples(st.sampled_from(["runs", "drops", "lets", "lands"]), st.integers(0, 5)), max_size=60
)


@settings(max_examples=150, deadline=None)
@given(_steps)
def test_no_order_of_works_moves_and_drops_breaks_a_rule(steps):
    calls = RecordingCalls()
    device = CudaDevice(ExecutorSettings(device="cuda", lanes=3), calls)
    for lane in range(3):
        device.open_lane(lane)
    buffers, launched, landed = [], [], []
    try:
        for number, (step, value) in enumerate(steps):
            if step == "runs":
                inputs = buffers[-1 - value % 2 :]
                launched.append(submit(device, value % 3, Job(number, inputs)))
                buffers.append(launched[-1].made)
            elif step == "drops" and buffers:
                dropped = buffers.pop(value % len(buffers))
                launched.append(submit(device, value % 3, Job(number, [], [dropped])))
            elif step == "lets":
                calls.advance(calls.streams[value % 3], value)
            else:
                landed += device.completions()
        calls.advance_all()
        landed += device.completions()
        assert sorted(job.number for _, job in landed) == [job.number for job in launched]
        device.discard(buffers)
        made_by_drops = [job.made for job in launched if not job.inputs]
        device.discard(made_by_drops)
        assert not device.uses
    finally:
        device.close()
