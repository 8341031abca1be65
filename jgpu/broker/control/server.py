"""The broker: accepts connections, asks `registry`, hands sessions to the executor, answers.

One event loop, and a task for each connection until its one request is answered. All failures of
a connection end in its own task.

The rule that must not be broken: whoever is admitted is watched until he is gone.
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

import msgspec

from jgpu.broker.control.doorkeeper import Doorkeeper
from jgpu.broker.control.doors import Door, open_doors
from jgpu.broker.control.handshake import Visit, read_request, reply
from jgpu.broker.control.identity import (
    Identities,
    Identity,
    Peer,
    clean_text,
    identity_of,
    peer_of,
)
from jgpu.broker.control.quotas.desk import Desk
from jgpu.broker.control.quotas.requests import QuotaRequests
from jgpu.broker.control.registry import Origin, Registry
from jgpu.broker.control.report import Viewer
from jgpu.broker.control.reporting import Reporter
from jgpu.broker.control.runtimes import check_protocol
from jgpu.broker.control.servers import Servers
from jgpu.broker.control.sessions import Sessions
from jgpu.broker.control.settings import BrokerSettings
from jgpu.broker.control.shares import Shares
from jgpu.broker.control.watch import ProcessWatch
from jgpu.broker.control.watchers import Watchers
from jgpu.errors import BrokerRefused, FrameError, JgpuError
from jgpu.sched import load_policy
from jgpu.wire import limits
from jgpu.wire.framing import FrameWriter
from jgpu.wire.messages import (
    AskQuotas,
    AskSockets,
    AskStatus,
    AskStop,
    ControlMessage,
    Done,
    Evict,
    Hello,
    LeaveSeat,
    MakeSocket,
    NameUser,
    QuotasAre,
    Refused,
    RemoveSocket,
    SeatTaken,
    SetQuota,
    SocketIs,
    SocketsAre,
    StatusIs,
    Stopping,
    TakeSeat,
    UsePolicy,
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
        self._desk = Desk(
            settings.quotas,
            self.registry,
            ledger=settings.ledger_url,
            directory=Path(settings.executor.spool or "."),
            interval_s=settings.usage_interval_s,
            private=settings.private,
        )
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
            self._server_gone,
        )
        self._quotas = QuotaRequests(self._desk, self.registry)
        self.sessions = Sessions(settings, self.registry, self._desk, self._unusable)
        self._reporter = Reporter(settings, self.registry, self.sessions, self._desk, self._quotas)
        self._watchers = Watchers(self._viewer, self._reporter.known, self.sessions.follow)
        for part in (self.sessions, self.sessions.overseer, self._desk, self._desk.ledger):
            part.on_change = self._watchers.changed
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
                await self._stopping.wait()
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
        frame = FrameWriter().encode(Refused(BrokerRefused.reason, text), 0)
        with contextlib.suppress(OSError):
            visit.connection.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        visit.close()

    async def _converse(self, visit: Visit) -> None:
        peer = visit.peer
        try:
            async with asyncio.timeout(self._settings.handshake_timeout_s):
                request = await read_request(visit.connection)
                visit.descriptors = request.descriptors
                if not self._identities.known(peer.uid):
                    await asyncio.to_thread(self._identities.name, peer.uid)
                await self._answer(visit, request.message)
                if not isinstance(request.message, AskStatus | Watch):
                    self._watchers.changed()
        except TimeoutError:
            _LOG.info("pid %d (uid %d) was too slow; dropped.", peer.pid, peer.uid)
        except JgpuError as error:
            level = logging.INFO if isinstance(error, FrameError) else logging.WARNING
            _LOG.log(level, "pid %d (uid %d) refused: %s", peer.pid, peer.uid, error)
            text = clean_text(str(error), limits.MAX_TEXT)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_REFUSAL_TIMEOUT_S):
                    await reply(visit.connection, Refused(error.reason, text))

    async def _answer(self, visit: Visit, message: ControlMessage) -> None:
        if isinstance(message, Hello):
            await self._open(visit, message)
        elif isinstance(message, TakeSeat):
            await reply(visit.connection, self._take_seat(visit, message))
        elif isinstance(message, LeaveSeat):
            await reply(visit.connection, self._leave_seat(visit.peer, message))
        elif isinstance(message, AskStatus):
            report = await self._reporter.asked(self._viewer(visit))
            await reply(visit.connection, StatusIs(msgspec.json.encode(report)))
        elif isinstance(message, Watch):
            self._watchers.check_room(visit)
            with self._watchers.coming():
                report = await self._reporter.asked(self._viewer(visit))
                await self._watchers.admit(visit, report)
        elif isinstance(message, AskQuotas | SetQuota):
            await reply(visit.connection, await self._quota(visit, message))
        elif isinstance(message, Evict):
            await reply(visit.connection, self._evict(visit, message))
        elif isinstance(message, UsePolicy):
            await reply(visit.connection, self._use_policy(visit, message))
        elif isinstance(message, MakeSocket | RemoveSocket | AskSockets | NameUser):
            self._check_administrator(visit, "say who a hub's users are")
            await reply(visit.connection, await self._hub(message))
        elif isinstance(message, AskStop):
            self._check_administrator(visit, "stop the broker")
            await reply(visit.connection, Stopping())
            self.stop()

    # -- requests ----------------------------------------------------------------------------

    async def _open(self, visit: Visit, hello: Hello) -> None:
        seat = self.registry.seats.get((visit.peer.origin, hello.ticket))
        claimed = hello.user or (seat.user if seat else "")
        self._last_used = time.monotonic()
        user = self._identities.user_of(visit.peer, visit.door, claimed)
        identity = self._identity(visit, claimed)
        await self._desk.look_up(user)
        number = self.sessions.admit(visit, user, hello, identity)
        await self.sessions.welcome(number)

    def _identity(self, visit: Visit, claimed: str) -> Identity:
        """Whose limits a request counts for."""
        spoken_for = self._identities.spoken_for(visit.peer, visit.door, claimed)
        return identity_of(visit.peer, visit.door, spoken_for)

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

    def _leave_seat(self, peer: Peer, message: LeaveSeat) -> SeatTaken:
        """Giving up what one has not is no error: the broker may have been restarted meanwhile."""
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

    @property
    def _way_in(self) -> str:
        """Where administrators are heard."""
        path, group = self._settings.admin_socket, self._settings.admin_group
        if path is None:
            return "It is its owner's."
        who = f"root and members of the group {group}" if group else "root"
        return f"They speak to {path}, which is open to {who}."

    def _viewer(self, visit: Visit) -> Viewer:
        user = self._identities.user_of(visit.peer, visit.door)
        return Viewer(user, visit.door.administers(visit.peer.uid))

    def _evict(self, visit: Visit, message: Evict) -> Done:
        viewer = self._viewer(visit)
        session = self.registry.sessions.get(message.session)
        if session is None or not (viewer.administrator or session.user == viewer.user):
            raise BrokerRefused(
                f"There is no session {message.session} of yours; `jgpu status` lists them."
            )
        self.sessions.evict(message)
        what = "Its memory, the model included," if message.resident else "What is not its model"
        return Done(
            f"{what} goes to the host at the session's next boundary, and comes back with its "
            "next work."
        )

    def _check_administrator(self, visit: Visit, what: str) -> None:
        if not visit.door.administers(visit.peer.uid):
            raise BrokerRefused(f"Only an administrator may {what}. {self._way_in}")

    async def _hub(
        self, message: MakeSocket | RemoveSocket | AskSockets | NameUser
    ) -> SocketIs | SocketsAre | Done:
        """What a hub says of its users and their servers."""
        if isinstance(message, MakeSocket):
            path = await self._servers.make(message.server, message.user, message.groups)
            return SocketIs(str(path))
        if isinstance(message, RemoveSocket):
            found = await self._servers.remove(message.server)
            return Done("The socket is gone." if found else "There was none.")
        if isinstance(message, AskSockets):
            return SocketsAre(self._servers.names)
        self._servers.name(message.uid, message.user, message.groups)
        return Done(f"uid {message.uid} is {self._identities.name(message.uid)}.")

    def _server_gone(self, server: str) -> None:
        """Nobody comes by its socket any more, and who did goes with it."""
        self._watchers.drop(server)
        for session in list(self.registry.sessions.values()):
            if session.peer.place == server:
                self.sessions.end(session.number, "The server has ended.")

    def _use_policy(self, visit: Visit, message: UsePolicy) -> Done:
        self._check_administrator(visit, "change the policy")
        load_policy(message.policy)
        self.sessions.use_policy(message.policy)
        return Done(f"The policy is {message.policy} from now on, until the broker ends.")

    async def _quota(self, visit: Visit, message: AskQuotas | SetQuota) -> QuotasAre:
        await self._desk.count_all(self.sessions.latest_report)
        if isinstance(message, AskQuotas):
            report = await self._quotas.list(message, self._viewer(visit))
        else:
            report = await self._quotas.change(message, self._viewer(visit))
        return QuotasAre(msgspec.json.encode(report))
