"""From a recording of a live broker to clients that can be simulated, under whatever policy.

The core's decisions are not recorded, for they follow from the events: the same core is told the
same events again, and what it starts is compared with what finished when. A segment took the time
from its start, or from the end of the one before it in its lane, to its own end, so that what the
executor needs between two is in it.

A client's steps keep their distance to what they waited for. If a work of the session ended between
two steps of its client, the second is taken to have waited for it (a loss was read), and comes as
long after that work's end as it did live; else as long after the step before. Works that never
finished, or were cancelled, are left out. Rests, spills and restores are not replayed, they follow
anew.

The rule: nothing of the policy that was recorded is in the scripts, but for what durations owe to
neighbours in other lanes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from jgpu.errors import ConfigError
from jgpu.sched import actions, events
from jgpu.sched.core import Core
from jgpu.sched.reports.recording import Recorded
from jgpu.sched.simulate.results import SimulatedCell
from jgpu.sched.states import IllegalEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgpu.sched.limits import Limits
    from jgpu.sched.reports.recording import Header

__all__ = ["Recording", "ReplayStep", "Script", "cell_times", "read_scripts"]

#: events that a simulated device brings about by itself
_FOLLOW: Final = (
    events.SegmentsFinished,
    events.SessionIdle,
    events.SessionSpilled,
    events.SessionRestored,
    events.MemoryWanted,
    events.MemoryShort,
    events.WorkCancelled,
    events.TimePassed,
    events.PolicyChanged,
    events.LanesConfigured,
    events.LaneRetired,
)
#: the shortest time that a segment is taken to need, where two were told in one go
_LEAST_S: Final = 1e-7


class ReplayStep(NamedTuple):
    """What a client did, and when."""

    #: seconds after what it waited for, or after the step before
    gap_s: float
    #: the work of this session (counted from 0) for whose end it waited; -1 for none
    after: int
    event: events.Event
    #: of a work: seconds that each segment took
    seconds: tuple[float, ...] = ()


@dataclass(slots=True)
class Script:
    """All that one client did; events about nobody in particular are session 0's."""

    session: int
    steps: list[ReplayStep] = field(default_factory=list)
    #: works that the steps hold
    works: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded, ready to be run."""

    policy: str
    limits: Limits
    lanes: int
    capacity: int
    scripts: tuple[Script, ...]
    #: the cells as they were
    cells: tuple[SimulatedCell, ...]
    #: whether the policy was changed on the way, which is not replayed
    policy_changed: bool
    events: int


@dataclass(slots=True)
class _Work:
    """A work of the recording."""

    session: int
    took_s: list[float] = field(default_factory=list)
    segments: int = 0
    ended_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether all of it was seen to end."""
        return len(self.took_s) == self.segments


class _CellListener:
    """Tells a core what was recorded, and notes when each segment began and ended."""

    def __init__(self, header: Header, file: str) -> None:
        self._core = Core(header.policy, header.limits)
        self._file = file
        self.works: dict[int, _Work] = {}
        #: by lane, oldest first: the work of each segment that started and has not ended, and when
        self._started: dict[int, deque[tuple[int, float]]] = {}
        self._ended_s: dict[int, float] = {}
        #: everything, on a clock that begins with the first event; `WorkRan` as the two that it
        #: stands for
        self.told: list[Recorded] = []
        #: events there were
        self.heard = 0
        self._zero_s = 0.0

    def listen(self, recorded: Recorded) -> None:
        """Take one event."""
        at, event, line = recorded
        if not self.heard:
            self._zero_s = at
        self.heard += 1
        now = at - self._zero_s
        if isinstance(event, events.WorkArrived) and event.segments:
            self.works[event.work] = _Work(event.session, segments=len(event.segments))
        if isinstance(event, events.SegmentsFinished):
            self._finish(event, now)
        if isinstance(event, events.LaneRetired):
            starts = self._started.get(event.lane, deque())
            left = [start for start in starts if start[0] not in event.returned]
            self._started[event.lane] = deque(left)
        try:
            acts = self._core.handle(event, now)
        except (IllegalEvent, ConfigError) as error:
            raise ConfigError(f"{self._file}, line {line}: {error}") from None
        for action in acts:
            if isinstance(action, actions.Start):
                starts = self._started.setdefault(action.lane, deque())
                starts.extend([(action.work, now)] * action.count)
        if isinstance(event, events.WorkRan):
            self._ran(event, now, line)
        else:
            self.told.append(recorded._replace(now=now))

    def _ran(self, event: events.WorkRan, now: float, line: int) -> None:
        if not self._core.has_turn(event.session):
            return  # nobody knows the session
        segments = (events.Segment(event.predicted_s, event.live_bytes),)
        arrived = events.WorkArrived(event.session, event.work, segments, event.ends_iteration)
        finished = events.SegmentsFinished(event.lane, 0, event.work, 1, event.measured_s)
        end_s = now + event.elapsed_s
        self.works[event.work] = _Work(event.session, segments=1)
        self._started.setdefault(event.lane, deque()).append((event.work, now))
        self._finish(finished, end_s)
        self.told += Recorded(now, arrived, line), Recorded(end_s, finished, line)

    def _finish(self, event: events.SegmentsFinished, now: float) -> None:
        starts, work = self._started.get(event.lane), self.works.get(event.work)
        own = [start for start in starts or () if start[0] == event.work][: event.count]
        if not starts or not own or work is None:
            return
        count = len(own)
        begin_s = max(own[0][1], self._ended_s.get(event.lane, 0.0))
        for start in own:
            starts.remove(start)
        self._ended_s[event.lane] = work.ended_s = now
        work.took_s += [max(_LEAST_S, (now - begin_s) / count)] * count


