"""Notes of wrong values on the real `cuda` device, over recorded calls: one copy with a wait."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from client import bad_index, scale
from test_put_aside import stream_of

from jgpu.broker.executor.devices.cuda import CudaDevice
from jgpu.broker.executor.devices.fake import RecordingCalls
from jgpu.broker.executor.lifecycle import LifePhase
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.programs import KINDS, Buffer, define
from jgpu.broker.executor.session import ExecutorSession, SessionOwner
from jgpu.broker.executor.works.hostonly import SyncWork
from jgpu.broker.executor.works.runs import RunWork
from jgpu.broker.executor.works.transfers import DownloadWork
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire import messages as m
from jgpu.wire.program import encode_program


class Calls(RecordingCalls):
    """Counts what is copied between host and device."""

    def __init__(self):
        super().__init__()
        self.copied = []

    def copy(self, target, source):
        self.copied.append(target.numel())
        super().copy(target, source)


class Bench:
    """A session on the device, whose works are launched here."""

    def __init__(self, device):
        self.device = device
        self.sent = []
        connection = SimpleNamespace(send=self.sent.append, close=lambda: None)
        self.session = ExecutorSession(
            1, SessionOwner("user1"), connection, None, Account("user1", 1 << 30), device
        )
        self.works = 0
        self.buffers = 0

    def put(self, *values, dtype=torch.float32):
        self.buffers += 1
        buffer = Buffer(self.buffers, torch.tensor(values, dtype=dtype))
        self.session.table.add(buffer)
        return self.buffers

    def launch(self, work, lane=0):
        queue = self.session.queue
        self.session.accept(work)
        assert queue.offer_next() is work
        queue.launch(work)
        self.device.submit(lane, [work])
        return work

    def run(self, form, inputs, lane=0, **options):
        data = encode_program(form)
        definition = define(data, "cpu")
        first, self.buffers = self.buffers + 1, self.buffers + form.fresh
        live = bytes([(1 << form.fresh) - 1])
        self.works += 1
        work = RunWork(
            self.session, m.Run(self.works, definition.hash, tuple(inputs), first, live, **options)
        )
        work.definition = definition
        self.launch(work, lane)
        return first

    def sync(self, lane=0):
        self.works += 1
        self.launch(SyncWork(self.session, m.Sync(self.works, self.works)), lane)
        return self.works

    def download(self, buffer, lane=0):
        self.works += 1
        message = m.Download(self.works, self.works, buffer, 0, 16, None)
        self.launch(DownloadWork(self.session, message), lane)
        return self.works

    def finish(self):
        for _, work in self.device.completions():
            self.session.complete(work)

    def told(self, kind):
        return [message for message in self.sent if isinstance(message, kind)]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setitem(KINDS, "cpu", replace(KINDS["cpu"], trusts_values=True))
    device = CudaDevice(ExecutorSettings(device="cuda", lanes=2), Calls())
    for lane in range(2):
        device.open_lane(lane)
    yield Bench(device)
    device.close()


def picked(bench, *places, **options):
    """b = a[places]"""
    table = bench.put(1, 2, 3, 4)
    return bench.run(bad_index(), [table, bench.put(*places, dtype=torch.int64)], **options)


def finished(bench):
    bench.device._calls.advance_all()
    bench.finish()


def test_a_session_copies_nothing_but_a_few_bytes_with_a_wait_after_guarded_ops(bench):
    calls = bench.device._calls
    bench.run(scale(), [bench.put(1, 2, 3, 4)], params=(2.0,))
    bench.sync()
    assert calls.copied == []
    for _ in range(3):
        picked(bench, 0, 1, 2, 3)
    assert calls.copied == []
    bench.sync()
    bench.sync()
    (copied,) = calls.copied
    assert copied <= 64
    finished(bench)
    assert len(bench.told(m.Synced)) == 3
    assert bench.told(m.Failed) == []
    assert not bench.session.faults._trail


def test_nothing_is_told_before_the_event_behind_the_copy_was_reached(bench):
    made = picked(bench, 0, 9, 2, 3)
    request = bench.download(made)
    bench.finish()
    assert bench.sent == []
    finished(bench)
    noted, answer = bench.told(m.Failed)
    assert (noted.work, noted.error, noted.buffers) == (1, "IndexError", (made,))
    assert (answer.request, answer.error) == (request, "IndexError")
    assert bench.told(m.Downloaded) == []


def test_works_behind_the_wait_that_were_launched_already_are_followed_too(bench):
    made = picked(bench, 0, 9, 2, 3)
    bench.sync()
    later = bench.run(scale(), [made], params=(2.0,))
    request = bench.download(later)
    finished(bench)
    noted, answer = bench.told(m.Failed)
    assert noted.buffers == (made, later)
    assert (answer.request, answer.work, answer.error) == (request, 1, "IndexError")
    assert bench.session.table.buffers[later].poison is not None


def test_a_value_told_ahead_of_its_run_is_none_where_a_note_before_it_says_so(bench):
    calls = bench.device._calls
    made = picked(bench, 0, 9, 2, 3)
    later = bench.run(scale(), [made], params=(2.0,), wanted=(0,))
    sound = bench.run(scale(), [bench.put(1, 2, 3, 4)], params=(2.0,), wanted=(0,))
    bench.sync()
    for _ in range(64):
        calls.advance(stream_of(calls, 0))
        bench.finish()
    values = {value.buffer: value.data for value in bench.told(m.Value)}
    assert values[later] == b""
    assert sound in values
    (failed,) = bench.told(m.Failed)
    assert set(failed.buffers) == {made, later}


def test_notes_of_a_session_that_changed_its_lane_are_waited_for(bench):
    made = picked(bench, 0, 9, 2, 3)
    request = bench.download(made, lane=1)
    calls = bench.device._calls
    assert "wait 0" in calls.log
    finished(bench)
    assert [failed.request for failed in bench.told(m.Failed)] == [None, request]


def test_what_was_poisoned_goes_back_when_the_device_is_at_nothing_of_it(bench):
    made = picked(bench, 0, 9, 2, 3)
    base = bench.session.table.buffers[made]
    bench.sync()
    bench.run(scale(), [made], params=(2.0,))
    calls = bench.device._calls
    while not bench.told(m.Failed):
        calls.advance(stream_of(calls, 0))
        bench.finish()
    assert base.base is not None, "a work in flight reads it"
    finished(bench)
    assert base.base is None


def test_a_session_that_ends_gives_its_notes_back(bench):
    picked(bench, 0, 9, 2, 3)
    bench.sync()
    block = bench.session.faults.notes.blocks[0]
    finished(bench)
    bench.session.life.become(LifePhase.CLOSED)
    bench.session.release()
    assert block.base is None
