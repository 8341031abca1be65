"""A work: segments that run in order, and how far they have come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from jgpu.sched.states import WORK_MOVES, IllegalEvent, IllegalTransition, WorkState

if TYPE_CHECKING:
    from jgpu.sched.events import WorkArrived
    from jgpu.sched.limits import Limits

__all__ = ["ScheduledWork", "weigh"]

_NEVER: Final = float("inf")


class ScheduledWork(msgspec.Struct, eq=False):
    """One program to run, cut into segments."""

    id: int
    #: predicted device time of each segment; all above 0, at least one
    seconds: tuple[float, ...]
    #: whether an iteration ends with the last segment; may still become true while unfinished
    ends_iteration: bool
    #: transient bytes that it is known to need at least; not negative
    claim: int
    state: WorkState = WorkState.QUEUED
    #: whether an iteration was open when its first segment was started; means nothing before
    continues: bool = False
    #: segments started; 0 exactly while QUEUED or CANCELLED
    started: int = 0
    #: segments finished; at most `started`, and all of them exactly when FINISHED
    finished: int = 0

    def become(self, state: WorkState) -> None:
        """Go to another state, if the table of states leads there."""
        if state not in WORK_MOVES[self.state]:
            raise IllegalTransition(f"work {self.id}", self.state, state, ())
        self.state = state

    def validate(self) -> None:
        """Check every invariant of a work."""
        assert self.seconds
        assert all(each > 0 for each in self.seconds)
        assert self.claim >= 0
        assert 0 <= self.finished <= self.started <= len(self.seconds)
        assert (self.started == 0) == (self.state in {WorkState.QUEUED, WorkState.CANCELLED})
        assert (self.finished == len(self.seconds)) == (self.state is WorkState.FINISHED)


def weigh(event: WorkArrived, limits: Limits) -> tuple[tuple[float, ...], int]:
    """Return what a work's segments count, in seconds, and the bytes that they are known to need.

    Raises `IllegalEvent` for a segment that cannot be.
    """
    nominal_s, least_s = limits.nominal_segment_s, limits.least_segment_s
    seconds, claim = [], 0
    for segment in event.segments:
        predicted_s, live_bytes = segment.predicted_s, segment.live_bytes
        if not (0 <= predicted_s < _NEVER and live_bytes >= 0):
            raise IllegalEvent(f"Work {event.work} arrived with {segment}.")
        if predicted_s <= least_s:
            predicted_s = least_s if predicted_s else nominal_s
        seconds.append(predicted_s)
        if live_bytes > claim:
            claim = live_bytes
    return tuple(seconds), claim
