"""`jgpu simulate class` against a class that runs: the same students on a broker's null device.

Each student is a client at the level of the wire, who thinks and runs cells as the simulated one
does, so that what differs is the scheduler's surroundings. By hand: the figure goes to
`bench/results`.
"""

import contextlib
import fcntl
import os
import socket
import statistics
import threading
import time
from argparse import Namespace
from dataclasses import replace

import pytest
from host import Host
from results import write_result

from jgpu.sched.simulate.results import percentile
from jgpu.simulate import students
from jgpu.wire import limits
from jgpu.wire import messages as m
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.program import Geometry, Op, Out, Program, Slot, View, encode_program, program_hash
from jgpu.wire.runtime import runtime_of

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(400)]

CLASS = Namespace(
    students=8, cells=4, iterations=60, think_s=6.0, arrive_s=3.0, spread=0.3, seed=1,
    arrivals="uniform", host_ms=0.0, iteration_ms=0.0, model_bytes=0, kept_bytes=0,
    transient_bytes=0, gpu_memory=1 << 30, lanes=1, load=1.0, link_bytes=1 << 30, grading=0,
)  # fmt: skip
#: ops of an iteration, which the null device takes a while to go through
OPS = 300
#: iterations that a client is ahead, as the simulated one is
AHEAD = 4
DEADLINE_S = 60.0
#: a whole class, on a machine that has much else to do
CLASS_S = 380.0
ARENA = 1 << 16


def lesson():
    """A chain of additions."""
    vector = Geometry("float32", (4,), (1,))
    ops = [
        Op("aten::add.Tensor", (Slot(k, 0), Slot(k, 0)), {}, (Out(k + 1, 0),)) for k in range(OPS)
    ]
    return Program(1, (), (vector,), (View(0),), tuple(ops))


class Connected:
    """A session at the broker, by its messages."""

    def __init__(self, path, user, runtime):
        self._stream = socket.socket(socket.AF_UNIX)
        self._stream.settimeout(DEADLINE_S)
        self._stream.connect(str(path))
        arena = os.memfd_create("arena", os.MFD_ALLOW_SEALING)
        os.ftruncate(arena, ARENA)
        fcntl.fcntl(arena, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        hello = m.Hello(limits.PROTOCOL, runtime, os.getpid(), user=user, arena=ARENA)
        socket.send_fds(self._stream, [FrameWriter().encode(hello, 0)], [arena])
        os.close(arena)
        self._reader, self._writer = FrameReader(m.ControlReply | m.ExecutorMessage), FrameWriter()
        self._inbox = []
        self.wait(m.Welcome)
        self.wait(m.Ready)

    def send(self, *messages):
        """Send these, in one go."""
        frames = [self._writer.encode(message, self._reader.seen) for message in messages]
        self._stream.sendall(b"".join(frames))

    def wait(self, kind):
        """The next message of this kind; a failure is one."""
        while True:
            while self._inbox:
                message = self._inbox.pop(0)
                assert not isinstance(message, m.Failed | m.Refused), message
                if isinstance(message, kind):
                    return message
            for message in self._reader.feed(self._stream.recv(1 << 16)):
                self._inbox.append(message)
                if isinstance(message, m.Welcome):
                    self._reader.reset_numbers()  # an executor speaks from here
            self._writer.check_acknowledged(self._reader.peer_seen)

    def close(self):
        """End the session."""
        self._stream.close()


class Student(threading.Thread):
    """Runs a job's cells; how long each took."""

    def __init__(self, host, job, runtime, begin):
        super().__init__()
        self.job, self._begin, self._works, self._requests = job, begin, 0, 0
        self.failed = None
        self.took_s = []
        self._client = Connected(host.address.path, job.user, runtime)
        program = encode_program(lesson())
        self._hash = program_hash(program)
        self._client.send(m.Define(program), m.Upload(self._work(), 1, 16, data=bytes(16)))
        self._live = bytes((OPS + 7) // 8)

    def _work(self):
        self._works += 1
        return self._works

    def run(self):
        try:
            self._cells()
        except BaseException as error:  # told in the test's thread
            self.failed = error

    def _cells(self):
        self._begin.wait(CLASS_S)
        time.sleep(self.job.arrival_s)
        for cell in self.job.cells:
            time.sleep(cell.think_s)
            began = time.monotonic()
            self._client.send(m.CellStarted())
            for number in range(cell.iterations):
                self._iterate()
                if number >= AHEAD - 1:
                    self._client.wait(m.Synced)
            for _ in range(min(AHEAD - 1, cell.iterations)):
                self._client.wait(m.Synced)
            self._client.send(m.CellEnded())
            self.took_s.append(time.monotonic() - began)

    def _iterate(self):
        self._requests += 1
        first = 2 + self._requests * (OPS + 1)
        run = m.Run(self._work(), self._hash, (1,), first, self._live, ends_iteration=True)
        self._client.send(run, m.Sync(self._work(), self._requests))

    def close(self):
        self._client.close()


def attend(host, jobs):
    """Let these students work through their cells; how long each cell took."""
    import torch

    begin, runtime = threading.Event(), runtime_of(torch)
    there = [Student(host, job, runtime, begin) for job in jobs]
    for student in there:
        student.start()
    begin.set()
    for student in there:
        student.join(CLASS_S)
        student.close()
    assert [student.failed for student in there] == [None] * len(there)
    return [took_s for student in there for took_s in student.took_s]


def alone(host):
    """What an iteration takes a student who has the device for themselves, in seconds.

    From one's start to the next one's: on the null device an executor does more for an iteration
    beside its lanes than within.
    """
    (job,) = students.class_of(Namespace(**vars(CLASS) | {"iteration_ms": 1.0, "students": 1}))
    cell = replace(job.cells[0], think_s=0.0, iterations=CLASS.iterations)
    took_s = attend(host, [replace(job, arrival_s=0.0, cells=(cell,) * 4)])
    return statistics.median(took_s) / CLASS.iterations


@pytest.fixture
def host(tmp_path):
    with contextlib.closing(Host(tmp_path, "null", "--lanes", "1")) as made:
        yield made.start()


def test_a_class_takes_as_long_as_it_is_simulated_to(host):
    before_s = alone(host)
    live = attend(host, students.class_of(Namespace(**vars(CLASS) | {"iteration_ms": 1.0})))
    after_s = alone(host)
    iteration_s = (before_s + after_s) / 2
    options = Namespace(**vars(CLASS) | {"iteration_ms": 1000 * iteration_s})
    run = students.run(students.class_of(options), "fair", options)
    simulated = [cell.took_s for cell in run.cells]
    figures = {
        "students": CLASS.students,
        "cells": len(live),
        "iteration_ms_before": 1000 * before_s,
        "iteration_ms_after": 1000 * after_s,
        "cell_alone_s": CLASS.iterations * iteration_s,
        "live": told(live),
        "simulated": told(simulated),
    }
    off = {name: figures["simulated"][name] / took - 1 for name, took in told(live).items()}
    figures["off_percent"] = {name: round(100 * part, 1) for name, part in off.items()}
    write_result("class-as-simulated", figures, device="null")
    assert len(live) == len(simulated) == CLASS.students * CLASS.cells
    assert abs(off["mean_s"]) < 0.25


def told(took):
    """What a teaching assistant would be told of cells that took so long."""
    return {
        "mean_s": statistics.fmean(took),
        "median_s": percentile(took, 50),
        "p95_s": percentile(took, 95),
    }
