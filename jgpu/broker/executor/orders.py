"""The control process's side of an executor: orders in, notices out.

Adopts sessions with the descriptors that come beside the order, detaches them, reports. When the
control process closes its end, the executor ends.

Invariant: a session that cannot be adopted costs nobody else anything.
"""

import logging
import os
import socket
import time
from typing import Final

from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.memory.collection import LongLived
from jgpu.broker.executor.pump import Pump
from jgpu.broker.executor.session import ExecutorSession, SessionOwner
from jgpu.errors import FrameError, JgpuError, ProtocolError
from jgpu.sched import SessionStatus
from jgpu.wire import messages
from jgpu.wire.arena import Arena
from jgpu.wire.reports.report import IterationTimes, LaneReport, SessionReport

__all__ = ["Orders"]

_log = logging.getLogger(__name__)
#: accounts after which those of users without a session go
_ACCOUNTS: Final = 4096


class Orders:
    """Carries out what the control process orders."""

    def __init__(self, pump: Pump, connection: Connection[messages.ExecutorOrder]) -> None:
        self._pump = pump
        self._connection = connection
        self._accounts: dict[str, Account] = {}
        #: from the core's clock to seconds since the epoch
        self._epoch = time.time() - pump.clock()
        pump.on_ending = lambda number: connection.send(messages.SessionEnding(number))
        pump.on_ended = self._ended
        pump.on_look = self._look
        self._long_lived = LongLived(
            lambda: sum(len(session.table.buffers) for session in pump.sessions.values())
        )
        pump.spilling.on_moved = self._moved
        pump.turns.trials.on_through = lambda user, program: connection.send(
            messages.WentThrough(user, program)
        )
        #: somebody watches, who is told what changes
        self._followed = False
        #: what was told last of it
        self._told: messages.ReportIs | None = None
        pump.watch(connection.fileno(), self._ready)

    def _ready(self, mask: int) -> None:
        try:
            for order in self._connection.receive_with_descriptors():
                self._carry_out(order)
        except FrameError:
            _log.exception("the control process sent what is no order")
            self._pump.stopping = True
        if self._connection.ended:
            self._pump.stopping = True

    def _carry_out(self, order: messages.ExecutorOrder) -> None:
        if isinstance(order, messages.Adopt):
            self._adopt(order)
        elif isinstance(order, messages.Detach):
            session = self._pump.sessions.get(order.session)
            if session is not None:
                self._pump.end(session, order.text)
        elif isinstance(order, messages.SetUser):
            self._set_user(order)
        elif isinstance(order, messages.Tell):
            if (told := self._pump.sessions.get(order.session)) is not None:
                told.send(messages.Notice(order.text))
        elif isinstance(order, messages.Evict):
            if (evicted := self._pump.sessions.get(order.session)) is not None:
                self._pump.turns.evict(evicted, resident=order.resident)
        elif isinstance(order, messages.RetireLane):
            self._retire(order)
        elif isinstance(order, messages.UsePolicy):
            self._pump.turns.use_policy(order.policy)
        elif isinstance(order, messages.Drain):
            self._pump.turns.drain(on=order.on)
        elif isinstance(order, messages.RefusePrograms):
            self._pump.refusals.set(order)
        elif isinstance(order, messages.TryAlone):
            self._pump.turns.trials.set(order)
        elif isinstance(order, messages.AskReport):
            self._connection.send(self._report(order.request))
        elif isinstance(order, messages.Follow):
            self._followed, self._told = order.on, None
        else:
            self._stop()

    def _stop(self) -> None:
        """End in good order: whoever is here is told that what they have here goes."""
        for session in list(self._pump.sessions.values()):
            self._pump.refuse(session, "The broker was stopped.", "stopped")
        self._pump.stopping = True

    # -- sessions ----------------------------------------------------------------------------

    def _adopt(self, order: messages.Adopt) -> None:
        descriptors = self._connection.descriptors
        if len(descriptors) < 2:
            raise FrameError("An Adopt came without its two descriptors.")
        stream, memory = descriptors.popleft(), descriptors.popleft()
        try:
            sock = socket.socket(fileno=stream)
        except OSError as error:
            os.close(stream)
            os.close(memory)
            self._ended(messages.SessionEnded(order.session, 0.0, f"No stream: {error}."))
            return
        connection: Connection[messages.ClientMessage] = Connection(
            sock,
            messages.ClientMessage,
            token=order.token,
            epoch=order.epoch,
            on_blocked=lambda: self._pump.blocked(order.session),
        )
        try:
            arena = Arena.adopt(memory, order.arena)
        except (ProtocolError, OSError, ValueError) as error:
            os.close(memory)
            connection.send(messages.Refused("protocol", str(error)))
            connection.close()
            self._ended(messages.SessionEnded(order.session, 0.0, str(error)))
            return
        session = self._session(order, connection, arena)
        try:
            self._pump.adopt(session, order.limit, _resync(order) if order.epoch else None)
        except JgpuError as error:
            _log.exception("session %d cannot be adopted", order.session)
            self._pump.refuse(session, str(error))

    def _session(
        self,
        order: messages.Adopt,
        connection: Connection[messages.ClientMessage],
        arena: Arena,
    ) -> ExecutorSession:
        account = self._account(order.user)
        account.limit = order.limit
        return ExecutorSession(
            number=order.session,
            owner=SessionOwner(
                order.user, order.identity or f"user {order.user}", order.weight, order.priority
            ),
            connection=connection,
            arena=arena,
            account=account,
            device=self._pump.device,
            lost=order.epoch > 0,
        )

    def _retire(self, order: messages.RetireLane) -> None:
        session = self._pump.sessions.get(order.session)
        if session is not None:
            if not session.life.is_closed:
                self._pump.refuse(session, order.text, reason="op_limit")
            self._pump.turns.retire(order.lane, session)

    def _account(self, user: str) -> Account:
        """The user's account; it outlives their sessions, for it keeps what was set."""
        account = self._accounts.get(user)
        if account is None:
            if len(self._accounts) >= _ACCOUNTS:
                # What was set is set again before the user's next session.
                kept = {n: a for n, a in self._accounts.items() if a.sessions or a.owed_s}
                self._accounts = kept
            account = Account(user, self._pump.device.facts.capacity)
            self._accounts[user] = account
        return account

    def _set_user(self, order: messages.SetUser) -> None:
        account = self._account(order.user)
        if account.limit != order.limit:
            for session in account.sessions:  # kernels refuse what can never fit by themselves
                session.send(messages.Ready(self._pump.device.facts, order.limit))
        account.limit, account.resident_limit = order.limit, order.resident_limit
        account.refusal, account.refused_as = order.refusal, order.refused_as
        self._pump.turns.configure_user(order.user, order.weight, throttled=order.throttled)

    def _moved(self, session: ExecutorSession, nbytes: int) -> None:
        self._pump.turns.tallies.moved(nbytes)
        if nbytes > 0:
            left = session.table.used - session.table.spilled
            self._connection.send(messages.Spilled(session.number, nbytes, left))

    def _ended(self, notice: messages.SessionEnded) -> None:
        self._connection.send(notice)

    # -- the report --------------------------------------------------------------------------

    def _look(self) -> None:
        self._long_lived.look()
        self._tell_followers()

    def _tell_followers(self) -> None:
        """Whatever happened since the last look, if somebody watches."""
        if self._followed and (report := self._report(0)) != self._told:
            self._told = report
            self._connection.send(report)

    def _report(self, request: int) -> messages.ReportIs:
        snapshot = self._pump.turns.snapshot()
        lanes = tuple(
            LaneReport(
                id=lane.id,
                capacity_bytes=lane.capacity,
                sessions=lane.sessions,
                running=lane.running,
                state=lane.state,
            )
            for lane in snapshot.lanes
        )
        sessions = tuple(
            SessionReport(
                id=status.id,
                user=status.user,
                state="spilled" if _is_away(status) else status.state,
                lane=status.lane,
                resident_bytes=found.table.resident,
                ephemeral_bytes=found.table.kept,
                spilled_bytes=found.table.spilled,
                spilled_resident_bytes=found.table.resident_away,
                device_seconds=status.device_seconds,
                iterations=found.standing.iterations,
                iteration_seconds=IterationTimes(
                    median=status.iteration_median_s, p95=status.iteration_p95_s
                ),
                queue_position=status.queue_position or None,
                ahead=status.ahead,
                waits_for=status.waits_for,
                waits_on=status.waits_on,
                waits_since=None
                if status.waits_since is None
                else self._epoch + status.waits_since,
                cell=found.cells.running,
                cells=found.cells.times.seconds,
            )
            for status in snapshot.sessions
            if (found := self._pump.sessions.get(status.id)) is not None
        )
        tables = [session.table for session in self._pump.sessions.values()]
        used = sum(table.used - table.spilled for table in tables)
        return messages.ReportIs(
            request,
            lanes,
            sessions,
            used,
            snapshot.policy,
            len(self._pump.definitions),
            snapshot.cut_off,
            snapshot.draining,
            snapshot.under_way,
            self._pump.turns.tallies.report(snapshot),
        )


def _resync(order: messages.Adopt) -> messages.Resync:
    """What a session is told whose executor ended."""
    text = order.lost or "The executor that held this session's tensors ended; they are lost."
    return messages.Resync(order.epoch, True, text, order.lost_work, order.lost_op)


def _is_away(status: SessionStatus) -> bool:
    """Whether a session rests with its memory on the host."""
    return status.state == "idle" and status.residence in ("away", "spilling")
