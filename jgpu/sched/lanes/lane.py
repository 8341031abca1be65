"""A lane: one stream of the device, its sessions, its lease and what is in flight.

Serial inside, parallel across. A session's segments leave `in_flight` in the order in which they
came; those of others may overtake them, for a work that lacks memory in its midst is put aside. A
lease's epoch is never given out twice, so that a late event meets nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from jgpu.sched.lanes.waiting import WaitingMembers
from jgpu.sched.states import LANE_MOVES, LaneState, check_move

if TYPE_CHECKING:
    from jgpu.sched.sessions.session import ScheduledSession
    from jgpu.sched.sessions.work import ScheduledWork

__all__ = ["InFlight", "Lane"]


class InFlight(msgspec.Struct, eq=False):
    """Segments that one action started, as far as they have not finished."""

    session: ScheduledSession
    work: ScheduledWork
    epoch: int
    #: above 0
    count: int


@dataclass(slots=True, eq=False)
class Lane:
    """A stream and a budget of ephemeral memory that sessions take turns in."""

    id: int
    #: bytes; no less than any member needs
    capacity: int
    state: LaneState = LaneState.OPEN
    #: the sessions that belong here, by id; nobody belongs to two lanes
    members: dict[int, ScheduledSession] = field(default_factory=dict)
    #: members that have work queued and not the turn, in the order in which they began to wait
    waiting: WaitingMembers = field(default_factory=WaitingMembers)
    #: bytes that the members' suspended iterations need
    suspended: int = 0
    #: the member that has the turn
    holder: ScheduledSession | None = None
    #: number of the holder's lease; grows with every lease given anywhere
    epoch: int = 0
    #: device time measured under this lease
    used_s: float = 0.0
    #: value of the time used at which somebody who is owed time is looked for again
    look_at_s: float = 0.0
    #: nobody may cut the holder's turn short, for it had waited for too long
    protected: bool = False
    #: oldest first
    in_flight: deque[InFlight] = field(default_factory=deque)
    #: segments in it
    segments: int = 0
    #: their predicted device time; 0.0 when there are none
    in_flight_s: float = 0.0

    @property
    def running(self) -> ScheduledSession | None:
        """The session whose segments the device is at."""
        return self.in_flight[0].session if self.in_flight else None

    def become(self, state: LaneState) -> None:
        """Go to another state, if the table of states leads there."""
        self.state = check_move(LANE_MOVES, f"lane {self.id}", self.state, state)

    def await_turn(self, session: ScheduledSession, now: float) -> None:
        """Queue a member with work for its turn."""
        session.waiting.turn_since = now
        self.waiting.join(session)

    def take_off(self, session: ScheduledSession, count: int, seconds: float) -> None:
        """Count segments, predicted to take `seconds` together, as in flight no longer."""
        user = session.user
        self.segments -= count
        session.in_flight -= count
        self.in_flight_s = self.in_flight_s - seconds if self.segments else 0.0
        session.in_flight_s = session.in_flight_s - seconds if session.in_flight else 0.0
        left_s = user.in_flight_s - seconds
        user.in_flight_s = left_s if left_s > 0.0 else 0.0

    def validate(self) -> None:
        """Check every invariant of a lane."""
        assert self.state is not LaneState.CLOSED
        assert self.members
        for session in self.members.values():
            assert session.lane is self
            assert session.room.need <= self.capacity
            waits = bool(session.queue) and session is not self.holder
            assert waits == (session.id in self.waiting)
            open_aside = session.iteration_open and session is not self.holder
            assert session.room.suspended == open_aside
            flying = [each for each in self.in_flight if each.session is session]
            assert session.in_flight == sum(each.count for each in flying)
            assert flying or self.state is not LaneState.RETIRED
        assert self.waiting.keys() <= self.members.keys()
        since = [session.waiting.turn_since for session in self.waiting.values()]
        assert since == sorted(since)
        assert self.holder is None or self.members.get(self.holder.id) is self.holder
        assert self.suspended == sum(
            session.room.need for session in self.members.values() if session.room.suspended
        )
        self._validate_in_flight()
        self.waiting.validate()

    def _validate_in_flight(self) -> None:
        assert self.segments == sum(each.count for each in self.in_flight)
        members = self.members.values()
        assert abs(self.in_flight_s - sum(each.in_flight_s for each in members)) <= 1e-9
        epochs = [each.epoch for each in self.in_flight]
        assert epochs == sorted(epochs)
        assert all(epoch <= self.epoch for epoch in epochs)
        assert all(each.count > 0 for each in self.in_flight)
        assert all(each.session.lane is self for each in self.in_flight)
