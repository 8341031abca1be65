"""The pump: one thread that is event loop and launcher of an executor.

Covers the loop itself: reading streams a little at a time and in turn, back-pressure, writing
where a socket was full, the ends of sessions. What messages do is `dispatch`'s, who runs when
`turns`'s, what the control process orders `orders`'s.

Nothing on this thread waits but `epoll`, and no session's behaviour ends the loop or another
session.
"""

import logging
import select
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Final, TextIO, cast

from jgpu.broker.executor.admission.definitions import Definitions
from jgpu.broker.executor.admission.probes import Probes
from jgpu.broker.executor.admission.refusals import Refusals
from jgpu.broker.executor.aside import HelperThread
from jgpu.broker.executor.devices.base import Device
from jgpu.broker.executor.dispatch import HELPING, MessageHandler
from jgpu.broker.executor.memory.hoststore import HostStore
from jgpu.broker.executor.memory.spilling import SpillCopier
from jgpu.broker.executor.programs import Chooser, DeviceKind, Prober, scratch_bytes
from jgpu.broker.executor.scheduling.driver import SchedulerDriver
from jgpu.broker.executor.scheduling.rests import Rests
from jgpu.broker.executor.scheduling.trace import Trace
from jgpu.broker.executor.session import ExecutorSession
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
#: works, and bytes of works, past which a session's stream is not read
_QUEUED_WORKS: Final = 2048
_QUEUED_BYTES: Final = 16 << 20
#: the same of all sessions of a user; what its notebooks may leave unread; and so little that it
#: never matters who else has how much
_USERS_QUEUED_BYTES: Final = 64 << 20
_USERS_UNSENT_BYTES: Final = 128 << 20
_LITTLE_BYTES: Final = 256 << 10


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
        self.device = device
        self.sessions: dict[int, ExecutorSession] = {}
        self.stopping = False
        self.on_ending: Callable[[int], None] = lambda number: None
        self.on_ended: Callable[[SessionEnded], None] = lambda notice: None
        #: called at each look
        self.on_look: Callable[[], None] = lambda: None
        self._epoll = select.epoll()
        self._asides = [
            self._aside("definitions", Kind.DEFINITION),
            self._aside("arenas", Kind.OTHER),
        ]
        kind = cast("DeviceKind", settings.device)  # `make_device` has looked
        self.definitions = Definitions(kind, self._asides[0])
        store = HostStore(settings.host_pool, settings.spool, device.host_bytes)
        self.spilling = SpillCopier(device, store, device.wake, self._page.open("copies"))
        rests = Rests(settings.spill_after_s, settings.evict_after_s)
        self._trace = Trace(Path(settings.trace)) if settings.trace else None
        self._record = _open_record(settings.record)
        recorder = EventRecorder(self._record, settings.policy) if self._record else None
        self.turns = SchedulerDriver(
            device, core, clock, self.spilling, rests, self._trace, recorder
        )
        self.turns.on_released = self._released
        self.turns.on_violation = self.refuse
        self.turns.configure(settings.lanes, device.facts.capacity)
        #: what is counted for metrics
        self.tallies = self.turns.tallies
        #: programs that are not run any more
        self.refusals = Refusals()
        self._probes = Probes(
            Prober(kind, most_bytes=scratch_bytes(device.facts.capacity)),
            Chooser(kind, most_bytes=scratch_bytes(device.facts.capacity)),
            self.turns,
            lambda number: self._aside(f"probes {number}", Kind.PROBE),
            self.refusals,
        )
        self._dispatch = MessageHandler(
            device, self.turns, self.definitions, self._probes, self.refusals
        )
        #: what to call when a descriptor is ready
        self._handlers: dict[int, Callable[[int], None]] = {device.wake_fd: lambda mask: None}
        self._epoll.register(device.wake_fd, select.EPOLLIN | select.EPOLLET)
        #: sessions with messages that were read and not dealt with
        self._backlog: dict[int, ExecutorSession] = {}
        #: sessions that are not read until they have less to do
        self._stalled: dict[int, ExecutorSession] = {}
        #: by user, what waits of all its sessions, where somebody looked in this turn
        self._waiting_bytes: dict[str, int] = {}
        #: sessions whose socket was full when something was sent
        self._blocked: set[int] = set()
        self._next_look: float | None = None
        self.clock = clock

    def _aside(self, name: str, kind: Kind) -> HelperThread:
        return HelperThread(name, self.device.wake, kind, self._page.open(name))

    # -- the loop ----------------------------------------------------------------------------

    def watch(self, descriptor: int, handler: Callable[[int], None]) -> None:
        """Call `handler(mask)` whenever the descriptor can be read."""
        self._handlers[descriptor] = handler
        self._epoll.register(descriptor, select.EPOLLIN)

    def run(self) -> None:
        """Until `stopping`."""
        while not self.stopping:
            self.turn()
        if self._trace is not None:
            self._trace.write()
        if self._record is not None:
            self._record.flush()

    def close(self) -> None:
        """End the threads; sessions must have ended."""
        self._probes.close()
        for aside in self._asides:
            aside.close()
        self.spilling.close()
        self._epoll.close()
        self.device.close()

    def turn(self, timeout_s: float = -1.0) -> None:
        """One round: wait for something to happen, deal with it."""
        wait_s = self._timeout(timeout_s)
        self._page.pump_waits()
        ready = self._epoll.poll(wait_s)
        self._page.pump_works()
        # First what is over, for it makes room in the lanes for what comes.
        self.turns.collect()
        for descriptor, mask in ready:
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler(mask)
        for aside in self._asides:
            aside.collect()
        self._probes.collect()
        self.spilling.collect()
        self._unstall()
        for session in list(self._backlog.values()):
            self._deal(session)
        self.turns.flush()
        self._write_blocked()
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
        if self._backlog:
            return 0.0
        waits = [timeout_s] if timeout_s >= 0 else []
        interval = self.device.poll_interval_s()
        if interval is not None:
            if interval:
                sleep(interval)  # epoll counts in milliseconds, which is long for a device
            return 0.0
        if self._next_look is not None:
            waits.append(max(0.0, self._next_look - self.clock()))
        return min(waits, default=-1.0)

    def validate(self) -> None:
        """Check what must always hold between two rounds."""
        for number, session in self.sessions.items():
            assert number == session.number
            session.validate()
        for kept in (self._backlog, self._stalled):
            assert all(session.inbox is not None for session in kept.values())
            assert kept.keys() <= self.sessions.keys()
        assert not self._backlog.keys() & self._stalled.keys()
        self.turns.validate()

    # -- sessions ----------------------------------------------------------------------------

    def adopt(self, session: ExecutorSession, limit: int, resync: Resync | None = None) -> None:
        """A session begins, anew with `resync`; its stream is read from here on."""
        self.sessions[session.number] = session
        self._handlers[session.connection.fileno()] = lambda mask: self._ready(session, mask)
        self._epoll.register(session.connection.fileno(), select.EPOLLIN)
        session.mask = select.EPOLLIN
        self._asides[1].put(session.number, lambda: self.device.pin(session.arena.memory), _nothing)
        self.turns.open(session)
        if resync is not None:
            session.connection.begin_anew(session.token, resync.epoch)
            session.send(resync)
        session.send(Ready(self.device.facts, limit))

    def blocked(self, number: int) -> None:
        """A socket was full; called from any thread that sends."""
        self._blocked.add(number)
        self.device.wake()

    def end(self, session: ExecutorSession, text: str) -> None:
        """A session ends now; its memory is given back when no lane uses it any more."""
        if session.number not in self.sessions or session.closed:
            return
        session.ending = text
        session.closed = True
        self._backlog.pop(session.number, None)
        self._handlers.pop(session.connection.fileno(), None)
        self._epoll.unregister(session.connection.fileno())
        session.connection.close()
        self._dispatch.forget(session)
        self.turns.close(session)
        if session.number in self.sessions:
            self.on_ending(session.number)

    def refuse(self, session: ExecutorSession, text: str, reason: str = "protocol") -> None:
        """A sentence, and the end of the session, for its client broke the protocol or a limit."""
        if session.closed:
            return
        _log.warning("session %d of %s is refused: %s", session.number, session.user, text)
        session.connection.send(Refused(reason, text))
        session.connection.flush()
        self.end(session, text)

    def _released(self, session: ExecutorSession) -> None:
        # On the thread that pinned it, for it may still be at that.
        self._asides[1].put(session.number, lambda: self._close_arena(session), _nothing)
        del self.sessions[session.number]
        self._blocked.discard(session.number)
        self.on_ended(SessionEnded(session.number, session.charged_s(), session.ending or ""))

    def _close_arena(self, session: ExecutorSession) -> None:
        self.device.unpin(session.arena.memory)
        session.arena.close()

    # -- streams -----------------------------------------------------------------------------

    def _ready(self, session: ExecutorSession, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._blocked.add(session.number)
        if mask & ~select.EPOLLOUT and session.inbox is None:
            session.inbox = session.connection.receive()
            self._deal(session)
        elif mask & (select.EPOLLHUP | select.EPOLLERR):
            self.end(session, "")

    def _deal(self, session: ExecutorSession) -> None:
        """Deal with a few of the messages that were read; the rest comes in the next round."""
        if session.closed or session.inbox is None:
            return
        try:
            for _ in range(_BATCH):
                if not self._has_room(session):
                    break
                message = next(session.inbox, None)
                if message is None:
                    session.inbox = None
                    break
                self._dispatch.handle(session, message)
                if session.ending is not None:
                    self.end(session, session.ending)
                    return
            session.connection.check_acknowledgement()
        except ProtocolError as error:
            self.refuse(session, str(error))
            return
        except Exception as error:
            # A mistake of ours with this client's message; the others go on.
            _log.exception("session %d broke the pump", session.number)
            self.refuse(session, f"The executor made a mistake with this session: {error!r}.")
            return
        self._after_batch(session)

    def _after_batch(self, session: ExecutorSession) -> None:
        self._backlog.pop(session.number, None)
        if session.inbox is None:
            session.connection.acknowledge()
            if session.connection.ended:
                self.end(session, "")
                return
        elif self._has_room(session):
            self._backlog[session.number] = session
        else:
            self._stalled[session.number] = session
        self.turns.flush()
        self._update_mask(session)

    def _has_room(self, session: ExecutorSession) -> bool:
        return (
            session.outstanding < _QUEUED_WORKS
            and self._has_room_for_bytes(session)
            and session.helping + len(session.cancel_requests) < HELPING
        )

    def _has_room_for_bytes(self, session: ExecutorSession) -> bool:
        """Whether what waits is little, or not much: of the session, and of all of its user's."""
        waiting = session.waiting_bytes
        if waiting < _LITTLE_BYTES or waiting >= _QUEUED_BYTES:
            return waiting < _LITTLE_BYTES
        account = session.account
        if account.user not in self._waiting_bytes:
            self._waiting_bytes[account.user] = account.waiting_bytes
        return self._waiting_bytes[account.user] < _USERS_QUEUED_BYTES

    def _unstall(self) -> None:
        self._waiting_bytes.clear()
        for session in list(self._stalled.values()):
            if session.closed:
                del self._stalled[session.number]
            elif self._has_room(session):
                del self._stalled[session.number]
                self._backlog[session.number] = session
                self._update_mask(session)

    def _write_blocked(self) -> None:
        while self._blocked:
            session = self.sessions.get(self._blocked.pop())
            if session is None or session.closed:
                continue
            if session.connection.broken is not None:
                self.end(session, session.connection.broken)
            else:
                session.connection.flush()
                unsent = session.connection.unsent_bytes
                if unsent > _LITTLE_BYTES and session.account.unsent_bytes > _USERS_UNSENT_BYTES:
                    self.end(session, "This user's notebooks do not read what they are sent.")
                    continue
                self._update_mask(session)

    def _update_mask(self, session: ExecutorSession) -> None:
        """Read while there is room, write while something waits to be written."""
        mask = 0 if session.number in self._stalled else select.EPOLLIN
        if session.connection.unsent_bytes:
            mask |= select.EPOLLOUT
        if mask != session.mask:
            session.mask = mask
            self._epoll.modify(session.connection.fileno(), mask)


def _open_record(file: str) -> TextIO | None:
    """The file that a recording goes to; one that cannot be written is told, and nothing else."""
    if not file:
        return None
    try:
        return Path(file).open("w", encoding="utf-8", buffering=1 << 16)
    except OSError as error:
        _log.error("Nothing is recorded: %s cannot be written: %s.", file, error.strerror)
        return None


def _nothing(result: object) -> None:
    """What comes of it does not matter."""
    if isinstance(result, Exception):
        _log.error("an arena could not be pinned or released", exc_info=result)
