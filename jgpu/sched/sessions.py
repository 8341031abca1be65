"""Users, sessions and works: plain state, each attribute with its invariant.

A session's iteration is seen twice: at the *start* side, where turns are given (`iteration_open`),
and at the *finish* side, where it is measured (`current_s`). The rule: nothing here decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jgpu.sched.priorities import Priority
from jgpu.sched.states import (
    RESIDENCE_MOVES,
    SESSION_MOVES,
    WORK_MOVES,
    IllegalTransition,
    LaneState,
    Residence,
    SessionState,
    WorkState,
    check_move,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgpu.sched.journal import StoryLine
    from jgpu.sched.lanes.lane import Lane

__all__ = ["ScheduledSession", "ScheduledWork", "User"]


@dataclass(slots=True, eq=False)
class User:
    """A person: the unit of fairness. Outlives its sessions, for it keeps the account."""

    #: not empty
    name: str
    #: above 0; one share of device time per unit
    weight: float = 1.0
    #: part of the weight that counts now: below 1 while the user is at batch work alone
    part: float = 1.0
    #: `weight` times `part`: what device time is divided by
    share: float = field(init=False)
    #: active sessions of other classes than batch
    urgent: int = 0
    #: when the last of these ceased to be active; None before the first
    urgent_until: float | None = None
    #: has used up what they may use while others wait; set by the ledger
    throttled: bool = False
    #: device time charged to all sessions there ever were; never falls
    device_seconds: float = 0.0
    #: device time by share, lifted to the floor when coming back; never falls
    virtual_s: float = 0.0
    #: predicted device time in flight; the sum over the user's sessions
    in_flight_s: float = 0.0
    #: the user's sessions that have work and a lane, by id
    active: dict[int, ScheduledSession] = field(default_factory=dict)
    #: when the last active session ceased to be so; None before the first
    idle_since: float | None = None
    #: virtual time at which a session starts while no other is active; never falls
    floor_s: float = 0.0

    def __post_init__(self) -> None:
        """Count the whole weight."""
        self.share = self.weight * self.part

    def validate(self) -> None:
        """Check every invariant of a user that shows without its sessions."""
        assert self.name
        assert self.weight > 0
        assert 0 < self.part <= 1
        assert self.share == self.weight * self.part
        assert self.urgent == sum(not each.is_batch for each in self.active.values())
        assert self.part == 1 or not self.urgent
        assert self.device_seconds >= 0
        assert self.in_flight_s >= 0
        for session_id, session in self.active.items():
            assert session.id == session_id
            assert session.user is self
            assert session.lane is not None
            assert session.has_work


@dataclass(slots=True, eq=False)
class ScheduledWork:
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
        self.state = check_move(WORK_MOVES, f"work {self.id}", self.state, state)

    def validate(self) -> None:
        """Check every invariant of a work."""
        assert self.seconds
        assert all(each > 0 for each in self.seconds)
        assert self.claim >= 0
        assert 0 <= self.finished <= self.started <= len(self.seconds)
        assert (self.started == 0) == (self.state in {WorkState.QUEUED, WorkState.CANCELLED})
        assert (self.finished == len(self.seconds)) == (self.state is WorkState.FINISHED)


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
    #: `device_seconds` when its job arrived; at most `device_seconds`
    arrived_s: float = 0.0
    #: value of `iterations` at which its job's loops end; None where nobody told
    loop_end: int | None = None
    #: device time of an iteration as it was foretold; 0 where it was not
    foretold_s: float = 0.0
    state: SessionState = SessionState.IDLE

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
    #: when it last came to wait for its turn; means nothing while it does not
    waits_since: float = 0.0
    #: when it last came to be WAITING; means nothing while it is not
    wait_began: float = 0.0
    #: number of the lane it last belonged to, None before the first
    last_lane: int | None = None
    #: since when it has work and no lane; None unless that is so
    unplaced_since: float | None = None
    #: what was started last does not end an iteration: transient memory is in use
    iteration_open: bool = False
    #: the iteration is open and another session has the turn
    suspended: bool = False

    #: P, in bytes, as measured
    resident: int = 0
    #: K, in bytes, as measured
    kept: int = 0
    #: T, in bytes, as measured
    transient: int = 0
    #: bytes of K that nobody is expected to use again; at most `kept`
    stale: int = 0
    #: bytes on the host that must come back before anything runs; above 0 exactly while AWAY, or
    #: RESTORING
    spilled: int = 0
    #: room kept for what comes back; `spilled` while RESTORING, 0 otherwise
    returning: int = 0
    residence: Residence = Residence.HERE
    #: its memory is on the device: HERE or YIELDING
    ready: bool = True
    #: it is to begin no iteration: YIELDING
    yields: bool = False
    #: when it last came to have its memory on the device, or a place in a lane
    here_since: float = 0.0
    #: until when it is not to be spilled again, for that failed
    spared_until: float = 0.0
    #: until when what is AWAY is not to be brought back, for there was no room on the device
    away_until: float = 0.0
    #: since when its next work waits in mid-iteration for its lane to grow; None unless it does
    cramped_since: float | None = None
    #: what it would need then; 0 otherwise
    wants: int = 0
    #: `transient` is not asked for: it could not be had even if everybody gave way
    modest: bool = False
    #: what unfinished work is known to need at least; where there is none, what the last work of
    #: an open iteration needed, or 0
    claim: int = 0
    #: unfinished works that claim more than every later one, oldest first; the first is the claim
    claims: deque[ScheduledWork] = field(default_factory=deque)
    #: max(transient, claim), but no more than the device has beside P and K of the session, away or
    #: not
    need: int = 0

    #: device time charged; never falls
    device_seconds: float = 0.0
    #: device time by share, lifted to the floor when coming back; never falls
    virtual_s: float = 0.0
    #: when it last ceased to be active; None before
    idle_since: float | None = None
    #: iterations finished
    iterations: int = 0
    #: mean device time of the last ones; 0 before the first
    iteration_s: float = 0.0
    #: device times of the last ones, oldest first
    iteration_times: deque[float] = field(default_factory=deque)
    #: device time measured since the last one finished
    current_s: float = 0.0

    @property
    def is_batch(self) -> bool:
        """Whether it is of the class that counts less beside others."""
        return self.priority == Priority.BATCH

    @property
    def has_work(self) -> bool:
        """Whether anything is queued or in flight."""
        return bool(self.queue) or self.in_flight > 0

    @property
    def held(self) -> int:
        """P + K, what is coming back among it."""
        return self.resident + self.kept + self.returning

    @property
    def attained_s(self) -> float:
        """Device time charged since its job arrived."""
        return self.device_seconds - self.arrived_s

    @property
    def remaining_s(self) -> float | None:
        """Device time that its job will still need; None where no loop was told of."""
        if self.loop_end is None:
            return None
        left = max(0, self.loop_end - self.iterations)
        return max(0.0, left * (self.iteration_s or self.foretold_s) - self.current_s)

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
        self._note_claim(work)

    def remove(self, works: Iterable[ScheduledWork]) -> None:
        """Take works, none of them started, out of the queue."""
        for work in works:
            work.become(WorkState.CANCELLED)
        self.queue = deque(work for work in self.queue if work.state is not WorkState.CANCELLED)
        self.claims.clear()
        for work in (*self.started, *self.queue):
            self._note_claim(work)

    def finish_oldest(self) -> ScheduledWork:
        """Take off the oldest work, all of which has finished."""
        work = self.started.popleft()
        work.become(WorkState.FINISHED)
        if self.claims and self.claims[0] is work:
            self.claims.popleft()
        return work

    def _note_claim(self, work: ScheduledWork) -> None:
        while self.claims and self.claims[-1].claim <= work.claim:
            self.claims.pop()
        if work.claim:
            self.claims.append(work)

    def current_claim(self) -> int:
        """Return what `claim` has to be now."""
        if self.claims:
            return self.claims[0].claim
        return self.claim if self.iteration_open and not self.has_work else 0

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
        self.yields = residence is Residence.YIELDING
        self.ready = self.yields or residence is Residence.HERE

    def validate(self) -> None:
        """Check every invariant of a session that shows without its neighbours."""
        self._validate_state()
        self._validate_works()
        self._validate_residence()
        assert 0 < self.share <= 1
        assert self.share == 1 or (self.is_batch and self.user.part == 1)
        assert (self.lead_s > 0) <= (self.priority == Priority.INTERACTIVE)
        assert (self.lane is not None) or not self.pinned
        assert (self.unplaced_since is not None) == (bool(self.queue) and self.lane is None)
        assert not self.suspended or self.iteration_open
        if self.lane is not None:
            assert self.lane.members[self.id] is self
            assert self.last_lane == self.lane.id
        assert min(self.resident, self.kept, self.transient, self.claim, self.need) >= 0
        assert self.need <= max(self.transient, self.claim)
        assert self.arrival > 0 or not self.has_work
        works = [*self.started, *self.queue]
        assert self.claim == self.current_claim()
        assert not works or self.claim == max(work.claim for work in works)
        assert min(self.device_seconds, self.iteration_s, self.current_s) >= 0
        assert self.arrived_s <= self.device_seconds
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
        assert self.ready == (residence in {Residence.HERE, Residence.YIELDING})
        assert self.yields == (residence is Residence.YIELDING)
        away = residence in {Residence.AWAY, Residence.RESTORING}
        assert (self.spilled > 0) == away
        assert self.returning == (self.spilled if residence is Residence.RESTORING else 0)
        assert 0 <= self.stale <= self.kept
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
