"""A device and its notebooks in virtual time, for the tests of `jgpu.sched`.

The device carries out the core's actions as an executor would: it launches in order, runs each
lane's segments one after the other and tells the core what finished; it checks on the way that
nothing is lost, doubled, reordered or told under a wrong lease. Every event is followed by
`Core.validate()`.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from jgpu.sched import (
    CloseLane,
    Core,
    LaneRetired,
    LanesConfigured,
    MemoryMeasured,
    MemoryPart,
    MoveLane,
    OpenLane,
    ResizeLane,
    Restore,
    Segment,
    SegmentsFinished,
    SessionIdle,
    SessionOpened,
    SessionRestored,
    SessionSpilled,
    Spill,
    Start,
    Wait,
    WorkArrived,
)


@dataclass
class Sent:
    """A work as the client sent it."""

    session: int
    seconds: tuple[float, ...]
    started: int = 0
    finished: int = 0
    cancelled: bool = False


@dataclass(eq=False)
class Running:
    """Segments of one start that have not finished."""

    start: Start
    left: int


@dataclass
class Held:
    """What a session has, in bytes: on the device, and on the host."""

    resident: int = 0
    kept: int = 0
    transient: int = 0
    #: of what is kept
    stale: int = 0
    #: on the host: what comes back by itself, and what does only when it is named
    away_resident: int = 0
    away_kept: int = 0
    aside: int = 0

    @property
    def spilled(self) -> int:
        """Bytes that must come back."""
        return self.away_resident + self.away_kept

    def spill(self, part: MemoryPart) -> None:
        """Copy to the host."""
        if part is not MemoryPart.STALE:
            self.away_kept += self.kept - self.stale
            self.kept = self.stale
        self.aside += self.stale
        self.kept -= self.stale
        self.stale = 0
        if part is MemoryPart.ALL:
            self.away_resident += self.resident
            self.resident = 0

    def restore(self) -> None:
        """Copy back."""
        self.resident += self.away_resident
        self.kept += self.away_kept
        self.away_resident = self.away_kept = 0


class Device:
    """Carries out actions and keeps the books that the core's are compared with."""

    def __init__(self, core: Core | None = None, *, validate: bool = True) -> None:
        self.core = core or Core()
        self.validate = validate
        self.now = 0.0
        self.works: dict[int, Sent] = {}
        #: works of each session that have not wholly started, oldest first
        self.queues: dict[int, deque[int]] = {}
        self.lanes: dict[int, deque[Running]] = {}
        self.capacity: dict[int, int] = {}
        self.lane_of: dict[int, int] = {}
        self.busy_s = 0.0
        self.used_s: dict[int, float] = {}
        self.started: list[Start] = []
        self.actions: list[object] = []
        self.waits: list[Wait] = []
        self.memory: dict[int, Held] = {}
        #: copies between the device and the host that were asked for and are not over
        self.copying: dict[int, Spill | Restore] = {}
        self._ids = count(1)
        #: works of which the core said beforehand where they would start, and did
        self.promises = 0

    def tell(self, event: object) -> list[object]:
        """Tell the core of an event now, and do what it asks for."""
        actions = self.core.handle(event, self.now)
        if self.validate:
            self.core.validate()
        for action in actions:
            self._do(action)
        self.actions += actions
        return actions

    def pass_time(self, seconds: float) -> None:
        """Let time pass during which no segment ends."""
        busy = [lane[0].start.session for lane in self.lanes.values() if lane]
        if busy:
            self.busy_s += seconds
            for session in busy:
                share = seconds / len(busy)
                self.used_s[session] = self.used_s.get(session, 0.0) + share
        self.now += seconds

    def send(self, session: int, *seconds: float, ends: bool = False, live: int = 0) -> int:
        """Send a work with segments of these durations; return its id."""
        work = next(self._ids)
        self.works[work] = Sent(session, seconds)
        self.queues.setdefault(session, deque()).append(work)
        segments = tuple(Segment(each, live) for each in seconds)
        promised = self.core.would_start(session, live) if seconds else None
        actions = self.tell(WorkArrived(session, work, segments, ends))
        if promised is not None:
            self._keeps_its_promise(actions, work, promised)
        return work

    def _keeps_its_promise(self, actions: list[object], work: int, lane: int) -> None:
        """Whoever ran the work first is not contradicted: it is started there, alone."""
        begun = [each for each in actions if isinstance(each, Start)]
        assert [(each.work, each.lane, each.first) for each in begun] == [(work, lane, 0)]
        assert not [each for each in actions if isinstance(each, Spill | Restore | MoveLane)]
        assert not [each for each in actions if isinstance(each, OpenLane | CloseLane | ResizeLane)]
        self.promises += 1

    def overtake(self, lane: int, segments: int = 1) -> list[object]:
        """Let those of another session end before the oldest, which lacks memory in its midst."""
        lacking = self.lanes[lane][0].start.session
        other = next((each for each in self.lanes[lane] if each.start.session != lacking), None)
        return self.finish(lane, segments, other)

    def finish(self, lane: int, segments: int = 1, running: Running | None = None) -> list[object]:
        """Let the oldest segments in a lane end, or those of a start."""
        running = running or self.lanes[lane][0]
        start = running.start
        work = self.works[start.work]
        segments = min(segments, running.left)
        measured_s = sum(work.seconds[work.finished : work.finished + segments])
        running.left -= segments
        work.finished += segments
        if not running.left:
            self.lanes[lane].remove(running)
        return self.tell(SegmentsFinished(lane, start.epoch, start.work, segments, measured_s))

    def retire(self, lane: int, *, kept: tuple[int, ...] = ()) -> list[object]:
        """Give a lane up; it gives back what it has not begun, but for these sessions' works."""
        running = self.lanes[lane]
        stuck = {running[0].start.session, *kept}
        back = [each for each in running if each.start.session not in stuck]
        for each in back:
            running.remove(each)
            work = self.works[each.start.work]
            if work.started == len(work.seconds):
                self.queues[each.start.session].append(each.start.work)
            work.started -= each.left
        for queue in self.queues.values():
            ordered = sorted(queue)
            queue.clear()
            queue.extend(ordered)
        returned = tuple(dict.fromkeys(each.start.work for each in back))
        return self.tell(LaneRetired(lane, returned))

    def measure(self, session: int, **changed: int) -> list[object]:
        """Tell what a session holds, some of it changed."""
        held = self.memory.setdefault(session, Held())
        for name, nbytes in changed.items():
            setattr(held, name, nbytes)
        return self.tell(
            MemoryMeasured(
                session, held.resident, held.kept, held.transient, held.stale, held.spilled
            )
        )

    def copied(self, session: int, *, fails: bool = False) -> list[object]:
        """Let the copy of a session's memory that is under way be over."""
        action = self.copying.pop(session)
        held = self.memory.setdefault(session, Held())
        kind = SessionRestored if isinstance(action, Restore) else SessionSpilled
        if not fails:
            held.restore() if isinstance(action, Restore) else held.spill(action.part)
        return self.tell(kind(session, held.resident, held.kept, held.spilled))

    def _do(self, action: object) -> None:
        match action:
            case Spill(session, _) | Restore(session):
                assert not self.in_flight(session) or isinstance(action, Restore)
                assert session not in self.copying
                self.copying[session] = action
            case OpenLane(lane, capacity):
                assert lane not in self.lanes
                self.lanes[lane] = deque()
                self.capacity[lane] = capacity
            case ResizeLane(lane, capacity):
                assert self.capacity[lane] != capacity
                self.capacity[lane] = capacity
            case CloseLane(lane):
                assert not self.lanes.pop(lane)
                del self.capacity[lane]
                for session in [s for s, at in self.lane_of.items() if at == lane]:
                    del self.lane_of[session]
            case MoveLane(session, lane):
                assert not self.in_flight(session)
                self.lane_of[session] = lane
            case Wait(session, _):
                assert not self.in_flight(session)
                self.waits.append(action)
            case Start():
                self._launch(action)
            case _:
                raise AssertionError(action)

    def _launch(self, start: Start) -> None:
        work = self.works[start.work]
        assert work.session == start.session
        assert not work.cancelled
        assert start.session not in self.copying
        assert not self.memory.get(start.session, Held()).spilled
        assert work.started == start.first
        assert start.count > 0
        if start.first == 0 and self.core.snapshot().draining:
            session = self.core._table.sessions[start.session]
            works = {each.id: each for each in (*session.started, *session.queue)}
            assert works[start.work].continues, "a drained device begins no iteration"
        queue = self.queues[start.session]
        while self.works[queue[0]].cancelled:
            queue.popleft()
        assert queue[0] == start.work
        assert self.lane_of.setdefault(start.session, start.lane) == start.lane
        work.started += start.count
        assert work.started <= len(work.seconds)
        if work.started == len(work.seconds):
            queue.popleft()
        assert all(start.epoch >= other.start.epoch for other in self.lanes[start.lane])
        self.lanes[start.lane].append(Running(start, start.count))
        self.started.append(start)

    def in_flight(self, session: int) -> bool:
        """Whether anything of a session is in flight."""
        return any(each.start.session == session for lane in self.lanes.values() for each in lane)


