"""Between the sessions and the scheduler: offers works, carries out decisions, reports ends.

Works are offered to `jgpu.sched` in each session's order with what is predicted of them; what it
starts goes to the device; what the device is through with goes back, measured. Starts are handed
to a lane in batches (`flush`), so that a burst of works costs one hand-over.

Nobody but the core decides who runs when.
"""

import logging
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final

from jgpu.broker.executor.devices.base import Device, LaneJob
from jgpu.broker.executor.devices.idle import IdlePort
from jgpu.broker.executor.memory.spilling import SpillCopier
from jgpu.broker.executor.programs import Definition
from jgpu.broker.executor.scheduling.forecast import Forecast
from jgpu.broker.executor.scheduling.oversized import look_at_oldest
from jgpu.broker.executor.scheduling.rests import NEVER, Rests
from jgpu.broker.executor.scheduling.retiring import take_back
from jgpu.broker.executor.scheduling.riding import may_ride
from jgpu.broker.executor.scheduling.shortage import Shortage
from jgpu.broker.executor.scheduling.trace import Stamped, Trace
from jgpu.broker.executor.scheduling.waits import say_why
from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.tallies import Tallies
from jgpu.broker.executor.works.base import Work, WorkProgress
from jgpu.broker.executor.works.cancel import finish_cancel
from jgpu.broker.executor.works.runs import RunWork
from jgpu.errors import ConfigError
from jgpu.sched import Core, MemoryPart, Snapshot, actions, events
from jgpu.sched.reports.recording import EventRecorder

__all__ = ["SchedulerDriver"]

_log = logging.getLogger(__name__)

#: seconds without work after which a session's place in its lane may go to others
IDLE_S: Final = 0.5


