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
    "Event",
    "LanesConfigured",
    "MemoryMeasured",
    "PolicyChanged",
    "Segment",
    "SegmentsFinished",
    "SessionClosed",
    "SessionEvent",
    "SessionIdle",
    "SessionOpened",
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


@dataclass(frozen=True, slots=True)
class LanesConfigured(Event):
    """How many lanes there may be at most, and how many bytes all of them share."""

    maximum: int
    capacity: int


@dataclass(frozen=True, slots=True)
class PolicyChanged(Event):
    """Another policy decides from now on."""

    policy: str
