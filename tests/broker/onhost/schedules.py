"""Random schedules of works over the `cuda` device computed on the host, beside what is right.

Sessions own buffers; a work of theirs, in whatever lane, reads some, writes some, makes one, drops
some, uploads and downloads. Between works a session whose works are over is spilled and restored.
Every byte that comes back is compared with the same sums done at once on the host.
"""

from dataclasses import dataclass, field
from random import Random
from struct import pack

import torch

from jgpu.broker.executor.devices.cuda import CudaDevice
from jgpu.broker.executor.devices.onhost.calls import HostCalls
from jgpu.broker.executor.programs import Buffer
from jgpu.broker.settings import ExecutorSettings

LANES = 4
SESSIONS = 5
SIDE = 6
NBYTES = SIDE * SIDE * 4


class Wrong(AssertionError):
    """A byte came back that is not right, or a work failed."""


@dataclass(eq=False)
class Held:
    """A session's buffer, and what it holds by rights."""

    buffer: Buffer
    right: torch.Tensor

    def matrix(self):
        return self.buffer.bytes().view(torch.float32).view(SIDE, SIDE)


@dataclass(eq=False)
class Owner:
    """A session."""

    held: list[Held] = field(default_factory=list)
    flying: int = 0
    #: of its last work
    lane: int | None = None


class Work:
    """One job of a session."""

    measured_s = 0.0
    over_ns = 0

    def __init__(self, owner, number, dice, arena):
        self.owner, self.number = owner, number
        self.reads = dice.sample(owner.held, min(len(owner.held), dice.randrange(3)))
        self.writes = dice.sample(owner.held, min(len(owner.held), dice.randrange(2)))
        spare = [each for each in owner.held if each not in self.writes]
        many = max(0, len(spare) - 3)
        self.drops = dice.sample(spare, min(many, dice.randrange(3)))
        self.value = dice.randrange(-3, 4) / 2
        self.arena = arena
        self.error = None
        self.told = None
        self.right = None

    def known_s(self):
        return 0.0

    def launch(self, port):
        used = [each.buffer for each in (*self.reads, *self.writes)]
        port.use(used)
        if self.arena is not None:
            made = Buffer.allocate(self.number, NBYTES, torch.device("meta"))
            port.made([made])
            port.write(made.bytes(), self.arena)
            right = torch.frombuffer(bytearray(self.arena), dtype=torch.float32)
            right = right.view(SIDE, SIDE).clone()
        else:
            sums, right = torch.full((SIDE, SIDE), self.value, device="meta"), None
            right = torch.full((SIDE, SIDE), self.value)
            for each in self.reads:
                sums = sums @ each.matrix().clamp(-2, 2) + each.matrix()
                right = right @ each.right.clamp(-2, 2) + each.right
            made = Buffer(self.number, sums)
            port.made([made])
        held = Held(made, right)
        for each in self.writes:
            each.matrix().mul_(0.5).add_(held.matrix().clamp(-1, 1))
            each.right.mul_(0.5).add_(right.clamp(-1, 1))
        gone = [each.buffer for each in self.drops]
        if port.owns(gone):  # on the way, as programs do; and others are made behind them
            for each in gone:
                each.release()
            held.matrix().add_(torch.ones(SIDE, SIDE, device="meta"))
            held.right.add_(1.0)
        self.told, shown = bytearray(NBYTES), (self.writes or [held])[0]
        self.right = bytes(memoryview(shown.right.contiguous().view(-1).numpy()).cast("B"))
        port.read(shown.buffer, 0, memoryview(self.told))
        port.retire(gone)
        self.owner.held = [each for each in self.owner.held if each not in self.drops]
        self.owner.held.append(held)

    def finish(self):
        self.owner.flying -= 1
        if self.arena is not None:
            self.arena[:] = bytes(len(self.arena))  # acknowledged: the client writes there again
        if bytes(self.told) != self.right:
            raise Wrong(f"work {self.number} read something else")

    def broke(self, error):
        self.error = error


class Schedule:
    """A device under random works; `run` raises `Wrong` where a byte is."""

    def __init__(self, seed, lanes=LANES):
        self.dice = Random(seed)
        self.calls = HostCalls(seed, total=1 << 30, pins=bool(seed % 2))
        settings = ExecutorSettings(device="cuda-on-host", lanes=lanes, capacity=1 << 20)
        self.device = CudaDevice(settings, self.calls)
        for lane in range(lanes):
            self.device.open_lane(lane)
        self.lanes = lanes
        self.owners = [Owner() for _ in range(SESSIONS)]
        self.arenas = [bytearray(NBYTES * 4) for _ in self.owners]
        for arena in self.arenas:
            self.device.pin(memoryview(arena))
        self.numbers = iter(range(1, 1 << 30))
        #: what it did: works, those on another lane than their session's last, buffers that were
        #: dropped, buffers that were away, and results that were compared
        self.works = self.moved = self.dropped = self.spilled = self.compared = 0

    def run(self, steps=40):
        try:
            for _ in range(steps):
                self._step()
            while self.device.poll_interval_s() is not None:
                self._land()
        finally:
            self.device.close()

    def _step(self):
        owner = self.dice.choice(self.owners)
        what = self.dice.random()
        if what < 0.7:
            self._work(owner)
        elif what < 0.85:
            self._land()
        elif not owner.flying and owner.held:
            self._away_and_back(owner)

    def _work(self, owner):
        arena = None
        if self.dice.random() < 0.3:
            place = self.arenas[self.owners.index(owner)]
            at = self.dice.randrange(4) * NBYTES
            if not any(place[at : at + NBYTES]):
                numbers = [self.dice.randrange(-8, 9) / 4 for _ in range(SIDE * SIDE)]
                arena = memoryview(place)[at : at + NBYTES]
                arena[:] = pack(f"{SIDE * SIDE}f", *(each or 0.25 for each in numbers))
        work = Work(owner, next(self.numbers), self.dice, arena)
        owner.flying += 1
        lane = self.dice.randrange(self.lanes)
        self.works += 1
        self.moved += owner.lane not in (None, lane)
        self.dropped += len(work.drops)
        owner.lane = lane
        self.device.submit(lane, [work])
        self._check(work)

    def _land(self):
        for _, work in self.device.completions():
            self._check(work)
            self.compared += 1

    def _check(self, work):
        if work.error is not None:
            raise Wrong(repr(work.error)) from work.error

    def _away_and_back(self, owner):
        """Spill a session's buffers, others work meanwhile, and restore them."""
        device = self.device
        buffers = [each.buffer for each in owner.held]
        device.leaving(buffers)
        self.spilled += len(buffers)
        saved = []
        for buffer in buffers:
            host = device.host_bytes(buffer.nbytes)
            device.copy_out(buffer, 0, host)
            saved.append(host)
        device.discard(buffers)
        for other in self.dice.sample(self.owners, 2):
            if other is not owner:
                self._work(other)
        for buffer, host in zip(buffers, saved, strict=True):
            device.make_room(buffer)
            device.copy_in(buffer, 0, host)
        device.arrived(buffers)
