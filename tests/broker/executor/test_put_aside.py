"""What would keep the pump waiting is put aside: the real `cuda` device over recorded calls."""

import select
from pathlib import Path
from threading import Thread

import pytest
import torch

from jgpu.broker.executor.devices.cuda import CudaDevice
from jgpu.broker.executor.devices.fake import RecordingCalls
from jgpu.broker.executor.devices.gpu import port as gpu_port
from jgpu.broker.executor.devices.gpu.staging import FEW_BYTES
from jgpu.broker.executor.programs import Buffer
from jgpu.broker.executor.programs.flags import FlagGate
from jgpu.broker.settings import GPU_LANES, ExecutorSettings
from jgpu.errors import ConfigError
from jgpu.wire.program import Flags

LARGE = 4 * FEW_BYTES


class Steps:
    """A job of ops by their numbers; those in `waiting` wait for the stream."""

    measured_s = 0.0

    def __init__(self, name, done, ops=3, waiting=()):
        self.name = name
        self.done = done
        self.ops = ops
        self.waiting = waiting
        self.at = 0
        self.error = None

    def known_s(self):
        return 0.0

    def launch(self, port):
        began = self.at
        while self.at < self.ops:
            if port.pauses(self.at - began, waits=self.at in self.waiting):
                return
            torch.zeros(2).add_(1)
            self.done.append(f"{self.name}{self.at}")
            self.at += 1

    def finish(self):
        self.done.append(f"{self.name} over")

    def broke(self, error):
        self.error = error


@pytest.fixture
def calls():
    return RecordingCalls()


@pytest.fixture
def device(calls):
    made = CudaDevice(ExecutorSettings(device="cuda", lanes=2), calls)
    for lane in range(2):
        made.open_lane(lane)
    yield made
    made.close()


def stream_of(calls, lane):
    return calls.streams[1 - lane]  # the last one made is given first


def woken(device):
    """Wait until another thread has something for the pump."""
    poll = select.poll()
    poll.register(device.wake_fd, select.POLLIN)
    assert poll.poll(10_000)


def test_an_op_that_waits_is_launched_when_its_stream_is_empty_and_others_go_on(calls, device):
    done = []
    device.submit(0, [Steps("a", done, waiting=(1,)), Steps("b", done, ops=1)])
    assert done == ["a0"], "what is behind the op that waits keeps its order"
    device.submit(1, [Steps("c", done)])
    assert done == ["a0", "c0", "c1", "c2"]
    assert device.completions() == []
    assert device.poll_interval_s() is not None
    calls.advance(stream_of(calls, 0), 2)
    assert device.completions() == []
    assert done[4:] == ["a1", "a2", "b0"]
    calls.advance_all()
    assert [job.name for _, job in device.completions()] == ["a", "b", "c"]
    assert device.poll_interval_s() is None


def test_an_op_that_waits_is_launched_at_once_where_nothing_flies(device):
    done = []
    device.submit(0, [Steps("a", done, waiting=(0,))])
    assert done == ["a0", "a1", "a2"]


def test_a_job_in_parts_took_the_time_of_its_parts(calls, device):
    job = Steps("a", [], waiting=(1, 2))
    device.submit(0, [job])
    while not device.completions():
        calls.advance_all()
    assert job.measured_s == pytest.approx(0.003)
    assert job.done == ["a0", "a1", "a2", "a over"]


def test_what_waits_behind_a_job_that_was_put_aside_can_be_taken_back(calls, device):
    done = []
    first, second = Steps("a", done, waiting=(1,)), Steps("b", done)
    device.submit(0, [first, second])
    assert device.take_back(0) == [second]
    calls.advance_all()
    device.completions()
    calls.advance_all()
    assert device.completions() == [(0, first)]
    assert "b0" not in done


def test_a_long_launch_lets_others_have_the_pump(calls, monkeypatch):
    now = iter(range(0, 10**12, 400_000))
    device = CudaDevice(ExecutorSettings(device="cuda", lanes=1), calls, lambda: next(now))
    device.open_lane(0)
    done = []
    device.submit(0, [Steps("a", done, ops=100)])
    assert len(done) == 3 * gpu_port._OPS, "a look each so many ops, 0.4 ms apart, for over 1 ms"
    assert device.completions() == []
    assert len(done) == 6 * gpu_port._OPS
    device.close()


class Move:
    """Takes bytes to a buffer, or from it."""

    measured_s = 0.0

    def __init__(self, host, *, up, buffer=None):
        self.host = host
        self.up = up
        self.buffer = buffer
        self.launches = 0
        self.finished = False

    def known_s(self):
        return 0.0

    def launch(self, port):
        self.launches += 1
        if not port.stage(memoryview(self.host), filled=self.up):
            return
        if self.up:
            self.buffer = Buffer(1, torch.empty(len(self.host), dtype=torch.uint8))
            port.made([self.buffer])
            port.write(self.buffer.bytes(), memoryview(self.host))
        else:
            port.use([self.buffer])
            port.read(self.buffer, 0, memoryview(self.host))

    def finish(self):
        self.finished = True

    def broke(self, error):
        raise error


