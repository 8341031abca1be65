"""A device in virtual time: carries out the core's actions as an executor would.

Each lane runs what was started in it in order; lanes that are busy at the same time share the
device as `jgpu.sched.simulate.rates` says. Copies to and from the host go one after the other over
one link. What is left out: the time between a decision and the device's start (tens of
microseconds, hidden behind the work in flight), fragmentation, and what the host's CPUs cost.

The rule: the core is told everything that happens and nothing else; it decides as it does live.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from jgpu.sched import actions, events
from jgpu.sched.simulate.rates import speed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jgpu.sched.core import Core
    from jgpu.sched.simulate.clock import Clock
    from jgpu.sched.simulate.jobs import JobMemory

__all__ = ["Hardware", "Sent", "SimulatedDevice"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a device has."""

    #: lanes at most
    lanes: int = 1
    #: bytes that all sessions share
    capacity: int = 1 << 40
    #: device time lost where a lane goes from one session to another
    switch_s: float = 0.0
    #: bytes per second between device and host, in either direction
    link_bytes_per_s: float = 10e9
    #: how often the core is told that time has passed while somebody waits; 0 for never
    look_s: float = 0.0


@dataclass(slots=True, eq=False)
class Sent:
    """A work that a client sent, and how far it has come."""

    id: int
    session: int
    #: device time of each segment, alone
    seconds: Sequence[float]
    load: float
    #: called with the work when its last segment has ended
    done: Callable[[Sent], None]
    #: what the session holds once it has ended, where that is to be measured then
    leaves: JobMemory | None = None
    finished: int = 0
    #: when its first segment began; None before
    began_s: float | None = None


class _SimulatedLane:
    """What one lane has to do, in order."""

    __slots__ = ("began_s", "last", "left_s", "queue", "running")

    def __init__(self) -> None:
        #: (work, epoch) of each segment that was started, without the one that runs
        self.queue: deque[tuple[Sent, int]] = deque()
        self.running: tuple[Sent, int] | None = None
        #: device time, alone, that the running segment still needs
        self.left_s = 0.0
        self.began_s = 0.0
        #: the session that ran last, 0 before the first
        self.last = 0


@dataclass(slots=True)
class _Holding:
    """Where a session's memory is, in bytes."""

    resident: int
    kept: int
    away_resident: int = 0
    away_kept: int = 0


