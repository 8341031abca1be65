"""The pump: one thread that is event loop and launcher of an executor.

Covers the loop itself: dealing with what was read, a little at a time and in turn, and the
beginnings and ends of sessions. Whose stream is read and written is `streams`'s, what messages do
`dispatch`'s, who runs when `turns`'s, what the control process orders `orders`'s.

Nothing on this thread waits but `epoll`; no session's behaviour ends the loop or another one.
"""

import logging
import select
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Final, cast

from jgpu.broker.executor.admission.definitions import Definitions
from jgpu.broker.executor.admission.probes import Probes
from jgpu.broker.executor.admission.refusals import Refusals
from jgpu.broker.executor.aside import HelperThread
from jgpu.broker.executor.devices.base import Device
from jgpu.broker.executor.dispatch import MessageHandler
from jgpu.broker.executor.lifecycle import LifePhase
from jgpu.broker.executor.memory.clientarena import PinnedArenas
from jgpu.broker.executor.memory.hoststore import HostStore
from jgpu.broker.executor.memory.spilling import SpillCopier
from jgpu.broker.executor.programs import KINDS, Chooser, DeviceKind, Prober, scratch_bytes
from jgpu.broker.executor.scheduling.driver import SchedulerDriver
from jgpu.broker.executor.scheduling.rests import Rests
from jgpu.broker.executor.scheduling.trace import Trace, open_record
from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.streams import Streams
from jgpu.broker.flightpage import FlightPage, Kind
from jgpu.broker.settings import ExecutorSettings
from jgpu.errors import ProtocolError
from jgpu.sched import Core
from jgpu.sched.reports.recording import EventRecorder
from jgpu.wire.messages import Ready, Refused, Resync, SessionEnded

__all__ = ["Pump"]

_log = logging.getLogger(__name__)

#: seconds between two looks at who rests or waits
_LOOK_S: Final = 0.1
#: messages of one session dealt with before the next session's
_BATCH: Final = 32


