"""A session: its works in order, its lane, and where its memory is.

A session's iteration is seen twice: at the *start* side, where turns are given (`iteration_open`),
and at the *finish* side, where it is measured (`progress.current_s`). The rule: nothing here
decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jgpu.sched.priorities import Priority
from jgpu.sched.sessions.memory import HeldMemory, LaneRoom
from jgpu.sched.sessions.progress import SessionProgress, WaitTimes
from jgpu.sched.states import (
    RESIDENCE_MOVES,
    SESSION_MOVES,
    IllegalTransition,
    LaneState,
    Residence,
    SessionState,
    WorkState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgpu.sched.journal import StoryLine
    from jgpu.sched.lanes.lane import Lane
    from jgpu.sched.sessions.user import User
    from jgpu.sched.sessions.work import ScheduledWork

__all__ = ["ScheduledSession"]

# Plain, for looking into an enumeration takes longer than what is done with it.
_BATCH: Final = Priority.BATCH
_HERE: Final = Residence.HERE
_YIELDING: Final = Residence.YIELDING
_FINISHED: Final = WorkState.FINISHED


@dataclass(slots=True, eq=False)
class ScheduledSession:
    """One client process."""

    id: int
    user: User
    #: the last lines of what happened to it, and why
    story: deque[StoryLine]
    #: its class, as in `jgpu.sched.priorities`
    priority: int = 1
    #: what it counts beside the user's other sessions: below 1 for batch work beside other classes
    share: float = 1.0
    #: device time by which it comes before its turn; not 0 for interactive sessions alone
    lead_s: float = 0.0
    #: place in the order of arrival of jobs, counted from 1 when a cell starts, or when the first
    #: work comes; 0 before, and once the session is idle
    arrival: int = 0
    #: device time by share, lifted to the floor when coming back; never falls
    virtual_s: float = 0.0

    state: SessionState = SessionState.IDLE
    #: where the memory is that it needs to run
    residence: Residence = Residence.HERE
    #: works with segments not yet started, oldest first; only the first may have started
    queue: deque[ScheduledWork] = field(default_factory=deque)
    #: works whose segments have all started but not all finished, oldest first
    started: deque[ScheduledWork] = field(default_factory=deque)
    #: segments in flight; above 0 exactly while RUNNING (or, once CLOSED, still)
    in_flight: int = 0
    #: their predicted device time; 0.0 when there are none
    in_flight_s: float = 0.0
    #: the lane it belongs to; never None while anything is in flight or an iteration is open
    lane: Lane | None = None
    #: what was started last does not end an iteration: transient memory is in use
    iteration_open: bool = False

    memory: HeldMemory = field(default_factory=HeldMemory)
    room: LaneRoom = field(default_factory=LaneRoom)
    progress: SessionProgress = field(default_factory=SessionProgress)
    waiting: WaitTimes = field(default_factory=WaitTimes)

    @property
    def is_batch(self) -> bool:
        """Whether it is of the class that counts less beside others."""
        return self.priority == _BATCH

    @property
    def has_work(self) -> bool:
        """Whether anything is queued or in flight."""
        return bool(self.queue) or self.in_flight > 0

    @property
    def ready(self) -> bool:
        """Whether its memory is on the device."""
        residence = self.residence
        return residence is _HERE or residence is _YIELDING

    @property
    def yields(self) -> bool:
        """Whether it is to begin no iteration, for its memory is to go."""
        return self.residence is _YIELDING

    @property
    def held(self) -> int:
        """P + K, what is coming back among it."""
        memory = self.memory
        return memory.resident + memory.kept + memory.returning

    @property
    def device_seconds(self) -> float:
        """Device time charged."""
        return self.progress.device_seconds

    @property
    def attained_s(self) -> float:
        """Device time charged since its job arrived."""
        return self.progress.device_seconds - self.progress.arrived_s

    @property
    def remaining_s(self) -> float | None:
        """Device time that its job will still need; None where no loop was told of."""
        return self.progress.remaining_s

    @property
    def iterations(self) -> int:
        """Iterations finished."""
        return self.progress.iterations

    @property
    def iteration_s(self) -> float:
        """Mean device time of the last iterations; 0 before the first."""
        return self.progress.iteration_s

    @property
    def pinned(self) -> bool:
        """Whether it must stay in its lane, for it is not at a boundary with nothing in flight."""
        return self.iteration_open or self.in_flight > 0

    @property
    def stuck(self) -> bool:
        """Whether it is bound to a lane that was given up."""
        return self.lane is not None and self.lane.state is LaneState.RETIRED

    @property
    def last_work(self) -> ScheduledWork | None:
        """The youngest work that has not finished."""
        if self.queue:
            return self.queue[-1]
        return self.started[-1] if self.started else None

    def add(self, work: ScheduledWork) -> None:
        """Queue a work."""
        self.queue.append(work)
        if work.claim:
            self.room.note(work)

    def remove(self, works: Iterable[ScheduledWork]) -> None:
        """Take works, none of them started, out of the queue."""
        for work in works:
            work.become(WorkState.CANCELLED)
        self.queue = deque(work for work in self.queue if work.state is not WorkState.CANCELLED)
        self.room.count_anew((*self.started, *self.queue))

    def finish_oldest(self) -> ScheduledWork:
        """Take off the oldest work, all of which has finished."""
        work = self.started.popleft()
        work.become(_FINISHED)
        claims = self.room.claims
        if claims and claims[0] is work:
            claims.popleft()
        return work

    def current_claim(self) -> int:
        """Return what the room's `claim` has to be now."""
        room = self.room
        if room.claims:
            return room.claims[0].claim
        return room.claim if self.iteration_open and not self.has_work else 0

    def enter(self, lane: Lane, now: float, turn_s: float) -> None:
        """Belong to a lane; after `turn_s` in none it begins anew with its memory.

        A notebook that waits for each of its works leaves its lane at every one, for a moment,
        while another waits for memory.
        """
        waiting = self.waiting
        was_out = waiting.left_at is None or now - waiting.left_at >= turn_s
        if waiting.lane_since is not None and was_out:
            self.memory.here_since = now
        self.lane, waiting.last_lane, waiting.lane_since = lane, lane.id, None

    def become(self, state: SessionState) -> None:
        """Go to another state, if the table of states leads there."""
        if state not in SESSION_MOVES[self.state]:
            raise IllegalTransition(f"session {self.id}", self.state, state, self.story)
        self.state = state

    def reside(self, residence: Residence) -> None:
        """Have its memory somewhere else, if the table of states leads there."""
        if residence not in RESIDENCE_MOVES[self.residence]:
            noun = f"the memory of session {self.id}"
            raise IllegalTransition(noun, self.residence, residence, self.story)
        self.residence = residence

    def validate(self) -> None:
        """Check every invariant of a session that shows without its neighbours."""
        self._validate_state()
        self._validate_works()
        self._validate_residence()
        self.memory.validate(self.residence)
        self.room.validate()
        self.progress.validate()
        assert 0 < self.share <= 1
        assert self.share == 1 or (self.is_batch and self.user.part == 1)
        assert (self.lead_s > 0) <= (self.priority == Priority.INTERACTIVE)
        assert (self.lane is not None) or not self.pinned
        assert (self.waiting.lane_since is not None) == (bool(self.queue) and self.lane is None)
        assert not self.room.suspended or self.iteration_open
        if self.lane is not None:
            assert self.lane.members[self.id] is self
            assert self.waiting.last_lane == self.lane.id
        assert self.arrival > 0 or not self.has_work
        works = [*self.started, *self.queue]
        assert self.room.claim == self.current_claim()
        assert not works or self.room.claim == max(work.claim for work in works)
        assert (self.id in self.user.active) == (self.lane is not None and self.has_work)

    def _validate_state(self) -> None:
        if self.state is SessionState.CLOSED:
            assert self.has_work
            assert all(work.started for work in self.queue)
        else:
            assert (self.in_flight > 0) == (self.state is SessionState.RUNNING)
            assert self.has_work == (self.state is not SessionState.IDLE)

    def _validate_residence(self) -> None:
        residence = self.residence
        if residence is Residence.SPILLING:
            assert not self.pinned
        if residence is Residence.SPILLING or (residence is Residence.AWAY and not self.pinned):
            assert self.lane is None

    def _validate_works(self) -> None:
        works = [*self.started, *self.queue]
        for work in works:
            work.validate()
        assert [work.id for work in works] == sorted({work.id for work in works})
        assert all(work.started == len(work.seconds) for work in self.started)
        assert all(work.started < len(work.seconds) for work in self.queue)
        assert all(work.state is WorkState.QUEUED for work in list(self.queue)[1:])
        assert self.in_flight == sum(work.started - work.finished for work in works)
        flying = [sum(work.seconds[work.finished : work.started]) for work in works]
        assert abs(self.in_flight_s - sum(flying)) <= 1e-9
