"""What a known step costs an executor, in calls; in a process of its own, without a seat.

    python replaying.py calls '{"file": "messages", "steps": 50}'

Messages of a session (`sending.py`) are given to a pump in this process, step by step. Counted are
calls of Python functions and of functions in C, those of the compiled programs (the kernels, and
what looks at their results) apart: unlike times they are the same at each run and on each host.
Told is the median of the last steps, for now and then one has something else to do. A step ends
with an iteration, or with a download. Prints one line of JSON.
"""

import gc
import json
import socket
import statistics
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch

from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.devices import cpu, make_device
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.pump import Pump
from jgpu.broker.executor.session import ExecutorSession, SessionOwner
from jgpu.broker.flightpage import FlightPage
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire import limits, messages
from jgpu.wire.arena import Arena
from jgpu.wire.framing import FrameWriter

CAPACITY = 1 << 30
DECODER = msgspec.msgpack.Decoder(messages.ClientMessage)


class Counts:
    """Calls since the last look: Python's and C's, and of these the compiled programs'."""

    def __init__(self) -> None:
        self.calls = [0, 0, 0, 0]
        self._inside = 0

    def note(self, frame: FrameType, event: str, arg: object) -> None:
        """As `sys.setprofile` wants it."""
        if event in ("call", "c_call"):
            kind = int(event == "c_call")
            self.calls[kind] += 1
            self.calls[2 + kind] += self._inside > 0
        if frame.f_code.co_filename == "<program>" and event in ("call", "return"):
            self._inside += 1 if event == "call" else -1

    def taken(self) -> list[int]:
        """What was counted."""
        calls, self.calls = self.calls, [0, 0, 0, 0]
        calls[0] -= 1  # of `Replay.work`
        calls[1] -= 1  # of `sys.setprofile`
        return calls


class Replay:
    """A pump with one session, whose client is this."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        # Everything that is known is done by the pump: on another thread nothing is counted.
        cpu._BRIEF_S = cpu._BRIEF_ALONE_S = 1.0  # type: ignore[misc]
        settings = ExecutorSettings(device="cpu", lanes=1, threads=1, capacity=CAPACITY)
        device = make_device(settings, None)
        self._pump = Pump(device, settings, page=FlightPage.create())
        self._ours, theirs = socket.socketpair()
        connection: Connection[messages.ClientMessage] = Connection(theirs, messages.ClientMessage)
        self._session = ExecutorSession(
            number=1,
            owner=SessionOwner("user"),
            connection=connection,
            arena=Arena.create(limits.ARENA_BYTES),
            account=Account("user", device.facts.capacity),
            device=device,
        )
        self._pump.adopt(self._session, 0)

    def send(self, frames: bytes) -> None:
        """Send these."""
        self._ours.setblocking(True)
        self._ours.sendall(frames)

    def work(self) -> None:
        """Have the pump deal with what was sent."""
        self._pump.turn(1.0)
        session = self._session
        while session.queue.outstanding or session.connection.inbox is not None:
            self._pump.turn(1.0)

    def drain(self) -> None:
        """Read what the executor said."""
        self._ours.setblocking(False)
        try:
            while self._ours.recv(1 << 20):
                pass
        except BlockingIOError:
            pass


def steps_of(payloads: list[bytes]) -> list[bytes]:
    """The frames of each step, numbered anew; what is behind the last whole one is left out."""
    writer = FrameWriter()
    found, frames = [], []
    for message in map(DECODER.decode, payloads):
        frames.append(writer.encode(message, 0))
        if isinstance(message, messages.Download) or getattr(message, "ends_iteration", False):
            found.append(b"".join(frames))
            frames = []
    return found


def calls(file: str, steps: int) -> dict[str, int]:
    """Calls of a step that was done many times before."""
    payloads = msgspec.msgpack.decode(Path(file).read_bytes(), type=list[bytes])
    whole = steps_of(payloads)
    replay, counts, rows = Replay(), Counts(), []
    gc.disable()
    for k, frames in enumerate(whole):
        replay.send(frames)
        if k < len(whole) - steps:
            replay.work()
        else:
            sys.setprofile(counts.note)
            replay.work()
            sys.setprofile(None)
            rows.append(counts.taken())
        replay.drain()
    names = ("python", "c", "python_of_programs", "c_of_programs")
    return dict(zip(names, map(statistics.median_low, zip(*rows, strict=True)), strict=True))


if __name__ == "__main__":
    result: dict[str, Any] = globals()[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(result), flush=True)