class SchedulerDriver:
    """Carries out what the core decides."""

    def __init__(
        self,
        device: Device,
        core: Core,
        clock: Callable[[], float],
        spilling: SpillCopier,
        rests: Rests = NEVER,
        trace: Trace | None = None,
        recorder: EventRecorder | None = None,
    ) -> None:
        self._device = device
        self._core = core
        self._clock = clock
        self._spilling = spilling
        spilling.on_spilled = lambda session: self._copied(session, events.SessionSpilled)
        spilling.on_restored = lambda session: self._copied(session, events.SessionRestored)
        self._rests = rests
        self._recorder = recorder
        self._trace = trace
        self._keys = count(1)
        self._sessions: dict[int, ExecutorSession] = {}
        self._forecasts: dict[int, Forecast] = {}
        self._works: dict[int, Work] = {}
        #: lease of each launched work
        self._leases: dict[int, int] = {}
        self._starts: dict[int, list[Work]] = {}
        #: by lane, the session that was last given to it
        self._tails: dict[int, ExecutorSession] = {}
        #: resting sessions of which the core was told
        self._idle_told: set[int] = set()
        self._shortage = Shortage(self._make_room, self._is_copying, self._launch_again)
        self._port = IdlePort(device)
        self.tallies, self._draining = Tallies(), False
        #: called when a session has ended and nothing of it runs any more
        self.on_released: Callable[[ExecutorSession], None] = lambda session: None
        #: called when a work showed that the client breaks the protocol
        self.on_violation: Callable[[ExecutorSession, str], None] = lambda session, text: None
        self._handlers: dict[type, Callable[[Any], None]] = {
            actions.Start: self._start,
            actions.OpenLane: lambda a: device.open_lane(a.lane),
            actions.CloseLane: lambda a: device.close_lane(a.lane),
            actions.ResizeLane: lambda a: None,
            actions.MoveLane: lambda a: None,
            actions.Wait: self._wait,
            actions.Spill: lambda a: spilling.spill(self._sessions[a.session], a.part),
            actions.Restore: lambda a: spilling.restore(self._sessions[a.session]),
        }

    # -- sessions ----------------------------------------------------------------------------

    def configure(self, lanes: int, capacity: int) -> None:
        """Before anything else: how many lanes there may be, and what they share."""
        self._tell(events.LanesConfigured(lanes, capacity))

    def open(self, session: ExecutorSession) -> None:
        """A session was adopted."""
        self._sessions[session.number] = session
        self._forecasts[session.number] = Forecast(self._device.facts.capacity)
        self._tell(
            events.SessionOpened(session.number, session.user, session.weight, session.priority)
        )
        session.free_bytes = self.free_bytes
        session.charged_s = self._core.charge_of(session.number)
        owed_s, session.account.owed_s = session.account.owed_s, 0.0
        self.charge(session, owed_s)

    def charge(self, session: ExecutorSession, seconds: float) -> None:
        """Have a session pay for what was computed beside the lanes, or another of its user."""
        if session.ending is not None:
            live = (other for other in session.account.sessions if other.ending is None)
            heir = next(live, None)
            if heir is None:
                session.account.owed_s += seconds
                return
            session = heir
        if seconds > 0:
            self._tell(events.TimeCharged(session.number, seconds))

    def ahead_s(self, session: ExecutorSession) -> float:
        """How much more of the device its user has had than others with work; see the core."""
        return self._core.ahead_s(session.number)

    def users_at_work(self) -> int:
        """How many users have work in a lane."""
        return self._core.users_at_work

    def close(self, session: ExecutorSession) -> None:
        """A session ends: what has not started is dropped; the rest runs out."""
        for work in session.offered:
            if work.state is not WorkProgress.LAUNCHED:
                self._works.pop(work.key, None)
        while len(session.offered) > session.launched:
            session.offered.pop()
        session.received.clear()
        session.held.clear()
        session.queued_bytes = sum(work.nbytes for work in session.offered)
        self._tell(events.SessionClosed(session.number))
        self._abandon(session)
        self._shortage.retry([session])
        self.settle(session)

    def _abandon(self, session: ExecutorSession) -> None:
        """Of a session that has ended only the op in progress goes on, with what it uses."""
        before = session.table.used
        session.abandon()
        if session.launched and session.table.used != before:
            measured = self._forecasts[session.number].measured(session.table, at_rest=False)
            if measured is not None:
                self._tell(events.MemoryMeasured(session.number, *measured))

    def cell_started(self, session: ExecutorSession) -> None:
        """A cell's completion time counts from here."""
        session.cell_first = None
        self._idle_told.discard(session.number)
        self._tell(events.CellStarted(session.number))

    def cell_ended(self, session: ExecutorSession, *, failed: bool) -> None:
        """What was sent so far is a whole iteration; what a failed cell made is garbage, mostly."""
        if failed and session.failed_from is None:
            session.failed_from = session.cell_first
        self.boundary(session)
        if failed and session.quiet and not session.outstanding:
            self._measure(session)
        session.at_boundary = session.at_boundary or session.launched == session.outstanding
        self._tell(events.CellEnded(session.number))

    def loop_told(self, session: ExecutorSession, left: int) -> None:
        """The session's job is known to end after so many iterations."""
        self._tell(events.LoopTold(session.number, left))

    def boundary(self, session: ExecutorSession) -> None:
        """The last work received turns out to end an iteration, be it over or not."""
        works = session.held or session.received or session.offered
        if not works:
            self._end_iteration(session)
            return
        last = works[-1]
        if last.ends_iteration:
            return
        last.ends_iteration = True
        if last.state is WorkProgress.LAUNCHED or last.state is WorkProgress.OFFERED:
            # The core was told otherwise.
            self._tell_boundary(session)
            if last.state is WorkProgress.LAUNCHED:
                session.at_boundary = True

    def _end_iteration(self, session: ExecutorSession) -> None:
        """An iteration ends with no work left of it."""
        session.course.end_iteration()
        if not session.at_boundary:
            session.at_boundary = True
            self._tell_boundary(session)
            if session.quiet:
                self._measure(session)

    def _tell_boundary(self, session: ExecutorSession) -> None:
        """The core hears of a boundary by a work of nothing."""
        self._forecasts[session.number].boundary()
        self._tell(events.WorkArrived(session.number, next(self._keys), (), ends_iteration=True))

    def look_around(self) -> bool:
        """Tell of sessions that rest for long, and those that wait for long; whether to go on."""
        now, again, waiting = self._clock(), False, False
        for session in list(self._sessions.values()):
            if session.ending is not None:
                again = True
                self._abandon(session)
            elif session.outstanding:
                again = True
                waiting = waiting or not session.launched
                self._check_fits(session)
                say_why(session, draining=self._draining)
            elif session.number not in self._idle_told:
                again = True
                if now - session.rests_since >= IDLE_S:
                    self._idle_told.add(session.number)
                    self._tell(events.SessionIdle(session.number))
            elif self._rests.asks(session):
                again = True
                self._ask_to_spill(session, now)
        if waiting:
            self._tell(events.TimePassed())
        return again

    def _ask_to_spill(self, session: ExecutorSession, now: float) -> None:
        """Have a session that has rested for long give its memory up."""
        part = self._rests.due(session, now)
        if part is not None:
            session.rest_asked = part
            self.evict(session, resident=part is MemoryPart.ALL)

    def evict(self, session: ExecutorSession, *, resident: bool) -> None:
        """Have a session give its memory up at its next boundary, its model among it or not."""
        self._tell(events.SpillAsked(session.number, resident))

    def retire(self, lane: int, session: ExecutorSession) -> None:
        """Give a lane up that is at a work of this session, which has ended; the work has not."""
        self.flush()
        back = take_back(self._device, self._sessions.values(), lane, session)
        if back is None:
            return
        _log.warning("lane %d is given up; session %d does not leave it", lane, session.number)
        returned = [work for work in (*back.living, *back.dead) if not work.rides]
        for work in returned:
            del self._leases[work.key]
        for work in back.dead:
            self._works.pop(work.key, None)
        self._tails.pop(lane, None)
        self._tell(events.LaneRetired(lane, tuple(work.key for work in returned)))
        for ended in {work.session for work in back.dead}:
            self.settle(ended)

    def configure_user(self, name: str, weight: float, *, throttled: bool) -> None:
        """A user's share, and whether they have used up what they may use while others wait."""
        self._tell(events.UserConfigured(name, weight, throttled))

    def use_policy(self, name: str) -> None:
        """Another policy decides from now on; one that does not exist is told in the log."""
        try:
            self._tell(events.PolicyChanged(name))
        except ConfigError as error:
            _log.error("The policy stays as it is: %s", error)

    def drain(self, *, on: bool) -> None:
        """Begin no iteration any more, or do again."""
        self._draining = on
        for session in self._sessions.values():
            session.drain_told = session.wait_told = False
        self._tell(events.DrainChanged(on))

    # -- works -------------------------------------------------------------------------------

    def offer(self, session: ExecutorSession) -> None:
        """Tell the core of all works of a session that are ready."""
        if session.ending is not None:
            return
        self._idle_told.discard(session.number)
        session.rest_asked = None
        forecast = self._forecasts[session.number]
        while (work := session.next_ready()) is not None:
            work.key = next(self._keys)
            if session.table.aside and self._spilling.want(session, (work,)):
                spilled = self._forecasts[session.number].held(session.table)[2]
                self._tell(events.MemoryWanted(session.number, spilled))
            if self._trace is not None:
                self._trace.ready(work)
            if may_ride(session, work, self._tails.get(session.lane)):
                self._ride(session, work, forecast)
                continue
            work.claim = forecast.live_bytes(work)
            self._tell_of(work)

    def _tell_of(self, work: Work) -> None:
        self._works[work.key] = work
        segment = (events.Segment(work.predicted_s(), work.claim),)
        self._tell(events.WorkArrived(work.session.number, work.key, segment, work.ends_iteration))

    def _ride(self, session: ExecutorSession, work: Work, forecast: Forecast) -> None:
        forecast.live_bytes(work)
        if work.ends_iteration and not session.at_boundary:
            self._tell(events.WorkArrived(session.number, work.key, (), ends_iteration=True))
        work.rides = True
        session.riders += 1
        self._launch(session, work, session.lane)

    def taken_back(self, session: ExecutorSession, works: Iterable[Work]) -> None:
        """A session was interrupted, and these works of it that were offered were cancelled."""
        keys = tuple(work.key for work in works if not work.rides)
        for key in keys:
            del self._works[key]
        if keys:
            self._tell(events.WorkCancelled(session.number, keys))
        self._shortage.retry([session])

    def flush(self) -> None:
        """Hand what was started to the lanes."""
        while self._starts:
            lane, works = self._starts.popitem()
            jobs: list[LaneJob] = list(works) if self._trace is None else [*map(Stamped, works)]
            self._device.submit(lane, jobs)

    def collect(self) -> None:
        """Deal with what the device is through with."""
        for lane, job in self._device.completions():
            if self._trace is not None and isinstance(job, Stamped):
                job = self._trace.over(lane, job)
            assert isinstance(job, Work)
            self._finished(lane, job)

    def settle(self, session: ExecutorSession) -> None:
        """Do what waited for the session's works to be over, if they are."""
        if not session.quiet:
            return
        if session.ending is not None:
            if self._sessions.pop(session.number, None) is not None:
                del self._forecasts[session.number]
                self._idle_told.discard(session.number)
                if self._tails.get(session.lane) is session:
                    del self._tails[session.lane]
                session.release()
                self.on_released(session)
            return
        if session.offered or session.received:
            return
        if session.cancel_requests:
            if finish_cancel(session, self._port):
                self._end_iteration(session)
            self._measure(session)
            self.offer(session)
        if not session.outstanding and session.after:
            session.settle(session.after, self._port)
            session.after_bytes = 0
            self._measure(session)

    def snapshot(self) -> Snapshot:
        """What the core shows of itself."""
        return self._core.snapshot()

    def free_bytes(self) -> int:
        """Bytes of the capacity that no session holds."""
        sessions = tuple(self._sessions.values())  # lanes ask, too
        held = sum(each.table.used - each.table.spilled for each in sessions)
        return max(0, self._device.facts.capacity - held)

    def validate(self) -> None:
        """Check what must always hold between two rounds."""
        self._core.validate()
        known = [work for session in self._sessions.values() for work in session.offered]
        leaders = [s.leader for s in self._sessions.values() if s.leader is not None]
        told = [*leaders, *(work for work in known if not work.rides)]
        assert {work.key for work in told} == self._works.keys()
        launched = {
            work.key
            for work in told
            if work.state is WorkProgress.LAUNCHED or work.state is WorkProgress.DONE
        }
        assert launched == self._leases.keys()
        assert self._forecasts.keys() == self._sessions.keys()

    # -- memory on its way -------------------------------------------------------------------

    def _copied(
        self,
        session: ExecutorSession,
        event: type[events.SessionSpilled | events.SessionRestored],
    ) -> None:
        """Tell the core where the session's memory is now, and do what waited for that."""
        if session.ending is None:
            held = self._forecasts[session.number].held(session.table)
            self._tell(event(session.number, *held))
        self._shortage.retry(self._sessions.values())
        self.settle(session)

    def _make_room(self, session: ExecutorSession, nbytes: int) -> None:
        """Have others give memory up for a work that did not get it in its midst."""
        self._tell(events.MemoryShort(session.number, nbytes))

    def _is_copying(self) -> bool:
        return any(session.copying for session in self._sessions.values())

    def _launch_again(self, lane: int, works: list[Work]) -> None:
        self._starts.setdefault(lane, []).extend(works)

    # -- between core and device -------------------------------------------------------------

    def _tell(self, event: events.Event) -> None:
        now = self._clock()
        if self._recorder is not None:
            self._recorder.note(event, now)
        for action in self._core.handle(event, now):
            self._handlers[type(action)](action)

    def _start(self, action: actions.Start) -> None:
        work = self._works[action.work]
        session = work.session
        session.lane, session.riders, session.waits_for = action.lane, 0, ()
        self._leases[work.key] = action.epoch
        self._launch(session, work, action.lane)
        # What rode behind it in a lane that was retired does so again.
        while session.launched < len(session.offered) and session.offered[session.launched].rides:
            session.riders += 1
            self._launch(session, session.offered[session.launched], action.lane)

    def _launch(self, session: ExecutorSession, work: Work, lane: int) -> None:
        work.state = WorkProgress.LAUNCHED
        work.began_at_boundary = session.at_boundary
        session.launched += 1
        session.at_boundary = work.ends_iteration or (work.rides and session.at_boundary)
        self._starts.setdefault(lane, []).append(work)
        self._tails[lane] = session

    def _finished(self, lane: int, work: Work) -> None:
        if work.waits:
            self._shortage.comes_back(work)
            return
        session = work.session
        work.measured_s += work.earlier_s
        session.complete(work)
        if work.violation is not None and session.ending is None:
            self.on_violation(session, work.violation)
        if isinstance(work, RunWork):
            self.tallies.programs.note(work.measured_s)
            if work.whole and isinstance(work.definition, Definition):
                work.definition.observe(work.measured_s)
        if session.to_restore and not session.launched and session.ending is None:
            self._spilling.restore(session)
        if not session.outstanding:
            session.rests_since = self._clock()
        if session.ending is None and (work.ends_iteration or not session.outstanding):
            self._measure(session)
        self._report(lane, work)
        self.settle(session)

    def _report(self, lane: int, work: Work) -> None:
        """Tell the core of a work and of those that rode behind it, when the last is done."""
        session = work.session
        if not work.rides:
            session.leader, session.leader_s = work, 0.0
        session.leader_s += work.measured_s
        if session.offered and session.offered[0].rides:
            return
        leader, session.leader = session.leader, None
        assert leader is not None, "nobody rides alone"
        del self._works[leader.key]
        lease = self._leases.pop(leader.key)
        self._tell(events.SegmentsFinished(lane, lease, leader.key, 1, session.leader_s))

    def _measure(self, session: ExecutorSession) -> None:
        if session.failed_from is not None and session.quiet and not session.outstanding:
            session.table.mark_stale(session.failed_from)
            session.failed_from = None
        measured = self._forecasts[session.number].measured(
            session.table, at_rest=not session.outstanding
        )
        if measured is not None:
            self._tell(events.MemoryMeasured(session.number, *measured))

    def _wait(self, action: actions.Wait) -> None:
        session = self._sessions.get(action.session)
        if session is None:
            return
        # Told by `look_around` if it lasts: turns change often.
        session.waits_for, session.wait_told = action.waits_for, False

    def _check_fits(self, session: ExecutorSession) -> None:
        """A work that waits and could not fit if all others were gone waits for them no longer."""
        if (found := look_at_oldest(session, self._port)) is None:
            return
        works, again = found
        self.taken_back(session, works)
        for work in works if again else ():
            work.key = next(self._keys)
            self._tell_of(work)
        self.settle(session)