def read_scripts(header: Header, recorded: Iterable[Recorded], file: str) -> Recording:
    """Return what a recording holds; raises `ConfigError` where the core refuses an event."""
    listener = _CellListener(header, file)
    for each in recorded:
        listener.listen(each)
    configured = [e.event for e in listener.told if isinstance(e.event, events.LanesConfigured)]
    if not configured:
        raise ConfigError(f"{file}, line 1: it never says what the device has (LanesConfigured).")
    return Recording(
        policy=header.policy,
        limits=header.limits,
        lanes=configured[0].maximum,
        capacity=configured[0].capacity,
        scripts=tuple(_scripts(listener)),
        cells=cell_times(
            [(each.now, each.event) for each in listener.told],
            {number: work.ended_s for number, work in listener.works.items() if work.is_over},
        ),
        policy_changed=any(isinstance(e.event, events.PolicyChanged) for e in listener.told),
        events=listener.heard,
    )


class _ClientWriter:
    """Writes one script."""

    def __init__(self, session: int) -> None:
        self.script = Script(session)
        #: place in the script of each work in it
        self.places: dict[int, int] = {}
        #: the work that ended last, when, and when the last step was
        self.ended = -1
        self.ended_s = 0.0
        self.step_s = 0.0

    def step(self, now: float, event: events.Event, seconds: tuple[float, ...]) -> None:
        """Add a step that was at `now`."""
        waited = self.ended >= 0 and self.ended_s >= self.step_s
        after, since_s = (self.ended, self.ended_s) if waited else (-1, self.step_s)
        self.script.steps.append(ReplayStep(now - since_s, after, event, seconds))
        self.step_s = now
        if isinstance(event, events.WorkArrived) and seconds:
            self.places[event.work] = self.script.works
            self.script.works += 1


def _scripts(listener: _CellListener) -> list[Script]:
    writers: dict[int, _ClientWriter] = {}
    left = {number: work.segments for number, work in listener.works.items() if work.is_over}
    for now, event, _ in listener.told:
        if isinstance(event, events.SegmentsFinished) and event.work in left:
            left[event.work] -= event.count
            if left[event.work] <= 0:
                writer = writers[listener.works[event.work].session]
                writer.ended, writer.ended_s = writer.places[event.work], now
        if isinstance(event, _FOLLOW):
            continue
        seconds: tuple[float, ...] = ()
        if isinstance(event, events.WorkArrived) and event.segments:
            if event.work not in left:
                continue
            seconds = tuple(listener.works[event.work].took_s)
        session = event.session if isinstance(event, events.SessionEvent) else 0
        writers.setdefault(session, _ClientWriter(session)).step(now, event, seconds)
    return [writer.script for writer in writers.values()]


def cell_times(
    told: Iterable[tuple[float, events.Event]], ended_s: dict[int, float]
) -> tuple[SimulatedCell, ...]:
    """Return how long each cell took: from its start to its end, or its last work's if later.

    A session without cells, as a script is, counts as one from its first work to its last.
    `ended_s` is when each work ended; those that did not are not in it. The cells' service times
    are not known here and are 0.
    """
    open_since: dict[int, float] = {}
    latest: dict[int, float] = {}
    with_cells: set[int] = set()
    cells: list[SimulatedCell] = []
    loose: dict[int, tuple[float, float]] = {}
    for now, event in told:
        if isinstance(event, events.CellStarted):
            with_cells.add(event.session)
            open_since[event.session], latest[event.session] = now, now
        elif isinstance(event, events.WorkArrived) and event.work in ended_s:
            end = ended_s[event.work]
            latest[event.session] = max(latest.get(event.session, 0.0), end)
            first, last = loose.get(event.session, (now, now))
            loose[event.session] = (first, max(last, end))
        elif isinstance(event, events.CellEnded) and event.session in open_since:
            began = open_since.pop(event.session)
            cells.append(SimulatedCell(event.session, began, max(now, latest[event.session]), 0.0))
    cells += [
        SimulatedCell(session, first, last, 0.0)
        for session, (first, last) in loose.items()
        if session not in with_cells
    ]
    return tuple(cells)
