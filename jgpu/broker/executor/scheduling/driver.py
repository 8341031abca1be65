"""Between the sessions and the scheduler: offers works, carries out decisions, reports ends.

Works are offered to `jgpu.sched` in each session's order with what is predicted of them; what it
starts goes to the device; what the device is through with goes back, measured. Starts are handed
to a lane in batches (`flush`), so that a burst of works costs one hand-over.

Nobody but the core decides who runs when.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from jgpu.broker.executor.devices.base import Device
from jgpu.broker.executor.devices.idle import IdlePort
from jgpu.broker.executor.memory.spilling import SpillCopier
from jgpu.broker.executor.programs import Definition
from jgpu.broker.executor.scheduling.emptying import Emptying
from jgpu.broker.executor.scheduling.feed import LaneFeed
from jgpu.broker.executor.scheduling.forecast import Forecast
from jgpu.broker.executor.scheduling.rests import NEVER, Rests
from jgpu.broker.executor.scheduling.riding import may_ride
from jgpu.broker.executor.scheduling.shortway import ShortWay, ShortWays
from jgpu.broker.executor.scheduling.stuck.oversized import look_at_oldest
from jgpu.broker.executor.scheduling.stuck.retiring import take_back
from jgpu.broker.executor.scheduling.stuck.shortage import Shortage
from jgpu.broker.executor.scheduling.telling import CoreTeller, arrival
from jgpu.broker.executor.scheduling.trace import Stamped, Trace
from jgpu.broker.executor.scheduling.trials import Trials
from jgpu.broker.executor.scheduling.waits import say_why
from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.tallies import Tallies
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.cancel import finish_cancel
from jgpu.broker.executor.works.runs import RunWork
from jgpu.broker.executor.works.states import WorkProgress
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
        self._sessions: dict[int, ExecutorSession] = {}
        self._forecasts: dict[int, Forecast] = {}
        self._works: dict[int, Work] = {}
        #: lease of each launched work
        self._leases: dict[int, int] = {}
        self._feed = LaneFeed(device, trace, Trials(clock))
        self._shortage = Shortage(self._make_room, self._is_copying, self._feed.launch_again)
        self._port = IdlePort(device)
        self.tallies, self._draining = Tallies(), False
        self.emptying = Emptying(device)
        #: called when a session has ended and nothing of it runs any more
        self.on_released: Callable[[ExecutorSession], None] = lambda session: None
        #: called when a work showed that the client breaks the protocol
        self.on_violation: Callable[[ExecutorSession, str], None] = lambda session, text: None
        handlers: dict[type, Callable[[Any], None]] = {
            actions.Start: self._start,
            actions.OpenLane: lambda a: device.open_lane(a.lane),
            actions.CloseLane: lambda a: device.close_lane(a.lane),
            actions.ResizeLane: lambda a: None,
            actions.MoveLane: lambda a: None,
            actions.Wait: self._wait,
            actions.Spill: lambda a: spilling.spill(self._sessions[a.session], a.part),
            actions.Restore: lambda a: spilling.restore(self._sessions[a.session]),
        }
        self._teller = CoreTeller(core, clock, handlers, recorder)
        self._tell = self._teller.tell
        way = ShortWay(
            device, core, clock, self._teller, self._feed, self._forecasts, self._measured
        )
        #: do now what may be done now
        self.short = ShortWays(way, self.tallies, self._works)

    @property
    def trials(self) -> Trials:
        """What runs alone."""
        return self._feed.trials

    # -- sessions ----------------------------------------------------------------------------

    def configure(self, lanes: int, capacity: int) -> None:
        """Before anything else: how many lanes there may be, and what they share."""
        self._tell(events.LanesConfigured(lanes, capacity))

    def open(self, session: ExecutorSession) -> None:
        """A session was adopted."""
        number, owner = session.number, session.owner
        self._sessions[number] = session
        self._forecasts[number] = Forecast(self._device.facts.capacity)
        self._tell(events.SessionOpened(number, owner.user, owner.weight, owner.priority))
        session.account.free_bytes = self.free_bytes
        session.standing.charged_s = self._core.charge_of(number)
        owed_s, session.account.owed_s = session.account.owed_s, 0.0
        self.charge(session, owed_s)

    def charge(self, session: ExecutorSession, seconds: float) -> None:
        """Have a session pay for what was computed beside the lanes, or another of its user."""
        if session.life.has_ended:
            live = (other for other in session.account.sessions if not other.life.has_ended)
            if (heir := next(live, None)) is None:
                session.account.owed_s += seconds
                return
            session = heir
        if seconds > 0:
            self._tell(events.TimeCharged(session.number, seconds))

    def ahead_s(self, session: ExecutorSession) -> float:
        """How much more of the device its user has had than others with work; see the core."""
        self._teller.catch_up()
        return self._core.ahead_s(session.number)

    def users_at_work(self) -> int:
        """How many users have work in a lane."""
        return self._core.users_at_work

    def close(self, session: ExecutorSession) -> None:
        """A session ends: what has not started is dropped; the rest runs out."""
        for work in session.queue.drop_waiting():
            self._works.pop(work.key, None)
        self._tell(events.SessionClosed(session.number))
        self._abandon(session)
        self._shortage.retry([session])
        self.settle(session)

    def _abandon(self, session: ExecutorSession) -> None:
        """Of a session that has ended only the op in progress goes on, with what it uses."""
        before = session.table.used
        session.abandon()
        if session.queue.launched and session.table.used != before:
            told = self._forecasts[session.number].measured(session.table, at_rest=False)
            if told is not None:
                self._tell(events.MemoryMeasured(session.number, *told))

    def cell_started(self, session: ExecutorSession) -> None:
        """A cell's completion time counts from here."""
        session.cells.forget_buffers()
        session.rest.is_told = False
        self._tell(events.CellStarted(session.number))

    def cell_ended(self, session: ExecutorSession, *, failed: bool) -> None:
        """What was sent so far is a whole iteration; what a failed cell made is garbage, mostly."""
        queue, standing = session.queue, session.standing
        if failed:
            session.cells.fail()
        self.boundary(session)
        if failed and session.quiet and not queue.outstanding:
            self._measure(session)
        standing.at_boundary = standing.at_boundary or queue.launched == queue.outstanding
        self._tell(events.CellEnded(session.number))

    def loop_told(self, session: ExecutorSession, left: int) -> None:
        """The session's job is known to end after so many iterations."""
        self._tell(events.LoopTold(session.number, left))

    def boundary(self, session: ExecutorSession) -> None:
        """The last work received turns out to end an iteration, be it over or not."""
        queue = session.queue
        works = queue.held or queue.received or queue.offered
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
                session.standing.at_boundary = True

    def _end_iteration(self, session: ExecutorSession) -> None:
        """An iteration ends with no work left of it."""
        session.course.end_iteration()
        if not session.standing.at_boundary:
            session.standing.at_boundary = True
            self._tell_boundary(session)
            if session.quiet:
                self._measure(session)

    def _tell_boundary(self, session: ExecutorSession) -> None:
        """The core hears of a boundary by a work of nothing."""
        number = session.number
        self._forecasts[number].boundary()
        self._tell(events.WorkArrived(number, next(self._teller.keys), (), ends_iteration=True))

    def look_around(self) -> bool:
        """Tell of sessions that rest for long, and those that wait for long; whether to go on."""
        now, again, waiting = self._clock(), False, False
        for session in list(self._sessions.values()):
            if session.life.has_ended:
                again = True
                self._abandon(session)
            elif session.queue.outstanding:
                again = True
                waiting = waiting or not session.queue.launched
                self._check_fits(session)
                say_why(session, draining=self._draining)
            elif not session.rest.is_told:
                again = True
                if now - session.rest.since >= IDLE_S:
                    session.rest.is_told = True
                    self._tell(events.SessionIdle(session.number))
            elif self._rests.asks(session.rest):
                again = True
                self._ask_to_spill(session, now)
        if waiting:
            self._tell(events.TimePassed())
        return again

    def _ask_to_spill(self, session: ExecutorSession, now: float) -> None:
        """Have a session that has rested for long give its memory up."""
        if (part := self._rests.due(session.rest, now)) is not None:
            session.rest.asked = part
            self.evict(session, resident=part is MemoryPart.ALL)

    def evict(self, session: ExecutorSession, *, resident: bool) -> None:
        """Have a session give its memory up at its next boundary, its model among it or not."""
        self._tell(events.SpillAsked(session.number, resident))

    def retire(self, lane: int, session: ExecutorSession) -> None:
        """Give a lane up that is at a work of this session, which has ended; the work has not."""
        self._teller.catch_up()
        self._feed.flush(at_once=True)
        if (back := take_back(self._device, self._sessions.values(), lane, session)) is None:
            return
        _log.warning("lane %d is given up; session %d does not leave it", lane, session.number)
        returned = [work for work in (*back.living, *back.dead) if not work.rides]
        for work in returned:
            del self._leases[work.key]
        for work in back.dead:
            self._works.pop(work.key, None)
        self._feed.give_up(lane)
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
            session.wait.begin_anew()
        self._tell(events.DrainChanged(on))

    # -- works -------------------------------------------------------------------------------

    def offer(self, session: ExecutorSession) -> None:
        """Tell the core of all works of a session that are ready."""
        if session.life.has_ended:
            return
        rest, queue = session.rest, session.queue
        rest.is_told, rest.asked = False, None
        forecast = self._forecasts[session.number]
        while (work := queue.offer_next()) is not None:
            work.key = next(self._teller.keys)
            if session.table.aside and self._spilling.want(session, (work,)):
                spilled = self._forecasts[session.number].held(session.table)[2]
                self._tell(events.MemoryWanted(session.number, spilled))
            if self._feed.trace is not None:
                self._feed.trace.ready(work)
            if may_ride(session, work, self._feed.tail(session.standing.lane)):
                self._ride(session, work, forecast)
                continue
            work.claim = forecast.live_bytes(work)
            self._works[work.key] = work
            if not self._teller.run_first(session, work, self._device, self._feed):
                self._tell(arrival(work))

    def _ride(self, session: ExecutorSession, work: Work, forecast: Forecast) -> None:
        forecast.live_bytes(work)
        standing = session.standing
        if work.ends_iteration and not standing.at_boundary:
            self._tell(events.WorkArrived(session.number, work.key, (), ends_iteration=True))
        work.rides = True
        standing.riders += 1
        self._feed.launch(session, work, standing.lane)

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
        if self._feed.starts:
            self._feed.flush()

    def finish(self) -> None:
        """The executor ends: tell of what ran; write down when works ran, if that was asked for."""
        self.short.catch_up()
        if self._feed.trace is not None:
            self._feed.trace.write()

    def collect(self) -> None:
        """Deal with what the device is through with."""
        teller, over = self._teller, self._device.completions()
        if teller.untold is not None and (over or not self.short.others_heard()):
            teller.catch_up()
        for lane, job in over:
            if self._feed.trace is not None and isinstance(job, Stamped):
                job = self._feed.trace.over(lane, job)
            assert isinstance(job, Work)
            self._finished(lane, job)
        if over and teller.untold is not None:
            teller.catch_up()  # with what waited for the end of these

    def settle(self, session: ExecutorSession) -> None:
        """Do what waited for the session's works to be over, if they are."""
        if not session.quiet or (session.life.has_ended and self.emptying.takes(session)):
            return
        if session.life.has_ended:
            if self._sessions.pop(session.number, None) is not None:
                del self._forecasts[session.number]
                self._feed.forget(session)
                session.release()
                self.on_released(session)
            return
        queue = session.queue
        if queue.offered or queue.received:
            return
        if queue.cancel_requests:
            if finish_cancel(session, self._port):
                self._end_iteration(session)
            self._measure(session)
            self.offer(session)
        if queue.notes and not queue.outstanding:
            session.settle(queue.notes, self._port)
            queue.notes_bytes = 0
            self._measure(session)

    def snapshot(self) -> Snapshot:
        """What the core shows of itself."""
        self._teller.catch_up()
        return self._core.snapshot()

    def free_bytes(self) -> int:
        """Bytes of the capacity that no session holds."""
        tables = [each.table for each in tuple(self._sessions.values())]  # lanes ask, too
        held = sum(each.used - each.spilled for each in tables)
        return max(0, self._device.facts.capacity - held)

    def validate(self) -> None:
        """Check what must always hold between two rounds."""
        self._core.validate()
        known = [work for session in self._sessions.values() for work in session.queue.offered]
        standings = [session.standing for session in self._sessions.values()]
        leaders = [each.leader for each in standings if each.leader is not None]
        told = [*leaders, *(work for work in known if not work.rides)]
        assert {work.key for work in told} == self._works.keys()
        begun = WorkProgress.LAUNCHED, WorkProgress.DONE
        assert {work.key for work in told if work.state in begun} == self._leases.keys()
        assert self._forecasts.keys() == self._sessions.keys()

    # -- memory on its way -------------------------------------------------------------------

    def _copied(
        self,
        session: ExecutorSession,
        event: type[events.SessionSpilled | events.SessionRestored],
    ) -> None:
        """Tell the core where the session's memory is now, and do what waited for that."""
        if not session.life.has_ended:
            held = self._forecasts[session.number].held(session.table)
            self._tell(event(session.number, *held))
        self._shortage.retry(self._sessions.values())
        self.settle(session)

    def _make_room(self, session: ExecutorSession, nbytes: int) -> None:
        """Have others give memory up for a work that did not get it in its midst."""
        self._tell(events.MemoryShort(session.number, nbytes))

    def _is_copying(self) -> bool:
        return any(session.movement.is_copying for session in self._sessions.values())

    # -- between core and device -------------------------------------------------------------

    def _start(self, action: actions.Start) -> None:
        work = self._works[action.work]
        session = work.session
        queue, standing = session.queue, session.standing
        self._leases[work.key], session.wait.users = action.epoch, ()
        if work.state is WorkProgress.LAUNCHED:
            return  # it ran first
        standing.lane, standing.riders = action.lane, 0
        self._feed.launch(session, work, action.lane)
        # What rode behind it in a lane that was retired does so again.
        while queue.launched < len(queue.offered) and queue.offered[queue.launched].rides:
            standing.riders += 1
            self._feed.launch(session, queue.offered[queue.launched], action.lane)

    def _finished(self, lane: int, work: Work) -> None:
        self._feed.over(lane, work)
        if work.waits:
            self._shortage.comes_back(work)
            return
        session, queue = work.session, work.session.queue
        work.measured_s += work.earlier_s
        session.complete(work)
        if work.violation is not None and not session.life.has_ended:
            self.on_violation(session, work.violation)
        if isinstance(work, RunWork):
            self.tallies.programs.note(work.measured_s)
            if work.whole and isinstance(work.definition, Definition):
                work.definition.observe(work.measured_s)
        has_ended, rests = session.life.has_ended, not queue.outstanding
        if session.movement.is_due and not queue.launched and not has_ended:
            self._spilling.restore(session)
        if rests:
            session.rest.since = self._clock()
        if not has_ended and (rests or work.ends_iteration):
            self._measure(session)
        self._report(lane, work)
        self.settle(session)

    def _report(self, lane: int, work: Work) -> None:
        """Tell the core of a work and of those that rode behind it, when the last is done."""
        session = work.session
        standing, offered = session.standing, session.queue.offered
        if not work.rides:
            standing.leader, standing.leader_s = work, 0.0
        standing.leader_s += work.measured_s
        if offered and offered[0].rides:
            return
        leader, standing.leader = standing.leader, None
        assert leader is not None, "nobody rides alone"
        del self._works[leader.key]
        lease = self._leases.pop(leader.key)
        self._tell(events.SegmentsFinished(lane, lease, leader.key, 1, standing.leader_s))

    def _measure(self, session: ExecutorSession) -> None:
        if (measured := self._measured(session)) is not None:
            self._tell(measured)

    def _measured(self, session: ExecutorSession) -> events.MemoryMeasured | None:
        cells, at_rest = session.cells, not session.queue.outstanding
        if cells.failed_from is not None and at_rest and session.quiet:
            session.table.mark_stale(cells.failed_from)
            cells.failed_from = None
        told = self._forecasts[session.number].measured(session.table, at_rest=at_rest)
        return told and events.MemoryMeasured(session.number, *told)

    def _wait(self, action: actions.Wait) -> None:
        if (session := self._sessions.get(action.session)) is not None:
            # Told by `look_around` if it lasts: turns change often.
            session.wait.wait_for(action.waits_for)

    def _check_fits(self, session: ExecutorSession) -> None:
        """A work that waits and could not fit if all others were gone waits for them no longer."""
        if (found := look_at_oldest(session, self._port)) is None:
            return
        works, again = found
        self.taken_back(session, works)
        for work in works if again else ():
            work.key = next(self._teller.keys)
            self._works[work.key] = work
            self._tell(arrival(work))
        self.settle(session)