def finish(calls, device, job):
    while not job.finished:
        woken(device)
        device.completions()
        calls.advance_all()
        device.completions()


def test_many_bytes_of_an_arena_that_is_not_pinned_are_copied_beside_the_pump(calls, device):
    data = bytearray(range(256)) * (LARGE // 256)
    up = Move(data, up=True)
    device.submit(0, [up])
    other = Steps("c", [])
    device.submit(1, [other])
    calls.advance(stream_of(calls, 1), 2)
    assert up.buffer is None
    assert (1, other) in device.completions(), "others do not wait for the copy"
    finish(calls, device, up)
    assert up.launches == 2
    assert bytes(up.buffer.bytes().numpy()) == data
    down = Move(bytearray(LARGE), up=False, buffer=up.buffer)
    device.submit(0, [down])
    finish(calls, device, down)
    assert down.host == data


def test_few_bytes_are_copied_at_once(calls, device):
    up = Move(bytearray(b"few!" * 8), up=True)
    device.submit(0, [up])
    assert up.launches == 1
    assert up.buffer is not None


def test_a_host_without_pinned_memory_copies_all_the_same_and_says_so_once(calls, device, caplog):
    def refuse(nbytes):
        raise RuntimeError("CUDA error: out of memory")

    calls.pinned = refuse
    for _ in range(2):
        up = Move(bytearray(b"x" * LARGE), up=True)
        device.submit(0, [up])
        finish(calls, device, up)
        assert bytes(up.buffer.bytes().numpy()) == up.host
    assert device.host_bytes(8).numel() == 8  # what is spilled, too
    (line,) = [record.getMessage() for record in caplog.records]
    assert "LimitMEMLOCK" in line


def test_arenas_that_cannot_be_pinned_are_told_of_once_with_what_to_do(device, caplog):
    for _ in range(2):
        device.pin(memoryview(bytearray(4096)))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "not 4096 bytes of a notebook's arena" in line
    assert "LimitMEMLOCK=infinity" in line


class Telling:
    """Makes a number and tells it in its midst."""

    measured_s = 0.0

    def __init__(self, value, heard):
        self.value = value
        self.heard = heard
        self.kept = None

    def known_s(self):
        return 0.0

    def launch(self, port):
        made = torch.full((2,), self.value)
        assert port.tell(made.untyped_storage(), self.heard.append)
        self.kept = made.add_(1000.0)

    def finish(self):
        self.heard.append("over")

    def broke(self, error):
        raise error


def test_a_value_is_told_when_its_copy_is_over_and_before_the_work_is(calls, device):
    heard = []
    device.submit(0, [Telling(7.0, heard)])
    assert device.completions() == []
    assert heard == []
    calls.advance(stream_of(calls, 0), 2)  # the beginning, and the value
    assert device.completions() == []
    assert heard == [torch.tensor([7.0, 7.0]).numpy().tobytes()]
    calls.advance_all()
    device.completions()
    assert heard[1:] == ["over"]


def test_slots_are_used_again_and_a_full_ring_tells_nothing(calls, device, monkeypatch):
    ring = device._shared.ring
    heard = []
    for _ in range(3):
        device.submit(0, [Telling(float(k), heard) for k in range(400)])
        calls.advance_all()
        device.completions()
    assert len(ring._free) == 1024
    ring._free.clear()
    with pytest.raises(AssertionError):
        device.submit(0, [Telling(1.0, heard)])


def test_lanes_that_are_given_up_keep_their_streams_and_others_are_made(calls):
    device = CudaDevice(ExecutorSettings(device="cuda", lanes=GPU_LANES), calls)
    for lane in range(GPU_LANES + 16):  # so many may be given up
        device.open_lane(lane)
    device.leaving([])
    assert len(calls.streams) <= 32
    device.close()


def test_more_lanes_than_streams_are_refused_with_the_reason(calls):
    with pytest.raises(ConfigError, match="at most 14 lanes, and 20 were asked for: torch has 32"):
        CudaDevice(ExecutorSettings(device="cuda", lanes=20), calls)


def test_who_may_not_wait_at_the_gate_is_let_in_before_those_that_come_later():
    gate = FlagGate()
    slow, mine = Flags(), Flags(cudnn_deterministic=True)
    assert gate.enter_at_once(slow)
    assert not gate.enter_at_once(mine)
    assert not gate.is_open_to(mine)
    passed = []

    def come_later():
        with gate.passing(slow):
            passed.append(gate.is_open_to(mine))

    later = Thread(target=come_later)
    later.start()
    while not gate._changed._waiters:  # it gives way, though its flags are those inside
        assert later.is_alive()
    gate.leave()
    later.join(10)
    assert passed == [False]
    assert gate.enter_at_once(mine)
    with gate.passing(mine):
        assert torch.backends.cudnn.deterministic
    gate.leave()
    with gate.passing(slow):
        assert not torch.backends.cudnn.deterministic


def test_an_executor_sleeps_no_longer_than_it_asks_for(cpu):
    assert Path(f"/proc/{cpu.ready.pid}/timerslack_ns").read_text().strip() == "1000"