class SimulatedDevice:
    """One device and the core that decides about it."""

    def __init__(self, clock: Clock, core: Core, hardware: Hardware) -> None:
        self.clock = clock
        self.core = core
        self.hardware = hardware
        #: time during which at least one lane was busy
        self.busy_s = 0.0
        #: bytes copied to the host and back
        self.spilled_bytes = 0
        self.restored_bytes = 0
        #: events told to the core
        self.events = 0
        self._works: dict[int, Sent] = {}
        self._ids = count(1)
        self._lanes: dict[int, _SimulatedLane] = {}
        self._speed = 1.0
        self._since_s = 0.0
        #: counts the plans for the next end of a segment; only the youngest holds
        self._plan = 0
        self._changed = False
        self._holdings: dict[int, _Holding] = {}
        self._link_free_s = 0.0
        self._looking = False
        self._handlers: dict[type[actions.Action], Callable[[Any], None]] = {
            actions.Start: self._start,
            actions.OpenLane: self._open,
            actions.CloseLane: self._close,
            actions.Spill: self._spill,
            actions.Restore: self._restore,
            actions.ResizeLane: _nothing,
            actions.MoveLane: _nothing,
            actions.Wait: self._wait,
        }
        self.tell(events.LanesConfigured(hardware.lanes, hardware.capacity))

    # --- what clients do

    def tell(self, event: events.Event) -> None:
        """Tell the core of an event now, and do what it asks for."""
        self.events += 1
        for action in self.core.handle(event, self.clock.now):
            self._handlers[type(action)](action)
        if self._changed:
            self._plan_next()

    def measure(self, session: int, memory: JobMemory) -> None:
        """Let a session hold this much in all; what of it is on the host stays there."""
        before = self._holdings.get(session, _Holding(0, 0))
        away_resident = min(before.away_resident, memory.resident)
        away_kept = min(before.away_kept, memory.kept)
        resident, kept = memory.resident - away_resident, memory.kept - away_kept
        self._holdings[session] = _Holding(resident, kept, away_resident, away_kept)
        away = away_resident + away_kept
        transient = memory.transient
        self.tell(events.MemoryMeasured(session, resident, kept, transient, spilled=away))

    def send(
        self,
        session: int,
        seconds: Sequence[float],
        *,
        ends: bool,
        load: float,
        done: Callable[[Sent], None],
        predicted_s: Sequence[float] = (),
        live: Sequence[int] = (),
        leaves: JobMemory | None = None,
    ) -> None:
        """Let a client send a work; its segments' predictions are right unless others are given."""
        work = Sent(next(self._ids), session, seconds, load, done, leaves)
        if seconds:
            self._works[work.id] = work
        predicted_s, live = predicted_s or seconds, live or (0,) * len(seconds)
        segments = tuple(map(events.Segment, predicted_s, live))
        self.tell(events.WorkArrived(session, work.id, segments, ends))

    def close(self, session: int) -> None:
        """Let a client that has nothing left to run go."""
        self._holdings.pop(session, None)
        self.tell(events.SessionClosed(session))

    # --- lanes

    def _open(self, action: actions.OpenLane) -> None:
        self._lanes[action.lane] = _SimulatedLane()

    def _close(self, action: actions.CloseLane) -> None:
        del self._lanes[action.lane]

    def _start(self, action: actions.Start) -> None:
        work, lane = self._works[action.work], self._lanes[action.lane]
        lane.queue.extend([(work, action.epoch)] * action.count)
        if lane.running is None:
            self._pass_time()
            self._begin(lane)

    def _begin(self, lane: _SimulatedLane) -> None:
        """Let a lane begin its next segment, if there is one."""
        self._changed = True
        if not lane.queue:
            lane.running = None
            return
        lane.running = lane.queue.popleft()
        work, now = lane.running[0], self.clock.now
        lane.left_s, lane.began_s = work.seconds[work.finished], now
        if lane.last != work.session:
            lane.left_s += self.hardware.switch_s
            lane.last = work.session
        if work.began_s is None:
            work.began_s = now

    def _pass_time(self) -> None:
        """Bring what busy lanes have left up to now."""
        elapsed = self.clock.now - self._since_s
        self._since_s = self.clock.now
        busy = [lane for lane in self._lanes.values() if lane.running is not None]
        if busy:
            self.busy_s += elapsed
            for lane in busy:
                lane.left_s -= elapsed * self._speed

    def _plan_next(self) -> None:
        """Ask to be called when the next segment ends."""
        self._changed = False
        self._plan += 1
        busy = [
            (lane.left_s, number, lane.running[0].load)
            for number, lane in self._lanes.items()
            if lane.running is not None
        ]
        if busy:
            self._speed = speed([load for _, _, load in busy])
            left_s, number, _ = min(busy)
            self.clock.after(max(0.0, left_s) / self._speed, self._segment_ends, self._plan, number)

    def _segment_ends(self, plan: int, number: int) -> None:
        if plan != self._plan:
            return
        self._pass_time()
        lane = self._lanes[number]
        assert lane.running is not None
        work, epoch = lane.running
        took_s = self.clock.now - lane.began_s
        work.finished += 1
        self._begin(lane)
        over = work.finished == len(work.seconds)
        if over and work.leaves is not None:
            # Told before the end, as it is live, so that nobody else gets the room in between.
            self.measure(work.session, work.leaves)
        self.tell(events.SegmentsFinished(number, epoch, work.id, 1, took_s))
        if over:
            del self._works[work.id]
            work.done(work)

    # --- memory

    def _spill(self, action: actions.Spill) -> None:
        holding = self._holdings.setdefault(action.session, _Holding(0, 0))
        with_model = action.part is actions.MemoryPart.ALL
        nbytes = holding.kept + (holding.resident if with_model else 0)
        self.spilled_bytes += nbytes
        self._copy(nbytes, self._is_away, action.session, with_model)

    def _is_away(self, session: int, with_model: bool) -> None:
        holding = self._holdings.get(session)
        if holding is None:
            return
        holding.away_kept, holding.kept = holding.away_kept + holding.kept, 0
        if with_model:
            holding.away_resident, holding.resident = holding.resident, 0
        away = holding.away_kept + holding.away_resident
        self.tell(events.SessionSpilled(session, holding.resident, holding.kept, away))

    def _restore(self, action: actions.Restore) -> None:
        holding = self._holdings[action.session]
        nbytes = holding.away_kept + holding.away_resident
        self.restored_bytes += nbytes
        self._copy(nbytes, self._is_back, action.session)

    def _is_back(self, session: int) -> None:
        holding = self._holdings.get(session)
        if holding is None:
            return
        holding.kept, holding.away_kept = holding.kept + holding.away_kept, 0
        holding.resident, holding.away_resident = holding.resident + holding.away_resident, 0
        self.tell(events.SessionRestored(session, holding.resident, holding.kept, 0))

    def _copy(self, nbytes: int, call: Callable[..., None], *arguments: Any) -> None:
        begin_s = max(self.clock.now, self._link_free_s)
        self._link_free_s = begin_s + nbytes / self.hardware.link_bytes_per_s
        self.clock.at(self._link_free_s, call, *arguments)

    # --- waiting

    def _wait(self, action: actions.Wait) -> None:
        del action
        if self.hardware.look_s and not self._looking:
            self._looking = True
            self.clock.after(self.hardware.look_s, self._look)

    def _look(self) -> None:
        """Tell the core that time has passed, as long as there is unfinished work."""
        self._looking = bool(self._works)
        if self._looking:
            self.clock.after(self.hardware.look_s, self._look)
            self.tell(events.TimePassed())


def _nothing(action: actions.Action) -> None:
    """Do nothing: the simulated device has no arenas to resize or move."""
    del action
