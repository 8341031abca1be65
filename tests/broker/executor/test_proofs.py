"""Indices that a session uploaded are not looked at again, and never one that could be wrong."""

from dataclasses import replace
from struct import pack

import pytest
import torch
from client import bad_index, program, vector
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from test_faults_on_streams import Bench, Calls

from jgpu.broker.executor.devices.cuda import CudaDevice
from jgpu.broker.executor.programs import KINDS
from jgpu.broker.executor.programs.checking.guards import IndexGuard
from jgpu.broker.executor.programs.checking.proofs import PROVABLE_BYTES, Proof, Proofs
from jgpu.broker.executor.works.transfers import UploadWork
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire import messages as m
from jgpu.wire.program import Geometry, Op, Out, Slot

ROWS = 4


def shifted():
    """i += j, in place"""
    places = vector(ROWS, "int64")
    add = Op("aten::add_.Tensor", (Slot(0, 0), Slot(1, 0)), {}, (Out(-1, 0),))
    return program(2, [add], [places])


def shifted_and_picked():
    """i += j, in place; b = a[i]"""
    ops = [
        Op("aten::add_.Tensor", (Slot(1, 1), Slot(2, 1)), {}, (Out(-1, 0),)),
        Op("aten::index_select.default", (Slot(0, 0), 0, Slot(1, 1)), {}, (Out(3, 0),)),
    ]
    return program(3, ops, [vector(ROWS), vector(ROWS, "int64")])


def every_second():
    """b = a[i[::2]]"""
    half, slices = vector(2), Geometry("int64", (2,), (2,))
    pick = Op("aten::index_select.default", (Slot(0, 0), 0, Slot(1, 1)), {}, (Out(2, 2),))
    return program(2, [pick], [vector(ROWS), slices, half])


class Session(Bench):
    """A session on the device whose uploads are works, too."""

    def upload(self, values, buffer=None, offset=0, size=None, kind="q"):
        data = pack(f"{len(values)}{kind}", *values)
        if buffer is None:
            self.buffers += 1
            buffer = self.buffers
        self.works += 1
        size = len(data) if size is None else size
        message = m.Upload(self.works, buffer, size, offset, data=data)
        self.launch(UploadWork(self.session, message))
        return buffer

    def looks(self):
        return len(self.session.faults.notes.taken)

    def now(self, buffer):
        return self.session.table.buffers[buffer].bytes().view(torch.int64).tolist()


def opened():
    device = CudaDevice(ExecutorSettings(device="cuda", lanes=2), Calls())
    for lane in range(2):
        device.open_lane(lane)
    return Session(device)


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setitem(KINDS, "cpu", replace(KINDS["cpu"], trusts_values=True))
    made = opened()
    yield made
    made.device.close()


def test_an_uploaded_index_within_its_bounds_is_not_looked_at_in_any_run(session):
    table = session.put(1, 2, 3, 4)
    index = session.upload([3, 0, 1, 2])
    for _ in range(4):  # the third one is compiled
        made = session.run(bad_index(), [table, index])
    assert session.looks() == 0
    assert session.session.table.buffers[made].base.tolist() == [4, 1, 2, 3]


def test_one_that_is_wrong_is_looked_at_and_noted(session):
    table = session.put(1, 2, 3, 4)
    session.run(bad_index(), [table, session.upload([3, 0, 4, 2])])
    assert session.looks() == 1


def test_what_came_otherwise_than_as_one_small_upload_is_looked_at(session):
    table = session.put(1, 2, 3, 4)
    session.run(bad_index(), [table, session.put(0, 1, 2, 3, dtype=torch.int64)])
    assert session.looks() == 1
    pieces = session.upload([0, 1], size=8 * ROWS)
    session.upload([2, 3], pieces, offset=16, size=8 * ROWS)
    session.run(bad_index(), [table, pieces])
    assert session.looks() == 2
    again = session.upload([0, 1, 2, 3])
    session.upload([3, 2, 1, 0], again)
    session.run(bad_index(), [table, again])
    assert session.looks() == 3
    large = Proofs()
    assert large.of(bytes(PROVABLE_BYTES + 1)) is None
    assert large.of(bytes(PROVABLE_BYTES)) is not None


def test_what_a_program_has_written_since_is_looked_at(session):
    table, ones = session.put(1, 2, 3, 4), session.put(1, 1, 1, 1, dtype=torch.int64)
    index = session.upload([0, 1, 2, 3])
    session.run(bad_index(), [table, index])
    assert session.looks() == 0
    session.run(shifted(), [index, ones])
    session.run(bad_index(), [table, index])
    assert session.looks() == 1
    session.run(shifted_and_picked(), [table, session.upload([0, 0, 0, 0]), ones])
    assert session.looks() == 2


