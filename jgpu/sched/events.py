"""What may have happened: the closed set of events that the core is told.

Names are in the past tense. Times are seconds, sizes bytes, ids plain numbers that the executor
gives out; nothing here knows how an event came about. The rule: an event states a fact and never
asks for a decision, so that a recorded sequence of events can be played again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "CellEnded",
    "CellStarted",
    "DrainChanged",
    "Event",
    "LaneRetired",
    "LanesConfigured",
    "LoopTold",
    "MemoryMeasured",
    "MemoryShort",
    "MemoryWanted",
    "PolicyChanged",
    "Segment",
    "SegmentsFinished",
    "SessionClosed",
    "SessionEvent",
    "SessionIdle",
    "SessionOpened",
    "SessionRestored",
    "SessionSpilled",
    "SpillAsked",
    "TimeCharged",
    "TimePassed",
    "UserConfigured",
    "WorkArrived",
    "WorkCancelled",
]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a program that is launched as a whole."""

    #: predicted device time; 0 when unknown, which counts as one nominal segment
    predicted_s: float
    #: ephemeral bytes of the session known beforehand to be alive while the segment runs; a
    #: lower bound of its transient peak, resident and kept bytes not among them
    live_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    #: number of the frame, timer or order that brought the event about; 0 when there is none
    cause: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class SessionEvent(Event):
    """Base of the events about one session; about an unknown session they change nothing."""

    session: int


@dataclass(frozen=True, slots=True)
class SessionOpened(SessionEvent):
    """A client was admitted; `weight` is its user's share, the latest one holds."""

    user: str
    weight: float = 1.0
    #: the session's class, as in `jgpu.sched.priorities`
    priority: int = 1


@dataclass(frozen=True, slots=True)
class SessionClosed(SessionEvent):
    """A client is gone; its queued work is dropped, work already started still finishes."""


@dataclass(frozen=True, slots=True)
class CellStarted(SessionEvent):
    """A notebook cell began to run; from here on its completion time counts."""


@dataclass(frozen=True, slots=True)
class CellEnded(SessionEvent):
    """A notebook cell ended; whatever was sent before belongs to an iteration that ends here."""


@dataclass(frozen=True, slots=True)
class SessionIdle(SessionEvent):
    """A session has had nothing to do for so long that its place in a lane may go to others."""


@dataclass(frozen=True, slots=True)
class WorkArrived(SessionEvent):
    """A program is ready to run; work ids are unique and increasing within an executor.

    A work without segments runs nothing; with `ends_iteration` it says that the iteration ended
    with the work before it.
    """

    work: int
    segments: tuple[Segment, ...]
    ends_iteration: bool


@dataclass(frozen=True, slots=True)
class SegmentsFinished(Event):
    """The next `count` segments of a work that was started under this lease are done.

    Those of one lane finish in the order in which they were started. The event of a lease that
    the core no longer knows changes nothing.
    """

    lane: int
    epoch: int
    work: int
    count: int
    #: device time that these segments took
    measured_s: float


@dataclass(frozen=True, slots=True)
class WorkCancelled(SessionEvent):
    """Queued work was taken back; of the works named, those already started are left alone."""

    works: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryMeasured(SessionEvent):
    """What a session holds and needs, rounded as the device's allocator rounds."""

    #: P: parameters, buffers, optimizer state
    resident: int
    #: K: other bytes alive at an iteration's boundary, spilled ones not among them
    kept: int
    #: T: peak inside an iteration on top of the two
    transient: int
    #: bytes of K that nobody is expected to use again, as a failed cell leaves them
    stale: int = 0
    #: bytes on the host that must come back before anything of the session runs
    spilled: int = 0


@dataclass(frozen=True, slots=True)
class SessionSpilled(SessionEvent):
    """What `Spill` asked for was done, as far as it could be; what is where now."""

    resident: int
    kept: int
    #: bytes on the host that must come back before anything of the session runs
    spilled: int


@dataclass(frozen=True, slots=True)
class SessionRestored(SessionEvent):
    """What `Restore` asked for was done, as far as it could be; what is where now."""

    resident: int
    kept: int
    #: 0 unless it could not be done
    spilled: int


@dataclass(frozen=True, slots=True)
class MemoryWanted(SessionEvent):
    """A work that comes next names bytes on the host that were not to come back by themselves."""

    #: bytes on the host that must come back now
    spilled: int


@dataclass(frozen=True, slots=True)
class MemoryShort(SessionEvent):
    """A work in its midst did not get memory that was counted on; others may give some up."""

    #: bytes that it did not get, above 0
    nbytes: int


@dataclass(frozen=True, slots=True)
class SpillAsked(SessionEvent):
    """An administrator, or a rule about idle sessions, wants a session's memory to be given up."""

    #: P, too
    resident: bool = False


@dataclass(frozen=True, slots=True)
class LoopTold(SessionEvent):
    """How many iterations the job of a session will still do, as far as its loops tell."""

    #: None takes back what was told
    left: int | None
    #: device time of one, where it is known beforehand; 0 where it is to be measured
    iteration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TimeCharged(SessionEvent):
    """Something was computed for a session beside the lanes; its user pays for the time."""

    #: device time that it took
    seconds: float


@dataclass(frozen=True, slots=True)
class LanesConfigured(Event):
    """How many lanes there may be at most, and how many bytes all of them share."""

    maximum: int
    capacity: int


@dataclass(frozen=True, slots=True)
class LaneRetired(Event):
    """A lane was given up, for what it is at does not end.

    It gave back the works named in `returned`, of which it had begun nothing. Whatever else was
    started there may still end. About a lane that is at nothing the event changes nothing.
    """

    lane: int
    returned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UserConfigured(Event):
    """A user's share, and whether they have used up what they may use while others wait."""

    user: str
    weight: float = 1.0
    #: their work runs only where the device would idle
    throttled: bool = False


@dataclass(frozen=True, slots=True)
class TimePassed(Event):
    """Nothing happened, and somebody waits: look whether it is for too long."""


@dataclass(frozen=True, slots=True)
class DrainChanged(Event):
    """From now on no iteration begins, or they do again; those under way go on to their end."""

    on: bool


@dataclass(frozen=True, slots=True)
class PolicyChanged(Event):
    """Another policy decides from now on."""

    policy: str