@dataclass
class Notebook:
    """A training loop: `works` durations per iteration, the loss read every `reads` iterations."""

    session: int
    user: str
    works: tuple[float, ...]
    reads: int = 1
    pause_s: float = 0.0002
    weight: float = 1.0
    priority: int = 1
    begins_at: float = 0.0
    segment_s: float = 0.0005
    transient: int = 0
    ends: bool = True
    #: works sent and not finished, oldest first
    open_works: deque[int] = field(default_factory=deque)
    iterations: int = 0

    def segments(self, work_s: float) -> tuple[float, ...]:
        """Cut a work into segments."""
        number = max(1, round(work_s / self.segment_s))
        return (work_s / number,) * number


class Lab:
    """Notebooks that train on one device, in virtual time."""

    def __init__(self, device: Device, *notebooks: Notebook) -> None:
        self.device = device
        self.notebooks = {each.session: each for each in notebooks}
        self._timers: list[tuple[float, int, object]] = []
        self._order = count()
        self._ends: dict[int, float] = {}
        #: resident bytes of sessions
        self.held: dict[int, int] = {}
        for notebook in notebooks:
            self._at(notebook.begins_at, notebook)

    def _at(self, when: float, what: object) -> None:
        heapq.heappush(self._timers, (when, next(self._order), what))

    def run(self, until: float) -> None:
        """Let virtual time pass."""
        device = self.device
        while True:
            self._watch()
            due = [(end, lane) for lane, end in self._ends.items()]
            next_end = min(due, default=(float("inf"), -1))
            next_timer = self._timers[0][0] if self._timers else float("inf")
            when = min(next_end[0], next_timer)
            if when > until:
                device.pass_time(until - device.now)
                return
            device.pass_time(max(0.0, when - device.now))
            if next_end[0] <= next_timer:
                self._segment_ends(next_end[1])
            else:
                self._timer(heapq.heappop(self._timers)[2])

    def _watch(self) -> None:
        """Note when the segment that each lane is at will end."""
        for lane, running in self.device.lanes.items():
            if running and lane not in self._ends:
                work = self.device.works[running[0].start.work]
                self._ends[lane] = self.device.now + work.seconds[work.finished]

    def _segment_ends(self, lane: int) -> None:
        del self._ends[lane]
        running = self.device.lanes[lane][0]
        work = self.device.works[running.start.work]
        notebook = self.notebooks[work.session]
        self.device.finish(lane)
        if work.finished == len(work.seconds):
            assert notebook.open_works.popleft() == running.start.work
            self._work_ended(notebook)

    def _work_ended(self, notebook: Notebook) -> None:
        if not notebook.open_works:
            self._at(self.device.now + notebook.pause_s, notebook)

    def _timer(self, notebook: Notebook) -> None:
        device = self.device
        if notebook.iterations == 0:
            opened = notebook.session, notebook.user, notebook.weight, notebook.priority
            device.tell(SessionOpened(*opened))
            held = self.held.get(notebook.session, 0)
            device.tell(MemoryMeasured(notebook.session, held, 0, notebook.transient))
        for _ in range(notebook.reads):
            notebook.iterations += 1
            for place, work_s in enumerate(notebook.works, start=1):
                ends = notebook.ends and place == len(notebook.works)
                work = device.send(notebook.session, *notebook.segments(work_s), ends=ends)
                notebook.open_works.append(work)

    def user_seconds(self) -> dict[str, float]:
        """Return the device time charged to each user, up to now."""
        self.device.tell(SessionIdle(-1))
        return {user.name: user.device_seconds for user in self.device.core.snapshot().users}


def device_with(
    maximum: int = 1, capacity: int = 1000, policy: str = "fair", **options: bool
) -> Device:
    """Return a device whose lanes are configured."""
    device = Device(Core(policy), **options)
    device.tell(LanesConfigured(maximum, capacity))
    return device
