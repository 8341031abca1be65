"""Allocations that fail though memory was counted on: others make room, and the work goes on."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from client import Executor, program, scale

from jgpu.broker.executor.scheduling.standing import LaneStanding
from jgpu.broker.executor.scheduling.stuck.shortage import Shortage
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.course import Course
from jgpu.broker.executor.works.queue import WorkQueue
from jgpu.broker.executor.works.states import LaneProgress
from jgpu.wire import messages as m
from jgpu.wire.program import Geometry, Op, Out, Slot

MIB = 1 << 20
SIDE = 1024


@pytest.fixture
def short():
    script = Path(__file__).with_name("short_executor.py")
    options = {"capacity": 64 * MIB, "host_pool": 64 * MIB}
    with Executor("cpu", program=[str(script)], lanes=1, threads=1, **options) as executor:
        yield executor


def doubled_around_a_table():
    """a += a; c = a * b, a table of 4 MiB; a += a."""
    geometries = [
        Geometry("float32", (SIDE, 1), (1, 1)),
        Geometry("float32", (1, SIDE), (SIDE, 1)),
        Geometry("float32", (SIDE, SIDE), (SIDE, 1)),
    ]
    twice = Op("aten::add_.Tensor", (Slot(0, 0), Slot(0, 0)), {}, (Out(-1, 0),))
    table = Op("aten::mul.Tensor", (Slot(0, 0), Slot(1, 1)), {}, (Out(2, 2),))
    return program(2, [twice, table, twice], geometries)


def vectors(client):
    """Two vectors on the device, and what is in them."""
    a, b = (torch.arange(1.0, SIDE + 1) + number for number in (0, 7))
    return a, b, [client.upload(each.numpy().tobytes()) for each in (a, b)]


def read(client, buffer, count):
    """Floats of a buffer, piece by piece."""
    piece = 8 << 10
    data = b"".join(
        client.download(buffer, 4 * min(piece, count - at), 4 * at) for at in range(0, count, piece)
    )
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


def test_a_work_that_is_short_in_its_midst_goes_on_at_its_op_when_others_made_room(short):
    resting, busy = short.connect("user1"), short.connect("user2")
    noise = random.Random(1).randbytes(3 * MIB)
    kept = resting.upload(noise)
    resting.sync()
    a, b, inputs = vectors(busy)
    table = busy.run(doubled_around_a_table(), inputs, ends_iteration=True)
    # Sent at once: it is behind the one that has to wait, and runs after it.
    thrice = busy.run(scale(SIDE), inputs[:1], (3.0,), ends_iteration=True)
    assert torch.equal(read(busy, thrice, SIDE), 12 * a)
    assert torch.equal(read(busy, table, SIDE * SIDE).view(SIDE, SIDE), torch.outer(2 * a, b))
    assert not busy.failures
    pieces = range(0, 3 * MIB, 32 << 10)
    assert b"".join(resting.download(kept, 32 << 10, at) for at in pieces) == noise
    assert not resting.failures
    busy.send(m.Free((table,)))
    large = random.Random(2).randbytes(4 * MIB)
    assert read(busy, busy.upload(large), MIB).numpy().tobytes() == large
    assert not busy.failures


def test_what_nobody_can_make_room_for_fails_at_its_op_and_the_rest_goes_on(short):
    client = short.connect()
    a, _, inputs = vectors(client)
    table = client.run(doubled_around_a_table(), inputs, ends_iteration=True)
    thrice = client.run(scale(SIDE), inputs[:1], (3.0,), ends_iteration=True)
    assert torch.equal(read(client, thrice, SIDE), 12 * a)
    (failure,) = client.failures
    assert (failure.error, failure.op, failure.buffers) == ("OutOfMemoryError", 1, (table,))
    assert "injected: no room for 4194304 bytes" in failure.text
    client.failures.clear()
    refused = client.upload(bytes(4 * MIB))
    client.sync()
    assert [(each.error, each.buffers) for each in client.failures] == [
        ("OutOfMemoryError", (refused,))
    ]
    assert short.report().sessions[0].ephemeral_bytes == 3 * 4 * SIDE


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param(
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "OutOfMemoryError", marks=pytest.mark.slow,
        ),
        ("CUDA error: out of memory", "OutOfMemoryError"),
        ("GET was unable to find an engine to execute this computation", "RuntimeError"),
    ],
)  # fmt: skip
def test_a_library_that_finds_no_memory_waits_for_it_as_torch_does(
    monkeypatch, request, words, error
):
    monkeypatch.setenv("JGPU_TEST_SHORT", words)
    short = request.getfixturevalue("short")
    resting, busy = short.connect("user1"), short.connect("user2")
    resting.upload(random.Random(1).randbytes(3 * MIB))
    resting.sync()
    a, b, inputs = vectors(busy)
    table = busy.run(doubled_around_a_table(), inputs, ends_iteration=True)
    assert torch.equal(read(busy, table, SIDE * SIDE).view(SIDE, SIDE), torch.outer(2 * a, b))
    assert not busy.failures
    alone = busy.run(doubled_around_a_table(), inputs, ends_iteration=True)
    busy.sync()
    (failure,) = busy.failures  # nobody has more to give: now it is the op's
    assert (failure.error, failure.op, failure.buffers) == (error, 1, (alone,))
    assert words in failure.text


class Launches:
    """The ground that `Shortage` stands on, played by hand."""

    def __init__(self):
        self.asked, self.launched, self.copies = [], [], False
        self.shortage = Shortage(
            lambda session, nbytes: self.asked.append((session.number, nbytes)),
            lambda: self.copies,
            lambda lane, works: self.launched.append((lane, works)),
        )

    def works(self, count, number=1):
        session = SimpleNamespace(
            number=number,
            queue=WorkQueue(),
            standing=LaneStanding(lane=3),
            course=Course(),
            stops=False,
        )
        works = [Work(session, at, ends_iteration=False) for at in range(count)]
        for work in works:
            session.queue.launch(work)
            work.progress, work.measured_s = LaneProgress.PUT_OFF, 0.5
        works[0].lacking, works[0].progress = 100, LaneProgress.HALTED
        session.course.halted = works[0]
        return session, works


def test_works_are_launched_again_together_when_all_are_back_and_nothing_is_copied():
    ground = Launches()
    ground.copies = True
    session, works = ground.works(2)
    ground.shortage.comes_back(works[0])
    assert ground.asked == [(1, 100)]
    ground.copies = False
    ground.shortage.retry([session])
    assert ground.launched == []
    ground.shortage.comes_back(works[1])
    assert ground.launched == [(3, works)]
    assert session.course.halted is None
    assert [(w.lacking, w.progress, w.last_try, w.earlier_s) for w in works] == [
        (0, LaneProgress.DUE, False, 0.5)
    ] * 2
    ground.shortage.retry([session])
    assert len(ground.launched) == 1


def test_a_work_that_nobody_makes_room_for_is_tried_for_the_last_time():
    ground = Launches()
    _, works = ground.works(1)
    ground.shortage.comes_back(works[0])
    assert works[0].last_try
    assert ground.launched == [(3, works)]


def test_the_works_of_a_session_that_ended_or_was_interrupted_wait_for_nothing():
    ground = Launches()
    ground.copies = True
    session, works = ground.works(1)
    ground.shortage.comes_back(works[0])
    ground.shortage.retry([session])
    assert ground.launched == []
    session.stops = True
    ground.shortage.retry([session])
    assert ground.launched == [(3, works)]
