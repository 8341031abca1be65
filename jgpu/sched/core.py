"""The scheduler of one device: events in, actions out.

`Core.handle(event, now)` is all there is to it: synchronous, without clock, chance, threads or
input and output, so that the same core runs live and in a simulator. It is composed of the
accounts (`ledger`), the lanes and their memory (`lane_table`), what of it goes to the host
(`spilling`) and the turns (`turns`); a policy proposes who comes next. What is not covered:
cutting, predicting, measuring, placing sessions on devices, quotas.

The rule: after every event all invariants hold (`Core.validate`), and what was decided can be
explained (`Core.story`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from jgpu.sched import events
from jgpu.sched.actions import MemoryPart, Wait
from jgpu.sched.finishing import Finishing
from jgpu.sched.journal import Journal
from jgpu.sched.lanes.alone import LoneRuns
from jgpu.sched.lanes.placing import LanePlacing
from jgpu.sched.lanes.retirement import Retirement
from jgpu.sched.lanes.room import RoomKeeper
from jgpu.sched.lanes.table import LaneTable
from jgpu.sched.ledger import FairShare
from jgpu.sched.limits import Limits
from jgpu.sched.policies import Progress, load_policy
from jgpu.sched.priorities import Priority
from jgpu.sched.reports.snapshot import Snapshot, take_snapshot
from jgpu.sched.sessions.progress import SessionProgress
from jgpu.sched.sessions.session import ScheduledSession
from jgpu.sched.sessions.work import ScheduledWork, weigh
from jgpu.sched.spilling import SpillPlanner
from jgpu.sched.states import IllegalEvent, LaneState, SessionState
from jgpu.sched.turns import Turns
from jgpu.sched.waits import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jgpu.sched.actions import Action
    from jgpu.sched.journal import StoryLine

__all__ = ["Core"]

_IDLE: Final = SessionState.IDLE
_WAITING: Final = SessionState.WAITING
_CLOSED: Final = SessionState.CLOSED


class Core:
    """Decides about the lanes, turns and memory of one device.

    Nothing runs before `LanesConfigured` says what the device has.
    """

    def __init__(self, policy: str = "fair", limits: Limits | None = None) -> None:
        """Make a core; raises `ConfigError` for a policy that does not exist."""
        self._limits = limits or Limits()
        self._journal = Journal()
        self._ledger = FairShare(self._limits)
        self._table = LaneTable(self._limits, self._journal, self._ledger)
        self._room = RoomKeeper(self._limits, self._journal, self._table)
        self._placing = LanePlacing(self._limits, self._journal, self._table, self._room)
        self._turns = Turns(
            self._limits, self._journal, self._ledger, self._table, load_policy(policy)
        )
        self._finishing = Finishing(self._limits, self._table)
        self._ledger.weigh_batch(self._turns.policy.batch_part)
        self._spilling = SpillPlanner(self._limits, self._journal, self._table, self._room)
        self._retirement = Retirement(self._journal, self._table, self._turns, self._spilling)
        table = self._table
        self._alone = LoneRuns(
            self._limits, self._journal, self._ledger, table, self._room, self._turns,
            self._finishing, self._spilling,
        )  # fmt: skip
        #: asked before a work is run of which the core has not heard
        self.would_start, self.has_turn = self._alone.would_start, self._alone.has_turn
        #: jobs there are, and a number that grows when one comes or goes
        self._jobs = self._version = 0
        #: jobs that have arrived
        self._arrivals = 0
        #: the youngest work
        self._last_work = -1
        self._handlers: dict[type[events.Event], Callable[..., None]] = {
            events.SessionOpened: self._session_opened,
            events.SessionClosed: self._session_closed,
            events.CellStarted: self._cell_started,
            events.CellEnded: self._cell_ended,
            events.SessionIdle: self._session_idle,
            events.WorkArrived: self._work_arrived,
            events.SegmentsFinished: self._segments_finished,
            events.WorkRan: self._work_ran,
            events.WorkCancelled: self._work_cancelled,
            events.MemoryMeasured: self._memory_measured,
            events.LanesConfigured: self._lanes_configured,
            events.LaneRetired: self._lane_retired,
            events.SessionSpilled: self._session_spilled,
            events.SessionRestored: self._session_restored,
            events.MemoryWanted: self._memory_wanted,
            events.MemoryShort: self._memory_short,
            events.SpillAsked: self._spill_asked,
            events.LoopTold: self._loop_told,
            events.UserConfigured: self._user_configured,
            events.TimeCharged: self._time_charged,
            events.TimePassed: lambda event: None,
            events.PolicyChanged: self._policy_changed,
            events.DrainChanged: lambda event: table.drain(on=event.on),
        }

    # --- the one entrance

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Take note of an event that happened at `now` (seconds), and return what to do.

        Raises `IllegalEvent` for an event that cannot have happened and `ConfigError` for a
        policy that does not exist; neither changes anything.
        """
        journal, table, turns, kind = self._journal, self._table, self._turns, type(event)
        journal.begin(kind.__name__, now)
        self._ledger.charge(journal.now, table.lanes.values())
        self._handlers[kind](event)
        if table.retired:
            self._retirement.clear()
        # What every event asks is asked as plain names: who must give up their place, and who
        # waits for one, for room in theirs, or for memory to go or to come.
        if table.closing or table.committed > table.capacity:
            self._placing.sweep()
        if turns.policy.plans_lanes:
            self._plan_lanes()
        spilling = self._spilling
        awaited = table.unplaced or table.awaiting_growth or table.starving is not None
        if awaited or spilling.leaving or spilling.stranded:
            self._placing.make_room(spilling)
        turns.fill_all()
        for session in journal.waiting:
            self._tell_wait(session)
        return journal.actions

    def _tell_wait(self, session: ScheduledSession) -> None:
        if session.state is _WAITING:
            journal, users = self._journal, reason(session, self._table).users
            journal.note(session.story, "waits", f"for {', '.join(users) or 'nobody'}")
            journal.act(Wait(session.id, users, cause=journal.cause))

    # --- sessions and cells

    def _live(self, session_id: int) -> ScheduledSession | None:
        """Return a session whose client is still there."""
        session = self._table.sessions.get(session_id)
        return None if session is None or session.state is _CLOSED else session

    def _session_opened(self, event: events.SessionOpened) -> None:
        if event.session in self._table.sessions:
            raise IllegalEvent(f"Session {event.session} was opened twice.")
        _check_user(event.user, event.weight)
        if event.priority not in list(Priority):
            raise IllegalEvent(f"Session {event.session} has no class {event.priority}.")
        if len(self._ledger.users) > self._limits.users_kept:
            self._ledger.forget({each.user.name for each in self._table.sessions.values()})
        user = self._ledger.user(event.user, event.weight)
        story: deque[StoryLine] = deque(maxlen=self._limits.story_entries)
        times: deque[float] = deque(maxlen=self._limits.iterations_kept)
        session = ScheduledSession(
            event.session,
            user,
            story,
            priority=event.priority,
            progress=SessionProgress(iteration_times=times),
        )
        if session.priority == Priority.INTERACTIVE:
            session.lead_s = self._limits.quantum_s
        self._table.sessions[event.session] = session
        self._journal.note(story, "opens", f"for {event.user}")

    def charge_of(self, session: int) -> Callable[[], float]:
        """How to ask what an open session has been charged, in seconds, also after it closed."""
        found = self._table.sessions[session]
        return lambda: found.progress.device_seconds

    def ahead_s(self, session: int) -> float:
        """How much longer a session's user has had the device than the least served user with work.

        In seconds by weight; not above 0 where others have had as much, or none has work.
        """
        return self._ledger.ahead_s(self._table.sessions[session].user)

    @property
    def users_at_work(self) -> int:
        """How many users have work in a lane."""
        return len(self._ledger.active)

    def _session_closed(self, event: events.SessionClosed) -> None:
        session = self._live(event.session)
        if session is None:
            return
        self._drop(session, [work for work in session.queue if not work.started])
        session.become(SessionState.CLOSED)
        if session.arrival:
            self._count_job(-1)
        self._spilling.forget(session)
        self._journal.note(session.story, "closes", "the client is gone")
        self._settle(session)

    def _cell_started(self, event: events.CellStarted) -> None:
        session = self._live(event.session)
        if session is not None:
            self._journal.note(session.story, "begins a cell", "told by the client")
            self._arrive(session)
            self._spilling.cell_started(session)

    def _cell_ended(self, event: events.CellEnded) -> None:
        session = self._live(event.session)
        if session is not None:
            self._journal.note(session.story, "ends a cell", "told by the client")
            self._end_iteration(session)

    def _session_idle(self, event: events.SessionIdle) -> None:
        session = self._live(event.session)
        if session is None:
            return
        self._end_iteration(session)
        if session.state is SessionState.IDLE:
            if session.arrival:
                self._count_job(-1)
            session.arrival = 0
            if session.lane is not None:
                self._table.leave(session, "idle")

    def _arrive(self, session: ScheduledSession) -> None:
        if not session.arrival:
            self._count_job(1)
        self._arrivals += 1
        session.arrival = self._arrivals
        session.progress.arrive()

    def _count_job(self, change: int) -> None:
        self._jobs += change
        self._version += 1

    def _loop_told(self, event: events.LoopTold) -> None:
        session = self._live(event.session)
        if session is None:
            return
        if not (event.left is None or event.left >= 0) or not 0 <= event.iteration_s < float("inf"):
            raise IllegalEvent(f"Session {event.session} told of a loop that cannot be: {event}.")
        session.progress.loop_end = (
            None if event.left is None else session.progress.iterations + event.left
        )
        session.progress.foretold_s = event.iteration_s

    def _time_charged(self, event: events.TimeCharged) -> None:
        if not 0 <= event.seconds < float("inf"):
            raise IllegalEvent(
                f"Session {event.session} cannot be charged {event.seconds} seconds."
            )
        session = self._live(event.session)
        if session is not None:
            self._ledger.charge_beside(session, event.seconds)
            self._journal.note(session.story, f"pays for {event.seconds:.6f} s", "beside the lanes")

    def _user_configured(self, event: events.UserConfigured) -> None:
        _check_user(event.user, event.weight)
        self._ledger.configure(event.user, event.weight, throttled=event.throttled)

    # --- work

    def _work_arrived(self, event: events.WorkArrived) -> None:
        session = self._table.sessions.get(event.session)
        if session is None or session.state is _CLOSED:
            return
        if event.work <= self._last_work:
            raise IllegalEvent(f"Work {event.work} arrived after work {self._last_work}.")
        seconds, claim = weigh(event, self._limits)
        self._last_work = event.work
        if not seconds:
            if event.ends_iteration:
                self._end_iteration(session)
            return
        if not session.arrival:
            self._arrive(session)
        session.add(ScheduledWork(event.work, seconds, event.ends_iteration, claim))
        if len(session.queue) == 1:
            self._begin_to_wait(session)
        if claim or session.room.claim:
            self._claim(session)

    def _begin_to_wait(self, session: ScheduledSession) -> None:
        """Queue a session, that had nothing queued, for its turn or for a lane."""
        lane = session.lane
        if lane is None:
            self._table.wait_for_lane(session)
        else:
            if lane.holder is not session:
                lane.await_turn(session, self._journal.now)
                lane.look_at_s = 0.0
            if not session.in_flight:
                self._ledger.enter(session)
        self._settle(session)

    def _segments_finished(self, event: events.SegmentsFinished) -> None:
        session = self._finishing.finish(event)
        if session is None:
            return
        if session.room.claim:
            self._claim(session)
        if not session.in_flight:
            self._settle(session)

    def _work_ran(self, event: events.WorkRan) -> None:
        session = self._live(event.session)
        if session is not None:
            if event.work <= self._last_work:
                raise IllegalEvent(f"Work {event.work} ran after work {self._last_work}.")
            self._alone.ran(session, event)
            self._last_work = event.work

    def _work_cancelled(self, event: events.WorkCancelled) -> None:
        session = self._live(event.session)
        if session is None:
            return
        named = set(event.works)
        taken = [work for work in session.queue if work.id in named and not work.started]
        if taken:
            self._drop(session, taken)
            self._journal.note(session.story, f"loses {len(taken)} works", "cancelled")
            self._settle(session)

    def _drop(self, session: ScheduledSession, works: Iterable[ScheduledWork]) -> None:
        """Take works, none of them started, out of a session's queue."""
        session.remove(works)
        self._claim(session)
        if session.queue:
            return
        if session.lane is not None:
            session.lane.waiting.pop(session.id, None)
        else:
            self._table.unplaced.pop(session.id, None)
            session.waiting.lane_since = None

    def _end_iteration(self, session: ScheduledSession) -> None:
        """Let an iteration end with the youngest work there is, or now where none is left."""
        work = session.last_work
        if work is not None:
            if work.ends_iteration:
                return
            work.ends_iteration = True
            if work.started < len(work.seconds):
                return
        elif session.iteration_open:
            self._finishing.end_iteration(session)
        if session.iteration_open:
            session.iteration_open = False
            if session.room.suspended:
                self._table.resume(session)
            self._claim(session)

    def _settle(self, session: ScheduledSession) -> None:
        """Bring a session's state in line with what is queued and in flight."""
        if session.state is _CLOSED:
            if not session.has_work:
                self._table.forget(session)
            return
        if session.in_flight:
            return
        state = _WAITING if session.queue else _IDLE
        if state is session.state:
            return
        session.become(state)
        if state is _WAITING:
            session.waiting.began = self._journal.now
            self._journal.waiting.append(session)
            return
        self._ledger.leave(session)
        self._table.changed = True

    def _claim(self, session: ScheduledSession) -> None:
        """Take over what the session's unfinished work is known to need."""
        room = session.room
        claim = room.claims[0].claim if room.claims else session.current_claim()
        if claim != room.claim:
            room.claim = claim
            self._room.refit(session)

    # --- memory, lanes, policy

    def _memory_measured(self, event: events.MemoryMeasured) -> None:
        session = self._table.sessions.get(event.session)
        if session is None:
            return
        least = min(event.resident, event.kept, event.transient, event.stale, event.spilled)
        if least < 0 or event.stale > event.kept:
            what = "less than nothing" if least < 0 else "more stale bytes than it keeps"
            raise IllegalEvent(f"Session {event.session} measured {what}: {event}.")
        self._room.measure(session, event.resident, event.kept, event.transient, event.spilled)
        session.memory.stale = event.stale

    def _session_spilled(self, event: events.SessionSpilled) -> None:
        session = self._table.sessions.get(event.session)
        if session is not None:
            self._spilling.spilled(session, event)

    def _session_restored(self, event: events.SessionRestored) -> None:
        session = self._table.sessions.get(event.session)
        if session is not None:
            self._spilling.restored(session, event)

    def _memory_wanted(self, event: events.MemoryWanted) -> None:
        session = self._live(event.session)
        if session is not None:
            self._spilling.wanted(session, event.spilled)

    def _memory_short(self, event: events.MemoryShort) -> None:
        if event.nbytes <= 0:
            raise IllegalEvent(f"Session {event.session} is short of {event.nbytes} bytes.")
        session = self._live(event.session)
        if session is not None:
            self._spilling.short(session, event.nbytes)

    def _spill_asked(self, event: events.SpillAsked) -> None:
        session = self._live(event.session)
        if session is not None:
            part = MemoryPart.ALL if event.resident else MemoryPart.KEPT
            self._spilling.ask(session, part, "asked for")

    def _lanes_configured(self, event: events.LanesConfigured) -> None:
        if event.maximum < 1 or event.capacity < 0:
            raise IllegalEvent(f"No device has {event.maximum} lanes and {event.capacity} bytes.")
        self._table.configure(event.maximum, event.capacity)
        for session in self._table.sessions.values():
            self._room.refit(session)

    def _lane_retired(self, event: events.LaneRetired) -> None:
        lane = self._table.lanes.get(event.lane)
        if lane is None or lane.state is LaneState.RETIRED or not lane.in_flight:
            return
        for session in self._retirement.retire(lane, event.returned):
            if session.state is SessionState.CLOSED:
                self._drop(session, [work for work in session.queue if not work.started])
            self._settle(session)

    def _policy_changed(self, event: events.PolicyChanged) -> None:
        self._turns.policy = load_policy(event.policy)
        self._ledger.weigh_batch(self._turns.policy.batch_part)
        if not self._turns.policy.plans_lanes:
            self._table.plan(self._table.configured)

    def _plan_lanes(self) -> None:
        """Ask the policy how many lanes it wants now."""
        turns, table = self._turns, self._table
        progress = Progress(
            self._journal.now,
            self._finishing.worked_s,
            self._jobs,
            self._version,
            len(table.lanes) - table.closing - table.retired,
            table.configured,
        )
        lanes = min(max(1, turns.policy.lanes(progress, self._limits)), table.configured)
        if lanes != table.maximum:
            table.plan(lanes)
        if len(table.lanes) - table.retired < lanes < progress.jobs + 1:
            self._placing.spread()

    # --- what is shown

    def story(self, session_id: int) -> tuple[StoryLine, ...]:
        """Return the last lines of what happened to a session, and why; () if it is unknown."""
        session = self._table.sessions.get(session_id)
        return () if session is None else tuple(session.story)

    def snapshot(self) -> Snapshot:
        """Return a copy of what is worth showing."""
        return take_snapshot(self._table, self._ledger, self._turns, self._finishing)

    def validate(self) -> None:
        """Check every invariant; raises `AssertionError` where one does not hold."""
        self._table.validate()
        self._ledger.validate()
        for session_id, session in self._table.sessions.items():
            assert session.id == session_id
            session.validate()
        self._spilling.validate()
        self._turns.validate()


def _check_user(name: str, weight: float) -> None:
    if not name or not 0 < weight < float("inf"):
        raise IllegalEvent(f"No user can be {name!r} with a weight of {weight}.")