def test_an_index_that_does_not_lie_row_by_row_is_looked_at(session):
    table = session.put(1, 2, 3, 4)
    session.run(every_second(), [table, session.upload([0, 1, 2, 3])])
    assert session.looks() == 1


def test_memory_that_was_away_is_looked_at(session):
    table, index = session.put(1, 2, 3, 4), session.upload([0, 1, 2, 3])
    buffer = session.session.table.buffers[index]
    buffer.restore(buffer.release())
    session.run(bad_index(), [table, index])
    assert session.looks() == 1


def test_ignored_values_count_as_right_and_types_as_they_are_read():
    guard = IndexGuard("target", 0, 5, ignored=-100)
    assert Proof(pack("4q", 0, -100, 4, 1)).holds(torch.int64, guard)
    assert not Proof(pack("4q", 0, -101, 4, 1)).holds(torch.int64, guard)
    assert not Proof(pack("4q", 0, -100, 5, 1)).holds(torch.int64, guard)
    assert Proof(pack("4i", 0, -100, 4, 1)).holds(torch.int32, guard)
    assert not Proof(pack("4i", 0, -100, 4, 1)).holds(torch.int64, guard)
    assert not Proof(pack("4q", 0, 1, 2, 3)).holds(torch.float32, guard)


def test_the_bytes_of_few_uploads_are_kept_and_what_was_found_out_stays():
    proofs, guard = Proofs(), IndexGuard("index", 0, 4)
    first, second = proofs.of(pack("q", 1)), proofs.of(pack("q", 1))
    assert first.holds(torch.int64, guard)
    for _ in range(32):
        proofs.of(pack("q", 1))
    assert first.holds(torch.int64, guard)
    assert not second.holds(torch.int64, guard)
    many = Proof(pack("q", 1))
    assert [many.holds(torch.int64, IndexGuard("index", 0, 4 + k)) for k in range(9)] == [
        *[True] * 8,
        False,
    ]


class ProofMachine(RuleBasedStateMachine):
    """Uploads, writes and picks in any order: what is not looked at is right, as it is now."""

    values = st.lists(st.sampled_from([0, 1, 2, 3, 3, 3, 4]), min_size=ROWS, max_size=ROWS)

    def __init__(self):
        super().__init__()
        self._before = KINDS["cpu"]
        KINDS["cpu"] = replace(self._before, trusts_values=True)
        self.session = opened()
        self.indices = []

    def teardown(self):
        self.session.device.close()
        KINDS["cpu"] = self._before

    @initialize()
    def begin(self):
        self.table = self.session.put(1, 2, 3, 4)
        self.ones = self.session.put(1, 1, 1, 1, dtype=torch.int64)
        self.minus = self.session.put(-1, -1, -1, -1, dtype=torch.int64)

    @rule(values=values)
    def upload(self, values):
        self.indices = [*self.indices[-1:], self.session.upload(values)]

    @precondition(lambda self: self.indices)
    @rule(data=st.data(), values=values)
    def overwrite(self, data, values):
        self.session.upload(values, data.draw(st.sampled_from(self.indices)))

    @precondition(lambda self: self.indices)
    @rule(data=st.data(), value=st.integers(-1, 4), place=st.integers(0, ROWS - 1))
    def overwrite_in_part(self, data, value, place):
        index = data.draw(st.sampled_from(self.indices))
        self.session.upload([value], index, offset=8 * place, size=8 * ROWS)

    @precondition(lambda self: self.indices)
    @rule(data=st.data(), up=st.booleans())
    def shift(self, data, up):
        index = data.draw(st.sampled_from(self.indices))
        self.session.run(shifted(), [index, self.ones if up else self.minus])

    @precondition(lambda self: self.indices)
    @rule(data=st.data(), both=st.booleans())
    def pick(self, data, both):
        session, index = self.session, data.draw(st.sampled_from(self.indices))
        looks = session.looks()
        if both:
            session.run(shifted_and_picked(), [self.table, index, self.ones])
        else:
            session.run(bad_index(), [self.table, index])
        assert session.looks() <= looks + 1
        if session.looks() == looks:
            assert all(0 <= value < ROWS for value in session.now(index))

    @precondition(lambda self: self.session.works % 5 == 4)
    @rule()
    def wait(self):
        self.session.sync()
        self.session.device._calls.advance_all()
        self.session.finish()
        self.session.session.faults.notes.forget()
        poisoned = self.session.session.table.buffers
        self.indices = [each for each in self.indices if poisoned[each].poison is None]


TestProofs = ProofMachine.TestCase
TestProofs.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