class Pump:
    """Owns all sessions of an executor."""

    def __init__(
        self,
        device: Device,
        settings: ExecutorSettings,
        clock: Callable[[], float] = monotonic,
        page: FlightPage | None = None,
    ) -> None:
        self._page = page or FlightPage.unshared()
        core = Core(settings.policy)
        self.device, self.clock = device, clock
        self.sessions: dict[int, ExecutorSession] = {}
        self.stopping = False
        self.on_ending: Callable[[int], None] = lambda number: None
        self.on_ended: Callable[[SessionEnded], None] = lambda notice: None
        #: called at each look
        self.on_look: Callable[[], None] = lambda: None
        asides = {"definitions": Kind.DEFINITION, "arenas": Kind.OTHER}
        self._asides = [self._aside(name, kind) for name, kind in asides.items()]
        self._arenas = PinnedArenas(device, self._asides[1])
        kind = cast("DeviceKind", settings.device)  # `make_device` has looked
        self.definitions = Definitions(kind, self._asides[0])
        store = HostStore(settings.host_pool, settings.spool, device.host_bytes)
        self.spilling = SpillCopier(device, store, device.wake, self._page.open("copies"))
        rests = Rests(settings.spill_after_s, settings.evict_after_s)
        trace = Trace(Path(settings.trace)) if settings.trace else None
        self._record = open_record(settings.record)
        recorder = EventRecorder(self._record, settings.policy) if self._record else None
        self.turns = SchedulerDriver(device, core, clock, self.spilling, rests, trace, recorder)
        self.turns.on_released = self._released
        self.turns.on_violation = self.refuse
        self.turns.configure(settings.lanes, device.facts.capacity)
        #: programs that are not run any more
        self.refusals = Refusals()
        self._probes = Probes(
            Prober(kind, scratch_bytes(device.facts.capacity), around=device.asking),
            Chooser(
                kind,
                most_bytes=scratch_bytes(device.facts.capacity),
                around=device.asking if KINDS[kind].asked_on else None,
            ),
            self.turns,
            lambda number: self._aside(f"probes {number}", Kind.PROBE),
            self.refusals,
        )
        self._dispatch = MessageHandler(
            device, self.turns, self.definitions, self._probes, self.refusals
        )
        self._streams = Streams(device.wake_fd)
        self._next_look: float | None = None

    def _aside(self, name: str, kind: Kind) -> HelperThread:
        return HelperThread(name, self.device.wake, kind, self._page.open(name))

    # -- the loop ----------------------------------------------------------------------------

    def watch(self, descriptor: int, handler: Callable[[int], None]) -> None:
        """Call `handler(mask)` whenever the descriptor can be read."""
        self._streams.watch(descriptor, handler)

    def run(self) -> None:
        """Until `stopping`."""
        while not self.stopping:
            self.turn()
        self.turns.finish()
        if self._record is not None:
            self._record.flush()

    def close(self) -> None:
        """End the threads; sessions must have ended."""
        self._probes.close()
        for aside in self._asides:
            aside.close()
        self.spilling.close()
        self._streams.close()
        self.device.close()

    def turn(self, timeout_s: float = -1.0) -> None:
        """One round: wait for something to happen, deal with it."""
        turns, streams = self.turns, self._streams
        ready = streams.poll(0.0) if streams.backlog or turns.short.is_behind else []
        if not (ready or streams.backlog):  # so there is time to tell of what ran
            turns.short.catch_up()
            wait_s = 0.0 if turns.emptying else self._timeout(timeout_s)
            self._page.pump_waits()
            ready = streams.poll(wait_s, awake=not self.device.at_work())
        self._page.pump_works()
        turns.collect()  # first: what is over makes room in the lanes for what comes
        turns.flush()
        for descriptor, mask in ready:
            if (handler := streams.handlers.get(descriptor)) is not None:
                handler(mask)
        for aside in self._asides:
            if aside.results_due:
                aside.collect()
        self._probes.collect()
        self.spilling.collect()
        streams.resume()
        for session in [*streams.backlog.values()]:
            self._deal(session)
        for session in turns.emptying.free_some():
            turns.settle(session)
        turns.flush()
        if self.device.poll_interval_s() == 0.0:  # done by the pump itself, in this round
            turns.collect()
            turns.flush()
        if streams.blocked:
            for session, text in streams.write_blocked(self.sessions):
                self.end(session, text)
        self._look(something_happened=bool(ready))

    def _look(self, *, something_happened: bool) -> None:
        """Now and then, and not for ever where nothing happens, look at who rests or waits."""
        now = self.clock()
        if self._next_look is None:
            if something_happened:
                self._next_look = now + _LOOK_S
        elif now >= self._next_look:
            busy = self.turns.look_around() or self._probes.waiting
            self._next_look = now + _LOOK_S if busy else None
            if self._record is not None:
                self._record.flush()
            if not busy:
                self.device.give_back()
            self.turns.flush()
            self.on_look()

    def _timeout(self, timeout_s: float) -> float:
        if (interval := self.device.poll_interval_s()) is not None:
            if interval:
                sleep(interval)  # epoll counts in milliseconds, which is long for a device
            return 0.0
        if self._next_look is None:
            return timeout_s
        wait_s = self._next_look - self.clock()
        return timeout_s if 0.0 <= timeout_s < wait_s else wait_s if wait_s > 0.0 else 0.0

    def validate(self) -> None:
        """Check what must always hold between two rounds."""
        for number, session in self.sessions.items():
            assert number == session.number
            session.validate()
        self._streams.validate(self.sessions)
        self.turns.validate()

    # -- sessions ----------------------------------------------------------------------------

    def adopt(self, session: ExecutorSession, limit: int, resync: Resync | None = None) -> None:
        """A session begins, anew with `resync`; its stream is read from here on."""
        self.sessions[session.number] = session
        self._streams.watch(session.connection.fileno(), partial(self._ready, session))
        session.connection.mask = select.EPOLLIN
        self._arenas.pin(session.number, session.arena)
        self.turns.open(session)
        if resync is not None:
            session.connection.begin_anew()
            session.send(resync)
        session.send(Ready(self.device.facts, limit))

    def blocked(self, number: int) -> None:
        """A socket was full; called from any thread that sends."""
        self._streams.blocked.add(number)
        self.device.wake()

    def end(self, session: ExecutorSession, text: str) -> None:
        """A session ends now; its memory is given back when no lane uses it any more."""
        if session.number not in self.sessions or session.life.is_closed:
            return
        session.life.become(LifePhase.CLOSED, text)
        self._streams.end(session)
        session.connection.close()
        self._dispatch.forget(session)
        self.turns.close(session)
        if session.number in self.sessions:
            self.on_ending(session.number)

    def refuse(self, session: ExecutorSession, text: str, reason: str = "protocol") -> None:
        """A sentence, and the end of the session, for its client broke the protocol or a limit."""
        if session.life.is_closed:
            return
        _log.warning("session %d of %s is refused: %s", session.number, session.owner.user, text)
        session.connection.send(Refused(reason, text))
        session.connection.flush()
        self.end(session, text)

    def _released(self, session: ExecutorSession) -> None:
        self._arenas.give_back(session.number, session.arena)
        del self.sessions[session.number]
        self._streams.forget(session.number)
        charged_s = session.standing.charged_s()
        self.on_ended(SessionEnded(session.number, charged_s, session.life.reason))

    # -- streams -----------------------------------------------------------------------------

    def _ready(self, session: ExecutorSession, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._streams.blocked.add(session.number)
        connection = session.connection
        if mask & ~select.EPOLLOUT and connection.inbox is None:
            connection.inbox = self._streams.read(connection)
            self._deal(session)
        elif mask & (select.EPOLLHUP | select.EPOLLERR):
            self.end(session, "")

    def _deal(self, session: ExecutorSession) -> None:
        """Deal with a few of the messages that were read; the rest comes in the next round."""
        connection, others_first = session.connection, self.turns.short.others_first
        if session.life.is_closed or connection.inbox is None:
            return
        handlers, held, left = self._dispatch.handlers, connection.reader.held, _BATCH
        try:
            if self._streams.has_room(session) and not others_first(session):
                for message in connection.inbox:
                    handlers[type(message)](session, message)
                    if session.life.has_ended:
                        self.end(session, session.life.reason)
                        return
                    left -= 1
                    if not (left and self._streams.has_room(session)):
                        break
                    if not held:  # so there is none more
                        connection.inbox = None
                        break
                    if others_first(session):  # then what came with it goes the short way, too
                        break
                else:
                    connection.inbox = None
            connection.check_acknowledgement()
        except ProtocolError as error:
            self.refuse(session, str(error))
        except Exception as error:
            # A mistake of ours with this client's message; the others go on.
            _log.exception("session %d broke the pump", session.number)
            self.refuse(session, f"The executor made a mistake with this session: {error!r}.")
        else:
            self._after_batch(session)

    def _after_batch(self, session: ExecutorSession) -> None:
        self._streams.backlog.pop(session.number, None)
        if session.connection.inbox is None:
            session.connection.acknowledge()
            if session.connection.ended:
                self.end(session, "")
                return
        else:
            self._streams.put_back(session)
        self.turns.flush()
        self._streams.update_mask(session)
