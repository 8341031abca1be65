"""What works are told to need: bytes made since the last boundary, none of them counted twice."""

from types import SimpleNamespace

from client import scale

from jgpu.broker.executor.memory.table import BufferTable
from jgpu.broker.executor.programs import define
from jgpu.broker.executor.scheduling.forecast import Forecast
from jgpu.broker.executor.works.runs import RunWork
from jgpu.broker.executor.works.transfers import UploadWork
from jgpu.wire import messages as m
from jgpu.wire.program import encode_program

MIB = 1 << 20


def upload(number, nbytes):
    session = SimpleNamespace(account=SimpleNamespace(capacity=1 << 30))
    return UploadWork(session, m.Upload(number, number, nbytes, 0, data=b""))


def test_bytes_that_an_iteration_made_are_claimed_by_its_later_works():
    forecast = Forecast(1 << 30)
    assert forecast.live_bytes(upload(1, MIB)) == MIB
    assert forecast.live_bytes(upload(2, MIB)) == 2 * MIB


def test_what_an_iteration_left_is_claimed_no_more_when_its_end_is_told_late():
    forecast = Forecast(1 << 30)
    forecast.live_bytes(upload(1, MIB))
    forecast.boundary()
    assert forecast.live_bytes(upload(2, MIB)) == MIB


def test_a_work_tells_what_goes_before_it_runs():
    run = RunWork(None, m.Run(1, bytes(32), (), 9, b"", free=(3, 4)))
    run.before = [m.Free((1, 3)), m.Tag((2,), m.RESIDENT)]
    assert run.frees() == {1, 3, 4}
    made = upload(2, MIB)
    assert made.frees() == set()
    made.before = [m.Free((5,))]
    assert made.frees() == {5}


def test_what_runs_needed_beyond_their_claims_is_an_estimate_and_no_claim():
    forecast, definition = Forecast(1 << 30), define(encode_program(scale(MIB)), "cpu")
    definition.surplus_bytes = 5 * MIB
    session = SimpleNamespace(account=SimpleNamespace(capacity=1 << 30))
    run = RunWork(session, m.Run(1, bytes(32), (1,), 2, b"\x01", ends_iteration=True))
    run.definition = definition
    assert forecast.live_bytes(run) == run.transient == 4 * MIB
    assert forecast.measured(BufferTable(), at_rest=True) == (0, 0, 9 * MIB, 0, 0)
