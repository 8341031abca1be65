"""The broker: accepts connections, asks `registry`, hands sessions to the executor, answers.

One event loop, and a task for each connection until its one request is answered. All failures of
a connection end in its own task.

Whoever is admitted is watched until they are gone.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from jgpu import __version__
from jgpu.broker.control.configuration.settings import BrokerSettings
from jgpu.broker.control.executors.watch import ProcessWatch
from jgpu.broker.control.listening.doorkeeper import Doorkeeper
from jgpu.broker.control.listening.doors import Door, open_doors
from jgpu.broker.control.listening.handshake import Visit, read_request, reply
from jgpu.broker.control.listening.identity import (
    Identities,
    Identity,
    clean_text,
    identity_of,
    peer_of,
)
from jgpu.broker.control.listening.shares import Shares
from jgpu.broker.control.quotas.desk import QuotaService
from jgpu.broker.control.registry import Origin, Registry
from jgpu.broker.control.reports.audit import Audit
from jgpu.broker.control.reports.watchers import Watchers
from jgpu.broker.control.runtimes import check_protocol
from jgpu.broker.control.servers import Servers
from jgpu.broker.control.sessions import Sessions
from jgpu.broker.control.steering import QUESTIONS, Steering
from jgpu.errors import BrokerRefused, FrameError, JgpuError
from jgpu.wire import limits
from jgpu.wire.framing import FrameWriter
from jgpu.wire.messages import (
    ControlMessage,
    Hello,
    LeaveSeat,
    Refused,
    SeatTaken,
    Stopping,
    TakeSeat,
    Watch,
)

__all__ = ["Broker"]

_LOG = logging.getLogger("jgpu.broker")
_REFUSAL_TIMEOUT_S: Final = 1.0
#: A notebook's path is cut to this many characters.
_LABEL_LENGTH: Final = 1024
_IDLE_LOOKS: Final = 10


class Broker:
    """One control process. `await run()` serves until `stop()`; it returns the exit status."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._identities = Identities()
        self.registry = Registry(
            Shares.of(
                settings.max_sessions,
                settings.max_user_sessions,
                settings.max_user_seats,
                settings.max_user_connections,
                settings.max_user_arenas,
            )
        )
        self._last_used = time.monotonic()
        self._stopping = asyncio.Event()
        #: connections whose request is not answered yet
        self._unanswered: Counter[Identity] = Counter()
        self._holders: dict[tuple[Origin, str], ProcessWatch] = {}
        self._desk = QuotaService(
            settings.quotas,
            self.registry,
            ledger=settings.ledger_url,
            directory=Path(settings.executor.spool or "."),
            interval_s=settings.usage_interval_s,
            private=settings.private,
            keep_events_s=settings.keep_events_s,
        )
        self._audit = Audit(self._desk.ledger.keep_event, self._identities)
        doors = open_doors(
            settings.socket, settings.group, settings.admin_socket, settings.admin_group
        )
        self._doorkeeper = Doorkeeper(doors, self._take)
        self._servers = Servers(
            settings.socket.with_name("servers"),
            Path(settings.executor.spool or ".", "servers.json"),
            self._doorkeeper,
            self._identities,
            self._desk.groups,
            self._desk.set_hub,
            self._server_gone,
        )
        self.sessions = Sessions(settings, self.registry, self._desk, self._unusable)
        self._steering = Steering(
            settings,
            self.registry,
            self._identities,
            self.sessions,
            self._desk,
            self._servers,
            self._audit,
        )
        self._reporter = self._steering.reporter
        self._watchers = Watchers(self._steering.viewer, self._reporter.known, self.sessions.follow)
        self._listen_for_events()
        for part in (self.sessions, self.sessions.overseer, self._desk.ledger):
            part.on_change = self._watchers.changed
        self._desk.on_change = self._looked
        self._desk.on_use = self._reporter.used
        self._status = 0
        self._group: asyncio.TaskGroup
        #: everything that runs; cancelled at the end
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life --------------------------------------------------------------------------------

    def stop(self) -> None:
        """End in good order."""
        self._stopping.set()

    async def run(self) -> int:
        """Serve; 0 after a good end, 1 where the device could never be used."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._start(tasks, self.sessions.supervisor.run())
                self._start(tasks, self.sessions.overseer.run())
                self._start(tasks, self._desk.ledger.run())
                self._start(tasks, self._desk.run(self.sessions.latest_report))
                self._start(tasks, self._watchers.run())
                self._group = tasks
                listening = self._start(tasks, self._doorkeeper.run())
                self._servers.reopen()
                if self._settings.idle_exit_s:
                    self._start(tasks, self._end_when_unused())
                where = " and ".join(str(each.listener.path) for each in self._doorkeeper.doors)
                _LOG.info("Listening at %s.", where)
                self._audit.note("start", f"The broker began (jgpu {__version__}).")
                await self._stopping.wait()
                self._audit.note("stop", "The broker ends.")
                # Closed while asyncio waits on it, its number would be deaf for who gets it next.
                listening.cancel()
                await asyncio.wait([listening])
                await self._desk.count_all(self.sessions.latest_report)
                for task in self._tasks:
                    task.cancel()
        finally:
            for door in self._doorkeeper.doors:
                door.listener.close()
            for watch in self._holders.values():
                watch.stop()
            self.sessions.close()
            await self._desk.ledger.close()
        return self._status

    def _looked(self) -> None:
        """Everybody was judged."""
        self._reporter.looked()
        self._watchers.changed()

    def _listen_for_events(self) -> None:
        """What nobody asked for goes on record as well."""
        note, sessions = self._audit.note, self.sessions
        sessions.culprits.on_fault = lambda user, text: note("fault", text, about=user)
        sessions.on_spill = lambda user, text: note("spill", text, about=user)
        self._desk.on_standing = lambda user, text: note("budget", text, about=user)
        self._desk.live.on_end = lambda about, text: note("quota", text, about=about)
        sessions.overseer.on_limit = lambda number, text: note(
            "fault", text, about=getattr(self.registry.sessions.get(number), "user", "")
        )

    def _start(
        self, tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        task = tasks.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _unusable(self, sentence: str) -> None:
        """The device never worked. A private broker stays, to tell its user the sentence."""
        if not self._settings.private:
            _LOG.critical("%s", sentence)
            self._status = 1
            self.stop()

    async def _end_when_unused(self) -> None:
        idle_s = self._settings.idle_exit_s
        while True:
            await asyncio.sleep(idle_s / _IDLE_LOOKS)
            if not self.registry.unused:
                self._last_used = time.monotonic()
            elif not self._unanswered and time.monotonic() - self._last_used >= idle_s:
                _LOG.info("Unused for %g s; ending.", idle_s)
                self.stop()

    # -- connections -------------------------------------------------------------------------

    def _take(self, connection: socket.socket, door: Door) -> None:
        self._start(self._group, self._serve(connection, door))

    async def _serve(self, connection: socket.socket, door: Door) -> None:
        """One connection, to its end or to the executor's hands; never raises."""
        try:
            peer = peer_of(connection, door.serves)
            visit = Visit(connection, peer, door, identity_of(peer, door))
        except OSError:
            connection.close()
            return
        identity, crowd = visit.identity, self._unanswered
        refusal = self.registry.shares.connection_refusal(
            str(identity), crowd[identity], crowd.total()
        )
        if refusal:
            self._turn_away(visit, refusal)
            return
        crowd[identity] += 1
        try:
            await self._converse(visit)
        except OSError as error:
            _LOG.info("pid %d (%s) is gone: %s.", peer.pid, identity, error)
        except Exception:
            _LOG.exception("A connection was dropped for a mistake of the broker's own.")
        finally:
            visit.close()
            crowd[identity] -= 1
            self._unanswered += Counter()  # forgets zeros

    def _turn_away(self, visit: Visit, text: str) -> None:
        """A sentence, if the connection takes it now, and the end; nothing is read of it."""
        self._audit.refused(visit, BrokerRefused.reason, text)
        frame = FrameWriter().encode(Refused(BrokerRefused.reason, text), 0)
        with contextlib.suppress(OSError):
            visit.connection.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        visit.close()

    async def _converse(self, visit: Visit) -> None:
        peer, by = visit.peer, ""
        try:
            async with asyncio.timeout(self._settings.handshake_timeout_s):
                request = await read_request(visit.connection)
                by = getattr(request.message, "by", "")
                visit.descriptors = request.descriptors
                if not self._identities.known(peer.uid):
                    await asyncio.to_thread(self._identities.name, peer.uid)
                await self._answer(visit, request.message)
                if not isinstance(request.message, QUESTIONS | Watch):
                    self._watchers.changed()
        except TimeoutError:
            _LOG.info("pid %d (uid %d) was too slow; dropped.", peer.pid, peer.uid)
        except JgpuError as error:
            said_nothing = isinstance(error, FrameError)
            level = logging.INFO if said_nothing else logging.WARNING
            _LOG.log(level, "pid %d (uid %d) refused: %s", peer.pid, peer.uid, error)
            text = clean_text(str(error), limits.MAX_TEXT)
            if not said_nothing:
                self._audit.refused(visit, error.reason, text, by=by)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_REFUSAL_TIMEOUT_S):
                    await reply(visit.connection, Refused(error.reason, text))

    def _check_door(self, visit: Visit) -> None:
        """A server that has ended is no way in, neither for those who knocked while it lived."""
        if visit.door.serves and not self._doorkeeper.keeps(visit.door):
            raise BrokerRefused("The server has ended that this socket was made for.")

    async def _answer(self, visit: Visit, message: ControlMessage) -> None:
        self._check_door(visit)
        if isinstance(message, Hello):
            await self._open(visit, message)
        elif isinstance(message, TakeSeat):
            await reply(visit.connection, self._take_seat(visit, message))
        elif isinstance(message, LeaveSeat):
            await reply(visit.connection, self._leave_seat(visit, message))
        elif isinstance(message, Watch):
            self._watchers.check_room(visit)
            with self._watchers.coming():
                report = await self._reporter.asked(self._steering.viewer(visit))
                await self._watchers.admit(visit, report)
        else:
            answer = await self._steering.answer(visit, message)
            await reply(visit.connection, answer)
            if isinstance(answer, Stopping):
                self.stop()

    # -- requests ----------------------------------------------------------------------------

    async def _open(self, visit: Visit, hello: Hello) -> None:
        seat = self.registry.seats.get((visit.peer.origin, hello.ticket))
        claimed = hello.user or (seat.user if seat else "")
        self._last_used = time.monotonic()
        user = self._identities.user_of(visit.peer, visit.door, claimed)
        self._look_for_forgery(visit, hello.ticket, hello.user, user)
        identity = self._identity(visit, claimed)
        await self._desk.look_up(user)
        self._check_door(visit)
        number = self.sessions.admit(visit, user, hello, identity)
        await self.sessions.welcome(number)

    def _identity(self, visit: Visit, claimed: str) -> Identity:
        """Whose limits a request counts for."""
        spoken_for = self._identities.spoken_for(visit.peer, visit.door, claimed)
        return identity_of(visit.peer, visit.door, spoken_for)

    def _look_for_forgery(self, visit: Visit, ticket: str, claimed: str, user: str) -> None:
        """Put on record what was said and not believed; it costs whoever said it nothing."""
        holder = self.registry.holder_of(ticket, visit.peer.origin)
        if holder:
            text = "Came with a ticket of a seat that is not theirs, and was given none by it."
            self._audit.said(visit, "ticket", text, about=holder)
        if claimed.strip() not in ("", user):
            text = "Claimed to be another user, which was not believed."
            self._audit.said(
                visit, "claim", text, about=clean_text(claimed.strip(), limits.MAX_NAME)
            )

    def _take_seat(self, visit: Visit, message: TakeSeat) -> SeatTaken:
        check_protocol(message.protocol)
        self._last_used = time.monotonic()
        peer = visit.peer
        ticket = secrets.token_urlsafe(24)
        user = self._identities.user_of(peer, visit.door, message.user)
        self.registry.take_seat(
            ticket,
            user,
            peer,
            clean_text(message.kernel_id, limits.MAX_NAME),
            clean_text(message.label, _LABEL_LENGTH),
            self._identity(visit, message.user),
        )
        key = (peer.origin, ticket)
        self._holders[key] = ProcessWatch.of_peer(
            visit.connection, peer.pid, lambda: self._holder_gone(key)
        )
        return SeatTaken(ticket)

    def _leave_seat(self, visit: Visit, message: LeaveSeat) -> SeatTaken:
        """Giving up what one has not is no error: the broker may have been restarted meanwhile."""
        peer = visit.peer
        self._look_for_forgery(visit, message.ticket, "", "")
        text = "The kernel is restarting." if message.restart else "The kernel has ended."
        ending = self.registry.leave_seat(message.ticket, peer.origin, restart=message.restart)
        for session in ending:
            self.sessions.end(session.number, text)
        if not message.restart and (
            watch := self._holders.pop((peer.origin, message.ticket), None)
        ):
            watch.stop()
        return SeatTaken(message.ticket)

    def _holder_gone(self, key: tuple[Origin, str]) -> None:
        self._holders.pop(key, None)
        self.registry.holder_gone(*key)
        self._watchers.changed()

    def _server_gone(self, server: str) -> None:
        """Nobody comes by its socket any more, and who did goes with it."""
        self._watchers.drop(server)
        for session in list(self.registry.sessions.values()):
            if session.peer.place == server:
                self.sessions.end(session.number, "The server has ended.")
