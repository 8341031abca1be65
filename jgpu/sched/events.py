"""What may have happened: the closed set of events that the core is told.

Names are in the past tense. Times are seconds, sizes bytes, ids plain numbers that the executor
gives out; nothing here knows how an event came about. The rule: an event states a fact and never
asks for a decision, so that a recorded sequence of events can be played again.

Events and actions are structs of msgspec: a frozen dataclass takes ten times as long to make, which
was a third of what a brief work costs the core.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

__all__ = [
    "Caused",
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
    "WorkRan",
]


class Segment(Struct, frozen=True):
    """A part of a program that is launched as a whole."""

    #: predicted device time; 0 when unknown, which counts as one nominal segment
    predicted_s: float
    #: ephemeral bytes of the session known beforehand to be alive while the segment runs; a
    #: lower bound of its transient peak, resident and kept bytes not among them
    live_bytes: int


class Caused(Struct, frozen=True, kw_only=True):
    """Base of events and actions."""

    #: number of what brought it about: of an event a frame, timer or order, 0 where there is none;
    #: of an action the event that it answers, counted by the core from 1
    cause: int = 0

    def __eq__(self, other: object) -> bool:
        """Whether both say the same, whatever brought them about."""
        return isinstance(other, type(self)) and self._said == other._said

    def __hash__(self) -> int:
        """Hash what is said."""
        return hash(self._said)

    @property
    def _said(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "cause")


class Event(Caused, frozen=True):
    """Base of all events."""


class SessionEvent(Event, frozen=True):
    """Base of the events about one session; about an unknown session they change nothing."""

    session: int


class SessionOpened(SessionEvent, frozen=True):
    """A client was admitted; `weight` is its user's share, the latest one holds."""

    user: str
    weight: float = 1.0
    #: the session's class, as in `jgpu.sched.priorities`
    priority: int = 1


class SessionClosed(SessionEvent, frozen=True):
    """A client is gone; its queued work is dropped, work already started still finishes."""


class CellStarted(SessionEvent, frozen=True):
    """A notebook cell began to run; from here on its completion time counts."""


class CellEnded(SessionEvent, frozen=True):
    """A notebook cell ended; whatever was sent before belongs to an iteration that ends here."""


class SessionIdle(SessionEvent, frozen=True):
    """A session has had nothing to do for so long that its place in a lane may go to others."""


class WorkArrived(SessionEvent, frozen=True):
    """A program is ready to run; work ids are unique and increasing within an executor.

    A work without segments runs nothing; with `ends_iteration` it says that the iteration ended
    with the work before it.
    """

    work: int
    segments: tuple[Segment, ...]
    ends_iteration: bool


class SegmentsFinished(Event, frozen=True):
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


class WorkRan(SessionEvent, frozen=True):
    """A work of one segment began at this moment, before it was told of, and is over since.

    It is what `WorkArrived` says, and `SegmentsFinished` that much later, where there was nothing
    to decide about it: the core said where it would start, and its session has the turn there.
    """

    work: int
    #: as of its segment
    predicted_s: float
    live_bytes: int
    ends_iteration: bool
    lane: int
    #: how much later it is told of
    elapsed_s: float
    #: device time that it took
    measured_s: float


class WorkCancelled(SessionEvent, frozen=True):
    """Queued work was taken back; of the works named, those already started are left alone."""

    works: tuple[int, ...]


class MemoryMeasured(SessionEvent, frozen=True):
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


class SessionSpilled(SessionEvent, frozen=True):
    """What `Spill` asked for was done, as far as it could be; what is where now."""

    resident: int
    kept: int
    #: bytes on the host that must come back before anything of the session runs
    spilled: int


class SessionRestored(SessionEvent, frozen=True):
    """What `Restore` asked for was done, as far as it could be; what is where now."""

    resident: int
    kept: int
    #: 0 unless it could not be done
    spilled: int


class MemoryWanted(SessionEvent, frozen=True):
    """A work that comes next names bytes on the host that were not to come back by themselves."""

    #: bytes on the host that must come back now
    spilled: int


class MemoryShort(SessionEvent, frozen=True):
    """A work in its midst did not get memory that was counted on; others may give some up."""

    #: bytes that it did not get, above 0
    nbytes: int


class SpillAsked(SessionEvent, frozen=True):
    """An administrator, or a rule about idle sessions, wants a session's memory to be given up."""

    #: P, too
    resident: bool = False


class LoopTold(SessionEvent, frozen=True):
    """How many iterations the job of a session will still do, as far as its loops tell."""

    #: None takes back what was told
    left: int | None
    #: device time of one, where it is known beforehand; 0 where it is to be measured
    iteration_s: float = 0.0


class TimeCharged(SessionEvent, frozen=True):
    """Something was computed for a session beside the lanes; its user pays for the time."""

    #: device time that it took
    seconds: float


class LanesConfigured(Event, frozen=True):
    """How many lanes there may be at most, and how many bytes all of them share."""

    maximum: int
    capacity: int


class LaneRetired(Event, frozen=True):
    """A lane was given up, for what it is at does not end.

    It gave back the works named in `returned`, of which it had begun nothing. Whatever else was
    started there may still end. About a lane that is at nothing the event changes nothing.
    """

    lane: int
    returned: tuple[int, ...] = ()


class UserConfigured(Event, frozen=True):
    """A user's share, and whether they have used up what they may use while others wait."""

    user: str
    weight: float = 1.0
    #: their work runs only where the device would idle
    throttled: bool = False


class TimePassed(Event, frozen=True):
    """Nothing happened, and somebody waits: look whether it is for too long."""


class DrainChanged(Event, frozen=True):
    """From now on no iteration begins, or they do again; those under way go on to their end."""

    on: bool


class PolicyChanged(Event, frozen=True):
    """Another policy decides from now on."""

    policy: str
